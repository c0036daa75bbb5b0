"""The cut of a hospital's images in tasks: settings `tasks`, `task-cut` and `task-classes`.

Images arrive in T tasks, one after the other. A hospital has the training images of one task at a
time, and test images of all tasks so far. The federation has K classes, c in each task:

    classes          task t has the classes (t - 1) c to t c - 1; each class has its own output
    shared-classes   task t has the same classes; the i-th class of every task has output i
    permuted         every task has all images; the seed permutes the pixels of tasks 2 to T
    given            the column `task` of a manifest names the task of each image

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
    """The cut of images in tasks; their labels are indices into the federation's `classes`."""

    settings: Settings
    classes: tuple[str, ...]

    @property
    def permutes(self) -> bool:
        """Whether every task has all images, with permuted pixels."""
        return self.settings.task_cut == "permuted"

    @property
    def single_pass(self) -> range:
        """The tasks in which every image that takes part arrives exactly once."""
        return range(1, 2 if self.permutes else self.settings.tasks + 1)

    @property
    def class_names(self) -> tuple[str, ...]:
        """The classes with images in the tasks.

        Raises:
            SettingsError: The classes cannot be cut in tasks like that.
        """
        if not self._cuts_classes:
            return self.classes
        return self.classes[: self.settings.tasks * self._size]

    @property
    def outputs(self) -> tuple[str, ...]:
        """The meaning of each output of a network.

        Raises:
            SettingsError: The classes cannot be cut in tasks like that.
        """
        return tuple(outputs(self.classes, self.settings))

    @property
    def output_tasks(self) -> NDArray[np.int64] | None:
        """The task of each output's class [K]; None if tasks share outputs."""
        if self.settings.task_cut != "classes":
            return None
        return np.repeat(np.arange(1, self.settings.tasks + 1), self._size)

    def arrivals(
        self, samples: Samples, manifest: NDArray[np.int64] | None, tasks: Sequence[int]
    ) -> tuple[Samples, NDArray[np.int64], NDArray[np.int64]]:
        """Return the images that arrive in some tasks, one task after the other.

        Args:
            samples: All images [n]; labels are indices into `classes`.
            manifest: Task of each image by the manifest, [n], 0 = unknown; None = unknown for all.
            tasks: The tasks, from 1.

        Returns:
            The images in order of arrival, with labels as indices into `outputs`; their indices in
            `samples`, [m]; and their tasks, [m].

        Raises:
            DataError: An image has none of the run's tasks.
            SettingsError: The classes cannot be cut in tasks like that.
        """
        labels = samples.labels
        if self.permutes:
            places = [np.arange(len(labels)) for _ in tasks]
        else:
            when = self._when(labels.cpu().numpy(), manifest)
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
        """The number of classes in a task."""
        return classes_of_a_task(len(self.classes), self.settings)

    def _when(
        self, labels: NDArray[np.int64], manifest: NDArray[np.int64] | None
    ) -> NDArray[np.int64]:
        """The task of each image, [n]; above T for classes in no task."""
        if self._cuts_classes:
            return 1 + labels // self._size
        last = self.settings.tasks
        if manifest is None or not ((manifest >= 1) & (manifest <= last)).all():
            raise DataError(
                "The setting 'task-cut' is 'given': the column 'task' of the hospital's manifest "
                f"must have a number from 1 to {last} for every image."
            )
        return manifest

    def _permuted(self, images: Tensor, task: int) -> Tensor:
        """All images [n, C, H, W], with the pixels in a task's order."""
        if task == 1:
            return images
        pixels = images.flatten(2)  # [n, C, H W]
        order = rng_for(self.settings.seed, "pixels", task).permutation(pixels.shape[2])
        return pixels[:, :, torch.from_numpy(order).to(images.device)].view(images.shape)
