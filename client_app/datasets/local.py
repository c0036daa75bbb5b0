"""The training and test images of one hospital."""

import hashlib
import hmac
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch

from client_app.datasets.pool import Indices, LocalSamples
from client_app.datasets.tasks import Tasks
from learning.models import Architecture
from learning.samples import round_up

DIGITS = 16  # of a hash of images


@dataclass(frozen=True, eq=False)
class LocalData:
    """The images of one hospital."""

    train: LocalSamples
    test: LocalSamples
    classes: tuple[str, ...]  # names of the classes; labels are indices into them
    quarantined: int = 0  # number of further images that cannot be used
    fingerprint: str = ""  # fingerprint of the pool
    # int64 [K], task of each output's class; None if tasks share outputs
    output_tasks: Indices | None = None
    tasks: Tasks | None = None  # the cut in tasks that is not yet made; None if there is none
    kind: str = ""  # kind of the pool
    # The network whose frozen part made the features (`Pool.whole`); None for images
    whole: Architecture | None = None

    def to(self, device: torch.device) -> "LocalData":
        """The images on another device."""
        return replace(self, train=self.train.to(device), test=self.test.to(device))

    @property
    def held_out(self) -> LocalSamples:
        """The test images that attacks compare with the training images: those of the same tasks.

        A network that forgets earlier tasks, or remembers them well, tells their test images from
        the training images of this task. Neither depends on what it memorised of this task.
        """
        whole = self.test
        if whole.tasks is None or self.train.tasks is None:
            return whole
        chosen = np.flatnonzero(np.isin(whole.tasks, self.train.tasks))
        return replace(whole, groups=whole.patients).select(chosen)

    @property
    def image_shape(self) -> tuple[int, int, int]:
        """(C, H, W) of the images, also of those that have become features."""
        return self.whole.image_shape if self.whole else self.train.shape

    @property
    def classes_present(self) -> list[str]:
        """Names of the classes with an image at this hospital."""
        labels = torch.cat([self.train.labels, self.test.labels])
        return [self.classes[label] for label in labels.unique().tolist()]

    def images_at(self, task: int, arrived: Sequence[int] = ()) -> "LocalData":
        """Return the training images of one task, and the test images of all tasks so far.

        `task` counts from 1; 0 = all images that arrive, each once. Without `arrived`, the tasks so
        far are all up to `task`.

        Raises:
            DataError: An image has none of the run's tasks.
            SettingsError: The classes cannot be cut in tasks like that.
        """
        if (cut := self.tasks) is None:
            return self
        so_far = (arrived or range(1, task + 1)) if task else cut.single_pass
        return replace(
            self,
            train=cut.arrivals(self.train, [task] if task else so_far),
            test=cut.arrivals(self.test, so_far),
            classes=cut.outputs,
            output_tasks=cut.output_tasks,
            tasks=None,
        )

    def bytes_copied(self, tasks: int) -> int:
        """The bytes that `images_at` copies for a number of tasks with permuted pixels.

        The numbers of images are rounded up (`round_up`).
        """
        if self.tasks is None or not self.tasks.permutes:
            return 0
        train, test = (round_up(len(side)) for side in (self.train, self.test))
        return (train + max(tasks, 1) * test) * math.prod(self.train.shape)

    def train_so_far(self, task: int) -> LocalSamples:
        """The training images of all tasks up to `task`."""
        return self.tasks.arrivals(self.train, range(1, task + 1)) if self.tasks else self.train

    def hashes(self, secret: bytes) -> dict[str, str]:
        """The hashes `train-images` and `test-images`; the order of images does not count.

        Equal hashes mean: two runs used the same images with the same classes, in any folder.
        Someone who guesses the images could verify the guess by the hash. In a deployment the hash
        is therefore keyed with a secret of the hospital, and begins with "keyed-". Two keyed hashes
        of one hospital reveal only whether they are equal. In a simulation the secret is empty.
        """
        parts = {"train-images": self.train, "test-images": self.test}
        return {name: self._hash(samples, secret) for name, samples in parts.items()}

    def _hash(self, samples: LocalSamples, secret: bytes) -> str:
        """The hash of image files, or of pixels if there are no files."""
        contents = samples.contents
        if contents is None:
            images = samples.images.cpu().numpy()
            contents = [hashlib.sha256(image.tobytes()).hexdigest() for image in images]
        names = [self.classes[label] for label in samples.labels.tolist()]
        lines = sorted(f"{content} {name}" for content, name in zip(contents, names, strict=True))
        digest = hmac.digest(secret, "\n".join(lines).encode(), "sha256").hex()[:DIGITS]
        return f"keyed-{digest}" if secret else digest
