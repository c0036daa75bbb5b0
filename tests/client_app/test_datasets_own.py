"""A hospital's own images: from its folder to what it trains and tests on."""

import logging
from dataclasses import replace
from pathlib import Path

import numpy as np
import PIL.Image
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from client_app.datasets import open_data, own
from client_app.datasets.image import Header
from client_app.datasets.library import DecodedImages, File, open_library
from client_app.datasets.listing import Entry, Listing, Unusable
from client_app.datasets.own import Survey, load_own, own_data, survey
from client_app.errors import DataError
from tests.fakes import settings


@pytest.fixture
def site(tmp_path):
    """Write a manifest, and the images `0.png`, `1.png`, ... of these grey values."""

    def write(text, values=(10, 20, 30), name="krankenhaus"):
        folder = tmp_path / name
        folder.mkdir(exist_ok=True)
        for number, value in enumerate(values):
            PIL.Image.new("L", (3, 2), value).save(folder / f"{number}.png")
        (folder / "manifest.csv").write_text(text)
        return folder

    return write


@pytest.fixture
def load(tmp_path):
    """The pool of a hospital's images."""

    def pool(folder, kind="manifest", **overrides):
        chosen = settings(dataset=f"{kind}:{folder}", **overrides)
        return load_own(str(folder), chosen, tmp_path / "store")

    return pool


@pytest.fixture
def log(monkeypatch):
    """What the hospital's own log says."""
    lines: list[str] = []

    class Lines(logging.Handler):
        def emit(self, record):
            lines.append(record.getMessage())

    monkeypatch.setattr(logging.getLogger("flwr"), "handlers", [Lines()])
    return lines


def surveyed(rows, unlisted=0):
    """A survey of entries of which these attributes are known; `content` "" = it is unusable."""
    contents = [row.get("content", f"own {number}") for number, row in enumerate(rows)]
    entries = [
        Entry(f"row {number}", **{"label": "a", "file": Path(f"/{number}.png"), **row})
        for number, row in enumerate(
            {k: v for k, v in row.items() if k != "content"} for row in rows
        )
    ]
    places = iter(range(len(rows)))
    files = [
        File(entry, 1, 1, content=content, row=next(places))
        if content
        else File(entry, 1, 1, reason="is broken")
        for entry, content in zip(entries, contents, strict=True)
    ]
    opened = DecodedImages(np.zeros((len(rows), 1, 1, 1), np.uint8), files)
    unusable = [Unusable(f"file {number}", "is in no class") for number in range(unlisted)]
    return Survey(Listing(Path("/x"), entries, unusable), opened)


def numbered(groups):
    """Groups by the index of their first image."""
    return [list(groups).index(group) for group in groups]


def test_a_manifest_is_a_pool(site, load):
    pool = load(site("label,image\nnevus,0.png\nmelanoma,2.png\nnevus,1.png\n"))

    assert pool.images.shape == (3, 1, 2, 3)
    assert pool.rows is not None
    assert pool.images[pool.rows, 0, 0, 0].tolist() == [10, 30, 20]
    assert pool.labels.tolist() == [1, 0, 1]
    assert pool.labels.dtype == pool.rows.dtype == np.int64
    assert pool.classes == ("melanoma", "nevus")
    assert (pool.sites, pool.held_out, pool.groups) == (None, None, None)
    assert (pool.always_held_out, pool.quarantined) == (False, 0)


def test_a_folder_is_a_pool(site, load):
    folder = site("")
    for number, place in enumerate(["b/meier/1", "a", "a/meier"]):
        (folder / place).mkdir(parents=True)
        (folder / f"{number}.png").rename(folder / place / "0.png")
    pool = load(folder, "folder")  # a/0.png, a/meier/0.png, b/meier/1/0.png

    assert pool.rows is not None
    assert pool.images[pool.rows, 0, 0, 0].tolist() == [20, 30, 10]
    assert pool.labels.tolist() == [0, 0, 1]
    assert pool.classes == ("a", "b")
    assert pool.groups is not None
    assert numbered(pool.groups) == [0, 1, 1]


def test_images_have_the_form_of_the_settings(site, load):
    folder = site("image,label\n0.png,a\n1.png,a\n")

    assert load(folder, image_size=5, image_channels=3).images.shape == (2, 3, 5, 5)


@pytest.mark.parametrize(
    ("labels", "classes"),
    [
        (("10", "9", "-1"), ("-1", "9", "10")),
        (("10", "9", "x"), ("10", "9", "x")),
        (("10", "9", "nan"), ("10", "9", "nan")),
    ],
)
def test_classes_are_sorted_as_numbers_if_all_are(labels, classes):
    assert surveyed([{"label": label} for label in labels]).pool().classes == classes


def test_what_cannot_be_used_is_quarantined_and_the_rest_stays_in_order():
    labels, contents = ["b", "c", "a", "b"], ["", "x", "", "y"]
    pool = surveyed(
        [{"label": a, "content": c} for a, c in zip(labels, contents, strict=True)], unlisted=3
    ).pool()

    assert pool.classes == ("b", "c")
    assert pool.labels.tolist() == [1, 0]
    assert pool.rows is not None
    assert pool.rows.tolist() == [0, 1]
    assert pool.quarantined == 5


def test_unusable_images_are_listed_with_their_reasons():
    found = surveyed([{}, {"content": ""}], unlisted=1)

    assert found.unusable == [Unusable("file 0", "is in no class"), Unusable("row 1", "is broken")]


@pytest.mark.parametrize(
    ("sites", "expected"),
    [(("", "", ""), None), (("b", "", "a"), None), (("b", "a", "b"), [1, 0, 1])],
)
def test_sites_are_known_if_every_image_has_one(sites, expected):
    pool = surveyed([{"site": site} for site in sites]).pool()

    assert (None if pool.sites is None else pool.sites.tolist()) == expected


@pytest.mark.parametrize(
    ("splits", "expected"),
    [
        (("", "", ""), None),
        (("train", "test", "train"), [False, True, False]),
        (("", "test", ""), [False, True, False]),
    ],
)
def test_a_split_that_the_manifest_gives(splits, expected):
    pool = surveyed([{"split": split} for split in splits]).pool()

    assert (None if pool.held_out is None else pool.held_out.tolist()) == expected
    assert pool.always_held_out == (expected is not None)


@pytest.mark.parametrize(
    ("images", "expected"),
    [
        ([" 1", " 2", " 3"], None),
        (["A1", "B2", "C3"], None),
        (["A1", "B2", "A3"], [0, 1, 0]),
        ([" 1", " 2", " 1"], [0, 1, 0]),
        (["A1", "B1", "B2", "C2", "D3"], [0, 0, 0, 0, 4]),
        (["A1", "B2", "C3", "A3", "B3"], [0, 0, 0, 0, 0]),
        (["A1", "B2", "C3", " 2", "C1"], [0, 1, 0, 1, 0]),
        ([" 1", " 2", "A1", "A2"], [0, 0, 0, 0]),
    ],
)
def test_images_of_a_group_and_copies_belong_together(images, expected):
    """Of each image a letter for its group and a digit for its content."""
    rows = [{"group": group.strip(), "content": content} for group, content in images]
    groups = surveyed(rows).pool().groups

    assert (None if groups is None else numbered(groups)) == expected


def test_images_of_a_patient_of_dicom_belong_together():
    """Patients P and Q are one through the group of the third and the fourth image; R is not."""
    found = surveyed([{}, {}, {"group": "P"}, {"group": "P"}, {}, {"content": ""}, {}, {}])
    patients = ["P", "Q", "P", "Q", "R", "Q", "R", ""]
    for file, patient in zip(found.images.files, patients, strict=True):
        file.header = Header("DICOM", 1, 1, 1, 8, patient)

    # Without the sixth, which is unusable.
    assert numbered(found.groups) == [0, 0, 0, 0, 4, 4, 6]


def test_a_patient_is_one_however_its_name_is_typed():
    """A patient in two spellings could be trained and tested on."""
    found = surveyed([{"group": name} for name in ("P7", "p7", "Meier  A", "meier a", "P 7")])

    assert numbered(found.groups) == [0, 0, 2, 2, 4]


def test_a_group_is_no_content():
    """Though one is called as the other."""
    rows = [{"group": "x", "content": "y"}, {"group": "y", "content": "x"}]

    assert surveyed(rows).pool().groups is None


@given(
    st.lists(st.tuples(st.sampled_from(["", *"ABCD"]), st.integers(1, 6)), min_size=1, max_size=12)
)
def test_groups_are_the_connected_ones(images):
    """As found by following every link until nothing changes."""
    expected = list(range(len(images)))
    for _ in images:
        for one, (group, content) in enumerate(images):
            for two, (other, same) in enumerate(images):
                if content == same or (group and group == other):
                    expected[one] = expected[two] = min(expected[one], expected[two])
    rows = [{"group": group, "content": str(content)} for group, content in images]

    assert numbered(surveyed(rows).groups) == numbered(expected)


def test_copies_of_a_file_are_one_group(site, load):
    folder = site("image,label,patient\n0.png,a,\n1.png,a,1\n2.png,b,2\n3.png,b,2\n", [7, 8, 9, 7])
    pool = load(folder)

    assert pool.groups is not None
    assert numbered(pool.groups) == [0, 1, 0, 0]
    assert pool.rows is not None
    assert pool.rows[0] == pool.rows[3]


# What keeps a hospital from taking part.


def problems(found, max_quarantined=0.05):
    return [finding.problem for finding in found.findings(max_quarantined)]


@pytest.mark.parametrize(
    ("share", "usable", "broken", "unlisted", "red"),
    [
        (0.0, 3, 0, 0, False),
        (0.0, 99, 1, 0, True),
        (0.05, 19, 1, 0, False),
        (0.05, 18, 1, 0, True),
        (0.05, 19, 0, 1, False),
        (0.05, 18, 0, 1, True),
        (0.05, 38, 1, 1, False),
        (0.29, 71, 29, 0, False),  # 0.29 · 100 is less than 29 in binary
        (0.29, 70, 30, 0, True),
        (1.0, 1, 99, 0, False),
    ],
)
def test_the_share_of_unusable_images(share, usable, broken, unlisted, red):
    found = surveyed([{}] * usable + [{"content": ""}] * broken, unlisted)
    total = usable + broken + unlisted

    assert problems(found, share) == ["unusable-images"] * red
    if red:
        [finding] = found.findings(share)
        assert f"{broken + unlisted} of {total} images" in finding.text
        assert f"share of {share:g}" in finding.text


@pytest.mark.parametrize(
    ("classes", "images", "red"),
    [
        (20, [1] * 20, False),
        (21, [1] * 21, True),
        (21, [4] * 11 + [5] * 10, True),
        (21, [4] * 10 + [5] * 11, False),
        (21, [1] * 10 + [99] * 11, False),
    ],
)
def test_classes_that_look_like_patients(classes, images, red):
    """More than 20, of which half have fewer than 5 images."""
    assert len(images) == classes
    found = surveyed(
        [{"label": f"meier {n}"} for n, size in enumerate(images) for _ in range(size)]
    )

    assert problems(found) == ["classes-like-patients"] * red
    assert not any("meier" in finding.text for finding in found.findings(0.05))


@pytest.mark.parametrize(
    ("images", "expected"),
    [
        ([("", "A", "1"), ("", "A", "1")], ["one-patient"]),
        ([("train", "A", "1"), ("test", "B", "2")], []),
        ([("train", "", "1"), ("test", "", "2")], []),
        ([("train", "A", "1"), ("", "A", "1"), ("test", "B", "2")], []),
        ([("train", "A", "1"), ("train", "A", "1")], ["split-without-images"]),
        ([("test", "A", "1"), ("test", "B", "2")], ["split-without-images"]),
        ([("train", "A", "1"), ("test", "A", "2")], ["groups-in-both-splits"]),
        ([("", "A", "1"), ("test", "A", "2")], ["groups-in-both-splits"]),
        ([("train", "A", "1"), ("test", "B", "1")], ["copies-in-both-splits"]),
        ([("train", "", "1"), ("test", "", "1")], ["copies-in-both-splits"]),
        (
            [("train", "A", "1"), ("test", "A", "1")],
            ["groups-in-both-splits", "copies-in-both-splits"],
        ),
    ],
)
def test_splits_that_share_what_belongs_together(images, expected):
    rows = [
        {"split": split, "group": group, "content": content} for split, group, content in images
    ]

    assert problems(surveyed(rows)) == expected


def test_groups_in_both_splits_are_counted():
    """A and C are, B is not."""
    rows = [{"split": split, "group": group} for group in "AC" for split in ("train", "test")]
    found = surveyed([*rows, *rows, {"group": "B", "split": "test"}])

    assert [finding.text for finding in found.findings(0.05)] == [
        "2 groups are in both the training and the test images."
    ]


@pytest.mark.parametrize(
    ("files", "problem"), [("aa", "groups-in-both-splits"), ("ab", "copies-in-both-splits")]
)
def test_slices_of_a_volume_and_of_its_copy_belong_together(files, problem):
    rows = [
        {"content": "x", "slice": number, "file": Path(f"/{name}.nii")}
        for number, name in enumerate(files)
    ]
    assert numbered(surveyed(rows).groups) == [0, 0]
    for row, split in zip(rows, ("train", "test"), strict=True):
        row["split"] = split
    assert problems(surveyed(rows)) == [problem]


def test_a_copy_with_a_slice_is_a_copy():
    rows = [{"content": "x", "slice": slice_} for slice_ in (None, 0)]

    assert numbered(surveyed(rows).groups) == [0, 0]


@pytest.mark.parametrize(
    ("text", "problem", "detail"),
    [
        (
            "0.png,a,,\n1.png,b,,\nmeier.png,b,,\n",
            "unusable-images",
            "1 of 3 images cannot be used",
        ),
        ("0.png,a,,\n1.png,b,,\nbroken.png,b,,\n", "unusable-images", "1 of 3 images cannot be"),
        ("broken.png,a,,\nmeier.png,b,,\n", "unusable-images", "2 of 2 images cannot be used"),
        ("0.png,a,,train\n1.png,b,,\n", "split-without-images", "none to test on"),
        ("0.png,a,meier,train\n1.png,b,meier,test\n", "groups-in-both-splits", "1 groups are"),
        ("0.png,a,,train\n3.png,b,,test\n", "copies-in-both-splits", "1 files (byte for byte)"),
        (
            "0.png,a,meier,train\n3.png,b,meier,test\n",
            "groups-in-both-splits, copies-in-both-splits",
            "1 files (byte for byte)",
        ),
        (
            "".join(f"many/{number}.png,meier {number},,\n" for number in range(21)),
            "classes-like-patients",
            "There are 21 classes",
        ),
    ],
)
def test_the_server_learns_the_class_of_a_problem_and_the_log_the_rest(
    text, problem, detail, site, load, log
):
    folder = site(f"image,label,patient,split\n{text}", (10, 20, 30, 10))
    (folder / "broken.png").write_bytes(b"no image")
    (folder / "many").mkdir()
    for number in range(21):
        PIL.Image.new("L", (3, 2), number).save(folder / "many" / f"{number}.png")
    with pytest.raises(DataError) as error:
        load(folder)

    assert str(error.value) == (
        f"The hospital's data did not pass the preflight: {problem}. At the hospital, 'uv run "
        "fedhandoff preflight' shows details."
    )
    assert any(detail in line for line in log)
    assert not any("meier" in line or "krankenhaus" in line for line in log)


def test_images_that_can_be_used_pass_the_check(site, load, log):
    folder = site("image,label,patient,split\n0.png,a,meier,train\n1.png,b,m,test\nno.png,b,m,\n")

    assert load(folder, max_quarantined=0.34).quarantined == 1
    assert log == []


@pytest.mark.parametrize(
    "row", ["no.png,c,", "broken.png,c,", "0.png,c,", "no.png,c,,,", "no.png,c,eval"]
)
def test_a_class_without_an_image_that_can_be_used_is_named(row, site, load, log):
    """Whatever is wrong with its rows: their folder may not have been copied."""
    folder = site(f"image,label,split\n0.png,a,train\n1.png,b,test\n{row}\nno.png,d,e,f\n,,\n")
    (folder / "broken.png").write_bytes(b"no image")
    load(folder, max_quarantined=0.5)

    assert sum(line.startswith("Classes without an image that can be used: 'c'.") for line in log)


@pytest.mark.parametrize(
    ("place", "kind"),
    [
        ("krankenhaus", "manifest"),
        ("krankenhaus/manifest.csv", "manifest"),
        ("", "folder"),
        ("nowhere", "folder"),
    ],
)
def test_a_folder_with_a_manifest_is_one(place, kind, site, tmp_path, monkeypatch):
    folder = site("image,label\n0.png,a\n")
    if place == "krankenhaus":
        (folder / "manifest.csv").rename(folder / "Manifest.csv")
    monkeypatch.setenv("HOME", str(tmp_path))

    for path in (f"{tmp_path}/{place}", f"~/{place}"):
        assert own_data(path) == f"{kind}:{path}"


# Where decoded images are kept.


def test_libraries_of_hospitals_are_apart(site, tmp_path):
    """They are in the store, and named after the whole path of what lists them."""
    for name in ("one", "two"):
        folder = site("image,label\n0.png,a\n", name=name)
        survey(settings(dataset=f"manifest:{folder}"), tmp_path / "s")
    manifest = tmp_path / "one" / "manifest.csv"
    survey(settings(dataset=f"manifest:{manifest}", image_size=2), tmp_path / "s")
    libraries = sorted((tmp_path / "s" / "images").iterdir())

    assert [folder.name.rpartition("-")[0] for folder in libraries] == ["manifest", "manifest"]
    assert sorted(len(list(folder.glob("*.pixels"))) for folder in libraries) == [1, 2]


# What hospitals are given.


def values(samples):
    """The grey value of each image."""
    return samples.images[:, 0, 0, 0].tolist()


def test_a_hospital_alone_has_all_images(site, tmp_path):
    """Twenty of even and odd values, classes a and b; one file is broken, one of a class c."""
    rows = "".join(f"{n}.png,{'ab'[n % 2]}\n" for n in range(20))
    folder = site(f"image,label\n{rows}no.png,a\n20.png,c\n", range(21))
    chosen = settings(dataset=f"manifest:{folder}", max_quarantined=0.05)
    data = open_data(chosen, 0, 1, ("b", "a"), tmp_path / "store")

    assert data.classes == ("b", "a")
    assert sorted(values(data.train) + values(data.test)) == list(range(20))
    for part in (data.train, data.test):
        assert part.labels.tolist() == [1 - value % 2 for value in values(part)]
    assert data.quarantined == 2


def test_training_and_test_images_stay_mapped(site, tmp_path, monkeypatch):
    opened = []

    def recording(*arguments, real=open_library):
        opened.append(real(*arguments))
        return opened[-1]

    monkeypatch.setattr(own, "open_library", recording)
    folder = site("image,label\n" + "".join(f"{n}.png,a\n" for n in range(10)), range(10))
    data = open_data(settings(dataset=f"manifest:{folder}"), 0, 1, store=tmp_path / "store")

    assert isinstance(opened[0].pixels, np.memmap)
    for part in (data.train, data.test):
        assert part.rows is not None
        assert part.pixels.data_ptr() == opened[0].pixels.ctypes.data
        assert part.shape == (1, 2, 3)
    chosen = data.train[torch.tensor([3, 0])]
    assert values(chosen) == [values(data.train)[3], values(data.train)[0]]
    assert chosen.rows is None
    masked = data.train[data.train.images[:, 0, 0, 0] > 4]
    assert values(masked) == [value for value in values(data.train) if value > 4]


def test_each_hospital_opens_its_own_folder_and_no_other(site, tmp_path, monkeypatch):
    listed = []

    def recording(path, real=own.LISTINGS["manifest"]):
        listed.append(path)
        return real(path)

    monkeypatch.setitem(own.LISTINGS, "manifest", recording)
    rows = "image,label\n" + "".join(f"{n}.png,a\n" for n in range(10))
    folders = [str(site(rows, range(start, start + 10), str(start))) for start in (0, 100)]
    chosen = settings(dataset=f"manifest:{folders[0]}, {folders[1]}", partition="site")
    for index, start in ((1, 100), (0, 0)):
        data = open_data(chosen, index, 2, store=tmp_path / "store")
        assert listed == [folders[index]]
        listed.clear()
        assert sorted(values(data.train) + values(data.test)) == list(range(start, start + 10))


def test_a_manifest_may_say_when_images_arrive(site, tmp_path):
    """Values below 10 are of task 1, others of task 2; without the column nothing is said."""
    numbers = [*range(10), *range(100, 110)]
    rows = [f"{n}.png,a,{1 + n // 10}\n" for n in range(20)]
    folder = site("image,label,task\n" + "".join(rows), numbers)
    chosen = settings(dataset=f"manifest:{folder}", tasks=2, task_cut="given", test_fraction=0.3)
    data = open_data(chosen, 0, 1, store=tmp_path / "store")
    first, second = data.images_at(1), data.images_at(2)
    assert sorted(values(first.train) + values(first.test)) == numbers[:10]
    assert set(values(second.train)) == {*numbers[10:]} - {*values(second.test)}
    assert {*values(first.test)} < {*values(second.test)} == {*values(data.test)}
    assert second.train.pixels.data_ptr() == data.train.pixels.data_ptr()
    at_once = open_data(replace(chosen, tasks=1), 0, 1, store=tmp_path / "store")
    assert values(at_once.train) == values(data.train)
    assert at_once.test.strata.tolist() == [0] * len(at_once.test)
    for column, text in (("", ""), (",task", ",1"), (",task", ","), (",task", ",3")):
        bad = site(
            f"image,label{column}\n0.png,a{text}\n"
            + "".join(f"{n}.png,a{',2' if column else ''}\n" for n in range(1, 20)),
            numbers,
        )
        data = open_data(chosen, 0, 1, store=tmp_path / "store")
        if text == ",1":
            assert values(data.images_at(1).train) + values(data.images_at(1).test) == [0]
        else:
            with pytest.raises(DataError, match="a number from 1 to 2 for every image\\."):
                data.images_at(1)
        assert bad == folder


def test_a_simulated_hospital_splits_its_folder_as_it_does_on_its_own_machine(site, tmp_path):
    rows = "image,label\n" + "".join(f"{n}.png,a\n" for n in range(30))
    folders = [str(site(rows, range(start, start + 30), str(start))) for start in (0, 100)]
    together = settings(dataset=f"manifest:{','.join(folders)}", partition="site")
    for index, folder in enumerate(folders):
        simulated = open_data(together, index, 2, store=tmp_path / "store")
        alone = open_data(settings(dataset=f"manifest:{folder}"), 0, 1, store=tmp_path / "store")
        assert values(simulated.test) == values(alone.test)
        assert values(simulated.train) == values(alone.train)


def test_the_path_of_one_hospital_may_have_a_comma(site, tmp_path):
    rows = "".join(f"{n}.png,a\n" for n in range(5))
    folder = site(f"image,label\n{rows}", range(5), "Graz, Ost")
    chosen = settings(dataset=f"manifest:{folder}", partition="site")
    data = open_data(chosen, 0, 1, store=tmp_path / "store")

    assert sorted(values(data.train) + values(data.test)) == [*range(5)]


def test_a_folder_that_is_not_there_is_its_own_hospitals_affair(site, tmp_path):
    folder = site("image,label\n0.png,a\n1.png,a\n2.png,a\n")
    chosen = settings(
        dataset=f"manifest:{tmp_path}/meier,{folder}", partition="site", test_fraction=0.4
    )

    assert len(open_data(chosen, 1, 2, store=tmp_path / "store").train) == 2
    with pytest.raises(DataError, match="is not there") as error:
        open_data(chosen, 0, 2, store=tmp_path / "store")
    assert "meier" not in str(error.value)


@pytest.mark.parametrize("kind", ["folder", "manifest"])
@pytest.mark.parametrize(
    ("folders", "hospitals", "partition"),
    [(2, 3, "site"), (3, 2, "site"), (2, 2, "iid"), (2, 2, "dirichlet")],
)
def test_folders_must_be_as_many_as_hospitals(kind, folders, hospitals, partition, tmp_path):
    paths = ",".join([f"{tmp_path}/krankenhaus"] * folders)
    chosen = settings(dataset=f"{kind}:{paths}", partition=partition)
    with pytest.raises(
        DataError, match=f"names {folders} folders .* {hospitals} hospitals: .* 'partition' to site"
    ) as error:
        open_data(chosen, 0, hospitals, store=tmp_path / "store")
    assert "krankenhaus" not in str(error.value)


@pytest.mark.parametrize("partition", ["iid", "dirichlet", "site"])
def test_one_folder_can_be_cut_over_hospitals(partition, site, tmp_path):
    """Sixty images of two classes; those below 40 are from Ost, which comes first."""
    rows = "".join(f"{n}.png,{'ab'[n % 2]},{'West' if n >= 40 else 'Ost'}\n" for n in range(60))
    folder = site(f"image,label,site\n{rows}", range(60))
    chosen = settings(dataset=f"manifest:{folder}", partition=partition, partition_alpha=5)
    parts = [open_data(chosen, index, 2, store=tmp_path / "store") for index in range(2)]

    shares = [sorted(values(data.train) + values(data.test)) for data in parts]
    assert sorted(shares[0] + shares[1]) == list(range(60))
    assert min(map(len, shares)) >= 10
    assert (shares[0] == list(range(40))) == (partition == "site")
    for data in parts:
        assert data.train.labels.tolist() == [value % 2 for value in values(data.train)]


def test_a_manifest_without_sites_cannot_be_cut_by_them(site, tmp_path):
    folder = site("image,label\n0.png,a\n1.png,a\n")
    chosen = settings(dataset=f"manifest:{folder}", partition="site")
    with pytest.raises(DataError, match="does not name the site"):
        open_data(chosen, 0, 2, store=tmp_path / "store")


def test_a_hospital_keeps_patients_together(site, tmp_path):
    """Ten patients of two images: one of class a, one of class b."""
    rows = "".join(f"{n}.png,{'ab'[n % 2]},{n // 2}\n" for n in range(20))
    folder, store = site(f"image,label,patient\n{rows}", range(20)), tmp_path / "store"
    chosen = settings(dataset=f"manifest:{folder}")
    data = open_data(chosen, 0, 1, store=store)

    train, test = values(data.train), values(data.test)
    assert sorted(train + test) == list(range(20))
    assert len(test) == 4  # a fifth
    assert not {value // 2 for value in train} & {value // 2 for value in test}

    data = open_data(replace(chosen, validation_fraction=0.25), 0, 1, store=store)
    kept, validated = values(data.train), values(data.test)
    assert sorted(kept + validated) == sorted(train)
    assert len(validated) == 4  # a quarter of 16
    assert not {value // 2 for value in kept} & {value // 2 for value in validated}


@pytest.mark.parametrize("seed", range(5))
def test_copies_are_on_one_side(seed, site, tmp_path):
    """Twenty files, of which five times four are the same."""
    rows = "".join(f"{n}.png,a\n" for n in range(20))
    folder = site(f"image,label\n{rows}", [n % 5 for n in range(20)])
    data = open_data(
        settings(dataset=f"manifest:{folder}", seed=seed), 0, 1, store=tmp_path / "store"
    )

    assert (len(data.train), len(data.test)) == (16, 4)
    assert not set(values(data.train)) & set(values(data.test))


@pytest.mark.parametrize("test_fraction", [0.0, 0.5])
def test_the_split_of_a_manifest_is_kept(test_fraction, site, tmp_path):
    rows = "".join(f"{n}.png,a,{'test' if n in (2, 5) else ''}\n" for n in range(10))
    folder = site(f"image,label,split\n{rows}", range(10))
    chosen = settings(dataset=f"manifest:{folder}", test_fraction=test_fraction)
    data = open_data(chosen, 0, 1, store=tmp_path / "store")

    assert values(data.test) == [2, 5]
    assert values(data.train) == [0, 1, 3, 4, 6, 7, 8, 9]
