"""iCaRL: an image gets the class whose mean of kept images is nearest; earlier tasks are distilled.

Rebuffi et al., "iCaRL: incremental classifier and representation learning", CVPR 2017,
arXiv:1611.07725. A task is trained on its images and all kept ones. With g = σ(M(x)), and q the
same of the network before the task, a step minimises the binary cross-entropy (Algorithm 3)

    − Σ_c [ t_c log g_c + (1 − t_c) log(1 − g_c) ]

with t_c = q_c for a class that the task lacks, and else t_c = [y = c].

Of each class K / (number of classes) images are kept, K = `reservoir.size`. They are chosen one by
one, so that the mean of their features is the nearest to that of the class (Algorithm 4). When new
classes come, the images that were chosen first stay (Algorithm 5). Features φ are the input of the
last layer. They and their means are scaled to a norm of 1 (section 2.1). An image x has the class
with the nearest mean µ_c of its kept images (Algorithm 1):

    argmin_c ‖φ(x) − µ_c / ‖µ_c‖‖    =    argmax_c φ(x) · µ_c / ‖µ_c‖

The right side is a linear layer. So a model leaves a visit with the scaled means as its last layer,
and the trained layer travels beside it. Means are means of features of a few images: the policy
treats them like other sums (`privacy.require`). A hospital leaves out the mean of a class whose
kept images are of fewer than `sums.min-class-patients` patients: the mean of one image would be its
features.

Deviations:
 1. The loss is the mean over classes and images. Classes that never came have no part in it.
    `train.class-balance` and `train.focal-gamma` change nothing.
 2. M_old is the first model that comes to the hospital in a task; it sees images without
    `train.augment`.
 3. Each task has new classes.
 4. Kept images of the present task are chosen again at each visit.
 5. Means of classes that the hospital does not have, or leaves out, stay as they came.
 6. The authors' code herds by a running sum of the means' differences, and its means also have the
    mirrored images. Algorithms 1 and 4 do neither.
"""

import logging
import math
from collections.abc import Mapping
from functools import cached_property

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from learning.augmentation import Draws
from learning.errors import check_deadline
from learning.evaluation import split
from learning.learners.lwf import FromBefore
from learning.models.taps import last_layer
from learning.packing import check_layout
from learning.samples import Samples, concatenate
from learning.settings import ReservoirSettings
from learning.stream import earlier_samples
from strategies.protocol.records import useless_unless_valid
from strategies.protocol.settings import Settings, require
from strategies.protocol.text import amount


class ICaRL(FromBefore):
    """Binary cross-entropy with distillation; the last layer of a trained model has class means.

    Raises:
        UselessError: The layer that came with the model does not fit it.
        ParcelError: The kept network does not fit it.
        ModelError: The network does not end in a linear layer.
    """

    tables = (("reservoir", ReservoirSettings),)
    own: ReservoirSettings

    def begin_visit(self) -> None:
        """Put the trained layer back; find M_old and the kept images."""
        self.head = last_layer(self.model)
        self.means = torch.zeros_like(self.head.weight)  # [K, d]
        if memory := dict(self.received.memory):
            with useless_unless_valid():
                what = "The last layer that came with the model"
                check_layout(memory, self.head.state_dict(), what)
            self.means = self.head.weight.detach().clone()
            self.head.load_state_dict(memory)
        super().begin_visit()
        self.task_samples, labels = self.samples, self.samples.labels
        given, before = self.received.owners, self.received.rehearsal
        self.owners = torch.arange(len(labels)) if given is None else given
        self.owners = self.owners.to(labels.device)
        self.kept = earlier_samples(before, self.received.task)
        if self.kept is not None:
            self.samples = concatenate([self.samples, self.kept])
            self.kept_owners = before["owners"][before["tasks"] != self.received.task]
        self.is_absent = ~torch.isin(self.classes, self.present)

    @classmethod
    def check_suited(cls, model: nn.Module, settings: Settings) -> None:
        """Refuse a network without a known last layer, few kept images, and tasks of equal classes.

        A class that comes again would lose the images that were kept of it. Tests within a visit
        are refused, too: there a model has the trained layer, and no class means.
        """
        outputs = last_layer(model).out_features
        allowed = "classes or given with icarl, whose tasks have new classes"
        cut = settings.task_cut
        require(settings.tasks == 1 or cut in ("classes", "given"), "task-cut", cut, allowed)
        size = cls.read_settings(settings).size
        allowed = "2 or more for icarl, and at least the number of classes, whose means it needs"
        require(size >= outputs, "reservoir.size", size, allowed)
        within, allowed = settings.evaluate.epochs, "false with icarl, whose means end a visit"
        require(not within, "evaluate.epochs", within, allowed)

    def observe(self, batch: Samples, draws: Draws) -> Tensor:
        """The loss of a batch [N] of new and kept images."""
        logits = self.model(draws.view(batch.images))[:, self.classes]
        wanted = (batch.labels[:, None] == self.classes).to(logits.dtype)
        if self.old is not None:
            before = self.old(batch.images)[:, self.classes].sigmoid()
            wanted = torch.where(self.is_absent, before, wanted)
        return functional.binary_cross_entropy_with_logits(logits, wanted)

    @torch.no_grad()
    def memory(self, rng: np.random.Generator) -> Mapping[str, Tensor]:
        """The trained layer, which travels; the network's last layer becomes the class means."""
        trained = {name: each.clone() for name, each in self.head.state_dict().items()}
        self.head.weight.copy_(self._choice[2])
        if self.head.bias is not None:
            self.head.bias.zero_()
        return trained

    @cached_property
    @torch.no_grad()
    def _choice(self) -> tuple[Samples, Tensor, Tensor]:
        """The images to keep of each class, their patients, and the scaled means [K, d]."""
        means, small = self.means.clone(), 0
        count, until = self.own.size // len(self.classes), self.received.deadline
        chosen: list[Samples] = []
        owners: list[Tensor] = []
        for c in self.classes.tolist():
            fresh = c in self.present
            source = self.task_samples if fresh else self.kept
            if source is None or not len(own := source[source.labels == c]):
                continue
            features = self._features(own.images)
            rows = herd(features, count, until) if fresh else torch.arange(min(count, len(own)))
            rows = rows.to(own.labels.device)
            chosen.append(own[rows])
            owners.append((self.owners if fresh else self.kept_owners)[source.labels == c][rows])
            if len(owners[-1].unique()) >= self.received.fewest:
                means[c] = functional.normalize(features[rows].mean(dim=0), dim=0)
            else:
                small += 1
        if small:
            logging.getLogger("flwr").info(
                f"iCaRL sends no mean of {small} of {amount(len(chosen), 'class')}: the kept "
                f"images are of fewer than {self.received.fewest} patients "
                "(sums.min-class-patients)."
            )
        return concatenate(chosen), torch.cat(owners), means

    def _features(self, images: Tensor) -> Tensor:
        """φ [n, d] of images, in eval mode."""
        found: list[Tensor] = []
        self.model.eval()
        hook = self.head.register_forward_pre_hook(lambda _, inputs: found.append(inputs[0]))
        for part in split(images):
            self.model(part)
        hook.remove()
        return functional.normalize(torch.cat(found))

    def rehearsal(self) -> dict[str, Tensor]:
        """The kept images in the order of their choice, their patients, and M_old."""
        chosen, owners, _ = self._choice
        labels = chosen.labels
        tasks = self.since[(labels[:, None] == self.classes).int().argmax(dim=1)]
        tasks[torch.isin(labels, self.present)] = self.received.task
        kept = {"values": chosen.images, "labels": labels, "tasks": tasks, "owners": owners}
        return {**super().rehearsal(), **kept}


def herd(features: Tensor, count: int, deadline: float = math.inf) -> Tensor:
    """The images whose features [n, d] have a mean near that of all, int64 [count], in their order.

    Each choice brings the mean of the chosen images nearest to that of all, both scaled to a norm
    of 1: so their angle counts. None is chosen twice.

    Raises:
        DeadlineError: The deadline has passed, on the clock of `time.monotonic`.
    """
    mean, total = features.mean(dim=0), torch.zeros_like(features[0])
    left, chosen = torch.ones(len(features), dtype=torch.bool, device=features.device), []
    for _ in range(min(count, len(features))):
        check_deadline(deadline, "The choice of images")
        near = functional.cosine_similarity(total + features, mean, dim=1)
        chosen.append(int(near.masked_fill(~left, -torch.inf).argmax()))
        left[chosen[-1]], total = False, total + features[chosen[-1]]
    return torch.tensor(chosen)
