import time
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

from learning.augmentation import AUGMENTATIONS
from learning.dp_sgd import PrivateSteps, check_network
from learning.errors import DeadlineError, ModelError
from learning.learners.plain import Plain
from learning.models import Architecture
from learning.models.pixels import put_channels_last, scale_input
from learning.training import train
from tests.fakes import settings
from tests.learning.test_training import data, learner_of, network

NOISE, NORM = 0.7, 0.05
DP = replace(settings().train.dp, noise_multiplier=NOISE, clipping_norm=NORM)


def plan(size, seed=0):
    """Steps for 20 images of as many patients."""
    return PrivateSteps.plan(np.arange(20), size, DP, np.random.default_rng(seed))


def visit(samples, private, epochs=1, model=None, seconds=60, **overrides):
    model = model or network()
    learner = learner_of(Plain, model, samples)
    chosen = replace(learner.settings.train, optimizer="sgd", learning_rate=1.0, dp=DP, **overrides)
    rng, deadline = np.random.default_rng(1), time.monotonic() + seconds
    found = train(learner, chosen, epochs, rng, deadline, private=private)
    return model, found


def convolutions():
    """As torchvision's networks: channels at the end of memory, and a ReLU in place."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        layers = nn.Conv2d(1, 4, 3), nn.ReLU(inplace=True), nn.Conv2d(4, 4, 2, stride=2)
        found = nn.Sequential(*layers, nn.Flatten(), nn.Linear(36, 3))
    scale_input(found, "unit")
    put_channels_last(found)
    return found


@pytest.mark.parametrize("build", [network, convolutions])
def test_a_step_is_the_clipped_sum_of_each_image_s_gradient_and_noise(build):
    """With a learning rate of 1: w - w' = (Σ min(1, C / ‖g‖) g + σ C z) / 20, image by image.

    z comes from the secret generator itself: a seed of torch's that is drawn from it has 32 bits.
    """
    samples, before = data(20), build()
    after, _ = visit(samples, plan(20), model=build())
    clipped = [torch.zeros_like(weight) for weight in before.parameters()]
    for image, label in zip(samples.images, samples.labels, strict=True):
        before.zero_grad()
        functional.cross_entropy(before(image[None]), label[None]).backward()
        gradient = [weight.grad for weight in before.parameters()]
        norm = torch.stack([each.norm() for each in gradient]).norm()
        assert norm > NORM  # so that clipping matters
        for total, each in zip(clipped, gradient, strict=True):
            total += each * NORM / norm
    same = plan(20)
    same.draw()
    moved = zip(before.parameters(), after.parameters(), clipped, strict=True)
    for old, new, total in moved:
        noise = NOISE * NORM * torch.from_numpy(same.secret.standard_normal(old.shape, np.float32))
        torch.testing.assert_close((old - new) * 20, total + noise, rtol=1e-3, atol=1e-5)


class Overflow(nn.Module):
    """Infinite for a white image."""

    def forward(self, pixels):
        return pixels / (pixels.mean(dim=1, keepdim=True) < 1)


def test_an_image_whose_gradient_is_not_finite_reveals_nothing():
    """All weights were NaN, and the hospital's refusal told the server of the image."""
    samples = data(20)
    samples.images[3] = 255
    model = nn.Sequential(nn.Flatten(), Overflow(), nn.Linear(samples.images[0].numel(), 3))
    scale_input(model, "unit")
    after, _ = visit(samples, plan(20), model=model)
    assert all(weight.isfinite().all() for weight in after.parameters())


def test_noise_follows_from_the_secret_generator_alone():
    (one, _), (same, _), (other, _) = (visit(data(20), plan(10, seed)) for seed in (0, 0, 1))
    first, again, different = (next(each.parameters()) for each in (one, same, other))
    assert torch.equal(first, again)
    assert not torch.equal(first, different)


class All(PrivateSteps):
    """Draws all patients, or all but the first."""

    first = 0

    def draw(self):
        return np.arange(self.first, len(self.owners))


class AllButFirst(All):
    first = 1


@pytest.mark.parametrize("augment", AUGMENTATIONS)
def test_a_patient_changes_no_draw_for_the_others(augment):
    """Dropout and augmentations drew for a batch: without its first image all others changed."""
    both = []
    for kind in (All, AllButFirst):
        model, private = convolutions(), kind(**vars(plan(20)))
        model.insert(2, nn.Dropout())
        after, _ = visit(data(20), private, model=model, augment=augment)
        both.append(nn.utils.parameters_to_vector(after.parameters()).detach())
    assert 0 < (both[0] - both[1]).norm() * 20 < NORM * 1.01


def test_patients_are_drawn_by_themselves_and_one_image_of_each():
    owners = np.array([0, 0, 0, 1, 2, 2])
    private = PrivateSteps.plan(owners, 1, DP, np.random.default_rng(0))
    assert private.rate == pytest.approx(1 / 3)
    assert private.steps == 3
    draws = [private.draw() for _ in range(3000)]
    assert all(len(np.unique(owners[drawn])) == len(drawn) for drawn in draws)
    sizes = np.bincount([len(drawn) for drawn in draws], minlength=4) / 3000
    np.testing.assert_allclose(sizes, [8 / 27, 12 / 27, 6 / 27, 1 / 27], atol=0.03)
    often = np.bincount(np.concatenate(draws), minlength=6) / 3000
    np.testing.assert_allclose(often, [1 / 9] * 3 + [1 / 3] + [1 / 6] * 2, atol=0.03)


def test_a_step_that_draws_nobody_is_noise_all_the_same():
    before = network()
    after, found = visit(data(20), replace(plan(20), rate=1e-9))
    assert found == {"train-loss": 0.0, "num-examples": 20}
    moved = next(before.parameters()) - next(after.parameters())
    assert moved.std().item() == pytest.approx(NOISE * NORM / (20 * 1e-9), rel=0.1)


def test_the_network_is_as_it_was_afterwards():
    model, _ = visit(data(20), plan(5), epochs=2, model=convolutions())
    assert list(model.state_dict()) == list(convolutions().state_dict())
    assert not any(hasattr(weight, "grad_sample") for weight in model.parameters())
    assert not any(part._forward_hooks for part in model.modules())
    assert not any(part._forward_pre_hooks for part in model.children())


def test_the_network_can_be_trained_again_after_an_error():
    """A hospital's process uses it for the next visit, too."""
    model = network()
    for _ in range(2):
        with pytest.raises(DeadlineError):
            visit(data(20), plan(5), model=model, seconds=-1)
    assert not any(part._forward_hooks for part in model.modules())


def test_a_network_with_batchnorm_or_a_layer_that_opacus_lacks_is_refused():
    for name in ("mlp", "squeezenet1_1"):
        check_network(Architecture(name, 3, 32, 32, 3).skeleton())
    for name in ("cnn", "swin_t"):
        with pytest.raises(ModelError, match="BatchNorm"):
            check_network(Architecture(name, 3, 32, 32, 3).skeleton())
    own = network()
    own.register_parameter("position", nn.Parameter(torch.zeros(3)))
    with pytest.raises(ModelError, match="opacus must know all layers"):
        check_network(own)


def test_progress_counts_the_images_that_are_drawn():
    learner, told = learner_of(Plain, network(), data(20)), []
    train(
        learner,
        learner.settings.train,
        epochs=2,
        rng=np.random.default_rng(1),
        deadline=time.monotonic() + 60,
        progress=lambda *done: told.append(done),
        private=plan(5),
    )
    assert len(told) == 8
    assert told[-1][0] == told[-1][1]
