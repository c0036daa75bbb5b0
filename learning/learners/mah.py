"""MAH: outputs of future classes are trained on auxiliary classes, and a new class takes the best.

Bellitto et al., "Effects of auxiliary knowledge on continual learning", ICPR 2022; thesis, section
2.1. The first task lacks K − |C_1| classes. Their outputs get auxiliary classes, at random from a
public archive that has at least as many (Eq. 2.3). A task is trained on its images D_t and on the
images A_t of the remaining auxiliary classes:

    Σ_{(x, y) in D_t ∪ A_t} ℓ(f(x), y)  +  the replay of DER++ (derpp.py)                (Eq. 2.4)

Before a later task, each new class c gets an output that has an auxiliary class: the one with the
largest mean logit over the images of c. That auxiliary class leaves:

    l_c = 1 / N_c  Σ_{y = c} f(x),      c -> argmax l_c                                  (Eq. 2.5)

If two classes choose one output, the class with the larger mean logit gets it, and the other class
gets its next best. With `mah.outputs` = "in-order" each class has its own output: the ablation
"+ AUX" of Table 2.3.

Everywhere else output c of a network is class c. So rows of the last layer are swapped: the chosen
row goes to place c, and row c, with its auxiliary class, to the place of the chosen row. No other
output changes. The class of each output travels with the model. A hospital may have kept logits
from before a swap, or from a model with other choices. Such logits are compared where both models
mean the same class, or where the row of a new class was trained on the kept auxiliary class.

Deviations:
 1. The authors' code ranks all outputs by the number of images of a class with their largest logit
    there. A class without any gets the first free output. Here Eq. 2.5 decides.
 2. Their code applies Eq. 2.5 to augmented images, this code to plain ones; both in eval mode.
 3. With a policy each step has `images.min-batch` images of the task or more. Then an epoch leaves
    out auxiliary images that exceed `train.batch-size`, others in each epoch.
 4. Classes are those that a hospital has. Where hospitals differ, a model gets the other classes
    later, by the same rule. Its first task is the one at its first hospital.
"""

from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor, nn

from learning.augmentation import Draws
from learning.evaluation import split
from learning.learners.derpp import DERpp
from learning.models.taps import last_layer
from learning.packing import check_layout
from learning.samples import Samples, concatenate
from learning.settings import MAHSettings
from strategies.protocol.records import ParcelError, useless_unless_valid
from strategies.protocol.settings import PUBLIC, Settings, SettingsError, require, rng_for

REAL = -1  # in `auxiliary`: the output's own class has come; in `before`: it never held another


class MAH(DERpp):
    """DER++ on the images of a task and of auxiliary classes.

    Raises:
        SettingsError: The archive has too few classes.
        UselessError: The memory that travelled with the model is no assignment of outputs.
        ModelError: The network does not end in a linear layer.
    """

    tables = (*DERpp.tables, ("mah", MAHSettings))
    archive = "mah.auxiliary"

    auxiliary: Tensor  # int64 [K], the auxiliary class of each output, or REAL
    # int64 [K], the auxiliary class of each output before its own class came, or REAL
    before: Tensor

    def begin_visit(self) -> None:
        """Give new classes their outputs; add images of the remaining auxiliary classes."""
        super().begin_visit()
        self.chosen = self.settings.section("mah", MAHSettings)
        self.head = last_layer(self.model)
        unknown = torch.full((self.head.out_features,), REAL, device=self.samples.labels.device)
        classes = self.samples.labels.unique()
        public = self.received.public
        names = unknown[:0] if public is None else public.labels.unique()
        if self.received.memory:
            with useless_unless_valid():
                self._load_memory(unknown, names)
            self._assign(classes[self.auxiliary[classes] != REAL])
        else:
            self.before, free = unknown, torch.ones_like(unknown, dtype=torch.bool)
            free[classes] = False
            self.auxiliary = unknown.clone()
            self.auxiliary[free] = self._draw_classes(names, int(free.sum()))
        if public is not None and (left := self.auxiliary != REAL).any():
            # An auxiliary image counts as one of the class whose output holds it.
            matches = public.labels[:, None] == self.auxiliary.where(left, REAL - 1)  # [n, K]
            held = public[matches.any(dim=1)]
            labels = matches[matches.any(dim=1)].int().argmax(dim=1)
            if self.received.min_batch > 1:  # public images do not hide own ones
                self.counted = len(self.samples)
            self.samples = concatenate([self.samples, Samples(held.images, labels)])

    @classmethod
    def check_suited(cls, model: nn.Module, settings: Settings) -> None:
        """Refuse a network without a known last layer, and future classes without an archive.

        An optimizer's state that travels would belong to other rows after a swap.
        """
        last_layer(model)
        state = settings.train.optimizer_state
        allowed = "fresh with mah, which exchanges rows of weights"
        require(state == "fresh", "train.optimizer-state", state, allowed)
        chosen = settings.section("mah", MAHSettings).auxiliary
        given = settings.tasks > 1 and settings.task_cut in ("classes", "given")
        allowed = (
            f"{PUBLIC}<absolute npz file> if a hospital's first images may lack a class; if all "
            "have every class at once (partition iid or site), the learner derpp does the same"
        )
        complete = settings.partition in ("iid", "site") and not given
        require(bool(chosen) or complete, "mah.auxiliary", chosen, allowed)

    def _draw_classes(self, names: Tensor, count: int) -> Tensor:
        """`count` random classes of the archive, the same for all models of a run."""
        if len(names) < count:
            raise SettingsError(
                f"The setting 'mah.auxiliary' is '{self.chosen.auxiliary}', with {len(names)} "
                f"classes: it must name an archive of {count} or more, for the outputs of future "
                "classes."
            )
        order = rng_for(self.settings.seed, "auxiliary classes").permutation(len(names))
        return names[torch.from_numpy(order[:count]).to(names.device)]

    def _load_memory(self, like: Tensor, names: Tensor) -> None:
        """Load the assignment of outputs that travelled with the model."""
        memory, what = self.received.memory, "The memory of auxiliary classes"
        check_layout(memory, {"auxiliary": like, "before": like}, what)
        self.auxiliary, self.before = memory["auxiliary"].clone(), memory["before"].clone()
        held, gone = (each[each != REAL] for each in (self.auxiliary, self.before))
        if len(held.unique()) != len(held) or not torch.isin(torch.cat([held, gone]), names).all():
            raise ParcelError(
                f"{what} names a class twice, or one that the archive of 'mah.auxiliary' lacks: do "
                "all hospitals have the same archive?"
            )

    @torch.no_grad()
    def _assign(self, classes: Tensor) -> None:
        """Eq. 2.5: give each new class an output that has an auxiliary class; or its own output."""
        if not len(classes):
            return
        taken = classes
        if self.chosen.outputs == "most-activated":
            logits = torch.stack([self._mean_logits(int(each)) for each in classes])  # [new, K]
            taken = choose_outputs(logits.masked_fill(self.auxiliary == REAL, -torch.inf))
        leaving = self.auxiliary[taken]
        for c, name in zip(classes.tolist(), leaving.tolist(), strict=True):
            place = int((self.auxiliary == name).nonzero())  # an earlier swap may have moved it
            for rows in self.head.parameters():  # the other outputs do not change
                rows[[c, place]] = rows[[place, c]]
            self.auxiliary[place] = self.auxiliary[c]
            self.auxiliary[c], self.before[c] = REAL, name

    def _mean_logits(self, c: int) -> Tensor:
        """l_c [K], the mean logits over all images of a class."""
        self.model.eval()
        images = self.samples[self.samples.labels == c].images
        total: Tensor = sum(self.model(part).sum(dim=0) for part in split(images))
        return total / len(images)

    def replay_term(self, draws: Draws) -> Tensor:
        """The term of DER++; 0 for a single image, because BatchNorm cannot train on one."""
        alone = len(self.reservoir) == 1  # the others of the first batch were auxiliary
        return torch.zeros(()) if alone else super().replay_term(draws)

    def keep(self, batch: Samples, logits: Tensor, draws: Draws) -> None:
        """Offer the images of the task alone to the reservoir, with the present `auxiliary`."""
        own = self.auxiliary[batch.labels] == REAL
        self.reservoir.add(
            draws.generator,
            images=batch.images[own],
            labels=batch.labels[own],
            logits=logits[own],
            auxiliary=self.auxiliary.expand(int(own.sum()), -1),
        )

    def distance(self, outputs: Tensor, kept: Mapping[str, Tensor]) -> Tensor:
        """‖M(x') − z'‖², the mean over all outputs; an output that z' does not have counts 0."""
        targets, known = align(kept["logits"], kept["auxiliary"], self.auxiliary, self.before)
        return ((outputs - targets) * known).square().mean()

    def memory(self, rng: np.random.Generator) -> dict[str, Tensor]:
        """The present and the earlier auxiliary class of each output."""
        return {"auxiliary": self.auxiliary, "before": self.before}


def choose_outputs(logits: Tensor) -> Tensor:
    """An output for each class, int64 [n], by mean logits [n, K]: the largest goes first.

    All outputs differ. Outputs of −∞ are given only if there are no others.
    """
    left, taken = logits.clone(), torch.zeros(len(logits), dtype=torch.int64, device=logits.device)
    for _ in range(len(logits)):
        row, output = divmod(int(left.argmax()), left.shape[1])
        taken[row] = output
        left[row], left[:, output] = -torch.inf, -torch.inf
    return taken


def align(logits: Tensor, then: Tensor, now: Tensor, before: Tensor) -> tuple[Tensor, Tensor]:
    """Kept logits in the order of the present outputs.

    Args:
        logits: [m, K].
        then: `MAH.auxiliary` when each row was kept, int64 [m, K].
        now: `MAH.auxiliary` at present, int64 [K].
        before: `MAH.before` at present, int64 [K].

    Returns:
        The logits, and whether they are known, each [m, K]; unknown ones are 0.
    """
    real = (then == REAL) & (now == REAL)  # [m, K]: the class had come, so both are the same one
    names = torch.where(now == REAL, before, now)  # the auxiliary class behind each present row
    same = (then[:, :, None] == names) & (then != REAL)[:, :, None]  # [m, K then, K now]
    same = torch.where(real[:, None, :], torch.diag_embed(real), same)
    return torch.einsum("mi,mik->mk", logits, same.to(logits.dtype)), same.any(dim=1)
