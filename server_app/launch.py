"""Checks settings, simulates a run, and reports its outcome.

    uv run fedhandoff run --run-config "strategy='cwt' train.epochs=5"

For an unknown setting, `flwr run` reports only that the run config is invalid. It exits with status
0 even when a run fails. `fedhandoff run` checks the settings first, and exits with 1 after
a failure.
"""

import json
import os
import re
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from server_app.check import check_texts
from strategies.protocol.local import bypass_proxy
from strategies.protocol.run_config import changes_of
from strategies.protocol.settings import SettingsError
from strategies.protocol.text import COLOURS

APP = Path(__file__).parents[1]
STARTED = re.compile(r"Successfully started run (\d+)")  # a line of `flwr run`
REPORT = re.compile(r"file://\S+/report\.html")  # in the last line of a run's log
# A new or busy machine needs longer than Flower waits. The next try finds more in caches.
TOO_SLOW = "Failed to start local SuperLink within"
TRIES = 4
COMPLETED = "finished:completed"
# The environment of a SuperLink that starts with the run, unless the user sets the variables: it
# uses the installed packages instead of installing them again, and Flower prints only its errors.
QUIET = {"FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1", "FLWR_LOG_LEVEL": "ERROR"}


def simulate(run_config: Sequence[str], federation_config: Sequence[str]) -> str:
    """Check the settings, do a run on Flower's engine, and show its log.

    Args:
        run_config: The texts of `--run-config`, as for `flwr run`.
        federation_config: Those of `--federation-config`.

    Returns:
        The address of the report; empty if the run has written none.

    Raises:
        SettingsError: The settings cannot be used.
        SystemExit: The run has not completed; the text says why.
    """
    check_texts(run_config, hospitals_of(federation_config))
    command = ["flwr", "run", str(APP), "local", "--stream"]
    for text in run_config:
        command += ["--run-config", text]
    for text in federation_config:
        command += ["--federation-config", text]
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', os.defpath)}"
    environment = {
        **QUIET,
        **bypass_proxy(),
        "PATH": path,
        "PYTHONUTF8": "1",
        "PYTHONUNBUFFERED": "1",
    }
    for _ in range(TRIES):
        code, run, text, report = _stream(command, environment)
        if TOO_SLOW not in text:
            break
        print("Flower's SuperLink has not started in time.", flush=True)
    else:
        sys.exit(
            f"The SuperLink has not started after {TRIES} tries. This machine is too busy: end "
            "other programs, and try again."
        )
    if code or not run:
        sys.exit(code or "`flwr run` did not report that it has started a run.")
    status = status_of(run, environment)
    if not status.startswith(COMPLETED):
        sys.exit(f"The run has not completed. Flower says: {status}")
    return report


def _stream(command: Sequence[str], environment: Mapping[str, str]) -> tuple[int, str, str, str]:
    """Print the output of `flwr run`.

    Returns:
        Its exit status, the run id, the first lines, and the address of the report.
    """
    run = text = report = ""
    try:
        with subprocess.Popen(
            command,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            encoding="utf-8",
            errors="replace",
        ) as process:
            for line in process.stdout or ():
                if not run:
                    text += line
                    run = found[1] if (found := STARTED.search(line)) else ""
                if found := REPORT.search(line):
                    report = found[0]
                print(COLOURS.sub("", line), end="", flush=True)
    except KeyboardInterrupt:
        stop = f"uv run flwr stop {run or '<run id>'} local"
        print(
            f"A run that has started goes on. `{stop}` ends it; `uv run flwr ls local` lists runs."
        )
        sys.exit(130)
    return process.returncode, run, text, report


def hospitals_of(texts: Sequence[str]) -> int:
    """The number of hospitals that `--federation-config` simulates, or Flower's default.

    Raises:
        SettingsError: Flower cannot use the config.
    """
    from strategies.engine.flower import DEFAULT_SIMULATION_CONFIG as DEFAULT  # takes seconds
    from strategies.engine.flower import simulation_config_from_json

    option = "--federation-config"
    given = {key.replace("-", "_"): value for key, value in changes_of(texts, option).items()}
    try:
        config = simulation_config_from_json(given)
    except (TypeError, ValueError) as error:
        keys = ", ".join(field.name.replace("_", "-") for field in DEFAULT.DESCRIPTOR.fields)
        reason = f"{option} is {' '.join(texts)!r}, which cannot be used: {error}. It takes {keys}."
        raise SettingsError(reason) from error
    chosen = config if config.HasField("num_supernodes") else DEFAULT
    return int(chosen.num_supernodes)


def status_of(run: str, environment: Mapping[str, str]) -> str:
    """The status of a run, as the local SuperLink of this environment reports it."""
    answer = subprocess.run(
        ["flwr", "ls", "local", "--run-id", run, "--format", "json"],
        # FORCE_COLOR, which notebooks and CIs set, would put colours into JSON.
        env={**environment, "TTY_COMPATIBLE": "0"},
        capture_output=True,
        encoding="utf-8",
        check=False,
    )
    try:
        (found,) = json.loads(answer.stdout)["runs"]
    except (ValueError, LookupError):
        output = (answer.stdout + answer.stderr).strip()
        return f"nothing of run {run}; has its SuperLink been ended? `flwr ls` says: {output}"
    return f"{found['status']}: {found['status-details']}"
