import re
import shutil

import numpy as np
import pytest
from PIL import Image

from cli import main
from client_app import gain
from client_app.errors import DataError
from client_app.gain import ELSEWHERE, HOME, Gain, describe_gains, measure_gains
from learning.intervals import Figure
from pages.verdicts.home import judge_gain

COLOURS = {"dark": 40, "grey": 120, "light": 200}


@pytest.fixture(autouse=True)
def _random_network(monkeypatch):
    small = {"model": "mlp", "mlp.hidden": "64", "pretrained": "", "image-size": 8}
    monkeypatch.setattr(gain, "SETTINGS", gain.SETTINGS | small)


@pytest.fixture
def draw(tmp_path):
    """Draw a department's images of some classes."""
    rng = np.random.default_rng(0)

    def drawn(name, *classes, number=15):
        for label in classes:
            folder = tmp_path / name / label
            folder.mkdir(parents=True)
            for index in range(number):
                pixels = rng.normal(COLOURS.get(label, 120), 25, (8, 8)).clip(0, 255)
                Image.fromarray(pixels.astype(np.uint8)).save(folder / f"{index}.png")
        return tmp_path / name

    return drawn


def test_a_class_of_the_other_department_is_learnt_by_taking_part(draw, tmp_path):
    """Alone, a department can find one of the other department's two classes at most."""
    folders = [draw("graz", "dark", "grey"), draw("linz", "grey", "light")]
    gains = measure_gains(folders, tmp_path / "store", splits=2)
    assert list(gains) == ["graz", "linz", HOME, ELSEWHERE]
    elsewhere = gains[ELSEWHERE]["balanced-accuracy"].pairs
    assert all(alone <= 0.5 < shared for alone, shared in elsewhere)
    for metric in gain.METRICS:
        both = [gains[name][metric].pairs for name in ("graz", "linz")]
        np.testing.assert_allclose(gains[HOME][metric].pairs, np.mean(both, axis=0))
    one, other = gains[HOME]["auroc"].pairs
    assert one != other  # the splits differ
    assert one[0] != one[1]  # a classifier for home has seen the other department's images
    again = measure_gains(folders[::-1], tmp_path / "store", splits=2)
    for place, metrics in gains.items():
        assert metrics == again[place]


def test_departments_may_have_the_name_of_any_folder(draw, tmp_path):
    names = ("home", "elsewhere")
    gains = measure_gains([draw(name, "dark", "light") for name in names], tmp_path / "store", 2)
    assert list(gains) == [*names, HOME, ELSEWHERE]
    lines = describe_gains(gains).splitlines()
    for start in (*names, HOME, ELSEWHERE):
        assert len([line for line in lines if line.startswith(f"{start} ")]) == len(gain.METRICS)


def test_a_department_of_one_class_has_no_figure(draw, tmp_path):
    """Alone, its classifier always gives this class: 100 %, and sharing could only be worse."""
    folders = [draw("graz", "dark"), draw("linz", "dark", "light")]
    gains = measure_gains(folders, tmp_path / "store", splits=2)
    for metric in gain.METRICS:
        assert not gains["graz"][metric].pairs
        assert gains[HOME][metric].pairs == gains["linz"][metric].pairs
        assert len(gains[ELSEWHERE][metric].pairs) == 2
    lines = [each for each in describe_gains(gains).splitlines() if each.startswith("graz")]
    assert [each.split(maxsplit=1)[1] for each in lines] == [
        "– (its test images show one class)"
    ] * 2


@pytest.mark.parametrize(("usable", "splits"), [(0, ""), (1, " on all splits but 1")])
def test_a_department_without_figures_says_on_how_many_splits(usable, splits):
    five = [(0.7, 0.8), (0.72, 0.8), (0.7, 0.79), (0.71, 0.8), (0.7, 0.8)]
    places = {"graz": five, "linz": five[:usable], HOME: five, ELSEWHERE: five}
    gains = {
        place: dict.fromkeys(gain.METRICS, gain.Gain(pairs, 0.2)) for place, pairs in places.items()
    }
    lines = [each for each in describe_gains(gains).splitlines() if each.startswith("linz")]
    assert len(lines) == 2
    assert all(each.endswith(f"– (its test images show one class{splits})") for each in lines)


def test_departments_of_one_class_each_have_no_gain(draw, tmp_path):
    folders = [draw("graz", "dark"), draw("linz", "light")]
    with pytest.raises(DataError, match="At each department all test images show one class"):
        measure_gains(folders, tmp_path / "store", splits=2)


def test_a_class_of_few_patients_helps_no_other_department(draw, tmp_path):
    """The default policy keeps it back: neither department has 10 patients with 'grey'."""
    folders = [draw(name, "dark", "light") for name in ("graz", "linz")]
    for name in ("graz", "linz"):
        draw(name, "grey", number=10)
    gains = measure_gains(folders, tmp_path / "store", splits=2)
    assert all(shared < alone for alone, shared in gains[ELSEWHERE]["balanced-accuracy"].pairs)


@pytest.mark.parametrize(
    ("departments", "words"),
    [
        ([("graz", "dark", "light")], "two departments"),
        ([("graz", "dark"), ("linz", "dark")], "All images show 'dark'"),
        ([("graz", "dark", "light"), ("linz",)], "linz: "),
        ([("graz", "dark", "light"), ("linz", "Dark", "light")], "'Dark', 'dark'"),
    ],
)
def test_departments_that_cannot_be_compared_are_refused_before_images_are_opened(
    departments, words, draw, tmp_path, monkeypatch
):
    monkeypatch.setattr(gain, "open_data", None)
    folders = [draw(*each) for each in departments]
    with pytest.raises(DataError, match=words):
        measure_gains(folders, tmp_path / "store", splits=2)


def test_departments_without_folders_of_classes_are_refused(draw, tmp_path):
    folders = [draw(name, ".") for name in ("graz", "linz")]
    with pytest.raises(DataError, match=r"graz: .* did not pass the preflight: unusable-images"):
        measure_gains(folders, tmp_path / "store", splits=2)


def test_a_manifest_that_fixes_the_split_is_refused(draw, tmp_path):
    folder = draw("graz", "dark", "light")
    rows = ["image,label,split"] + [
        f"{label}/{index}.png,{label},{'test' if index > 11 else 'train'}"
        for label in ("dark", "light")
        for index in range(15)
    ]
    (folder / "manifest.csv").write_text("\n".join(rows))
    with pytest.raises(
        DataError,
        match=r"graz: all splits are the same\. It has 30 patients.* Remove the column 'split'",
    ):
        measure_gains([draw("linz", "dark", "light"), folder], tmp_path / "store", splits=2)


def test_a_folder_of_departments_is_refused_by_what_it_holds(draw, tmp_path):
    for department in ("a", "b"):
        draw(f"all/{department}", "dark", number=30)
        draw(f"all/{department}", "light")
    folders = [draw("linz", "dark", "light"), tmp_path / "all"]
    words = "all: all splits are the same. It has 2 patients and images of 'a', 'b'. If these"
    with pytest.raises(DataError, match=re.escape(words)):
        measure_gains(folders, tmp_path / "store", splits=2)


@pytest.mark.parametrize("again", ["itself", "link", "copy"])
def test_a_department_does_not_gain_from_itself(again, draw, tmp_path):
    """Its test images would be among the training images of the other."""
    graz, other = draw("graz", "dark", "light"), tmp_path / "other"
    if again == "link":
        other.symlink_to(graz)
    if again == "copy":
        shutil.copytree(graz, other)
    folders = [graz, draw("linz", "dark", "light"), graz if again == "itself" else other]
    with pytest.raises(DataError, match=r"graz and .* have the same images: name each"):
        measure_gains(folders, tmp_path / "store", splits=2)


def test_images_that_two_departments_share_are_named(draw, tmp_path, caplog):
    """They are test images of one and training images of the other, so the gain is too large."""
    graz, linz = draw("graz", "dark", "light"), draw("linz", "dark", "light")
    measure_gains([graz, linz], tmp_path / "store", splits=2)
    assert "share" not in caplog.text
    for name in ("1.png", "2.png"):
        shutil.copy(graz / "dark" / name, linz / "dark" / name)
    measure_gains([graz, linz], tmp_path / "store", splits=2)
    assert "share 2 images: remove them from one folder." in caplog.text


def test_images_that_cannot_be_used_are_counted(draw, tmp_path, caplog):
    graz, linz = draw("graz", "dark", "light"), draw("linz", "dark", "light")
    (graz / "dark" / "0.png").write_bytes(b"no picture")
    measure_gains([graz, linz], tmp_path / "store", splits=2)
    assert f"{graz}: 1 image cannot be used. `fedhandoff preflight` names them." in caplog.text
    assert f"{linz}: " not in caplog.text


def test_the_command_prints_the_verdict_and_a_row_for_each_place(draw, tmp_path, capsys):
    folders = [str(draw(name, "dark", "light")) for name in ("graz", "linz")]
    with pytest.raises(SystemExit) as ended:
        main(["gain", *folders, "--store-dir", str(tmp_path / "store")])
    assert ended.value.code == 0
    lines = capsys.readouterr().out.splitlines()
    (start,) = [k for k, line in enumerate(lines) if line.startswith("If a department takes part")]
    heading, *rows = lines[start + 2 :]
    assert heading.split()[0] == "Balanced"
    assert [row.split()[0] for row in rows[:4]] == ["graz", "linz", "mean,", "mean,"]


def test_a_split_without_an_auroc_does_not_blank_a_row():
    """By hand: 60 and 64 alone, 70 and 72 together; +9 on average, on 2 of 3 splits."""
    every = Gain([(0.5, 0.6), (0.6, 0.7), (0.5, 0.7)], 0.2)
    few = {"balanced-accuracy": every, "auroc": Gain([(0.6, 0.7), (0.64, 0.72)], 0.2)}
    none = {"balanced-accuracy": every, "auroc": Gain([(0.6, 0.7)], 0.2)}
    text = describe_gains({"graz": few, "linz": none, HOME: few, ELSEWHERE: few})
    graz, linz = (line for line in text.split("AUROC")[1].splitlines()[1:3])
    assert graz.split()[:4] == ["graz", "62.0", "71.0", "+9.0"]
    assert graz.endswith("; 2 of 3 splits)")
    assert linz.split()[:2] == ["linz", "–"]


@pytest.mark.parametrize(
    ("low", "high", "words"),
    [
        (0.01, 0.05, "rises (+3.0 points; 95 % interval +1.0 to +5.0)"),
        (-0.05, -0.01, "falls (-3.0 points"),
        (-0.01, 0.05, "is not shown to change (+2.0 points"),
        (0.0, 0.0, "is not shown to change (+0.0 points; no interval: the same on every split)"),
        (0.5, 0.5, "is not shown to change (+50.0 points; no interval: the same on every split)"),
    ],
)
def test_the_verdict_says_only_what_the_interval_shows(low, high, words):
    figure: Figure = {"value": (low + high) / 2, "low": low, "high": high}
    other: Figure = {"value": 0.0, "low": -1.0, "high": 1.0}
    assert f"on average its balanced accuracy for its own patients {words}" in judge_gain(
        figure, other
    )
    assert f"other departments it {words}" in judge_gain(other, figure)
