"""PASS and FedSpace at a hospital: mean features stand for classes that it no longer sees.

PASS: Zhu et al., CVPR 2021; with FedAvg, and FedSpace: Shenaj et al., "Asynchronous federated
continual learning", CVPR workshops 2023, arXiv:2304.03626. Each image x comes in 4 rotations; x of
class y, turned by k quarters, has the label 4y + k. With features f, head g, temperature T, p_c the
mean of f over class c (its prototype) and r the spread of f around it, a step minimises

    mean over 4N of ℓ(g(f(x)) / T, 4y + k)        over the outputs of classes that were seen here
    + λ mean over B of ℓ(g(p_c + r ε) / T, 4c)    over all outputs; c at random, ε ~ N(0, I)
    + λ_R L_R                                     FedSpace alone

PASS uses the hospital's own prototypes, of all classes that it has seen. FedSpace uses those of the
server (strategies/fedspace.py) as soon as there are any. Its second term has only classes outside
of the present task. L_R draws the features of a class together. z are the features of the N
images that are not rotated, and B features p_c + r ε, scaled to length 1. P_c are the z of class c.
With s_ij = e^{z_i z_j} / Σ_{k ≠ i} e^{z_i z_k}:

    L_R = −1/(N + B) Σ_c Σ_{i ∈ P_c} 1/(|P_c| − 1) Σ_{j ∈ P_c, j ≠ i} log s_ij

over the classes c of the task. r² is the mean over classes of tr(Cov) / d, in the first task.

Deviations:
 1. PASS also distils from the model before. FedSpace's code, which gave the published numbers, does
    not distil, and this code does not either.
 2. A class is seen once the hospital has had an image of it. In the authors' code a class is seen
    once its task has begun, even without an image.
 3. Means and r are measured with the model after a visit, on images that are not augmented; r until
    the end of the first task. The authors' code augments, and keeps the r of the first visit.
 4. In the authors' code the sum over k has 1 in place of e^{z_i z_i}.

On a rewind leg the hospital's kept state does not change, and the hospital sends no prototypes.
"""

from collections.abc import Mapping
from functools import cached_property

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from learning.augmentation import Draws
from learning.errors import warn_once
from learning.evaluation import split
from learning.judgement import WORSE, random_samples
from learning.learners.plain import Learner, Received
from learning.models.rotation import TURNS, RotationNetwork
from learning.packing import check_layout
from learning.samples import Samples
from learning.settings import PrototypeSettings, RepresentationSettings
from strategies.protocol.records import ParcelError, useless_unless_valid
from strategies.protocol.settings import Settings

REWIND = 2  # the leg at another hospital (strategies/fedrewind.py)


class Pass(Learner):
    """Cross-entropy of rotated images, and of features around the hospital's own prototypes.

    Raises:
        ModelError: The network has no outputs for rotated images.
        ParcelError: The kept prototypes are of another network.
    """

    tables: tuple[tuple[str, type], ...] = (("pass", PrototypeSettings),)
    own: PrototypeSettings
    needs = (
        RotationNetwork,
        "The learner turns images, and the model has no outputs for them: set 'model' to "
        "rotation-mlp, rotation-cnn or rotation-resnet18.",
    )
    model: RotationNetwork

    def __init__(
        self, model: nn.Module, samples: Samples, settings: Settings, received: Received
    ) -> None:
        super().__init__(model, samples, settings, received)
        if self.class_weights is not None:  # the same for all outputs of a class
            self.class_weights = self.class_weights.repeat_interleave(TURNS)

    def begin_visit(self) -> None:
        """Find the classes that the hospital has seen, and the prototypes."""
        none = self._empty_prototypes()
        self.kept = self.received.rehearsal or none
        check_layout({name: self.kept[name] for name in none}, none, "The hospital's memory")
        self.classes = self.samples.labels.unique()  # of the task
        unseen = self.kept["counts"] == 0  # [K]
        unseen[self.classes] = False
        self.unseen = unseen.repeat_interleave(TURNS)  # [4K]
        self.prototypes = self.kept
        self.augmented = _known_classes(self.prototypes)

    def _empty_prototypes(self) -> dict[str, Tensor]:
        """Empty prototypes: means [K, d], numbers of images [K], and r."""
        head = self.model.head
        means = head.weight.new_zeros(head.out_features // TURNS, head.in_features)
        return {"means": means, "counts": means[:, 0].clone(), "radius": means.new_zeros(())}

    def observe(self, batch: Samples, draws: Draws) -> Tensor:
        """The loss of a batch of images [N]."""
        images, labels = turn(draws.view(batch.images), batch.labels)
        features = self.model.features(images)  # [4N, d]
        logits = self.model.head(features).masked_fill(self.unseen, -torch.inf)
        loss = self.cross_entropy(logits / self.own.temperature, labels)
        if len(self.augmented) and self.own.prototype_weight:
            near, classes = self.sample_around(self.augmented, draws)
            logits = self.model.head(near) / self.own.temperature
            near_loss = functional.cross_entropy(logits, TURNS * classes)
            loss = loss + self.own.prototype_weight * near_loss
        return loss + self.extra_loss(features[: len(batch)], batch.labels, draws)

    def sample_around(self, classes: Tensor, draws: Draws) -> tuple[Tensor, Tensor]:
        """Random p_c + r ε [B, d], with c [B] from some classes; B is `train.batch-size`."""
        count, means = self.settings.train.batch_size, self.prototypes["means"]
        chosen = torch.randint(len(classes), (count,), generator=draws.generator)
        noise = torch.randn((count, means.shape[1]), generator=draws.generator).to(means.device)
        drawn = classes[chosen.to(classes.device)]
        return means[drawn] + self.prototypes["radius"] * noise, drawn

    def extra_loss(self, features: Tensor, labels: Tensor, draws: Draws) -> Tensor:
        """A further term of the loss, from features of images without rotation; here 0."""
        return features.new_zeros(())

    @cached_property
    def new_prototypes(self) -> dict[str, Tensor]:
        """The prototypes of the task's classes, from the trained model."""
        return class_prototypes(self.model, self.samples, len(self.kept["counts"]))

    def rehearsal(self) -> Mapping[str, Tensor]:
        """The prototypes of all seen classes, r, and the task in which r is measured."""
        if self.received.leg == REWIND:
            return self.received.rehearsal
        new, old, task = self.new_prototypes, self.kept, self.received.task
        here = new["counts"] > 0
        first = int(old["task"]) if "task" in old else task
        return {
            "means": torch.where(here[:, None], new["means"], old["means"]),
            "counts": torch.where(here, new["counts"], old["counts"]),
            "radius": new["radius"] if first == task else old["radius"],
            "task": torch.tensor(first),
        }


class FedSpace(Pass):
    """PASS around the server's prototypes, with a loss that draws each class together.

    Raises:
        UselessError: The server's prototypes are of another network.
    """

    tables = (*Pass.tables, ("fedspace", RepresentationSettings))

    def begin_visit(self) -> None:
        """Load the server's prototypes, if there are any."""
        super().begin_visit()
        self.weight = self.settings.section(*self.tables[1]).representation_weight
        if memory := self.received.memory:
            with useless_unless_valid():
                check_layout(memory, self._empty_prototypes(), "The prototypes")
                if memory["radius"] < 0:
                    raise ParcelError("The prototypes have a negative radius.")
            if self._are_near(memory):
                self.prototypes = dict(memory)
            else:
                warn_once("The server's prototypes are huge: visits do not use them.")
        known = _known_classes(self.prototypes)
        self.augmented = known[~torch.isin(known, self.classes)]

    def _are_near(self, prototypes: Mapping[str, Tensor]) -> bool:
        """Whether no prototype is `WORSE` times as far from 0 as features of random pixels.

        One hospital's blow-up would otherwise make the training of all others diverge.
        """
        means, random = prototypes["means"], random_samples(self.samples, len(prototypes["means"]))
        reach = WORSE * extract_features(self.model, random.images).norm(dim=1).max()
        spread = prototypes["radius"] * means.shape[1] ** 0.5
        return bool(means.norm(dim=1).max() <= reach and spread <= reach)

    def extra_loss(self, features: Tensor, labels: Tensor, draws: Draws) -> Tensor:
        """λ_R L_R, from features [N, d] of images without rotation, and their labels [N]."""
        known = _known_classes(self.prototypes)
        if not len(known) or not self.weight:
            return super().extra_loss(features, labels, draws)
        near, classes = self.sample_around(known, draws)
        features, labels = torch.cat([features, near]), torch.cat([labels, classes])
        loss: Tensor = self.weight * representation(features, labels, self.classes)
        return loss

    def memory(self, rng: np.random.Generator) -> Mapping[str, Tensor]:
        """The prototypes of the task's classes and the hospital's r, for the server."""
        if self.received.leg == REWIND:
            return {}
        return self.new_prototypes | {"radius": self.rehearsal()["radius"]}


def turn(images: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Turn images [N, C, H, H] with labels y [N]: [4N, C, H, H] and 4y + k, one turn by one."""
    turns = range(TURNS)
    turned = torch.cat([images.rot90(k, (-2, -1)) for k in turns])
    return turned, torch.cat([TURNS * labels + k for k in turns])


def representation(features: Tensor, labels: Tensor, classes: Tensor) -> Tensor:
    """L_R, from features [M, d], their classes [M], and the classes to draw together."""
    unit = functional.normalize(features, dim=1)
    likeness = unit @ unit.T  # z_i z_k, [M, M]
    itself = torch.eye(len(labels), dtype=torch.bool, device=labels.device)
    log_shares = likeness - likeness.masked_fill(itself, -torch.inf).logsumexp(dim=1, keepdim=True)
    pairs = (labels[:, None] == labels) & ~itself & torch.isin(labels, classes)[:, None]
    others = pairs.sum(dim=1).clamp(min=1)  # |P_c| − 1
    return -((log_shares * pairs).sum(dim=1) / others).sum() / len(labels)


@torch.no_grad()
def extract_features(network: RotationNetwork, images: Tensor) -> Tensor:
    """The features [n, d] of images uint8 [n, C, H, W], without rotation."""
    network.eval()
    return torch.cat([network.features(part) for part in split(images)])


def class_prototypes(network: RotationNetwork, samples: Samples, classes: int) -> dict[str, Tensor]:
    """Prototypes: means [K, d], numbers of images [K], r; 0 for a class without images."""
    features, labels = extract_features(network, samples.images), samples.labels
    counts = labels.bincount(minlength=classes).to(features.dtype)
    sums = features.new_zeros(classes, features.shape[1]).index_add_(0, labels, features)
    means = sums / counts.clamp(min=1)[:, None]
    far = (features - means[labels]).square().sum(dim=1)  # [n]
    several = counts > 1
    traces = counts.new_zeros(classes).index_add_(0, labels, far)[several] / (counts[several] - 1)
    radius = (traces.mean() / features.shape[1]).sqrt() if len(traces) else traces.sum()
    return {"means": means, "counts": counts, "radius": radius}


def _known_classes(prototypes: Mapping[str, Tensor]) -> Tensor:
    """The classes that have a prototype, int64 [m]."""
    return prototypes["counts"].nonzero()[:, 0]
