"""Which of a hospital's images arrive when: the settings `tasks`, `task-cut` and `task-classes`.

Images arrive in T tasks, one after the other. A hospital has the training images of one task at a
time, and test images of all tasks so far. With the K classes of the federation, c to a task:

    classes          task t has the classes (t - 1) c to t c - 1, and each class its own output
    shared-classes   the same; the i-th class of every task has output i
    permuted         every task has all images, with their pixels in an order of its own, which
                     follows from the seed; those of task 1 stay where they are
    given            each image has its task: the column `task` of a manifest

Classes beyond T c arrive in no task.

Shapes: `n` images of a hospital, `m` of them in some tasks, `C` channels, `H, W` pixels.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from client_app.errors import DataError
from learning.samples import Samples
from strategies.protocol.classes import classes_of_a_task, outputs
from strategies.protocol.settings import BY_CLASSES, Settings, rng_for


@dataclass(frozen=True, eq=False)
class Tasks:
    """How images are cut in tasks.

    Attributes:
        settings: Of the run.
        classes: Those of the federation, as labels number them.
        train: The task that each training image is said to be of [n], 0 = nothing is said; None if
            nothing is said of any,
        test: and each test image.
    """

    settings: Settings
    classes: tuple[str, ...]
    train: NDArray[np.int64] | None = None
    test: NDArray[np.int64] | None = None

    @property
    def permutes(self) -> bool:
        """Whether every task shows all images, in its own way."""
        return self.settings.task_cut == "permuted"

    @property
    def once(self) -> range:
        """Tasks in which every image that takes part arrives once."""
        return range(1, 2 if self.permutes else self.settings.tasks + 1)

    @property
    def class_names(self) -> tuple[str, ...]:
        """The classes whose images arrive.

        Raises:
            SettingsError: The classes cannot be cut in tasks like that.
        """
        if not self._cuts_classes:
            return self.classes
        return self.classes[: self.settings.tasks * self._size]

    @property
    def outputs(self) -> tuple[str, ...]:
        """What the outputs of networks stand for.

        Raises:
            SettingsError: The classes cannot be cut in tasks like that.
        """
        return tuple(outputs(self.classes, self.settings))

    @property
    def output_tasks(self) -> NDArray[np.int64] | None:
        """The task that has each output's class [K]; None if it is not one alone."""
        if self.settings.task_cut != "classes":
            return None
        return np.repeat(np.arange(1, self.settings.tasks + 1), self._size)

    def arriving(
        self, samples: Samples, given: NDArray[np.int64] | None, tasks: Sequence[int]
    ) -> tuple[Samples, NDArray[np.int64], NDArray[np.int64]]:
        """The images that arrive in some tasks, one task after the other.

        Args:
            samples: All images [n], their labels indices into `classes`.
            given: The task that each is said to be of: `train` or `test`.
            tasks: The tasks, from 1.

        Returns:
            The images as they arrive, their labels indices into `outputs`; where they are among all
            images; and the task that each is of, [m].

        Raises:
            DataError: It is not said of each image in which of the run's tasks it arrives.
            SettingsError: The classes cannot be cut in tasks like that.
        """
        labels = samples.labels
        if self.permutes:
            places = [np.arange(len(labels)) for _ in tasks]
        else:
            when = self._when(labels.cpu().numpy(), given)
            places = [np.flatnonzero(when == task) for task in tasks]
        together = np.concatenate(places)
        chosen = torch.from_numpy(together).to(labels.device)
        labels = labels[chosen]
        if self.settings.task_cut == "shared-classes":
            labels = labels % self._size
        if self.permutes:
            images = samples.images
            shown = Samples(torch.cat([self._permuted(images, task) for task in tasks]), labels)
        else:
            rows = chosen if samples.rows is None else samples.rows[chosen]
            shown = Samples(samples.pixels, labels, rows)
        return shown, together, np.repeat([*tasks], [len(each) for each in places])

    @property
    def _cuts_classes(self) -> bool:
        return self.settings.task_cut in BY_CLASSES

    @property
    def _size(self) -> int:
        """Classes of a task."""
        return classes_of_a_task(len(self.classes), self.settings)

    def _when(
        self, labels: NDArray[np.int64], given: NDArray[np.int64] | None
    ) -> NDArray[np.int64]:
        """The task that each image is of [n]; those of classes that are in none are beyond T."""
        if self._cuts_classes:
            return 1 + labels // self._size
        last = self.settings.tasks
        if given is None or not ((given >= 1) & (given <= last)).all():
            raise DataError(
                "The setting 'task-cut' is 'given': the column 'task' of the hospital's manifest "
                f"must have a number from 1 to {last} for every image, and has not."
            )
        return given

    def _permuted(self, images: Tensor, task: int) -> Tensor:
        """All images [n, C, H, W] as a task shows them."""
        if task == 1:
            return images
        pixels = images.flatten(2)  # [n, C, H W]
        order = rng_for(self.settings.seed, "pixels", task).permutation(pixels.shape[2])
        return pixels[:, :, torch.from_numpy(order).to(images.device)].view(images.shape)
