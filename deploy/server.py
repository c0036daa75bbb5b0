"""The operator's side: the SuperLink, who may take part, and runs."""

import json
import subprocess
import time
from pathlib import Path
from typing import Any

from deploy.credentials import check_name
from deploy.errors import DeployError
from deploy.supervisor import PATIENCE, Program, flower, forget_apps, keep_running

APP = Path(__file__).parents[1]
NAME = "fedhandoff"  # of the SuperLink in Flower's config.toml


class NoSuperLinkError(DeployError):
    """There is no SuperLink to ask."""


def start_superlink(folder: Path, fleet_address: str, control_port: int) -> None:
    """Run a SuperLink until SIGTERM or SIGINT.

    What runs the ServerApp is a process of its own, so that a run survives the end of a SuperLink
    that is started again. Commands (`register`, `run`) are taken from this machine alone.

    Args:
        folder: Of `make_authority`; everything the server writes goes there, too.
        fleet_address: host:port on which it listens for hospitals.
        control_port: On which it listens for commands.

    Raises:
        DeployError: A certificate is missing, or it does not stay up.
    """
    folder = folder.absolute()
    for file in ("ca.crt", "server.crt", "server.key"):
        if not (folder / file).exists():
            raise DeployError(
                f"{folder / file} is not there: make it with `python -m deploy authority`."
            )
    address = f"127.0.0.1:{control_port}"
    (folder / "config.toml").write_text(
        f"[superlink.{NAME}]\n"
        f'address = "{address}"\n'
        f"root-certificates = {json.dumps(str(folder / 'ca.crt'))}\n"
    )
    forget_apps(folder)
    superlink, superexec = commands(folder, fleet_address, control_port)
    hint = f"Is something else listening on {fleet_address} or {address}?"
    environment = flower(folder)
    keep_running(
        Program(superlink, folder / "work", environment, hint),
        Program(superexec, folder / "work", environment),
    )


def commands(folder: Path, fleet_address: str, control_port: int) -> tuple[list[str], list[str]]:
    """The command lines of the SuperLink, and of what starts ServerApps for it."""
    certificates = [
        *("--ssl-ca-certfile", str(folder / "ca.crt")),
        *("--ssl-certfile", str(folder / "server.crt")),
        *("--ssl-keyfile", str(folder / "server.key")),
    ]
    superlink = [
        *("flower-superlink", *certificates, "--enable-supernode-auth"),
        *("--database", str(folder / "state.db"), "--isolation", "process"),
        *("--host", "127.0.0.1", "--port", str(control_port)),
        *("--fleet-api-address", fleet_address, "--disable-runtime-dependency-installation"),
    ]
    superexec = [
        *("flower-superexec", "--root-certificates", str(folder / "ca.crt")),
        *("--runtime-api-address", f"127.0.0.1:{control_port}"),
    ]
    return superlink, superexec


def register(folder: Path, public_key: Path, hospital: str) -> None:
    """Let the hospital with this key take part.

    Raises:
        DeployError: There is no such file, it is registered already, or there is no SuperLink.
    """
    check_name(hospital)
    if not public_key.is_file():
        raise DeployError(
            f"There is no file {public_key}: give the .pub file that the hospital's "
            "`python -m deploy key` has made."
        )
    text = public_key.read_text(errors="replace")
    if not text.startswith("ecdsa-sha2-nistp"):
        raise DeployError(
            f"{public_key} is no public key of a hospital, which starts with ecdsa-sha2-nistp384: "
            "give the .pub file that the hospital's `python -m deploy key` has made."
        )
    try:
        _flwr(folder, "supernode", "register", str(public_key), NAME, "--name", hospital)
    except DeployError as error:
        if "already in use" not in str(error):
            raise
        raise DeployError(
            f"The key in {public_key} is registered already. A hospital makes its own, and each "
            "one another."
        ) from None
    print(f"{hospital} is registered, and can start its SuperNode.")


def run(folder: Path, run_config: str | None) -> None:
    """Do one run of the app, show its log, and wait for its end.

    Raises:
        DeployError: There is no SuperLink, a setting is wrong, or the run has failed.
    """
    overrides = ["--run-config", run_config] if run_config else []
    number = str(_flwr(folder, "run", str(APP), NAME, *overrides)["run-id"])
    print(
        f"Run {number}. Ctrl-C leaves it running; to stop it:\n"
        f"FLWR_HOME={folder.absolute()} uv run flwr stop {number} {NAME}",
        flush=True,
    )
    state = _end_of(folder, number)
    if state["status"] != "finished:completed":
        raise DeployError(f"Run {number} is {state['status']}: {state['status-details']}")


def _end_of(folder: Path, number: str) -> dict[str, str]:
    """Show the log of a run until its end; what Flower says of it, which `flwr run` does not.

    Raises:
        NoSuperLinkError: The SuperLink has gone, and does not come back.
    """
    seen = time.monotonic()
    while True:
        # Ends with the run, or with the SuperLink.
        subprocess.run(["flwr", "log", number, NAME], env=flower(folder.absolute()), check=False)
        try:
            state: dict[str, str] = _flwr(folder, "ls", NAME, "--run-id", number)["runs"][0]
        except NoSuperLinkError:
            if time.monotonic() - seen > PATIENCE:
                raise
        else:
            if state["status"].startswith("finished"):
                return state
            seen = time.monotonic()
        time.sleep(2)


def _flwr(folder: Path, *arguments: str) -> dict[str, Any]:
    """What one of Flower's commands answers.

    Raises:
        NoSuperLinkError: There is none.
        DeployError: It fails.
    """
    if not (folder / "config.toml").exists():
        raise NoSuperLinkError(
            f"{folder / 'config.toml'} is not there: start the SuperLink of this folder with "
            "`python -m deploy superlink` first."
        )
    command, environment = ["flwr", *arguments, "--format", "json"], flower(folder.absolute())
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    try:
        answer: dict[str, Any] = json.loads(done.stdout)
    except ValueError:
        answer = {"success": False, "error-message": done.stdout + done.stderr}
    if answer["success"]:
        return answer
    message = answer["error-message"].strip()
    if "SuperLink is unavailable" in message:
        raise NoSuperLinkError(
            f"There is no SuperLink at the address in {folder / 'config.toml'}: start it with "
            "`python -m deploy superlink`, on this machine."
        )
    raise DeployError(message)
