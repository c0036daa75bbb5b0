"""The check before embeddings leave a hospital, against encoders that were made to leak."""

import math
import time
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from audit import decoders
from audit.embeddings import FEWEST, Encoded, audit_embeddings
from client_app.authority.node_config import OwnError
from client_app.authority.policy import Policy
from learning.errors import DeadlineError
from learning.samples import Samples
from strategies.protocol.may_leave import METRICS

N, M = 240, 60  # images, and those of them that embeddings leave of
HARMLESS = {
    "embedding-linked": 0.01,
    "embedding-inverted": 0.01,
    "embedding-bits-most": 30.0,
}


@pytest.fixture(autouse=True)
def short(monkeypatch):
    monkeypatch.setattr(decoders, "STEPS", 100)
    monkeypatch.setattr(decoders, "EVERY", 25)


def images(n=N, shape=(1, 6, 6), classes=3, seed=0) -> Samples:
    """Images of eight patterns, in amounts of their own, and of one for each class."""
    rng = torch.Generator().manual_seed(seed)
    patterns = torch.rand(8 + classes, math.prod(shape), generator=rng)
    labels = torch.arange(n) % classes
    amounts = torch.cat([torch.rand(n, 8, generator=rng), 2 * torch.eye(classes)[labels]], dim=1)
    pixels = amounts @ patterns
    return Samples((255 * pixels / pixels.max()).to(torch.uint8).reshape(n, *shape), labels)


class TinyEncoder(nn.Module):
    """As the frozen encoder: images to the means and the logarithms of deviations."""

    def __init__(self, pixels=36, size=16):
        super().__init__()
        self.trunk = nn.Sequential(nn.Flatten(), nn.Linear(pixels, 32), nn.ReLU())
        self.mean, self.log_deviation = nn.Linear(32, size), nn.Linear(32, size)

    def forward(self, pixels):
        trunk = self.trunk(pixels.float() / 255)
        return self.mean(trunk), self.log_deviation(trunk)


def encoded(samples, means, deviations=0.0, kind="sampled") -> Encoded:
    variances = torch.as_tensor(deviations).expand(means.shape).square()
    return Encoded(kind, samples, means, variances)


def audited(encoded: Encoded, rows=None, seconds=60.0, **changes):
    """The audit of embeddings of the first images, drawn as a hospital draws them."""
    rows = torch.arange(M) if rows is None else rows
    values, variances = encoded.means[rows], encoded.variances[rows]
    if encoded.kind == "sampled":
        noise = torch.randn(values.shape, generator=torch.Generator().manual_seed(1))
        values = values + variances.sqrt() * noise
    if encoded.kind == "stats":
        values = torch.cat([values, variances], dim=1)
    return audit_embeddings(
        encoded, rows, values, np.random.default_rng(0), time.monotonic() + seconds, **changes
    )


def policy_of(tmp_path, text: str) -> Policy:
    path = tmp_path / "policy.toml"
    path.write_text(text, "utf-8")
    return Policy.read(path)


def test_an_encoder_that_was_not_made_to_leak(tmp_path):
    """Its noise is about as large as what it tells."""
    torch.manual_seed(0)
    samples = images()
    with torch.no_grad():
        means, log_deviations = TinyEncoder()(samples.images)
    figures = audited(encoded(samples, means, log_deviations.exp())).figures
    assert figures.keys() == {name for name in METRICS if name.startswith("embedding-")}
    assert all(figure in METRICS[name] for name, figure in figures.items())
    assert figures["embedding-linked"] < 0.1
    assert figures["embedding-inverted"] < 0.1
    assert figures["embedding-bits-most"] < 8
    assert allowed(policy_of(tmp_path, "embeddings.kinds = ['sampled']"), "sampled", figures)


def allowed(policy, kind, figures):
    return all(ruling.holds for ruling in policy.embeddings.judge(kind, figures))


def leaking(samples, amplitude=1.0, deviation=1e-6, noisy=0):
    """An encoder that copies pixels, and adds coordinates of large noise that tell nothing."""
    means = amplitude * samples.images.flatten(1).float() / 255
    means = torch.cat([means, torch.zeros(len(means), noisy)], dim=1)
    deviations = torch.full_like(means, deviation)
    deviations[:, len(deviations[0]) - noisy :] = 10.0
    return encoded(samples, means, deviations)


@pytest.mark.slow
@pytest.mark.parametrize("hidden", [{}, {"amplitude": 1e-3, "deviation": 1e-6, "noisy": 200}])
def test_pixels_in_embeddings_are_found(hidden, tmp_path):
    """Also at a small amplitude under much noise."""
    figures = audited(leaking(images(), **hidden)).figures
    assert figures["embedding-linked"] > 0.98
    assert figures["embedding-inverted"] > 0.95
    assert figures["embedding-bits-most"] > 100
    for rule in ("max-bits = 1e9", "max-linked = 1.0"):
        lax = policy_of(tmp_path, f"[embeddings]\nkinds = ['sampled']\n{rule}")
        assert not allowed(lax, "sampled", figures)


def test_a_number_of_each_image_among_noise_links_it():
    """One coordinate of twenty-one is exact; in plain distances it counts as much as any other."""
    torch.manual_seed(0)
    means = torch.cat([torch.arange(N)[:, None] / N, 0.3 * torch.randn(N, 20)], dim=1)
    deviations = torch.tensor([1e-4] + [1.0] * 20)
    assert audited(encoded(images(), means, deviations)).figures["embedding-linked"] == 1


def test_one_image_that_leaks_is_enough(tmp_path):
    """Few of many are seen by no average."""
    samples = images()
    means, deviations = torch.zeros(N, 16), torch.ones(N, 16)
    means[7], deviations[7] = samples.images[7].flatten()[:16] / 255.0, 1e-6
    figures = audited(encoded(samples, means, deviations)).figures
    assert figures["embedding-linked"] < 0.1
    assert figures["embedding-bits-median"] < 1
    assert figures["embedding-bits-most"] > 64
    assert not allowed(policy_of(tmp_path, "embeddings.kinds = ['sampled']"), "sampled", figures)


def test_numbers_without_noise_have_many_bits_each(tmp_path):
    """Four exact numbers of 32 bits of one image are more than 64 bits."""
    samples = images()
    means, deviations = torch.zeros(N, 4), torch.ones(N, 4)
    means[7], deviations[7] = samples.images[7].flatten()[:4] / 255.0, 1e-18
    figures = audited(encoded(samples, means, deviations)).figures
    assert figures["embedding-bits-most"] > 4 * 32
    assert not allowed(policy_of(tmp_path, "embeddings.kinds = ['sampled']"), "sampled", figures)
    deviations[7] = 1e-30  # its square is 0 in 32 bits
    none = audited(encoded(samples, means, deviations)).figures["embedding-bits-most"]
    assert figures["embedding-bits-most"] < none < math.inf


@pytest.mark.parametrize("kind", ["ebr", "stats"])
def test_without_noise_every_embedding_is_linked(kind):
    torch.manual_seed(0)
    samples = images()
    with torch.no_grad():
        means, _ = TinyEncoder()(samples.images)
    figures = audited(encoded(samples, means, 0.0 if kind == "ebr" else 1.0, kind)).figures
    assert figures["embedding-linked"] == 1
    assert figures["embedding-inverted"] > 0.3
    assert "embedding-bits-most" not in figures


def test_variances_tell_of_images_as_well():
    """All means are the same; the pixels are in the variances."""
    samples = images()
    deviations = 1 + samples.images.flatten(1).float() / 255
    means = torch.zeros_like(deviations)
    stats = audited(encoded(samples, means, deviations, "stats")).figures
    sampled = audited(encoded(samples, means, deviations)).figures
    assert stats["embedding-inverted"] > 0.9
    assert sampled["embedding-inverted"] < 0.1


def test_of_an_encoder_that_says_nothing_nothing_is_learnt():
    """Every image fits as well: one of them is named at random."""
    for kind in ("sampled", "ebr"):
        deviation = 1.0 if kind == "sampled" else 0.0
        figures = audited(encoded(images(), torch.ones(N, 4), deviation, kind)).figures
        assert figures["embedding-linked"] == pytest.approx(1 / N)
        assert figures["embedding-inverted"] < 0.05


def test_bits_are_those_of_the_divergence():
    """Half of the images have µ = 1, half −1, all σ = 1/2.

    The variance of all embeddings is s² = 1 · n/(n − 1) + 1/4, and so

        KL(N(µ, σ²) ‖ N(0, s²)) = ½ (ln(s²/σ²) + (σ² + µ²)/s² − 1) = ½ ln(4 s²) nats for large n.
    """
    means = torch.tensor([[1.0], [-1.0]]).repeat(N // 2, 1)
    figures = audited(encoded(images(), means, 0.5)).figures
    expected = 0.5 * math.log2(4 * 1.25)
    assert figures["embedding-bits-most"] == pytest.approx(expected, rel=0.01)
    assert figures["embedding-bits-median"] == pytest.approx(expected, rel=0.01)


def test_the_scale_and_the_place_of_coordinates_do_not_matter():
    samples = images()
    torch.manual_seed(0)
    means, deviations = torch.randn(N, 4), torch.rand(N, 4) + 0.2
    scale, shift = torch.tensor([1e-3, 1.0, 1e3, 1e6]), torch.tensor([0.0, 5.0, -1e3, 1e7])
    plain = audited(encoded(samples, means.double(), deviations.double())).figures
    moved = encoded(samples, means.double() * scale + shift, deviations.double() * scale)
    assert audited(moved).figures == pytest.approx(plain, rel=1e-3, abs=1e-3)


def test_the_network_restores_what_no_linear_decoder_can():
    """An embedding is a point on a circle, the image shows the cosine of twice the angle."""
    angles = 2 * math.pi * torch.rand(N, generator=torch.Generator().manual_seed(0))
    shade = (127 * (1 + torch.cos(2 * angles))).to(torch.uint8)
    samples = Samples(shade[:, None, None, None].expand(N, 1, 6, 6), torch.zeros(N).long())
    means = torch.stack([angles.cos(), angles.sin()], dim=1)
    assert audited(encoded(samples, means, kind="ebr")).figures["embedding-inverted"] > 0.8


@pytest.mark.parametrize("value", [math.nan, math.inf])
@pytest.mark.parametrize("where", ["means", "variances"])
def test_what_is_not_finite_stays(where, value, tmp_path):
    made = leaking(images())
    spoilt = getattr(made, where).clone()
    spoilt[3, 5] = value
    result = audited(replace(made, **{where: spoilt}))
    assert all(map(math.isnan, result.figures.values()))
    lax = "[embeddings]\nkinds = ['sampled']\nmax-bits = 1e9\nmax-linked = 1.0\nmax-inverted = 1.0"
    assert not allowed(policy_of(tmp_path, lax), "sampled", result.figures)


def test_few_images_are_too_few_to_learn_from():
    made = leaking(images())
    rows = torch.arange(N - FEWEST + 1)
    assert math.isnan(audited(made, rows).figures["embedding-inverted"])
    assert audited(made, rows[:-1]).figures["embedding-inverted"] > 0.5
    assert math.isnan(audited(made, rows[:0]).figures["embedding-linked"])


@pytest.mark.slow
def test_one_image_of_each_class():
    """No class has a mean: the mean of all images is what they are compared with."""
    samples = replace(images(), labels=torch.arange(N))
    figures = audited(leaking(samples)).figures
    assert figures["embedding-inverted"] > 0.95
    torch.manual_seed(0)
    figures = audited(encoded(samples, torch.randn(N, 8), 1.0)).figures
    assert figures["embedding-inverted"] < 0.1


def test_a_class_of_which_no_image_stays():
    samples = images()
    labels = torch.where(torch.arange(N) < M, 7, samples.labels)  # classes 3 to 6 have no image
    assert audited(leaking(replace(samples, labels=labels))).figures["embedding-inverted"] > 0.5


@pytest.mark.slow
def test_colour_images_of_any_size_and_rows():
    """More than 32 pixels a side are reduced; images may lie among others."""
    samples = images(shape=(3, 40, 36))
    samples = replace(samples, rows=torch.arange(N).flip(0), labels=samples.labels.flip(0))
    means = samples.images.float()[:, :, ::8, ::8].flatten(1) / 255
    figures = audited(encoded(samples, means, 1e-3)).figures
    assert figures["embedding-inverted"] > 0.9


@pytest.mark.slow
def test_the_same_again_and_nobody_else_s_draws():
    made = leaking(images(), deviation=0.3)
    torch.manual_seed(5)
    expected = torch.rand(1)
    torch.manual_seed(5)
    first = audited(made).figures
    assert torch.rand(1) == expected
    assert audited(made).figures == first


def test_a_deadline_ends_the_check():
    with pytest.raises(DeadlineError):
        audited(leaking(images()), seconds=-1.0)


def test_a_hospital_that_has_not_said_so_sends_no_embedding():
    assert not allowed(Policy.read(), "sampled", HARMLESS)


@pytest.mark.parametrize(
    ("kind", "name", "value", "rule"),
    [
        ("sampled", "embedding-linked", 0.3, "max-linked"),
        ("sampled", "embedding-inverted", 0.2, "max-inverted"),
        ("sampled", "embedding-bits-most", 65.0, "max-bits"),
        ("ebr", "embedding-linked", 1.0, "max-linked"),
        ("stats", "embedding-linked", 0.0, "kinds"),
    ],
)
def test_each_rule_keeps_embeddings_at_home(kind, name, value, rule, tmp_path):
    rules = policy_of(tmp_path, "embeddings.kinds = ['sampled', 'ebr']")
    assert allowed(rules, "sampled", HARMLESS)
    assert allowed(rules, "ebr", {**HARMLESS, "embedding-bits-most": math.inf})
    rulings = rules.embeddings.judge(kind, {**HARMLESS, name: value})
    assert f"embeddings.{rule}" in [ruling.rule for ruling in rulings if not ruling.holds]


def test_no_kind_of_embedding_is_misspelt(tmp_path):
    with pytest.raises(OwnError) as refusal:
        policy_of(tmp_path, "embeddings.kinds = ['stat']")
    assert "did you mean 'stats'?" in refusal.value.explain()
