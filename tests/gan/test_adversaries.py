"""The layout of weights in memory changes rounding only, also from one checkpoint to the next."""

import copy
import dataclasses

import pytest
import torch

from gan import adversaries
from gan.adversaries import Adversaries, Examples, Privacy


@pytest.fixture
def begin(micro, monkeypatch):
    """Both networks for images of 32 pixels, with channels-last weights from `least` pixels on."""
    # Without path lengths, whose random numbers come in the order of the memory.
    preset = dataclasses.replace(micro, channels=(6, 5, 4, 3), path_every=0)
    drawn = torch.Generator().manual_seed(0)
    images = torch.randint(256, (9, 3, 32, 32), generator=drawn, dtype=torch.uint8)
    examples = Examples(images, torch.arange(9) % 2, 2, "")

    def begun(least: int) -> Adversaries:
        monkeypatch.setattr(adversaries, "CHANNELS_LAST", least)
        torch.manual_seed(0)
        return Adversaries(examples, preset, Privacy(0.0, "mean", torch.cdist))

    return begun


def go_on(networks, steps):
    """All weights [.] after some more steps."""
    torch.manual_seed(1)
    for iteration in steps:
        networks.step(iteration, private=False)
    parts = [*networks.generator.parameters(), *networks.discriminator.parameters()]
    return torch.cat([part.detach().flatten() for part in parts])


def is_channels_last(networks):
    return networks.generator.convs[0].conv.weight.is_contiguous(memory_format=torch.channels_last)


def test_channels_last_trains_the_same_networks(begin):
    plain, last = begin(64), begin(32)
    assert (is_channels_last(plain), is_channels_last(last)) == (False, True)
    steps = range(1, 5)
    torch.testing.assert_close(go_on(last, steps), go_on(plain, steps), rtol=0, atol=1e-4)


@pytest.mark.parametrize(("before", "after"), [(64, 32), (32, 64)])
def test_a_checkpoint_of_another_layout_goes_on(begin, before, after):
    """A CPU's checkpoint may continue on CUDA. Mixed moments of Adam move weights by 0.01."""
    old = begin(before)
    go_on(old, range(1, 5))
    new = begin(after)
    new.load_state_dict(copy.deepcopy(old.state_dict()))
    steps = range(5, 7)
    torch.testing.assert_close(go_on(new, steps), go_on(old, steps), rtol=0, atol=1e-4)
