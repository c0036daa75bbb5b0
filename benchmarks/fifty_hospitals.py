"""Fifty hospitals on one machine: the time of a round, the testing in it, and the memory.

    uv run python -m benchmarks.fifty_hospitals --data <folder with mnist.npz>

Every model is tested at every hospital after every round, 2,500 pairs. Memory is the sum over all
processes of the simulation; pages that they share count once (PSS, so on Linux only).
"""

import argparse
import json
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.background import repeated
from benchmarks.markdown import print_head, print_row, where
from benchmarks.overhead import events_of
from benchmarks.simulation import run, superlink

HOSPITALS, ROUNDS = 50, 3
WORKLOAD: dict[str, Any] = {  # as in fedrewind_table_4_9.toml, with a network for a CPU
    "partition": "dirichlet",
    "partition-alpha": 0.25,
    "test-fraction": 0.25,
    "model": "mlp",
    "mlp.hidden": "256,256",
    "train.epochs": 10,
    "train.optimizer": "sgd",
    "train.learning-rate": 0.01,
    "evaluate.ensemble": False,
    "num-server-rounds": ROUNDS,
}


def main() -> None:
    """Print a Markdown table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.fifty_hospitals")
    parser.add_argument("--data", type=Path, required=True, help="the folder of mnist.npz")
    file = parser.parse_args().data.expanduser().resolve() / "mnist.npz"
    print(f"{where()}, {HOSPITALS} hospitals\n")
    print_head("", "s per round", "of it testing, s", "GB")
    for strategy in ("cwt", "fedrewind"):
        with tempfile.TemporaryDirectory() as folder:
            home = Path(folder) / "superlink"
            settings = {**WORKLOAD, "dataset": f"npz:{file}", "strategy": strategy}
            with superlink(home) as flower, peak_memory(str(home)) as peak:
                result = run(flower, Path(folder) / "runs", HOSPITALS, **settings)
            whole, testing = seconds_of_rounds(result)
            print_row(strategy, f"{whole:.1f}", f"{testing:.1f}", f"{max(peak) / 1e9:.1f}")


def seconds_of_rounds(result: Path) -> tuple[float, float]:
    """Median wall time of a round and of the testing in it, without the first round."""
    summary = json.loads((result / "summary.json").read_text("utf-8"))
    trained, tested = (
        {e["round"]: e["time"] for e in events_of(result) if e["verb"].startswith(verb)}
        for verb in ("train", "evaluate")
    )  # the last answer of each round
    testing = median(tested[number] - trained[number] for number in range(2, ROUNDS + 1))
    return median(summary["history"]["seconds"][1:]), testing


@contextmanager
def peak_memory(mark: str) -> Iterator[list[float]]:
    """Bytes, once a second, of all processes that have `mark` in their environment."""
    samples: list[float] = []

    def sample() -> None:
        samples.append(sum(_bytes(process, mark) for process in Path("/proc").glob("[0-9]*")))

    with repeated(sample, seconds=1.0):
        yield samples


def _bytes(process: Path, mark: str) -> float:
    with suppress(OSError):  # it has ended meanwhile
        if mark.encode() in (process / "environ").read_bytes():
            lines = (process / "smaps_rollup").read_text().splitlines()
            return 1024 * sum(float(line.split()[1]) for line in lines if line.startswith("Pss:"))
    return 0.0


if __name__ == "__main__":
    main()
