import pytest
import torch

from audit import search as search_module
from audit.search import SCORES, Found, Search
from tests.gan.drawn import draw


@pytest.fixture(scope="module")
def training():
    return draw(60, seed=1)[0]


@pytest.fixture(scope="module")
def search(training):
    return Search(training)


def residuals(search, images):
    found = search(images.round().clamp(0, 255).to(torch.uint8))
    return dict(zip(SCORES, found.residuals.exp().T, strict=True)), found


ALIGNED = {
    "mirror": lambda x: x.flip(3),
    "turn": lambda x: x.rot90(1, (2, 3)),
    "brightness": lambda x: 0.5 * x + 60,
    "inversion": lambda x: 255 - x,
    "all of these": lambda x: 255 - (0.5 * x.rot90(3, (2, 3)).flip(3) + 60),
}


@pytest.mark.parametrize("name", ALIGNED)
def test_what_only_turns_or_lights_an_image_changes_nothing(search, training, name):
    """Rounding to whole grey levels leaves a residual of 1/12 over the variance, about 1e-4."""
    left, found = residuals(search, ALIGNED[name](training[7:12].float()))
    assert (left["aligned"] < 0.01).all()
    assert found.index.tolist() == [7, 8, 9, 10, 11]


def test_a_mix_is_explained_by_two_images_and_by_no_single_one(search, training):
    left, _ = residuals(search, (training[3:7].float() + training[13:17]) / 2)
    assert (left["mixed"] < 0.05).all()
    assert (left["aligned"] > 2 * left["mixed"]).all()


def test_a_shifted_image_is_found(search, training):
    """By two of 16 pixels to the right."""
    left, found = residuals(search, training[20:24].roll(2, 3).float())
    assert (left["moved"] < 0.05).all()
    assert found.index.tolist() == [20, 21, 22, 23]


def test_a_blurred_image_is_explained_by_the_image_and_itself_behind_a_filter(search, training):
    soft = torch.nn.functional.avg_pool2d(training[:4].float(), 3, 1, 1, count_include_pad=False)
    left, _ = residuals(search, soft)
    assert (left["altered"] < left["aligned"]).all()


def halved(x):
    return torch.cat([x[..., :8], x.roll(1, 0)[..., 8:]], 3)


def checkered(x):
    at = torch.arange(16) // 4
    return x.where((at[:, None] + at) % 2 == 0, x.roll(1, 0))


def hidden(x):
    x = x.clone()
    x[..., 3:13, 4:13] = 128
    return x


PARTS = {
    "halves of two": halved,
    "a checkerboard of two": checkered,
    "a third hidden": hidden,
    "mirrored, and a half hidden": lambda x: x.flip(3) * (torch.arange(16) < 8),
    "quarters moved": lambda x: x.roll((8, 8), (2, 3)),
    "strips moved": lambda x: torch.cat([x[..., 4:], x[..., :4]], 3),
}


@pytest.mark.parametrize("name", PARTS)
def test_blocks_of_a_training_image_are_found(search, training, name):
    left, _ = residuals(search, PARTS[name](training[:20].float()))
    others, _ = residuals(search, PARTS[name](draw(20, seed=9)[0].float()))
    assert (left["in parts"] < others["in parts"].min()).double().mean() >= 0.95


def test_two_narrow_images_beside_each_other_are_found(search, training):
    narrow = torch.nn.functional.avg_pool2d(training[:20].float(), (1, 2))
    left, _ = residuals(search, torch.cat([narrow, narrow.roll(1, 0)], 3))
    others, _ = residuals(search, draw(20, seed=9)[0].float())
    assert (left["shrunken"] < others["shrunken"].min()).double().mean() >= 0.95


@pytest.mark.parametrize("edge", [2, 3, 4])
@pytest.mark.parametrize("grey", [0, 255])
def test_an_image_in_a_border_is_found(search, training, edge, grey):
    """Of 16 pixels, 12 to 8 remain for the image."""

    def frame(images):
        inner = torch.nn.functional.interpolate(images.float(), [16 - 2 * edge] * 2, mode="area")
        return torch.nn.functional.pad(inner.flip(3), [edge] * 4, value=grey)

    left, _ = residuals(search, frame(training[:20]))
    others, _ = residuals(search, frame(draw(20, seed=9)[0]))
    assert (left["shrunken"] < others["shrunken"].min()).double().mean() >= 0.95


def test_an_image_of_a_patient_with_several_counts_more(training):
    """Two images of one patient are like it: of two patients they would be one each."""
    rng = torch.Generator().manual_seed(3)
    noise = [10 * torch.randn(training.shape, generator=rng) for _ in range(2)]
    views, asked = (
        (training.float() + each).round().clamp(0, 255).to(torch.uint8) for each in noise
    )
    known, whose = torch.cat([training, views]), torch.arange(len(training)).repeat(2)
    several, single = (
        residuals(Search(known, patients), asked[:20].float())[0]["of a patient"]
        for patients in (whose, torch.arange(len(known)))
    )
    assert (several < single).all()


@pytest.fixture(scope="module")
def coloured():
    """Colours that differ from image to image."""
    return torch.stack([draw(60, seed)[0][:, 0] for seed in (1, 2, 3)], 1)


HUES = {
    "red less green": lambda x: torch.stack([128 + x / 2, 128 - x / 2, 0 * x + 128], 1),
    "blue less the others": lambda x: torch.stack([128 - x / 3, 128 - x / 3, 128 + 2 * x / 3], 1),
    "blue alone": lambda x: torch.stack([0 * x + 128, 0 * x + 128, 128 + x], 1),
    "inverted": lambda x: torch.stack([128 - x / 2, 128 + x / 2, 0 * x + 128], 1),
}


@pytest.mark.parametrize("name", HUES)
def test_a_patient_in_the_colours_is_found(coloured, name):
    search = Search(coloured)
    hidden = HUES[name](coloured[:20].float().mean(1) - 128)
    others = torch.stack([draw(20, seed)[0][:, 0] for seed in (7, 8, 9)], 1).float()
    left, _ = residuals(search, hidden)
    assert (left["in colour"] < residuals(search, others)[0]["in colour"].min()).all()


def test_colours_alone_are_found(coloured):
    """What grey leaves out: each pixel less its grey."""
    own = coloured[:20].float()
    left, _ = residuals(Search(coloured), own - own.mean(1, keepdim=True) + 128)
    assert (left["in colour"] < 0.05).all()


def test_few_images_are_in_memory_as_floats(monkeypatch, coloured):
    """A hospital may have many photographs: as floats they take four times the memory."""
    whole, original, sizes = Search(coloured), search_module._colours, []

    def colours(images):
        sizes.append(len(images))
        return original(images)

    monkeypatch.setattr(search_module, "QUERIES", 25)
    monkeypatch.setattr(search_module, "_colours", colours)
    parts = Search(coloured)
    assert sizes == [25, 25, 10]
    torch.testing.assert_close(parts.tiny_colours, whole.tiny_colours)


def test_other_images_are_not_explained(search):
    left, _ = residuals(search, draw(20, seed=9)[0].float())
    left["in colour"] = left["aligned"]  # grey images have none
    left["of a patient"] = left["moved"]  # squared where one has a single image
    assert all(each.median() > 0.05 for each in left.values())


def test_images_are_searched_for_one_by_one(search, monkeypatch):
    """What is found does not depend on the other images, nor on the blocks."""
    images = draw(5, seed=9)[0]
    whole = search(images)
    monkeypatch.setattr("audit.search.QUERIES", 2)
    monkeypatch.setattr("audit.search.VALUES", 8 * 3 * len(search.poses))
    parts = [search(each[None]) for each in images]
    for name in Found.__dataclass_fields__:
        joined = torch.cat([getattr(each, name) for each in parts])
        torch.testing.assert_close(joined, getattr(whole, name), atol=1e-3, rtol=1e-3)


@pytest.mark.parametrize("shape", [(1, 1, 1), (1, 4, 6), (3, 2, 2)])
def test_small_images_are_searched_for_like_others(shape):
    rng = torch.Generator().manual_seed(0)
    images = torch.randint(0, 256, (4, *shape), dtype=torch.uint8, generator=rng)
    assert Search(images)(images[:2]).residuals.isfinite().all()
