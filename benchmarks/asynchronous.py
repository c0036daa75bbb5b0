"""What asynchronous hand-off is worth where one hospital is slow, in virtual time.

    uv run python -m benchmarks.asynchronous speed mixing feder checkpoint --seeds 0,1,2

All hospitals are in this process, and nothing waits for a disk (but for `checkpoint`): a visit
takes as long as `async.seconds` says. Flower and Ray have no part in it. Prints Markdown tables:

    speed       time to a target accuracy with a hospital that is 20 times slower, and without it;
                both also if some visits fail and the server is killed again and again
    busy        how busy equally fast hospitals are, by their number
    mixing      what `shortest` and `uniform` do to how models get about
    feder       FedER asynchronous and synchronous at equal visits, where hospitals differ
                (blends of images in the place of a GAN's)
    checkpoint  seconds that it takes to keep one, after each delivery
"""

import argparse
import json
import logging
import os
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from math import inf, isfinite, isnan, nan
from pathlib import Path
from statistics import fmean, median, stdev
from typing import Any

import numpy as np
import torch
from flwr.app import Message
from flwr.supercore.task_identity import TaskIdentity
from scipy.stats import t

from benchmarks.markdown import print_head, print_row, where
from client_app import buffer
from client_app.app import app as hospital_app
from client_app.buffer.job import Release
from client_app.datasets.pool import Indices
from client_app.hospital import Hospital
from learning.samples import Samples
from server_app import report
from server_app.results import Results
from strategies.engine.courier import Courier
from strategies.engine.engine import Engine
from strategies.engine.run import Run
from strategies.engine.state import State
from strategies.protocol.settings import Settings, rng_for
from strategies.registry import strategy_of
from tests.fakes import FakeGrid, Handler, context, failing, run_config

HOSPITALS, SLOWER = 5, 20
QUICK = {f"hospital-{k}" for k in range(HOSPITALS - 1)}
SLOW = ",".join(["1"] * (HOSPITALS - 1) + [str(SLOWER)])
BASE = {"strategy": "rwt", "model": "mlp", "mlp__hidden": "64", "train__epochs": 1}
ROUNDS, EVERY, TARGETS = 80, 2, (0.7, 0.75, 0.8)
FAILING = (0.03, 0.1)  # share of the visits that fail
FEDER_ROUNDS, LAST = 40, 5  # rounds, and evaluations at their end that a figure is the mean of


class Killed(BaseException):
    """The server is gone."""


def main() -> None:
    """Print the tables that are asked for."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.asynchronous")
    parser.add_argument("parts", nargs="+", choices=PARTS)
    parser.add_argument("--seeds", default="0,1,2")
    given = parser.parse_args()
    logging.getLogger("flwr").setLevel(logging.CRITICAL)
    for name in ("_task_id", "_run_id", "_node_id"):  # Flower makes messages only inside a run
        setattr(TaskIdentity, name, 1)
    report.render = lambda *_: ""  # nobody looks
    print(where())
    for part in given.parts:
        print(f"\n{part}\n")
        PARTS[part]([int(each) for each in given.seeds.split(",")])


def do(
    folder: Path, *, hospitals: int = HOSPITALS, failures: float = 0.0, **settings: Any
) -> tuple[Path, dict[str, Any]]:
    """A run at the first of the parts of the images; its result folder and its summary.

    Args:
        folder: For results and stores.
        hospitals: How many there are. There are `HOSPITALS` parts, or as many as hospitals.
        failures: The share of the visits that fail; then the server is killed, too, at random.
        settings: As in tests.fakes.run_config.
    """
    config = run_config(**{**BASE, "output_dir": str(folder / "runs"), **settings})
    parts = max(hospitals, HOSPITALS)
    handlers = {100 + k: _hospital(folder, k, parts, config, failures) for k in range(hospitals)}
    rng = rng_for(int(config["seed"]), "kills")
    resume = ""
    while True:
        parsed = Settings.parse({**config, "resume": resume})
        results, state = Results.open(parsed)
        left = int(rng.integers(50, 400)) if failures else -1

        def keep(state: State, results: Results = results) -> None:
            nonlocal left
            results.keep(state)
            left -= 1
            if not left:
                raise Killed

        grid = FakeGrid(handlers)
        run = Run(parsed, strategy_of(parsed), state, Courier(grid), results)
        try:
            Engine(run, keep).go()
        except Killed:
            resume = str(results.path)
            _unlock()
            continue
        results.finish(state)
        return results.path, json.loads((results.path / "summary.json").read_text())


def _unlock() -> None:
    """Let go of what a killed server would have let go of: the lock on its result folder."""
    for link in Path("/proc/self/fd").iterdir():
        with suppress(OSError):  # that of the listing itself
            if "-rwt" in (target := os.readlink(link)) and os.path.isdir(target):
                os.close(int(link.name))


def _hospital(
    folder: Path, k: int, parts: int, config: Mapping[str, Any], failures: float
) -> Handler:
    place = context(k, parts, config, **{"store-dir": str(folder / "store")})
    rng = rng_for(int(config["seed"]), "failures", hospital=str(k))

    def handle(message: Message) -> Message | None:
        if message.metadata.message_type == "train" and rng.random() < failures:
            return failing(message, 8, "killed")
        return hospital_app(message, place)

    return handle


@contextmanager
def no_disk() -> Iterator[None]:
    """Nothing waits for a disk."""
    fsync = os.fsync
    os.fsync = lambda fd: None
    try:
        yield
    finally:
        os.fsync = fsync


def curve(result: Path, summary: Mapping[str, Any]) -> dict[float, float]:
    """Mean accuracy of all models at all hospitals but the last, by virtual time."""
    events = map(json.loads, (result / "metrics.jsonl").read_text().splitlines())
    tests: dict[int, list[float]] = {}
    for event in events:
        if event["verb"] == "evaluate" and event["outcome"] == "ok" and event["hospital"] in QUICK:
            tests.setdefault(event["round"], []).append(event["metrics"]["accuracy"])
    times = summary["over_time"]["time"]
    return {at: fmean(tests[r]) for at, r in zip(times, summary["history"]["round"], strict=True)}


def reached(points: Mapping[float, float], target: float) -> float:
    """When an accuracy is first reached."""
    return next((at for at, accuracy in points.items() if accuracy >= target), inf)


def speed(seeds: Sequence[int]) -> None:
    """Time to a target accuracy."""
    quick: dict[str, Any] = {"hospitals": HOSPITALS - 1, "async__seconds": "1"}
    slow: dict[str, Any] = {"async__seconds": SLOW}
    pairs = {"": (quick, slow)}
    for share in FAILING:
        pairs[f", {share:.0%} fail"] = (quick | {"failures": share}, slow | {"failures": share})
    columns = [f"to {target}, s" for target in TARGETS]
    print_head("run", "seed", *columns, "times", "busy, fast", "visits", "resumed", "last")
    times: dict[str, list[list[float]]] = {}
    for seed in seeds:
        for name, (without, with_it) in pairs.items():
            base = _timed(f"without the slow one{name}", seed, [], **without)
            runs = {f"one {SLOWER} times slower{name}": with_it}
            if not name:
                runs["the same, synchronous"] = with_it | {"asynchronous": False}
            for run, case in runs.items():
                seconds = _timed(run, seed, base, **case)
                times.setdefault(run, []).append(_ratios(seconds, base))
    print()
    print_head("run", *(f"times to {target}: median (range; seeds)" for target in TARGETS))
    for run, of_seeds in times.items():
        shown = [_spread(each) for each in zip(*of_seeds, strict=True)]
        print_row(run, *shown)


def _ratios(seconds: Sequence[float], without: Sequence[float]) -> list[float]:
    """How many times as long it takes to each target; NaN for one that both do not reach."""
    pairs = zip(seconds, without, strict=True)
    return [a / b if isfinite(a) and isfinite(b) else nan for a, b in pairs]


def _spread(ratios: Sequence[float]) -> str:
    """Their median and range, and how many there are: NaN is not counted."""
    known = [each for each in ratios if not isnan(each)]
    if not known:
        return "–"
    return f"{median(known):.2f} ({min(known):.2f} to {max(known):.2f}; {len(known)})"


def _timed(name: str, seed: int, without: Sequence[float], **case: Any) -> list[float]:
    """Do a run and print its row; the seconds to each target.

    Args:
        name: Of the run.
        seed: Of the run.
        without: The seconds of the run that it is compared with; empty: with itself.
        case: As in `do`.
    """
    with tempfile.TemporaryDirectory() as folder, no_disk():
        settings = {"asynchronous": True, "seed": seed, "evaluate__every": EVERY, **case}
        result, summary = do(Path(folder), num_server_rounds=ROUNDS, **settings)
        points = curve(result, summary)
    seconds = [reached(points, target) for target in TARGETS]
    ratios = [f"{each:.2f}" for each in _ratios(seconds, without or seconds)]
    shares = [each for name, each in summary["over_time"]["busy"].items() if name in QUICK]
    visits = sum(each["visits"] for each in summary["participation"].values())
    print_row(
        name,
        seed,
        *(f"{each:.0f}" for each in seconds),
        " ".join(ratios),
        f"{min(shares):.2f} to {max(shares):.2f}",
        visits,
        summary["resumed"],
        f"{list(points.values())[-1]:.3f}",
    )
    return seconds


def busy(seeds: Sequence[int]) -> None:
    """How busy equally fast hospitals are: of an odd number one waits."""
    print_head("hospitals", "seconds a visit", "busy, mean", "lowest", "highest")
    for hospitals in range(3, 8):
        for name, spread in (("1", 0.0), ("0.99 to 1.01", 0.01), ("0.8 to 1.2", 0.2)):
            shares: list[float] = []
            for seed in seeds:
                rng = np.random.default_rng(seed)
                seconds = 1 + spread * rng.uniform(-1, 1, hospitals)
                with tempfile.TemporaryDirectory() as folder, no_disk():
                    _, summary = do(
                        Path(folder),
                        hospitals=hospitals,
                        asynchronous=True,
                        async__seconds=",".join(f"{each:.4f}" for each in seconds),
                        seed=seed,
                        num_server_rounds=40,
                        evaluate__every=40,
                    )
                shares += summary["over_time"]["busy"].values()
            print_row(hospitals, name, *(f"{f(shares):.2f}" for f in (fmean, min, max)))


def mixing(seeds: Sequence[int]) -> None:
    """How models get about."""
    print_head(
        "hospitals", "choose", "seed", "staleness", "at the slow one", "disagreement", "acc.", "s"
    )
    for name, seconds in (("equally fast", "1"), ("one slower", SLOW)):
        for choose in ("uniform", "shortest"):
            for seed in seeds:
                with tempfile.TemporaryDirectory() as folder, no_disk():
                    _, summary = do(
                        Path(folder),
                        asynchronous=True,
                        seed=seed,
                        num_server_rounds=40,
                        evaluate__every=40,
                        async__choose=choose,
                        async__seconds=seconds,
                    )
                over = summary["over_time"]
                stale = fmean(each["mean"] for each in over["staleness"].values())
                visits = {h: each["visits"] for h, each in summary["participation"].items()}
                share = visits[f"hospital-{HOSPITALS - 1}"] / sum(visits.values())
                figures = [summary["disagreement"], summary["federation_accuracy"]]
                shown = [f"{each:.3f}" for each in figures]
                print_row(
                    name,
                    choose,
                    seed,
                    f"{stale:.2f}",
                    f"{share:.1%}",
                    *shown,
                    f"{over['time'][-1]:.0f}",
                )


def feder(seeds: Sequence[int]) -> None:
    """FedER at equal visits: the same seeds for both, so that the differences are of pairs."""
    columns = ("federation_accuracy", "ensemble_accuracy", "disagreement")
    print_head("variant", "seed", *(f"{each}, sync to async" for each in columns))
    buffer.make_buffer = blend
    for variant in ("full", "buffer-only"):
        differences: dict[str, list[float]] = {each: [] for each in columns}
        for seed in seeds:
            pair = []
            for asynchronous in (False, True):
                with tempfile.TemporaryDirectory() as folder, no_disk():
                    _, summary = do(
                        Path(folder),
                        strategy="feder",
                        asynchronous=asynchronous,
                        async__seconds="1,1.5,2,1,3",
                        feder__variant=variant,
                        train__epochs=2,
                        partition="dirichlet",
                        partition_alpha=0.5,
                        seed=seed,
                        num_server_rounds=FEDER_ROUNDS,
                        evaluate__every=EVERY,
                    )
                history = summary["history"]
                pair.append({each: _of_last(history[each]) for each in columns})
            before, after = pair
            for each in columns:
                differences[each].append(after[each] - before[each])
            shown = [f"{before[each]:.3f} to {after[each]:.3f}" for each in columns]
            print_row(variant, seed, *shown)
        print_row(
            variant, "async − sync, 95 %", *(_interval(differences[each]) for each in columns)
        )


def _of_last(values: Sequence[float | None]) -> float:
    """Mean of the last evaluations; of the ensemble there is one."""
    return fmean(each for each in values[-LAST:] if each is not None)


def blend(hospital: Hospital, size: int, deadline: float, large: Indices | None = None) -> Release:
    """Means of two images of a class, in the place of a GAN's, which would take a minute each."""
    train = hospital.data.train
    rng = np.random.default_rng(0)
    labels = train.labels.numpy()[np.arange(size) % len(train)]
    pick = [[rng.choice(np.flatnonzero(train.labels.numpy() == k)) for k in labels] for _ in "ab"]
    images = (train.images[pick[0]].float() + train.images[pick[1]].float()) / 2
    return Release(Samples(images.byte(), torch.from_numpy(labels)), {"release-passed": 1.0})


def _interval(values: Sequence[float]) -> str:
    """Mean and 95 % interval, by Student's t."""
    if len(values) < 2:
        return f"{values[0]:+.3f}"
    half = float(t.ppf(0.975, len(values) - 1)) * stdev(values) / len(values) ** 0.5
    return f"{fmean(values):+.3f} ± {half:.3f}"


def checkpoint(seeds: Sequence[int]) -> None:
    """What it takes to keep one."""
    print_head("model", "visits", "mean, s", "largest, s")
    spent: list[float] = []
    keep = Results.keep

    def timed(self: Results, state: State) -> None:
        began = time.perf_counter()
        keep(self, state)
        spent.append(time.perf_counter() - began)

    Results.keep = timed  # type: ignore[method-assign]
    for model in ("mlp", "cnn", "resnet18"):
        spent.clear()
        with tempfile.TemporaryDirectory() as folder:
            size = {"image_size": 32} if model == "resnet18" else {}
            rounds = 1 if model == "resnet18" else 10
            settings: dict[str, Any] = {
                "model": model,
                "num_server_rounds": rounds,
                "evaluate__cross": False,
                **size,
            }
            do(Path(folder), asynchronous=True, async__seconds="1", seed=seeds[0], **settings)
        print_row(model, len(spent), f"{fmean(spent):.3f}", f"{max(spent):.3f}")
    Results.keep = keep  # type: ignore[method-assign]


PARTS: dict[str, Callable[[Sequence[int]], None]] = {
    "speed": speed,
    "busy": busy,
    "mixing": mixing,
    "feder": feder,
    "checkpoint": checkpoint,
}


if __name__ == "__main__":
    main()
