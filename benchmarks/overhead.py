"""Measures the time of a federation beyond training and evaluation.

    uv run python -m benchmarks.overhead

It runs a federation of four simulated hospitals, in Flower's engine and in warm processes (the
setting `workers`). A bare PyTorch loop follows, with the same gradient steps and evaluations on the
same images, and the same number of processes and threads. The figures are the ratios of their wall
times without start-up, and the time of a message beyond its share of the bare loop.
"""

import multiprocessing
import tempfile
import time
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn.functional import cross_entropy

from benchmarks.markdown import commit_and_machine, print_head, print_row
from benchmarks.simulation import events_of, run, run_warm, superlink
from client_app.datasets import LocalData, open_data
from client_app.datasets.pool import LocalSamples
from learning.models import Architecture
from strategies.protocol.run_config import read_config
from strategies.protocol.settings import Settings
from warm.workers import Workers

HOSPITALS, PROCESSES = 4, 2
WORKLOADS: dict[str, dict[str, Any]] = {
    # Visits of about a second; of several seconds, with models of 45 MB; and very short ones.
    "cnn, 32 x 32": {"model": "cnn", "image-size": 32, "train.epochs": 4, "num-server-rounds": 10},
    "resnet18, 32 x 32": {"model": "resnet18", "image-size": 32, "num-server-rounds": 4},
    "mlp, 8 x 8": {"model": "mlp", "train.epochs": 1, "num-server-rounds": 50},
}


def main() -> None:
    """Print a Markdown table."""
    print(f"{commit_and_machine()}, {PROCESSES} processes\n")
    print_head(
        "workload", "bare loop, s", "Flower, s", "ratio", "workers, s", "ratio", "ms a message"
    )
    with (
        tempfile.TemporaryDirectory() as folder,
        superlink(Path(folder) / "superlink") as flower,
        (Path(folder) / "log.txt").open("w", encoding="utf-8") as log,
        Workers(PROCESSES, {"XDG_DATA_HOME": str(Path(folder) / "data")}, log) as workers,
    ):
        for name, workload in WORKLOADS.items():
            workload = {"strategy": "rwt", "partition": "iid", **workload}
            place = Path(folder) / "runs"
            result = run(flower, place, HOSPITALS, workload, most_cpus=PROCESSES)
            warm = run_warm(workers, Path(folder) / "warm", HOSPITALS, workload)
            bare = bare_seconds(result / "config.toml")
            engines = [seconds_of_rounds(each) for each in (result, warm)]
            sent = [event for event in events_of(result) if event["verb"] in ("train", "evaluate")]
            messages = len({(e["verb"], e["round"], e["hop"], e["hospital"]) for e in sent})
            beyond = "/".join(f"{1000 * PROCESSES * (s - bare) / messages:.0f}" for s in engines)
            cells = (cell for s in engines for cell in (f"{s:.1f}", f"{s / bare:.2f}"))
            print_row(name, f"{bare:.1f}", *cells, beyond)


def seconds_of_rounds(result: Path) -> float:
    """Wall seconds from the end of the preparations to the last answer."""
    events = events_of(result)
    ready = max(event["time"] for event in events if event["verb"] == "query.prepare")
    return float(events[-1]["time"] - ready)


def bare_seconds(config: Path) -> float:
    """Wall seconds of the same steps without a federation, in as many processes."""
    share = HOSPITALS // PROCESSES
    shares = [range(k * share, (k + 1) * share) for k in range(PROCESSES)]
    context = multiprocessing.get_context("spawn")
    ready = context.Barrier(PROCESSES)
    times = context.Queue()
    workers = [context.Process(target=_bare_loop, args=(config, s, ready, times)) for s in shares]
    for worker in workers:
        worker.start()
    seconds = max(times.get() for _ in workers)
    for worker in workers:
        worker.join()
    return float(seconds)


def open_hospitals(
    settings: Settings, hospitals: Iterable[int]
) -> tuple[list[LocalData], Architecture]:
    """The data of hospitals, in memory, and the network that they train."""
    data = [open_data(settings, hospital, HOSPITALS) for hospital in hospitals]
    shape, classes = data[0].train.shape, len(data[0].classes)
    in_memory = [replace(own, train=_copy(own.train), test=_copy(own.test)) for own in data]
    return in_memory, Architecture(settings.model, *shape, classes, settings.mlp.widths)


def _copy(samples: LocalSamples) -> LocalSamples:
    return replace(samples, pixels=samples.images, rows=None)


def gradients(model: nn.Module, own: LocalData, settings: Settings) -> Iterator[None]:
    """For each batch of a visit, put the gradients into the model and yield."""
    model.train()
    for _ in range(settings.train.epochs):
        for batch in torch.randperm(len(own.train)).split(settings.train.batch_size):
            images = own.train.images[batch]
            model.zero_grad()
            cross_entropy(model(images), own.train.labels[batch]).backward()
            yield


def test(model: nn.Module, own: LocalData) -> None:
    """Test a model as a hospital does, and wait for the result."""
    model.eval()
    with torch.inference_mode():
        model(own.test.images).argmax(1).eq(own.test.labels).sum().item()


def _bare_loop(config: Path, hospitals: range, ready: Any, times: Any) -> None:
    """Train a model per hospital, and test all models at each after every round."""
    torch.set_num_threads(1)
    settings = Settings.parse(read_config(config))
    data, architecture = open_hospitals(settings, hospitals)
    models = [architecture.build() for _ in data]
    torch.optim.Adam(models[0].parameters())  # the first optimizer of a process imports for seconds
    ready.wait()
    start = time.perf_counter()
    for _ in range(settings.num_server_rounds):
        for model, own in zip(models, data, strict=True):
            optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
            for _ in gradients(model, own, settings):
                optimizer.step()
        for own in data:
            for model in models * PROCESSES:  # as many models as there are hospitals
                test(model, own)
    times.put(time.perf_counter() - start)


if __name__ == "__main__":
    main()
