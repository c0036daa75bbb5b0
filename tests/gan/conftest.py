import dataclasses
import time
from collections.abc import Callable
from typing import Any

import pytest
import torch

from gan.codes import Effort, Source
from gan.networks import Generator
from gan.perceptual import PairwiseLPIPS
from gan.presets import PRESETS, Preset


@pytest.fixture(autouse=True)
def _one_thread():
    torch.set_num_threads(1)


@pytest.fixture
def micro() -> Preset:
    """A training of milliseconds in which everything happens, on 8 x 8 pixels."""
    return dataclasses.replace(
        PRESETS["tiny"],
        channels=(4, 3),
        latent=5,
        batch_size=4,
        r1_every=2,
        path_weight=1.0,
        path_every=3,
        ada_images=40,
        iterations=6,
        patience=100,
        privacy_iterations=4,
        check_every=2,
        fid_images=8,
    )


class Pixels(PairwiseLPIPS):
    """A distance of microseconds."""

    def __init__(self) -> None:
        torch.nn.Module.__init__(self)
        self.name = "untrained-squeeze"

    def features(self, images: torch.Tensor) -> torch.Tensor:
        return images.flatten(1) / images[0].numel()


@pytest.fixture
def source(micro, tmp_path) -> Callable[..., Source]:
    """Six images of class 0 and four of class 1 for a generator that nobody has trained."""

    def made(**changes: Any) -> Source:
        torch.manual_seed(0)
        effort = Effort(
            images=6,
            projection_steps=2,
            projections=2,
            paths=2,
            points=5,
            path_steps=3,
            average_steps=3,
            network="small",
            network_steps=3,
        )
        whole = Source(
            generator=Generator(micro, 2, 1).requires_grad_(False),
            images=torch.rand(10, 1, 8, 8) * 2 - 1,
            labels=torch.tensor([0, 1, 0, 1, 0, 1, 0, 1, 0, 0]),
            distance=Pixels(),
            effort=effort,
            mirror=True,
            clusters=2,
            k=2,
            kl="uniform",
            folder=tmp_path / "codes",
            seed=3,
            deadline=time.monotonic() + 300,
        )
        return dataclasses.replace(whole, **changes)

    return made
