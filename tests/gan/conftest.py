import dataclasses

import pytest
import torch

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
