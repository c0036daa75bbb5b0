"""What other readings of CWC's lost formulas would be worth: the learner alone, without Flower.

    uv run python -m benchmarks.cwc_readings --data <folder with mnist.npz> as-here kept-adam
    uv run python -m benchmarks.cwc_readings --data <folder> as-here --alpha 1 cwc.strength=0.03

One process makes the visits of `cwc_mnist.toml` one after the other and tests on a sixth of the
training images, all hospitals' together, after each. Prints a row for each reading: mean and
standard deviation of the accuracy over all visits of the last ten rounds, and its highest.
"""

import argparse
import time
from pathlib import Path
from statistics import fmean, pstdev
from typing import Any
from unittest.mock import patch

import torch

from benchmarks.markdown import print_head, print_row, where
from client_app.datasets import open_data
from learning import training
from learning.evaluation import probabilities
from learning.learners.cwc import CWC
from learning.learners.plain import Learner, Plain, Received
from learning.models import Architecture
from learning.randomness import seeded
from learning.samples import joined
from strategies.protocol.settings import Settings, defaults, rng_for

HOSPITALS, SEED = 4, 10
WORKLOAD: dict[str, Any] = {
    "partition": "dirichlet",
    "test-fraction": 0.142857,
    "validation-fraction": 0.166667,
    "seed": SEED,
    "pixels": "unit",
    "mlp.hidden": "256,256",
    "train.epochs": 1,
    "train.batch-size": 64,
}


class PathOfWholeLoss(CWC):
    """ω with the gradient of the task's loss and the penalty."""

    @torch.no_grad()
    def before_step(self) -> None:
        """Add the penalty first."""
        gradients = [weight.grad for weight in self.weights if weight.grad is not None]
        strength = 2 * self.own.strength
        torch._foreach_addcmul_(gradients, self.consolidation, self.drift, value=strength)
        self.importance.before_step(gradients)


class ImplicitStep(CWC):
    """The pull as a proximal step after Adam's, which bounds its length by the drift."""

    @torch.no_grad()
    def before_step(self) -> None:
        """Leave the gradient as it is."""
        self.importance.before_step([w.grad for w in self.weights if w.grad is not None])

    @torch.no_grad()
    def after_step(self) -> None:
        """With s = 2 σ η C: w ← (w + s w̃) / (1 + s)."""
        scale = 2 * self.own.strength * self.settings.train.learning_rate
        for weight, start, entries in zip(
            self.weights, self.start, self.consolidation, strict=True
        ):
            weight.add_(scale * entries * start).div_(1 + scale * entries)
        super().after_step()


class LargestImportance(CWC):
    """C is the largest importance so far instead of their sum."""

    def memory(self, rng: Any) -> dict[str, torch.Tensor]:
        """The larger of C and Ω, entry by entry."""
        importance = self.importance.estimate(self.drift, self.samples, rng)
        largest = map(torch.maximum, self.consolidation, importance)
        return dict(zip(self.parameters, largest, strict=True))


class LargestEntryOne(CWC):
    """The penalty takes C divided by its largest entry; what travels is not divided."""

    def begin_visit(self) -> None:
        """Keep C, and divide."""
        super().begin_visit()
        self.whole = self.consolidation
        largest = max(float(entries.max()) for entries in self.whole)
        self.consolidation = [entries / (largest or 1.0) for entries in self.whole]

    def memory(self, rng: Any) -> dict[str, torch.Tensor]:
        """Eq. 4 with the undivided C."""
        self.consolidation = self.whole
        return super().memory(rng)


READINGS: dict[str, type[Learner]] = {
    "cwt": Plain,
    "as-here": CWC,
    "kept-adam": CWC,
    "path-of-whole-loss": PathOfWholeLoss,
    "implicit-step": ImplicitStep,
    "largest-importance": LargestImportance,
    "largest-entry-one": LargestEntryOne,
}


def main() -> None:
    """Print a Markdown table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.cwc_readings")
    parser.add_argument("what", nargs="+", help=f"{', '.join(READINGS)}, or settings as key=value")
    parser.add_argument("--data", type=Path, required=True, help="the folder of mnist.npz")
    parser.add_argument("--alpha", type=float, default=0.1, help="of the Dirichlet distribution")
    parser.add_argument("--rounds", type=int, default=30, help="10 or more; default: 30")
    given = parser.parse_args()
    changes = dict(part.split("=") for part in given.what if "=" in part)
    config = {
        **defaults(),
        **WORKLOAD,
        "dataset": f"npz:{given.data.expanduser().resolve()}/mnist.npz",
        "partition-alpha": given.alpha,
        **{key: type(defaults()[key])(value) for key, value in changes.items()},
    }
    print(f"{where()}, α = {given.alpha}, {given.rounds} rounds, {changes or 'defaults'}\n")
    print_head("", "mean of last 10 rounds, %", "oscillation", "highest, %", "s")
    for name in (part for part in given.what if "=" not in part):
        began = time.monotonic()
        accuracies = run(name, Settings.parse(config), given.rounds)
        last = accuracies[-10 * HOSPITALS :]
        figures = (fmean(last), pstdev(last), max(accuracies))
        seconds = f"{time.monotonic() - began:.0f}"
        print_row(name, *(f"{100 * figure:.1f}" for figure in figures), seconds)


def run(name: str, settings: Settings, rounds: int) -> list[float]:
    """The accuracy on everybody's test images after each visit."""
    torch.set_num_threads(1)
    data = [open_data(settings, hospital, HOSPITALS) for hospital in range(HOSPITALS)]
    test = joined(each.test for each in data)
    with seeded(rng_for(SEED, "first model")):
        shape, widths = data[0].train.shape, settings.mlp.widths
        model = Architecture("mlp", *shape, len(data[0].classes), widths, settings.pixels).build()
    memory: dict[str, torch.Tensor] = {}
    accuracies = []
    optimizer = {"adam": Kept()} if name == "kept-adam" else {}
    for visit in range(rounds * HOSPITALS):
        server_round, hospital = divmod(visit, HOSPITALS)
        received = Received(memory=memory, new_rounds=int(hospital == 0 < server_round))
        learner = READINGS[name](model, data[hospital].train, settings, received)
        place = (SEED, "visit", server_round, hospital)
        with patch.dict(training.OPTIMIZERS, optimizer):
            training.train(learner, settings.train, 1, rng_for(*place), float("inf"))
        memory = {key: value.clone() for key, value in learner.memory(rng_for(*place)).items()}
        right = probabilities(model, test.images, float("inf")).argmax(1) == test.labels
        accuracies.append(right.float().mean().item())
    return accuracies


class Kept:
    """The Adam of the first visit for all of them: its moments live on."""

    adam: torch.optim.Adam | None = None

    def __call__(self, parameters: Any, **settings: Any) -> torch.optim.Adam:
        """The same one every time."""
        self.adam = self.adam or torch.optim.Adam(parameters, **settings)
        return self.adam


if __name__ == "__main__":
    main()
