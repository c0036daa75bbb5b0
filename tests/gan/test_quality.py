import math
from pathlib import Path

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits
from torch import nn
from torch_fidelity.feature_extractor_inceptionv3 import FeatureExtractorInceptionV3
from torchvision.transforms.functional import gaussian_blur

from gan import quality
from gan.networks import from_bytes
from gan.perceptual import PairwiseLPIPS
from gan.quality import (
    Frechet,
    Inception,
    Untrained,
    class_diversity,
    frechet,
    inception_file,
    train_classifier,
)


class Pixels(Untrained):
    """The grey values themselves, 0 to 255, as features."""

    name = "pixels"

    def __init__(self, count):
        nn.Module.__init__(self)
        self.num_features = count

    def forward(self, images):
        return images.flatten(1).double()


def noise(*shape, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(256, shape, dtype=torch.uint8, generator=generator)


@pytest.fixture(scope="module")
def digits():
    data = load_digits()
    images = torch.from_numpy(data.images * 255 / 16).round().byte()[:, None]
    return images, torch.from_numpy(data.target)


def distance_to(digits, count, judge="untrained", *, inception=None):
    images, labels = digits[0][:count], digits[1][:count]
    return frechet(images, labels, 10, inception=inception, otherwise=judge, seed=0)


def test_frechet_distance_of_two_pairs_of_pixels():
    """On a line it is (µ₁ - µ₂)² + (σ₁ - σ₂)².

    {0, 2}: mean 1, variance 2. {10, 16}: mean 13, variance 18. 12² + (√2 - 3√2)² = 144 + 8.
    """
    real = torch.tensor([0, 2], dtype=torch.uint8).view(2, 1, 1, 1)
    synthetic = torch.tensor([10, 16], dtype=torch.uint8).view(2, 1, 1, 1)
    distance = Frechet(real, Pixels(1))
    assert distance([synthetic]) == pytest.approx(152, rel=1e-5)
    assert distance([real]) == pytest.approx(0, abs=1e-4)
    assert distance([synthetic]) == pytest.approx(152, rel=1e-5)  # the real ones are not forgotten
    assert distance.name == "pixels"


@pytest.mark.parametrize("count", [100, 5])
def test_frechet_distance_equals_the_formula(count):
    """Heusel et al. 2017, Eq. 6, also with fewer images than features.

    The root of AB, which is not symmetric, has the trace of that of A^½ B A^½, which is.
    """
    real, synthetic = noise(100, 1, 3, 3), noise(count, 1, 3, 3, seed=1) // 2
    x, y = (images.flatten(1).double().numpy() for images in (real, synthetic))
    a, b = np.cov(x.T), np.cov(y.T)
    values, vectors = np.linalg.eigh(a)
    root = vectors * np.sqrt(values) @ vectors.T
    cross = np.sqrt(np.linalg.eigvalsh(root @ b @ root).clip(min=0)).sum()
    expected = ((x.mean(0) - y.mean(0)) ** 2).sum() + np.trace(a) + np.trace(b) - 2 * cross
    assert Frechet(real, Pixels(9))(synthetic.split(40)) == pytest.approx(expected, rel=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("judge", ["classifier", "untrained"])
def test_frechet_distance_is_finite_with_two_images_and_with_one_more_than_a_batch(digits, judge):
    assert math.isfinite(distance_to(digits, 33, judge)([digits[0][5:7]]))


@pytest.mark.slow
def test_the_classifier_learns_and_tells_noise_from_digits(digits, caplog):
    images, labels = digits
    distance = distance_to(digits, 700, "classifier")
    assert distance.name == "frechet-classifier"
    assert not caplog.records
    model = train_classifier(images[:700], labels[:700], 10, seed=0)
    with torch.no_grad():
        logits = model.head(model(images[700:]).float())
    right = logits.argmax(dim=1) == labels[700:]
    assert right.float().mean() > 0.85
    assert distance([images[700:]]) < 0.2 * distance([noise(200, 1, 8, 8)])


def test_the_untrained_network_sees_noise_and_blur(digits, caplog):
    """Digits are five times nearer than blurred ones, and these nearer than noise."""
    distance = distance_to(digits, 900, "untrained")
    assert distance.name == "frechet-untrained"
    assert not caplog.records
    others = digits[0][900:]
    blurred = gaussian_blur(others, [3, 3], [0.7, 0.7])
    far = distance([noise(900, 1, 8, 8)])
    assert 5 * distance([others]) < distance([blurred]) < far


def test_its_features_are_the_means_of_normalised_layers(digits):
    """BatchNorm has the mean over the real batches: the first layer by hand."""
    images, _ = digits
    network = Untrained(images[:64], seed=0)
    maps = network.layers[0](from_bytes(images[:64]))
    means = maps.mean((0, 2, 3))
    variances = torch.stack([each.var((0, 2, 3)) for each in maps.split(32)]).mean(0)
    scaled = (maps - means[:, None, None]) / (variances[:, None, None] + 1e-5).sqrt()
    first = scaled.relu().mean((2, 3))
    assert torch.allclose(network(images[:64])[:, :16].float(), first, atol=1e-5)
    assert network(images[:2]).shape == (2, Untrained.num_features)
    assert not network.training


@pytest.mark.parametrize(
    "made",
    [
        lambda images, labels, seed: Untrained(images, seed),
        lambda images, labels, seed: train_classifier(images, labels, 10, seed),
    ],
)
def test_a_network_follows_from_its_seed_alone(digits, monkeypatch, made):
    monkeypatch.setattr(quality, "STEPS", 3)
    before = torch.get_rng_state()
    models = [made(*digits, seed) for seed in (1, 1, 2)]
    assert torch.equal(before, torch.get_rng_state())
    first, again, other = (model(noise(1, 1, 8, 8)) for model in models)
    assert first.shape == (1, models[0].num_features)
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    assert not models[0].training


@pytest.mark.parametrize("judge", ["classifier", "untrained"])
def test_without_weights_the_distance_has_another_name(digits, monkeypatch, judge):
    monkeypatch.setattr(quality, "STEPS", 1)
    assert distance_to(digits, 100, judge).name == f"frechet-{judge}"


@pytest.mark.parametrize("cached", [None, Path("/cache/inception.pth")])
def test_the_file_of_the_fid_is_the_chosen_one_or_that_of_the_cache(monkeypatch, cached):
    monkeypatch.setattr(quality, "weights_file", lambda url: cached)
    assert inception_file("") == cached
    assert inception_file("/chosen.pth") == Path("/chosen.pth")


@pytest.mark.slow
def test_the_fid_takes_its_network_from_a_file(monkeypatch, tmp_path, digits):
    """The network is untrained here; grey images and colour images that are grey look the same."""
    path = tmp_path / "inception.pth"
    with monkeypatch.context() as patch:
        patch.setattr(FeatureExtractorInceptionV3, "load_state_dict", lambda self, state: None)
        torch.save({}, path)
        torch.save(FeatureExtractorInceptionV3("any", ["2048"], str(path)).state_dict(), path)
    images, _ = digits
    assert distance_to(digits, 2, inception=path).name == "fid"
    network = Inception(path)
    features, colour = network(images[:2]), images[:2].expand(-1, 3, -1, -1)
    assert features.shape == (2, Inception.num_features)
    assert features.dtype == torch.float64
    assert torch.equal(features, network(colour))
    assert torch.equal(features.float(), network.network(colour)[0])


def test_files_without_the_network_are_named(tmp_path, digits):
    path = tmp_path / "inception.pth"
    with pytest.raises(FileNotFoundError, match=r"inception\.pth.*torch-fidelity"):
        distance_to(digits, 2, inception=path)
    torch.save({"weight": torch.ones(1)}, path)
    with pytest.raises(ValueError, match=r"inception\.pth.*torch-fidelity"):
        distance_to(digits, 2, inception=path)


def test_diversity_is_the_mean_over_all_pairs_of_a_class(monkeypatch):
    monkeypatch.setattr(quality, "BATCH", 2)
    distance = PairwiseLPIPS("squeeze", "untrained")
    images, labels = noise(8, 1, 20, 20), torch.tensor([0, 0, 1, 0, 1, 0, 2, 0])
    with torch.no_grad():
        matrix = distance(from_bytes(images), from_bytes(images))
    zeros = [matrix[i, j].item() for i in (0, 1, 3, 5, 7) for j in (0, 1, 3, 5, 7) if i < j]
    expected = (sum(zeros) / 10 + matrix[2, 4].item()) / 2  # the one image of class 2 has no pair
    assert class_diversity(images, labels, distance) == pytest.approx(expected, abs=1e-6)


def test_diversity_is_zero_for_copies_and_nan_without_pairs():
    distance = PairwiseLPIPS("squeeze", "untrained")
    images = noise(1, 3, 20, 20).expand(3, -1, -1, -1)
    assert class_diversity(images, torch.zeros(3), distance) == pytest.approx(0, abs=1e-6)
    assert math.isnan(class_diversity(images, torch.arange(3), distance))
