import re

import pytest
import torch
from matplotlib.image import imread

from gan.audit import Auditor, Vectors, nearest, perceptual, pixels, save_nearest

CLASSES = ("healthy", "ill", "unknown")


def features(images):
    """Means of 2 x 2 pixels: a perceptual distance for tests."""
    return torch.nn.functional.avg_pool2d(images, 2).flatten(1)


def draw(count, seed):
    """Smooth images [count, 1, 8, 8] of classes 0 and 1 in turn, from one distribution."""
    rng = torch.Generator().manual_seed(seed)
    coarse = 60 * torch.randn(count, 1, 3, 3, generator=rng) + 128
    images = torch.nn.functional.interpolate(coarse, size=8, mode="bilinear")
    return images.clamp(0, 255).to(torch.uint8), torch.arange(count) % 2


def auditor(quantile=0.01, held_out=None):
    training, labels = draw(200, seed=1)
    held_out = draw(100, seed=2)[0] if held_out is None else held_out
    settings = {"classes": CLASSES, "features": features, "quantile": quantile}
    return Auditor(training, held_out, wanted=labels, **settings)


def dots(*values):
    """Images of a single pixel."""
    return torch.tensor(values, dtype=torch.uint8).view(-1, 1, 1, 1)


def grey(images):
    """The grey values of dots: a perceptual distance of 30² between 0 and 30."""
    return ((images + 1) * 127.5).round().flatten(1)


def dot_auditor(held_out, quantile, training=(0, 200)):
    return Auditor(
        dots(*training),
        dots(*held_out),
        wanted=torch.zeros(1, dtype=torch.int64),
        classes=("only",),
        features=grey,
        quantile=quantile,
    )


def test_thresholds_and_figures_by_hand():
    """Training pixels 0 and 200; held-out ones 10, 30, 60 and 150 are 10, 30, 60 and 50 from them.

    Sorted 10, 30, 50, 60; the quantile 0.4 of 4 is the value at floor(0.4 · 3) = 1, which is 30:
    30/255 in pixels and 30² perceptually. Of the synthetic ones 29 (29 away) and 200 (a copy) are
    too near, 30 and 100 (30 and 100 away) are not.
    """
    judge = dot_auditor((10, 30, 60, 150), 0.4)
    images = dots(29, 200, 30, 100)
    assert judge.refuses(images).tolist() == [True, True, False, False]
    verdict = judge.check(images, torch.zeros(4, dtype=torch.int64))
    assert not verdict.passed
    assert verdict.refused == (0, 1)
    expected = {
        "release-threshold": 30,
        "release-nearest": 0,
        "release-median": 29.5,
        "held-out-nearest": 10,
        "held-out-median": 40,
    }
    for name, distance in expected.items():
        assert verdict.figures[f"{name}-pixels"] == pytest.approx(distance / 255, abs=1e-6)
    assert verdict.figures["release-threshold-perceptual"] == 900
    assert verdict.figures["release-refused"] == 0.5
    assert verdict.reasons == (
        "2 of 4 images are too near to a training image (quantile 0.4 of held-out images): "
        "0 (pixels 0.1137 < 0.1176, perceptual 841 < 900); 1 (a copy).",
    )


def test_share_nearer_to_training_by_hand():
    """Training 0 and 200, held-out 100 and 110: 20 is nearer to 0, 104 to 100, 50 to neither."""
    judge = dot_auditor((100, 110), 0)
    verdict = judge.check(dots(20, 104, 50), torch.zeros(3, dtype=torch.int64))
    assert verdict.figures["release-nearer-to-training"] == pytest.approx((1 + 0 + 0.5) / 3)


def test_copies_are_refused_by_name():
    training, _ = draw(200, seed=1)
    images, labels = draw(40, seed=3)
    images[[4, 17]] = training[[123, 77]]
    verdict = auditor(quantile=0).check(images, labels)
    assert {4, 17} <= set(verdict.refused)
    assert "4 (a copy)" in verdict.reasons[0]
    assert "17 (a copy)" in verdict.reasons[0]
    assert "123" not in verdict.reasons[0]
    assert verdict.figures["release-nearest-pixels"] == 0


def test_noisy_copies_are_refused():
    training, labels = draw(200, seed=1)
    noise = torch.randint(-2, 3, training.shape, generator=torch.Generator().manual_seed(4))
    noisy = (training + noise).clamp(0, 255).to(torch.uint8)
    verdict = auditor().check(noisy, labels)
    assert verdict.refused == tuple(range(200))
    assert verdict.figures["release-refused"] == 1
    assert verdict.figures["release-nearer-to-training"] > 0.7
    assert len(re.findall(r"pixels", verdict.reasons[0])) == 10
    assert verdict.reasons[0].endswith(", ...")


def test_fresh_draws_pass_but_for_a_few_which_can_be_dropped():
    judge = auditor()
    images, labels = draw(200, seed=5)
    too_near = judge.refuses(images)
    assert too_near.float().mean() < 0.04  # two metrics, each at 1 %
    verdict = judge.check(images, labels)
    assert verdict.refused == tuple(too_near.nonzero().flatten().tolist())
    assert 0.35 < verdict.figures["release-nearer-to-training"] < 0.65
    kept = judge.check(images[~too_near], labels[~too_near])
    assert kept.passed
    assert kept.reasons == kept.refused == ()
    assert kept.figures["release-refused"] == 0


def test_held_out_copies_do_not_lower_the_threshold():
    """Without the copies 0 and 200 only 30 is left of the held-out pixels."""
    judge = dot_auditor((0, 30, 200), 0)
    assert judge.thresholds["pixels"] == pytest.approx(30 / 255)
    with pytest.raises(ValueError, match="Every held-out image is a copy"):
        dot_auditor((0, 200), 0)


def test_few_held_out_images_give_their_minimum():
    assert dot_auditor((10, 30, 60), 0.05).thresholds["pixels"] == pytest.approx(10 / 255)


def test_constant_images_are_judged_like_others():
    """All training pixels are 0: what differs by as much as a held-out image does passes."""
    judge = dot_auditor((5,), 0, training=(0, 0))
    assert judge.refuses(dots(0, 4, 5)).tolist() == [True, True, False]


def test_what_is_near_in_one_metric_only_is_refused():
    """A chessboard on top leaves the means of 2 x 2 pixels as they are."""
    training, labels = draw(200, seed=1)
    board = torch.tensor([[1, -1], [-1, 1]]).repeat(4, 4)
    images = (training.clamp(100, 155) + 100 * board).to(torch.uint8)
    judge = Auditor(
        training.clamp(100, 155),
        draw(100, seed=2)[0].clamp(100, 155),
        wanted=labels,
        classes=CLASSES,
        features=features,
        quantile=0.01,
    )
    verdict = judge.check(images, labels)
    assert verdict.figures["release-nearest-pixels"] > 0.3
    assert verdict.figures["release-refused"] == 1
    assert "pixels" not in verdict.reasons[0]


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda x, y: (x.float(), y), "Images are torch.float32, not torch.uint8."),
        (lambda x, y: (x[..., :4], y), "Images are of shape (1, 8, 4), the hospital's of (1, 8, 8"),
        (lambda x, y: (x, y.int()), "Labels are torch.int32, not torch.int64."),
        (lambda x, y: (x, y[1:]), "There are labels of shape (9,) for 10 images."),
        (lambda x, y: (x, y + 2), "Labels are not all within 0..2."),
        (lambda x, y: (x, y - 1), "Labels are not all within 0..2."),
        (lambda x, y: (x, 0 * y), "No image of class ill."),
        (lambda x, y: (x[:0], y[:0]), "No image of class healthy, ill."),
    ],
)
def test_a_buffer_of_the_wrong_form_is_refused(change, reason):
    verdict = auditor().check(*change(*draw(10, seed=6)))
    assert not verdict.passed
    assert reason in verdict.reasons[0]
    assert not verdict.figures
    assert not verdict.refused


def test_features_must_be_finite():
    with pytest.raises(ValueError, match="not finite"):
        Vectors(draw(3, seed=1)[0], lambda images: images.flatten(1) / 0.0)


@pytest.mark.parametrize("keeps", [True, False])
def test_nearest_in_blocks_is_the_slow_obvious_version(keeps, monkeypatch):
    x, y = draw(11, seed=7)[0], draw(25, seed=8)[0]
    y[20] = x[3]
    slow = (pixels(x)[:, None] - pixels(y)).square().sum(dim=2).min(dim=1)  # of [11, 25]
    monkeypatch.setattr("gan.audit.BLOCK", 4)
    monkeypatch.setattr("gan.audit.KEPT_VALUES", 10**6 if keeps else 0)
    distances, indices = nearest(Vectors(x, pixels), Vectors(y, pixels))
    torch.testing.assert_close(distances, slow.values)
    assert torch.equal(indices, slow.indices)
    assert distances[3] == 0


def test_the_distance_in_pixels_is_the_root_mean_square():
    """Two pixels, off by 3 and 4 of 255: the root of (9 + 16) / 2, over 255."""
    x = torch.tensor([[[[10, 20]]], [[[13, 24]]]], dtype=torch.uint8)
    a, b = pixels(x)
    assert (a - b).norm().item() == pytest.approx(12.5**0.5 / 255)


def test_images_reach_the_features_in_minus_one_to_one():
    assert perceptual(dots(0, 255), lambda images: images.flatten(1)).tolist() == [[-1], [1]]


def test_nearest_pairs_are_drawn_first(tmp_path):
    """Single pixels become 96 x 96: 0 | 200 and 190 | 200, of which the second comes first."""
    path = tmp_path / "nearest.png"
    save_nearest(path, dots(0, 190), dots(200), lambda images: images.flatten(1))
    drawn = (255 * imread(path)[8:-8, :, 0]).round()
    assert drawn.shape == (96, 2 * (8 + 2 * 96) + 8)
    assert drawn[50, [50, 150, 250, 350]].tolist() == [190, 200, 0, 200]
