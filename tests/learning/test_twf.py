"""TwF at the hospital, beside its equations (learning/learners/twf.py, models/gates.py)."""

import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

from learning.errors import DeadlineError, DivergedError, ModelError
from learning.export import save_model
from learning.learners.plain import Received
from learning.learners.twf import TwF, halve
from learning.models import Architecture
from learning.models.gates import Gates, distance, diversity, sample_gates
from learning.models.taps import last_layer, tap
from learning.randomness import use_seed
from learning.samples import Samples
from strategies.protocol.records import ParcelError, UselessError
from tests.fakes import settings
from tests.learning.test_export import manifest_of
from tests.learning.test_training import assert_same, data, draws, learner_of, network

RNG = np.random.default_rng(0)


def maps(*rows):
    """One channel of features of one image."""
    return torch.tensor(rows).view(1, 1, 1, -1)


def random(*shape):
    return torch.randn(shape, generator=torch.Generator().manual_seed(0))


def normalised(values, norm, tasks):
    """Batch normalisation over images and space, with a task's scale and shift for each image."""
    dims = [dim for dim in range(values.dim()) if dim != 1]
    mean, variance = values.mean(dims, keepdim=True), values.var(dims, correction=0, keepdim=True)
    values = (values - mean) / (variance + 1e-5).sqrt()
    return torch.stack(
        [
            image * norm.scale[task].view(-1, *[1] * (image.dim() - 1))
            + norm.shift[task].view(-1, *[1] * (image.dim() - 1))
            for image, task in zip(values, tasks, strict=True)
        ]
    )


def test_the_gates_are_equations_2_9_to_2_11():
    """Four images of two tasks, six channels, 5x5: written out, image by image."""
    with use_seed(np.random.default_rng(0)):
        gates: Any = Gates(6, 2)
        for norm in (*gates.norms, *gates.spatial_norms):
            nn.init.normal_(norm.shift)
    features, tasks = random(4, 6, 5, 5), torch.tensor([0, 1, 1, 0])
    pooled = features.flatten(2).mean(2)
    first, second, rest = (
        torch.stack([layer.weight[task] @ row for row, task in zip(pooled, tasks, strict=True)])
        for layer in gates.linear
    )
    first, second = (
        normalised(values, norm, tasks)
        for values, norm in zip((first, second), gates.norms, strict=True)
    )
    channel = torch.tanh(first) * torch.sigmoid(second) + rest
    spatial = features
    for step, (layer, norm) in enumerate(zip(gates.convolutions, gates.spatial_norms, strict=True)):
        options = {"padding": 2, "dilation": 2} if step in (1, 2) else {}
        spatial = normalised(
            functional.conv2d(spatial, layer.weight, layer.bias, **options), norm, tasks
        )
        spatial = spatial.relu() if step < 3 else spatial
    both = channel[:, :, None, None] + spatial
    expected = torch.stack(
        [
            torch.einsum("oi,ihw->ohw", gates.gate.weight[task], each)
            for each, task in zip(both, tasks, strict=True)
        ]
    )
    assert spatial.shape == (4, 1, 5, 5)
    torch.testing.assert_close(gates(features, tasks), expected)


def test_a_gate_is_open_as_often_as_its_logit_says():
    """σ(1) = 0.731 and σ(−2) = 0.119 of 20000 draws; the standard deviation is 0.003."""
    logits = torch.tensor([1.0, -2.0]).expand(20000, 2)
    gates = sample_gates(logits, torch.Generator().manual_seed(0))
    assert gates.unique().tolist() == [0.0, 1.0]
    assert gates.mean(dim=0).tolist() == pytest.approx([0.731, 0.119], abs=0.015)


def test_a_gate_has_the_gradient_of_the_soft_one():
    """With u of the generator: s = σ((a + log u/(1 − u)) / τ), ds/da = s (1 − s) / τ, τ = 2/3."""
    logits = torch.tensor([0.3, -0.4], requires_grad=True)
    sample_gates(logits, torch.Generator().manual_seed(5)).sum().backward()
    u = torch.rand(2, generator=torch.Generator().manual_seed(5))
    soft = torch.sigmoid((logits.detach() + torch.log(u / (1 - u))) * 1.5)
    torch.testing.assert_close(logits.grad, soft * (1 - soft) * 1.5)


def test_diversity_by_hand():
    """Two images that open one channel each, and not the same: g·g is 1 and 0, T = 2.

    log((e^½ + 1) / 2) − ½. For the same channel it is log((e^½ + e^½) / 2) − ½ = 0. Half open, a
    channel's g has a norm of 1 all the same.
    """
    one, other = torch.zeros(2, 1, 2, 2, 2).unbind()
    one[:, 0], other[:, 1, 0] = 1.0, 1.0
    assert diversity(torch.cat([one, other])).item() == pytest.approx(
        math.log((math.exp(0.5) + 1) / 2) - 0.5
    )
    assert diversity(torch.cat([one, one])).item() == pytest.approx(0.0)


def test_the_distance_by_hand():
    """Teacher (3, −4): its margin is −4; scaled (0.6, −0.8). Student (4, 3), scaled (0.8, 0.6).

    Squares 0.04 and 1.96. Open, the mean is 1; with the second gate closed 0.02. A student of
    (0, −5), scaled (0, −1): 0.36, and nothing for the second, where −1 ≤ −0.8 ≤ 0: 0.18.
    """
    teacher, both = maps(3.0, -4.0), torch.ones(1, 1, 1, 2)
    assert distance(maps(4.0, 3.0), teacher, both).item() == pytest.approx(1.0, abs=1e-5)
    closed = maps(1.0, 0.0)
    assert distance(maps(4.0, 3.0), teacher, closed).item() == pytest.approx(0.02, abs=1e-5)
    assert distance(maps(0.0, -5.0), teacher, both).item() == pytest.approx(0.18, abs=1e-5)


def test_the_margin_is_a_channels_mean_of_what_is_negative():
    """(−1, −5, 3) has the margin −3: (−1, −3, 3), of norm √19. A student that is so is at 0."""
    wanted = maps(-1.0, -3.0, 3.0)
    gates = torch.ones(1, 1, 1, 3)
    assert distance(wanted * 2, maps(-1.0, -5.0, 3.0), gates).item() == pytest.approx(0, abs=1e-9)
    squares = ((torch.tensor([1.0, 0.0, 0.0]) - wanted.flatten() / math.sqrt(19)) ** 2).mean()
    found = distance(maps(2.0, 0.0, 0.0), maps(-1.0, -5.0, 3.0), gates)
    assert found.item() == pytest.approx(squares.item(), rel=1e-5)


def kept(model, tasks):
    """Images that a hospital has kept, of these tasks, with all gates open."""
    images = data(len(tasks)).images
    shapes = [each.shape[1:] for each in tap(model, images)[1]]
    return {
        "images": images,
        "labels": torch.arange(len(tasks)) % 3,
        "logits": random(len(tasks), 3),
        "tasks": torch.tensor(tasks),
        "seen": torch.tensor(len(tasks)),
        **{
            f"mask-{point}": torch.ones(len(tasks), *shape, dtype=torch.bool)
            for point, shape in enumerate(shapes)
        },
    }


def teacher_of(model):
    return {f"teacher.{name}": each.clone() for name, each in model.state_dict().items()}


WEIGHTS = {
    "twf__alpha": 0.5,
    "twf__beta": 0.25,
    "twf__propagation": 2.0,
    "twf__mask_replay": 3.0,
    "twf__diversity": 5.0,
    "tasks": 3,
    "num_server_rounds": 3,
}


def test_one_step_by_hand():
    """Eq. 2.13 to 2.15, with two kept images of task 1 and one of task 2, which is the present one.

    Draws come in this order: which are kept, and at each point the noise.
    """
    model, other = network("cnn"), network("cnn")
    with torch.no_grad():
        for weights in other.parameters():
            weights += 0.1 * random(*weights.shape)
    before = {**teacher_of(other), **kept(model, [0, 1, 0])}
    received = Received(rehearsal=before, memory=gates_of(model), task=2)
    learner = learner_of(TwF, model, data(5), received, **WEIGHTS)
    learner.begin_epoch(1)
    generator = draws().generator
    drawn = torch.randperm(3, generator=generator)
    rows = {name: before[name][drawn] for name in ("images", "labels", "logits", "tasks")}
    logits, features = tap(model, torch.cat([data(5).images, rows["images"]]))
    expected = functional.cross_entropy(logits[:5], data(5).labels)
    expected = expected + 0.5 * ((logits[5:] - rows["logits"]) ** 2).mean()
    expected = expected + 0.25 * functional.cross_entropy(logits[5:], rows["labels"])
    with torch.no_grad():
        _, taught = tap(other.eval(), torch.cat([data(5).images, rows["images"]]))
    tasks = torch.cat([torch.ones(5, dtype=torch.int64), rows["tasks"]])
    for gates, h, t in zip(learner.gates, features, taught, strict=True):
        values = gates(t, tasks)
        mask = sample_gates(values, generator)
        entropy = -functional.logsigmoid(values[tasks == 0]).mean()  # all of m are 1
        terms = distance(h, t, mask) + 3 * entropy + 5 * diversity(mask[tasks == 1])
        expected = expected + 2 * terms / 4
    for module in (model, learner.gates):
        for each in module.modules():
            getattr(each, "reset_running_stats", lambda: None)()
    loss = learner.observe(data(5), draws())
    torch.testing.assert_close(loss, expected)
    after = learner.reservoir.fields
    assert after["tasks"].tolist() == [0, 1, 0, 1, 1, 1, 1, 1]
    torch.testing.assert_close(after["logits"][3:], logits[:5].detach())
    changed = torch.autograd.grad(loss, list(learner.trained_parameters()))
    assert len(changed) == sum(1 for _ in (*model.parameters(), *learner.gates.parameters()))
    assert not any(each.requires_grad for each in learner.teacher.parameters())


def test_a_reservoir_without_an_image_of_the_task_is_kept_as_it_is():
    model = network("cnn")
    before = {**teacher_of(model), **kept(model, [0, 0])}
    received = Received(rehearsal=before, memory=gates_of(model), task=2)
    after = learner_of(TwF, model, received=received, **WEIGHTS).rehearsal()
    assert_same(before, after)


def test_a_masked_loss_of_new_images_has_the_outputs_of_the_task_alone():
    """Labels 0 and 1 of three classes, and no term of gates."""
    model, samples = network("cnn"), data(6)
    samples.labels.remainder_(2)
    learner = learner_of(TwF, model, samples, twf__propagation=0.0, twf__masked=True)
    logits, _ = tap(model, samples.images)
    expected = functional.cross_entropy(logits[:, :2], samples.labels)
    torch.testing.assert_close(learner.observe(samples, draws()), expected)


def test_the_pull_towards_the_teacher_is_equation_2_17():
    """Gradient 2 λ F (θ − θ^t), with λ = 3, F = 0.5 and θ = θ^t + 0.1: 0.3, but for the head."""
    model = network("cnn")
    fisher = {name: torch.full_like(each, 0.5) for name, each in model.named_parameters()}
    body = {f"fisher.{name}": each for name, each in fisher.items() if not name.startswith("14.")}
    received = Received(rehearsal={**teacher_of(model), **body}, memory=gates_of(model))
    learner = learner_of(TwF, model, received=received, **{**WEIGHTS, "twf__ewc": 3.0})
    for each in model.parameters():
        each.data.add_(0.1)
        each.grad = torch.zeros_like(each)
    learner.before_step()
    for name, each in model.named_parameters():
        wanted = torch.full_like(each, 0.0 if name.startswith("14.") else 0.3)
        torch.testing.assert_close(each.grad, wanted)
    assert body.keys() <= learner.rehearsal().keys()


def test_without_a_reservoir_there_are_the_terms_of_new_images_alone():
    learner = learner_of(TwF, network("cnn"), reservoir__size=0)
    assert all(learner.observe(data(), draws()).isfinite() for _ in range(2))
    assert {name.partition(".")[0] for name in learner.rehearsal()} == {"teacher", "seen"}


def gates_of(model):
    return learner_of(TwF, model, **WEIGHTS).memory(RNG)


def test_masks_of_the_tasks_images_are_those_of_the_gates_at_the_end_of_a_visit():
    model = network("cnn")
    before = {**teacher_of(model), **kept(model, [0, 1, 0, 1])}
    received = Received(rehearsal=before, memory=gates_of(model), task=2)
    learner = learner_of(TwF, model, received=received, **WEIGHTS)
    after = learner.rehearsal()
    _, taught = tap(network("cnn").eval(), before["images"])
    for point, (gates, features) in enumerate(zip(learner.gates, taught, strict=True)):
        wanted = gates.eval()(features, torch.ones(4, dtype=torch.int64)) > 0
        mask = after[f"mask-{point}"]
        assert mask[[0, 2]].all()
        assert torch.equal(mask[[1, 3]], wanted[[1, 3]])
    assert not all(after[f"mask-{point}"].all() for point in range(4))


@pytest.mark.parametrize("side", [8, 16])
def test_the_memory_of_a_visit_counts_masks_and_gates(side):
    architecture = Architecture("cnn", 1, side, side, 3)
    samples = Samples(torch.zeros(4, 1, side, side, dtype=torch.uint8), torch.arange(4) % 3)
    learner = learner_of(TwF, architecture.build(), samples, Received(task=1), **WEIGHTS)
    learner.observe(samples, draws())
    masks = [each for name, each in learner.rehearsal().items() if name.startswith("mask-")]
    none, four = (TwF.bytes_beside(architecture, learner.settings, kept) for kept in (0, 4))
    assert sum(each.nbytes for each in masks) == four - none
    gates = sum(each.nbytes for each in learner.gates.parameters())
    assert none == 4 * gates  # as the weights of the network: with gradients and Adam's moments


def test_large_maps_are_kept_at_half_their_size():
    assert halve(torch.zeros(2, 3, 16, 16)).shape == (2, 3, 8, 8)
    assert halve(torch.zeros(2, 3, 14, 14)).shape == (2, 3, 14, 14)


def test_gates_travel_and_teacher_and_reservoir_stay():
    first = learner_of(TwF, network("cnn"), received=Received(task=1), **WEIGHTS)
    first.observe(data(), draws())
    memory, rehearsal = first.memory(RNG), first.rehearsal()
    assert not any(name.startswith("teacher.") for name in memory)
    model = network("cnn")
    with torch.no_grad():
        last_layer(model).bias.add_(1)
    found = Received(memory=memory, rehearsal=rehearsal, task=2)
    second = learner_of(TwF, model, received=found, **WEIGHTS)
    assert_same(second.gates.state_dict(), first.gates.state_dict())
    assert_same(second.teacher.state_dict(), first.teacher.state_dict())
    assert_same(second.reservoir.state(), first.reservoir.state())
    with pytest.raises(ParcelError, match="The teacher that the hospital has kept has '0"):
        learner_of(TwF, Architecture("cnn", 3, 8, 8, 3).build(), received=found, **WEIGHTS)
    with pytest.raises(UselessError, match="The memory of gates lacks '0"):
        learner_of(TwF, model, received=Received(memory={"x": torch.ones(1)}), **WEIGHTS)


def different(model):
    with torch.no_grad():
        for weights in model.parameters():
            weights += 1
    return model


@pytest.mark.parametrize("exported", [False, True])
def test_a_student_starts_from_the_teacher_of_a_file_but_for_its_head(tmp_path, exported):
    """At its first visit; later it is as it came."""
    weights = different(network("cnn")).state_dict()
    path = tmp_path / ("teacher.safetensors" if exported else "teacher.pt")
    if exported:
        blueprint = Architecture("cnn", 1, 8, 8, 3)
        save_model(path, different(network("cnn")), manifest_of(blueprint))
    else:
        torch.save(weights, path)
    own, model = network("cnn").state_dict(), network("cnn")
    learner = learner_of(TwF, model, twf__teacher=str(path), **WEIGHTS)
    for name, each in model.state_dict().items():
        head = name.startswith("14.")
        assert torch.equal(each, own[name] if head else weights[name])
    assert_same(learner.teacher.state_dict(), model.state_dict())
    again = network("cnn")
    found = Received(memory=learner.memory(RNG))
    learner_of(TwF, again, received=found, twf__teacher=str(path), **WEIGHTS)
    assert_same(again.state_dict(), own)


def test_a_file_of_another_network_is_refused(tmp_path):
    torch.save(network("mlp").state_dict(), tmp_path / "teacher.pt")
    with pytest.raises(ModelError, match=r"'twf.teacher' is another network .* no '0.weight' of"):
        learner_of(TwF, network("cnn"), twf__teacher=str(tmp_path / "teacher.pt"))
    with pytest.raises(ModelError, match=r"There is no file .* 'twf.teacher' names it"):
        learner_of(TwF, network("cnn"), twf__teacher=str(tmp_path / "no.pt"))
    torch.save(torch.ones(1), tmp_path / "tensor.pt")
    with pytest.raises(ModelError, match=r"'twf.teacher' has no state dict"):
        learner_of(TwF, network("cnn"), twf__teacher=str(tmp_path / "tensor.pt"))


@pytest.mark.slow
def test_a_teacher_is_trained_until_the_deadline_of_the_message():
    public = Samples(data(8).images, torch.arange(8) % 2)
    late = Received(public=public, deadline=0.0)
    with pytest.raises(DeadlineError):
        learner_of(TwF, network("cnn"), received=late, twf__teacher="public:/x.npz", **WEIGHTS)


def test_a_teacher_of_a_public_archive_is_the_same_at_all_hospitals():
    """It has learned the archive's classes, of which there may be others than the hospital's."""
    public = Samples(data(40).images, torch.arange(40) % 2 * 7 + 3)
    public.pixels[public.labels == 10] = 255
    chosen = {
        "train__learning_rate": 0.01,
        "twf__teacher": "public:/x.npz",
        "twf__teacher_epochs": 20,
        "twf__ewc": 1.0,
    }
    learners = [
        learner_of(TwF, model, received=Received(public=public), **chosen, **WEIGHTS)
        for model in (network("cnn"), different(network("cnn")))
    ]
    first, second = (dict(each.teacher.state_dict()) for each in learners)
    assert last_layer(learners[0].teacher).out_features == 3
    head = {name for name in first if name.startswith("14.")}
    assert_same({k: first[k] for k in first.keys() - head}, second)
    taught = tap(learners[0].teacher, public.images)[1][-1].relu().mean(dim=(2, 3))
    means = [taught[public.labels == label].mean(dim=0) for label in (3, 10)]
    assert (means[0] - means[1]).norm() > 0.5
    assert_same({k: first[k] for k in first.keys() - head}, learners[0].model.state_dict())
    assert learners[0].fisher.keys() == dict(learners[0].model.named_parameters()).keys() - head
    assert all((each >= 0).all() for each in learners[0].fisher.values())
    assert_same(learners[0].fisher, learners[1].fisher)


def test_a_teacher_that_diverged_ends_the_visit():
    public = Samples(data(8).images, torch.arange(8) % 2)
    chosen = {"twf__teacher": "public:/x.npz", "twf__teacher_epochs": 9, "twf__ewc": 1.0}
    with pytest.raises(DivergedError, match=r"teacher diverged. Lower train.learning-rate"):
        learner_of(
            TwF,
            network("cnn"),
            received=Received(public=public),
            train__learning_rate=1e9,
            **chosen,
            **WEIGHTS,
        )


def test_networks_without_points_are_refused():
    with pytest.raises(ModelError, match="no known points"):
        learner_of(TwF, network("mlp"))


def test_settings_are_checked():
    for key, value in (("alpha", -1.0), ("mask_replay", -1.0), ("teacher", "x.pt")):
        with pytest.raises(ValueError, match=f"'twf.{key.replace('_', '-')}' is '?{value}"):
            TwF.read_settings(settings(**{f"twf__{key}": value}))
    TwF.read_settings(settings(twf__teacher="public:/x.npz"))
    with pytest.raises(ValueError, match=r"'twf.ewc' is 1.0; it must be 0, if 'twf.teacher' is no"):
        TwF.check_suited(network("cnn"), settings(twf__ewc=1.0))


def test_maps_are_changed_like_their_images():
    images = torch.arange(8 * 9).view(8, 1, 3, 3)
    view, other = draws(augment="flip-rotate").view_alike(images, images * 2)
    assert torch.equal(other, view * 2)
    assert not torch.equal(view, images)
    alone = draws(augment="flip-rotate").view(images)
    assert torch.equal(view, alone)
