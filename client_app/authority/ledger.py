"""The ledger: the requests to a hospital and the records that left it, in order of time.

In a deployment each message adds a line to `<store>/<site>/ledger.jsonl` before its answer leaves.
If the line cannot be written, the answer stays. A line is a JSON object, and its field `previous`
is the SHA-256 of the line before. So a changed, moved, added or removed line breaks the chain after
it. A second file (ledger_index.py) holds the end of the chain, authenticated with the hospital's
secret. Anyone who can read the secret can write a new chain. To notice that, keep the number of
lines and the hash of the last line on another machine.

A server can ask at any time whether the hospital can be reached (`query.live`). It learns nothing
else. Only the first such message of a day gets a line.
"""

import hashlib
import json
import logging
import os
import sqlite3
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial
from itertools import takewhile
from pathlib import Path
from typing import Any

from flwr.app import ArrayRecord, ConfigRecord, Context, Message, RecordDict

from client_app.authority.ledger_index import (
    LONGEST,
    BrokenLedger,
    Head,
    Index,
    index_of,
    open_index,
)
from client_app.authority.ledger_shape import ASKED, entry_of
from client_app.authority.node_config import NODE_CONFIG, OwnError, is_simulated, policy_file
from client_app.authority.policy import DEFAULTS, MachineRules, Policy
from client_app.errors import LedgerError
from client_app.run import NAME
from client_app.store import DEFAULT
from strategies.protocol.code import code_hash
from strategies.protocol.files import expand, open_checked, read_bytes
from strategies.protocol.may_leave import Failed, Failure
from strategies.protocol.parcel import Manifest, hash_arrays
from strategies.protocol.records import count_bytes, find_record, from_record, size_of
from strategies.protocol.redaction import redact
from strategies.protocol.shapes import ShapeError, from_value
from warm.process import Handed

LONG = 2000  # most characters of a setting in the ledger; valid settings are shorter
MOST, LONG_KEY = 300, 100  # most settings, and most characters of a key; valid runs have fewer


@dataclass(frozen=True)
class Line:
    """A line of a ledger."""

    number: int  # the line's number, from 1
    hash: str  # SHA-256 of the line
    entry: dict[str, Any]  # the line's content


class OwnLedger:
    """The ledger of this process's hospital, for one message."""

    def __init__(
        self, path: Path, message: Message, context: Context, config: Mapping[str, Any]
    ) -> None:
        self.path = path
        self._message, self._config = message, config
        self._is_live = message.metadata.message_type == "query.live"
        # The policy's file may change during a visit. The line names the one that judged the order.
        self._terms = {} if self._is_live else _terms(context.run_config, config)
        # Approximate bytes of the message, and of the settings of its run
        texts = [str(dict(each)) for each in message.content.config_records.values()]
        texts.append(str(dict(context.run_config)))
        self._size = count_bytes(message.content) + sum(map(len, texts))

    def check(self) -> None:
        """Refuse the message if the hospital cannot record it, or has lost earlier records.

        Raises:
            LedgerError: The ledger is broken.
            OwnError: A file with the hospital's record of earlier answers is missing.
            PolicyError: The store is as large as the policy allows.
        """
        machine, run = _machine(self._config), _run(_request_fields(self._message))
        with _open_to_write(self.path) as index:
            if not self._is_live and (gone := index.find_missing(run)):
                raise OwnError("files", gone)
            # `append` needs the measured size. A visit or a GAN keeps more than its message brings.
            refusal = index.make_room(machine, self._size, anew=not self._is_live)
        if refusal and not self._is_live:
            raise refusal

    def note(self, answer: Message) -> None:
        """Add a line with the request and its answer, or raise a `LedgerError`."""
        entry = {**_request_fields(self._message), **_answer_fields(answer)}
        append(self.path, entry, self._terms, self._size)


def open_ledger(message: Message, context: Context, config: Mapping[str, Any]) -> OwnLedger | None:
    """The ledger for a message; None in a simulation, or if another process writes the ledger.

    Raises:
        OwnError: The store has gone since `hospital start` made it.
    """
    if is_simulated(config) or isinstance(context, Handed):
        return None
    store = Path(str(config.get("store-dir", DEFAULT)))
    path = path_of(str(config.get("site", "hospital")), store)
    if NODE_CONFIG in os.environ and not path.parent.is_dir():
        raise OwnError(
            "store",
            f"{path.parent} has gone since the start: mount its disk, or restore it from a backup. "
            "A new store would begin keys, ledger and privacy account again.",
        )
    return OwnLedger(path, message, context, config)


def path_of(site: str, store: Path) -> Path:
    """The ledger of a hospital. The name comes from its node-config, never from a server."""
    return expand(store) / site / "ledger.jsonl"


def append(
    path: Path, entry: Mapping[str, Any], terms: Mapping[str, Any] | None = None, brought: int = 0
) -> None:
    """Add an entry at the end of a ledger, on the disk.

    Only the first `query.live` of a day is written. Each line has the hash of its `terms`:
    settings, code and policy; the first line of a run with this hash has them in full. `brought`
    are the bytes of the message, of which the store may now hold a copy.

    Raises:
        LedgerError: The entry cannot be written, or is too long.
    """
    with _open_to_write(path) as index:
        head = index.head()
        line: dict[str, Any] = {"previous": head.hash, **entry}
        if entry.get("verb") == "query.live" and not index.is_new(_hash(_text(entry).encode())):
            return
        if terms:
            digest = _hash(_text([entry.get("run"), terms]).encode())
            line |= {"terms": digest, **(terms if index.is_new(digest) else {})}
        text = _text(line).encode()
        used = head.used + brought + len(text)
        if len(text) >= LONGEST:
            raise OSError(f"A line would have {len(text)} bytes.")
        if head.most and used > head.most:
            raise OSError("The store is as large as the policy allows (machine.max-disk-gb).")
        index.file.truncate(head.size)  # a line that a killed process left unfinished
        if index.file.write(text + b"\n") <= len(text):
            raise OSError("The disk is full.")
        os.fsync(index.file.fileno())
        index.remember(_run(entry))
        index.move(
            replace(
                head,
                lines=head.lines + 1,
                start=head.size,
                size=head.size + len(text) + 1,
                hash=_hash(text),
                used=used,
            )
        )


@contextmanager
def _open_to_write(path: Path) -> Iterator[Index]:
    """Open a ledger to write, or raise a `LedgerError`; the hospital's own log has its details."""
    try:
        with open_index(path) as index:
            yield index
    except (OSError, BrokenLedger, sqlite3.Error) as error:
        logging.getLogger("flwr").error("The ledger %s cannot be written: %s", path, error)
        raise LedgerError(
            "The hospital cannot write into its ledger, so nothing leaves; its own log has the "
            "details."
        ) from error


def _text(content: object) -> str:
    return json.dumps(content, default=bytes.hex)


def released_dossiers(path: Path, run: str) -> list[str]:
    """The hashes of a run's released dossiers, in order."""
    released = []
    for line in read(path) if path.exists() else ():
        for record in line.entry.get("left", ()) if line.entry.get("run") == run else ():
            if record["name"] == "card" and (hash_ := record.get("values", {}).get("dossier")):
                released.append(hash_)
    return released


def read(path: Path) -> Iterator[Line]:
    """The lines of a ledger, in order. The next line confirms each line, the head the last one.

    Raises:
        BrokenLedger: A line does not belong there; the text names the first such line.
        OSError: The file cannot be read.
    """
    broken, end, size = "", Head(), 0
    with open_checked(path, sys.maxsize) as file:  # not whole: a server can make it very long
        try:
            with open_index(path) as index:
                end, size = index.head(), os.fstat(file.fileno()).st_size
        except BrokenLedger as error:
            broken = str(error)
        except sqlite3.Error as error:
            broken = f"{index_of(path).name} cannot be read ({error}). Restore it from a backup."
        read_line, confirmed = partial(file.readline, 2 * LONGEST), None
        lines: Iterator[bytes] = (read_line() for _ in range(end.lines))
        if broken:  # nobody knows their number
            lines = takewhile(lambda line: line.endswith(b"\n"), iter(read_line, b""))
        for number, line in enumerate(lines, 1):
            try:
                entry: dict[str, Any] = {**entry_of(line.decode())}
            except (ValueError, OverflowError) as error:
                raise BrokenLedger(f"Line {number} is not a line of a ledger.") from error
            if entry["previous"] != (confirmed.hash if confirmed else Head().hash):
                raise BrokenLedger(
                    f"Line {number} does not follow from the line before it: one of the two was "
                    "changed or moved, or lines between them are missing."
                )
            if confirmed:
                yield confirmed
            confirmed = Line(number, _hash(line[:-1]), entry)
    if broken:
        raise BrokenLedger(broken)
    if confirmed:
        yield confirmed
    if size > end.size:
        raise BrokenLedger(
            f"Line {end.lines + 1} was never confirmed: somebody added it, or its process ended "
            "before the answer left. The next message removes the line."
        )


def read_to_break(path: Path) -> tuple[list[Line], str]:
    """The lines up to a break of the chain, and the reason of the break; empty if intact.

    Raises:
        OSError: The file cannot be read.
    """
    lines = []
    try:
        for line in read(path):
            lines.append(line)
    except BrokenLedger as error:
        return lines, str(error)
    return lines, ""


def _request_fields(message: Message) -> dict[str, Any]:
    """The time and the content of a request. A field of a wrong type becomes a short text."""
    verb, now = message.metadata.message_type, datetime.now(UTC)
    time = str(now.date()) if verb == "query.live" else now.isoformat(timespec="seconds")
    order = find_record(message.content, "order", ConfigRecord) or ConfigRecord()
    fields: dict[str, Any] = {"time": time, "verb": verb}
    unfit = {}
    for key, kind in ASKED.items():
        if key in order:
            try:
                fields[key] = from_value(order[key], kind)
            except ShapeError:
                unfit[key] = f"{order[key]!r:.200}"
    return {**fields, "unfit": unfit} if unfit else fields


def _run(entry: Mapping[str, Any]) -> str:
    """The identity of the run; empty if it cannot name a folder."""
    run = str(entry.get("run", ""))
    return run if NAME.fullmatch(run) else ""


def _machine(config: Mapping[str, Any]) -> MachineRules:
    """The policy's rules about the machine; the defaults if the policy cannot be read."""
    try:
        return Policy.read(policy_file(config)).machine
    except OwnError:  # the answer will be a failure that reports it
        return Policy.read().machine


def _terms(asked: Mapping[str, Any], config: Mapping[str, Any]) -> dict[str, Any]:
    """The settings, code and policy of a request.

    A refused run may have any settings. So long texts are cut, and only the first `MOST` settings
    are written; the others are counted.
    """
    path = policy_file(config) or DEFAULTS
    rules = ""
    with suppress(OSError):  # the answer will be a failure that reports it
        rules = _hash(read_bytes(path))
    given = sorted(asked.items())
    settings = {
        key: redact(value[:LONG]) if isinstance(value, str) else value
        for key, value in given[:MOST]
        if len(key) <= LONG_KEY
    }
    unknown = len(given) - len(settings)
    extra = {"unknown": unknown} if unknown else {}
    return {"settings": settings, **extra, "code": code_hash(), "policy": rules}


def _answer_fields(answer: Message) -> dict[str, Any]:
    """The records of an answer, or its failure."""
    if answer.has_error():
        error = answer.error
        rule = {"rule": error.rule} if isinstance(error, Failed) and error.rule else {}
        kind = Failure(error.code).outcome
        return {"failure": {"class": kind, "reason": error.reason, **rule}}
    records: list[dict[str, Any]] = []
    for name, record in answer.content.items():
        if isinstance(record, ArrayRecord):
            known = _label_of(name, answer.content).get(name.rpartition("/")[2])
            hash_ = known or hash_arrays(record)
            records.append({"name": name, "bytes": size_of(record), "sha256": hash_})
        else:
            records.append({"name": name, "values": {**record}})
    return {"left": records}


def _label_of(name: str, content: RecordDict) -> dict[str, str]:
    """The hashes on the label of a record's parcel. To hash 45 MB again would take 40 ms."""
    prefix = name.removesuffix(name.rpartition("/")[2])
    label = find_record(content, f"{prefix}manifest", ConfigRecord)
    return from_record(Manifest, label).hash_of if label else {}


def _hash(line: bytes) -> str:
    return hashlib.sha256(line).hexdigest()
