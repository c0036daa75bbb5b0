"""The checks of a training: the mean losses, the Fréchet distance, a picture.

Shapes: `N` images.
"""

import math
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from gan.networks import Generator
from gan.presets import Preset
from gan.synthesis import balanced_labels, render, save_grid

SHOWN, SHOWN_PIXELS = 160, 2**20  # most images, and pixels, in a picture of the progress


@dataclass(frozen=True)
class Progress:
    """How a training stands at one of its checks.

    Attributes:
        phase: 1 without, 2 with the privacy term.
        iteration: Steps of this phase.
        iterations_per_second: Since the last check, with the time that checks take.
        frechet: Distance of the averaged generator's images from the real ones.
        ada_p: Probability of augmentation.
        privacy_distance: Mean distance of synthetic from real images; None in phase 1.
        discriminator_loss: Mean since the last check.
        generator_loss: Mean since the last check, without the privacy term.
        seconds: Since the training began, without the time between a kill and going on.
    """

    phase: int
    iteration: int
    iterations_per_second: float
    frechet: float
    ada_p: float
    privacy_distance: float | None
    discriminator_loss: float
    generator_loss: float
    seconds: float


class Checks:
    """Adds up losses from check to check, and keeps the progress.

    Attributes:
        progress: Of all checks so far.
    """

    def __init__(
        self,
        labels: Tensor,
        preset: Preset,
        frechet: Callable[[Tensor], float],
        seed: int,
        device: torch.device,
    ) -> None:
        """Choose the classes of the images that every check looks at.

        Args:
            labels: Of the real images, int64 [N].
            preset: Gives the number of images.
            frechet: Distance of uint8 images [n, C, R, R] from the real ones.
            seed: Decides on the latents and the noise of these images.
            device: Where the losses are.
        """
        self.frechet, self.seed = frechet, seed
        labels = labels.cpu()
        # As many images of each class as its share of the real ones, to the nearest image.
        spread = torch.arange(preset.fid_images) * len(labels) // preset.fid_images
        self.judged = labels.sort().values[spread]
        self.shown = balanced_labels(min(SHOWN, SHOWN_PIXELS // preset.resolution**2), labels)
        self.progress: list[Progress] = []
        self.sums = torch.zeros(3, device=device)  # of what `add` gets
        self.steps = 0  # that are in the sums
        self.began = time.monotonic()

    def add(self, losses: Tensor) -> None:
        """Add what `Adversaries.step` returns, [3]."""
        self.sums += losses
        self.steps += 1

    def check(self, generator: Generator, phase: int, iteration: int, ada_p: float) -> Progress:
        """Measure how the training stands, and begin new sums.

        Raises:
            FloatingPointError: A loss or the Fréchet distance is not finite.
        """
        d_mean, g_mean, apart = (self.sums / self.steps).tolist()
        finite = math.isfinite(d_mean + g_mean + apart)
        score = self.frechet(render(generator, self.judged, self.seed)) if finite else math.nan
        if not math.isfinite(score):
            raise FloatingPointError(
                f"The GAN failed in phase {phase} before iteration {iteration}: losses "
                f"{d_mean:.3g} and {g_mean:.3g}, privacy distance {apart:.3g}, Fréchet distance "
                f"{score:.3g}. Lower the learning rate or raise r1_gamma."
            )
        seconds = time.monotonic() - self.began
        before = self.progress[-1].seconds if self.progress else 0.0
        progress = Progress(
            phase=phase,
            iteration=iteration,
            iterations_per_second=self.steps / (seconds - before),
            frechet=score,
            ada_p=ada_p,
            privacy_distance=apart if phase == 2 else None,
            discriminator_loss=d_mean,
            generator_loss=g_mean,
            seconds=seconds,
        )
        self.progress.append(progress)
        self.sums.zero_()
        self.steps = 0
        return progress

    def draw(self, generator: Generator, path: Path) -> None:
        """Write a picture of images of all classes."""
        save_grid(path, render(generator, self.shown, self.seed))

    def state_dict(self) -> dict[str, Any]:
        """Everything that changes, as plain numbers."""
        return {
            "progress": [asdict(each) for each in self.progress],
            "sums": self.sums.tolist(),
            "steps": self.steps,
            "seconds": time.monotonic() - self.began,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue where other checks were."""
        self.progress = [Progress(**each) for each in state["progress"]]
        self.sums = torch.tensor(state["sums"], device=self.sums.device)
        self.steps = state["steps"]
        self.began = time.monotonic() - state["seconds"]
