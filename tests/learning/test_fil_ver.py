"""FIL-VER's formulas against numbers derived by hand, and its learners on tiny streams."""

import math

import numpy as np
import pytest
import torch
from flwr.app import Array, ArrayRecord
from torch import nn

from learning.augmentation import Draws
from learning.errors import ModelError
from learning.learners.fil_ver import Encoding, FilVer, Rehearsal, divergence, draw, encode
from learning.learners.naive_rehearsal import NaiveRehearsal
from learning.learners.plain import Plain, Received
from learning.models import Architecture, activations, layout
from learning.packing import pack_network
from learning.randomness import use_seed
from learning.samples import Samples
from learning.server_training import rehearse
from learning.stream import add_task, draw_rows, earlier_samples
from learning.training import train
from strategies.protocol.parcel import Manifest
from strategies.protocol.settings import rng_for
from tests.fakes import settings
from tests.learning.test_training import draws


def test_divergence_of_a_normal_distribution_by_hand():
    """½ (µ² + σ² − 1 − 2 log σ): of N(1, 2²) it is ½ (1 + 4 − 1 − 2 log 2), of N(0, 1) nothing."""
    means = torch.tensor([[1.0, 0.0], [0.0, 0.0]])
    log_sigmas = torch.tensor([[math.log(2), 0.0], [0.0, 0.0]])
    found = divergence(torch.stack([means, log_sigmas], dim=1))
    assert found.item() == pytest.approx((4 - 2 * math.log(2)) / 2 / 2)  # the mean of two images
    assert divergence(torch.ones(3, 1, 2)).item() == 0


def test_divergence_is_what_torch_computes():
    embeddings = torch.randn(5, 2, 7, generator=torch.Generator().manual_seed(0))
    means, log_sigmas = embeddings.unbind(dim=1)
    normal = torch.distributions.Normal(means, log_sigmas.exp())
    prior = torch.distributions.Normal(torch.zeros_like(means), torch.ones_like(means))
    expected = torch.distributions.kl_divergence(normal, prior).sum(dim=1).mean()
    assert divergence(embeddings).item() == pytest.approx(expected.item(), rel=1e-5)


def test_reparametrisation_by_hand():
    """z = µ + σ ε: its gradient is 1 for µ and ε σ for log σ; ε is new at every draw."""
    embeddings = torch.tensor([[[3.0], [math.log(2)]]], requires_grad=True)
    again = torch.Generator().manual_seed(4)
    noise = torch.randn((1, 1), generator=again).item()
    drawn = draw(embeddings, draws(4))
    assert drawn.item() == pytest.approx(3 + 2 * noise)
    drawn.sum().backward()
    assert embeddings.grad is not None
    assert embeddings.grad.flatten().tolist() == pytest.approx([1.0, 2 * noise])
    many = draw(embeddings.detach().expand(20_000, 2, 1), draws(0))
    assert many.mean().item() == pytest.approx(3, abs=0.05)
    assert many.std().item() == pytest.approx(2, abs=0.05)
    assert torch.equal(draw(torch.tensor([[[3.0]]]), draws(0)), torch.tensor([[3.0]]))


def network(name="vee", seed=0):
    with use_seed(rng_for(seed, "model")):
        return Architecture(name, 1, 16, 16, 2).build()


def spots(count, task, seed=0):
    """Images with a bright half, whose side is the label; a band in task 2 says the opposite."""
    rng = rng_for(seed, "spots", task)
    labels = torch.from_numpy(rng.integers(2, size=count))
    images = torch.from_numpy(rng.integers(0, 60, (count, 1, 16, 16), "uint8"))
    for image, label in zip(images, labels, strict=True):
        side = int(label) if task == 1 else 1 - int(label)
        image[:, :, 8 * side : 8 * side + 8] += 150
        if task == 2:
            image[:, 4:12] = 255
    return Samples(images, labels)


CONFIG = settings(
    strategy="fil-ver", model="vee", train__batch_size=16, train__epochs=2, filver__share=0.25
)


def trained(learner, epochs=2, seed=0):
    metrics = train(learner, CONFIG.train, epochs, rng_for(seed, "visit"), math.inf)
    return metrics


def right(model, samples):
    model.eval()
    with torch.no_grad():
        return (model(samples.images).argmax(dim=1) == samples.labels).double().mean().item()


@pytest.mark.slow
@pytest.mark.parametrize("name", ["vee", "ebr"])
def test_the_encoder_learns_and_then_stays_bit_for_bit(name):
    model, samples = network(name), spots(120, 1)
    trained(Encoding(model, samples, CONFIG, Received()), epochs=5)
    assert right(model, spots(60, 1, seed=1)) > 0.95
    before = {key: value.clone() for key, value in model.state_dict().items()}
    trained(FilVer(model, spots(60, 2), CONFIG, Received(task=2)))
    changed = {key for key, value in model.state_dict().items() if not value.equal(before[key])}
    assert changed == {key for key in before if key.startswith("classifier.")}


@pytest.mark.slow
def test_a_hospital_that_rehearses_knows_the_first_task_still():
    """The second task would have it forget: the other side is right there."""
    first, second = spots(160, 1), spots(160, 2)
    found = {}
    for rehearses in (True, False):
        model = network()
        trained(Encoding(model, first, CONFIG, Received()), epochs=5)
        learner = FilVer(model, first, CONFIG, Received(task=1))
        trained(learner)
        kept = learner.rehearsal() if rehearses else {}
        assert not kept or kept["values"].shape == (40, 2, 256)
        later = FilVer(model, second, CONFIG, Received(rehearsal=kept, task=2))
        assert trained(later, epochs=10)["num-examples"] == 160  # kept ones are not counted
        found[rehearses] = right(model, spots(100, 1, seed=1))
    assert found[True] > found[False] + 0.2


@pytest.mark.parametrize("first", [1, 3])  # a hospital may have an order of tasks of its own
def test_what_is_kept_is_a_share_of_each_task_whatever_the_number_of_visits(first):
    samples = spots(40, 1)
    rows = draw_rows(40, 0.25, 7, first)
    kept = add_task({}, samples, rows, first)
    for _ in range(3):
        kept = add_task(kept, samples, rows, first)
    assert kept["tasks"].tolist() == [first] * 10
    assert earlier_samples(kept, first) is None
    kept = add_task(kept, spots(20, 2), draw_rows(20, 0.25, 7, 2), 2)
    assert kept["tasks"].tolist() == [first] * 10 + [2] * 5
    old = earlier_samples(kept, 2)
    assert old is not None
    assert torch.equal(old.images, samples[rows].images)
    assert torch.equal(old.labels, samples.labels[rows])
    assert len(draw_rows(3, 0.01, 0, 1)) == 1


def test_the_loss_counts_kept_ones_as_new_ones():
    """20 kept ones beside 40 new ones: 8 with a batch of 16; the loss is the mean over all 24."""
    model, new, old = network(), spots(40, 2), spots(20, 1)
    kept = add_task({}, encode(model, old), torch.arange(20), 1)
    kept["values"][:, 1] = -math.inf  # no noise: σ = 0
    learner = FilVer(model, new, CONFIG, Received(rehearsal=kept, task=2))
    learner.samples.pixels[:, 1] = -math.inf
    batch = learner.samples[torch.arange(16)]
    loss = learner.observe(batch, draws(3))
    generator = draws(3)
    draw(batch.images, generator)
    assert learner.kept is not None
    beside = generator.draw(learner.kept, 8)
    with torch.no_grad():
        logits = model.classifier(torch.cat([batch.images[:, 0], beside.images[:, 0]]))
        labels = torch.cat([batch.labels, beside.labels])
        expected = nn.functional.cross_entropy(logits, labels)
    assert loss.item() == pytest.approx(expected.item(), rel=1e-5)


@pytest.mark.slow
def test_naive_rehearsal_keeps_images_and_remembers():
    first, second = spots(160, 1), spots(160, 2)
    config = settings(learner="rehearsal", strategy="fedavg", rehearsal__share=0.25)
    found = {}
    for kind in (NaiveRehearsal, Plain):
        with use_seed(rng_for(0, "model")):
            model = Architecture("mlp", 1, 16, 16, 2, (32,)).build()
        learner = kind(model, first, config, Received(task=1))
        trained(learner, epochs=10)
        kept = learner.rehearsal()
        later = kind(model, second, config, Received(rehearsal=kept, task=2))
        trained(later, epochs=40)
        found[kind] = right(model, spots(100, 1, seed=1))
    assert found[NaiveRehearsal] > found[Plain]
    assert kept == {}
    assert found[NaiveRehearsal] > 0.9


@pytest.mark.parametrize("kind", [FilVer, NaiveRehearsal])
@pytest.mark.parametrize(
    ("limits", "kept", "replayed"), [((1, 1), 1, 1), ((10, 5), 10, 5), ((90, 5), 60, 16)]
)
def test_a_small_share_keeps_and_replays_the_least_number(
    kind, limits, kept, replayed, monkeypatch
):
    """Limits on kept images and on a step, for a task of 60 images and a batch of 16.

    Of 10 kept images an epoch would replay 16 · 10 / 60 = 3 beside a batch.
    """
    config = settings(model="vee", filver__share=1e-9, rehearsal__share=1e-9)
    limits = dict(zip(("least_kept", "min_batch"), limits, strict=True))
    model = network()
    first = kind(model, spots(60, 1), config, Received(task=1, **limits))
    memory = first.rehearsal()
    assert len(memory["labels"]) == kept
    later = kind(model, spots(60, 2), config, Received(task=2, rehearsal=memory, **limits))
    drawn = []

    def note(_, old, count):
        drawn.append(count)
        return old

    monkeypatch.setattr(Draws, "draw", note)
    later.observe(later.samples[torch.arange(16)], draws(0))
    assert drawn == [replayed]
    if kind is FilVer:
        assert len(first.chosen) == 1  # the run decides on the number that leaves


def test_a_network_without_an_encoder_or_for_tiny_images_is_refused():
    plain = Architecture("mlp", 1, 16, 16, 2, (4,)).build()
    with pytest.raises(ModelError, match="set 'model' to vee or ebr"):
        FilVer(plain, spots(4, 1), CONFIG, Received())
    with pytest.raises(ModelError, match="has no encoder"):
        Rehearsal(plain, spots(4, 1), CONFIG, Received()).observe(spots(4, 1), draws(0))
    with pytest.raises(ModelError, match="16 pixels or more a side"):
        activations(Architecture("vee", 1, 15, 28, 10))
    vee = Architecture("vee", 1, 28, 28, 10)
    shapes = {name: tuple(value.shape) for name, value in layout(vee).items()}
    assert shapes["encoder.body.0.weight"] == (32, 1, 5, 5)
    assert shapes["encoder.body.7.weight"] == (1000, 64 * 4 * 4)
    assert shapes["encoder.heads.1.weight"] == (256, 1000)
    assert shapes["classifier.0.weight"] == (1000, 256)


@pytest.mark.parametrize("steps", [1, 500])
def test_the_server_holds_each_embedding_once_whatever_the_number_of_steps(steps, monkeypatch):
    """Of two tasks, from two hospitals and from one; equally many are drawn of each task."""
    generator = torch.Generator().manual_seed(0)
    parts = [(torch.randn(n, 1, 256, generator=generator), torch.arange(n) % 2) for n in (3, 4, 5)]
    records = [
        ArrayRecord({"values": Array(values.numpy()), "labels": Array(labels.numpy())})
        for values, labels in parts
    ]
    learners = []

    def note(learner, *_):
        learners.append(learner)
        return {"train-loss": 0.0}

    monkeypatch.setattr("learning.server_training.train", note)
    architecture = Architecture("ebr", 1, 16, 16, 2)
    with use_seed(rng_for(0, "model")):
        model = pack_network(
            architecture.build(), Manifest("a", architecture.to_json(), ["0", "1"])
        )
    rng = rng_for(0, "server")
    tasks = [records[:2], records[2:]]
    rehearse(model.array_records["model"], architecture.to_json(), tasks, CONFIG, steps, rng)
    (learner,) = learners
    assert len(learner.samples.pixels) == 12
    count, again = steps * CONFIG.train.batch_size, rng_for(0, "server")
    drawn = [again.integers(n, size=count // 2) for n in (7, 5)]
    rows = torch.from_numpy(np.concatenate([drawn[0], drawn[1] + 7]))
    values, labels = map(torch.cat, zip(*parts, strict=True))
    assert torch.equal(learner.samples.images, values[rows])
    assert torch.equal(learner.samples.labels, labels[rows])
    batch = learner.samples[torch.arange(count - 2, count)]
    assert torch.equal(batch.images, values[rows[-2:]])
