"""The learner's interface carries a method of another kind: DER++, on a stream of two tasks.

Buzzega et al., "Dark experience for general continual learning: a strong, simple baseline",
NeurIPS 2020, arXiv:2004.07211. It needs what no learner of the product does: logits kept beside
images, two draws a step, and a memory that belongs to the hospital's stream.
"""

import math
import time
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.nn import functional

from learning.evaluation import probabilities, score
from learning.learners.plain import Learner, Plain, Received
from learning.models import Architecture
from learning.samples import Samples
from learning.training import train
from strategies.protocol.settings import Settings, SettingsError, require
from tests.fakes import run_config
from tests.learning.test_cwc import OnePixel, white
from tests.learning.test_training import draws


@dataclass(frozen=True)
class DERSettings:
    """DER++: the keys `der.*`."""

    alpha: float
    beta: float
    capacity: int

    def __post_init__(self) -> None:
        require(self.capacity >= 1, "der.capacity", self.capacity, "1 or more")


class DERPlusPlus(Learner):
    """CE(batch) + α · MSE(logits of a draw, as stored) + β · CE(another draw); Eq. 6.

    The reservoir (Vitter, 1985) holds images, labels, and the logits at insertion.
    """

    tables = (("der", DERSettings),)

    def begin_visit(self):
        self.reservoir = dict(self.received.rehearsal) or {
            "images": self.samples.images[:0],
            "labels": self.samples.labels[:0],
            "logits": torch.empty(0),
            "seen": torch.tensor(0),
        }

    def observe(self, batch, draws):
        images, labels, stored = (self.reservoir[key] for key in ("images", "labels", "logits"))
        logits = self.model(draws.view(batch.images))
        loss = functional.cross_entropy(logits, batch.labels)
        if len(labels):
            first, second = (
                torch.randperm(len(labels), generator=draws.generator)[: len(batch)]
                for _ in range(2)
            )
            outputs = self.model(draws.view(images[first]))
            loss = loss + self.own.alpha * functional.mse_loss(outputs, stored[first])
            outputs = self.model(draws.view(images[second]))
            loss = loss + self.own.beta * functional.cross_entropy(outputs, labels[second])
        self.insert(batch, logits.detach(), draws.generator)
        return loss

    def insert(self, batch: Samples, logits: Tensor, generator: torch.Generator) -> None:
        """Keep each of the images seen so far with the same probability."""
        old = len(self.reservoir["labels"])
        rows = list(range(old))
        for row in range(old, old + len(batch)):
            seen = int(self.reservoir["seen"])
            if seen < self.own.capacity:
                rows.append(row)
            elif (place := _below(seen + 1, generator)) < self.own.capacity:
                rows[place] = row
            self.reservoir["seen"] = torch.tensor(seen + 1)
        new = {"images": batch.images, "labels": batch.labels, "logits": logits}
        for key, values in new.items():
            both = torch.cat([self.reservoir[key], values]) if old else values
            self.reservoir[key] = both[rows]

    def rehearsal(self):
        return self.reservoir


def _below(end: int, generator: torch.Generator) -> int:
    return int(torch.randint(end, (), generator=generator))


def chosen(**overrides) -> Settings:
    """The run's settings with a table of the learner's own, as pyproject.toml would have it."""
    der = {"alpha": 0.5, "beta": 0.25, "capacity": 100, **overrides}
    config = run_config(train__learning_rate=0.01, train__batch_size=32)
    return Settings.parse({**config, **{f"der.{key}": value for key, value in der.items()}})


def test_the_learner_checks_its_own_settings():
    DERPlusPlus.check(chosen())
    with pytest.raises(SettingsError, match=r"'der\.capacity' is 0; it must be 1 or more"):
        DERPlusPlus.check(chosen(capacity=0))


def test_one_step_by_hand():
    """Weights 0, pixels 1: all logits are 0 and p = (½, ½). Stored: label 1, logits (1, −1).

    CE = ln 2 for both, MSE = ((0 − 1)² + (0 + 1)²) / 2 = 1: loss = (1 + β) ln 2 + α.
    Gradients: CE(batch, label 0) (−½, ½); MSE 2 (z − s) / 2 = (−1, 1); CE(draw, label 1) (½, −½):
    with α = 0.5 and β = 0.25 their sum is (−0.5 − 0.5 + 0.125, 0.5 + 0.5 − 0.125).
    """
    model = OnePixel()
    kept = {
        "images": white(1).images,
        "labels": torch.tensor([1]),
        "logits": torch.tensor([[1.0, -1.0]]),
        "seen": torch.tensor(1),
    }
    learner = DERPlusPlus(model, white(1), chosen(), Received(rehearsal=kept))
    loss = learner.observe(white(1), draws())
    (gradient,) = torch.autograd.grad(loss, model.weight)
    assert loss.item() == pytest.approx(1.25 * math.log(2) + 0.5)
    assert gradient.flatten().tolist() == pytest.approx([-0.875, 0.875])
    after = learner.rehearsal()
    assert after["labels"].tolist() == [1, 0]
    assert after["logits"].tolist() == [[1.0, -1.0], [0.0, 0.0]]
    assert after["seen"].item() == 2


def numbered(count: int) -> Samples:
    """Samples that can be told apart by their labels."""
    return Samples(torch.zeros(count, 1, 1, 1, dtype=torch.uint8), torch.arange(count))


def test_the_two_draws_of_a_step_are_independent():
    """Each of 20 images once a draw: the order of the two is the same by chance in 1 of 20!."""
    given = []

    class Recording(nn.Module):
        def forward(self, images):
            given.append(images[:, 0, 0, 0].tolist())
            return torch.zeros(len(images), 2)

    levels = torch.arange(20, dtype=torch.uint8).view(-1, 1, 1, 1)
    kept = {
        "images": levels,
        "labels": torch.zeros(20, dtype=torch.int64),
        "logits": torch.zeros(20, 2),
        "seen": torch.tensor(20),
    }
    batch = Samples(levels, torch.zeros(20, dtype=torch.int64))
    DERPlusPlus(Recording(), batch, chosen(), Received(rehearsal=kept)).observe(batch, draws())
    _, first, second = given
    assert sorted(first) == sorted(second) == list(range(20))
    assert first != second


@pytest.mark.parametrize(("stream", "kept"), [(30, 30), (100, 100), (250, 100)])
def test_the_reservoir_holds_all_images_or_as_many_as_it_may(stream, kept):
    learner = DERPlusPlus(OnePixel(), numbered(stream), chosen(), Received())
    for batch in torch.arange(stream).split(32):
        learner.insert(numbered(stream)[batch], torch.zeros(len(batch), 2), draws().generator)
    labels = learner.rehearsal()["labels"]
    assert len(labels) == len(set(labels.tolist())) == kept
    assert learner.rehearsal()["seen"].item() == stream


def test_the_reservoir_is_a_uniform_sample():
    """Of 40 images each is among the 10 kept in a quarter of 200 streams.

    The standard deviation is sqrt(200 · ¼ · ¾) = 6.1; 30 is nearly five.
    """
    generator, times = torch.Generator().manual_seed(0), torch.zeros(40)
    for _ in range(200):
        learner = DERPlusPlus(OnePixel(), numbered(40), chosen(capacity=10), Received())
        learner.insert(numbered(40), torch.zeros(40, 2), generator)
        times[learner.rehearsal()["labels"]] += 1
    assert times.sum() == 200 * 10
    assert times.sub(50).abs().max() < 30


def digits(classes: range) -> Samples:
    images, labels = load_digits(return_X_y=True)
    some = np.isin(labels, classes)
    pixels = torch.from_numpy((images[some] * 15.9).astype(np.uint8)).view(-1, 1, 8, 8)
    return Samples(pixels, torch.from_numpy(labels[some]).long())


def stream_of_two_tasks(kind: type[Learner]) -> tuple[float, Received]:
    """Digits 0 to 4, then 5 to 9, a visit each.

    Returns:
        The accuracy on the first task after the second, and what the second visit found.
    """
    model, settings, received = (
        Architecture("mlp", 1, 8, 8, 10, (64,)).build(),
        chosen(),
        Received(),
    )
    found = received
    for number, classes in enumerate((range(5), range(5, 10))):
        found = received
        learner = kind(model, digits(classes), settings, received)
        rng = np.random.default_rng(number)
        train(learner, settings.train, 5, rng, time.monotonic() + 60)
        received = Received(rehearsal=learner.rehearsal())
    first = digits(range(5))
    judged = score(probabilities(model, first.images, time.monotonic() + 60), first.labels)
    return judged["accuracy"], found


def test_what_was_kept_in_the_first_task_is_received_in_the_second_and_helps():
    torch.manual_seed(0)
    plain, without = stream_of_two_tasks(Plain)
    rehearsed, received = stream_of_two_tasks(DERPlusPlus)
    assert without.rehearsal == {}
    assert received.rehearsal["images"].shape == (100, 1, 8, 8)
    assert received.rehearsal["logits"].shape == (100, 10)
    assert received.rehearsal["labels"].max() < 5
    assert received.rehearsal["seen"].item() == 5 * len(digits(range(5)))
    assert plain < 0.3
    assert rehearsed > plain + 0.4
