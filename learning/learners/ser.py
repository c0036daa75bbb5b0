"""SER: a saliency network modulates the classifier.

Bellitto et al., "Selective attention-based modulation for continual learning", arXiv:2403.20086;
thesis, section 2.3 (saliency-driven experience replay). An oracle gives the saliency s of each
batch (x, y) of the stream. The saliency network S makes a step of SGD of its own to minimise

    L_s = KL(s ‖ S(x)) = Σ_i s_i log(ε + s_i / (S_i(x) + ε))                             (Eq. 2.20)

The classifier f multiplies its features by the features of S for x, from before that step
(learning/models/saliency.py). f minimises

    ℓ(f(x), y) + the replay of DER++ (derpp.py)

without any gradient in S. Both maps are scaled to a sum of 1. For kept images S is in eval mode,
and L_s is not minimised on them.

The oracle is a file of maps (`ser.oracle`), such as those of DeepGaze IIE in the paper. The other
choice, `contrast`, is a hand-made stand-in; it is no model of attention.

Deviations:
 1. ε is inside the ratio too, as in the authors' code; in Eq. 2.20 it is added to the ratio alone.
 2. `train.augment` changes images and their maps alike; the authors change none.
 3. The momentum of S begins anew at every visit.
 4. S is not pretrained, unless `pretrained` names an exported network with a pretrained S.
"""

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from learning.augmentation import Draws
from learning.errors import ModelError
from learning.learners.derpp import DERpp
from learning.models.saliency import SaliencyNetwork
from learning.samples import Samples
from learning.settings import CONTRAST, SERSettings
from strategies.protocol.archive import load
from strategies.protocol.settings import Settings, SettingsError

EPSILON = float(np.finfo(np.float64).eps)
MOMENTUM, DECAY = 0.9, 1e-4
# The encoder's learning rate and decay, as shares of the decoder's, from the authors' code.
ENCODER_RATE, ENCODER_DECAY = 0.1, 0.1

Oracle = Callable[[Tensor], Tensor]  # images uint8 [N, C, H, W] -> maps [N, H, W]


class SER(DERpp):
    """The saliency loss, and DER++ of the classifier that the saliency network modulates.

    Raises:
        ModelError: The network has no saliency network.
        SettingsError: The oracle's file cannot be used, or lacks images of the hospital.
    """

    tables = (*DERpp.tables, ("ser", SERSettings))

    def begin_visit(self) -> None:
        """Load the reservoir; get the oracle and the saliency network's optimizer."""
        super().begin_visit()
        self.network = modulate(self.model)
        chosen = self.settings.section("ser", SERSettings)
        self.oracle = (
            contrast if chosen.oracle == CONTRAST else read_maps(chosen.oracle, self.samples)
        )
        rate = chosen.learning_rate
        encoder: dict[str, Any] = {
            "params": list(self.network.encoder.parameters()),
            "lr": rate * ENCODER_RATE,
            "weight_decay": DECAY * ENCODER_DECAY,
        }
        decoder: dict[str, Any] = {"params": list(self.network.decoder.parameters())}
        self.saliency = torch.optim.SGD(
            [decoder, encoder], lr=rate, momentum=MOMENTUM, weight_decay=DECAY
        )

    @classmethod
    def check_suited(cls, model: nn.Module, settings: Settings) -> None:
        """Refuse a network without a saliency network."""
        modulate(model)

    def trained_parameters(self) -> Iterable[nn.Parameter]:
        """The classifier; the saliency network has an optimizer of its own."""
        return self.network.classifier.parameters()

    def observe(self, batch: Samples, draws: Draws) -> Tensor:
        """A step of the saliency network; then the classifier's loss of the batch [N]."""
        images, maps = draws.view_alike(batch.images, self.oracle(batch.images))
        seen, features = self.network.look(images)
        self.saliency.zero_grad()
        divergence(maps, seen).backward()
        self.saliency.step()
        return self.replay_loss(batch, self.network.classify(images, features), draws)

    def replay_term(self, draws: Draws) -> Tensor:
        """The term of DER++, with the encoder in eval mode."""
        self.network.encoder.eval()
        loss = super().replay_term(draws)
        self.network.encoder.train()
        return loss


def modulate(model: nn.Module) -> SaliencyNetwork:
    """The network, as one with a saliency network.

    Raises:
        ModelError: The network has none.
    """
    if not isinstance(model, SaliencyNetwork):
        raise ModelError(
            "The network has no saliency network: set 'model' to ser-cnn or ser-resnet18."
        )
    return model


def divergence(wanted: Tensor, seen: Tensor) -> Tensor:
    """The divergence of Eq. 2.20, the mean over maps [N, H, W], each scaled to a sum of 1."""
    s, p = (maps / maps.sum(dim=(1, 2), keepdim=True) for maps in (wanted, seen))
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
    prior = torch.ones((), device=grey.device)
    for dim, side in ((2, grey.shape[2]), (3, grey.shape[3])):
        places = (torch.arange(side, device=grey.device) + 0.5) / side - 0.5
        shape = [1, 1, 1, 1]
        shape[dim] = side
        prior = prior * (-(places**2) / (2 * 0.25**2)).exp().view(shape)
    maps = _blur((local + 1e-3) * prior, around)[:, 0]  # a constant image gets the prior
    return maps / maps.sum(dim=(1, 2), keepdim=True)


def _blur(maps: Tensor, around: int) -> Tensor:
    """The mean over the pixels of the image that are at most `around` away."""
    return functional.avg_pool2d(
        maps, 2 * around + 1, stride=1, padding=around, count_include_pad=False
    )


def read_maps(path: str, samples: Samples) -> Oracle:
    """The oracle from a file: `images` uint8 [n, C, H, W] and `maps` [n, H, W], 0 or more.

    An image is found by its bytes.

    Raises:
        SettingsError: The file has no such arrays, or lacks some of the samples.
    """
    wrong = f"The setting 'ser.oracle' is '{path}'; it must be {CONTRAST}, or an npz file with "
    try:
        archive = load(Path(path))
        images, maps = archive["images"], torch.from_numpy(archive["maps"]).float()
    except (OSError, ValueError, LookupError, TypeError) as error:
        raise SettingsError(f"{wrong}the arrays images and maps.") from error
    shape = (len(images), *samples.shape[1:])
    usable = maps.shape == shape and bool((maps >= 0).all() and (maps.sum(dim=(1, 2)) > 0).all())
    if not usable or not torch.isfinite(maps).all():
        raise SettingsError(f"{wrong}maps {list(shape)}, of 0 or more, for the images in it.")
    rows = {image.tobytes(): row for row, image in enumerate(images)}
    if any(image.numpy().tobytes() not in rows for image in samples.images.cpu()):
        raise SettingsError(
            f"{wrong}all of the hospital's training images, of the size and channels that networks "
            "are given (image-size, image-channels); it lacks some."
        )

    def oracle(images: Tensor) -> Tensor:
        found = [rows[image.tobytes()] for image in images.cpu().numpy()]
        return maps[found].to(images.device)

    return oracle
