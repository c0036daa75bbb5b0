"""The ledger: what a hospital was asked, and what left it, in the order in which it happened.

In a deployment each message adds a line to `<store>/<site>/ledger.jsonl`, before its answer leaves:
what cannot be written stays. A line is a JSON object, and its field `previous` is the SHA-256 of
the line before. So a line that is changed, moved, added or taken out breaks the chain after it. A
cut-off end does not: who keeps the number of lines and the hash of the last one sees that, too.

A server can ask at any moment whether the hospital is there (`query.live`), and learns nothing else
by it: a day's first such message has a line, and stands for those that follow.
"""

import fcntl
import hashlib
import json
import logging
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from io import RawIOBase
from mmap import ACCESS_READ, mmap
from pathlib import Path
from typing import Any

from flwr.app import ArrayRecord, Context, Message, RecordDict
from flwr.clientapp.typing import ClientAppCallable

from client_app.errors import LedgerError
from client_app.guard import Failed
from client_app.node_config import is_simulated, own_config
from client_app.policy import DEFAULTS
from client_app.resident import RESIDENT
from client_app.store import DEFAULT, own_folder
from strategies.protocol.code import code_hash
from strategies.protocol.may_leave import Failure
from strategies.protocol.parcel import Manifest, hash_arrays
from strategies.protocol.records import from_record
from strategies.protocol.redaction import redacted

LONGEST = 2**20  # bytes of a line; what would need more does not leave
ORDER = (
    *("run", "round", "hop", "task", "learner", "epochs", "images", "test", "snapshots"),
    *("buffer_size", "replay", "embeddings"),
)


class BrokenLedger(ValueError):
    """A line of a ledger is not the one that was written there."""


@dataclass(frozen=True)
class Line:
    """A line of a ledger.

    Attributes:
        number: From 1.
        hash: SHA-256 of the line.
        entry: What it says.
    """

    number: int
    hash: str
    entry: dict[str, Any]


def ledger(message: Message, context: Context, call_next: ClientAppCallable) -> Message:
    """Write down what a message asked for and what its answer holds (a Flower mod).

    Raises:
        LedgerError: It cannot be written.
    """
    answer = call_next(message, context)
    config = own_config(context)
    if not is_simulated(config) and RESIDENT not in os.environ:
        site, store = config.get("site", "hospital"), Path(str(config.get("store-dir", DEFAULT)))
        entry = {**_asked(message), **_left(answer)}
        terms = {} if entry["verb"] == "query.live" else _terms(context, config)
        append(path_of(str(site), store), entry, terms)
    return answer


def path_of(site: str, store: Path) -> Path:
    """The ledger of a hospital; the name is the hospital's own word, and no server's."""
    return store.expanduser() / site / "ledger.jsonl"


def append(path: Path, entry: Mapping[str, Any], terms: Mapping[str, Any] | None = None) -> None:
    """Write an entry behind the others, to the disk.

    Args:
        path: The ledger.
        entry: What was asked and what left; the same of another `query.live` of a day is left out.
        terms: Settings, code and policy. Every line has their hash, and the first one of a run with
            this hash, whatever was asked, has all of them in words.

    Raises:
        LedgerError: It cannot be written, or is too long.
    """
    try:
        own_folder(path.parent)
        with open(path, "ab+", buffering=0, opener=partial(os.open, mode=0o600)) as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            line: dict[str, Any] = {"previous": _hash(_last(file)), **entry}
            if entry.get("verb") == "query.live" and _has(file, _text(entry)[1:-1]):
                return
            if terms:
                digest = _hash(_text([entry.get("run"), terms]).encode())
                known = _has(file, f'"terms": "{digest}", "settings": {{')
                line |= {"terms": digest, **({} if known else terms)}
            text = _text(line)
            if len(text) >= LONGEST:
                raise OSError(f"A line would have {len(text)} bytes.")
            if file.write(f"{text}\n".encode()) <= len(text):
                raise OSError("The disk is full.")
            os.fsync(file)
    except OSError as error:
        logging.getLogger("flwr").error("The ledger %s cannot be written: %s", path, error)
        raise LedgerError(
            "The hospital cannot write into its ledger, so nothing leaves; its own log has the "
            "details."
        ) from error


def _text(content: object) -> str:
    return json.dumps(content, default=bytes.hex)


def _has(file: RawIOBase, words: str) -> bool:
    """Whether a line has these words; in texts of others their quotes are escaped."""
    if not file.seek(0, os.SEEK_END):
        return False
    with mmap(file.fileno(), 0, access=ACCESS_READ) as lines:
        return lines.find(words.encode()) >= 0


def read(path: Path) -> Iterator[Line]:
    """The lines of a ledger, the first one first, as far as its chain holds.

    Raises:
        BrokenLedger: Names the first line that does not belong there.
        OSError: The file cannot be read.
    """
    with path.open("rb") as file:
        fcntl.flock(file, fcntl.LOCK_SH)
        *lines, rest = file.read().split(b"\n")
    previous = _hash(b"")
    for number, line in enumerate(lines, 1):
        try:
            entry = json.loads(line)
            follows = entry["previous"] == previous
        except (TypeError, KeyError, ValueError, RecursionError) as error:
            raise BrokenLedger(f"Line {number} is not one of a ledger.") from error
        if not follows:
            raise BrokenLedger(
                f"Line {number} was not written after the line that is before it now: one of the "
                "two was changed or moved, or lines between them are missing."
            )
        previous = _hash(line)
        yield Line(number, previous, entry)
    if rest:
        raise BrokenLedger(
            f"Line {len(lines) + 1} is cut short: by somebody, or because the process that wrote "
            "it was ended, and its answer with it. The next message removes it."
        )


def _last(file: RawIOBase) -> bytes:
    """The last line; what a process that was ended has begun to write is removed."""
    size = file.seek(0, os.SEEK_END)
    file.seek(max(0, size - 2 * LONGEST))
    *lines, rest = (file.read(2 * LONGEST) or b"").split(b"\n")
    if rest:
        file.truncate(size - len(rest))
    return lines[-1] if lines else b""


def _asked(message: Message) -> dict[str, Any]:
    """When and what the server asked."""
    verb, now = message.metadata.message_type, datetime.now(UTC)
    time = str(now.date()) if verb == "query.live" else now.isoformat(timespec="seconds")
    order = message.content.config_records.get("order") if message.has_content() else None
    given = {key: order[key] for key in ORDER if key in order} if order else {}
    return {"time": time, "verb": verb, **given}


def _terms(context: Context, config: Mapping[str, Any]) -> dict[str, Any]:
    """Under which settings, code and policy the hospital was asked."""
    policy = Path(str(config["policy"])).expanduser() if config.get("policy") else DEFAULTS
    try:
        rules = _hash(policy.read_bytes())
    except OSError:  # what leaves then is a failure that says so
        rules = ""
    given = sorted(context.run_config.items())  # also of a run that is refused
    settings = {k: redacted(value) if isinstance(value, str) else value for k, value in given}
    return {"settings": settings, "code": code_hash(), "policy": rules}


def _left(answer: Message) -> dict[str, Any]:
    """What leaves: the records of an answer, or a failure."""
    if answer.has_error():
        error = answer.error
        rule = {"rule": error.rule} if isinstance(error, Failed) and error.rule else {}
        kind = Failure(error.code).name.lower()
        return {"failure": {"class": kind, "reason": error.reason, **rule}}
    records: list[dict[str, Any]] = []
    for name, record in answer.content.items():
        if isinstance(record, ArrayRecord):
            size = sum(len(array.data) for array in record.values())
            known = _label_of(name, answer.content).get(name.rpartition("/")[2])
            records.append({"name": name, "bytes": size, "sha256": known or hash_arrays(record)})
        else:
            records.append({"name": name, "values": {**record}})
    return {"left": records}


def _label_of(name: str, content: RecordDict) -> dict[str, str]:
    """The hashes on the label of a record's parcel: to hash 45 MB again takes 40 ms."""
    prefix = name.removesuffix(name.rpartition("/")[2])
    label = content.config_records.get(f"{prefix}manifest")
    return from_record(Manifest, label).hash_of if label else {}


def _hash(line: bytes) -> str:
    return hashlib.sha256(line).hexdigest()
