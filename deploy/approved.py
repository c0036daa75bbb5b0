"""The code that a hospital has approved: its own copy, and the hash that identifies it.

Approved code is in `<hospital's folder>/approved/`. Each version has a folder that is named after
its hash. The file `code` there holds the hash of the version to run. No version is overwritten.
"""

import re
import shutil
import tempfile
from pathlib import Path
from shlex import quote

from deploy.errors import DeployError
from strategies.protocol.code import files_of, hash_of
from strategies.protocol.files import (
    alone,
    cure_of,
    make_private,
    read_bytes,
    reason_of,
    write_new,
    write_whole,
)

DIGITS = 16  # digits of a hash in the name of a folder


def approve(folder: Path, checkout: Path) -> str:
    """Copy a checkout's code, which the hospital runs from its next start on; returns its hash.

    Raises:
        DeployError: The checkout has no code, or approved code of this hash was changed.
    """
    files, approved = files_of(checkout), folder / "approved"
    if not files:
        raise DeployError(f"{checkout} has no code: give a checkout of this repository.")
    make_private(folder)
    approved.mkdir(mode=0o755, exist_ok=True)
    with alone(approved):
        for draft in approved.glob(".draft-*"):  # of a process that was killed
            shutil.rmtree(draft, ignore_errors=True)
        draft = Path(tempfile.mkdtemp(prefix=".draft-", dir=approved))
        for file in files:
            copy = draft / file.relative_to(checkout)
            copy.parent.mkdir(parents=True, exist_ok=True)
            write_new(copy, file.read_bytes())  # on a full disk its error names the file
            copy.chmod(0o444)
        code = hash_of(draft)  # the checkout may change meanwhile
        place = approved / code[:DIGITS]
        if place.exists():
            shutil.rmtree(draft)
            _check(place, code)
        else:
            draft.rename(place)
            for each in (place, *place.rglob("*/")):  # not before: nobody could remove the draft
                each.chmod(0o555)
        write_whole(approved / "code", f"{code}\n")
    return code


def approved_code(folder: Path) -> Path:
    """The folder with the code that a hospital has approved.

    Raises:
        DeployError: No code is approved, or approved code was changed.
    """
    code = approved_hash(folder)
    place = folder / "approved" / code[:DIGITS]
    _check(place, code)
    return place


def approved_hash(folder: Path) -> str:
    """The hash of the code that a hospital has approved.

    Raises:
        DeployError: No code is approved, or the file with the hash cannot be read.
    """
    chosen = folder / "approved" / "code"
    again = (
        f"approve this version with `fedhandoff hospital approve --hospital {quote(str(folder))}`"
    )
    try:
        code = read_bytes(chosen).strip().decode("ascii", "replace")
    except FileNotFoundError:
        raise DeployError(
            f"{folder} has no approved code: {again}, and compare its hash with the other "
            "hospitals'."
        ) from None
    except OSError as error:
        cure = cure_of(error, f"remove it, and {again}")
        raise DeployError(f"{chosen} cannot be read ({reason_of(error)}): {cure}.") from error
    if not re.fullmatch("[0-9a-f]{64}", code):
        raise DeployError(f"{chosen} is damaged, and holds no hash: {again}.")
    return code


def _check(place: Path, code: str) -> None:
    # Python would run bytecode instead of the source. Only root can have written bytecode here.
    for cache in place.rglob("__pycache__"):
        shutil.rmtree(cache, ignore_errors=True)
    there = {path for path in place.rglob("*") if path.is_symlink() or not path.is_dir()}
    if there != {*files_of(place)} or hash_of(place) != code:
        raise DeployError(
            f"{place} is not the approved code {code}: it was changed. Find out by whom, remove "
            "the folder, and approve that version again."
        )
