"""Runs this app as a user does, on a SuperLink of its own.

A SuperLink for simulations puts its working directory first on the import path of its workers, and
Flower leaves it running. Here it gets an empty folder and its own home, and ends with the runs.
"""

import json
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, redirect_stdout
from pathlib import Path
from types import MappingProxyType
from typing import Any
from urllib.request import ProxyHandler, build_opener

from benchmarks.losses import NONE, Losses, UnreliableGrid
from deploy.server import ask_flower, bare_app
from deploy.supervisor import flower_environment
from deploy.transport import free_port
from server_app.launch import run_on
from strategies.engine.events import LOG, read_events
from strategies.protocol.settings import complete
from warm.workers import Workers

# In tables, `standalone` is a row of its own, and the engine is an option.
USUAL = {"baseline": "", "workers": 0}
START_UP = 60.0  # seconds a SuperLink may take to be ready
STARTED = re.compile(r"Successfully started run (\d+)")  # a line of `flwr run`
COMPLETED = "finished:completed"


class RunFailed(RuntimeError):
    """A run has not completed."""


@contextmanager
def superlink(folder: Path, **variables: str) -> Iterator[dict[str, str]]:
    """A SuperLink for simulations, with its files in `folder`.

    The folder is created here. `variables` are for the SuperLink and its hospitals.

    Yields:
        The environment variables with which `flwr` finds the SuperLink as "local".

    Raises:
        RunFailed: It has not started; the error has the last lines of its log.
    """
    workplace = folder / "empty"
    workplace.mkdir(parents=True)
    port = str(free_port())
    environment = {
        **flower_environment(folder / "flwr"),
        "FLWR_LOCAL_SUPERLINK_HTTP_API_PORT": port,
        "XDG_DATA_HOME": str(folder / "data"),  # the stores of hospitals
        "RAY_ADDRESS": "local",  # otherwise Ray may wait for an earlier cluster that has ended
        **variables,
    }
    command = [
        *("flower-superlink", "--insecure", "--simulation", "--host", "127.0.0.1", "--port", port),
        "--disable-runtime-dependency-installation",
    ]
    # SIGTERM would end this process alone, and the SuperLink would go on with its run.
    before = signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    with (folder / "superlink.log").open("wb") as log:
        process = subprocess.Popen(
            command, cwd=workplace, env=environment, stdout=log, stderr=subprocess.STDOUT
        )
    try:
        if not _answers(f"http://127.0.0.1:{port}/health", process):
            words = (folder / "superlink.log").read_text("utf-8", "replace")[-3000:]
            raise RunFailed(f"The SuperLink did not start: {words}")
        yield environment
    finally:
        process.terminate()
        process.wait(timeout=30)
        signal.signal(signal.SIGTERM, before)


def run(
    environment: dict[str, str],
    output_dir: Path,
    hospitals: int,
    settings: Mapping[str, object] = MappingProxyType({}),
    *,
    cpus: int = 1,
    gpus: float = 0.0,
    most_cpus: int | None = None,
    config: Path | None = None,
    resume: Path | None = None,
) -> Path:
    """Do one run of the app, and wait for its end.

    Args:
        environment: The environment variables that `superlink` yields.
        output_dir: The folder for the result folder; only this run may write there.
        hospitals: The number of simulated hospitals.
        settings: As in pyproject.toml.
        cpus: Cores for each simulated hospital; this limits the number that work at once.
        gpus: Share of a GPU for each simulated hospital; 0 = it computes on its cores.
        most_cpus: Cores for all simulated hospitals; None = all cores of the machine.
        config: A TOML file of settings, instead of `settings`.
        resume: The result folder of a run to resume, instead of `settings`.

    Returns:
        The result folder.

    Raises:
        RunFailed: The run has not completed; the error has the last lines of its output.
    """
    folders_before = set(output_dir.glob("*")) - {resume}
    if resume is not None:
        config = resume / "checkpoint" / "resume.toml"
    if config is None:
        overrides = " ".join(
            f"{key}={json.dumps(value, ensure_ascii=False)}"
            for key, value in {**USUAL, **settings, "output-dir": str(output_dir)}.items()
        )
    else:
        overrides = str(config)
    federation = f"num-supernodes={hospitals} client-resources-num-cpus={cpus}"
    federation += f" client-resources-num-gpus={gpus}"
    if most_cpus:
        federation += f" init-args-num-cpus={most_cpus}"
    with bare_app() as app:
        command = ["flwr", "run", str(app), "--stream"]
        command += ["--run-config", overrides, "--federation-config", federation]
        stream = subprocess.run(
            command, env=environment, capture_output=True, encoding="utf-8", check=False
        )
    output = stream.stdout[-3000:] + stream.stderr[-3000:]
    started = STARTED.search(stream.stdout)
    if stream.returncode != 0 or not started:
        raise RunFailed(output)
    status = _status_of(started[1], environment)
    if not status.startswith(COMPLETED):
        raise RunFailed(f"{status}\n{output}")
    (result,) = set(output_dir.glob("*")) - folders_before
    return result


def _status_of(run: str, environment: Mapping[str, str]) -> str:
    """The status of a run, as the local SuperLink of this environment reports it."""
    answer = ask_flower(environment, ["ls", "local", "--run-id", run])
    try:
        (found,) = answer["runs"]
    except (ValueError, LookupError):
        output = answer.get("error-message", "").strip()
        return f"nothing of run {run}; has its SuperLink been ended? `flwr ls` says: {output}"
    return f"{found['status']}: {found['status-details']}"


def run_warm(
    workers: Workers,
    output_dir: Path,
    hospitals: int,
    settings: Mapping[str, object],
    losses: Losses = NONE,
) -> Path:
    """Do one run in this process and in warm ones, without Flower's engine; the figures are equal.

    The run prints to the `log` of the processes. Only this run may write into `output_dir`.
    `losses` are the visits that are lost.

    Returns:
        The result folder.

    Raises:
        RunFailed: The run has failed; the error has the reason.
        KeyboardInterrupt: The user pressed Ctrl-C.
    """
    folders_before = set(output_dir.glob("*"))
    config = complete({**USUAL, **settings, "output-dir": str(output_dir)})
    try:
        with redirect_stdout(workers.log):
            run_on(UnreliableGrid(losses, workers, hospitals, config), config)
    except Exception as error:
        if isinstance(error.__cause__, KeyboardInterrupt):  # else the next run of a table began
            raise KeyboardInterrupt from error
        raise RunFailed(f"{type(error).__name__}: {error}") from error
    (result,) = set(output_dir.glob("*")) - folders_before
    return result


def events_of(result: Path) -> list[dict[str, Any]]:
    """The events of a run, in order."""
    return [vars(event) for event in read_events(result / LOG)]


def _answers(url: str, process: subprocess.Popen[bytes]) -> bool:
    """Wait until a process answers at a URL; False if it ends, or is not ready in time."""
    deadline = time.monotonic() + START_UP
    while time.monotonic() < deadline and process.poll() is None:
        try:
            with build_opener(ProxyHandler({})).open(url, timeout=1):
                return True
        except OSError:
            time.sleep(0.1)
    return False
