"""Write, sign and check a dossier."""

import hashlib
import json
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from client_app.authority.identity import Identity, Member
from client_app.release.dossier.page import page
from client_app.store import own_folder
from strategies.protocol.files import read_bytes, read_text, write_whole
from strategies.protocol.settings import SettingsError

LONGEST = 2**24  # bytes of a dossier; pictures of many classes take 8 MB


def write(folder: Path, dossier: dict[str, Any], identity: Identity | None) -> str:
    """Write a dossier and return its SHA-256; if only the time differs, keep the earlier time.

    Without `identity` there is no signature. An earlier dossier of the run moves to a folder below,
    with its SHA-256 as a name: others have a buffer with this SHA-256.
    """
    path, before = folder / "dossier.json", b""
    text = json.dumps(dossier, indent=1).encode()
    with suppress(OSError, ValueError):
        before = read_bytes(path)
        again = dossier | {"written": json.loads(before)["written"]}
        text = before if json.dumps(again, indent=1).encode() == before else text
    digest = hashlib.sha256(text).hexdigest()
    files = {path.name: text}
    if identity:
        files["dossier.sig"] = identity.signing.sign(text)
    signer = str(identity.member) if identity else ""
    files["dossier.html"] = page(json.loads(text), digest, signer).encode()
    if before not in (b"", text):
        earlier = own_folder(folder / hashlib.sha256(before).hexdigest())
        for file in [each for each in folder.iterdir() if each.is_file()]:
            file.replace(earlier / file.name)
    own_folder(folder)
    for name, content in files.items():
        write_whole(folder / name, content, private=True)
    return digest


@dataclass(frozen=True)
class Checked:
    """The result of the check of a dossier."""

    hash: str  # SHA-256 of dossier.json, which travels with the buffer
    hospital: str
    run: str  # identity of the run
    signed: bool  # whether the hospital has signed the dossier
    page: bool  # whether dossier.html matches dossier.json

    @property
    def holds(self) -> bool:
        """Whether the hospital has signed the dossier, and its page matches it."""
        return self.signed and self.page


def check(path: Path, keys: Mapping[str, Member]) -> Checked:
    """Check dossier.json, and dossier.sig and dossier.html beside it.

    `keys` has the public keys of hospitals, by name.

    Raises:
        SettingsError: There is no such file, or it is no dossier.
    """
    try:
        text = read_text(path, LONGEST).encode()
        dossier = json.loads(text)
        hospital, run = dossier["hospital"], dossier["run"]
    except OSError as error:
        raise SettingsError(f"There is no dossier {path} to read ({error.strerror}).") from error
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise SettingsError(f"{path} is not a dossier.") from error
    digest = hashlib.sha256(text).hexdigest()
    signature, html = (_bytes(path.with_name(f"dossier.{each}")) for each in ("sig", "html"))
    member = keys.get(str(hospital))
    signed = member is not None and member.has_signed(text, signature)
    signer = str(member) if member and signed else ""
    try:
        same_page = html == page(dossier, digest, signer).encode()
    except Exception as error:  # another hospital wrote it: anything may be missing or wrong
        raise SettingsError(f"{path} is not a dossier of this version.") from error
    return Checked(digest, str(hospital), str(run), signed, same_page)


def newest_dossier(folder: Path, run: str | None) -> Path:
    """The file of a run's dossier, or of the newest dossier, in a hospital's folder of dossiers.

    Raises:
        SettingsError: There is no such dossier.
    """
    found = [
        path for path in folder.glob("*/dossier.json") if run is None or path.parent.name == run
    ]
    if not found:
        raise SettingsError(
            f"There is no dossier{f' of the run {run}' if run else ''} in {folder}: name "
            "the hospital with --hospital. A run without synthetic images has none."
        )
    return max(found, key=lambda path: path.stat().st_mtime)


def _bytes(path: Path) -> bytes:
    with suppress(OSError):
        return read_bytes(path)
    return b""
