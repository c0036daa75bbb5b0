"""The data of axes along which methods degrade, and of diagnoses; plots; what is best at home."""

import json
import sys
from dataclasses import replace

import numpy as np
import pytest
import tomli_w
from matplotlib.figure import Figure
from PIL import Image

from benchmarks import at_home, axes, diagnoses, phantoms
from benchmarks.at_home import RULES, Models, judge
from benchmarks.reproduce import folder_name, newest_runs, read_table
from strategies.protocol.settings import defaults


@pytest.fixture(scope="module")
def mnist(tmp_path_factory):
    """As many images of each digit as the axes need; an image's number is in its pixels."""
    file = tmp_path_factory.mktemp("data") / "mnist.npz"
    labels = np.tile(np.arange(10), 2100)
    numbers = np.arange(len(labels))
    images = np.zeros((len(labels), 28, 28), np.uint8)
    images[:, 0, 0], images[:, 0, 1] = numbers % 256, numbers // 256
    np.savez(file, x_train=images, y_train=labels, x_test=images[:11000], y_test=labels[:11000])
    return file


def numbers(images):
    return set((images[:, 0, 0] + 256 * images[:, 0, 1].astype(int)).tolist())


@pytest.mark.parametrize("classes", axes.STEPS["classes"])
def test_hospitals_have_so_many_digits_and_test_on_their_own(mnist, classes):
    hospitals = axes.digits(mnist, axes.TRAIN_IMAGES, classes)
    own = [set(train[1].tolist()) for train, _ in hospitals]
    assert [set(test[1].tolist()) for _, test in hospitals] == own
    assert all(len(each) == classes for each in own)
    assert set().union(*own) == set(range(axes.CLASSES))
    assert all(len(train[1]) > axes.TRAIN_IMAGES - classes for train, _ in hospitals)
    trained = [numbers(train[0]) for train, _ in hospitals]
    assert sum(map(len, trained)) == len(set().union(*trained))


def test_few_images_are_a_part_of_more(mnist):
    few, more = (axes.digits(mnist, count, axes.CLASSES) for count in (25, 100))
    for (less, tested), (train, same) in zip(few, more, strict=True):
        assert len(less[1]) == 25
        assert numbers(less[0]) < numbers(train[0])
        assert np.array_equal(tested[0], same[0])


def test_a_device_changes_images_the_more_the_stronger_it_is():
    images = np.random.default_rng(0).integers(0, 256, (4, 32, 32, 3), dtype=np.uint8)
    assert np.array_equal(axes.simulate_device(images, 0, 0.0), images)
    change = [
        np.abs(axes.simulate_device(images, 0, s) - images.astype(int)).mean() for s in (0.3, 1)
    ]
    assert 0 < change[0] < change[1]
    ours, theirs = (axes.simulate_device(images, hospital, 1.0) for hospital in (0, 1))
    assert not np.array_equal(ours, theirs)


FAILED = {"outcome": "crashed", "reason": "out of ink"}


def leave_run(output, row, step, seed, everywhere, at_home, **settings):
    folder = output / folder_name(f"{row} dataset=npz:classes-{step}") / f"seed-{seed}" / "run"
    folder.mkdir(parents=True)
    (folder / "commit").touch()
    config = {"dataset": f"npz:/x/classes-{step}.npz", "seed": seed, **settings}
    (folder / "config.toml").write_text(tomli_w.dumps(config))
    figures = {
        "status": "completed",
        "failures": [],
        "data": {},
        "federation_balanced_accuracy": everywhere,
        "personalized_balanced_accuracy": at_home,
        "history": {
            "round": [1, 2],
            "federation_balanced_accuracy": [None, everywhere],
            "personalized_balanced_accuracy": [0.2, at_home],
        },
    }
    (folder / "summary.json").write_text(json.dumps(figures))


def test_images_are_those_of_the_hospital_of_that_name(tmp_path):
    counts = {"b": 6, "a": 10}  # as in the data set; a summary sorts them
    for name, count in counts.items():
        for number in range(2 * count):
            picture = tmp_path / name / f"{number % 2}" / f"{number}.png"
            picture.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(np.full((8, 8), number, np.uint8)).save(picture)
    dataset = ",".join(str(tmp_path / name) for name in counts)
    config = {**defaults(), "dataset": f"folder:{dataset}", "image-size": 8, "partition": "site"}
    (tmp_path / "config.toml").write_text(tomli_w.dumps(config))
    summary = {"hospitals": ["a", "b"], "classes": ["0", "1"]}
    (tmp_path / "summary.json").write_text(json.dumps(summary))
    found = at_home.images_of(tmp_path)
    assert {name: len(data.train) + len(data.test) for name, data in found.items()} == {
        name: 2 * count for name, count in counts.items()
    }


@pytest.mark.slow
def test_a_plot_has_a_line_for_each_row_that_ran_and_a_place_for_each_step(tmp_path, monkeypatch):
    rows = [row["name"] for row in read_table("axes")["rows"][:-1]]
    for place, row in enumerate(rows):
        for step in (1, 10, 5):
            for seed in (0, 1):
                leave_run(tmp_path / "sweep", row, step, seed, 0.1 * place, 0.5 + step / 100)
    leave_run(tmp_path / "sweep", rows[0], 7, 0, None, None)  # it failed
    for row in rows:
        leave_run(tmp_path / "one", row, 5, 0, 0.5, 0.5)
    drawn = []
    monkeypatch.setattr(Figure, "savefig", lambda figure, *_, **__: drawn.append(figure))
    for output, key in (("sweep", "dataset"), ("one", "round")):
        words = ["axes", "plot", str(tmp_path / output), key, "--to", "x.svg"]
        monkeypatch.setattr(sys, "argv", words)
        axes.main()
    over_rounds, _ = drawn[1].axes
    assert [text.get_text() for text in over_rounds.get_xticklabels()] == ["2"]  # was tested
    everywhere, own = drawn[0].axes
    assert (own.get_xlabel(), over_rounds.get_xlabel()) == ("classes", "round")
    assert [line.get_label() for line in everywhere.get_lines()] == rows
    assert [text.get_text() for text in own.get_xticklabels()] == ["1", "5", "10"]
    assert everywhere.get_lines()[2].get_ydata().tolist() == pytest.approx([20, 20, 20])
    assert own.get_lines()[0].get_ydata().tolist() == pytest.approx([51, 55, 60])


@pytest.mark.parametrize(
    ("key", "said"),
    [
        ("dataset", "'RWT' also differ in model: a line"),
        ("fold", "'RWT' also differ in dataset, model: a line"),
        ("round", "'RWT' also differ in dataset, model: a line"),
    ],
)
def test_runs_that_differ_in_another_setting_are_no_seeds_of_a_point(
    key, said, tmp_path, monkeypatch, capsys
):
    leave_run(tmp_path, "RWT", 1, 0, 0.5, 0.5, model="cnn", fold=0)
    leave_run(tmp_path, "RWT", 2, 1, 0.7, 0.7, model="mlp", fold=1)
    words = ["axes", "plot", str(tmp_path), key, "--to", str(tmp_path / "x.png")]
    monkeypatch.setattr(sys, "argv", words)
    with pytest.raises(SystemExit):
        axes.main()
    assert said in " ".join(capsys.readouterr().err.split())


def test_only_completed_runs_with_the_settings_of_the_newest_are_taken(tmp_path):
    for seed, model in ((0, "cnn"), (1, "mlp"), (2, "mlp"), (3, "mlp")):
        leave_run(tmp_path, "RWT", 1, seed, 0.5, 0.5, model=model)
    folder = next(tmp_path.iterdir())
    for seed, changes in ((2, {"status": "failed"}), (3, {"failures": [FAILED]})):
        path = folder / f"seed-{seed}" / "run" / "summary.json"
        path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))
    (folder / "seed-1" / "run").rename(folder / "seed-1" / "run-2")  # the newest
    assert [run.parent.name for _, run in newest_runs(tmp_path)] == ["seed-1"]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["nowhere", "dataset"], "has no run"),
        (["sweep", "strategy"], "'rwt' has no number"),
        (["other", "dataset"], "'rwt-x' is not a row of 'axes'"),
        (["sweep", "no-such-key"], "has no setting 'no-such-key'"),
        (["sweep", "dataset", "--table", "nothing"], "nothing"),
        (["sweep", "dataset", "--table", "cwc_mnist"], "is not a row of 'cwc_mnist'"),
    ],
)
def test_a_plot_of_what_is_not_there_is_refused(words, said, tmp_path, monkeypatch, capsys):
    leave_run(tmp_path / "sweep", "RWT", 1, 0, 0.5, 0.5, strategy="rwt")
    leave_run(tmp_path / "other", "RWT x", 1, 0, 0.5, 0.5)
    for path in (tmp_path / "other").iterdir():
        path.rename(path.with_name("rwt-x"))
    picture = tmp_path / "x.png"
    command = ["axes", "plot", str(tmp_path / words[0]), *words[1:], "--to", str(picture)]
    monkeypatch.setattr(sys, "argv", command)
    with pytest.raises(SystemExit):
        axes.main()
    assert said in capsys.readouterr().err
    assert not picture.exists()


def test_the_classes_of_the_folders_of_diagnoses_are_the_seven_of_ham10000(tmp_path, monkeypatch):
    centre = tmp_path / "data/skin/msk4"
    (centre / "images").mkdir(parents=True)
    (centre / "images/a.jpg").write_bytes(b"a")
    rows = [
        f"images/{n}.jpg,{int(d == 'MEL')},{d},{n},train"
        for n, d in enumerate(["MEL", "NV", "AK", "SCC"])
    ]
    header = "image,label,diagnosis,lesion_id,fold"
    (centre / "manifest.csv").write_text("\n".join([header, *rows]))
    monkeypatch.setattr(sys, "argv", ["diagnoses", f"{tmp_path}/to", "--data", f"{tmp_path}/data"])
    diagnoses.main()
    written = (tmp_path / "to/skin/msk4/manifest.csv").read_text().splitlines()
    assert written[0] == header
    assert [row.split(",")[1] for row in written[1:]] == ["MEL", "NV", "AKIEC", "AKIEC"]
    assert (tmp_path / "to/skin/msk4/images/a.jpg").read_bytes() == b"a"
    monkeypatch.setattr(sys, "argv", ["diagnoses", f"{tmp_path}/to", "--data", str(tmp_path)])
    with pytest.raises(SystemExit):
        diagnoses.main()


@pytest.mark.slow
def test_departments_have_chests_in_their_own_form_and_spots_in_one_class(tmp_path, monkeypatch):
    few = [replace(each, numbers={"normal": 8, "tb": 8}) for each in phantoms.DEPARTMENTS]
    monkeypatch.setattr(phantoms, "DEPARTMENTS", few)
    monkeypatch.setattr(sys, "argv", ["phantoms", str(tmp_path)])
    phantoms.main()
    for name, mode, size in (("montgomery", "L", (1200, 1000)), ("shenzhen", "RGB", (870, 900))):
        brightness = {}
        for label in ("normal", "tb"):
            images = [Image.open(path) for path in sorted((tmp_path / name / label).iterdir())]
            assert {(image.mode, image.size) for image in images} == {(mode, size)}
            assert len({image.tobytes() for image in images}) == 8
            brightness[label] = np.mean([np.asarray(image) for image in images])
        assert brightness["tb"] > brightness["normal"]


@pytest.mark.slow
def test_rules_are_judged_on_patients_they_were_not_chosen_on(monkeypatch):
    """Of three models one is right; the hospital's own is wrong, and so is what it trained last."""
    labels = np.arange(40) % 2
    right, wrong = np.eye(2)[labels], np.eye(2)[1 - labels]
    patients = np.repeat(np.arange(20), 2)
    models = Models(wrong, wrong, wrong, np.stack([wrong, wrong, right]))
    asked = []

    def noted(seen, labels, new):
        asked.append((seen.alone.shape, new.alone.shape))
        return RULES["the best of all"](seen, labels, new)

    monkeypatch.setattr(at_home, "RULES", {**RULES, "noted": noted})
    figures = dict(judge(models, labels, patients, 0))
    assert figures["its own, alone"] == figures["the one it trained last"] == 0
    assert figures["the mean of all"] == 0
    for rule in ("the best of all", "a mixture of all", "a mixture of all and its own", "noted"):
        assert figures[rule] == 1
    assert asked == [((20, 2), (20, 2))] * (2 * at_home.SPLITS)
    of_one_patient = np.where(labels == 1, 0, 1 + patients)
    assert dict(judge(models, labels, of_one_patient, 0)) == {}
    with_its_own = dict(judge(Models(wrong, right, wrong, np.stack([wrong])), labels, patients, 0))
    assert with_its_own["its own, alone"] == with_its_own["the best of all"] == 0
    assert with_its_own["the best of all and its own"] == 1
