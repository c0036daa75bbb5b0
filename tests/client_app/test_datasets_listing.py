"""Manifests as people write them, and folders as people sort them; no image is opened."""

import os

import pytest

from client_app.datasets.listing import Entry, Unusable, list_folder, list_manifest
from client_app.datasets.unread import SYSTEM
from client_app.errors import DataError


@pytest.fixture
def manifest(tmp_path):
    """Write a manifest, and `0.png`, `1.png` and `2.png` beside it, which are empty."""

    def write(text, encoding="utf-8"):
        folder = tmp_path / "krankenhaus"
        folder.mkdir(exist_ok=True)
        for number in range(3):
            (folder / f"{number}.png").touch()
        (folder / "manifest.csv").write_bytes(text.encode(encoding))
        return folder

    return write


@pytest.fixture
def tree(tmp_path):
    """Make empty files in a folder."""

    def make(*places):
        for place in places:
            file = tmp_path / "krankenhaus" / place
            file.parent.mkdir(parents=True, exist_ok=True)
            file.touch()
        return tmp_path / "krankenhaus"

    return make


@pytest.mark.parametrize("list_", [list_folder, list_manifest])
def test_a_folder_with_a_name_that_is_not_utf8_is_refused(list_, tree):
    folder = tree("a/0.png", "manifest.csv").rename(tree() / os.fsdecode(b"../\xe4"))
    with pytest.raises(DataError, match="is not in UTF-8"):
        list_(str(folder))


def test_a_manifest_that_is_not_read_is_named(tree):
    """Its patients would not count, and one could be on both sides of the split."""
    folder = tree("a/0.png", "b/0.png")
    assert not list_folder(str(folder)).findings
    (folder / "Manifest.csv").write_text("image,label,patient\na/0.png,a,1\nb/0.png,b,1\n")
    (finding,) = list_folder(str(folder)).findings
    assert (finding.problem, finding.level) == ("manifest-not-read", "amber")
    assert "Write 'manifest' there" in finding.advice


def test_a_manifest_is_listed_in_its_order(manifest):
    folder = manifest("note,label,image\nx,nevus,2.png\ny,melanoma,0.png\n")
    listing = list_manifest(str(folder))

    assert listing.source == folder / "manifest.csv"
    assert listing.entries == [
        Entry("row 2 (2.png)", folder / "2.png", "nevus"),
        Entry("row 3 (0.png)", folder / "0.png", "melanoma"),
    ]
    assert (listing.unusable, listing.ignored.total()) == ([], 0)


def test_a_manifest_may_have_any_name(manifest):
    folder = manifest("image,label\n0.png,a\n")
    (folder / "manifest.csv").rename(folder / "skin.csv")

    assert list_manifest(f" {folder}/skin.csv ").source == folder / "skin.csv"


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig"])
@pytest.mark.parametrize("delimiter", [",", ";", "\t", "|"])
@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_what_spreadsheets_write(encoding, delimiter, end, manifest):
    """A byte order mark, other delimiters, quotes, spaces, and rows that are empty."""
    rows = ["Image , LABEL,note", ",,", '0.png,"größer,als",', "", " 1.png , klein , x", ",,"]
    folder = manifest(end.join(rows).replace(",", delimiter), encoding)
    listing = list_manifest(str(folder))

    assert [(entry.where, entry.file.name, entry.label) for entry in listing.entries] == [
        ("row 3 (0.png)", "0.png", f"größer{delimiter}als"),
        ("row 5 (1.png)", "1.png", "klein"),
    ]
    assert listing.unusable == []


@pytest.mark.parametrize("name", ["Manifest.csv", "MANIFEST.CSV"])
def test_the_case_of_the_name_of_a_manifest_does_not_count(name, manifest):
    folder = manifest("image,label\n0.png,a\n")
    (folder / "manifest.csv").rename(folder / name)

    assert list_manifest(str(folder)).source == folder / name
    with pytest.raises(DataError, match="holds 1 folders with a manifest"):
        list_folder(str(folder.parent))
    manifest("image,label\n0.png,b\n")
    with pytest.raises(DataError, match="several manifests, whose names differ in case"):
        list_manifest(str(folder))


def test_spreadsheets_omit_or_add_blank_fields_at_the_end_of_a_row(manifest):
    folder = manifest("image;label;patient\n0.png;a;p1\n1.png;b\n2.png;b;p2; ;\n")
    listing = list_manifest(str(folder))

    assert [(e.label, e.group) for e in listing.entries] == [("a", "p1"), ("b", ""), ("b", "p2")]
    assert not listing.unusable
    assert "no patient in 1 of 3 rows" in listing.findings[0].text


@pytest.mark.parametrize("header", ['IMAGE;"label";Age, sex, place', "image\tlabel\ta,b;c,d,e"])
def test_a_delimiter_within_a_name_is_none(header, manifest):
    row = "0.png;a;7" if ";" in header[:6] else "0.png\ta\t7"
    assert list_manifest(str(manifest(f"{header}\n{row}\n"))).entries[0].label == "a"


def test_a_header_in_quotes_has_the_delimiter_of_all_rows(manifest):
    folder = manifest('"image";"label"\n"0.png";"a, b, c"\n')

    assert list_manifest(str(folder)).entries[0].label == "a, b, c"


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ("1.png,meier,x", "has 3 columns, the header has 2"),
        ("1.png", "has nothing in the column 'label'"),
        (" ,meier", "has nothing in the column 'image'"),
        ("1.png, ", "has nothing in the column 'label'"),
        ("meier.png,a", "names an image that is not there"),
        ("..,a", "names an image that is not there"),
        (".,a", "names an image that is not there"),
        ("meier\0.png,a", "names an image that is not there"),
        ("ring/meier.png,a", "names an image that is not there"),
        ("0.png/meier,a", "names an image that is not there"),
        (f"{'meier' * 99},a", "names an image that cannot be looked up"),
        (f"{'meier/' * 999}a,a", "names an image that cannot be looked up"),
        ("ring,a", "names an image that cannot be looked up"),
        ("./0.png,a", "names an image that an earlier row names too"),
        ("inner,b", "names an image that an earlier row names with another label"),
        ("../krankenhaus/0.png,a", "names an image that an earlier row names too"),
        ("{folder}/0.png,a", "names an image that an earlier row names too"),
        ("../other/meier.png,a", "names an image outside the manifest's folder"),
        ("{other}/meier.png,a", "names an image outside the manifest's folder"),
        ("outer,a", "names an image outside the manifest's folder"),
        ("gate/meier.png,a", "names an image outside the manifest's folder"),
        ("foreign,a", "names a link to a file whose path is not UTF-8"),
    ],
)
def test_rows_that_cannot_be_used(row, reason, manifest, tmp_path):
    other = tmp_path / "other"
    other.mkdir()
    (other / "meier.png").touch()
    folder = manifest("")
    row = row.format(folder=folder, other=other)
    (folder / "manifest.csv").write_text(f"image,label\n0.png,a\n\n{row}\n2.png,b\n")
    (folder / "ring").symlink_to(folder / "ring")
    (folder / "inner").symlink_to(folder / "0.png")
    (folder / "outer").symlink_to(other / "meier.png")
    (folder / "gate").symlink_to(other)
    (folder / os.fsdecode(b"\xfc.png")).touch()
    (folder / "foreign").symlink_to(os.fsdecode(b"\xfc.png"))
    listing = list_manifest(str(folder))
    image = row.partition(",")[0].strip()

    assert [(each.where, each.reason.partition(":")[0]) for each in listing.unusable] == [
        (f"row 4 ({image})" if image else "row 4", reason)
    ]
    assert "meier" not in listing.unusable[0].reason
    assert [entry.file.name for entry in listing.entries] == ["0.png", "2.png"]


@pytest.mark.parametrize(
    ("column", "value", "reason"),
    [
        ("split", "validation", "must have 'train', 'test' or nothing in the column 'split'"),
        *(
            ("task", n, "must have a whole number from 1 in the column 'task'")
            for n in ("0", "x", "9" * 10)
        ),
        *(
            ("slice", n, "must have a whole number from 0 in the column 'slice'")
            for n in ("-1", "1.5", "9" * 10)
        ),
    ],
)
def test_optional_fields_that_cannot_be_used(column, value, reason, manifest):
    folder = manifest(f"image,label,{column}\n0.png,a,\n1.png,a,{value}\n")

    assert list_manifest(str(folder)).unusable == [Unusable("row 3 (1.png)", reason)]
    # New images need neither split nor task; a slice tells what to open.
    unlabelled = list_manifest(str(folder), ["image"])
    assert len(unlabelled.unusable) == (column == "slice")


def test_optional_columns(manifest):
    folder = manifest(
        "SITE,Split,slice,label,image,group,Task\n"
        " Ost ,TRAIN,007,a,0.png, 12 , 02\nWest, test ,0,a,0.png,,\n,,,a,1.png,12,1\n"
    )

    assert list_manifest(str(folder)).entries == [
        Entry("row 2 (0.png)", folder / "0.png", "a", "12", "train", "Ost", 7, 2),
        Entry("row 3 (0.png)", folder / "0.png", "a", "", "test", "West", 0),
        Entry("row 4 (1.png)", folder / "1.png", "a", "12", "", "", None, 1),
    ]


def test_a_slice_is_listed_once(manifest):
    folder = manifest("image,label,slice\n0.png,a,1\n0.png,a,2\n0.png,a,01\n")
    listing = list_manifest(str(folder))

    assert [entry.slice for entry in listing.entries] == [1, 2]
    assert [each.where for each in listing.unusable] == ["row 4 (0.png)"]


@pytest.mark.parametrize("slices", [("", "0"), ("0", "")])
def test_slice_0_of_a_picture_is_the_picture(slices, manifest):
    folder = manifest("image,label,slice\n" + "".join(f"0.png,a,{each}\n" for each in slices))

    assert [str(each) for each in list_manifest(str(folder)).unusable] == [
        "row 3 (0.png): names an image that an earlier row names too"
    ]


def test_the_unicode_form_of_a_name_does_not_count(manifest, tree):
    """A patient or a site has one name, in one or in two characters for the umlaut."""
    forms = ["Mu\N{COMBINING DIAERESIS}ller", "M\N{LATIN SMALL LETTER U WITH DIAERESIS}ller"]
    folder = manifest(
        "image,label,patient,site\n"
        + "".join(f"{number}.png,a,{name},{name}\n" for number, name in enumerate(forms))
    )
    listed = list_manifest(str(folder)).entries
    assert [(entry.group, entry.site) for entry in listed] == [(forms[1], forms[1])] * 2

    listed = list_folder(str(tree(*(f"a/{name}/0.png" for name in forms)))).entries
    assert [entry.group for entry in listed] == [forms[1]] * 2


@pytest.mark.parametrize("first", range(6))
def test_groups_go_before_patients_lesions_and_studies(first, manifest):
    names = ["group", "patient", "patient_id", "lesion", "lesion_id", "study"][first:]
    header = ",".join(["image", *reversed(names), "label"])
    folder = manifest(f"{header}\n0.png,{','.join(reversed(names))},a\n")

    assert [entry.group for entry in list_manifest(str(folder)).entries] == [names[0]]


def test_images_may_be_in_a_folder_of_their_own(manifest):
    """An image beside the manifest goes before one of that name in `images`."""
    folder = manifest("image,label\n0.png,a\nimages/1.png,b\n3.png,c\n")
    (folder / "images").mkdir()
    for name in ("0.png", "1.png", "3.png"):
        (folder / "images" / name).touch()

    assert [entry.file for entry in list_manifest(str(folder)).entries] == [
        folder / "0.png",
        folder / "images" / "1.png",
        folder / "images" / "3.png",
    ]


def test_files_are_listed_without_links_in_their_paths(manifest, tmp_path):
    """So that the library and the search for images named twice know a file again."""
    folder = manifest("image,label\ninner/4.png,a\n")
    (folder / "deep").mkdir()
    (folder / "deep" / "4.png").touch()
    (folder / "inner").symlink_to("deep")
    (tmp_path / "shortcut").symlink_to(folder)

    entries = list_manifest(str(tmp_path / "shortcut")).entries
    assert [entry.file for entry in entries] == [folder / "deep" / "4.png"]


def test_links_to_a_folder_above_do_not_multiply_the_folders_to_search(manifest):
    """Two links and a row of 60 bytes filled the memory of the hospital."""
    folder = manifest(f"image,label\n{'A/' * 30}meier.png,a\n{'A/' * 30}0.PNG,a\n")
    for name in "aA":
        (folder / name).symlink_to(".")

    listing = list_manifest(str(folder))
    assert [each.where.partition(" (")[0] for each in listing.unusable] == ["row 2"]
    assert [entry.file for entry in listing.entries] == [folder / "0.png"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "lists no image"),
        ("image,label\n\n,\n", "lists no image"),
        ("picture,label\nmeier.png,a\n", "names 2 columns, and 'image' 0 times"),
        ("meier.png,a\n1.png,a\n", "names 2 columns, and 'image' 0 times"),
        ("image,label,Label\nmeier.png,a,b\n", "names 3 columns, and 'label' 2 times"),
        ("image label\nmeier.png a\n", "names 1 columns, and 'image' 0 times"),
        ('image,label\n"meier.png,a\n', "cannot be read. line 2 is not that of a CSV file"),
        ('image,label\n\n0.png,a\n"meier.png,a\n1.png,b\n2.png,b\n', "line 4 is not that of a CSV"),
        ('image,label\n"meier.png"x,a\n', "cannot be read. line 2 is not that of a CSV file"),
    ],
)
def test_manifests_that_cannot_be_read(text, message, manifest):
    with pytest.raises(DataError, match=r"^[^0-9]*$") as error:
        list_manifest(str(manifest(text)))
    said = error.value.explain()
    assert message in said
    assert not {"meier", "krankenhaus"} & set(said.replace(".", " ").split())


def test_other_encodings_are_refused(manifest):
    folder = manifest("image,label\nmeier.png,größer\n", "latin-1")

    with pytest.raises(DataError) as error:
        list_manifest(str(folder))
    said = error.value.explain()
    assert "is not in UTF-8: save it as UTF-8" in said
    assert "meier" not in said
    assert "krankenhaus" not in said


def test_a_manifest_that_may_not_be_read_is_refused(manifest, monkeypatch):
    folder = manifest("image,label\n0.png,a\n")

    def refuse(*_, **__):
        raise PermissionError(13, "Permission denied", str(folder / "manifest.csv"))

    monkeypatch.setattr("strategies.protocol.files.os.open", refuse)
    with pytest.raises(DataError, match=r"cannot be read \(PermissionError\)") as error:
        list_manifest(str(folder))
    assert "krankenhaus" not in str(error.value)


@pytest.mark.parametrize("list_", [list_folder, list_manifest])
@pytest.mark.parametrize("path", ["", "krankenhaus", "./krankenhaus"])
def test_paths_must_be_absolute(list_, path, tree, monkeypatch):
    monkeypatch.chdir(tree("a/0.png").parent)

    with pytest.raises(DataError, match="must be absolute") as error:
        list_(path)
    assert "krankenhaus" not in str(error.value)


@pytest.mark.parametrize("list_", [list_folder, list_manifest])
@pytest.mark.parametrize("path", ["krankenhaus-2", "krankenhaus/b", "krankenhaus/a/0.png/x"])
def test_what_is_not_there_is_refused(list_, path, tree):
    parent = tree("a/0.png").parent

    with pytest.raises(DataError, match="is not there") as error:
        list_(f"{parent}/{path}")
    assert "krankenhaus" not in str(error.value)


def test_a_home_is_expanded(tree, monkeypatch):
    folder = tree("a/0.png")
    (folder / "manifest.csv").write_text("image,label\na/0.png,a\n")
    monkeypatch.setenv("HOME", str(folder.parent))

    assert list_folder("~/krankenhaus").source == folder
    assert list_manifest("~/krankenhaus").source == folder / "manifest.csv"


def test_a_folder_is_a_class_and_a_folder_in_it_a_group(tree):
    folder = tree("b/2.png", "b/meier/1/0.png", "a/meier/1.png", "a/x.png/0.png", "a/0.png")
    listing = list_folder(str(folder))

    assert listing.source == folder
    assert {(entry.where, entry.label, entry.group) for entry in listing.entries} == {
        ("b/2.png", "b", ""),
        ("b/meier/1/0.png", "b", "meier"),
        ("a/meier/1.png", "a", "meier"),
        ("a/x.png/0.png", "a", "x.png"),
        ("a/0.png", "a", ""),
    }
    assert all(entry.file == folder / entry.where for entry in listing.entries)
    assert all(
        (entry.split, entry.site, entry.slice) == ("", "", None) for entry in listing.entries
    )
    assert (listing.unusable, listing.ignored.total()) == ([], 0)


def test_a_folder_is_listed_in_the_same_order_everywhere(tree, monkeypatch):
    folder = tree("b/0.png", "a/1.png", "a/0.png", "a/z/0.png", "a/y/0.png")
    walk = os.walk

    def backwards(*arguments, **options):
        for path, folders, names in walk(*arguments, **options):
            folders.sort(reverse=True)
            yield path, folders, sorted(names, reverse=True)

    monkeypatch.setattr("os.walk", backwards)
    assert [entry.where for entry in list_folder(str(folder)).entries] == [
        *("a/0.png", "a/1.png", "a/y/0.png", "a/z/0.png", "b/0.png")
    ]


@pytest.mark.parametrize("name", ["0.JPG", "0.Tiff", "0.nii.GZ", "0.DCM", "0.x.png"])
def test_suffixes_in_any_case_are_images(name, tree):
    assert [entry.where for entry in list_folder(str(tree(f"a/{name}"))).entries] == [f"a/{name}"]


@pytest.mark.parametrize(
    "name",
    [
        *(
            "@eaDir/0.jpg/SYNOPHOTO_THUMB_M.jpg",
            "@Recycle/1.png",
            "#recycle/1.png",
            ".@__thumb/1.jpg",
        ),
        *("$RECYCLE.BIN/1.png", "System Volume Information/1.png", "lost+found/1.png"),
        *("Network Trash Folder/1.png", "Temporary Items/1.png", "@Transcode/1.png"),
        *(".AppleDouble/1.png", "__MACOSX/1.png", "._1.png", ".nfs000001.png", ".~lock.1.png#"),
        *("Thumbs.db", "THUMBS.DB", "desktop.ini", ".DS_Store", "~$1.png", "DICOMDIR"),
    ],
)
def test_what_systems_and_servers_put_into_folders_is_no_image_and_no_class(name, tree):
    folder = tree("a/0.png", "b/0.png", f"a/{name}", name)
    listing = list_folder(str(folder))

    assert [entry.where for entry in listing.entries] == ["a/0.png", "b/0.png"]
    assert (listing.unusable, listing.ignored) == ([], {SYSTEM: 2})


def test_a_folder_of_nothing_but_formats_that_are_not_read(tree):
    with pytest.raises(DataError, match=r"one for each class\.$") as error:
        list_folder(str(tree("a/0.HEIC", "b/1.heif", "b/2.pdf")))
    assert error.value.own == "Its files are in formats that are not read here (HEIC, PDF)."


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        *((f"1.{end}", "archive") for end in ("zip", "tgz", "tar.bz2", "tar.xz")),
        *((f"1.{end}", "microscope") for end in ("lif", "nd2", "czi")),
        ("1.isyntax", "whole slide"),
        ("1.xlsm", "table"),
    ],
)
def test_formats_that_are_not_read_are_named_by_the_suffix(name, kind, tree):
    assert list_folder(str(tree("a/0.png", f"a/{name}"))).ignored == {kind: 1}


@pytest.mark.parametrize(
    ("on_disk", "named"),
    [
        ("scans/a.png", "scans\\a.png"),
        ("scans/a.png", ".\\scans\\a.png"),
        ("images/scans/a.png", "Scans\\A.PNG"),
        ("scans/a.JPG", "SCANS/a.jpg"),
        ("La\u0308sion.png", "L\u00e4sion.png"),
        ("l\u00e4sion/\u00c4.png", "La\u0308sion/a\u0308.png"),
        ("a b.png", "a%20b.png"),
        ("a%20b.png", "a b.png"),
        ("ISIC_1.jpg", "ISIC_1"),
        ("images/v.nii.gz", "V"),
    ],
)
def test_names_as_another_machine_writes_them(on_disk, named, tree):
    folder = tree(on_disk)
    (folder / "manifest.csv").write_text(f"image,label\n{named},a\n")

    assert [entry.file for entry in list_manifest(str(folder)).entries] == [folder / on_disk]


@pytest.mark.parametrize(
    ("named", "reason"),
    [
        ("A.png", "several images that are there: write the name in full"),
        ("b", "several images that are there: write the name in full"),
        ("C:\\scans\\a.PNG", "an image by its place on another machine: the path must be relative"),
        ("\\\\server\\scans\\a.PNG", "an image by its place on another machine"),
        ("file:///scans/a.PNG", "an image by its place on another machine"),
        ("..\\graz\\b.png", "an image that is not there: the path must be relative"),
        ("c.png", "an image that is not there: the path must be relative"),
    ],
)
def test_names_that_cannot_be_told(named, reason, tree):
    folder = tree("a.PNG", "a.png", "b.png", "b.jpg")
    (folder / "manifest.csv").write_text(f"image,label\n{named},a\n")
    (unusable,) = list_manifest(str(folder)).unusable

    assert unusable.reason.startswith(f"names {reason}")


def test_what_is_no_image_by_its_name_is_counted(tree):
    folder = tree(
        "a/0.png", "a/.1.png", "a/Thumbs.db", "a/2.gz", "a/png", "notes.txt", ".hidden/3.png"
    )
    listing = list_folder(str(folder))

    assert [entry.where for entry in listing.entries] == ["a/0.png"]
    assert (listing.unusable, listing.ignored) == ([], {SYSTEM: 3, "archive": 1, "": 2})


def test_dicom_without_a_suffix_is_found_as_a_pacs_exports_it(tree):
    """By 128 bytes of any kind and DICM; a CD's table of contents begins so, too."""
    folder = tree("a/IM000001", "a/1.2.840.4711", "a/short", "a/DICOMDIR", "a/.IM2", "a/text")
    for name in ("IM000001", "1.2.840.4711", "DICOMDIR", ".IM2"):
        (folder / "a" / name).write_bytes(bytes(128) + b"DICM and more")
    (folder / "a" / "short").write_bytes(bytes(128) + b"DIC")
    (folder / "a" / "text").write_bytes(b"DICM" + bytes(200))
    listing = list_folder(str(folder))
    assert [entry.where for entry in listing.entries] == ["a/1.2.840.4711", "a/IM000001"]
    assert (listing.unusable, listing.ignored.total()) == ([], 4)


def test_a_pipe_without_a_suffix_is_no_image_and_holds_nobody_up(tree):
    folder = tree("a/0.png")
    os.mkfifo(folder / "a" / "pipe")
    listing = list_folder(str(folder))
    assert ([entry.where for entry in listing.entries], listing.ignored.total()) == (["a/0.png"], 1)


def test_a_folder_of_hospitals_is_recognised_and_none_is_named(tree):
    folder = tree("graz/manifest.csv", "linz/manifest.csv", "linz/images/0.png", "c/0.png")
    with pytest.raises(
        DataError, match=r"holds 2 folders with a manifest\.csv each: these are"
    ) as info:
        list_folder(str(folder))
    assert not any(name in str(info.value) for name in ("graz", "linz", str(folder)))


def test_what_is_in_no_class_is_unusable(tree):
    folder = tree("a/0.png", "1.png")

    assert list_folder(str(folder)).unusable == [Unusable("1.png", "is in no class's folder")]


def test_links_to_folders_are_not_followed_and_not_passed_over(tree, tmp_path):
    (tree("a/0.png") / "b").symlink_to(tmp_path)
    listing = list_folder(str(tmp_path / "krankenhaus"))

    assert [entry.where for entry in listing.entries] == ["a/0.png"]
    assert listing.unusable == [Unusable("b", "is a link to a folder")]


def test_names_that_are_not_utf_8_are_unusable(tree):
    """Neither an index nor a report could name them, nor could the server be told such a class."""
    folder = tree("a/0.png", "b/0.png", "c/0.png")
    (folder / "b").rename(os.fsdecode(bytes(folder) + b"/gutartig-\xfc"))
    (folder / "c/0.png").rename(os.fsdecode(bytes(folder) + b"/c/M\xfcller.png"))
    listing = list_folder(str(folder))

    assert [entry.label for entry in listing.entries] == ["a"]
    assert listing.unusable == [
        Unusable("c/M?ller.png", "has a name that is not UTF-8"),
        Unusable("gutartig-?/0.png", "has a name that is not UTF-8"),
    ]


def test_a_listing_of_nothing_usable_names_it(manifest):
    folder = manifest("image,label\nno.png,a\n")
    for path in folder.glob("[12].png"):
        path.unlink()
    rows, files = list_manifest(str(folder)), list_folder(str(folder))

    assert (rows.entries, files.entries) == ([], [])
    assert [each.where for each in rows.unusable] == ["row 2 (no.png)"]
    assert files.unusable == [Unusable("0.png", "is in no class's folder")]


@pytest.mark.parametrize("places", [(), ("a/notes.txt",), (".a/0.png",)])
def test_folders_without_images_are_refused(places, tree):
    folder = tree(*places)
    folder.mkdir(exist_ok=True)

    with pytest.raises(DataError, match="holds no folder with images") as error:
        list_folder(str(folder))
    assert "krankenhaus" not in str(error.value)


def test_a_folder_that_may_not_be_read_is_refused(tree, monkeypatch):
    folder = tree("a/0.png", "b/meier/1.png")
    scandir = os.scandir

    def refusing(path):
        if os.fspath(path).endswith("meier"):
            raise PermissionError(13, "Permission denied", path)
        return scandir(path)

    monkeypatch.setattr("os.scandir", refusing)
    with pytest.raises(DataError, match=r"cannot be read \(PermissionError\)") as error:
        list_folder(str(folder))
    assert "meier" not in str(error.value)
    assert "krankenhaus" not in str(error.value)
