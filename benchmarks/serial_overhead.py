"""What a serial federation costs beyond the training itself, and what consolidation costs.

    uv run python -m benchmarks.serial_overhead --data <folder with mnist.npz>

Runs `cwt-serial` and `cwc` over four simulated hospitals, and right after each of them a bare
PyTorch loop: one process and one thread make as many gradient steps and the same evaluations on the
same images. Wall times are without start-up; those of a visit are means of its training alone,
without the first two rounds. A simulation tests a model at several hospitals at once if there are
cores for it; the bare loop tests at one after the other.
"""

import argparse
import tempfile
import time
from pathlib import Path
from statistics import fmean
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.markdown import print_head, print_row, where
from benchmarks.overhead import HOSPITALS, events_of, gradients, opened, seconds_of_rounds, test
from benchmarks.simulation import run, superlink
from client_app.datasets import LocalData
from learning.settings import CWCSettings
from strategies.protocol.settings import Settings, defaults

WARM_UP = 2  # rounds
WORKLOAD: dict[str, Any] = {  # that of cwc_mnist.toml
    "partition": "dirichlet",
    "partition-alpha": 0.1,
    "test-fraction": 0.142857,
    "model": "mlp",
    "mlp.hidden": "256,256",
    "train.epochs": 1,
    "train.batch-size": 64,
}


def main() -> None:
    """Print a Markdown table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.serial_overhead")
    parser.add_argument("--data", type=Path, required=True, help="the folder of mnist.npz")
    parser.add_argument("--rounds", type=int, default=100, help="3 or more; default: 100")
    arguments = parser.parse_args()
    file = arguments.data.expanduser().resolve() / "mnist.npz"
    workload = {**WORKLOAD, "dataset": f"npz:{file}", "num-server-rounds": arguments.rounds}

    print(f"{where()}, {arguments.rounds} rounds\n")
    titles = ("federation, s", "bare loop, s", "ratio", "visit, s", "bare visit, s", "ratio")
    print_head("", *titles)
    lines = []
    with tempfile.TemporaryDirectory() as folder, superlink(Path(folder) / "superlink") as flower:
        for strategy in ("cwt-serial", "cwc"):
            settings = {**workload, "strategy": strategy}
            result = run(flower, Path(folder) / "runs", HOSPITALS, **settings)
            bare = bare_seconds(Settings.parse({**defaults(), **settings}))
            lines.append((seconds_of_rounds(result), bare[0], seconds_of_visit(result), bare[1]))
            print_ratios(strategy, *lines[-1])
    print_ratios("cwc / cwt-serial", *(cwc / plain for plain, cwc in zip(*lines, strict=True)))


def print_ratios(
    name: str, federation: float, bare: float, visit: float, bare_visit: float
) -> None:
    """Print a row of the table."""
    whole = (f"{federation:.2f}", f"{bare:.2f}", f"{federation / bare:.2f}")
    visits = (f"{visit:.4f}", f"{bare_visit:.4f}", f"{visit / bare_visit:.2f}")
    print_row(name, *whole, *visits)


def seconds_of_visit(result: Path) -> float:
    """Mean training time of a visit, as hospitals report it."""
    visits = [event for event in events_of(result) if event["verb"] == "train"]
    return fmean(e["metrics"]["seconds-train"] for e in visits if e["round"] > WARM_UP)


def bare_seconds(settings: Settings) -> tuple[float, float]:
    """Wall time of the same steps without a federation, and the mean of a visit's training."""
    torch.set_num_threads(1)
    data, architecture = opened(settings, range(HOSPITALS))
    model = architecture.build()
    weights: list[Tensor] = list(model.parameters())
    torch.optim.Adam(weights, fused=True)  # the first one of a process imports for seconds
    consolidation = None
    if settings.strategy == "cwc":
        consolidation = Consolidation(weights, settings.section("cwc", CWCSettings))
    visits = []
    start = time.perf_counter()
    for _ in range(settings.num_server_rounds):
        if consolidation:
            consolidation.decay()
        for own in data:
            began = time.perf_counter()
            train(model, own, settings, consolidation)
            visits.append(time.perf_counter() - began)
            for each in data:
                test(model, each)
    return time.perf_counter() - start, fmean(visits[WARM_UP * HOSPITALS :])


def train(
    model: nn.Module, own: LocalData, settings: Settings, consolidation: "Consolidation | None"
) -> None:
    """A visit."""
    optimizer = torch.optim.Adam(model.parameters(), settings.train.learning_rate, fused=True)
    if consolidation:
        consolidation.start()
    for _ in gradients(model, own, settings):
        if consolidation:
            consolidation.step(optimizer)
        else:
            optimizer.step()
    if consolidation:
        consolidation.finish()


class Consolidation:
    """CWC with synaptic intelligence (Zenke et al. 2017), written for this loop alone.

    With w̃ the weights as received, g the gradient of the task and C the matrix, a visit adds
    2σC (w − w̃) to g and sums ω += −g·Δw over its steps; then C += max(0, ω / ((w − w̃)² + ξ)). At
    the start of a round C becomes γC.
    """

    def __init__(self, weights: list[Tensor], settings: CWCSettings) -> None:
        self.weights, self.settings = weights, settings
        self.matrix = [torch.zeros_like(weight) for weight in weights]
        self.received: list[Tensor] = []  # w̃
        self.path: list[Tensor] = []  # ω
        self.moved: tuple[Tensor, ...] = ()  # w − w̃
        self.pull: tuple[Tensor, ...] = ()  # 2σC

    def decay(self) -> None:
        """Before a round."""
        torch._foreach_mul_(self.matrix, self.settings.decay)

    def start(self) -> None:
        """Before a visit."""
        self.received = [weight.detach().clone() for weight in self.weights]
        self.path = [torch.zeros_like(weight) for weight in self.weights]
        self.moved = tuple(torch.zeros_like(weight) for weight in self.weights)
        self.pull = torch._foreach_mul(self.matrix, 2 * self.settings.strength)

    @torch.no_grad()
    def step(self, optimizer: torch.optim.Optimizer) -> None:
        """Instead of the optimizer's own step."""
        task = [weight.grad for weight in self.weights if weight.grad is not None]
        extended = torch._foreach_addcmul(task, self.pull, self.moved)
        for weight, gradient in zip(self.weights, extended, strict=True):
            weight.grad = gradient
        optimizer.step()
        before, self.moved = self.moved, torch._foreach_sub(self.weights, self.received)
        torch._foreach_sub_(before, self.moved)  # −Δw
        torch._foreach_addcmul_(self.path, task, before)

    @torch.no_grad()
    def finish(self) -> None:
        """After a visit."""
        damped = torch._foreach_mul(self.moved, self.moved)
        torch._foreach_add_(damped, self.settings.damping)
        torch._foreach_div_(self.path, damped)
        torch._foreach_clamp_min_(self.path, 0)
        torch._foreach_add_(self.matrix, self.path)


if __name__ == "__main__":
    main()
