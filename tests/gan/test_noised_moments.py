import ast
import math
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy.fft import dctn
from scipy.stats import kstest

from audit.epsilon import prove_epsilon
from gan import moment_generator
from gan.moment_generator import MomentGenerator
from gan.noised_moments import BINS, SHARES, Basis, Moments, release, secure_normal, weights_of


def released(images, labels, classes, noise, normal, patients=None):
    owners = np.arange(len(labels)) if patients is None else patients
    return release(images, labels, classes, noise, normal, owners)


def nothing(count):
    return np.zeros(count)


def images_of(count, shape=(1, 8, 8), seed=0):
    rng = torch.Generator().manual_seed(seed)
    return torch.randint(0, 256, (count, *shape), dtype=torch.uint8, generator=rng)


def difference(one: Moments, other: Moments) -> float:
    """The distance of two statistics in the norm in which noise is drawn."""
    squares = one.squares - other.squares
    parts = {
        "count": one.counts - other.counts,
        "sum": one.sums - other.sums,
        "square": squares,
        "histogram": (one.histogram - other.histogram) / math.sqrt(one.shape[0]),
    }
    return math.sqrt(
        sum((SHARES[name] * np.linalg.norm(each)) ** 2 for name, each in parts.items())
    )


@pytest.mark.parametrize("shape", [(1, 8, 8), (3, 12, 10), (1, 28, 28)])
@pytest.mark.parametrize("kind", ["noise", "black", "white", "half", "dot"])
def test_one_image_more_moves_the_statistic_by_1_at_most(shape, kind):
    images, labels = images_of(20, shape), torch.arange(20) % 4
    last = images[-1]
    if kind == "dot":
        last[:] = 0
        last[0, 3, 3] = 255
    elif kind != "noise":
        last[:] = 255 if kind == "white" else 0
        if kind == "half":
            last[:, :, shape[2] // 2 :] = 255
    whole = released(images, labels, 4, 1.0, nothing)
    without = released(images[:-1], labels[:-1], 4, 1.0, nothing)
    assert 0.3 < difference(whole, without) <= 1.0
    # Replaced by its negative, the most different one, in the same class and in another.
    for label in (3, 2):
        other = torch.cat([images[:-1], 255 - last[None]])
        replaced = released(other, torch.cat([labels[:-1], torch.tensor([label])]), 4, 1.0, nothing)
        assert difference(whole, replaced) <= math.sqrt(2)


@pytest.mark.parametrize("shape", [(1, 8, 8), (3, 17, 13), (1, 28, 28)])
def test_no_bit_of_an_image_depends_on_the_others(shape):
    """Otherwise one image more could move the parts of all others to the next step."""
    images = np.random.default_rng(0).integers(0, 256, (9, *shape), dtype=np.uint8)
    basis = Basis.choose(shape)
    alone = [basis.vectors(images[i : i + 1])[0] for i in range(9)]
    assert (basis.vectors(images) == alone).all()


def test_the_statistic_is_what_its_docstring_says():
    """Of one grey image by another transform, without noise, to the grid."""
    image = images_of(1)
    found = released(image, torch.tensor([1]), 3, 1.0, nothing)
    basis, pixels = Basis.choose((1, 8, 8)), image[0, 0].double().numpy() / 255
    pattern = dctn(pixels, norm="ortho").ravel()[basis.places]
    weighted = pattern * basis.weights
    weighted /= np.linalg.norm(weighted)
    rest = [np.linalg.norm(pattern) / 4, 2 * pixels.mean() - 1]
    t = np.array([*(math.sqrt(0.8) * weighted), *(math.sqrt(0.1) * each for each in rest)])
    np.testing.assert_allclose(found.sums[1], t, atol=2**-12)
    np.testing.assert_allclose(found.squares[1], np.outer(t, t), atol=2**-11)
    assert found.counts.tolist() == [0, 1, 0]
    assert np.all(found.sums[[0, 2]] == 0)
    counted = np.bincount(image.flatten().numpy() // 8, minlength=BINS) / 64
    np.testing.assert_allclose(found.histogram[0], counted, atol=1e-12)
    assert np.linalg.norm(t) <= 1


def test_a_patient_of_five_images_moves_it_no_more_than_one_of_one():
    images, labels = images_of(25), torch.arange(25) % 2
    patients = np.array([*range(20), *[20] * 5])
    whole = released(images, labels, 2, 1.0, nothing, patients)
    without = released(images[:20], labels[:20], 2, 1.0, nothing, patients[:20])
    assert 0.3 < difference(whole, without) <= 1.0
    by_image = released(images, labels, 2, 1.0, nothing)
    assert difference(by_image, without) > 1.5


@pytest.mark.parametrize("k", [1, 2, 3, 5, 64, 100, 129, 255, 256, 257, 1000, 5000])
def test_a_patient_counts_1_whatever_the_number_of_images(k):
    """An image counts 1/k, to a step of 1/256; here k images of a patient among those of others."""
    patients = np.random.default_rng(0).permutation(np.repeat([7, 3, 5], [k, 1, 300]))
    weights = weights_of(patients) / 256
    own = weights[patients == 7]
    assert [weights[patients == each].sum() for each in (7, 3, 5)] == [1, 1, 1]
    assert np.abs(own - 1 / k).max() < 1 / 256
    if 256 % k == 0:
        assert {*own} == {1 / k}
    if k > 256:  # those that count are spread over all
        assert np.diff(np.flatnonzero(own)).max() <= math.ceil(k / 256)


def test_a_patient_of_600_images_moves_the_statistic_as_one_of_a_single_image():
    images, labels = images_of(1)[[0] * 604], torch.zeros(604, dtype=torch.int64)
    patients = np.array([0, 1, 2, 3, *[4] * 600])
    many = released(images, labels, 1, 1.0, nothing, patients)
    single = released(images[:5], labels[:5], 1, 1.0, nothing, patients[:5])
    assert many.counts == [5]
    assert difference(many, single) == 0


def test_noise_has_the_size_and_the_grid_that_it_says():
    images, labels = images_of(30), torch.arange(30) % 3
    noise, rng = 2.0, np.random.default_rng(0)
    exact = released(images, labels, 3, noise, nothing)
    noised = [released(images, labels, 3, noise, rng.standard_normal) for _ in range(40)]
    for name, share in SHARES.items():
        field = {"count": "counts", "sum": "sums", "square": "squares"}.get(name, name)
        errors = np.stack([getattr(each, field) - getattr(exact, field) for each in noised])
        if name == "square":
            diagonal = np.einsum("...ii->...i", errors).ravel()
            assert diagonal.std() == pytest.approx(noise / share, rel=0.05)
            np.testing.assert_array_equal(errors, errors.swapaxes(-1, -2))
            errors, share = errors[..., 0, 1:], share * math.sqrt(2)
        assert errors.std() == pytest.approx(noise / share, rel=0.12)
        assert abs(errors.mean()) < 4 * noise / share / math.sqrt(errors.size)
    whole = noised[0].sums * 2**20
    np.testing.assert_array_equal(whole, np.rint(whole))


def test_secure_noise_is_normal_and_never_the_same():
    drawn = secure_normal(20000)
    assert kstest(drawn, "norm").pvalue > 1e-4
    assert not np.array_equal(drawn, secure_normal(20000))


@pytest.mark.parametrize("byte", [b"\x00", b"\xff"])
def test_the_largest_noise_is_finite(byte, monkeypatch):
    monkeypatch.setattr("gan.noised_moments.os.urandom", lambda count: byte * count)
    assert abs(secure_normal(1)) == pytest.approx(8.21, abs=0.01)


def test_few_large_images_are_in_memory_at_once(monkeypatch):
    images, labels = images_of(20, (3, 12, 10)), torch.arange(20) % 4
    whole, original = released(images, labels, 4, 1.0, nothing), Basis.vectors
    sizes = []

    def vectors(basis, part):
        sizes.append(len(part))
        return original(basis, part)

    monkeypatch.setattr("gan.noised_moments.VALUES", 7 * 3 * 12 * 10)
    monkeypatch.setattr(Basis, "vectors", vectors)
    parts = released(images, labels, 4, 1.0, nothing)
    assert sizes == [7, 7, 6]
    for name, array in vars(whole).items():
        np.testing.assert_array_equal(getattr(parts, name), array)


def test_few_large_images_are_rendered_at_once(monkeypatch):
    labels = torch.arange(20) % 4
    moments = released(images_of(20, (3, 12, 10)), labels, 4, 1e-3, nothing)
    whole, original, sizes = MomentGenerator(moments, 1).render(labels, 3), MomentGenerator._raw, []

    def raw(generator, vectors):
        sizes.append(len(vectors))
        return original(generator, vectors)

    monkeypatch.setattr(moment_generator, "VALUES", 7 * 3 * 12 * 10)
    monkeypatch.setattr(MomentGenerator, "_raw", raw)
    assert torch.equal(MomentGenerator(moments, 1).render(labels, 3), whole)
    assert sizes[-3:] == [7, 7, 6]
    assert max(sizes) == 7


def test_a_histogram_comes_from_few_large_images(monkeypatch):
    labels = torch.arange(20) % 4
    moments = released(images_of(20, (3, 12, 10)), labels, 4, 1e-3, nothing)
    monkeypatch.setattr(moment_generator, "POOLED", 50 * 3 * 12 * 10)
    original, drawn = MomentGenerator._raw, []

    def raw(generator, vectors):
        drawn.append(len(vectors))
        return original(generator, vectors)

    monkeypatch.setattr(MomentGenerator, "_raw", raw)
    MomentGenerator(moments, 1)
    assert sum(drawn) == 50


def test_a_statistic_survives_the_store():
    kept = released(images_of(8), torch.arange(8) % 2, 2, 1.5, nothing)
    again = Moments.from_arrays({name: np.asarray(each) for name, each in vars(kept).items()})
    for name, each in vars(kept).items():
        np.testing.assert_array_equal(getattr(again, name), each)


def test_the_generator_is_given_no_image():
    """Its file names nothing by which it could reach a data set or a file."""
    tree = ast.parse(Path(moment_generator.__file__ or "").read_text())
    imported = {
        alias.name if isinstance(node, ast.Import) else f"{node.module}.{alias.name}"
        for node in ast.walk(tree)
        if isinstance(node, ast.Import | ast.ImportFrom)
        for alias in node.names
    }
    own = {name for name in imported if name.startswith(("gan.", "client_app", "learning"))}
    names = {"BINS", "BRIGHTNESS", "CONTRAST", "PATTERN", "SHARES", "VALUES", "Basis", "Moments"}
    assert own == {f"gan.noised_moments.{name}" for name in {*names, "certain_classes"}}


@pytest.mark.parametrize("shape", [(1, 10, 12), (3, 10, 12)])
def test_images_have_the_moments_and_the_classes_of_the_real_ones(shape, monkeypatch):
    """Two classes, dark and bright halves; without noise, and without deformations."""
    monkeypatch.setattr(moment_generator, "DEFORMED", 0.0)
    images = images_of(400, shape) // 3
    labels = torch.arange(400) % 2
    images[labels == 1, :, :, :6] += 100
    images[labels == 0, :, 5:, :] += 140
    generator = MomentGenerator(released(images, labels, 4, 1e-3, nothing), 10)
    assert generator.classes.tolist() == [0, 1]
    made = generator.render(labels, 7)
    assert made.shape == images.shape
    assert made.dtype == torch.uint8
    assert torch.equal(made, generator.render(labels, 7))
    assert not torch.equal(made, generator.render(labels, 8))
    for each in (0, 1):
        real, fake = (part[labels == each].double().mean(0) for part in (images, made))
        assert (real - fake).abs().mean() < 12
    for channel in range(shape[0]):
        real, fake = (part[:, channel].double().quantile(0.9) for part in (images, made))
        assert real.item() == pytest.approx(fake.item(), abs=12)


def test_classes_of_which_noise_could_be_the_number_are_left_out():
    images, labels = images_of(300), torch.tensor([0] * 200 + [1] * 90 + [2] * 10)
    moments = released(images, labels, 4, 5.0, nothing)
    # 10 images, and two standard deviations of 5 / 0.2 = 25 more.
    assert MomentGenerator(moments, 10).classes.tolist() == [0, 1]
    assert MomentGenerator(moments, 41).classes.tolist() == [0]
    assert MomentGenerator(moments, 1000).classes.tolist() == []


def attack(noise: float) -> float:
    """The ε that a likelihood-ratio attack proves of the mechanism, at δ = 1e-5.

    Every class is a release with noise of its own. In 40,000 of them there is a canary, in as many
    there is nothing. The attacker knows the canary and looks for it where it has most to tell.
    """
    trials, rows_columns = (
        40000,
        np.triu_indices(len(Basis.choose((1, 3, 3)).vectors(CANARY)[0]), 1),
    )

    def flat(moments):
        squares, square = moments.squares, SHARES["square"]
        parts = [SHARES["count"] * moments.counts[:, None], SHARES["sum"] * moments.sums]
        parts += [square * np.einsum("kii->ki", squares)]
        parts += [square * math.sqrt(2) * squares[:, *rows_columns]]
        return np.concatenate(parts, axis=1)

    def releases(images, labels, normal):
        return flat(released(images, labels, trials, noise, normal))

    labels, normal = torch.arange(trials), np.random.default_rng(0).standard_normal
    canaries = torch.from_numpy(CANARY).repeat(trials, 1, 1, 1)
    canary = releases(canaries[:1], labels[:1], nothing)[0]
    scores = [
        releases(canaries[:count], labels[:count], normal) @ canary / np.linalg.norm(canary) / noise
        for count in (trials, 0)
    ]
    threshold = np.linalg.norm(canary) / 2 / noise + 2.5  # chosen before, by calculation
    hits, alarms = (int((each > threshold).sum()) for each in scores)
    return prove_epsilon(hits, trials, alarms, trials, 1e-5)


CANARY = np.array([[[[0, 255, 0], [255, 255, 0], [0, 255, 255]]]], dtype=np.uint8)


@pytest.mark.slow
def test_the_audited_epsilon_is_below_the_claim_and_half_the_noise_is_caught():
    noise = 1.99381  # ε = 2 at δ = 1e-5
    assert 0.5 < attack(noise) <= 2
    assert attack(noise / 2) > 2
