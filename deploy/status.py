"""The status of a server or hospital: its process, certificates and disk."""

import shutil
from collections.abc import Iterator
from pathlib import Path

from deploy.approved import approved_hash
from deploy.credentials import end_of
from deploy.errors import DeployError
from deploy.own_file import FILES, read_own
from deploy.running import is_running, read_facts
from deploy.server import hospitals_of, last_run_of
from strategies.protocol.files import expand

Lines = Iterator[tuple[str, str]]  # each with its label


def status(folder: Path) -> bool:
    """Print the status of a server or hospital; whether it runs, with valid certificates.

    Raises:
        DeployError: The path is no folder of a server or hospital, or its file cannot be read.
    """
    folder = folder.absolute()
    if not any((folder / file).exists() for file in ("ca.crt", *FILES)):
        raise DeployError(f"{folder} is not a folder of a server or a hospital: give one of these.")
    is_server = any((folder / file).exists() for file in ("server.crt", "server.toml"))
    runs, facts = is_running(folder), read_facts(folder)
    certificates = [_certificate(folder / "ca.crt")]
    lines = [("process", f"runs, process {facts.get('pid', '?')}" if runs else "does not run")]
    if is_server:
        certificates.append(_certificate(folder / "server.crt"))
        lines += _server(folder, facts) if runs else ()
    else:
        own = read_own(folder, "hospital.toml")
        facts = {**own, **facts} if runs else {**facts, **own}  # those of the last start are old
        lines += _hospital(folder, facts)
    disk = ("disk", _disk(folder / expand(facts.get("store", "."))))
    print(f"{facts.get('name', 'server' if is_server else 'hospital')}, {folder}")
    for label, text in (*lines, *certificates, disk):
        print(f"  {label:<13}{text}")
    return runs and all(text.startswith("valid until") for _, text in certificates)


def _hospital(folder: Path, facts: dict[str, str]) -> Lines:
    yield (
        "server",
        facts.get("server", "unknown: it is in no hospital.toml, and no start has named it"),
    )
    try:
        yield "code", approved_hash(folder)
    except DeployError as error:
        yield "code", str(error)


def _server(folder: Path, facts: dict[str, str]) -> Lines:
    yield "listens", f"{facts.get('fleet')} for hospitals, {facts.get('control')} for you"
    try:
        for name, state, since in sorted(hospitals_of(folder)):
            known = "connected" if state == "online" else state
            when = f" since {since}" if since else ", never connected"
            yield "hospital", f"{name}: {known}{when}"
        if run := last_run_of(folder):
            yield "last run", f"{run['run-id']}: {run['status']}"
    except DeployError as error:
        yield "hospitals", str(error)


def _certificate(path: Path) -> tuple[str, str]:
    try:
        return path.name, f"valid until {end_of(path):%Y-%m-%d}"
    except DeployError as error:
        return path.name, str(error)


def _disk(folder: Path) -> str:
    """The free space on the disk of a folder, which may not exist yet."""
    place = next(each for each in (folder, *folder.parents) if each.exists())
    return f"{shutil.disk_usage(place).free / 1e9:.1f} GB left for {folder}"
