"""The checks of a training: the mean losses, the Fréchet distance, a picture."""

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from gan.adversaries import Adversaries
from gan.presets import Preset
from gan.schedule import Check, Standing
from gan.synthesis import balanced_labels, render, render_parts, save_grid

SHOWN, SHOWN_PIXELS = 160, 2**20  # most images, and pixels, in a picture of the progress
COLUMNS = 16  # images in its row


@dataclass(frozen=True, eq=False)
class Checks:
    """Checks with the same latents, noise and classes every time."""

    labels: Tensor  # labels of the real images, int64 [N], on the CPU
    preset: Preset  # sizes and schedules
    # Distance of uint8 images, in parts [n, C, R, R], from the real ones
    frechet: Callable[[Iterable[Tensor]], float]
    seed: int  # seed of latents and noise

    def measure(self, networks: Adversaries, standing: Standing) -> Check:
        """Measure the standing of the training, and start new sums of losses.

        Raises:
            FloatingPointError: A loss or the Fréchet distance is not finite.
        """
        before = standing.progress[-1] if standing.progress else None
        begun = before.iteration if before and before.phase == standing.phase else 0
        steps = standing.iteration - begun
        d_mean, g_mean, apart = (networks.sums / steps).tolist()
        networks.sums.zero_()
        score = math.nan
        if math.isfinite(d_mean + g_mean + apart):
            # Classes have their shares of the real images, to the nearest image.
            count = self.preset.fid_images
            spread = torch.arange(count) * len(self.labels) // count
            judged = self.labels.sort().values[spread]
            score = self.frechet(render_parts(partial(render, networks.average), judged, self.seed))
        if not math.isfinite(score):
            raise FloatingPointError(
                f"The GAN failed in phase {standing.phase} before iteration {standing.iteration}: "
                f"losses {d_mean:.3g} and {g_mean:.3g}, privacy distance {apart:.3g}, Fréchet "
                f"distance {score:.3g}. Lower the learning rate or raise r1_gamma."
            )
        return Check(
            phase=standing.phase,
            iteration=standing.iteration,
            iterations_per_second=steps / (standing.seconds - (before.seconds if before else 0.0)),
            frechet=score,
            ada_p=networks.ada.p,
            privacy_distance=apart if standing.private else None,
            discriminator_loss=d_mean,
            generator_loss=g_mean,
            seconds=standing.seconds,
        )

    def draw(self, networks: Adversaries, path: Path) -> None:
        """Write a picture of images of all classes."""
        count = min(SHOWN, SHOWN_PIXELS // self.preset.resolution**2)
        images = render(networks.average, balanced_labels(count, self.labels), self.seed)
        save_grid(path, images, COLUMNS)
