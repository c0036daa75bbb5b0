"""The index of a ledger, in two files beside the ledger.

    ledger.head      the end of the ledger and the size of the store, with an authentication code
                     made with the hospital's secret
    ledger.sqlite    said: hashes of entries that are written once, such as the settings of a run
                     kept: the files with the hospital's record of earlier answers

A look-up takes the same time for a short and a long ledger.
"""

import fcntl
import hmac
import json
import os
import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import asdict, dataclass, replace
from hashlib import sha256
from io import FileIO
from pathlib import Path

from client_app.authority.identity import secret_of
from client_app.authority.node_config import OwnError
from client_app.authority.policy import MachineRules, PolicyError
from client_app.run import DAY, REMEMBERED
from client_app.store import GB, Store, disk_used, own_folder
from strategies.protocol.files import check_kind, open_at_once, read_bytes, write_whole
from strategies.protocol.shapes import MOST_VALUES

TABLES = """
CREATE TABLE IF NOT EXISTS said (digest TEXT PRIMARY KEY) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS kept (file TEXT PRIMARY KEY, size INT, time REAL) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS lately ON kept (time);
"""
# The files outside of runs: the secret for the noise of figures, the spent ε, the embeddings that
# have left, and the members trusted at first use (this file may shrink: members can be removed).
MEMBERS = "members"
KEPT = ("figures-secret", "privacy.jsonl", "embeddings/left", MEMBERS)
HOUR = 3600.0  # seconds after which the store and the kept files are measured again
# Bytes of a line; an answer with a longer line does not leave. Details of 20 models with 20 classes
# take 1.3 MB. A line of so many bytes never has more values than are read.
LONGEST = MOST_VALUES
SECTOR = 512  # bytes; a disk writes a sector whole or not at all


class BrokenLedger(ValueError):
    """A ledger, or its index, was changed."""


@dataclass(frozen=True)
class Head:
    """The end of a ledger, and the size of the hospital's store."""

    lines: int = 0  # the number of lines
    start: int = 0  # the start of the last line, in bytes
    size: int = 0  # the end of the last line, in bytes
    hash: str = sha256(b"").hexdigest()  # SHA-256 of the last line
    kept: int = 0  # the least number of files in the table `kept`
    used: int = 0  # the estimated size of the store, in bytes
    counted: float = 0.0  # the time of the last measurement of the store, in seconds since 1970
    most: float = 0.0  # the largest allowed size of the store, in bytes; 0 = never measured


class Index:
    """The index of an open ledger."""

    def __init__(self, path: Path, file: FileIO, rows: sqlite3.Connection) -> None:
        self.path, self.file, self.rows = path, file, rows
        self._secret = path.with_name("figures-secret")
        self._head = path.with_suffix(".head")

    def head(self) -> Head:
        """The end of the ledger.

        Raises:
            BrokenLedger: The ledger does not end there, or the head is not the hospital's.
            OwnError: The hospital's secret cannot be used.
        """
        size = self.file.seek(0, os.SEEK_END)
        known = self._count("kept")
        if not (self._head.exists() or size or known or self._count("said")):
            # Written whole before the first line: after a full disk the hospital can go on.
            write_whole(self._head, self._signed(Head()), private=True)
            return Head()
        try:
            written = json.loads(read_bytes(self._head)[:SECTOR])
            head = Head(**written["head"])
            right = self._secret.is_file() and written["code"] == self._code(head)
        except OwnError:  # of the secret: the ledger is not broken
            raise
        except (FileNotFoundError, ValueError, TypeError, KeyError, RecursionError):
            right = False
        if not right or known < head.kept:
            raise BrokenLedger(
                f"{self._head.name}, {index_of(self.path).name} or {self._secret.name} was changed "
                "or deleted. Restore all three from a backup."
            )
        self.file.seek(head.start)
        last = self.file.read(head.size - head.start)
        if head.lines and sha256(last[:-1]).hexdigest() != head.hash:
            raise BrokenLedger(
                f"Line {head.lines} is not the last line that was written: it was changed, or "
                "lines are missing. Restore the ledger from a backup."
            )
        if b"\n" in self.file.read(2 * LONGEST)[:-1]:
            raise BrokenLedger(f"Line {head.lines + 1} was not written by the hospital.")
        return replace(head, kept=known)

    def move(self, head: Head) -> None:
        """Write the head to the disk, in one piece.

        The rows of this message are not yet on the disk, so `head.kept` must not count them.
        """
        file = os.open(self._head, os.O_WRONLY)
        try:
            os.pwrite(file, self._signed(head), 0)
            os.fsync(file)
        finally:
            os.close(file)

    def _signed(self, head: Head) -> bytes:
        text = json.dumps({"head": asdict(head), "code": self._code(head)})
        return f"{text.ljust(SECTOR - 1)}\n".encode()

    def _count(self, table: str) -> int:
        return int(self.rows.execute(f"SELECT count(*) FROM {table}").fetchone()[0])

    def _code(self, head: Head) -> str:
        """The authentication code of a head (HMAC-SHA256 with the hospital's secret)."""
        secret = secret_of(Store(self.path.parent))
        return hmac.digest(secret, repr(head).encode(), "sha256").hex()

    def is_new(self, digest: str) -> bool:
        """Whether a hash is new in the table `said`; it is added."""
        added = self.rows.execute("INSERT OR IGNORE INTO said VALUES (?)", (digest,))
        return added.rowcount > 0

    def remember(self, run: str) -> None:
        """Note the files with the hospital's record of earlier answers, once an hour.

        A size only grows: this runs also after `query.live`, for which no file is compared.
        """
        now = time.time()
        for file in (*KEPT, *(f"runs/{run}/{name}" for name in REMEMBERED if run)):
            path = self.path.parent / file
            known = self.rows.execute(
                "SELECT CAST(time AS REAL) FROM kept WHERE file = ?", (file,)
            ).fetchone()
            if path.is_file() and not (known and now - HOUR < known[0] <= now):
                row = (file, 0 if file == MEMBERS else path.stat().st_size, now)
                self.rows.execute(
                    "INSERT INTO kept VALUES (?, ?, ?) ON CONFLICT (file) DO UPDATE "
                    "SET size = max(size, excluded.size), time = excluded.time",
                    row,
                )

    def find_missing(self, run: str) -> str:
        """The first noted file that is missing or shorter, with the cure; empty if none is.

        Files of a run count in that run, and for a day in all other runs.
        """
        lasts = DAY + HOUR
        found = self.rows.execute(
            "SELECT file, CAST(size AS INT), CAST(time AS REAL) FROM kept "
            f"WHERE file IN {KEPT} OR time > ? OR file BETWEEN ? AND ?",
            (time.time() - lasts, f"runs/{run}/", f"runs/{run}/~"),
        )
        for file, size, when in found.fetchall():
            path = self.path.parent / str(file)
            if path.is_file() and path.stat().st_size >= size:
                continue
            noted = max(0.0, min(when, time.time()))  # a damaged row may have any time
            until = time.strftime("%Y-%m-%d %H:%M", time.gmtime(noted + lasts))
            cure = (
                f"the hospital answers no run before {until} UTC, and that run never"
                if str(file).startswith("runs/")
                else f"move {self.path.parent} away, and keep it: the hospital starts anew"
            )
            return (
                f"{path} was deleted or cut: the record of earlier answers is lost, and a server "
                f"could ask again. Restore it from a backup. Without a backup {cure}."
            )
        return ""

    def make_room(self, machine: MachineRules, more: int, anew: bool) -> PolicyError | None:
        """The policy's refusal if `more` bytes would overfill the store; None otherwise.

        The store is measured once an hour, whenever it seems full, and with `anew`.
        """
        head, now, most = self.head(), time.time(), machine.max_disk_gb * GB
        used, fresh = head.used, not anew and now - HOUR < head.counted <= now
        if used + more > most or most != head.most or not fresh:
            used = disk_used(self.path.parents[1])
            self.move(replace(head, used=used, counted=now, most=most))
        if used + more <= most:
            return None
        ruling = machine.ruling("max-disk-gb", (used + more) / GB)
        return PolicyError(ruling.rule, ruling.requested, ruling.allowed)


def index_of(path: Path) -> Path:
    """The tables of a ledger's index."""
    return path.with_suffix(".sqlite")


@contextmanager
def open_index(path: Path) -> Iterator[Index]:
    """Open a ledger with its index, for one process at a time.

    Raises:
        OSError: A file cannot be made or written.
        sqlite3.Error: The index is damaged.
    """
    own_folder(path.parent)
    with open(path, "ab+", buffering=0, opener=open_at_once) as file:
        check_kind(file, path)
        fcntl.flock(file, fcntl.LOCK_EX)
        open(index_of(path), "ab", opener=open_at_once).close()  # SQLite would let others read it
        with closing(sqlite3.connect(index_of(path), isolation_level=None)) as rows, rows:
            try:
                rows.executescript(TABLES)
            except UnicodeDecodeError as error:  # a table has a damaged name
                raise sqlite3.DatabaseError(str(error)) from error
            rows.execute("BEGIN IMMEDIATE")
            yield Index(path, file, rows)
