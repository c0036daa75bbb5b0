import json
import time

import pytest
import torch
from matplotlib.image import imread

from gan.networks import Generator
from gan.perceptual import PairwiseLPIPS
from gan.presets import PRESETS
from gan.projection import Start, mean_w, measure_privacy, project, ramp, roughness

HOUR = time.monotonic() + 3600


class Linear(Generator):
    """Images that are a linear function of w, with next to no noise."""

    def __init__(self, rank=3):
        torch.nn.Module.__init__(self)  # none of the generator's layers
        self.latent = 3
        self.noise_shapes = [(4, 4), (8, 8)]
        rng = torch.Generator().manual_seed(5)
        self.matrix = torch.linalg.qr(torch.randn(16, 3, generator=rng))[0].T.clone()  # [3, 16]
        self.matrix[rank:] = 0

    def map(self, labels, z):
        return 2 * z + labels[:, None]

    def synthesise(self, w, noise=None):
        return (w @ self.matrix).unflatten(1, (1, 4, 4)) + 1e-4 * noise[0]


class Metric(PairwiseLPIPS):
    def __init__(self):
        super().__init__("squeeze", "untrained")
        self.name = "untrained-toy"

    def features(self, images):
        return images.flatten(1)


def wanted(count=5):
    w = torch.randn(count, 3, generator=torch.Generator().manual_seed(6))
    return w, (w @ Linear().matrix).unflatten(1, (1, 4, 4))


def projected(generator, images, *, seed=0, batch=32, steps=200, deadline=HOUR):
    start = Start(torch.zeros(3), 1.0)
    return project(
        generator,
        images,
        start,
        features=Metric().features,
        seed=seed,
        batch=batch,
        steps=steps,
        deadline=deadline,
    )


@pytest.mark.slow
def test_images_that_a_generator_can_make_are_found():
    w, images = wanted()
    found = projected(Linear(), images)
    assert found.distances.max() < 1e-3
    torch.testing.assert_close(found.w, w, atol=0.02, rtol=0)
    torch.testing.assert_close(found.images, images, atol=0.02, rtol=0)


@pytest.mark.slow
def test_the_distance_of_others_is_what_the_generator_lacks():
    """The rows of the matrix are orthonormal: without the third, (w₃)² of ‖w A‖² is missing."""
    w, images = wanted()
    distances = projected(Linear(rank=2), images).distances
    torch.testing.assert_close(distances, w[:, 2] ** 2, atol=1e-3, rtol=1e-3)


@pytest.mark.slow
def test_any_batch_gives_the_same():
    _, images = wanted()
    whole, cut = (projected(Linear(), images, batch=size, steps=50) for size in (5, 2))
    torch.testing.assert_close(whole.w, cut.w, atol=1e-4, rtol=0)
    torch.testing.assert_close(whole.distances, cut.distances, atol=1e-4, rtol=1e-4)


def test_the_seed_alone_decides():
    _, images = wanted(2)
    state = torch.get_rng_state()
    first, second, other = (projected(Linear(), images, seed=s, steps=20) for s in (0, 0, 1))
    assert torch.equal(first.images, second.images)
    assert not torch.equal(first.images, other.images)
    assert torch.equal(torch.get_rng_state(), state)


def test_the_start_is_the_centre_of_w_for_the_classes_present():
    """w = 2 z + label, z normal in 3 dimensions.

    Of label 1 alone the mean is 1 and the mean squared distance from it 3 · 2² = 12. Of labels 1, 1
    and 4 the mean is 2, and their variance, 2, is added in each dimension: 12 + 3 · 2 = 18.
    """
    start = mean_w(Linear(), torch.tensor([1]), seed=0)
    torch.testing.assert_close(start.w, torch.ones(3), atol=0.1, rtol=0)
    assert start.scale == pytest.approx(12**0.5, rel=0.03)
    start = mean_w(Linear(), torch.tensor([1, 4, 1]), seed=0)
    torch.testing.assert_close(start.w, torch.full((3,), 2.0), atol=0.1, rtol=0)
    assert start.scale == pytest.approx(18**0.5, rel=0.03)


@pytest.mark.parametrize(
    ("at", "share"), [(0, 0), (0.025, 0.5), (0.05, 1), (0.75, 1), (0.875, 0.5), (0.9999, 0)]
)
def test_the_learning_rate_goes_up_and_down(at, share):
    assert ramp(at) == pytest.approx(share, abs=1e-6)


def test_roughness_by_hand():
    """Of a map of ones the correlation with its neighbours is 1 in x and in y: 1² + 1² = 2.

    A 16 x 16 one is also halved to 8 x 8, as twos: 4² + 4² = 32 more. On a chessboard the
    correlation is -1. Stripes have 1 along and -1 across. Of two images the sum is taken.
    """
    ones = torch.ones(1, 1, 16, 16)
    stripes = torch.tensor([1.0, -1.0]).repeat(8, 4)[None, None]
    chessboard = stripes * stripes.transpose(2, 3)
    assert roughness([ones[..., :8, :8]]).item() == 2
    assert roughness([ones]).item() == 34
    assert roughness([stripes, chessboard]).item() == 4
    assert roughness([torch.cat([stripes, chessboard])]).item() == 4


@pytest.mark.slow
def test_privacy_is_measured_and_drawn(tmp_path):
    w, images = wanted()
    figures = measure_privacy(
        Linear(),
        Linear(rank=2),
        images,
        Start(torch.zeros(3), 1.0),
        metric=Metric(),
        folder=tmp_path,
        seed=0,
        deadline=HOUR,
        steps=200,
    )
    assert figures["projection-plain"] < 1e-3
    assert figures["projection-private"] == pytest.approx((w[:, 2] ** 2).mean().item(), rel=1e-2)
    written = json.loads((tmp_path / "projections.json").read_text())
    assert written["metric"] == "untrained-toy"
    assert len(written["plain"]) == len(written["private"]) == 5
    assert imread(tmp_path / "privacy.png").shape[:2] == (450, 750)
    assert imread(tmp_path / "projections.png").shape[:2] == (3 * 98 + 2, 5 * 98 + 2)


def test_a_deadline_is_kept():
    with pytest.raises(TimeoutError):
        projected(Linear(), wanted()[1], deadline=time.monotonic())


@pytest.mark.slow
def test_our_generator_and_metric_fit():
    with torch.random.fork_rng():
        torch.manual_seed(0)
        generator = Generator(PRESETS["tiny"], classes=3, channels=1)
    metric = PairwiseLPIPS("squeeze", "untrained")
    labels = torch.tensor([0, 2])
    z = torch.randn(2, generator.latent, generator=torch.Generator().manual_seed(1))
    noise = [torch.zeros(1, 1, *shape) for shape in generator.noise_shapes]
    with torch.no_grad():
        images = generator.synthesise(generator.map(labels, z), noise)
    start = mean_w(generator, labels, seed=0, draws=100)
    far, near = (
        project(
            generator,
            images,
            start,
            features=metric.features,
            seed=0,
            deadline=HOUR,
            steps=steps,
        )
        for steps in (1, 60)
    )
    assert (near.distances < 0.5 * far.distances).all()
    assert all(each.grad is None for each in generator.parameters())
