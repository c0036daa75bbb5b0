"""A consortium on one machine, in a new temporary folder: a server, three hospitals, a short run.

It uses the commands of a real deployment (docs/deployment.md). It prints the folder of the results
last, and ends with the exit status of the run. All processes are ended, also after Ctrl-C.
"""

import json
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import MappingProxyType

from PIL import Image

from deploy.errors import DeployError
from deploy.transport import command_address, free_port

HOSPITALS = ("graz", "linz", "wien")
IMAGES = 599  # per hospital: enough test images of each class for figures to leave
SETTINGS = (
    "strategy='cwt' model='mlp' num-server-rounds=2 train.epochs=1 min-hospitals=3 seed=1 "
    "hop-timeout=300"
)
# The slow hospital has small batches.
ASYNCHRONOUS = (
    "strategy='rwt' asynchronous=true model='mlp' num-server-rounds=6 train.epochs=50 "
    "min-hospitals=3 seed=1 hop-timeout=300"
)
SLOW = {HOSPITALS[-1]: ("--node-config", "train.batch-size=8")}
START_UP = 300.0  # seconds to wait until the server is ready
FEDHANDOFF = [sys.executable, "-m", "cli"]


def demonstrate(asynchronous: bool = False) -> None:
    """Start server and hospitals, do a run, and end them.

    With `asynchronous` the run has queues instead of rounds: no hospital waits for the last one,
    which takes a dozen times as many steps.

    Raises:
        DeployError: The server has not started.
        SystemExit: A command has failed, or the run has.
    """
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    folder = Path(tempfile.mkdtemp(prefix="fedhandoff-"))
    print(f"All files are below {folder}; the server's log is superlink.log there.", flush=True)
    write_images(folder / "images")
    slow = SLOW if asynchronous else {}
    with server(folder) as address, hospitals(folder, address, own=slow):
        result = run(folder, ASYNCHRONOUS if asynchronous else SETTINGS)
    print(result)


@contextmanager
def server(folder: Path) -> Iterator[str]:
    """Run a server with its files in `folder`/server; yields its address for hospitals."""
    address, control = f"127.0.0.1:{free_port()}", free_port()
    _do(("server", "authority", "--server", folder / "server", "--name", "127.0.0.1"))
    start = ("server", "start", "--server", folder / "server")
    ports = ("--fleet-address", address, "--control-port", str(control))
    with background(folder, *start, *ports) as process:
        _wait_for(command_address(address, control), process)
        yield address


@contextmanager
def hospitals(
    folder: Path,
    address: str,
    sealed: bool = True,
    own: Mapping[str, Sequence[str]] = MappingProxyType({}),
    names: Sequence[str] = HOSPITALS,
) -> Iterator[None]:
    """Run hospitals of a server, each with its images in `folder`/images/<name>.

    They take part in `sealed` runs, or in open ones. `own` has further arguments of `fedhandoff
    hospital start`, by hospital.
    """
    members = folder / "members" if sealed else "none"
    at_server = ("--server", folder / "server")
    commands: list[Sequence[str | Path]] = []
    for name in names:
        hospital, invitation = folder / name, folder / f"{name}.invitation"
        paths = ("--folder", hospital, "--data", folder / "images" / name)
        commands += [
            ("server", "invite", name, "--to", invitation, *at_server),
            ("hospital", "join", invitation, *paths, "--members", members, "--yes"),
            ("server", "accept", hospital / f"{name}.answer", *at_server),
        ]
    _do(*commands)
    if not sealed:
        for name in names:
            (folder / name / "policy.toml").write_text("[runs]\nsealed-only = false\n")
    with ExitStack() as running:
        for name in names:
            start = ("hospital", "start", "--hospital", folder / name, "--server", address)
            running.enter_context(background(folder, *start, *own.get(name, ()), log=name))
        yield


def run(folder: Path, settings: str) -> Path:
    """Do a run on the server in `folder`; returns the folder of its results."""
    run_config = f"{settings} output-dir={json.dumps(str(folder / 'runs'), ensure_ascii=False)}"
    _do(("server", "run", "--server", folder / "server", "--run-config", run_config))
    (result,) = (folder / "runs").iterdir()
    return result


def write_images(folder: Path) -> None:
    """Write scikit-learn's digits as `folder`/<hospital>/<class>/<number>.png."""
    from sklearn.datasets import load_digits  # takes a second

    digits = load_digits()
    for number, (image, label) in enumerate(zip(digits.images, digits.target, strict=True)):
        hospital, index = number % len(HOSPITALS), number // len(HOSPITALS)
        if index < IMAGES:
            path = folder / HOSPITALS[hospital] / str(label) / f"{index:03}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray((image * 15).astype("uint8")).save(path)


def _do(*commands: Sequence[str | Path]) -> None:
    """Do commands one after the other in one process, since each would import for seconds."""
    words = [[str(word) for word in command] for command in commands]
    program = (
        "import sys; from signal import SIG_DFL, SIGINT, signal; signal(SIGINT, SIG_DFL)\n"
        f"from cli.entry import run; sys.exit(any(map(run, {words})))"
    )
    if subprocess.run([sys.executable, "-c", program], check=False).returncode:
        sys.exit(1)


@contextmanager
def background(
    folder: Path, *arguments: str | Path, log: str = "superlink"
) -> Iterator[subprocess.Popen[bytes]]:
    """Run a command until the end of the block, with its output in `folder`/<log>.log."""
    with (folder / f"{log}.log").open("wb") as output:
        process = subprocess.Popen(
            [*FEDHANDOFF, *arguments], stdout=output, stderr=subprocess.STDOUT
        )
    try:
        yield process
    finally:
        process.terminate()
        process.wait()


def _wait_for(address: str, process: subprocess.Popen[bytes]) -> None:
    host, port = address.split(":")
    deadline = time.monotonic() + START_UP
    while time.monotonic() < deadline and process.poll() is None:
        with socket.socket() as connection:
            if connection.connect_ex((host, int(port))) == 0:
                return
        time.sleep(0.2)
    raise DeployError("The server did not start: superlink.log says why.")
