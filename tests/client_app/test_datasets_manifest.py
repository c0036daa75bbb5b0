"""Manifests with their images, written to folders; and whatever else may be in a CSV file."""

from dataclasses import replace

import numpy as np
import PIL.Image
import pytest

from client_app.datasets import open_data
from client_app.datasets.manifest import load_manifests
from client_app.datasets.resize import Form
from client_app.errors import DataError
from tests.fakes import settings


@pytest.fixture
def site(tmp_path):
    """Write a manifest, and the images `0.png`, `1.png`, ... of these grey or colour values."""

    def write(text, values=(10, 20, 30), name="site", encoding="utf-8"):
        folder = tmp_path / name
        folder.mkdir(exist_ok=True)
        for number, value in enumerate(values):
            mode = "L" if isinstance(value, int) else "RGB"
            PIL.Image.new(mode, (3, 2), value).save(folder / f"{number}.png")
        (folder / "manifest.csv").write_bytes(text.encode(encoding))
        return folder

    return write


def test_images_labels_and_classes(site):
    folder = site("note,label,image\nx,nevus,0.png\ny,melanoma,2.png\n,nevus,1.png\n")
    pool = load_manifests(str(folder), Form())

    assert pool.images.shape == (3, 1, 2, 3)
    assert pool.images[:, 0, 0, 0].tolist() == [10, 30, 20]
    assert pool.labels.tolist() == [1, 0, 1]
    assert pool.classes == ("melanoma", "nevus")
    assert (pool.sites, pool.held_out, pool.groups) == (None, None, None)


def test_a_manifest_may_have_any_name(site):
    folder = site("image,label\n0.png,a\n")
    (folder / "manifest.csv").rename(folder / "skin.csv")

    assert load_manifests(str(folder / "skin.csv"), Form()).classes == ("a",)


@pytest.mark.parametrize(
    ("labels", "classes"),
    [
        (("10", "9", "-1"), ("-1", "9", "10")),
        (("10", "9", "x"), ("10", "9", "x")),
        (("10", "9", "nan"), ("10", "9", "nan")),
    ],
)
def test_classes_are_sorted_as_numbers_if_all_are(labels, classes, site):
    rows = [f"{number}.png,{label}\n" for number, label in enumerate(labels)]

    assert load_manifests(str(site("image,label\n" + "".join(rows))), Form()).classes == classes


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig"])
@pytest.mark.parametrize("delimiter", [",", ";", "\t"])
@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_what_spreadsheets_write(encoding, delimiter, end, site):
    """A byte order mark, other delimiters, quotes, spaces, and empty rows at the end."""
    rows = ["image,label,note", '0.png,"größer,als",', " 1.png , klein , x", ",,", ""]
    text = end.join(rows).replace(",", delimiter)
    pool = load_manifests(str(site(text, encoding=encoding)), Form())

    assert pool.classes == (f"größer{delimiter}als", "klein")
    assert pool.labels.tolist() == [0, 1]


def test_several_manifests_are_several_sites(site):
    one = site("image,label,lesion\n0.png,1,7\n1.png,0,\n2.png,1,7\n", name="one")
    two = site("image,label,lesion_id,patient\n0.png,2,1,7\n1.png,2,2,7\n", (40, 50), name="two")
    pool = load_manifests(f"{two}, {one}/manifest.csv", Form())

    assert pool.images[:, 0, 0, 0].tolist() == [40, 50, 10, 20, 30]
    assert pool.classes == ("0", "1", "2")
    assert pool.labels.tolist() == [2, 2, 1, 0, 1]
    assert pool.sites is not None
    assert pool.sites.tolist() == [0, 0, 1, 1, 1]
    assert pool.groups is not None  # patients go before lesions; 7 is another one at another site
    assert pool.groups.tolist() == [0, 0, 1, 2, 1]


def test_a_column_without_groups_is_none(site):
    assert load_manifests(str(site("image,label,patient\n0.png,a,\n")), Form()).groups is None


def test_a_hospital_is_a_site_and_keeps_patients_together(site):
    """At each site ten patients of two images: one of class a, one of class b."""
    rows = "".join(f"{n}.png,{'ab'[n % 2]},{n // 2}\n" for n in range(20))
    paths = [
        str(site(f"image,label,patient\n{rows}", range(start, start + 20), name=f"site-{start}"))
        for start in (0, 100)
    ]
    chosen = settings(dataset=f"manifest:{','.join(paths)}", partition="site")
    data = open_data(chosen, 1, 2)

    train, test = (part.images[:, 0, 0, 0].tolist() for part in (data.train, data.test))
    assert sorted(train + test) == list(range(100, 120))
    assert len(test) == 4  # a fifth
    assert not {value // 2 for value in train} & {value // 2 for value in test}
    assert data.test.labels.tolist() == [value % 2 for value in test]

    data = open_data(replace(chosen, validation_fraction=0.25), 1, 2)
    kept, validated = (part.images[:, 0, 0, 0].tolist() for part in (data.train, data.test))
    assert sorted(kept + validated) == sorted(train)
    assert len(validated) == 4  # a quarter of 16
    assert not {value // 2 for value in kept} & {value // 2 for value in validated}


def test_grey_is_kept_if_all_images_are(site):
    text = "image,label\n0.png,a\n1.png,a\n"

    assert load_manifests(str(site(text, (7, 8))), Form()).images.shape == (2, 1, 2, 3)
    mixed = load_manifests(str(site(text, (7, (9, 0, 1)))), Form()).images
    assert mixed[:, :, 0, 0].tolist() == [[7, 7, 7], [9, 0, 1]]


def test_black_and_white_and_palettes(site):
    folder = site("image,label\n0.png,a\n1.png,a\n", ())
    PIL.Image.new("1", (3, 2), 1).save(folder / "0.png")
    palette = PIL.Image.new("P", (3, 2), 0)
    palette.putpalette([1, 2, 3, 4, 5, 6])
    palette.save(folder / "1.png", transparency=b"\x00\x80")  # Pillow warns of it

    images = load_manifests(str(folder), Form()).images
    assert images[:, :, 0, 0].tolist() == [[255, 255, 255], [1, 2, 3]]


def test_images_are_upright(site):
    """Orientation 6: the first row of the file is the right side of the image."""
    folder = site("image,label\n0.png,a\n", ())
    exif = PIL.Image.Exif()
    exif[0x0112] = 6
    PIL.Image.fromarray(np.array([[1, 2, 3], [4, 5, 6]], np.uint8)).save(
        folder / "0.png", exif=exif
    )

    assert load_manifests(str(folder), Form()).images[0, 0].tolist() == [[4, 1], [5, 2], [6, 3]]


def test_images_of_different_sizes_need_an_image_size(site):
    folder = site("image,label\n0.png,a\n1.png,a\n", (10,))
    PIL.Image.new("L", (5, 4), 20).save(folder / "1.png")

    with pytest.raises(DataError, match=r"2 sizes, from \(2, 3\) to \(4, 5\): .*'image-size'"):
        load_manifests(str(folder), Form())
    images = load_manifests(str(folder), Form(6)).images
    assert images.shape == (2, 1, 6, 6)
    assert images[:, 0, 0, 0].tolist() == [10, 20]


def test_a_large_jpeg_is_decoded_at_a_part_of_its_size(site):
    """A ramp of grey from left to right stays one: 16 columns of 1024/16 pixels."""
    folder = site("image,label\n0.jpg,a\n", ())
    ramp = np.tile(np.linspace(0, 255, 1024), (512, 1)).astype(np.uint8)
    PIL.Image.fromarray(ramp).save(folder / "0.jpg", quality=95)
    images = load_manifests(str(folder), Form(16)).images

    assert images.shape == (1, 1, 16, 16)
    columns = ramp[0].reshape(16, 64).mean(axis=1)
    assert np.abs(images[0, 0] - columns).max() < 6  # the filter reflects at the two sides


def test_a_large_jpeg_that_is_padded_keeps_its_proportions(site):
    """1024 by 512 pixels become 16 by 8, 4 black rows above and below."""
    folder = site("image,label\n0.jpg,a\n", ())
    PIL.Image.new("L", (1024, 512), 200).save(folder / "0.jpg")
    images = load_manifests(str(folder), Form(16, "pad", 3)).images

    assert images.shape == (1, 3, 16, 16)
    assert images[:, :, 4:12].min() == images.max() == 200
    assert images[:, :, [3, 12]].max() == 0


def test_images_are_looked_for_in_their_folder(site):
    folder = site("image,label\n0.png,a\nimages/1.png,b\n../site/2.png,c\n")
    (folder / "images").mkdir()
    for name in ("0.png", "1.png"):
        (folder / name).rename(folder / "images" / name)

    assert load_manifests(str(folder), Form()).images[:, 0, 0, 0].tolist() == [10, 20, 30]


@pytest.mark.parametrize(
    "image", ["../other/0.png", "../other/no.png", "{tmp}/other/0.png", "link"]
)
def test_images_outside_are_refused(image, site, tmp_path):
    other = site("", name="other")
    folder = site(f"image,label\n0.png,a\n{image.format(tmp=tmp_path)},a\n")
    (folder / "link").symlink_to(other / "0.png")

    with pytest.raises(DataError, match=r"^Row 3 of .* outside of the manifest's folder"):
        load_manifests(str(folder), Form())


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "lists no image"),
        ("image,label\n\n,\n", "lists no image"),
        ("picture,label\nmeier.png,a\n", "names 2 columns, and 'image' 0 times"),
        ("meier.png,a\n1.png,a\n", "names 2 columns, and 'image' 0 times"),
        ("image,label,label\nmeier.png,a,b\n", "names 3 columns, and 'label' 2 times"),
        ("image,label\n0.png,a\n\n1.png,meier,x\n", "^Row 4 of .* 3 columns, the header 2"),
        ("image,label\n0.png\n", "^Row 2 of .* has 1 columns"),
        ("image,label,x\n,a,meier\n", "^Row 2 of .* nothing in the column 'image'"),
        ("image,label\nmeier.png, \n", "^Row 2 of .* nothing in the column 'label'"),
        ("image,label\n0.png,a\nmeier.png,a\n", "^Row 3 of .* an image that is not there"),
        ("image,label\nmeier\0.png,a\n", "^Row 2 of .* cannot be looked up .ValueError"),
        (f"image,label\n{'meier' * 99},a\n", "^Row 2 of .* cannot be looked up .OSError"),
        ("image,label\n0.png,a\n./0.png,b\n", "^Row 3 of .* that another row names too"),
        ('image,label\n"meier.png,a\n', r"cannot be read as a CSV file \(Error\)"),
    ],
)
def test_manifests_that_do_not_fit(text, message, site):
    with pytest.raises(DataError, match=message) as error:
        load_manifests(str(site(text)), Form())
    assert "meier" not in str(error.value)


def test_images_that_do_not_fit(site):
    folder = site("image,label\n0.png,a\nmeier,b\n")
    broken = folder / "meier"
    fits = (folder / "0.png").read_bytes()
    for content in (b"", b"not an image", fits[:50], b"%!PS-Adobe-3.0 EPSF-3.0\n"):
        broken.write_bytes(content)
        with pytest.raises(DataError, match=r"^Row 3 of .* cannot be used \(\w+\)") as error:
            load_manifests(str(folder), Form())
        assert "meier" not in str(error.value)
    PIL.Image.new("I;16", (3, 2), 999).save(broken, format="PNG")
    with pytest.raises(DataError, match=r"^Row 3 of .* 8 bits per channel"):
        load_manifests(str(folder), Form())


def test_other_encodings_are_refused(site):
    folder = site("image,label\n0.png,größer\n", encoding="latin-1")

    with pytest.raises(DataError, match=r"\(UnicodeDecodeError\): save it as CSV in UTF-8"):
        load_manifests(str(folder), Form())


def test_paths_that_do_not_fit(site, tmp_path):
    folder = site("image,label\n0.png,a\n")

    for paths, message in {
        "": "The manifest '' .* must be an absolute path",
        "site": "'site' .* must be an absolute path",
        f"{folder},": "The manifest '' .* must be an absolute path",
        f"{tmp_path}/no.csv": r"There is no file '.*no\.csv'",
        f"{tmp_path}": r"There is no file '.*manifest\.csv'",
        f"{folder},{folder}/manifest.csv": "^Row 2 of .* that another row names too",
    }.items():
        with pytest.raises(DataError, match=message):
            load_manifests(paths, Form())


def test_one_manifest_names_no_sites(site):
    folder = site("image,label\n0.png,a\n")
    chosen = settings(dataset=f"manifest:{folder}", partition="site")

    with pytest.raises(DataError, match="does not say which site"):
        open_data(chosen, 0, 1)
