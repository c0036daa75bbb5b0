"""The same work in this app and in other frameworks.

    uv run python -m benchmarks.peers --data <folder with mnist.npz>

Hospitals have equal random parts of MNIST, and train a network of 784-256-256-10 units. In every
round each hospital trains one epoch with plain SGD: by FedAvg, by serial hand-off of one model, and
by rotation, in which each hospital trains another hospital's model. Each peer is installed from
PyPI into an environment of its own. Times are wall times on one machine. One run follows the other.

The time of a round is the median from its beginning to the beginning of the next round. Start-up is
the time before the first round, without installation. Memory is the peak over time of the sum over
all processes of a run (PSS, on Linux only). The figures of a run are in a JSON file; a run that has
this file is not repeated.
"""

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch

from benchmarks.markdown import APP, commit_and_machine, print_head, print_row
from benchmarks.memory import peak_memory
from benchmarks.peers.ours import settings_of
from client_app.datasets import open_data
from learning.samples import Samples
from strategies.protocol.settings import Settings, complete

ADAPTERS = Path(__file__).parent / "adapters"
TITLES = ("work", "hospitals", "who", "s a round", "start-up, s", "GB", "KB a visit", "accuracy")
BATCH_SIZE, LEARNING_RATE = 32, 0.1
BOTH = ("fedavg", "handoff")
WORK = (*BOTH, "rotation")


@dataclass(frozen=True)
class Peer:
    """A framework that does the work."""

    script: str  # the script in ADAPTERS; "" = benchmarks.peers.ours
    # The PyPI packages of its environment; () = this app's own environment
    requires: tuple[str, ...] = ()
    methods: tuple[str, ...] = BOTH  # the methods that its public interface offers
    python: str = "3.11"  # the version of Python of its environment


PEERS = {
    "PyTorch loop": Peer("run_loop.py", (), WORK),
    "fedhandoff, flower": Peer("", (), WORK),
    "fedhandoff, workers": Peer("", (), WORK),
    "NVFlare": Peer("run_nvflare.py", ("nvflare==2.9.0", "torch<2.13")),
    "fluke": Peer("run_fluke.py", ("fluke-fl==0.8.1", "torch<2.13"), ("fedavg",)),
    # With the newest versions of its requirements, p2pfl cannot be imported.
    "p2pfl": Peer(
        "run_p2pfl.py",
        ("p2pfl[dp,torch]==0.4.4", "pyarrow<19", "huggingface-hub<0.26"),
        ("fedavg",),
    ),
    "BlazeFL": Peer(
        "run_blazefl.py", ("blazefl==2.0.3", "torch<2.13", "numpy", "tqdm"), ("fedavg",), "3.12"
    ),
    "pfl": Peer("run_pfl.py", ("pfl==0.6.0", "torch<2.13"), ("fedavg",)),
}


class PeerFailed(RuntimeError):
    """A peer cannot be installed, or has failed."""


def main() -> None:
    """Do the missing runs, and print a Markdown table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.peers")
    parser.add_argument("--data", type=Path, required=True, help="the folder of mnist.npz")
    parser.add_argument(
        "--output",
        type=Path,
        default="~/fedhandoff/peers",
        help="the folder of the figures (default: %(default)s)",
    )
    parser.add_argument(
        "--hospitals", default="4,10,50", help="numbers of hospitals (default: %(default)s)"
    )
    parser.add_argument(
        "--rounds", type=int, default=4, help="rounds, at least 2 (default: %(default)s)"
    )
    parser.add_argument(
        "--peers", default=";".join(PEERS), help="names of peers (default: %(default)s)"
    )
    parser.add_argument(
        "--timeout",
        type=float,
        default=900,
        help="limit of a run in seconds (default: %(default)s)",
    )
    arguments = parser.parse_args()
    output = arguments.output.expanduser().resolve()
    data = (arguments.data.expanduser() / "mnist.npz").resolve()
    chosen = arguments.peers.split(";")
    if unknown := set(chosen) - set(PEERS):
        parser.error(f"--peers has {sorted(unknown)}; the peers are {'; '.join(PEERS)}")
    if arguments.rounds < 2:
        parser.error(f"--rounds is {arguments.rounds}: give 2 or more, to time a whole round.")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # ends the run under way, too
    print(f"{commit_and_machine()}, {arguments.rounds} rounds\n")
    print_head(*TITLES)
    for method in WORK:
        for hospitals in map(int, arguments.hospitals.split(",")):
            job = {
                "method": method,
                "hospitals": hospitals,
                "rounds": arguments.rounds,
                "batch_size": BATCH_SIZE,
                "learning_rate": LEARNING_RATE,
            }
            for name in (each for each in chosen if method in PEERS[each].methods):
                who = name.replace(", ", "-").replace(" ", "-")
                folder = output / f"{method}-{hospitals}-{who}"
                found = figures(name, job, data, folder, arguments.timeout)
                print_row(*row_of(name, job, found))


def figures(
    name: str, job: dict[str, Any], data: Path, folder: Path, timeout: float
) -> dict[str, Any]:
    """The figures of a run, or {"error": reason}, from figures.json; without it the run is done."""
    file = folder / "figures.json"
    if not file.exists():
        shutil.rmtree(folder, ignore_errors=True)  # files of an interrupted run
        folder.mkdir(parents=True)
        try:
            command = command_of(name, data, folder.parent / "environments")
            if PEERS[name].script:
                write_parts(job, data, folder / "parts.npz")
            found = run_adapter(command, job, folder, timeout)
        except PeerFailed as error:
            found = {"error": str(error)}
        (folder / "parts.npz").unlink(missing_ok=True)
        origin = {"who": name, "where": commit_and_machine()}
        file.write_text(json.dumps({**job, **origin, **found}), "utf-8")
    return dict(json.loads(file.read_text("utf-8")))


def command_of(name: str, data: Path, environments: Path) -> list[str]:
    """The command that starts a peer; its environment is made if it is missing.

    Raises:
        PeerFailed: The peer cannot be installed.
    """
    peer = PEERS[name]
    if not peer.script:
        return [sys.executable, "-m", "benchmarks.peers.ours", name.split(", ")[1], str(data)]
    python = Path(sys.executable)
    if peer.requires:
        python = environments / name / "bin" / "python"
        installed = environments / name / "installed"
        if not installed.exists():
            _install(["uv", "venv", "--clear", "--python", peer.python, str(environments / name)])
            _install(["uv", "pip", "install", "--python", str(python), *peer.requires])
            installed.touch()
    return [str(python), str(ADAPTERS / peer.script)]


def _install(command: Sequence[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise PeerFailed(f"not installed: {done.stderr.strip()[-300:]}")


def write_parts(job: dict[str, Any], data: Path, file: Path) -> None:
    """Write the images of all hospitals as bytes [n, 784], with this app's partition."""
    settings = Settings.parse(complete(settings_of(job, data)))
    own = [open_data(settings, k, job["hospitals"]) for k in range(job["hospitals"])]
    arrays = {}
    for hospital, part in enumerate(own):
        images, arrays[f"train-{hospital}-labels"] = _arrays(part.train)
        arrays[f"train-{hospital}-images"] = images
    tests = [_arrays(part.test) for part in own]
    arrays["test-images"] = np.concatenate([images for images, _ in tests])
    arrays["test-labels"] = np.concatenate([labels for _, labels in tests])
    np.savez(file, **arrays)


def _arrays(samples: Samples) -> tuple[Any, Any]:
    every = samples[torch.arange(len(samples))]
    return every.images.flatten(1).numpy(), every.labels.numpy()


def run_adapter(
    command: list[str], job: dict[str, Any], folder: Path, timeout: float
) -> dict[str, Any]:
    """Run an adapter on a job, in a folder of its own.

    `job` has the fields of `adapters.work.Job`. The folder is for marks, results and output. The
    timeout is in seconds.

    Returns:
        Seconds of a round and of the start-up, peak bytes, and the adapter's own results.

    Raises:
        PeerFailed: The adapter took too long, or wrote no result.
    """
    (folder / "job.json").write_text(json.dumps(job), encoding="utf-8")
    environment = {
        **os.environ,
        "PEER_FOLDER": str(folder),
        "PYTHONPATH": os.pathsep.join([str(ADAPTERS), str(APP)]),
        "OMP_NUM_THREADS": "1",
        "CUDA_VISIBLE_DEVICES": "",
    }
    began = time.time()
    with (folder / "output.txt").open("wb") as log, peak_memory(str(folder)) as peak:
        process = subprocess.Popen(
            command,
            env=environment,
            cwd=folder,
            stdout=log,
            stderr=subprocess.STDOUT,
        )
        try:
            process.wait(timeout)
        except subprocess.TimeoutExpired as error:
            raise PeerFailed(f"not done in {timeout:.0f} s") from error
        finally:
            end_processes(folder)
            process.wait()
    if not (folder / "result.json").exists():
        output = (folder / "output.txt").read_text("utf-8", "replace").strip().splitlines()
        raise PeerFailed(f"no result: {(output or ['no output'])[-1][:200]}")
    lines = (folder / "marks.jsonl").read_text("utf-8").splitlines()
    starts = round_starts(map(json.loads, lines))
    return {
        "seconds_per_round": median(later - sooner for sooner, later in pairwise(starts)),
        "start_up_seconds": starts[0] - began,
        "peak_bytes": max(peak, default=0.0),
        **json.loads((folder / "result.json").read_text("utf-8")),
    }


def end_processes(folder: Path) -> None:
    """End all processes of a run: their environment names its folder.

    Processes end late and may start others, so the search is repeated until it finds none.
    """
    mark = f"PEER_FOLDER={folder}".encode()
    ended = False
    while not ended:
        ended = True
        for process in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):  # it has ended meanwhile, or is somebody else's
                if mark in (process / "environ").read_bytes().split(b"\0"):
                    ended = False
                    os.kill(int(process.name), signal.SIGKILL)


def round_starts(marks: Iterable[tuple[int, float]]) -> list[float]:
    """The times at which rounds began. Of all marks of a round, the first one counts."""
    first: dict[int, float] = {}
    for number, when in sorted(marks, key=lambda mark: mark[1]):
        first.setdefault(number, when)
    return [first[number] for number in sorted(first)]


def row_of(name: str, job: dict[str, Any], found: dict[str, Any]) -> list[str]:
    """A row of the table."""
    head = [job["method"], str(job["hospitals"]), name]
    if "error" in found:
        return [*head, found["error"].replace("|", "/").replace("\n", " "), *[""] * 4]
    per_visit = found.get("bytes_per_visit")
    sent = "unknown" if per_visit is None else f"{per_visit / 1e3:.0f}"
    return [
        *head,
        f"{found['seconds_per_round']:.2f}",
        f"{found['start_up_seconds']:.1f}",
        f"{found['peak_bytes'] / 1e9:.2f}",
        sent,
        f"{found['accuracy']:.3f}",
    ]


if __name__ == "__main__":
    main()
