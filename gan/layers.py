"""Layers of StyleGAN2 (Karras et al. 2020, arXiv:1912.04958).

Shapes: `N` images, `I` input and `O` output channels, `H, W` pixels, `D` size of a latent.
"""

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

SLOPE = 0.2  # of the leaky rectifier
GAIN = math.sqrt(2)  # restores the variance that the rectifier removes
GROUP = 4  # images that are compared with each other; fewer if a batch is not a multiple of it


class Linear(nn.Module):
    """A linear layer with equalised learning rate (Karras et al. 2018, section 4.1).

    Weights start as unit Gaussians and are scaled in use: Adam moves all at the same speed.

    Args:
        gain: Standard deviation of the output, for inputs of unit variance.
        bias: Initial output for inputs of 0.
        speed: Factor on the learning rate; StyleGAN's mapping network has 0.01.
    """

    def __init__(
        self, inputs: int, outputs: int, gain: float = 1.0, bias: float = 0.0, speed: float = 1.0
    ) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(outputs, inputs) / speed)
        self.bias = nn.Parameter(torch.full((outputs,), bias / (gain * speed)))
        self.scale = gain * speed / math.sqrt(inputs)
        self.bias_scale = gain * speed

    def forward(self, x: Tensor) -> Tensor:
        """Map [N, I] to [N, O]."""
        return F.linear(x, self.weight * self.scale, self.bias * self.bias_scale)


class Conv2d(nn.Module):
    """A convolution with equalised learning rate; it keeps or (`down`) halves the image.

    The kernel has `kernel` pixels a side. For inputs of unit variance the output has the standard
    deviation `gain`.
    """

    def __init__(
        self,
        inputs: int,
        outputs: int,
        kernel: int,
        gain: float = GAIN,
        down: bool = False,
        bias: bool = True,
    ) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(outputs, inputs, kernel, kernel))
        self.bias = nn.Parameter(torch.zeros(outputs)) if bias else None
        self.scale, self.gain = gain / math.sqrt(inputs * kernel**2), gain
        self.kernel, self.down = kernel, down

    def forward(self, x: Tensor) -> Tensor:
        """Map [N, I, H, W] to [N, O, H, W], or to [N, O, H/2, W/2]."""
        weight = self.weight * self.scale  # [O, I, k, k]
        # The rectifier that follows multiplies weight and bias alike.
        bias = None if self.bias is None else self.bias * self.gain
        if self.down and self.kernel == 1:
            x = downsample(x)
        elif self.down:
            return F.conv2d(blur(x), weight, bias, stride=2)
        return F.conv2d(x, weight, bias, padding=self.kernel // 2)


class ModulatedConv2d(nn.Module):
    """A convolution whose input channels are scaled for each image by its style.

    The paper scales and demodulates the weights. Here the input is scaled and the output is
    demodulated: the numbers are the same, and all images of a batch share the weights.
    """

    def __init__(
        self, inputs: int, outputs: int, kernel: int, latent: int, demodulate: bool = True
    ) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(outputs, inputs, kernel, kernel))
        self.style = Linear(latent, inputs, bias=1.0)
        self.scale = 1 / math.sqrt(inputs * kernel**2)
        self.padding, self.demodulate = kernel // 2, demodulate

    def forward(self, x: Tensor, w: Tensor, up: bool = False) -> Tensor:
        """Map [N, I, H, W] and latents [N, D] to [N, O, H, W], or to [N, O, 2H, 2W]."""
        style = self.style(w)  # [N, I]
        weight = self.weight * self.scale  # [O, I, k, k]
        # Modulation (Karras et al. 2020, Eq. 1).
        x = x * style[:, :, None, None].to(x.dtype)
        x = F.conv2d(upsample(x) if up else x, weight, padding=self.padding)  # [N, O, H, W]
        if not self.demodulate:
            return x
        # Standard deviation of the output for inputs of unit variance (Eq. 2).
        power = F.linear(style.square(), weight.square().sum((2, 3)))  # [N, O]
        # Demodulation (Eq. 3).
        return x * (power + 1e-8).rsqrt()[:, :, None, None].to(x.dtype)


class StyledConv(nn.Module):
    """Modulated convolution, noise, bias and rectifier: one style block of Figure 2(d)."""

    def __init__(self, inputs: int, outputs: int, latent: int, up: bool = False) -> None:
        super().__init__()
        self.conv = ModulatedConv2d(inputs, outputs, 3, latent)
        self.noise_strength = nn.Parameter(torch.zeros(()))
        self.bias = nn.Parameter(torch.zeros(outputs, 1, 1))
        self.up = up

    def forward(self, x: Tensor, w: Tensor, noise: Tensor | None) -> Tensor:
        """Map [N, I, H, W] and latents [N, D] to [N, O, H, W], or to [N, O, 2H, 2W].

        The noise is [N or 1, 1, H, W] in the size of the output; None draws it.
        """
        x = self.conv(x, w, self.up)
        if noise is None:
            noise = torch.randn(len(x), 1, *x.shape[2:], device=x.device)
        x = x + (noise * self.noise_strength + self.bias).to(x.dtype)
        return F.leaky_relu(x, SLOPE) * GAIN


def add_deviation(x: Tensor) -> Tensor:
    """Add a channel to [N, C, H, W], for the discriminator (Karras et al. 2018, section 3).

    It is the standard deviation over the images of a group, averaged over channels and pixels. It
    makes a generator that repeats itself easy to detect.
    """
    group = math.gcd(len(x), GROUP)
    groups = x.float().reshape(-1, group, *x.shape[1:])  # [N/G, G, C, H, W]
    apart = groups - groups.mean(1, keepdim=True)  # torch.var takes far longer on a CPU
    std = (apart.square().mean(1) + 1e-8).sqrt().mean((1, 2, 3))  # [N/G]
    std = std.repeat_interleave(group)[:, None, None, None].to(x.dtype)  # [N, 1, 1, 1]
    return torch.cat([x, std.expand(-1, 1, *x.shape[2:])], 1)


def normalise(x: Tensor) -> Tensor:
    """Scale each row of [N, D] to a mean square of 1."""
    return x * (x.square().mean(1, keepdim=True) + 1e-8).rsqrt()


def upsample(x: Tensor) -> Tensor:
    """Double the size of [N, C, H, W] with the filter [1, 3, 3, 1], which is bilinear."""
    return F.interpolate(x, scale_factor=2, mode="bilinear", align_corners=False)


def blur(x: Tensor) -> Tensor:
    """Filter [N, C, H, W] with [1, 3, 3, 1] to [N, C, H + 1, W + 1], ready for a stride of 2."""
    return F.conv2d(x, _filter(x), padding=2, groups=x.shape[1])


def downsample(x: Tensor) -> Tensor:
    """Halve the size of [N, C, H, W] with the filter [1, 3, 3, 1]."""
    return F.conv2d(x, _filter(x), padding=1, stride=2, groups=x.shape[1])


def _filter(x: Tensor) -> Tensor:
    """[1, 3, 3, 1] in both directions, for each channel of x: [C, 1, 4, 4]."""
    line = torch.tensor([1.0, 3.0, 3.0, 1.0], dtype=x.dtype, device=x.device) / 8
    return torch.outer(line, line).expand(x.shape[1], 1, 4, 4)
