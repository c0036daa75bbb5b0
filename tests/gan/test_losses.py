import math

import pytest
import torch
from torch import nn

from gan.losses import discriminator_loss, generator_loss, path_lengths, path_loss, privacy, r1
from gan.networks import Discriminator, Generator
from gan.presets import PRESETS


def test_undecided_discriminator():
    """Logits of 0 are probabilities of 1/2: -2 log(1/2) and -log(1/2)."""
    zero = torch.zeros(3)
    assert discriminator_loss(zero, zero).item() == pytest.approx(2 * math.log(2))
    assert generator_loss(zero).item() == pytest.approx(math.log(2))


def test_losses_fall_in_the_right_direction():
    low, high = torch.full((3,), -5.0), torch.full((3,), 5.0)
    assert discriminator_loss(high, low) < 0.02 < discriminator_loss(low, high)
    assert generator_loss(high) < 0.01 < generator_loss(low)


def test_r1_of_a_linear_discriminator():
    """Its gradient is its weights (1, 2, 3, 4) everywhere: (1 + 4 + 9 + 16) / 2 = 15."""

    class Linear(Discriminator):
        def __init__(self):
            nn.Module.__init__(self)
            self.weight = nn.Parameter(torch.tensor([1.0, 2.0, 3.0, 4.0]))

        def forward(self, images, labels):
            return images.flatten(1) @ self.weight

    discriminator = Linear()
    penalty = r1(discriminator, torch.randn(5, 1, 2, 2), torch.zeros(5, dtype=torch.int64))
    assert penalty.item() == pytest.approx(15)
    penalty.backward()
    torch.testing.assert_close(discriminator.weight.grad, discriminator.weight.data)


def test_path_lengths_of_a_linear_generator():
    """Images that are a · w have J = a · 1: the length is a |y|, and |y|² is 1 on average."""

    class Linear(Generator):
        def __init__(self):
            nn.Module.__init__(self)

            self.num_layers = 1

        def synthesise(self, w, noise=None):
            return 3 * w.reshape(-1, 1, 32, 32)

    torch.manual_seed(0)
    w = torch.randn(4, 1024, requires_grad=True)
    lengths = path_lengths(Linear(), w)
    torch.testing.assert_close(lengths, torch.full((4,), 3.0), rtol=0.1, atol=0)


def test_path_lengths_are_those_of_each_layer():
    """Against the mean over the layers l of |∂(x · y)/∂w_l|², computed one after the other."""
    torch.manual_seed(0)
    generator = Generator(PRESETS["tiny"], 3, 1)
    w = generator.map(torch.arange(3), torch.randn(3, generator.latent))
    torch.manual_seed(1)  # of y, and of the noise
    lengths = path_lengths(generator, w)
    squares = torch.zeros(3)
    for layer in range(generator.num_layers):
        own = w.detach().clone().requires_grad_()
        styles = torch.stack([own if k == layer else w for k in range(generator.num_layers)], 1)
        torch.manual_seed(1)
        images = generator.synthesise(styles)
        y = torch.randn_like(images) / 16
        (gradient,) = torch.autograd.grad((images * y).sum(), own)
        squares += gradient.square().sum(1) / generator.num_layers
    torch.testing.assert_close(lengths, squares.sqrt())
    # To move all layers together is another thing: up to √L times as far.
    shared = w.detach().clone().requires_grad_()
    torch.manual_seed(1)
    images = generator.synthesise(shared)
    (gradient,) = torch.autograd.grad((images * torch.randn_like(images) / 16).sum(), shared)
    assert (gradient.norm(dim=1) / lengths > 1.5).all()


def test_path_loss_by_hand():
    """((1 - 2)² + (5 - 2)²) / 2 = 5."""
    assert path_loss(torch.tensor([1.0, 5.0]), torch.tensor(2.0)).item() == 5


def test_privacy_by_hand():
    """Distances 1, 2, 3, 6: their mean is 3; as printed, a sum of 12 over b = 2 is 6."""
    distances = torch.tensor([[1.0, 2.0], [3.0, 6.0]])
    assert privacy(distances, "mean").item() == 3
    assert privacy(distances, "sum").item() == 6
