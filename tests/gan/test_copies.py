import pytest
import torch

from gan.copies import SCORES, Found, Search, squares
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


def test_a_shifted_image_is_found_and_drawn_where_it_is(search, training):
    """By two of 16 pixels to the right: a quarter of half a side."""
    shifted = training[20:24].roll(2, 3)
    left, found = residuals(search, shifted.float())
    assert (left["moved"] < 0.05).all()
    assert found.index.tolist() == [20, 21, 22, 23]
    torch.testing.assert_close(found.pose[:, 0], torch.full((4,), -0.25), atol=0.05, rtol=0)
    drawn = search.dressed(found.index, found.frame, found.pose, 16)
    apart = (drawn - squares(shifted, 32))[..., 4:-4, 4:-4].abs()
    assert apart.mean() < 0.03


def test_a_blurred_image_is_explained_by_the_image_and_itself_behind_a_filter(search, training):
    soft = torch.nn.functional.avg_pool2d(training[:4].float(), 3, 1, 1, count_include_pad=False)
    left, _ = residuals(search, soft)
    assert (left["altered"] < left["aligned"]).all()


def test_other_images_are_not_explained(search):
    left, _ = residuals(search, draw(20, seed=9)[0].float())
    assert all(each.median() > 0.05 for each in left.values())


def test_images_are_searched_for_one_by_one(search, monkeypatch):
    """What is found does not depend on the other images, nor on the blocks."""
    images = draw(5, seed=9)[0]
    whole = search(images)
    monkeypatch.setattr("gan.copies.QUERIES", 2)
    monkeypatch.setattr("gan.copies.VALUES", 8 * 7)
    parts = [search(each[None]) for each in images]
    for name in Found.__dataclass_fields__:
        joined = torch.cat([getattr(each, name) for each in parts])
        torch.testing.assert_close(joined, getattr(whole, name), atol=1e-3, rtol=1e-3)


@pytest.mark.parametrize("shape", [(1, 1, 1), (1, 4, 6), (3, 2, 2)])
def test_small_images_are_searched_for_like_others(shape):
    rng = torch.Generator().manual_seed(0)
    images = torch.randint(0, 256, (4, *shape), dtype=torch.uint8, generator=rng)
    assert Search(images)(images[:2]).residuals.isfinite().all()
