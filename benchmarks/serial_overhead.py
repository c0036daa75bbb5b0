"""What a serial federation costs beyond the training itself, and what consolidation costs.

    uv run python -m benchmarks.serial_overhead --data <folder with mnist.npz>

Runs `cwt-serial` and `cwc` over four simulated hospitals, each beside a bare PyTorch loop in one
process that makes as many gradient steps and the same evaluations on the same images with one
thread, one right after the other. Wall times are without start-up; those of a visit are means of
its training alone, without the first two rounds. A simulation tests a model at several hospitals
at once if there are cores for it; the bare loop tests at one after the other.
"""

import argparse
import tempfile
import time
from pathlib import Path
from statistics import fmean
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from benchmarks.overhead import events_of, seconds_of_rounds
from benchmarks.reproduce import commit, defaults, machine
from benchmarks.simulation import run, superlink
from client_app.datasets import LocalData, open_data
from learning.models import Architecture
from strategies.protocol.settings import CWCSettings, Settings

HOSPITALS, WARM_UP = 4, 2  # rounds of warm-up
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

    print(f"commit {commit()}, {machine()}, {arguments.rounds} rounds\n")
    print("| | federation, s | bare loop, s | ratio | visit, s | bare visit, s | ratio |")
    print("|---|---|---|---|---|---|---|")
    lines = []
    with tempfile.TemporaryDirectory() as folder, superlink(Path(folder) / "superlink") as flower:
        for strategy in ("cwt-serial", "cwc"):
            settings = {**workload, "strategy": strategy}
            result = run(flower, Path(folder) / "runs", HOSPITALS, **settings)
            bare = bare_seconds(Settings.parse({**defaults(), **settings}))
            lines.append((seconds_of_rounds(result), bare[0], seconds_of_visit(result), bare[1]))
            print_line(strategy, *lines[-1])
    print_line("cwc / cwt-serial", *(cwc / plain for plain, cwc in zip(*lines, strict=True)))


def print_line(name: str, federation: float, bare: float, visit: float, bare_visit: float) -> None:
    """Print a row of the table."""
    print(
        f"| {name} | {federation:.2f} | {bare:.2f} | {federation / bare:.2f} "
        f"| {visit:.4f} | {bare_visit:.4f} | {visit / bare_visit:.2f} |",
        flush=True,
    )


def seconds_of_visit(result: Path) -> float:
    """Mean time that hospitals say to have trained at a visit."""
    visits = [event for event in events_of(result) if event["verb"] == "train"]
    return fmean(e["metrics"]["seconds-train"] for e in visits if e["round"] > WARM_UP)


def bare_seconds(settings: Settings) -> tuple[float, float]:
    """Wall time of the same steps without a federation, and the mean of a visit's training."""
    torch.set_num_threads(1)
    data = [open_data(settings, hospital, HOSPITALS) for hospital in range(HOSPITALS)]
    _, channels, height, width = data[0].train.images.shape
    classes, hidden = len(data[0].classes), settings.mlp.widths
    model = Architecture(settings.model, channels, height, width, classes, hidden).build()
    weights: list[Tensor] = list(model.parameters())
    torch.optim.Adam(weights, fused=True)  # the first one of a process imports for seconds
    consolidation = Consolidation(weights, settings.cwc) if settings.strategy == "cwc" else None
    visits = []
    start = time.perf_counter()
    for _ in range(settings.num_server_rounds):
        if consolidation:
            consolidation.decay()
        for own in data:
            began = time.perf_counter()
            train(model, own, settings, consolidation)
            visits.append(time.perf_counter() - began)
            model.eval()
            with torch.inference_mode():
                for test in (each.test for each in data):
                    scores = model(test.images.float().div_(127.5).sub_(1))
                    scores.argmax(1).eq(test.labels).sum().item()
    return time.perf_counter() - start, fmean(visits[WARM_UP * HOSPITALS :])


def train(
    model: nn.Module, own: LocalData, settings: Settings, consolidation: "Consolidation | None"
) -> None:
    """A visit."""
    optimizer = torch.optim.Adam(model.parameters(), settings.train.learning_rate, fused=True)
    if consolidation:
        consolidation.start()
    model.train()
    for _ in range(settings.train.epochs):
        for batch in torch.randperm(len(own.train)).split(settings.train.batch_size):
            images = own.train.images[batch].float().div_(127.5).sub_(1)
            optimizer.zero_grad()
            cross_entropy(model(images), own.train.labels[batch]).backward()
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
