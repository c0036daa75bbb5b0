"""Many hospitals on one machine: the time of a hop, of the testing after it, and the memory.

    uv run python -m benchmarks.many_hospitals --data <folder with mnist.npz> --hospitals 10,100
    uv run python -m benchmarks.many_hospitals --data <folder with mnist.npz> --hospitals 50
        --workers 0,2 --cross true,sample:5

Each hospital trains one model in each hop. Memory is the sum over all processes of the simulation;
pages that they share count once (PSS, so on Linux only).
"""

import argparse
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from itertools import product
from pathlib import Path
from typing import Any

from benchmarks.background import repeated
from benchmarks.markdown import print_head, print_row, where
from benchmarks.overhead import events_of
from benchmarks.simulation import run, superlink

CROSS: dict[str, bool | str] = {"true": True, "false": False}  # the rest is a text
WORKLOAD: dict[str, Any] = {
    "strategy": "rwt",
    "partition": "iid",
    "model": "mlp",
    "mlp.hidden": "256,256",
    "train.epochs": 1,
    "train.optimizer": "sgd",
    "train.learning-rate": 0.01,
    "evaluate.ensemble": False,
    "num-server-rounds": 3,
}


def main() -> None:
    """Print a Markdown table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.many_hospitals")
    parser.add_argument("--data", type=Path, required=True, help="the folder of mnist.npz")
    parser.add_argument("--hospitals", default="10,100,300,1000", help="how many, by commas")
    parser.add_argument("--workers", default="2", help="the setting, by commas; 0: Flower's engine")
    parser.add_argument("--cross", default="sample:5", help="the setting, by commas")
    given = parser.parse_args()
    data = f"npz:{given.data.expanduser().resolve() / 'mnist.npz'}"
    print(f"{where()}\n")
    titles = ("first hop, s", "hop, s", "testing, s", "last testing, s")
    print_head("hospitals", "workers", "cross", *titles, "GB")
    lists = (each.split(",") for each in (given.hospitals, given.workers, given.cross))
    for hospitals, workers, cross in product(*lists):
        settings = {**WORKLOAD, "dataset": data, "min-hospitals": int(hospitals)}
        settings |= {"workers": int(workers), "evaluate.cross": CROSS.get(cross, cross)}
        with tempfile.TemporaryDirectory() as folder:
            home = Path(folder) / "superlink"
            with superlink(home) as flower, peak_memory(str(home)) as peak:
                result = run(flower, Path(folder) / "runs", int(hospitals), **settings)
            seconds = [f"{each:.1f}" for each in seconds_of_phases(result)]
            print_row(hospitals, workers, cross, *seconds, f"{max(peak) / 1e9:.1f}")


def seconds_of_phases(result: Path) -> tuple[float, float, float, float]:
    """Wall time of the first hop, of the second, and of the testing after the second and the third.

    The third round is the last, in which hospitals tell details of models.
    """
    ends: dict[tuple[int, str], float] = {}  # the last answer of each phase
    for event in events_of(result):
        ends[event["round"], event["verb"]] = event["time"]
    first = ends[1, "train"] - ends[0, "query.prepare"]
    second = ends[2, "train"] - ends[1, "evaluate"]
    testing, last = (ends[n, "evaluate"] - ends[n, "train"] for n in (2, 3))
    return first, second, testing, last


@contextmanager
def peak_memory(mark: str, seconds: float = 1.0) -> Iterator[list[float]]:
    """Bytes, every few `seconds`, of all processes that have `mark` in their environment."""
    samples: list[float] = []

    def sample() -> None:
        samples.append(sum(_bytes(process, mark) for process in Path("/proc").glob("[0-9]*")))

    with repeated(sample, seconds):
        yield samples


def _bytes(process: Path, mark: str) -> float:
    with suppress(OSError):  # it has ended meanwhile
        if mark.encode() in (process / "environ").read_bytes():
            lines = (process / "smaps_rollup").read_text().splitlines()
            return 1024 * sum(float(line.split()[1]) for line in lines if line.startswith("Pss:"))
    return 0.0


if __name__ == "__main__":
    main()
