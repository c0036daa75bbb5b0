"""SER: a saliency network modulates the classifier of any learner.

Bellitto et al., "Selective attention-based modulation for continual learning", arXiv:2403.20086;
thesis, section 2.3 (saliency-driven experience replay). An oracle gives the saliency s of each
batch (x, y) of the stream. The saliency network S makes a step of SGD of its own to minimise

    L_s = KL(s ‖ S(x)) = Σ_i s_i log(ε + s_i / (S_i(x) + ε))                             (Eq. 2.20)

The classifier f multiplies its features by the features of S for x, from before that step
(learning/models/saliency.py). f minimises the loss of another learner, `ser.learner`, without any
gradient in S. Both maps are scaled to a sum of 1. For kept images S is in eval mode, and L_s is not
minimised on them.

S is trained before on other images, without labels, by the learner `saliency`: it minimises L_s
alone. `pretrained` then names its exported model (learning/models/pretrained.py).

The oracle is a file of maps (`ser.oracle`), such as those of DeepGaze IIE in the paper. The other
choice, `contrast`, is a hand-made stand-in; it is no model of attention.

Deviations:
 1. ε is inside the ratio too, as in the authors' code; in Eq. 2.20 it is added to the ratio alone.
 2. `train.augment` changes images and their maps alike; the authors change none.
 3. The momentum of S begins anew at every visit.
 4. S is not trained before, unless `pretrained` names an exported saliency network.
 5. With TwF the paper leaves out the teacher and the gates. This is `derpp` with `derpp.one-pass`.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

from learning.augmentation import Draws
from learning.learners.agem import AGEM
from learning.learners.derpp import DER, DERpp
from learning.learners.er import ER
from learning.learners.er_ace import ERACE
from learning.learners.fdr import FDR
from learning.learners.lwf import LwF
from learning.learners.naive_rehearsal import NaiveRehearsal
from learning.learners.oewc import OnlineEWC
from learning.learners.plain import Learner, Plain
from learning.models.saliency import SaliencyNetwork
from learning.samples import Samples
from learning.settings import CONTRAST, ReservoirSettings, SERSettings
from strategies.protocol.settings import Settings, SettingsError

EPSILON = float(np.finfo(np.float64).eps)
MOMENTUM, DECAY = 0.9, 1e-4
# The encoder's learning rate and decay, as shares of the decoder's, from the authors' code.
ENCODER_RATE, ENCODER_DECAY = 0.1, 0.1

Oracle = Callable[[Tensor], Tensor]  # images uint8 [N, C, H, W] -> maps [N, H, W]


# The learners that SER can wrap: those whose models carry nothing beside their weights.
WRAPPED: dict[str, type[Learner]] = {
    "": Plain,
    "agem": AGEM,
    "der": DER,
    "derpp": DERpp,
    "er": ER,
    "er-ace": ERACE,
    "fdr": FDR,
    "lwf": LwF,
    "oewc": OnlineEWC,
    "rehearsal": NaiveRehearsal,
}


class _SaliencyLearner(Learner):
    """A learner of a saliency network, with an oracle."""

    tables: tuple[tuple[str, type], ...] = (("ser", SERSettings),)
    own: SERSettings
    needs = (
        SaliencyNetwork,
        "The network has no saliency network: set 'model' to ser-cnn or ser-resnet18.",
    )
    model: SaliencyNetwork

    def begin_visit(self) -> None:
        """Open the oracle."""
        self.oracle = open_oracle(self.own.oracle, self.samples.shape)


class SER(_SaliencyLearner):
    """The saliency loss, and another learner of the classifier that the saliency network modulates.

    Raises:
        SettingsError: The oracle's file cannot be used, or lacks images of the hospital.
    """

    tables = (*_SaliencyLearner.tables, ("reservoir", ReservoirSettings))

    def begin_visit(self) -> None:
        """Begin the wrapped learner's visit; get the oracle, and an optimizer for saliency."""
        wrapped = WRAPPED[self.own.learner]
        self.wrapped = wrapped(self.model, self.samples, self.settings, self.received)
        self.warm_up = self.wrapped.warm_up
        super().begin_visit()
        rate = self.own.learning_rate
        slower: dict[str, Any] = {"lr": rate * ENCODER_RATE, "weight_decay": DECAY * ENCODER_DECAY}
        self.saliency = torch.optim.SGD(
            [
                {"params": [*self.model.decoder.parameters()]},
                {"params": [*self.model.encoder.parameters()], **slower},
            ],
            lr=rate,
            momentum=MOMENTUM,
            weight_decay=DECAY,
        )

    @classmethod
    def memory_of_a_visit(cls, settings: Settings, images: int) -> tuple[int, int, int]:
        """As for the wrapped learner."""
        return WRAPPED[cls.read_settings(settings).learner].memory_of_a_visit(settings, images)

    @classmethod
    def read_settings(cls, settings: Settings) -> Any:
        """The settings of SER; those of the wrapped learner are read, too."""
        own = super().read_settings(settings)
        WRAPPED[own.learner].read_settings(settings)
        return own

    @classmethod
    def check_suited(cls, model: nn.Module, settings: Settings) -> None:
        """Refuse a network without a saliency network, or one that the wrapped learner refuses."""
        super().check_suited(model, settings)
        WRAPPED[cls.read_settings(settings).learner].check_suited(model, settings)

    def begin_epoch(self, epoch: int) -> None:
        """Set the mode that the wrapped learner wants."""
        self.wrapped.begin_epoch(epoch)

    def trained_parameters(self) -> Iterable[nn.Parameter]:
        """The classifier; the saliency network has an optimizer of its own."""
        return self.model.classifier_parameters()

    def observe(self, batch: Samples, draws: Draws) -> Tensor:
        """A step of the saliency network; then the wrapped learner's loss of the batch [N]."""
        known: list[Tensor] = []
        if self.model.training:  # not in a warm-up
            state = draws.generator.get_state()
            images, maps = draws.view_alike(batch.images, self.oracle(batch.images))
            seen, features = self.model.look(images)
            known = [*features, seen]
            self.saliency.zero_grad()
            divergence(maps, seen).backward()
            self.saliency.step()
            draws.generator.set_state(state)  # the wrapped learner has the same view
        with self.model.remember(known):
            return self.wrapped.observe(batch, draws)

    def before_step(self) -> None:
        """The wrapped learner's work before a step."""
        with self.model.remember([]):
            self.wrapped.before_step()

    def after_step(self) -> None:
        """The wrapped learner's work after a step."""
        self.wrapped.after_step()

    def rehearsal(self) -> Mapping[str, Tensor]:
        """The memory that the wrapped learner keeps."""
        return self.wrapped.rehearsal()


class Saliency(_SaliencyLearner):
    """The saliency loss alone, without labels: it trains a saliency network for `pretrained`.

    The classifier does not change. The optimizer is that of `train`.
    """

    def trained_parameters(self) -> Iterable[nn.Parameter]:
        """Encoder and decoder."""
        return [*self.model.encoder.parameters(), *self.model.decoder.parameters()]

    def observe(self, batch: Samples, draws: Draws) -> Tensor:
        """L_s of a batch [N]."""
        images, maps = draws.view_alike(batch.images, self.oracle(batch.images))
        return divergence(maps, self.model.look(images)[0])


def divergence(wanted: Tensor, seen: Tensor) -> Tensor:
    """The divergence of Eq. 2.20, the mean over maps [N, H, W], each scaled to a sum of 1.

    A wanted map of zeros, of which `train.augment` has left nothing, counts 0.
    """
    least = torch.finfo(torch.float32).tiny
    s, p = (maps / maps.sum(dim=(1, 2), keepdim=True).clamp(min=least) for maps in (wanted, seen))
    return (s * (EPSILON + s / (p + EPSILON)).log()).sum(dim=(1, 2)).mean()


def contrast(images: Tensor) -> Tensor:
    """A stand-in for a saliency oracle: local contrast times a centre prior, blurred.

    Contrast is the difference between a pixel's brightness and the mean around it, within an eighth
    of the image. The prior is a Gaussian with a deviation of a quarter of each side. Images are
    uint8 [N, C, H, W]; maps are float32 [N, H, W], with a sum of 1 each.
    """
    grey = images.float().mean(dim=1, keepdim=True) / 255  # [N, 1, H, W]
    around = max(min(grey.shape[2:]) // 8, 1)
    local = (grey - _blur(grey, around)).abs()
    sides = [torch.arange(side, device=grey.device) for side in grey.shape[2:]]
    places = [(each + 0.5) / len(each) - 0.5 for each in sides]
    down, across = ((-(each**2) / (2 * 0.25**2)).exp() for each in places)
    # A constant image gets the prior.
    maps = _blur((local + 1e-3) * torch.outer(down, across), around)[:, 0]
    return maps / maps.sum(dim=(1, 2), keepdim=True)


def _blur(maps: Tensor, around: int) -> Tensor:
    """The mean over the pixels of the image that are at most `around` away."""
    return functional.avg_pool2d(
        maps, 2 * around + 1, stride=1, padding=around, count_include_pad=False
    )


def open_oracle(path: str, shape: Sequence[int]) -> Oracle:
    """The oracle of a setting `ser.oracle`: the stand-in, or a file of `write_maps`.

    `shape` is (C, H, W) of an image. Only the maps of a batch are in memory.

    Raises:
        SettingsError: The file has no such records. Or it lacks an image: a batch finds this out.
    """
    if path == CONTRAST:
        return contrast
    wrong = f"The setting 'ser.oracle' is '{path}'; it must be {CONTRAST}, or an npy file with "
    size = list(shape[1:])
    try:
        records = np.lib.format.open_memmap(path, "r")  # refuses objects
        maps, keys = records["map"], map(bytes, np.array(records["image"]))
    except (OSError, ValueError, LookupError, TypeError) as error:
        raise SettingsError(f"{wrong}records of 'image' and 'map'.") from error
    if list(maps.shape[1:]) != size or maps.dtype.kind != "f":
        raise SettingsError(f"{wrong}maps {size}, the size of the images.")
    rows = {key: row for row, key in enumerate(keys)}

    def oracle(images: Tensor) -> Tensor:
        names = [_name(image) for image in images.cpu().numpy()]
        if not rows.keys() >= {*names}:
            raise SettingsError(
                f"{wrong}all of the hospital's training images, of the size and channels that "
                "networks are given (image-size, image-channels); it lacks some."
            )
        found = torch.from_numpy(np.array(maps[[rows[name] for name in names]])).float()
        usable = (found >= 0).all() and (found.sum(dim=(1, 2)) > 0).all()
        if not usable or not found.isfinite().all():
            raise SettingsError(f"{wrong}maps of numbers of 0 or more, with a sum above 0.")
        return found.to(images.device)

    return oracle


def write_maps(path: Path, images: NDArray[np.uint8], maps: NDArray[np.floating]) -> None:
    """Write an oracle's maps [n, H, W] of images [n, C, H, W], as the networks are given them.

    The file has a record for each image: the SHA-256 of its bytes, and its map in float32.
    """
    layout = np.dtype([("image", np.uint8, 32), ("map", np.float32, maps.shape[1:])])
    records = np.lib.format.open_memmap(path, "w+", layout, (len(maps),))
    for record, image, each in zip(records, images, maps, strict=True):
        record["image"], record["map"] = np.frombuffer(_name(image), np.uint8), each


def _name(image: NDArray[np.uint8]) -> bytes:
    return sha256(image.tobytes()).digest()
