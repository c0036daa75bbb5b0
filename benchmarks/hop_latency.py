"""Where the time of a hop between SuperNodes goes, beyond training, with a 45 MB model.

    uv run python -m benchmarks.hop_latency

A server and three hospitals on this machine, as in deploy/demo: TLS, keys, sealed parcels, a
database on disk. Each of two methods runs in three ways: with a process for every message; with
resident processes (the default); and with models in half precision as well. The
times are those at which lines appear in the hospitals' logs and in metrics.jsonl. The tables show
medians over the hops after the first round.
"""

import json
import os
import statistics
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from benchmarks.background import repeated
from benchmarks.markdown import print_head, print_row
from deploy.demo import HOSPITALS, hospitals, run, server, write_images

ROUNDS = 4
SETTINGS = (
    f"model='resnet18' num-server-rounds={ROUNDS} train.epochs=1 min-hospitals=3 hop-timeout=300 "
    f"evaluate.every={ROUNDS} evaluate.cross=false evaluate.ensemble=false"
)
# Options of `supernode`, and settings of the run.
WAYS: dict[str, tuple[list[str], str]] = {
    "a process per message": (["--node-config", "resident=false"], ""),
    "resident": ([], ""),
    "and float16": ([], "wire-dtype='float16'"),
}
METHODS = {"cwt-serial": "one hospital at a time", "cwt": "three hospitals at once on two cores"}
PHASES = (
    "server, until the SuperNode takes the message",
    "to the SuperNode",
    "process: start, imports, handing over",
    "unsealing, reading, packing, sealing",
    "from the SuperNode",
    "until the server has the answer",
)


def main() -> None:
    """Measure both methods in all ways, and print a table for each."""
    os.environ["FLWR_LOG_LEVEL"] = "DEBUG"  # hospitals then pass on Flower's lines as they are
    for strategy, text in METHODS.items():
        columns = {}
        for way, (options, settings) in WAYS.items():
            with tempfile.TemporaryDirectory() as folder:
                given = f"strategy='{strategy}' {settings} {SETTINGS}"
                columns[way] = hops_of(Path(folder), options, given)
        print()
        print_head(f"{strategy}, {text}", *columns)
        for phase in (*PHASES, "beyond training", "training"):
            seconds = [statistics.median(hop[phase] for hop in hops) for hops in columns.values()]
            print_row(phase, *(f"{each:.2f}" for each in seconds))


def hops_of(folder: Path, options: list[str], settings: str) -> list[dict[str, float]]:
    """The seconds of each phase of each hop of a run, without those of the first round."""
    write_images(folder / "images")
    logs = {name: folder / f"{name}.log" for name in HOSPITALS}
    with (
        server(folder) as address,
        hospitals(folder, address, more=options),
        followed([*logs.values(), folder / "runs" / "*" / "metrics.jsonl"]) as lines,
    ):
        result = run(folder, settings)
        time.sleep(1)  # for the last lines
    hops = []
    for noticed, line in lines[result / "metrics.jsonl"]:
        event = json.loads(line)
        if event["verb"] == "train" and event["outcome"] == "ok" and event["round"] > 1:
            sent = noticed - event["seconds"]
            hops.append(split(sent, noticed, event["metrics"], lines[logs[event["hospital"]]]))
    return hops


def split(
    sent: float, noticed: float, metrics: dict[str, float], log: list[tuple[float, str]]
) -> dict[str, float]:
    """The seconds of each phase of a hop, from what its hospital and its SuperNode say."""
    inside = iter([(when, line) for when, line in log if sent <= when])
    starts = ("Receiving: train", "Received success", "Sending: train", "Sent success")
    taken, there, done, gone = (
        next(when for when, line in inside if start in line) for start in starts
    )
    training = metrics["seconds-train"]
    handling = sum(value for name, value in metrics.items() if name.startswith("seconds-"))
    handling -= training
    seconds = (
        taken - sent,
        there - taken,
        done - there - handling - training,
        handling,
        gone - done,
        noticed - gone,
    )
    return {
        **dict(zip(PHASES, seconds, strict=True)),
        "beyond training": noticed - sent - training,
        "training": training,
    }


@contextmanager
def followed(files: list[Path]) -> Iterator[dict[Path, list[tuple[float, str]]]]:
    """The lines that files (or patterns) get, with the times at which they appeared there."""
    lines: dict[Path, list[tuple[float, str]]] = {}
    places: dict[Path, int] = {}

    def follow() -> None:
        for file in (file for each in files for file in Path("/").glob(str(each)[1:])):
            text = file.read_bytes()[places.get(file, 0) :]
            whole = text[: text.rfind(b"\n") + 1]
            places[file] = places.get(file, 0) + len(whole)
            now = time.monotonic()
            new = [(now, line) for line in whole.decode(errors="replace").splitlines()]
            lines.setdefault(file, []).extend(new)

    with repeated(follow, seconds=0.02):
        yield lines


if __name__ == "__main__":
    main()
