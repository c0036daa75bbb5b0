"""Every registered data set, every partition, and what a hospital is given of them."""

from dataclasses import replace
from typing import Any, get_args, get_type_hints

import datasets
import numpy as np
import PIL.Image
import pytest
import sklearn.datasets
import torch
from hypothesis import given
from hypothesis import strategies as st
from torchvision.transforms.v2.functional import resize

from client_app.authority.limits import check_images
from client_app.authority.policy import MachineRules, PolicyError
from client_app.datasets import DATASETS, Pool, open_data
from client_app.datasets.digits import load_digits
from client_app.datasets.partition import PARTITIONS, cut
from client_app.datasets.resize import Form
from client_app.datasets.split import choose_test, split
from client_app.errors import DataError
from strategies.protocol.settings import Settings, SettingsError, defaults

SETTINGS = Settings.parse(defaults())

# 120 images that show their own number, 30 of each class, 30 at each site.
NUMBERS = np.arange(120)
POOL = Pool(
    images=np.tile(NUMBERS.astype(np.uint8)[:, None, None, None], (1, 1, 2, 2)),
    labels=NUMBERS % 4,
    classes=("a", "b", "c", "d"),
    sites=NUMBERS // 30,
)


@pytest.fixture
def npz(tmp_path):
    """The images of POOL, without their sites, as the setting `dataset`."""
    x, y = POOL.images[:, 0], POOL.labels
    np.savez(tmp_path / "pool.npz", x_train=x[:70], y_train=y[:70], x_test=x[70:], y_test=y[70:])
    return f"npz:{tmp_path / 'pool.npz'}"


@pytest.fixture
def source(npz, tmp_path, monkeypatch):
    """For each registered data set something that it can load; a new one needs a line here."""
    pictures = [PIL.Image.new("L", (3, 2), 9 + number) for number in range(4)]  # no copies
    kinds = datasets.Features(image=datasets.Image(), label=datasets.ClassLabel(names=["a", "b"]))
    hub = datasets.Dataset.from_dict({"image": pictures, "label": [0, 1, 0, 1]}, features=kinds)
    known = {"ylecun/mnist": {"train": hub}, str(tmp_path): {"train": hub}}
    monkeypatch.setattr(datasets, "load_dataset", known.__getitem__)
    for name, label, picture in zip("abcd", "abab", pictures, strict=True):
        picture.save(tmp_path / f"{name}.png")
        (tmp_path / "folders" / label).mkdir(parents=True, exist_ok=True)
        picture.save(tmp_path / "folders" / label / f"{name}.png")
    (tmp_path / "manifest.csv").write_text(
        "image,label,group\na.png,a,1\nb.png,b,2\nc.png,a,3\nd.png,b,4\n"
    )
    return {
        "digits": "",
        "mnist": "",
        "npz:": npz.removeprefix("npz:"),
        "hf:": str(tmp_path),
        "folder:": str(tmp_path / "folders"),
        "manifest:": str(tmp_path),
    }


@pytest.mark.parametrize("name", DATASETS)
def test_every_data_set_is_a_pool(name, source, tmp_path):
    chosen = replace(SETTINGS, dataset=f"{name}{source[name]}")
    pool = DATASETS[name](source[name], chosen, tmp_path / "store", None)

    count = len(pool.labels)
    images = pool.images if pool.rows is None else pool.images[pool.rows]
    assert images.dtype == np.uint8
    assert images.ndim == 4
    assert images.shape[:2] in {(count, 1), (count, 3)}
    assert pool.labels.dtype == np.int64
    assert np.array_equal(np.unique(pool.labels), np.arange(len(pool.classes)))
    kinds = ((pool.sites, np.int64), (pool.held_out, np.bool_), (pool.groups, np.int64))
    for column, kind in kinds:
        assert column is None or (column.dtype == kind and column.shape == (count,))


def test_digits_are_scaled():
    """The first digit starts with the row 0 0 5 13 9 1 0 0 of 16: times 255/16, 5 becomes 80."""
    pool = load_digits()

    assert pool.images.shape == (1797, 1, 8, 8)
    assert pool.images[0, 0, 0].tolist() == [0, 0, 80, 207, 143, 16, 0, 0]


def test_labels_must_count_classes_that_have_images():
    with pytest.raises(DataError, match=r"^There are labels of no class: number [^1-9]*$"):
        Pool(POOL.images[:3], np.array([0, -1, 2]), ("a", "b"))
    with pytest.raises(DataError, match=r"^A class has no image: number [^1-9']*$") as error:
        Pool(POOL.images[:3], np.array([0, 0, 2]), ("a", "b", "c", "d"))
    assert error.value.own == "No image has the class 'b', 'd'."


def test_every_partition_that_settings_allow_exists():
    assert set(PARTITIONS) == set(get_args(get_type_hints(Settings)["partition"]))


@pytest.mark.parametrize("name", PARTITIONS)
def test_a_partition_gives_every_image_to_one_hospital(name):
    shares = cut(POOL, replace(SETTINGS, partition=name), 4)

    assert len(shares) == 4
    assert sorted(np.concatenate(shares)) == NUMBERS.tolist()


def test_patients_that_a_cut_divides_are_counted(caplog):
    """A site has 30 images, a patient 4: those with images 28 to 31 and 88 to 91 have two sites."""
    settings = replace(SETTINGS, partition="site")
    cut(replace(POOL, groups=NUMBERS // 30), settings, 4)
    assert not caplog.messages
    cut(replace(POOL, groups=NUMBERS // 4), settings, 4)
    assert "at several hospitals of this cut: 2." in caplog.text


@pytest.mark.parametrize("name", PARTITIONS)
def test_a_partition_depends_on_the_seed_alone(name):
    settings = replace(SETTINGS, partition=name)
    first = cut(POOL, settings, 4)
    np.random.rand(3)
    again = cut(POOL, settings, 4)
    other = cut(POOL, replace(settings, seed=1), 4)

    assert all(map(np.array_equal, first, again))
    assert all(map(np.array_equal, first, other)) == (name == "site")


def test_iid_shares_are_equal():
    """120 images over 7 hospitals: 120 = 7 · 17 + 1."""
    assert [len(s) for s in cut(POOL, replace(SETTINGS, partition="iid"), 7)] == [18] + [17] * 6


def test_dirichlet_with_a_huge_alpha_shares_every_class_equally():
    """30 images of a class over 4 hospitals: cut at 7.5, 15 and 22.5, so 7 or 8 for each."""
    shares = cut(POOL, replace(SETTINGS, partition_alpha=1e9), 4)

    assert {n for share in shares for n in np.bincount(POOL.labels[share])} == {7, 8}


@pytest.mark.parametrize(
    ("k", "hospitals", "counts"),
    [
        (2, 2, [[30, 30, 0, 0], [0, 0, 30, 30]]),
        (2, 3, [[15, 15, 0, 0], [0, 0, 30, 30], [15, 15, 0, 0]]),  # classes 4, 5 are 0, 1 again
        (3, 2, [[15, 15, 30, 0], [15, 15, 0, 30]]),  # classes 3, 4, 5 are 3, 0, 1
    ],
)
def test_hospitals_hold_consecutive_classes(k, hospitals, counts):
    """Hospital i holds classes i·k .. i·k+k-1 modulo 4; m holders of a class get 30/m each."""
    shares = cut(POOL, replace(SETTINGS, partition="classes", partition_classes=k), hospitals)

    assert [np.bincount(POOL.labels[s], minlength=4).tolist() for s in shares] == counts


def test_a_site_is_a_hospital():
    shares = cut(POOL, replace(SETTINGS, partition="site"), 4)

    assert np.array_equal(shares, NUMBERS.reshape(4, 30))


@pytest.mark.parametrize(
    ("change", "hospitals", "message"),
    [
        ({"partition": "iid"}, 121, "121 hospitals and 120 images: use fewer hospitals"),
        ({"partition": "dirichlet"}, 13, "each of 13 hospitals 10 of 120 images: use a larger"),
        ({"partition_alpha": 1e-9}, 4, "with partition-alpha 1e-09"),
        ({"partition": "classes", "partition_classes": 1}, 3, "3 hospitals, no hospital has 'd'"),
        ({"partition": "classes", "partition_classes": 5}, 3, "is 5; the data set has 4 classes"),
        ({"partition": "site"}, 5, "5 hospitals and 4 sites"),
        ({"partition": "site"}, 3, "3 hospitals and 4 sites"),
    ],
)
def test_a_cut_that_cannot_be(change, hospitals, message):
    with pytest.raises(DataError, match=message):
        cut(POOL, replace(SETTINGS, **change), hospitals)


def test_sites_that_the_data_set_does_not_name(npz):
    with pytest.raises(DataError, match=r"pool\.npz' does not name the site"):
        open_data(replace(SETTINGS, dataset=npz, partition="site"), 0, 4)


@pytest.mark.parametrize(
    ("test_fraction", "tests"), [(0.3, [3, 2, 0]), (0.9, [9, 4, 0]), (0.99, [9, 4, 0])]
)
def test_every_class_is_split(test_fraction, tests):
    """Of n = 10, 5, 1 images round(n · fraction) are tested on (4.5 -> 4), but n - 1 at most."""
    labels = np.repeat([0, 1, 2], [10, 5, 1])
    chosen = choose_test(labels, test_fraction, np.random.default_rng(0).permutation)

    assert np.bincount(labels[chosen], minlength=3).tolist() == tests


@given(
    images=st.lists(st.tuples(st.integers(0, 12), st.integers(0, 2)), min_size=1, max_size=60),
    test_fraction=st.floats(0.05, 0.95),
    seed=st.integers(0, 9),
    pure=st.booleans(),
)
def test_a_group_is_tested_on_as_a_whole(images, test_fraction, seed, pure):
    """Groups of one class miss the number wanted of it by less than the class's largest group.

    A group is taken if that brings it nearer, so it goes beyond by less than half a group, or by
    less than a group if it is the class's first; and those left out are at least twice what is
    missing, or else hold the last images to train on.
    """
    groups, labels = np.array(images).T
    if pure:
        groups = groups * 3 + labels
    chosen = choose_test(labels, test_fraction, np.random.default_rng(seed).permutation, groups)
    again = choose_test(labels, test_fraction, np.random.default_rng(seed).permutation, groups)

    assert np.array_equal(chosen, again)
    assert not set(groups[chosen]) & set(groups[~chosen])
    assert set(labels[~chosen]) == set(labels)
    for label in set(labels) if pure else ():
        sizes = np.unique(groups[labels == label], return_counts=True)[1]
        wanted = min(round(sizes.sum() * test_fraction), sizes.sum() - 1)
        tested = int((labels[chosen] == label).sum())
        assert abs(tested - wanted) < sizes.max()
        assert (tested > 0) == (wanted > 0 and len(sizes) > 1)


@pytest.mark.parametrize("seed", range(5))
def test_patients_of_both_classes_are_split(seed):
    """200 patients, each of 1 to 9 images, a tenth of which show class 1."""
    rng = np.random.default_rng(seed)
    groups = np.repeat(np.arange(200), rng.integers(1, 10, 200))
    labels = (rng.random(len(groups)) < 0.1).astype(np.int64)
    chosen = choose_test(labels, 0.2, rng.permutation, groups)

    assert not set(groups[chosen]) & set(groups[~chosen])
    for label in (0, 1):
        assert chosen[labels == label].mean() == pytest.approx(0.2, abs=0.02)


def test_groups_of_one_image_are_split_like_images():
    labels = np.repeat([0, 1, 2], [10, 5, 1])
    chosen = choose_test(labels, 0.3, np.random.default_rng(0).permutation, np.arange(16))

    assert np.bincount(labels[chosen], minlength=3).tolist() == [3, 2, 0]


def test_without_groups_the_split_is_what_it_was():
    chosen = choose_test(NUMBERS % 4, 0.05, np.random.default_rng(0).permutation)

    assert np.flatnonzero(chosen).tolist() == [8, 29, 39, 44, 45, 71, 82, 110]


def test_labels_are_those_of_the_federation(npz):
    """The names of POOL's classes are 0 to 3; of 120 images 30 have each."""
    classes = ("3", "x", "0", "2", "1")
    data = open_data(replace(SETTINGS, dataset=npz), 0, 1, classes)
    assert data.classes == classes
    for part in (data.train, data.test):
        shown = [str(int(number) % 4) for number in part.images[:, 0, 0, 0]]
        assert [classes[label] for label in part.labels] == shown


@pytest.mark.parametrize("partition", ["dirichlet", "classes"])
def test_a_real_hospital_s_archive_is_whole_and_read_for_each_run(partition, tmp_path):
    """A resident process stays between runs. No hospital has 10 images, or the one class of two."""
    settings = replace(SETTINGS, dataset=f"npz:{tmp_path}/own.npz", partition=partition)
    settings, opened = replace(settings, partition_classes=1), []
    for value in (1, 2, 2):
        x, y = np.full((8, 2, 2), value, np.uint8), np.arange(8) % 2
        np.savez(tmp_path / "own.npz", x_train=x, y_train=y, x_test=x[:0], y_test=y[:0])
        opened.append(open_data(settings, 0, 1, secret=b"secret"))
    assert [each.train.images.unique().tolist() for each in opened] == [[1], [2], [2]]
    # The noise of figures follows from the fingerprints: other images need other noise.
    for sides in zip(*([each.train, each.test, each] for each in opened), strict=True):
        first, second, third = (each.fingerprint for each in sides)
        assert first != second == third


def test_images_of_classes_that_the_federation_does_not_know_are_quarantined(npz):
    settings = replace(SETTINGS, dataset=npz, max_quarantined=0.25)
    data = open_data(settings, 0, 1, ("0", "1", "3"))
    assert (len(data.train) + len(data.test), data.quarantined) == (90, 30)
    assert not (torch.cat([data.train.images, data.test.images]) % 4 == 2).any()
    with pytest.raises(DataError, match=r"30 of 120 images show none .* \(0, 1, 3\)"):
        open_data(replace(settings, max_quarantined=0.24), 0, 1, ("0", "1", "3"))


@pytest.mark.parametrize(
    ("taking_part", "federation", "shown"),
    [
        ((), (), "0123"),
        ((), ("3", "x", "0", "2", "1"), "0123"),
        (("0", "1", "nine"), (), "01"),
        (("0", "1"), ("1", "0", "2", "3"), "01"),
    ],
)
def test_a_hospital_says_which_classes_take_part(npz, taking_part, federation, shown):
    """Those that it leaves out are no matter of `max-quarantined`."""
    settings = replace(SETTINGS, dataset=npz, max_quarantined=0.0)
    data = open_data(settings, 0, 1, federation, taking_part=taking_part)
    assert data.classes == (federation or tuple(shown))
    labels = torch.cat([data.train.labels, data.test.labels]).unique()
    assert {data.classes[label] for label in labels} == {*shown}
    assert data.quarantined == 0


@pytest.mark.parametrize("taking_part", [(), ("0", "2")])
def test_a_federation_has_all_of_them(npz, taking_part):
    settings = replace(SETTINGS, dataset=npz, max_quarantined=0.9)
    with pytest.raises(PolicyError) as refusal:
        open_data(settings, 0, 1, ("0", "1", "3"), taking_part=taking_part)
    assert refusal.value.rule == "images.classes"


@pytest.mark.parametrize(
    ("sizes", "test_fraction", "tests"),
    [
        ([50, 50], 0.2, [10, 10]),
        ([90, 10], 0.2, [5, 5]),  # of 20, no more than half of the rarest
        ([90, 30], 0.2, [12, 12]),
        ([7, 1], 0.5, [0, 0]),
    ],
)
def test_a_balanced_test_set_has_as_many_images_of_each_class(sizes, test_fraction, tests):
    labels = np.repeat([0, 1], sizes)
    chosen = choose_test(labels, test_fraction, np.random.default_rng(0).permutation, balanced=True)
    assert np.bincount(labels[chosen], minlength=2).tolist() == tests


def test_a_test_set_of_whole_groups_is_balanced_as_nearly_as_they_allow():
    labels, groups = np.repeat([0, 1], [80, 40]), np.arange(120) // 4
    chosen = choose_test(labels, 0.2, np.random.default_rng(0).permutation, groups, balanced=True)
    assert np.bincount(labels[chosen]).tolist() == [12, 12]
    assert all(len(set(chosen[groups == group])) == 1 for group in range(30))


def test_test_images_are_counted_per_class_and_hospital(npz):
    """30 images of each of four classes at one hospital, 10 at each of three."""
    settings = replace(SETTINGS, dataset=npz, partition="iid", test_per_class="2, 5")
    for hospital, count in ((0, 2), (1, 5), (2, 2)):
        tested = open_data(settings, hospital, 3).test.labels
        assert torch.bincount(tested).tolist() == [count] * 4
    with pytest.raises(
        DataError,
        match=r"'test-per-class' is 30, .* training image of class 0 at the hospital: set it",
    ):
        open_data(replace(settings, test_per_class="30"), 0, 1)
    with pytest.raises(SettingsError, match=r"'test-per-class' is '5,x'"):
        Settings.parse({**defaults(), "test-per-class": "5,x"})


def test_balance_is_for_the_test_set_and_not_for_validation(npz):
    settings = replace(SETTINGS, dataset=npz, test_balanced=True, validation_fraction=0.5)
    balanced = open_data(settings, 0, 1)
    assert len(balanced.train) + len(balanced.test) == 120 - 4 * 6


@pytest.mark.parametrize("patients", [1, 3])
def test_who_comes_new_to_a_real_hospital_moves_hardly_anybody(patients):
    """Of 120 images and 12 more; of whom each image, or each three, are one patient's."""
    more = np.append(NUMBERS, 120 + np.arange(12))
    contents = [f"{number:x}" for number in more]

    def tested(numbers, secret=b"secret"):
        pool = replace(
            POOL,
            images=POOL.images[numbers % 120],
            labels=numbers // 3 % 4,
            sites=None,
            groups=numbers // patients if patients > 1 else None,
            contents=[contents[number] for number in numbers],
        )
        train, test = split(pool, pool.labels, np.arange(len(numbers)), SETTINGS, 0, secret)
        assert not {*(numbers[train] // patients)} & {*(numbers[test] // patients)}
        return {*numbers[test].tolist()}

    before = tested(NUMBERS)
    assert len(before) == 24
    assert len(before - tested(more)) <= 2 * patients
    assert tested(NUMBERS[::-1]) == before
    assert tested(NUMBERS, b"another") != before


@pytest.mark.parametrize("grouped", [False, True])
def test_each_training_image_is_in_one_fold(grouped):
    """120 images, 24 to test on, of the other 96 each fold has a third; a group is of 3 images."""
    pool = replace(POOL, groups=NUMBERS // 3 if grouped else None)
    whole = split(pool, pool.labels, NUMBERS, SETTINGS, 0)
    folds = [
        split(pool, pool.labels, NUMBERS, replace(SETTINGS, num_folds=3, fold=k), 0)
        for k in range(3)
    ]
    assert sorted(np.concatenate([tested for _, tested in folds])) == sorted(whole[0])
    for train, tested in folds:
        assert not set(train) & set(tested)
        assert not set(whole[1]) & {*train, *tested}
        assert abs(len(tested) - 32) <= (9 if grouped else 2)
        assert len(set(pool.labels[tested])) == 4
        if grouped:
            assert not set(train // 3) & set(tested // 3)


def test_more_folds_than_groups_are_refused():
    pool = replace(POOL, groups=NUMBERS // 30)
    settings = replace(SETTINGS, num_folds=5, test_fraction=0.0)
    with pytest.raises(DataError, match="too few images or groups for 5 folds"):
        split(replace(pool, held_out=NUMBERS < 0), pool.labels, NUMBERS, settings, 0)


@pytest.mark.parametrize("name", ["iid", "dirichlet", "classes"])
def test_train_and_test_images_of_all_hospitals_are_the_data_set(name, npz):
    settings = replace(SETTINGS, dataset=npz, partition=name)
    numbers = []
    for hospital in range(4):
        data = open_data(settings, hospital, 4)
        for images, labels in (
            (data.train.images, data.train.labels),
            (data.test.images, data.test.labels),
        ):
            assert (images.dtype, labels.dtype) == (torch.uint8, torch.int64)
            assert images.shape == (len(labels), 1, 2, 2)
            assert torch.equal(images[:, 0, 0, 0] % 4, labels)  # a label stays with its image
            numbers += images[:, 0, 0, 0].tolist()
        assert data.classes == ("0", "1", "2", "3")

    assert sorted(numbers) == NUMBERS.tolist()


def shown(samples):
    """The numbers that the images show, sorted."""
    return sorted(samples.images[:, 0, 0, 0].tolist())


@pytest.mark.parametrize("name", ["iid", "dirichlet", "classes"])
def test_a_test_fraction_of_0_means_the_test_set_of_the_data_set(name, npz):
    """Of 120 images 70..119 are the test set."""
    settings = replace(SETTINGS, dataset=npz, partition=name, test_fraction=0.0)
    first, second = (open_data(settings, hospital, 2) for hospital in (0, 1))

    assert sorted(shown(first.train) + shown(second.train)) == list(range(70))
    assert sorted(shown(first.test) + shown(second.test)) == list(range(70, 120))


def test_five_hospitals_of_two_classes_share_the_test_set_of_the_data_set(tmp_path):
    """Hospital i holds the numbers that end in 2i or 2i + 1: 0..59 to train on, 60..79 to test."""
    x, y = np.tile(NUMBERS.astype(np.uint8)[:, None, None], (1, 2, 2)), NUMBERS % 10
    file = tmp_path / "ten.npz"
    np.savez(file, x_train=x[:60], y_train=y[:60], x_test=x[60:80], y_test=y[60:80])
    settings = replace(SETTINGS, dataset=f"npz:{file}", partition="classes")
    for hospital in range(5):
        data = open_data(replace(settings, test_fraction=0.0), hospital, 5)
        held = [n for n in range(80) if n % 10 // 2 == hospital]

        assert shown(data.train) == held[:12]
        assert shown(data.test) == held[12:]


def test_a_data_set_without_a_test_set_needs_a_test_fraction():
    with pytest.raises(DataError, match=r"'test-fraction' is 0, .* 'digits' has no .* above 0"):
        open_data(replace(SETTINGS, dataset="digits", test_fraction=0.0), 0, 2)


@pytest.mark.parametrize(("test_fraction", "sizes"), [(0.5, (30, 18, 12)), (0.0, (36, 22, 14))])
def test_validation_images_are_training_images(test_fraction, sizes, npz):
    """Hospital 0 holds 30 images each of classes 0 and 1, 18 of them below 70.

    Of 15 (half of 30) or 18 training images of a class 0.4 · 15 = 6 or 0.4 · 18 ≈ 7 validate.
    """
    settings = replace(SETTINGS, dataset=npz, partition="classes", test_fraction=test_fraction)
    final = open_data(settings, 0, 2)
    data = open_data(replace(settings, validation_fraction=0.4), 0, 2)

    assert (len(final.train), len(data.train), len(data.test)) == sizes
    assert np.bincount(data.test.labels).tolist() == [sizes[2] / 2] * 2
    assert sorted(shown(data.train) + shown(data.test)) == shown(final.train)
    assert not set(shown(final.train)) & set(shown(final.test))


@pytest.mark.parametrize("test_fraction", [0.2, 0.0])
def test_the_test_set_of_a_hospital_is_kept(test_fraction, tmp_path):
    sets: dict[str, Any] = {}
    for part, own in {
        "train_0": [0, 1],
        "test_0": [4],
        "train_1": [5, 6],
        "test_1": [7, 8],
    }.items():
        name, hospital = part.split("_")
        sets[f"{name}_x_{hospital}"] = POOL.images[own, 0]
        sets[f"{name}_y_{hospital}"] = POOL.labels[own] % 2
    np.savez(tmp_path / "sets.npz", **sets)
    settings = replace(SETTINGS, dataset=f"npz:{tmp_path / 'sets.npz'}", partition="site")
    data = open_data(replace(settings, test_fraction=test_fraction), 1, 2)

    assert data.train.images[:, 0, 0, 0].tolist() == [5, 6]
    assert data.test.images[:, 0, 0, 0].tolist() == [7, 8]


def test_images_are_resized_as_torchvision_does(npz):
    """Two pixels by two become their mean: (0 + 100 + 50 + 250) / 4 = 100."""
    square = torch.tensor([[0, 100], [50, 250]], dtype=torch.uint8)[None, None]
    images = torch.from_numpy(np.random.default_rng(0).integers(0, 256, (3, 3, 9, 7), np.uint8))

    assert Form(1).apply(square).item() == 100
    assert torch.equal(Form(5).apply(images), resize(images, [5, 5], antialias=True))
    assert torch.equal(Form().apply(images), images)
    assert open_data(replace(SETTINGS, dataset=npz, image_size=5), 0, 2).test.images.shape[1:] == (
        (1, 5, 5)
    )


def test_images_that_would_not_fit_into_memory_are_not_resized(npz):
    """2^40 images of 8 x 8 pixels take 70,369 GB."""
    rules = MachineRules(max_memory_gb=0.1, max_disk_gb=1)
    with pytest.raises(PolicyError) as refused:
        open_data(replace(SETTINGS, dataset=npz, image_size=4096), 0, 2, machine=rules)
    assert refused.value.rule == "machine.max-memory-gb"
    small = replace(rules, max_memory_gb=1e-9)  # three channels take memory, too
    with pytest.raises(PolicyError):
        open_data(replace(SETTINGS, dataset=npz, image_channels=3), 0, 2, machine=small)
    with pytest.raises(DataError, match="With image-size 8 the images need 70369 GB of memory, an"):
        check_images(None, 2**40, (1, 8, 8))
    check_images(rules, 0, (1, 8, 8))


def test_padded_images_are_in_the_middle_and_as_large_as_they_were():
    """Two by three pixels in five by five: 1 row above and 2 below, 1 column on either side."""
    images = torch.full((2, 3, 2, 3), 9, dtype=torch.uint8)
    padded = Form(5, "pad").apply(images)

    assert (padded.shape, padded.dtype) == ((2, 3, 5, 5), torch.uint8)
    assert torch.equal(padded[:, :, 1:3, 1:4], images)
    assert padded.sum() == images.sum()  # black around
    assert torch.equal(Form(5, "pad").apply(padded), padded)
    assert torch.equal(Form(0, "pad").apply(images), images)


@pytest.mark.parametrize(
    ("height", "width", "shape"), [(28, 28, (28, 28)), (40, 64, (20, 32)), (99, 2, (32, 1))]
)
def test_images_are_padded_to_the_size_and_shrunk_in_proportion(height, width, shape):
    """64 columns become 32, so 40 rows become 20; 2 columns at 32/99 are 0.6, rounded to 1."""
    images = torch.randint(1, 256, (1, 1, height, width), dtype=torch.uint8)
    padded = Form(32, "pad").apply(images)
    rows, columns = padded[0, 0].nonzero().T

    assert padded.shape == (1, 1, 32, 32)
    assert (int(rows.min()), int(columns.min())) == ((32 - shape[0]) // 2, (32 - shape[1]) // 2)
    inner = padded[..., rows.min() : rows.max() + 1, columns.min() : columns.max() + 1]
    assert torch.equal(inner, resize(images, list(shape), antialias=True))


@pytest.mark.parametrize(("height", "width"), [(40, 64), (64, 40), (5, 9), (32, 32), (33, 32)])
def test_of_cropped_images_the_middle_of_the_longer_side_is_left(height, width):
    """Of 40 x 64, brought to 32 x 51, the columns 9 to 40 stay."""
    images = torch.randint(0, 256, (1, 1, height, width), dtype=torch.uint8)
    cropped = Form(32, "crop").apply(images)
    scale = 32 / min(height, width)
    whole = resize(images, [round(scale * height), round(scale * width)], antialias=True)
    top, left = ((side - 32) // 2 for side in whole.shape[2:])
    assert torch.equal(cropped, whole[..., top : top + 32, left : left + 32])


@pytest.mark.parametrize(("height", "width"), [(1, 64), (64, 1), (3, 200), (200, 3)])
def test_of_a_strip_only_the_middle_is_scaled(height, width):
    """640,000 pixels in a row would be scaled to 224 x 143 million. 64 of them are."""
    images = torch.randint(0, 256, (1, 1, height, width), dtype=torch.uint8)
    longer = [10**4 * side if side >= 64 else side for side in (height, width)]
    strip = torch.zeros(1, 1, 1, 1, dtype=torch.uint8).expand(1, 1, *longer).clone()
    top, left = ((one - other) // 2 for one, other in zip(longer, (height, width), strict=True))
    strip[..., top : top + height, left : left + width] = images

    assert torch.equal(Form(224, "crop").apply(strip), Form(224, "crop").apply(images))


def test_grey_images_get_three_channels_and_colour_stays():
    grey = torch.tensor([[1, 2], [3, 4]], dtype=torch.uint8)[None, None]
    colour = torch.arange(12, dtype=torch.uint8).reshape(1, 3, 2, 2)

    assert torch.equal(Form(channels=3).apply(grey), torch.cat([grey] * 3, dim=1))
    assert torch.equal(Form(channels=3).apply(colour), colour)


@pytest.mark.parametrize("name", DATASETS)
def test_hospitals_hold_images_of_the_form_that_is_asked_for(name, source, tmp_path):
    settings = replace(SETTINGS, dataset=name + source[name], partition="iid", test_fraction=0.5)
    form = {"image_size": 12, "image_fit": "pad", "image_channels": 3}
    settings = replace(settings, **form)  # type: ignore[arg-type]
    images = open_data(settings, 0, 1, store=tmp_path / "store").test.images

    assert images.shape[1:] == (3, 12, 12)
    assert images[:, :, [0, 1, 10, 11]].max() == 0
    assert images[:, 0, 2:10].max() > 0
    assert torch.equal(images[:, 0], images[:, 2])


@pytest.mark.parametrize(
    "name", ["nothing", "nothing:/file", "npz", "digits:/file", "mnist:", ":", ""]
)
def test_unknown_data_sets_list_the_choices(name):
    choices = ", ".join(DATASETS)
    with pytest.raises(DataError, match=f"'{name}'. Choose one of: {choices} "):
        open_data(replace(SETTINGS, dataset=name), 0, 2)


def test_a_hospital_with_too_few_images_is_named(npz):
    """60 hospitals hold 2 of 120 images each; one image of a class is no test image."""
    with pytest.raises(DataError, match="Hospital 60 of 60 has too few images"):
        open_data(replace(SETTINGS, dataset=npz, partition="iid"), 59, 60)


def test_a_class_that_no_hospital_has_is_named(npz):
    settings = replace(SETTINGS, dataset=npz, partition="classes", partition_classes=1)
    with pytest.raises(DataError, match="With partition-classes 1 and 1 hospital, no hospital has"):
        open_data(settings, 0, 1)


@pytest.mark.parametrize("drawn", [{}, {"test_balanced": True}, {"test_per_class": "1"}])
def test_a_hospital_without_an_image_is_named(drawn, tmp_path):
    """Hospitals 2 and 4 hold class 1, which has one image."""
    x, y = np.zeros((5, 2, 2), np.uint8), np.array([0, 0, 0, 0, 1])
    np.savez(tmp_path / "few.npz", x_train=x, y_train=y, x_test=x[:0], y_test=y[:0])
    settings = {"dataset": f"npz:{tmp_path}/few.npz", "partition": "classes", **drawn}
    with pytest.raises(DataError, match="Hospital 4 of 4 has too few images"):
        open_data(replace(SETTINGS, partition_classes=1, **settings), 3, 4)


def test_a_hospital_with_too_few_images_to_validate_on_is_named(npz):
    """30 hospitals hold 4 images each; a tenth of 4 images of a class or fewer is none."""
    settings = replace(SETTINGS, dataset=npz, partition="iid", validation_fraction=0.1)
    with pytest.raises(DataError, match=r"of 30 has too few images: .* validation-fraction"):
        open_data(settings, 0, 30)


def test_the_digits_are_those_of_scikit_learn():
    digits = sklearn.datasets.load_digits()
    pool = load_digits()
    assert np.array_equal(pool.labels, digits.target)
    assert np.array_equal(pool.images[:, 0], np.rint(digits.images * 255 / 16))
