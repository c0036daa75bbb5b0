"""Adaptive discriminator augmentation, so that the discriminator does not memorise few images.

Paper: StyleGAN2-ADA (Karras et al. 2020, arXiv:2006.06676), section 3 and appendix B. The
discriminator sees only images that were moved and recoloured at random, real and synthetic alike.
As long as each change has a probability below 1, the generator still learns unchanged images.

Shapes: `N` images, `C` channels, `H, W` pixels.
"""

import math

import torch
from torch import Tensor
from torch.nn import functional as F


class Controller:
    """Adapts the probability `p` of each augmentation to the overfitting of the discriminator."""

    EVERY = 4  # batches from one change of p to the next (section 3)

    def __init__(self, target: float, images: int) -> None:
        """Start at p = 0, which can rise to 1 in a number of real images.

        `target` is that of the mean sign of the logits of real images.
        """
        self.target, self.images = target, images
        self.p = 0.0
        self.signs: list[Tensor] = []

    def observe(self, logits: Tensor) -> None:
        """Note the logits [N] of real images; p changes at every `EVERY`-th call."""
        self.signs.append(logits.detach().sign())
        if len(self.signs) < self.EVERY:
            return
        signs = torch.cat([sign.to(logits.device) for sign in self.signs])
        # r_t = E[sign(D_train)] (Eq. 1).
        direction = math.copysign(1, signs.mean().item() - self.target)
        self.p = min(max(self.p + direction * len(signs) / self.images, 0.0), 1.0)
        self.signs.clear()


def augment(images: Tensor, p: float, mirror: bool) -> Tensor:
    """Change images [N, C, H, W] in [-1, 1], C = 1 or 3, at random, differentiably.

    Each change has the probability `p`; 0 = images stay as they are.
    """
    return _recolour(_move(images, p, mirror), p) if p > 0 else images


def _move(images: Tensor, p: float, mirror: bool) -> Tensor:
    """Mirror, scale, rotate, stretch and shift in one resampling (appendix B, Figure 15)."""
    count = len(images)
    eye = torch.eye(3, device=images.device).expand(count, 3, 3)
    # Two rotations, so that together they happen with probability p: p_rot = 1 - √(1 - p).
    p_rotate = 1 - math.sqrt(1 - p)
    steps = []
    if mirror:
        steps.append((p / 2, _scaling(torch.tensor(-1.0).expand(count), torch.ones(count))))
    scale = torch.randn(count).mul(0.2).exp2()
    steps.append((p, _scaling(scale, scale)))
    steps.append((p_rotate, _rotation(_angles(count))))
    stretch = torch.randn(count).mul(0.2).exp2()
    steps.append((p, _scaling(stretch, 1 / stretch)))
    steps.append((p_rotate, _rotation(_angles(count))))
    steps.append((p, _shift(torch.randn(count, 2) * 0.25)))  # 1/8 of an image that is 2 wide
    theta = eye
    for probability, step in steps:
        theta = theta @ _apply_at_random(probability, step.to(images.device), eye)
    grid = F.affine_grid(theta[:, :2], list(images.shape), align_corners=False)  # [N, H, W, 2]
    return F.grid_sample(images, grid, padding_mode="reflection", align_corners=False)


def _recolour(images: Tensor, p: float) -> Tensor:
    """Change brightness, contrast, lightness; of colour images also hue and saturation."""
    count, channels = images.shape[:2]
    device = images.device
    brightness = torch.randn(count, 1, 1, device=device) * 0.2
    brightness = _apply_at_random(p, brightness, torch.zeros_like(brightness))
    eye = torch.eye(channels, device=device).expand(count, -1, -1)
    contrast = torch.randn(count, device=device).mul(0.5).exp2()[:, None, None]
    change = _apply_at_random(p, eye * contrast, eye)
    grey = torch.full((channels,), 1 / math.sqrt(channels), device=device)  # from black to white
    luma = torch.outer(grey, grey).expand(count, -1, -1)  # projection on it
    change = _apply_at_random(p / 2, eye - 2 * luma, eye) @ change
    if channels == 3:
        cross = torch.linalg.cross(torch.eye(3, device=device), grey.expand(3, 3)).mT
        angle = _angles(count).to(device)[:, None, None]
        # Rotation around the axis of grey (Rodrigues).
        hue = luma + angle.cos() * (eye - luma) + angle.sin() * cross
        saturation = luma + torch.randn(count, device=device).exp2()[:, None, None] * (eye - luma)
        for step in (hue, saturation):
            change = _apply_at_random(p, step, eye) @ change
    pixels = change @ (images.flatten(2).float() + brightness)  # [N, C, HW]
    return pixels.reshape(images.shape)


def _apply_at_random(p: float, changed: Tensor, same: Tensor) -> Tensor:
    """Each of N matrices from `changed` [N, ., .] with probability p, else from `same`."""
    drawn = torch.rand(len(changed), 1, 1, device=changed.device) < p
    return torch.where(drawn, changed, same)


def _angles(count: int) -> Tensor:
    return (torch.rand(count) * 2 - 1) * math.pi


def _scaling(x: Tensor, y: Tensor) -> Tensor:
    """Matrices [N, 3, 3] that scale by x [N] and y [N]."""
    return torch.diag_embed(torch.stack([x, y, torch.ones_like(x)], 1))


def _rotation(angle: Tensor) -> Tensor:
    """Matrices [N, 3, 3] that rotate by angles [N]."""
    matrix = _scaling(angle.cos(), angle.cos())
    matrix[:, 0, 1], matrix[:, 1, 0] = -angle.sin(), angle.sin()
    return matrix


def _shift(offset: Tensor) -> Tensor:
    """Matrices [N, 3, 3] that shift by [N, 2]."""
    matrix = torch.eye(3).repeat(len(offset), 1, 1)
    matrix[:, :2, 2] = offset
    return matrix
