"""TwF: for each task, gates choose the features of a teacher that a network keeps.

Boschini et al., "Transfer without forgetting", ECCV 2022, arXiv:2206.00388; thesis, section 2.2.
The teacher ĥ was trained before and is frozen; the student starts with its weights. With a batch of
the stream and a draw from a reservoir, a step minimises over the student and gates M

    ℓ(f(x), y)  +  α ‖f(x') − z'‖² + β ℓ(f(x'), y')                                 (Eq. 2.13, 2.15)
    + λ { 1/L Σ_l ‖M(ĥ_l; t) ⊙ (h_l − ReLU_m(ĥ_l))‖²          x and x', t the task of each image
        + λ_m 1/L Σ_l BCE(M(ĥ_l; t'), m_l')                   x' of earlier tasks         (Eq. 2.14)
        + λ_d 1/L Σ_l L_AUX }                                 x, and x' of this task      (Eq. 2.12)

With `twf.ewc` above 0 a step also minimises λ_EwC Σ_i F_i (θ_i − θ_i^t)² over the weights θ of the
student without its last layer (Eq. 2.17; in Fig. 2.5 with λ = 0). θ^t are the teacher's, and F is
the diagonal of the Fisher information on the teacher's images (learning/learners/importance.py).
Without a reservoir (`reservoir.size` = 0) the terms with x' are left out, as in Table 2.9.

The points l are before non-linearities (learning/models/taps.py); gates, distance and diversity are
in learning/models/gates.py. The reservoir holds images, labels y', logits z', tasks t', and the
masks m'. A mask is M without noise, at half the size if a map has 16 or more values a side.

The gates travel with the model. Teacher and reservoir stay at the hospital.

Deviations:
 1. λ weighs the three terms of gates, as in the authors' code; the equations have no λ there.
 2. All outputs count in ℓ(f(x), y), as in the equation. With `twf.masked` those of the task alone
    count, as in the authors' code.
 3. Their code does not scale the vectors of L_AUX; here they have a norm of 1, as in the equation.
    L_AUX is the mean over images, as in the code.
 4. Masks are computed at the end of each visit, for all kept images of its task. Nothing reads them
    before: they are replayed from the next task on. In the code some images get masks of others.
 5. Without `twf.teacher` the teacher is the network as it first comes to the hospital. It has the
    weights of `pretrained`, if the hospital is the first that trains it.
"""

import copy
from collections.abc import Iterable, Mapping
from itertools import chain

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from learning.augmentation import Draws
from learning.errors import DivergedError, ModelError
from learning.evaluation import batch_size
from learning.learners.importance import fisher_information
from learning.learners.plain import Learner, Plain, Received
from learning.models import Architecture
from learning.models.gates import Gates, distance, diversity, sample_gates
from learning.models.taps import last_layer, last_name, points, tap
from learning.packing import check_layout, part
from learning.randomness import use_seed
from learning.reservoir import Reservoir
from learning.samples import Samples
from learning.settings import ReservoirSettings, TwFSettings
from learning.stream import restrict
from strategies.protocol.records import useless_unless_valid
from strategies.protocol.settings import PUBLIC, Settings, require, rng_for

HALVED = 16  # maps with at least so many values a side are kept at half their size


class TwF(Learner):
    """Cross-entropy, replay, and features of a teacher where gates are open.

    Attributes:
        teacher: Frozen, in eval mode.
        gates: One `Gates` for each point.
        reservoir: Rows of `images` uint8 [m, C, H, W], `labels` and `tasks` int64 [m], `logits`
            [m, K], and for each point `mask-<l>` bool [m, C_l, h_l, w_l].

    Raises:
        ModelError: The network has no points, or the teacher's file does not fit it.
        UselessError: The memory that travelled with the model does not fit the gates.
        ParcelError: The kept teacher has another architecture.
    """

    tables = (("twf", TwFSettings), ("reservoir", ReservoirSettings))
    archive = "twf.teacher"
    copies = 2
    own: TwFSettings

    def begin_visit(self) -> None:
        """Load teacher, gates and reservoir, or create them."""
        kept = self.received.rehearsal
        self.fisher, state = part(kept, "fisher."), part(kept, "teacher.")
        kept = {k: each for k, each in kept.items() if not k.startswith(("fisher.", "teacher."))}
        self.present = self.samples.labels.unique()
        self.teacher = self._teacher(state)
        if not self.received.memory:
            _fit(self.model, self.teacher.state_dict())
        chosen = self.settings.section("reservoir", ReservoirSettings)
        self.reservoir = Reservoir(chosen, kept)
        self.task = max(self.received.task - 1, 0)
        shapes = [each.shape for each in self._teacher_features(self.samples.pixels[:1])]
        with use_seed(rng_for(self.settings.seed, "gates")):
            count = self.settings.tasks
            self.gates = nn.ModuleList(Gates(shape[1], count) for shape in shapes)
        self.gates.to(self.samples.labels.device)
        if memory := dict(self.received.memory):
            with useless_unless_valid():
                check_layout(memory, self.gates.state_dict(), "The memory of gates")
            self.gates.load_state_dict(memory)

    @classmethod
    def check_suited(cls, model: nn.Module, settings: Settings) -> None:
        """Refuse a network without points, or without a known last layer."""
        points(model)
        last_layer(model)
        own = cls.read_settings(settings)
        given = not own.ewc or own.teacher.startswith(PUBLIC)
        require(given, "twf.ewc", own.ewc, f"0, if 'twf.teacher' is not a {PUBLIC}<file>")

    @classmethod
    def bytes_beside(cls, architecture: Architecture, settings: Settings, kept: int) -> int:
        """The masks, a byte for each value; and the gates, with gradients and Adam's moments."""
        with torch.device("meta"):
            images = torch.empty((2, *architecture.image_shape), dtype=torch.uint8)
            _, features = tap(architecture.skeleton(), images)
            gates = nn.ModuleList(Gates(each.shape[1], settings.tasks) for each in features)
        masks = sum(halve(each).numel() for each in features) // 2
        return kept * masks + 4 * sum(each.nbytes for each in gates.parameters())

    def _teacher(self, state: dict[str, Tensor]) -> nn.Module:
        """The kept teacher; otherwise the setting's teacher, or the network as it is now."""
        teacher = copy.deepcopy(self.model)
        if state:
            check_layout(state, teacher.state_dict(), "The teacher that the hospital has kept")
            teacher.load_state_dict(state)
        elif self.received.public is not None:
            self._train(teacher, self.received.public)
        elif self.own.teacher:
            from learning.models.pretrained import weights_in  # imports torchvision

            if missing := _fit(teacher, weights_in(self.own.teacher, "twf.teacher")):
                raise ModelError(
                    f"The teacher '{self.own.teacher}' of the setting 'twf.teacher' is another "
                    f"network than 'model': it has no '{missing[0]}' of the same shape."
                )
        teacher.requires_grad_(False)
        return teacher.eval()

    def _train(self, teacher: nn.Module, public: Samples) -> None:
        """Train a teacher from random weights on a public archive, with a head for its classes."""
        from learning.training import train  # imports this module's package

        head = last_layer(teacher)
        classes, labels = public.labels.unique(return_inverse=True)
        rng = rng_for(self.settings.seed, "teacher")
        with use_seed(rng):
            for module in teacher.modules():
                getattr(module, "reset_parameters", lambda: None)()
            other = nn.Linear(head.in_features, len(classes)).to(labels.device)
        own = head.weight, head.bias
        head.weight, head.bias = other.weight, other.bias
        learner = Plain(teacher, Samples(public.images, labels), self.settings, Received())
        train(learner, self.settings.train, self.own.teacher_epochs, rng, self.received.deadline)
        if not all(each.isfinite().all() for each in teacher.parameters()):
            raise DivergedError("The training of the teacher diverged. Lower train.learning-rate.")
        if self.own.ewc:
            information = fisher_information(teacher, learner.samples, rng)
            named = zip(dict(teacher.named_parameters()), information, strict=True)
            last = f"{last_name(teacher)}."
            self.fisher = {k: each for k, each in named if not k.startswith(last)}
        head.weight, head.bias = own

    @torch.no_grad()
    def _teacher_features(self, images: Tensor) -> list[Tensor]:
        """The features ĥ at each point."""
        return tap(self.teacher, images)[1]

    def begin_epoch(self, epoch: int) -> None:
        """Put the network and the gates into training mode."""
        super().begin_epoch(epoch)
        self.gates.train()

    def trained_parameters(self) -> Iterable[nn.Parameter]:
        """The student and the gates."""
        return chain(self.model.parameters(), self.gates.parameters())

    def observe(self, batch: Samples, draws: Draws) -> Tensor:
        """The loss of Eq. 2.15, in one pass over a batch [N] and a draw of kept images."""
        kept = self.reservoir.draw(draws.generator) if len(self.reservoir) else {}
        images, masks = draws.view(batch.images), []
        tasks = torch.full_like(batch.labels, self.task)
        if kept:
            names = [f"mask-{point}" for point in range(len(self.gates))]
            view, *masks = draws.view_alike(kept["images"], *(kept[name] for name in names))
            images, tasks = torch.cat([images, view]), torch.cat([tasks, kept["tasks"]])
        logits, features = tap(self.model, images)
        new = logits[: len(batch)]
        allowed = restrict(self.present, new) if self.own.masked else new
        loss = self.cross_entropy(allowed, batch.labels)
        if kept:
            outputs = logits[len(batch) :]
            loss = loss + self.own.alpha * functional.mse_loss(outputs, kept["logits"])
            loss = loss + self.own.beta * functional.cross_entropy(outputs, kept["labels"])
        loss = loss + self.own.propagation * self.gate_loss(images, features, tasks, masks, draws)
        self.keep(batch, new.detach(), features, draws)
        return loss

    @torch.no_grad()
    def before_step(self) -> None:
        """Add 2 λ_EwC F (θ − θ^t), the gradient of Eq. 2.17."""
        for name, fisher in self.fisher.items():
            weight = self.model.get_parameter(name)
            if weight.grad is not None:
                drift = weight - self.teacher.get_parameter(name)
                weight.grad.addcmul_(fisher, drift, value=2 * self.own.ewc)

    def gate_loss(
        self,
        images: Tensor,
        features: list[Tensor],
        tasks: Tensor,
        masks: list[Tensor],
        draws: Draws,
    ) -> Tensor:
        """The terms of gates, from images [N + m, ...], student's features, masks of the last m."""
        total = torch.zeros((), device=tasks.device)
        earlier = tasks != self.task
        for point, taught in enumerate(self._teacher_features(images)):
            logits = self.gates[point](taught, tasks)
            gates = sample_gates(logits, draws.generator)
            total = total + distance(features[point], taught, gates)
            total = total + self.own.diversity * diversity(gates[~earlier])
            if earlier.any():
                before = masks[point][earlier[-len(masks[point]) :]].float()
                wanted = functional.interpolate(before, taught.shape[2:])
                entropy = functional.binary_cross_entropy_with_logits(logits[earlier], wanted)
                total = total + self.own.mask_replay * entropy
        return total / len(self.gates)

    def keep(self, batch: Samples, logits: Tensor, features: list[Tensor], draws: Draws) -> None:
        """Offer a batch [N] to the reservoir; its masks are closed until the visit ends."""
        count = len(batch)
        masks = {
            f"mask-{point}": torch.zeros(
                (count, *halve(each[:1]).shape[1:]), dtype=torch.bool, device=each.device
            )
            for point, each in enumerate(features)
        }
        self.reservoir.add(
            draws.generator,
            images=batch.images,
            labels=batch.labels,
            logits=logits,
            tasks=torch.full_like(batch.labels, self.task),
            **masks,
        )

    def memory(self, rng: np.random.Generator) -> dict[str, Tensor]:
        """The gates' parameters, and the statistics of their normalisation."""
        return dict(self.gates.state_dict())

    @torch.no_grad()
    def rehearsal(self) -> dict[str, Tensor]:
        """The teacher with F, and the reservoir with new masks for the present task's images."""
        if fields := self.reservoir.fields:
            self.gates.eval()
            present = (fields["tasks"] == self.task).nonzero()[:, 0]
            for rows in present.split(batch_size(fields["images"][0].numel())):
                if not len(rows):  # the reservoir has no image of the task
                    continue
                taught = self._teacher_features(fields["images"][rows])
                for point, each in enumerate(taught):
                    logits = self.gates[point](each, fields["tasks"][rows])
                    fields[f"mask-{point}"][rows] = halve((logits > 0).float()).bool()
        teacher = {f"teacher.{name}": each for name, each in self.teacher.state_dict().items()}
        fisher = {f"fisher.{name}": each for name, each in self.fisher.items()}
        return {**teacher, **fisher, **self.reservoir.state()}


def halve(maps: Tensor) -> Tensor:
    """Maps [N, C, H, W] at half their size, if they have `HALVED` values a side or more."""
    height, width = maps.shape[2:]
    return maps if height < HALVED else functional.interpolate(maps, (height // 2, width // 2))


def _fit(network: nn.Module, weights: Mapping[str, Tensor]) -> list[str]:
    """Load weights into a network, except its last layer, which is for other classes.

    Returns:
        The names of entries that are missing or have another shape; these do not change.
    """
    head = f"{last_name(network)}."
    own = {k: each for k, each in network.state_dict().items() if not k.startswith(head)}
    condition = {k: weights[k] for k in own if k in weights and weights[k].shape == own[k].shape}
    network.load_state_dict(condition, strict=False)
    return [name for name in own if name not in condition]
