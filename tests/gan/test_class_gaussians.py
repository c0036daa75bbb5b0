import torch
from torch.nn.functional import normalize

from gan.class_gaussians import ClassGaussians


def features(count, classes=2, width=8, seed=0):
    """Features float32 [N, d, 1, 1] about the means of their classes, and labels."""
    rng = torch.Generator().manual_seed(seed)
    labels = torch.arange(count) % classes
    means = torch.eye(width)[labels]
    drawn = means + 0.1 * torch.randn(count, width, generator=rng)
    return normalize(drawn)[:, :, None, None], labels


def test_drawn_features_have_the_means_and_variances_of_the_real_ones():
    real, labels = features(4000)
    drawn = ClassGaussians(real, labels).render(labels, seed=1)
    assert (drawn.shape, drawn.dtype) == (real.shape, torch.float32)
    torch.testing.assert_close(drawn.flatten(1).norm(dim=1), torch.ones(4000))
    for label in (0, 1):
        own, other = (each[labels == label].flatten(1) for each in (real, drawn))
        torch.testing.assert_close(own.mean(dim=0), other.mean(dim=0), atol=0.01, rtol=0)
        torch.testing.assert_close(own.std(dim=0), other.std(dim=0), atol=0.03, rtol=0)


def test_the_seed_decides_on_the_features():
    real, labels = features(40)
    made = ClassGaussians(real, labels)
    assert torch.equal(made.render(labels, 1), made.render(labels, 1))
    assert not torch.equal(made.render(labels, 1), made.render(labels, 2))
