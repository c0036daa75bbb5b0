"""A hospital's own sums of features, as they leave.

The sums of a task are computed, noised and attacked once in a run, and kept in `sums/<task>` of the
run's folder, as they leave and exact. So no later ring reveals more of them. Sums that the attack
refuses are attacked again in the next ring, with the same noise (`noise/<task>`).

docs/privacy/sums.md says which classes add their sums, with what weights and noise.
"""

import json
import math
import sys
from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from functools import cached_property
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from audit.membership import exceeds
from audit.sums import Features, Moments, audit_sums
from client_app.authority.limits import check_disk
from client_app.authority.privacy_account import Spent, noise_for, require_delta
from client_app.datasets import LocalData
from client_app.request import Request
from client_app.store import append_text, own_folder
from gan.noised_moments import secure_normal
from learning.learners.sums import Sums as Learner
from learning.sums import ALIKE, GRID, SHARES, Images, Sums, project, random_noise, unfold
from strategies.protocol.settings import rng_for
from strategies.protocol.sums import SumsSettings

FILE = "sums.jsonl"  # the sums that left, and the attacks on them, in the run's folder
SPENT = "epsilon-spent"  # the figure of the privacy account
# With a policy, kept beside the sums: the largest leak, and the fewest patients of a class.
LEAK, FEWEST = "leak", "fewest"


def training_images(data: LocalData, settings: SumsSettings, signs: np.random.Generator) -> Images:
    """The training images of a hospital, with their weights, without the hospital's factor.

    `signs` are as in `project`.
    """
    features = project(data.train.images.flatten(1), settings.dimensions, signs)
    _, owners, images = np.unique(data.train.patients, return_inverse=True, return_counts=True)
    weights = torch.from_numpy(1 / images[owners]) if settings.epsilon else None
    return Images(features, data.train.labels.cpu(), owners, len(data.classes), weights)


def patients_by_class(images: Images) -> NDArray[np.int64]:
    """The number of training patients of each class, [K]."""
    labels = images.labels.numpy()
    return np.array([len(np.unique(images.patients[labels == c])) for c in range(images.classes)])


def factor_for(settings: SumsSettings, images: int) -> int:
    """The whole number that multiplies the sums of a hospital that adds so many images."""
    return round(ALIKE / images) if settings.weights == "equal" else 1


class OwnSums:
    """The sums of a hospital's images, of all tasks that it has added so far."""

    def __init__(self, request: Request) -> None:
        self.request, self.run, self.hospital = request, request.run, request.hospital
        self.settings: SumsSettings = Learner.read_settings(self.hospital.settings)

    @cached_property
    def images(self) -> Images:
        """The training images of the task, without the factor: it depends on all tasks so far."""
        return training_images(self.hospital.data, self.settings, self._signs)

    def release(self) -> dict[str, float]:
        """Prepare the sums of the task, unless they are kept; the figures of their release.

        Raises:
            PolicyError: They may not leave, or the store would be too large.
            SettingsError: δ is too large for the number of patients.
            DeadlineError: The deadline has passed.
        """
        place = f"sums/{self.request.order.task}"
        if not (kept := self.run.load(place)):
            exact = self.images.sums()
            # Also for the noise, whose ε is spent before it is drawn
            self.check_disk(exact, 2 + (self.settings.epsilon > 0))
            sent = large = exact.select(self._large_classes)
            kept = {f"exact-{name}": array for name, array in exact.arrays().items()}
            if self.settings.epsilon:
                noise, kept[SPENT] = self._draw(large)
                sent = large + noise
            if self.hospital.policy:
                kept[LEAK] = np.array(self._attack(sent, large))
                kept[FEWEST] = self._patients[self._large_classes].min(initial=sys.maxsize)
            self.run.save(place, {**sent.arrays(), **kept})
            self.run.discard(self._noise)
        self._uphold()
        # Also at a repeated visit: a server that was killed has lost the first answer.
        return {SPENT: float(kept[SPENT])} if SPENT in kept else {}

    def check_disk(self, sums: Sums, copies: int = 1) -> None:
        """Raise a `PolicyError` if so many sums of this size would make the store too large."""
        size = sum(array.nbytes for array in sums.arrays().values())
        check_disk(self.hospital.machine, self.hospital.store.folder.parent, copies * size)

    def load_kept(self) -> tuple[Sums, Sums]:
        """The sums of all tasks so far, times the factor: as they leave, and exact."""
        sent, exact = _add(self._kept.values()), _add(self._kept.values(), "exact-")
        return sent * self._factor, exact * self._factor

    def noise_in(self, ring: Collection[str]) -> float:
        """The largest standard deviation of the noise in a ring's totals, in sensitivities."""
        if not self.settings.epsilon:
            return 0.0
        releases = len({*ring}) * max(len(self._kept), len(self.request.order.tasks_so_far))
        return noise_for(self.settings.epsilon, self.settings.delta) * math.sqrt(releases)

    @property
    def all_images(self) -> Images:
        """The training images of the task, with the exact sums of earlier tasks."""
        now = f"{self.request.order.task}"
        earlier = [each for task, each in self._kept.items() if task != now]
        before = _add(earlier, "exact-") if earlier else None
        return replace(self.images, factor=self._factor, earlier=before)

    @cached_property
    def _kept(self) -> dict[str, dict[str, NDArray[Any]]]:
        return {task: self.run.load(f"sums/{task}") for task in self.run.names("sums")}

    @property
    def _factor(self) -> int:
        """The factor of all tasks so far.

        It can be read off the sums that leave, so it depends on the images in these alone. If no
        class adds, they are 0.
        """
        sent, exact = (
            sum(int(each[name].sum()) for each in self._kept.values())
            for name in ("counts", "exact-counts")
        )
        return factor_for(self.settings, (sent or exact) // GRID**2)

    @cached_property
    def _patients(self) -> NDArray[np.int64]:
        return patients_by_class(self.images)

    @cached_property
    def _large_classes(self) -> Tensor:
        """The classes that add their sums, bool [K]."""
        policy = self.hospital.policy
        fewest = policy.sums.min_class_patients if policy and not self.settings.epsilon else 0
        return torch.from_numpy(self._patients >= fewest)

    def _uphold(self) -> None:
        """Refuse kept sums, of all tasks, if the policy has become too strict for them."""
        if policy := self.hospital.policy:
            for each in self._kept.values():
                policy.sums.uphold("max-membership", float(each[LEAK]))
                if not self.settings.epsilon:
                    policy.sums.uphold("min-class-patients", int(each[FEWEST]))

    def _attack(self, sent: Sums, exact: Sums) -> float:
        """Attack the sums of the task, and write down the result if they may leave (PolicyError).

        `exact` are the same sums without noise.

        Returns:
            The largest leak that is certain (upper end of its interval); 0 without any, and 1 if no
            class has held-out images for an attack.
        """
        assert self.hospital.policy
        rules, images = self.hospital.policy.sums, self.images
        added = self._large_classes[images.labels]
        weights = torch.ones(len(added)) if images.weights is None else images.weights
        owners, test = torch.from_numpy(images.patients), self.hospital.data.held_out
        held_out = project(test.images.flatten(1), self.settings.dimensions, self._signs)
        of_test, none = torch.from_numpy(test.patients), torch.zeros(len(test)).double()
        with self.request.clock.measure("evaluate"):
            report = audit_sums(
                self._moments(sent),
                self._moments(sent - exact),
                Features(images.features, images.labels, owners, weights.double())[added],
                Features(held_out, test.labels.cpu(), of_test, none),
                rng_for(self.hospital.settings.seed, "attack", hospital=self.hospital.name),
                (SHARES["firsts"], SHARES["seconds"]),
                self.request.clock.deadline,
            )
        certain = (leak["high"] for leak in report.leaks if exceeds(leak, 0))
        leak = max(certain, default=0.0 if report.leaks else 1.0)
        rules.uphold("max-membership", leak)
        noted = {
            "task": self.request.order.task,
            "classes": int(self._large_classes.sum()),
            "features": images.features.shape[1],
            "epsilon": self.settings.epsilon,
            "limit": rules.max_membership,
            **report.evidence,
        }
        append_text(own_folder(self.run.folder) / FILE, json.dumps(noted) + "\n")
        return leak

    def _moments(self, sums: Sums) -> Moments:
        """Sums as an attack sees them, in images."""
        counts, firsts, seconds = (each.double() / GRID**2 for each in vars(sums).values())
        return Moments(counts, firsts, unfold(seconds))

    @property
    def _signs(self) -> np.random.Generator:
        return rng_for(self.hospital.settings.seed, "projection")

    @property
    def _noise(self) -> str:
        return f"noise/{self.request.order.task}"

    def _draw(self, like: Sums) -> tuple[Sums, NDArray[Any]]:
        """The noise of the task's sums, and ε of all releases when it was drawn.

        It is kept until the sums may leave: no server can repeat a ring until a draw passes.
        """
        if kept := self.run.load(self._noise):
            total = kept.pop(SPENT)
            return Sums.from_arrays(kept), total
        hospital, order, delta = self.hospital, self.request.order, self.settings.delta
        require_delta("sums.delta", delta, self.images.patients, hospital.smallest_group)
        multiplier = noise_for(self.settings.epsilon, delta)
        spent = Spent(f"sums of task {order.task} of run {order.run}", multiplier)
        total = np.array(self.request.spend(spent, delta))
        known = rng_for(hospital.settings.seed, "sums", order.task, hospital=hospital.name)
        normal = secure_normal if hospital.policy else known.standard_normal
        noise = random_noise(like, multiplier, normal)
        self.run.save(self._noise, {**noise.arrays(), SPENT: total})
        return noise, total


def _add(kept: Iterable[Mapping[str, NDArray[Any]]], start: str = "") -> Sums:
    """The total of kept sums whose names begin with `start`."""
    first, *more = (
        Sums.from_arrays({part: each[start + part] for part in SHARES}) for each in kept
    )
    return sum(more, first)
