"""What a hospital knows of its ledger without reading it, in two files beside it.

    ledger.head      where it ends, and how much the store holds; with a code that follows from the
                     hospital's secret
    ledger.sqlite    said: hashes of what need not be written twice, such as the settings of a run
                     kept: files by which the hospital remembers what it has told

To look these up takes the same time however long the ledger is.
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
from client_app.authority.policy import MachineRules, PolicyError
from client_app.run import DAY, REMEMBERED
from client_app.store import GB, Store, disk_used, own_folder

TABLES = """
CREATE TABLE IF NOT EXISTS said (digest TEXT PRIMARY KEY) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS kept (file TEXT PRIMARY KEY, size INT, time REAL) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS lately ON kept (time);
"""
# Beside those of runs: the noise of figures, the spent ε, the embeddings that have left, and whom
# the hospital has trusted at first use, of whom it may remove some.
MEMBERS = "members"
KEPT = ("figures-secret", "privacy.jsonl", "embeddings/left", MEMBERS)
HOUR = 3600.0  # seconds after which the store is measured again, and files are
LONGEST = 2**20  # bytes of a line; what would need more does not leave
SECTOR = 512  # bytes that a disk writes whole or not at all


class BrokenLedger(ValueError):
    """A line of a ledger is not the one that was written there."""


@dataclass(frozen=True)
class Head:
    """The end of a ledger, and what the hospital's store holds.

    Attributes:
        lines: How many there are.
        start: Where the last one begins, in bytes,
        size: and where it ends.
        hash: Its SHA-256.
        kept: How many files are known by which the hospital remembers what it has told.
        used: Bytes that the store holds, as far as is known,
        counted: since it was measured, in seconds since 1970.
        most: Bytes that it may hold; 0 = it was never measured.
    """

    lines: int = 0
    start: int = 0
    size: int = 0
    hash: str = sha256(b"").hexdigest()
    kept: int = 0
    used: int = 0
    counted: float = 0.0
    most: float = 0.0


class Index:
    """The index of a ledger that is open.

    Args:
        path: The ledger.
        file: The same, open.
        rows: The tables.
    """

    def __init__(self, path: Path, file: FileIO, rows: sqlite3.Connection) -> None:
        self.path, self.file, self.rows = path, file, rows
        self._secret = path.with_name("figures-secret")
        self._head = path.with_suffix(".head")

    def head(self) -> Head:
        """The end of the ledger.

        Raises:
            BrokenLedger: The ledger does not end there, or somebody else has written this.
        """
        size = self.file.seek(0, os.SEEK_END)
        if not self._head.exists():
            if size:
                raise BrokenLedger(
                    f"Nothing says where it ends: {self._head.name} was deleted. Get that file "
                    "from a backup. Without one move the ledger to another folder, and keep it: a "
                    "new one begins."
                )
            return Head()
        known = self.rows.execute("SELECT count(*) FROM kept").fetchone()[0]
        try:
            written = json.loads(self._head.read_bytes()[:SECTOR])
            head = Head(**written["head"])
            right = self._secret.is_file() and written["code"] == self._code(head)
        except (ValueError, TypeError, KeyError, RecursionError):
            right = False
        if not right or known < head.kept:
            raise BrokenLedger(
                f"{self._head.name}, {index_of(self.path).name} or {self._secret.name} was changed "
                "or deleted. Get all three from a backup."
            )
        self.file.seek(head.start)
        last = self.file.read(head.size - head.start)
        if head.lines and sha256(last[:-1]).hexdigest() != head.hash:
            raise BrokenLedger(
                f"Line {head.lines} is not the last one that was written: it was changed, or lines "
                "are missing. Get the ledger from a backup."
            )
        if b"\n" in self.file.read(2 * LONGEST)[:-1]:
            raise BrokenLedger(f"Line {head.lines + 1} was not written by the hospital.")
        return head

    def move(self, head: Head) -> None:
        """Write the head to the disk, in one piece."""
        head = replace(head, kept=self.rows.execute("SELECT count(*) FROM kept").fetchone()[0])
        text = json.dumps({"head": asdict(head), "code": self._code(head)}).ljust(SECTOR - 1)
        file = os.open(self._head, os.O_WRONLY | os.O_CREAT, 0o600)
        try:
            os.pwrite(file, f"{text}\n".encode(), 0)
            os.fsync(file)
        finally:
            os.close(file)

    def _code(self, head: Head) -> str:
        """What only who knows the hospital's secret can write beside the head."""
        secret = secret_of(Store(self.path.parent))
        return hmac.digest(secret, repr(head).encode(), "sha256").hex()

    def is_new(self, digest: str) -> bool:
        """Whether something was not said before; from now on it was."""
        said = self.rows.execute("INSERT OR IGNORE INTO said VALUES (?)", (digest,))
        return said.rowcount > 0

    def remember(self, run: str) -> None:
        """Note the files by which the hospital remembers what it has told, once an hour."""
        now = time.time()
        for file in (*KEPT, *(f"runs/{run}/{name}" for name in REMEMBERED if run)):
            path = self.path.parent / file
            known = self.rows.execute("SELECT time FROM kept WHERE file = ?", (file,)).fetchone()
            if path.is_file() and not (known and now - HOUR < known[0] <= now):
                row = (file, 0 if file == MEMBERS else path.stat().st_size, now)
                self.rows.execute("REPLACE INTO kept VALUES (?, ?, ?)", row)

    def forgotten(self, run: str) -> str:
        """What is gone of the files that count now, and what to do; empty if all are there.

        Those of a run count in that run, and in all others for a day.
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
            until = time.strftime("%Y-%m-%d %H:%M", time.gmtime(when + lasts))
            cure = (
                f"no run is answered before {until} UTC, and that one never"
                if str(file).startswith("runs/")
                else f"move {self.path.parent} away, and keep it: the hospital begins anew"
            )
            return (
                f"{path} was deleted or cut: the hospital has forgotten what it told, and a server "
                f"could ask again. Get it from a backup. Without one {cure}."
            )
        return ""

    def make_room(self, machine: MachineRules, more: int) -> PolicyError | None:
        """What the policy refuses if a message of so many bytes would fill the store; else None.

        The store is measured once an hour, and whenever it seems full.

        Raises:
            BrokenLedger: Nothing tells how much it holds.
        """
        head, now, most = self.head(), time.time(), machine.max_disk_gb * GB
        used, fresh = head.used, now - HOUR < head.counted <= now
        if used + more > most or most != head.most or not fresh:
            used = disk_used(self.path.parents[1])
            self.move(replace(head, used=used, counted=now, most=most))
        if used + more <= most:
            return None
        allowed = f"{machine.max_disk_gb:g} or less"
        return PolicyError("machine.max-disk-gb", (used + more) / GB, allowed)


def index_of(path: Path) -> Path:
    """The tables of a ledger's index."""
    return path.with_suffix(".sqlite")


@contextmanager
def opened(path: Path) -> Iterator[Index]:
    """A ledger with its index, for one process at a time.

    Raises:
        OSError: One of them cannot be made or written.
        sqlite3.Error: The index is damaged.
    """
    own_folder(path.parent)
    with open(path, "ab+", buffering=0, opener=_private) as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        open(index_of(path), "ab", opener=_private).close()  # SQLite would let others read it
        with closing(sqlite3.connect(index_of(path), isolation_level=None)) as rows, rows:
            try:
                rows.executescript(TABLES)
            except UnicodeDecodeError as error:  # of a name of a table
                raise sqlite3.DatabaseError(str(error)) from error
            rows.execute("BEGIN IMMEDIATE")
            yield Index(path, file, rows)


def _private(path: str, flags: int) -> int:
    return os.open(path, flags, mode=0o600)
