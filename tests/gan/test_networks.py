import dataclasses

import pytest
import torch

from gan.networks import Discriminator, Generator, from_bytes, to_bytes
from gan.presets import PRESETS


@pytest.mark.parametrize("channels", [1, 3])
def test_shapes(micro, channels):
    generator, labels = Generator(micro, 4, channels), torch.arange(4)
    images = generator(labels, torch.randn(4, 5))
    assert images.shape == (4, channels, 8, 8)
    assert Discriminator(micro, 4, channels)(images, labels).shape == (4,)
    assert generator.num_layers == 4
    assert generator.noise_shapes == [(4, 4), (8, 8), (8, 8)]


@pytest.mark.parametrize("name", ["tiny", "small"])
def test_presets_make_networks_of_their_resolution(name):
    preset = PRESETS[name]
    generator, labels = Generator(preset, 2, 1), torch.tensor([0, 1])
    images = generator(labels, torch.randn(2, preset.latent))
    assert images.shape == (2, 1, preset.resolution, preset.resolution)
    assert Discriminator(preset, 2, 1)(images, labels).isfinite().all()


def test_resolution_of_the_papers_presets():
    assert [PRESETS[name].resolution for name in ("xray-256", "skin-256")] == [256, 256]


def test_one_style_for_all_layers_or_one_each(micro):
    generator = Generator(micro, 2, 1)
    w = generator.map(torch.tensor([0, 1]), torch.randn(2, 5))
    noise = [torch.randn(1, 1, *shape) for shape in generator.noise_shapes]
    same = generator.synthesise(w[:, None].expand(-1, generator.num_layers, -1), noise)
    assert torch.equal(generator.synthesise(w, noise), same)


def test_every_style_and_every_noise_matters(micro):
    generator = Generator(micro, 2, 1)
    for name, weight in generator.named_parameters():
        if name.endswith("noise_strength"):
            weight.data.fill_(0.1)
    w = torch.randn(2, generator.num_layers, 5, requires_grad=True)
    noise = [torch.randn(1, 1, *shape, requires_grad=True) for shape in generator.noise_shapes]
    generator.synthesise(w, noise).square().sum().backward()
    gradients = [w.grad, *(part.grad for part in noise)]
    assert all(gradient is not None and gradient.any() for gradient in gradients)


def test_every_weight_learns(micro):
    generator, discriminator = Generator(micro, 2, 3), Discriminator(micro, 2, 3)
    labels = torch.tensor([0, 1])
    discriminator(generator(labels, torch.randn(2, 5)), labels).square().sum().backward()
    for name, weight in [*generator.named_parameters(), *discriminator.named_parameters()]:
        assert weight.grad is not None, name
        assert weight.grad.abs().sum() > 0, name


def test_both_networks_heed_the_label(micro):
    generator, discriminator = Generator(micro, 2, 1), Discriminator(micro, 2, 1)
    z = torch.randn(1, 5)
    zero, one = torch.tensor([0]), torch.tensor([1])
    assert not torch.equal(generator(zero, z), generator(one, z))
    image = torch.randn(1, 1, 8, 8)
    assert discriminator(image, zero) != discriminator(image, one)


def test_logits_start_near_unit_deviation(micro):
    """Equalised layers and the residual's scaling keep the variance over any number of levels."""
    torch.manual_seed(0)
    deep = dataclasses.replace(micro, channels=(32,) * 4)
    logits = Discriminator(deep, 2, 1)(torch.randn(64, 1, 32, 32), torch.arange(64) % 2)
    assert 0.1 < logits.square().mean().sqrt().item() < 3


def test_bytes_are_spread_over_minus_one_to_one():
    images = torch.tensor([0, 255], dtype=torch.uint8)
    assert from_bytes(images).tolist() == [-1, 1]
    assert images.tolist() == [0, 255]  # in memory of their own


def test_what_is_outside_is_clipped():
    images = torch.tensor([-1.5, -1.0, 0.0, 1.0, 1.5])
    assert to_bytes(images).tolist() == [0, 0, 128, 255, 255]


def test_every_byte_comes_back():
    every = torch.arange(256, dtype=torch.uint8)
    assert torch.equal(to_bytes(from_bytes(every)), every)
