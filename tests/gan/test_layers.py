import math

import pytest
import torch
from torch.nn import functional as F

from gan.layers import (
    Conv2d,
    Linear,
    ModulatedConv2d,
    StyledConv,
    add_deviation,
    blur,
    downsample,
    normalise,
    upsample,
)


@pytest.mark.parametrize("up", [False, True])
def test_modulated_convolution_equals_one_with_weights_of_its_own_for_each_image(up):
    """The paper's way: Eq. 1 and 3 on the weights, image by image."""
    conv = ModulatedConv2d(3, 5, 3, latent=4)
    x, w = torch.randn(6, 3, 8, 8), torch.randn(6, 4)
    expected = []
    for image, style in zip(upsample(x) if up else x, conv.style(w), strict=True):
        weight = style[None, :, None, None] * conv.weight * conv.scale
        weight = weight / (weight.square().sum((1, 2, 3), keepdim=True) + 1e-8).sqrt()
        expected.append(F.conv2d(image[None], weight, padding=1))
    torch.testing.assert_close(conv(x, w, up), torch.cat(expected))


def test_demodulation_gives_unit_deviation():
    """Inputs of deviation 1, scaled by any style: outputs of deviation 1, but at the edges."""
    torch.manual_seed(0)
    conv = ModulatedConv2d(16, 8, 3, latent=4)
    y = conv(torch.randn(64, 16, 16, 16), 3 * torch.randn(64, 4))[:, :, 1:-1, 1:-1]
    assert y.std().item() == pytest.approx(1, abs=0.02)


def test_without_demodulation_the_style_scales_the_output():
    """A latent of zeros leaves a style of ones, so doubling the bias of the style doubles y."""
    conv = ModulatedConv2d(3, 2, 1, latent=4, demodulate=False)
    x, w = torch.randn(2, 3, 4, 4), torch.zeros(2, 4)
    before = conv(x, w)
    torch.testing.assert_close(before, F.conv2d(x, conv.weight / math.sqrt(3)))
    conv.style.bias.data *= 2
    torch.testing.assert_close(conv(x, w), 2 * before)


@pytest.mark.parametrize("speed", [1.0, 0.01])
def test_equalised_layers_keep_the_deviation_whatever_their_speed(speed):
    torch.manual_seed(0)
    y = Linear(256, 256, bias=3.0, speed=speed)(torch.randn(256, 256))
    assert y.std().item() == pytest.approx(1, abs=0.02)
    assert y.mean().item() == pytest.approx(3, abs=0.05)
    y = Conv2d(64, 64, 3, gain=1.0)(torch.randn(8, 64, 16, 16))[:, :, 1:-1, 1:-1]
    assert y.std().item() == pytest.approx(1, abs=0.05)


def test_convolutions_keep_or_halve_the_size():
    x = torch.randn(2, 3, 8, 8)
    for kernel in (1, 3):
        assert Conv2d(3, 4, kernel)(x).shape == (2, 4, 8, 8)
        assert Conv2d(3, 4, kernel, down=True)(x).shape == (2, 4, 4, 4)


def test_noise_is_added_with_its_strength():
    conv = StyledConv(3, 2, latent=4)
    x, w = torch.randn(2, 3, 4, 4), torch.randn(2, 4)
    torch.testing.assert_close(conv(x, w, None), conv(x, w, None))  # strength starts at 0
    conv.noise_strength.data.fill_(0.5)
    noise = torch.full((1, 1, 4, 4), 1000.0)  # so much that the rectifier never bends
    difference = conv(x, w, noise) - conv(x, w, noise + 2)
    torch.testing.assert_close(
        difference, torch.full_like(difference, -math.sqrt(2)), atol=1e-3, rtol=0
    )


def test_minibatch_deviation_by_hand():
    """Two groups of four images, of two channels.

    In the first group all pixels are 0, 0, 2, 2: a deviation of 1. In the second, one channel is
    always 0 and the other 6, 6, 0, 0, a deviation of 3: on average 1.5.
    """
    x = torch.zeros(8, 2, 4, 4)
    x[2:4] = 2
    x[4:6, 1] = 6
    y = add_deviation(x)
    assert torch.equal(y[:, :2], x)
    expected = torch.tensor([1.0] * 4 + [1.5] * 4)[:, None, None].expand(8, 4, 4)
    torch.testing.assert_close(y[:, 2], expected, atol=1e-4, rtol=0)


@pytest.mark.parametrize("count", [1, 2, 3, 6])
def test_minibatch_deviation_of_any_number_of_images(count):
    assert add_deviation(torch.randn(count, 2, 4, 4)).shape == (count, 3, 4, 4)


def test_filters():
    """[1, 3, 3, 1] / 8 in one direction, on a line of three times 0 and five times 8."""
    line = torch.tensor([0.0, 0.0, 0.0, 8.0, 8.0, 8.0, 8.0, 8.0]).expand(1, 1, 8, 8)
    torch.testing.assert_close(downsample(line)[0, 0, 1], torch.tensor([0.0, 4.0, 8.0, 7.0]))
    torch.testing.assert_close(blur(line)[:, :, 1:-1:2, 1:-1:2], downsample(line))
    torch.testing.assert_close(upsample(line)[0, 0, 4, 4:8], torch.tensor([0.0, 2.0, 6.0, 8.0]))


def test_normalised_rows_have_a_mean_square_of_one():
    torch.testing.assert_close(
        normalise(torch.tensor([[3.0, 4.0]])), torch.tensor([[3.0, 4.0]]) / math.sqrt(12.5)
    )
