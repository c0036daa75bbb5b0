"""A folder as an RO-Crate: the file ro-crate-metadata.json, which programs read.

It follows RO-Crate 1.2, Process Run Crate 0.5 and Five Safes RO-Crate 0.4 (docs/crate.md). It
describes the files of the folder. A fact that nobody recorded is called "not recorded".
"""

import hashlib
import json
import mimetypes
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote

from strategies.protocol.extras import install_command
from strategies.protocol.files import read_bytes, write_whole

NAME = "ro-crate-metadata.json"
PROFILES = {
    "https://w3id.org/ro/wfrun/process/0.5": "Process Run Crate",
    "https://w3id.org/5s-crate/0.4": "Five Safes RO-Crate profile",
}
WORKFLOW_CRATE = "https://w3id.org/workflowhub/workflow-ro-crate/1.0"
TYPES = {
    ".toml": "application/toml",
    ".jsonl": "application/jsonl",
    ".npz": "application/zip",
    ".sig": "application/octet-stream",  # not of PGP
}


class CrateError(ValueError):
    """A folder cannot become a crate; the text has the reason and the cure."""


@dataclass(frozen=True)
class Check:
    """A check before or after data were used: an `AssessAction` of the Five Safes profile."""

    kind: str  # term of the ontology SHP: SignOff, DisclosureCheck or CheckValue
    text: str  # the check and its outcome
    hospital: str = ""  # who made it; empty = this app
    status: str = "Completed"  # or Failed, or Potential = not done, or no decision
    time: str = ""  # ISO 8601; empty = unknown
    rules: str = ""  # SHA-256 of the rules that were applied; empty = unknown


@dataclass(frozen=True)
class Contents:
    """The facts of a crate."""

    name: str
    description: str
    action: str  # the run, or the release, in words
    status: str  # Completed or Failed
    error: str  # of an action that failed
    began: str  # ISO 8601; empty = unknown
    ended: str
    version: str  # of the app; empty = unknown
    code: str  # hash of its code; empty = unknown
    images: Mapping[str, str]  # by hospital, the facts about its images
    files: Mapping[str, str]  # the content of each file, by its path in the folder
    inputs: Sequence[str]  # those files that the action used; it made the others
    checks: Sequence[Check]
    makers: Mapping[str, Sequence[str]] = field(default_factory=dict)  # by file, its hospitals


def write_crate(folder: Path, contents: Contents, now: str) -> Path:
    """The crate's file in a folder; writes it, or checks the files against the one that is there.

    The folder has all files of `contents`. `now` is in ISO 8601.

    Raises:
        CrateError: The extra is missing; or a file is not the one that the crate names.
        OSError: A file cannot be read, or the crate cannot be written.
    """
    try:
        from rocrate.rocrate import ROCrate
    except ImportError as error:
        raise CrateError(f"A crate needs the extra 'crate': {install_command('crate')}.") from error
    path = folder / NAME
    hashes = {name: _hash(folder / name) for name in contents.files}
    if path.exists():
        _check(path, hashes)
        return path
    crate = ROCrate(version="1.2")
    for entity in _entities(folder, contents, hashes, now):
        crate.add_or_update_jsonld(entity)
    text = json.dumps(crate.metadata.generate(), indent=1, ensure_ascii=False)
    write_whole(path, text + "\n")
    return path


def files_below(folder: Path) -> list[str]:
    """The paths of all files below a folder but the crate's own, sorted.

    Raises:
        CrateError: One is a link, or no ordinary file, or its name is not in UTF-8.
    """
    found = [each for each in sorted(folder.rglob("*")) if not each.is_dir() or each.is_symlink()]
    for each in found:
        if each.is_symlink() or not each.is_file():
            raise CrateError(f"{each} is not an ordinary file: remove it.")
        try:
            str(each).encode()
        except UnicodeEncodeError:
            raise CrateError(f"The name of {each} is not in UTF-8: rename it.") from None
    return [each.relative_to(folder).as_posix() for each in found if each != folder / NAME]


def _hash(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _check(path: Path, hashes: Mapping[str, str]) -> None:
    """Compare files with a crate."""
    try:
        graph = json.loads(read_bytes(path))["@graph"]
        files = (each for each in graph if each["@type"] == "File")
        named = {unquote(str(each["@id"])): each["sha256"] for each in files}
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise CrateError(f"{path} is damaged: remove it, and write it anew.") from error
    changed = sorted(name for name in {*named, *hashes} if named.get(name) != hashes.get(name))
    if changed:
        raise CrateError(
            f"{path.parent / changed[0]} is not the file that {NAME} names. If you know why, "
            f"remove {NAME}, and write it anew."
        )


def _entities(
    folder: Path, contents: Contents, hashes: Mapping[str, str], now: str
) -> Iterable[dict[str, Any]]:
    hospitals = [*contents.images]
    code = f"urn:sha256:{contents.code}" if contents.code else "not recorded"
    assessments = [*_assessments(contents.checks)]
    yield {
        **_entity("./", "Dataset", contents.name, contents.description),
        "datePublished": now,
        "license": _ref("#licence"),
        "conformsTo": _refs(PROFILES),
        "hasPart": _refs(map(quote, contents.files)),
        "mainEntity": _ref("#app"),
        "mentions": _refs(["#action", *(each["@id"] for each in assessments)]),
        "sourceOrganization": _ref("#consortium"),
    }
    for address, name in PROFILES.items():
        yield _entity(address, ["CreativeWork", "Profile"], name)
    yield _entity(
        "#licence",
        "CreativeWork",
        "No licence is recorded",
        "The hospitals and the operator decide who may use this folder.",
    )
    yield {
        **_entity(
            "#app",
            ["Dataset", "SoftwareApplication"],
            "fedhandoff",
            "A Flower app. The identifier is the SHA-256 of its code, which hospitals approve. Its "
            "repository is a Workflow RO-Crate.",
        ),
        "conformsTo": _ref(WORKFLOW_CRATE),
        "version": contents.version or "not recorded",
        "identifier": code,
        "url": code,
        "license": _ref("https://spdx.org/licenses/Apache-2.0"),
    }
    yield _entity("https://spdx.org/licenses/Apache-2.0", "CreativeWork", "Apache License 2.0")
    yield {
        **_entity(
            "#requester",
            "Person",
            "not recorded",
            "The person who started this. Nobody recorded the name.",
        ),
        "memberOf": _ref("#consortium"),
    }
    yield {
        **_entity(
            "#consortium",
            "Project",
            f"The consortium of {', '.join(hospitals) or 'hospitals'}",
            "Its name, its agreements and its funding are not recorded.",
        ),
        "member": _refs(map(_hospital, hospitals)),
    }
    # A hospital that refused is no member.
    for hospital in sorted({*hospitals, *(each.hospital for each in contents.checks)} - {""}):
        yield _entity(_hospital(hospital), "Organization", hospital)
    for hospital, known in contents.images.items():
        yield {
            **_entity(_images(hospital), "Dataset", f"Images of {hospital}", known),
            "provider": _ref(_hospital(hospital)),
            "conditionsOfAccess": "The images never leave the hospital, and are not in this crate.",
        }
    inputs = [*map(quote, contents.inputs), *map(_images, hospitals)]
    yield {
        **_entity("#action", "CreateAction", contents.action, contents.description),
        "actionStatus": f"http://schema.org/{contents.status}ActionStatus",
        **({"error": contents.error} if contents.error else {}),
        **({"startTime": contents.began} if contents.began else {}),
        **({"endTime": contents.ended} if contents.ended else {}),
        "agent": _ref("#requester"),
        "instrument": _ref("#app"),
        "object": _refs(inputs),
        "result": _refs(map(quote, contents.files.keys() - {*contents.inputs})),
    }
    for name, about in contents.files.items():
        makers = [each for each in contents.makers.get(name, ()) if each in contents.images]
        kind = TYPES.get(Path(name).suffix) or mimetypes.guess_type(name)[0]
        yield {
            **_entity(quote(name), "File", name, about),
            "sha256": hashes[name],
            "contentSize": str((folder / name).stat().st_size),
            "encodingFormat": kind or "application/octet-stream",
            **({"creator": _refs(map(_hospital, makers))} if makers else {}),
        }
    yield from assessments
    for rules in dict.fromkeys(each.rules for each in contents.checks if each.rules):
        about = "The policy stays at the hospital; this is its SHA-256."
        yield _entity(f"#{rules}", "CreativeWork", "Policy", about) | {"sha256": rules}


def _assessments(checks: Iterable[Check]) -> Iterable[dict[str, Any]]:
    for number, each in enumerate(checks, 1):
        yield {
            **_entity(f"#check-{number}", "AssessAction", each.text),
            "additionalType": _ref(f"https://w3id.org/shp#{each.kind}"),
            "actionStatus": f"http://schema.org/{each.status}ActionStatus",
            "agent": _ref(_hospital(each.hospital) if each.hospital else "#app"),
            "object": _refs(["./", "#app", "#consortium"] if each.kind == "SignOff" else ["./"]),
            **({"endTime": each.time} if each.time else {}),
            **({"instrument": _ref(f"#{each.rules}")} if each.rules else {}),
        }


def _entity(at: str, kind: str | list[str], name: str, about: str = "") -> dict[str, Any]:
    return {"@id": at, "@type": kind, "name": name} | ({"description": about} if about else {})


def _hospital(name: str) -> str:
    return f"#hospital-{quote(name)}"


def _images(hospital: str) -> str:
    return f"#images-{quote(hospital)}"


def _ref(at: str) -> dict[str, str]:
    return {"@id": at}


def _refs(places: Iterable[str]) -> Any:
    """References, sorted; a single one is no list (RO-Crate 1.2)."""
    found = [*map(_ref, sorted(places))]
    return found[0] if len(found) == 1 else found
