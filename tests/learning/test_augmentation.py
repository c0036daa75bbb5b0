from typing import get_args, get_type_hints

import pytest
import torch

from learning.augmentation import AUGMENTATIONS, check_augmentation
from learning.samples import Samples
from strategies.protocol.settings import SettingsError, TrainSettings
from tests.learning.test_training import draws

IMAGE = torch.arange(2 * 3 * 3, dtype=torch.uint8).reshape(2, 3, 3)  # all pixels differ
MIRRORED = (IMAGE, IMAGE.flip(-1))
# How an image may come back, and how often.
SYMMETRIES = {
    "none": [(IMAGE, 1.0)],
    "flip": [(image, 1 / 2) for image in MIRRORED],
    "flip-rotate": [
        (image.rot90(turns, (-2, -1)), 1 / 12 if turns else 1 / 4)
        for image in MIRRORED
        for turns in range(4)
    ],
}


def augment(name, images, seed=0):
    return AUGMENTATIONS[name](images, torch.Generator().manual_seed(seed))


def test_the_registry_has_what_the_setting_allows():
    assert list(AUGMENTATIONS) == list(get_args(get_type_hints(TrainSettings)["augment"]))


@pytest.mark.parametrize("name", SYMMETRIES)
def test_each_symmetry_appears_as_often_as_it_should(name):
    """Of 8000 images one of probability p gets 8000 p on average.

    The standard deviation is sqrt(8000 p (1 - p)), at most 45 for p = 1/2; 200 is over 4.
    """
    images = IMAGE.expand(8000, -1, -1, -1)
    changed = augment(name, images)
    counts = [(changed == image).all((1, 2, 3)).sum().item() for image, _ in SYMMETRIES[name]]
    assert sum(counts) == 8000
    assert counts == pytest.approx([8000 * share for _, share in SYMMETRIES[name]], abs=200)


@pytest.mark.parametrize("name", SYMMETRIES)
@pytest.mark.parametrize("dtype", [torch.uint8, torch.float32])
def test_each_image_stays_in_its_place_and_the_input_as_it_was(name, dtype):
    images = torch.arange(50)[:, None, None, None].expand(50, 2, 3, 3).to(dtype).clone()
    before = images.clone()
    changed = augment(name, images)
    assert changed.dtype == dtype
    assert torch.equal(changed, images)  # each image has one value, which no symmetry changes
    assert torch.equal(images, before)


@pytest.mark.parametrize("name", AUGMENTATIONS)
def test_the_same_seed_gives_the_same_images(name):
    images = torch.rand(20, 1, 8, 8)
    assert torch.equal(augment(name, images), augment(name, images))


def test_none_returns_the_very_same_tensor():
    images = torch.rand(2, 1, 8, 8)
    assert augment("none", images) is images


def test_images_are_moved_within_a_black_border_and_get_a_black_square():
    """1,000 images of 40 x 40 pixels, none of them black, each row of another value.

    Moved by up to 4 pixels, they have no border in rows 4 to 35. There the square, which covers
    y − 8 to y + 7 around its centre y, shows all 16 rows for y from 12 to 28, in 17 of 40 cases.
    """
    rows = torch.arange(1, 41, dtype=torch.uint8)[:, None].expand(1000, 1, 40, 40)
    changed = augment("crop-flip-cutout", rows)
    assert changed.shape == rows.shape
    assert changed.dtype == rows.dtype
    heights, shifts = [], []
    for image in changed[:, 0]:
        inner = image[4:36, 4:36] > 0
        column = image[:, (image > 0).sum(dim=0).argmax()].int()
        place = int(column.nonzero()[len(column.nonzero()) // 2])
        shifts.append(int(column[place]) - 1 - place)
        hole = (~inner).any(dim=1)
        heights.append(int(hole.sum()))
        assert torch.equal(~inner, hole[:, None] & (~inner).any(dim=0))  # it is a rectangle
    assert set(shifts) == set(range(-4, 5))
    assert max(heights) == 16
    assert torch.tensor(heights).eq(16).double().mean().item() == pytest.approx(17 / 40, abs=0.07)


def test_a_crop_shifts_by_up_to_4_pixels_and_maps_go_along():
    """An image of the numbers of its rows and columns; a map of half its size has every second."""
    y, x = torch.arange(1, 33)[:, None], torch.arange(1, 33)
    images = torch.stack([y.expand(32, 32), x.expand(32, 32)]).expand(400, -1, -1, -1)
    changed, same, half = draws(augment="crop-flip").view_alike(
        images, images[:, 0], images[:, :, ::2, ::2]
    )
    assert torch.equal(changed[:, 0], same)
    assert half.shape == (400, 2, 16, 16)
    assert (half - changed[:, :, ::2, ::2]).abs().max() <= 1  # of the pixels that became one
    shifts = {int(image[0, 16, 16]) - 17 for image in changed}
    mirrored = changed[:, 1, 16, 16] > changed[:, 1, 16, 17]
    assert shifts == set(range(-4, 5))
    assert mirrored.double().mean().item() == pytest.approx(0.5, abs=0.1)
    assert ((changed == 0).all(dim=1) | (changed > 0).all(dim=1)).all()  # black from outside


@pytest.mark.parametrize("name", AUGMENTATIONS)
def test_after_maps_no_number_of_the_images_is_drawn_again(name):
    images = torch.zeros(5, 3, 8, 8, dtype=torch.uint8)
    alone, beside = draws(augment=name), draws(augment=name)
    alone.view(images)
    beside.view_alike(images, images[:, 0] > 0, images[:, 0].float())
    assert torch.equal(alone.generator.get_state(), beside.generator.get_state())


def test_no_sample_is_drawn_again_before_all_were_drawn_once():
    samples = Samples(torch.zeros(7, 1, 1, 1, dtype=torch.uint8), torch.arange(7))
    for seed in range(5):
        drawn = draws(seed).draw(samples, 16).labels
        assert all(len(each.unique()) == len(each) for each in drawn.split(7))
        once = torch.randperm(7, generator=draws(seed).generator)[:5]
        assert torch.equal(draws(seed).draw(samples, 5).labels, once)


def test_maps_are_mirrored_turned_scaled_and_moved_and_keep_their_values():
    """A map of the places of its pixels, in pixels from the middle, shows how each was changed.

    Around the middle it is m + A p at a place p, with A = turn · mirror / zoom.
    """
    height, width = 24, 32
    y, x = torch.arange(height) - (height - 1) / 2, torch.arange(width) - (width - 1) / 2
    places = torch.stack([x.expand(height, width), y[:, None].expand(height, width)])  # [2, H, W]
    changed = augment("affine-colour", places.expand(2000, -1, -1, -1))
    corner = changed[:, :, height // 2 - 1 :, width // 2 - 1 :]
    across, along = (
        corner[:, :, 0, 1] - corner[:, :, 0, 0],
        corner[:, :, 1, 0] - corner[:, :, 0, 0],
    )
    assert (across * along).sum(1).abs().max() < 1e-3  # no shear, though the sides differ
    zoom = 1 / across.norm(dim=1)
    assert torch.allclose(zoom, 1 / along.norm(dim=1), atol=1e-3)
    assert (zoom.min().item(), zoom.max().item()) == pytest.approx((1 / 1.25, 1.25), abs=0.01)
    mirrored = across[:, 0] * along[:, 1] - across[:, 1] * along[:, 0] < 0
    assert mirrored.double().mean().item() == pytest.approx(0.5, abs=0.05)
    quarter = torch.atan2(along[:, 0], along[:, 1]).div(torch.pi / 2).floor()
    assert quarter.add(2).int().bincount().div(2000).tolist() == pytest.approx([0.25] * 4, abs=0.05)
    middle = corner[:, :, :2, :2].mean((2, 3)).abs().amax(0)
    assert middle.tolist() == pytest.approx([0.05 * width, 0.05 * height], rel=0.02)


def test_images_change_in_brightness_contrast_and_colour_and_maps_do_not():
    grey = torch.full((2000, 3, 8, 8), 100, dtype=torch.uint8)
    changed = augment("affine-colour", grey)
    assert changed.dtype == torch.uint8
    assert torch.equal(changed, changed[:, :, :1, :1].expand_as(changed))  # each is of one colour
    red, green = changed[:, 0, 0, 0].double() / 100, changed[:, 1, 0, 0].double() / 100
    assert red.min() == pytest.approx(0.8 * 0.9, abs=0.02)
    assert red.max() == pytest.approx(1.2 * 1.1, abs=0.02)
    assert (red / green).max() == pytest.approx(1.1 / 0.9, abs=0.04)
    for maps in (grey.float()[:, 0], torch.ones(9, 2, 8, 8, dtype=torch.bool)):
        assert torch.allclose(augment("affine-colour", maps).float(), maps.float(), rtol=1e-4)


def test_bright_images_stay_bytes():
    white = torch.full((100, 1, 8, 8), 255, dtype=torch.uint8)
    assert augment("affine-colour", white).min() > 150


def test_images_that_are_not_square_flip_but_do_not_rotate():
    images = torch.rand(2, 3, 4, 5)
    assert augment("flip", images).shape == images.shape
    check_augmentation("flip", (3, 4, 5))
    check_augmentation("flip-rotate", (3, 4, 4))
    with pytest.raises(SettingsError, match=r"'flip-rotate'.* are 3x4x5: set image-size"):
        check_augmentation("flip-rotate", (3, 4, 5))
