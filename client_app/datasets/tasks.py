"""The cut of a hospital's images in tasks: settings `tasks`, `task-cut` and `task-classes`.

Images arrive in T tasks, one after the other. A hospital has the training images of one task at a
time, and test images of all tasks so far. The federation has K classes, c in each task:

    classes          task t has the classes (t - 1) c to t c - 1; each class has its own output
    shared-classes   task t has the same classes; the i-th class of every task has output i
    permuted         every task has all images; the seed permutes the pixels of tasks 2 to T
    given            the column `task` of a manifest names the task of each image

Classes beyond T c arrive in no task.

Shapes: `n` images of a hospital, `C` channels, `H, W` pixels.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from client_app.datasets.pool import Indices, LocalSamples
from client_app.errors import DataError
from strategies.protocol.classes import classes_of_a_task, outputs
from strategies.protocol.settings import BY_CLASSES, Settings, rng_for


@dataclass(frozen=True, eq=False)
class Tasks:
    """The cut of images in tasks; their labels are indices into the federation's `classes`.

    Raises:
        SettingsError: In most methods: the classes cannot be cut in tasks like that.
    """

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
        """The classes with images in the tasks."""
        if self.settings.task_cut not in BY_CLASSES:
            return self.classes
        return self.classes[: self.settings.tasks * self._size]

    @property
    def outputs(self) -> tuple[str, ...]:
        """The meaning of each output of a network."""
        return tuple(outputs(self.classes, self.settings))

    @property
    def output_tasks(self) -> Indices | None:
        """The task of each output's class [K]; None if tasks share outputs."""
        if self.settings.task_cut != "classes":
            return None
        return np.repeat(np.arange(1, self.settings.tasks + 1), self._size)

    def arrivals(self, samples: LocalSamples, tasks: Sequence[int]) -> LocalSamples:
        """Return the images that arrive in some tasks, one task after the other.

        The labels become indices into `outputs`. An image in several tasks counts as several
        images of one patient.

        Raises:
            DataError: An image has none of the run's tasks.
        """
        if self.permutes:
            parts = [np.arange(len(samples)) for _ in tasks]
        else:
            task_of = self._tasks_of(samples)
            parts = [np.flatnonzero(task_of == task) for task in tasks]
        places = np.concatenate(parts)
        arrived = np.repeat([*tasks], [len(part) for part in parts])
        chosen = samples.select(places)
        if self.settings.task_cut == "shared-classes":
            chosen = replace(chosen, labels=chosen.labels % self._size)
        if self.permutes:
            images = samples.images
            pixels = torch.cat([self._permute(images, task) for task in tasks])
            chosen = replace(chosen, pixels=pixels, rows=None)
        known = samples.groups is not None or len(np.unique(places)) < len(places)
        facts = [samples.fingerprint, self.settings.task_cut, self.settings.seed]
        facts += [places.tolist(), arrived.tolist()]
        return replace(
            chosen,
            fingerprint=hashlib.sha256(repr(facts).encode()).hexdigest(),
            groups=samples.patients[places] if known else None,
            tasks=arrived,
        )

    @property
    def _size(self) -> int:
        """The number of classes in a task."""
        return classes_of_a_task(len(self.classes), self.settings)

    def _tasks_of(self, samples: LocalSamples) -> Indices:
        """The task of each image, [n]; above T for classes in no task."""
        if self.settings.task_cut in BY_CLASSES:
            labels: Indices = samples.labels.cpu().numpy()
            return 1 + labels // self._size
        manifest, last = samples.manifest_tasks, self.settings.tasks
        if manifest is None or not ((manifest >= 1) & (manifest <= last)).all():
            raise DataError(
                "The setting 'task-cut' is 'given': the column 'task' of the hospital's manifest "
                f"must have a number from 1 to {last} for every image."
            )
        return manifest

    def _permute(self, images: Tensor, task: int) -> Tensor:
        """All images [n, C, H, W], with the pixels in a task's order."""
        if task == 1:
            return images
        pixels = images.flatten(2)  # [n, C, H W]
        order = rng_for(self.settings.seed, "pixels", task).permutation(pixels.shape[2])
        return pixels[:, :, torch.from_numpy(order).to(images.device)].view(images.shape)
