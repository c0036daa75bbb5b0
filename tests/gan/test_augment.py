import copy

import pytest
import torch

from gan.augment import Controller, augment


@pytest.fixture(params=[1, 3])
def images(request):
    torch.manual_seed(0)
    return torch.rand(64, request.param, 8, 8) * 2 - 1


def test_nothing_happens_with_probability_zero(images):
    before = torch.get_rng_state()
    assert augment(images, 0.0, mirror=True) is images
    assert torch.equal(torch.get_rng_state(), before)


def test_same_seed_same_change(images):
    def changed():
        torch.manual_seed(1)
        return augment(images, 0.5, mirror=True)

    assert torch.equal(changed(), changed())


def test_everything_changes_with_probability_one(images):
    changed = augment(images, 1.0, mirror=True)
    assert changed.shape == images.shape
    assert (changed - images).abs().amax((1, 2, 3)).min() > 0.05


def test_about_the_right_share_is_left_alone():
    """At p = 0.1 one colour escapes brightness (0.9), contrast (0.9) and inversion (0.95): 0.77."""
    torch.manual_seed(0)
    images = torch.full((4000, 1, 4, 4), 0.5)
    same = (augment(images, 0.1, mirror=False) - images).abs().amax((1, 2, 3)) < 1e-5
    assert same.float().mean().item() == pytest.approx(0.77, abs=0.02)


def test_half_of_the_images_are_inverted_and_brightness_comes_before_contrast(monkeypatch):
    """±2 (x + 0.1) of an image x, where brightness adds 0.1 and contrast doubles."""
    monkeypatch.setattr("gan.augment._move", lambda images, p, mirror: images)
    monkeypatch.setattr(
        torch, "randn", lambda *size, device=None: torch.full(size, 0.5 if size[1:] else 2.0)
    )
    images = torch.full((1000, 1, 2, 2), 0.3)
    changed = augment(images, 1.0, mirror=False)
    inverted = changed[:, 0, 0, 0] < 0
    torch.testing.assert_close(changed.abs(), torch.full_like(images, 0.8))
    assert inverted.float().mean().item() == pytest.approx(0.5, abs=0.08)


def test_gradients_reach_the_images(images):
    images.requires_grad_()
    augment(images, 0.8, mirror=True).sum().backward()
    assert (images.grad.abs().amax((1, 2, 3)) > 0).all()


def test_colours_of_grey_images_stay_grey():
    """Hue, saturation and contrast keep the axis of grey; brightness moves along it."""
    grey = (torch.rand(64, 1, 8, 8) * 2 - 1).expand(-1, 3, -1, -1)
    changed = augment(grey, 1.0, mirror=True)
    torch.testing.assert_close(changed, changed.mean(1, keepdim=True).expand(-1, 3, -1, -1))


@pytest.mark.parametrize(("logit", "expected"), [(1.0, 0.16), (-1.0, 0.0)])
def test_controller_goes_up_when_real_images_are_recognised(logit, expected):
    """Two changes after 4 batches of 2 images each: 2 · 8 / 100 up; never below 0."""
    controller = Controller(target=0.6, images=100)
    for _ in range(8):
        controller.observe(torch.full((2,), logit))
    assert controller.p == pytest.approx(expected)


def test_controller_comes_down_and_waits_for_four_batches():
    """r = (7 - 1) / 8 = 0.75 is above 0.6, (6 - 2) / 8 = 0.5 is below."""
    controller = Controller(target=0.6, images=100)
    controller.p = 0.5
    seven, six = torch.tensor([1.0] * 7 + [-1.0]), torch.tensor([1.0] * 6 + [-1.0] * 2)
    for _ in range(3):
        controller.observe(seven)
    assert controller.p == 0.5
    controller.observe(seven)
    assert controller.p == pytest.approx(0.82)
    for _ in range(4):
        controller.observe(six)
    assert controller.p == pytest.approx(0.5)


def test_controller_goes_on_from_its_state():
    one, other = Controller(0.6, 100), Controller(0.6, 100)
    for _ in range(6):
        one.observe(torch.ones(2))
    vars(other).update(copy.deepcopy(vars(one)))
    for _ in range(2):
        one.observe(torch.ones(2))
        other.observe(torch.ones(2))
    assert one.p == other.p == pytest.approx(0.16)
