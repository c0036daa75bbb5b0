"""What a data set is before and after it is cut over hospitals.

Shapes: `N` images of a data set, `n` of them at one hospital, `C` channels, `H, W` pixels.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from client_app.errors import DataError
from learning.samples import Samples

Indices = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Pool:
    """All images of a data set, before they are cut over hospitals.

    Attributes:
        images: uint8 [M, C, H, W], in memory or mapped from a file.
        labels: int64 [N], an index into `classes`.
        classes: Names of the classes; each has an image.
        sites: int64 [N], the site that each image comes from; None if the data set names none.
        held_out: bool [N], True for one of the data set's own test images; None if it has none.
        always_held_out: Whether hospitals test on these whatever `test-fraction` is, not only at 0.
        groups: int64 [N], which images belong together, those of one patient for instance: at a
            hospital they are all trained on or all tested on. Only the partition `site` keeps a
            group at one hospital; the others cut without regard to groups. None if every image is
            on its own.
        rows: int64 [N], where each image is in `images`; None = one after the other, M = N.
        quarantined: How many more images there are that cannot be used.
        fingerprint: Changes with the images, if they are a hospital's own files; else empty.
        contents: Hashes of the images' files, [N]; None if they are not a hospital's own files.
        kind: What the images are (`strategies.protocol.may_leave.KINDS`).

    Raises:
        DataError: A label is no class, or a class has no image.
    """

    images: NDArray[np.uint8]
    labels: NDArray[np.int64]
    classes: tuple[str, ...]
    sites: NDArray[np.int64] | None = None
    held_out: NDArray[np.bool_] | None = None
    always_held_out: bool = False
    groups: NDArray[np.int64] | None = None
    rows: NDArray[np.int64] | None = None
    quarantined: int = 0
    fingerprint: str = ""
    contents: list[str] | None = None
    kind: str = ""

    def __post_init__(self) -> None:
        count = len(self.classes)
        strangers = int(((self.labels < 0) | (self.labels >= count)).sum())
        if strangers:
            raise DataError(
                f"{strangers} of {len(self.labels)} labels are none of the {count} classes: number "
                "the classes from 0 without gaps, and leave out images without a label."
            )
        sizes = np.bincount(self.labels, minlength=count)
        missing = [name for name, size in zip(self.classes, sizes, strict=True) if size == 0]
        if missing:
            raise DataError(
                f"No image has the class {', '.join(map(repr, missing))}: number the classes from "
                "0 without gaps, and leave out those without an image."
            )


@dataclass(frozen=True, eq=False)
class LocalData:
    """What one hospital trains and tests on.

    Attributes:
        train: Images to train on.
        test: Images to test on.
        classes: Names of the classes that the labels are indices into.
        quarantined: How many more images there are that cannot be used.
        fingerprint: Of the pool.
        test_fingerprint: Of the test images as they are here: which they are, in which form.
        train_fingerprint: The same of the training images.
        train_groups: int64 [n], which training images are of one patient (`Pool.groups`); None if
            every image is on its own,
        test_groups: and which test images.
        train_contents: Hashes of the training images' files, [n]; None if they have none here.
        test_contents: The same of the test images.
        kind: Of the pool.
    """

    train: Samples
    test: Samples
    classes: tuple[str, ...]
    quarantined: int = 0
    fingerprint: str = ""
    test_fingerprint: str = ""
    train_fingerprint: str = ""
    train_groups: Indices | None = None
    test_groups: Indices | None = None
    train_contents: list[str] | None = None
    test_contents: list[str] | None = None
    kind: str = ""

    @property
    def train_patients(self) -> Indices:
        """Whose each training image is, [n]; without groups each is one patient's."""
        return np.arange(len(self.train)) if self.train_groups is None else self.train_groups

    @property
    def test_patients(self) -> Indices:
        """Whose each test image is, [n]; without groups each is one patient's."""
        return np.arange(len(self.test)) if self.test_groups is None else self.test_groups


def numbered_classes(labels: NDArray[np.int64]) -> tuple[str, ...]:
    """The classes "0".."max" of a data set [N] that does not name them."""
    # N labels have at most N classes. `Pool` refuses a larger label, such as a code of 10^9.
    last = min(int(labels.max(initial=-1)), len(labels))
    return tuple(str(number) for number in range(last + 1))


def too_many(unusable: int, images: int, allowed: float) -> bool:
    """Whether more than an `allowed` share (`max-quarantined`) of the images cannot be used."""
    return images > 0 and unusable / images > allowed  # not multiplied: 0.29 * 100 < 29


def too_few(train: Indices, test: Indices) -> bool:
    """Whether there are fewer than 2 images to train on, or none to test on."""
    return len(train) < 2 or len(test) < 1
