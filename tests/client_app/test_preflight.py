"""The data card of folders with one thing wrong, and the command that makes it."""

import html
import json
import os
from dataclasses import replace
from unittest.mock import ANY, Mock

import numpy as np
import PIL.Image
import pytest
import torch

from cli import main
from client_app.authority.identity import secret_of
from client_app.authority.policy import Ruling
from client_app.datasets import library, open_data
from client_app.datasets.image import UnusableImage
from client_app.datasets.preflight.card import _near_copies, examine
from client_app.datasets.preflight.page import MAX_UNUSABLE, page, text
from client_app.datasets.resize import Form
from client_app.datasets.unread import REPORTS, SYSTEM
from client_app.store import Store
from learning import evaluation
from tests.fakes import settings


@pytest.fixture(autouse=True)
def _few_patients_are_enough(monkeypatch):
    """tests/adversary/test_limits.py is about how many a hospital needs."""
    ruling = "client_app.authority.permission._patients_ruling"
    monkeypatch.setattr(ruling, lambda *_: Ruling("enough", "", 1, True))


@pytest.fixture
def folder(tmp_path):
    """Two classes of 20 images each that have a bright middle; a patient for each four."""
    rng = np.random.default_rng(0)
    for k in range(40):
        path = tmp_path / "data" / "ab"[k % 2] / f"patient-{k // 8}" / f"{k}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        pixels = rng.integers(0, 100, (16, 16), dtype=np.uint8)
        pixels[4:12, 4:12] += 150
        PIL.Image.fromarray(pixels).save(path)
    return tmp_path / "data"


def card_of(folder, tmp_path, **changes):
    changes = {"dataset": f"folder:{folder}", "sealed": True, **changes}
    return examine("Graz", settings(**changes), tmp_path / "store")


def problems(card, level):
    return {f.problem for f in card.findings if f.level == level}


def test_images_that_nothing_is_wrong_with(folder, tmp_path):
    card = card_of(folder, tmp_path)[0]
    assert (card.verdict, card.findings) == ("green", [])
    assert (card.images, card.groups) == (40, 5)
    assert card.sizes == {"16 x 16": 40}
    assert card.kinds == {"PNG, 1 x 8 bits": 40}
    assert {name: sum(parts.values()) for name, parts in card.classes.items()} == {"a": 20, "b": 20}
    assert all(parts["test"] == 4 for parts in card.classes.values())
    assert card.bytes_on_disk == 40 * 16 * 16


def test_large_images_are_looked_at_a_few_at_a_time(folder, tmp_path, monkeypatch):
    card = card_of(folder, tmp_path)[0]
    monkeypatch.setattr(evaluation, "BATCH_VALUES", 5 * 16 * 16)
    applied = Mock(side_effect=Form.apply)
    monkeypatch.setattr(Form, "apply", lambda *args: applied(*args))
    assert card_of(folder, tmp_path)[0] == replace(card, bytes_free=ANY)
    assert [len(images) for (_, images), _ in applied.call_args_list] == [5] * 8


def test_patients_are_counted_where_they_are_named(folder, tmp_path):
    """All five patients have images of both classes, and each is on one side of the split."""
    card, survey = card_of(folder, tmp_path)
    assert card.patients == {key: {"train": 4, "test": 1} for key in "ab"}
    assert "40, of 5 patients" in page(card, survey)
    assert "4, of 1 patient<" in page(card, survey)


def first(folder, label="a"):
    return sorted((folder / label).rglob("*.png"))[0]


def copy_to_another_patient(folder, change=lambda pixels: pixels):
    """Of each image of patient 0 one of patient 4, so that one at least is on the other side."""
    for path in (folder / "a" / "patient-0").iterdir():
        for patient in range(1, 5):
            pixels = change(np.array(PIL.Image.open(path)))
            place = folder / "a" / f"patient-{patient}" / f"{path.stem}-again.png"
            PIL.Image.fromarray(pixels).save(place)


def damage(path, kind):
    if kind == "text":
        path.write_text("no image")
    elif kind == "truncated":
        path.write_bytes(path.read_bytes()[:-40])
    elif kind == "white":
        PIL.Image.new("L", (16, 16), 255).save(path)
    elif kind == "inverted":
        PIL.Image.fromarray(255 - np.array(PIL.Image.open(path))).save(path)


@pytest.mark.parametrize(
    ("kind", "problem", "listed"),
    [
        ("text", "unusable-images", "unusable"),
        ("truncated", "unusable-images", "unusable"),
        ("white", "constant-images", "constant"),
        ("inverted", "inverted-images", "inverted"),
    ],
)
def test_a_damaged_image_is_found(kind, problem, listed, folder, tmp_path):
    damage(first(folder), kind)
    card, survey = card_of(folder, tmp_path)
    assert card.verdict == "amber"
    assert problems(card, "amber") == {problem}
    (found,) = getattr(card, listed)
    assert "a/patient-0/0.png" in str(found)
    assert "0.png" in page(card, survey)
    assert ("0.png" in text(card)) == (listed == "unusable")
    assert sum(card.kinds.values()) == sum(card.sizes.values()) == card.images


def test_more_damage_than_is_allowed_is_red(folder, tmp_path):
    for path in sorted((folder / "a").rglob("*.png"))[:3]:
        damage(path, "text")
    card, _ = card_of(folder, tmp_path)
    assert card.verdict == "red"
    assert problems(card, "red") == {"unusable-images"}
    assert card_of(folder, tmp_path, max_quarantined=0.1)[0].verdict == "amber"


@pytest.mark.parametrize(
    ("change", "rule", "counts"),
    [
        ({"test_per_class": "2,3"}, "", {"a": (18, 2), "b": (18, 2)}),
        ({"classes": "b,c", "max_quarantined": 0.5}, "", {"b": (16, 4)}),
        ({}, "images.classes = ['a']", {"a": (16, 4)}),
        ({"classes": "a,c"}, "images.classes = ['a']", {"a": (16, 4)}),
        ({"classes": "c,d", "test_balanced": True}, "", {}),
    ],
)
def test_the_split_is_that_of_a_run(change, rule, counts, folder, tmp_path):
    """Twenty images of each class, each on its own."""
    flat, policy = tmp_path / "flat", tmp_path / "policy.toml"
    for path in folder.rglob("*.png"):
        (flat / path.relative_to(folder).parts[0]).mkdir(parents=True, exist_ok=True)
        path.rename(flat / path.relative_to(folder).parts[0] / path.name)
    policy.write_text(f"{rule}\nfigures.smallest-group = 1\n", "utf-8")
    chosen = settings(dataset=f"folder:{flat}", sealed=True, **change)
    store, real = tmp_path / "store", policy if rule else None
    card, survey = examine("Graz", chosen, store, real)

    found = {name: (each["train"], each["test"]) for name, each in card.classes.items()}
    assert found == counts
    assert ("unknown-classes" in problems(card, "red")) == (not counts)
    assert page(card, survey)
    if counts:
        taking_part = ("a",) if real else None
        secret = secret_of(Store(store / "Graz")) if real else b""
        classes = tuple(chosen.class_names)
        data = open_data(chosen, 0, 1, classes, store, None, taking_part, secret)
        for side, images in enumerate((data.train, data.test)):
            assert len(images) == sum(each[side] for each in counts.values())


def test_files_that_are_no_images_are_counted_by_kind(folder, tmp_path):
    (folder / "a" / "@eaDir").mkdir()
    for name in ("Thumbs.db", "notes.txt", "1.HEIC", "2.heic", "scan.pdf"):
        (folder / "a" / name).touch()
    card = card_of(folder, tmp_path)[0]

    assert (card.verdict, card.images, card.unusable) == ("amber", 40, [])
    assert [(finding.level, finding.text) for finding in card.findings] == [
        ("amber", "Files in a format that is not read here (HEIC): 2."),
        ("note", f"Ignored: 2 {SYSTEM}."),
        ("note", "Files that are ignored, since their names have no suffix of an image: 1."),
        ("note", "Files in a format that is not read here (PDF): 1."),
    ]
    assert card.findings[0].advice == "Save images as JPEG, PNG or TIFF."


@pytest.mark.parametrize(
    ("unknown", "allowed", "verdict"), [(2, 0.05, "green"), (3, 0.05, "amber"), (80, 0.8, "green")]
)
def test_many_files_of_an_unknown_kind_are_a_question(unknown, allowed, verdict, folder, tmp_path):
    """Of 40 images and 3 other files 7 % are not read: JPEGs without a suffix, for example."""
    for number in range(unknown):
        (folder / "a" / f"IMG{number}").write_bytes(b"\xff\xd8\xff")
    card = card_of(folder, tmp_path, max_quarantined=allowed)[0]
    assert (card.verdict, card.images, card.ignored) == (verdict, 40, {"": unknown})


@pytest.mark.parametrize(("each", "asked"), [(8, False), (10, True)])
def test_subfolders_that_may_be_kinds_of_a_class_are_a_question(each, asked, tmp_path):
    values = iter(np.random.default_rng(0).integers(0, 256, (99, 16, 16), dtype=np.uint8))
    for place in ("malignant/melanoma", "malignant/bcc", "benign/nevus", "benign/naevus"):
        (tmp_path / "data" / place).mkdir(parents=True)
        for number in range(each):
            PIL.Image.fromarray(next(values)).save(tmp_path / "data" / place / f"{number}.png")
    card = card_of(tmp_path / "data", tmp_path)[0]
    assert card.groups == 4
    assert ("groups-like-classes" in problems(card, "amber")) == asked


@pytest.mark.parametrize("name", ["labels.csv", "list.TSV", "images.xlsx"])
def test_a_table_that_is_no_manifest_is_a_question(name, folder, tmp_path):
    (folder / name).touch()
    card = card_of(folder, tmp_path)[0]
    assert (card.verdict, card.ignored) == ("amber", {"table": 1})
    assert "save it as manifest.csv" in card.findings[0].advice


@pytest.mark.parametrize("rows", [None, 16])
def test_reports_beside_images_are_no_damaged_images(rows, folder, tmp_path):
    """Unless a file says that it is an image, or a manifest names it."""
    pydicom = pytest.importorskip("pydicom")
    report = pydicom.Dataset()
    report.SOPClassUID, report.SOPInstanceUID = "1.2.840.10008.5.1.4.1.1.88.11", "1.2.3"
    if rows:  # an image of computed tomography that was cut off
        report.SOPClassUID, report.Rows = "1.2.840.10008.5.1.4.1.1.2", rows
    report.file_meta = pydicom.dataset.FileMetaDataset()
    report.file_meta.TransferSyntaxUID = pydicom.uid.ExplicitVRLittleEndian
    pydicom.dcmwrite(folder / "a" / "SR1", report, enforce_file_format=True)
    card = card_of(folder, tmp_path)[0]
    assert (len(card.unusable), card.ignored) == ((1, {}) if rows else (0, {REPORTS: 1}))

    (folder / "manifest.csv").write_text("image,label\na/SR1,a\n")
    card, _ = card_of(folder, tmp_path, dataset=f"manifest:{folder}")
    assert (len(card.unusable), card.ignored, card.verdict) == (1, {}, "red")


def test_what_was_repaired_or_can_be_read_now_is_tried_again(folder, tmp_path, monkeypatch):
    def unreadable(*_):
        raise UnusableImage("needs a package")

    with monkeypatch.context() as patch:
        patch.setattr(library, "read_pixels", unreadable)
        assert problems(card_of(folder, tmp_path)[0], "red") == {"unusable-images"}
    assert card_of(folder, tmp_path)[0].verdict == "green"


def test_copies_and_near_copies_across_the_split_are_found(folder, tmp_path):
    copy_to_another_patient(folder)
    exact = card_of(folder, tmp_path)[0]
    assert {len(names) for names in exact.copies} == {5}
    assert exact.near_copies == []  # since copies are one group

    copy_to_another_patient(folder, lambda pixels: np.minimum(pixels + 2, 255).astype(np.uint8))
    near, survey = card_of(folder, tmp_path)
    assert "near-copies" in problems(near, "amber")
    for pair in near.near_copies:
        stems = {
            name.rpartition("/")[2].removesuffix(".png").removesuffix("-again") for name in pair
        }
        assert len(stems) == 1
    assert "Pairs on both sides" in page(near, survey)


def test_exports_of_one_placeholder_are_a_pair_for_each_test_image():
    sketches = torch.nn.functional.normalize(torch.eye(8)[[0] * 6 + [1, 2, 2, 3]])
    train, test = np.array([0, 1, 2, 6, 7]), np.array([3, 4, 5, 8, 9])

    assert _near_copies(sketches, train, test) == [(0, 3), (0, 4), (0, 5), (7, 8)]
    assert _near_copies(sketches, train[:0], test[:0]) == []


def test_a_copy_with_another_label_contradicts(folder, tmp_path):
    place = folder / "b" / "patient-0" / "copy.png"
    place.write_bytes(first(folder).read_bytes())
    card, _ = card_of(folder, tmp_path)
    assert problems(card, "amber") == {"contradictions"}
    assert "Files that have copies with another label: 2." in text(card)
    assert card.contradictions == [["a/patient-0/0.png", "b/patient-0/copy.png"]]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("sizes", "expected"),
    [
        ({"a": 20}, {"one-class"}),
        ({"a": 200, "b": 19}, {"uneven-classes"}),
        ({"a": 200, "b": 20}, set()),
        ({"a": 20, "b": 9}, {"rare-classes"}),
        ({"a": 20, "b": 2}, {"rare-classes", "untested-classes"}),
    ],
)
def test_classes_that_are_rare_or_uneven(sizes, expected, tmp_path):
    rng = np.random.default_rng(0)
    for name, size in sizes.items():
        (tmp_path / "data" / name).mkdir(parents=True)
        for k in range(size):
            pixels = rng.integers(0, 256, (4, 4), dtype=np.uint8)
            PIL.Image.fromarray(pixels).save(tmp_path / "data" / name / f"{k}.png")
    card, survey = card_of(tmp_path / "data", tmp_path)
    assert problems(card, "amber") == expected
    assert problems(card, "note") == {"no-groups"}
    assert card.patients == {}
    assert "their patients are unknown" in html.unescape(page(card, survey))


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"image_size": 0}, "no-images"),
        ({"test_fraction": 0.0, "image_size": 8}, "no-split"),
        ({"dataset": "folder:/no/such/folder"}, "no-images"),
    ],
)
def test_settings_that_do_not_go_with_the_images_are_red(change, problem, folder, tmp_path):
    PIL.Image.new("L", (9, 9)).save(folder / "a" / "small.png")
    card, survey = card_of(folder, tmp_path, **change)
    assert problems(card, "red") == {problem}
    assert problems(card, "amber") <= {"constant-images"}  # no class is called untested
    assert "cannot take part" in page(card, survey)


@pytest.mark.parametrize(
    ("classes", "max_quarantined", "level"),
    [("", 0.05, ""), ("a,b,c", 0.05, ""), ("a,c", 0.05, "red"), ("a,c", 0.5, "amber")],
)
def test_classes_that_the_federation_does_not_know(
    classes, max_quarantined, level, folder, tmp_path
):
    card, _ = card_of(folder, tmp_path, classes=classes, max_quarantined=max_quarantined)
    found = {f.level for f in card.findings if f.problem == "unknown-classes"}
    assert found == ({level} if level else set())


@pytest.mark.parametrize(
    ("column", "tasks", "text"),
    [
        ("", 2, "3 of 3 images have no task from 1 to 2"),
        (",1", 2, ""),
        (",3", 2, "3 of 3 images have no task from 1 to 2"),
        ("", 1, ""),
    ],
)
def test_images_of_which_nothing_says_when_they_arrive(column, tasks, text, folder, tmp_path):
    rows = "".join(f"a/patient-0/{n}.png,a{column}\n" for n in (0, 2, 4))
    (folder / "manifest.csv").write_text("image,label" + ",task" * bool(column) + f"\n{rows}")
    dataset = f"manifest:{folder}"
    card, _ = card_of(folder, tmp_path, dataset=dataset, tasks=tasks, task_cut="given")
    found = [each for each in card.findings if each.problem == "unknown-tasks"]
    assert [each.text[: len(text)] for each in found] == [text] * bool(text)


def test_its_settings_can_be_given_to_a_run(folder, tmp_path):
    card = html.unescape(page(*card_of(folder, tmp_path)))
    assert '\nimage-fit = "' in card


def test_names_cannot_break_the_page(folder, tmp_path):
    (folder / "a").rename(folder / "<script>a&b")
    written = page(*card_of(folder, tmp_path))
    assert "<script>" not in written
    assert "&lt;script&gt;a&amp;b" in written


def preflight(monkeypatch, *arguments):
    with pytest.raises(SystemExit) as exit_:
        main(["preflight", *map(str, arguments)])
    return exit_.value.code


def test_the_command(folder, tmp_path, monkeypatch, capsys):
    store = tmp_path / "store"
    where = ["--data-dir", folder, "--store-dir", store, "--site", "Graz"]
    assert preflight(monkeypatch, *where) == 0
    out = capsys.readouterr().out
    assert out.splitlines()[:3] == [
        f"Images: {folder}",
        "40 images, 0 that cannot be used",
        "  a: 16 to train on, 4 to test on",
    ]
    assert out.splitlines()[-1] == str(store / "Graz" / "preflight" / "card.html")
    card = json.loads((store / "Graz" / "preflight" / "card.json").read_text())
    assert (card["verdict"], card["images"]) == ("green", 40)

    for path in (folder / "a").rglob("*.png"):
        path.write_text("no image")
    assert preflight(monkeypatch, *where, "--run-config", "image-size=8 test-fraction=0.5") == 1
    assert "RED: The hospital cannot take part" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("config", "message"),
    [("colour=1", "There is no setting 'colour'"), ("image-size=-1", "'image-size' is -1")],
)
def test_wrong_settings_are_named(config, message, folder, monkeypatch, capsys):
    assert preflight(monkeypatch, "--data-dir", folder, "--run-config", config) == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    ("rules", "status", "said"),
    [
        ("", 0, "The policy allows this run."),
        ("images.max-size = 4", 1, "The policy refuses this run (1 of"),
        ("machine.max-disk-gb = 1e-9", 2, "machine.max-disk-gb allows 1e-09 or less"),
        ("images.classes = ['a', 'bb']", 0, "(images.classes) leaves out images of 'b'."),
    ],
)
def test_a_hospital_sees_whether_its_policy_allows_the_run(
    rules, status, said, folder, tmp_path, monkeypatch, capsys
):
    (tmp_path / "policy.toml").write_text(rules, "utf-8")
    where = ["--data-dir", folder, "--store-dir", tmp_path / "store"]
    arguments = [*where, "--policy", tmp_path / "policy.toml"]
    assert preflight(monkeypatch, *arguments, "--run-config", "image-size=8") == status
    assert said in "".join(capsys.readouterr())


@pytest.mark.parametrize(("config", "status"), [("strategy='cwc'", 1), ("strategy='rwt'", 0)])
def test_settings_that_the_policy_refuses_are_no_success(
    config, status, folder, tmp_path, monkeypatch, capsys
):
    (tmp_path / "policy.toml").write_text("runs.strategies = ['rwt']\n[models]\nweights = []\n")
    arguments = ["--data-dir", folder, "--store-dir", tmp_path / "store"]
    arguments += ["--policy", tmp_path / "policy.toml", "--run-config", f"{config} image-size=8"]
    assert preflight(monkeypatch, *arguments) == status
    out = capsys.readouterr().out
    for words in (
        "The policy refuses this run",
        "RED: The hospital cannot take part with these data and settings.",
        "would refuse it. Change the setting, or the rule of the policy.",
    ):
        assert (words in out) == bool(status)


@pytest.mark.parametrize("present", [False, True])
def test_where_nothing_can_be_used_each_file_is_named_with_the_reason(present, folder, tmp_path):
    """One image is not there, and one is cut short or not there either."""
    image = first(folder)
    damage(image, "truncated")
    if not present:
        image.unlink()
    (folder / "manifest.csv").write_text(f"image,label\nno.png,a\n{image.relative_to(folder)},a\n")
    card, survey = card_of(folder, tmp_path, dataset=f"manifest:{folder}")
    reason = (
        "cannot be read or decoded (OSError)" if present else "names an image that is not there"
    )

    assert problems(card, "red") == {"unusable-images"}
    assert (card.images, survey) == (0, None)
    for said in (text(card), page(card, survey)):
        assert "2 of 2 images cannot be used" in html.unescape(said)
        assert "row 2 (no.png): names an image that is not there" in said
        assert f"row 3 (a/patient-0/0.png): {reason}" in said


def test_the_terminal_names_the_first_unusable_files(folder, tmp_path):
    for path in sorted(folder.rglob("*.png"))[: MAX_UNUSABLE + 2]:
        damage(path, "text")
    lines = text(card_of(folder, tmp_path)[0]).splitlines()

    assert lines[0] == f"{38 - MAX_UNUSABLE} images, {MAX_UNUSABLE + 2} that cannot be used"
    listed = lines[lines.index("Cannot be used:") + 1 :]
    assert listed[0] == "  a/patient-0/0.png: is not an image file that can be read here"
    assert len(listed) == MAX_UNUSABLE + 1
    assert listed[-1] == "  and 2 more: card.json has all"


def test_a_folder_that_may_not_be_read_is_named(folder, tmp_path, monkeypatch):
    scandir = os.scandir

    def refusing(path):
        if os.fspath(path).endswith("patient-2"):
            raise PermissionError(13, "Permission denied", os.fspath(path))
        return scandir(path)

    monkeypatch.setattr("os.scandir", refusing)
    card, survey = card_of(folder, tmp_path)
    assert problems(card, "red") == {"no-images"}
    for said in (text(card), page(card, survey)):
        assert f"{folder}/a/patient-2: cannot be read (PermissionError)" in said
        assert "0 images" not in said
