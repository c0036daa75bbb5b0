"""The status of servers and hospitals: processes, certificates, disks."""

import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path

from deploy.credentials import end_of
from deploy.errors import DeployError
from deploy.running import facts_of, folders, runs_from
from deploy.server import hospitals_of, last_run_of

Line = tuple[str, str]


def status(given: Sequence[Path]) -> bool:
    """Print the status of servers and hospitals; whether all run, with valid certificates.

    Args:
        given: Their folders; empty = all that this user runs on this machine.

    Raises:
        DeployError: A path is no folder; or none is given, and this user runs no server and no
            hospital here.
    """
    chosen = [each.absolute() for each in given] or folders()
    if not chosen:
        raise DeployError(
            "No server and no hospital of this user runs on this machine: give the folder of one "
            "to see its status."
        )
    if strange := [str(each) for each in chosen if not each.is_dir()]:
        raise DeployError(f"{strange[0]} is no folder: give a server's or a hospital's folder.")
    well = True
    for folder in chosen:
        is_server = (folder / "server.crt").exists()
        print(f"{facts_of(folder).get('name', 'server' if is_server else 'hospital')}, {folder}")
        lines, fine = _server(folder) if is_server else _hospital(folder)
        for label, text in lines:
            print(f"  {label:<13}{text}")
        well &= fine
    return well


def _hospital(folder: Path) -> tuple[list[Line], bool]:
    facts, certificate = facts_of(folder), _certificate(folder / "ca.crt")
    lines = [("SuperNode", _process(folder))]
    if "said" in facts:
        lines.append(("said last", f"{facts['said-at']}  {facts['said']}"))
    lines += [("server", facts.get("server", "unknown: it has not been started yet")), certificate]
    code = folder / "approved" / "code"
    lines.append(("code", code.read_text().strip() if code.is_file() else "none is approved"))
    return [*lines, *_disk(Path(facts.get("store", folder)))], _fine(folder, [certificate])


def _server(folder: Path) -> tuple[list[Line], bool]:
    facts = facts_of(folder)
    certificates = [_certificate(folder / name) for name in ("server.crt", "ca.crt")]
    lines = [("SuperLink", _process(folder))]
    if "fleet" in facts:
        lines.append(("listens", f"{facts['fleet']} for hospitals, {facts['control']} for you"))
    try:
        hospitals = hospitals_of(folder) if runs_from(folder) else []
        lines += [
            ("hospital", f"{name}: {'connected' if state == 'online' else state} since {since}")
            for name, state, since in sorted(hospitals)
        ]
        if runs_from(folder) and (run := last_run_of(folder)):
            lines.append(("last run", f"{run['run-id']}: {run['status']}"))
    except DeployError as error:
        lines.append(("hospitals", str(error)))
    return [*lines, *certificates, *_disk(folder)], _fine(folder, certificates)


def _process(folder: Path) -> str:
    facts = facts_of(folder)
    if runs_from(folder):
        return f"runs since {facts['since']}, process {facts['pid']}"
    return f"does not run; it was last started {facts['since']}" if facts else "does not run"


def _certificate(path: Path) -> Line:
    try:
        return path.name, f"valid until {end_of(path):%Y-%m-%d}"
    except DeployError as error:
        return path.name, str(error)


def _fine(folder: Path, certificates: Sequence[Line]) -> bool:
    return runs_from(folder) and all(text.startswith("valid until") for _, text in certificates)


def _disk(folder: Path) -> Iterator[Line]:
    """The free space on the disk of a folder, which may not exist yet."""
    place = next(each for each in (folder, *folder.parents) if each.exists())
    yield "disk", f"{shutil.disk_usage(place).free / 1e9:.1f} GB left for {folder}"
