"""Reading a ledger: the whole chain is verified on opening, and every error is one line for the site's owner."""

import functools
import math
import os
import sqlite3
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Self

from fedmest.site.ledger_entries import (
    FIRST_RECEIPT,
    Balance,
    Entry,
    LedgerDamaged,
    LedgerError,
    ReleaseEntry,
    Row,
    RunEntry,
    check_name,
    check_round,
    entry_of,
    receipt_of,
)

VERSION = 1
APPLICATION = 0x666D6C67  # in the file's header: "fmlg"
BUSY_TIMEOUT_S = 10.0  # to wait for another program's read or write to end
JOURNAL_MAGIC = bytes.fromhex("d9d505f920a163d7")
HEADER_BYTES = 28  # of a database or a journal, as far as they are read here
PAGE_ENTRIES = 100  # read at a time; no lock is held between pages

COLUMNS = "number, time, run, terms, round, query, request, charges, reply, failed, spent, receipt"
SCHEMA = (
    "CREATE TABLE entries (number INTEGER PRIMARY KEY, time REAL NOT NULL, run TEXT NOT NULL, terms TEXT, "
    "round INTEGER, query TEXT, request TEXT, charges TEXT, reply BLOB, failed INTEGER, "
    "spent REAL NOT NULL, receipt TEXT NOT NULL)",
    "CREATE UNIQUE INDEX openings ON entries (run) WHERE terms IS NOT NULL",
    "CREATE UNIQUE INDEX rounds ON entries (run, round) WHERE round IS NOT NULL",
)
HEAD = "SELECT number, receipt FROM entries ORDER BY number DESC LIMIT 1"

RESTORE = "keep it, and restore a copy that holds the last receipts (fedmest ledger verify COPY --receipt HEX)"
WRITABLE = "let the vault's user read and write the file and its folder"
SQLITE_ERRORS = {  # what to tell the owner; any other is damage
    sqlite3.SQLITE_FULL: ("found the disk full, and nothing was released", "free some space and ask again"),
    sqlite3.SQLITE_BUSY: (f"was held by another program for {BUSY_TIMEOUT_S:.0f} s", "let that end and ask again"),
    sqlite3.SQLITE_READONLY: ("may not be written", WRITABLE),
    sqlite3.SQLITE_CANTOPEN: ("cannot be opened", WRITABLE),
    sqlite3.SQLITE_IOERR: ("met a disk error", "fix the disk and start the vault again"),
    sqlite3.SQLITE_NOTADB: ("is not a ledger, or its beginning is damaged", "check the path"),
}
TRANSIENT = (sqlite3.SQLITE_FULL, sqlite3.SQLITE_BUSY, sqlite3.SQLITE_TOOBIG)  # over once they are rolled back


class LedgerReader:
    """A ledger for reading, verified from the first entry to the last; a vault may be writing to it.

    What a vault adds meanwhile is not seen. Where a killed vault left a write unfinished, opening rolls it back, as the
    next vault would; nothing else is ever changed.

    Parameters
    ----------
    path : str or Path
        The ledger's file.

    Raises
    ------
    LedgerError
        If there is no such file, or it is not a ledger.
    LedgerDamaged
        If the file is not what was written to it.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path).resolve()
        self._guard = threading.RLock()
        self._balance = Balance()
        self._head = 0, FIRST_RECEIPT
        self._time = 0.0
        self._broken = ""
        self._connection: sqlite3.Connection | None = None
        try:
            with self._translating_errors():
                self._open()
                self._verify()
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the file; more than once does no harm."""
        with self._guard:
            if self._connection is not None:
                self._connection.close()
                self._connection = None

    def __len__(self) -> int:
        """Number of entries in the chain, openings of runs included."""
        return self._head[0]

    def spent_mu(self, run: str | None = None) -> float:
        """mu that a run, or the whole site, has spent so far."""
        with self._guard:
            return math.sqrt(self._balance.total if run is None else max(self._balance.of(run)))

    def chain(self) -> Iterator[Entry]:
        """All entries, in the order of writing."""
        return map(entry_of, self._rows())

    def entries(self, run: str | None = None) -> Iterator[ReleaseEntry]:
        """The releases, in the order of writing."""
        found = self._rows() if run is None else self._rows("run = ?", run)
        return (entry for entry in map(entry_of, found) if isinstance(entry, ReleaseEntry))

    def runs(self) -> list[RunEntry]:
        """The runs, in the order of opening."""
        return [entry for entry in map(entry_of, self._rows("terms IS NOT NULL")) if isinstance(entry, RunEntry)]

    def find(self, run: str, round: int) -> ReleaseEntry | None:
        """The release of a round, or None where there was none."""
        check_round(run, round)
        entry = self._one("run = ? AND round = ?", run, round)
        return entry if isinstance(entry, ReleaseEntry) else None

    def spec(self, run: str) -> str | None:
        """The spec that a run was opened with, or None where it was not."""
        check_name("the run", run)
        entry = self._one("run = ? AND terms IS NOT NULL", run)
        return entry.spec if isinstance(entry, RunEntry) else None

    def find_receipt(self, receipt: str) -> Entry | None:
        """The entry with this receipt, or None where the chain does not hold it."""
        return self._one("receipt = ?", receipt)

    # -- opening ---------------------------------------------------------------------------------------------

    def _open(self) -> None:
        """Connect, able to roll back what a killed vault left unfinished, and to change nothing else."""
        self._connect()
        self._db.execute("PRAGMA query_only = ON")

    def _connect(self) -> None:
        if not self.path.is_file():
            found = "is not a file" if self.path.exists() else "does not exist"
            raise LedgerError(f"ledger {self.path} {found}; check the path")
        if self.path.stat().st_size == 0:  # SQLite would take it for new, and the budget for unspent
            raise LedgerDamaged(f"ledger {self.path} is empty; {RESTORE}")
        self._check_one_name()
        self._check_journal()
        self._connection = sqlite3.connect(
            f"{self.path.as_uri()}?mode=rw",
            uri=True,
            isolation_level=None,
            timeout=BUSY_TIMEOUT_S,
            check_same_thread=False,
        )
        self._connection.text_factory = lambda text: text.decode("utf-8", "surrogateescape")  # the chain finds it
        self._connection.execute("PRAGMA trusted_schema = OFF")

    def _check_one_name(self) -> None:
        """Refuse a file with a second name: SQLite names the journal after the path, and would not find it."""
        if (names := self.path.stat().st_nlink) != 1:
            raise LedgerError(
                f"ledger {self.path} has {names} names (hard links), and a journal belongs to one of them; remove the "
                "others, and make copies with cp"
            )

    def _check_journal(self) -> None:
        """Refuse a journal that a vault left here before the ledger went on elsewhere: it would undo charges.

        Every write of SQLite adds 1 to a counter in the file, and the journal holds the count from before its write.
        The journal of an unfinished write is at most one behind, also while a vault is writing. Opening a ledger for
        writing counts as a write, so a ledger that has charged under another name is two ahead or more.
        """
        journal = self.path.with_name(f"{self.path.name}-journal")
        if not journal.exists():
            return
        found = self.path.stat()
        descriptor = _descriptor(self.path, found.st_dev, found.st_ino)
        before = _counter(os.pread(descriptor, HEADER_BYTES, 0))
        try:
            kept, pages = _journaled(journal)
        except FileNotFoundError:  # the vault has finished its write
            return
        after = _counter(os.pread(descriptor, HEADER_BYTES, 0))
        ours = found.st_size <= pages if kept is None else before - 1 <= kept <= after
        if not ours:
            raise LedgerError(
                f"ledger {self.path}: {journal.name} is not of its last write, and would undo others (was the ledger "
                "used under another name, or replaced?); move the journal away, then compare with the last receipt "
                "(fedmest ledger verify LEDGER --receipt HEX)"
            )

    def _verify(self) -> None:
        """Check the format of the file, then follow the chain and add up the costs."""
        version = int(self._db.execute("PRAGMA user_version").fetchone()[0])
        if self._db.execute("PRAGMA application_id").fetchone()[0] != APPLICATION:
            raise LedgerError(f"{self.path} is an SQLite file but not a ledger; check the path")
        if version > VERSION:
            raise LedgerError(f"ledger {self.path} has format {version} and not {VERSION}; install a newer fedmest")
        problem = self._db.execute("PRAGMA integrity_check(1)").fetchone()[0]
        if problem != "ok":
            raise LedgerDamaged(f"ledger {self.path} is damaged ({problem}); {RESTORE}")
        found = {row[0] for row in self._db.execute("SELECT sql FROM sqlite_master")}
        if found != set(SCHEMA) or version != VERSION:  # a trigger could undo charges
            raise LedgerDamaged(f"ledger {self.path}: its tables are not as fedmest made them; {RESTORE}")
        last = self._db.execute(HEAD).fetchone() or self._head
        for row in self._rows(last=last[0]):
            try:
                self._check_next(row)
            except LedgerDamaged as broken:
                raise LedgerDamaged(f"ledger {self.path}: {broken}; {RESTORE}") from broken

    def _check_next(self, row: Row) -> None:
        """Count the next entry of the chain, if it is the next."""
        number = self._head[0] + 1
        if row[0] != number:
            raise LedgerDamaged(f"entry {number} is missing" if row[0] > number else f"entry {row[0]} has no place")
        try:
            genuine = row[-1] == receipt_of(self._head[1], row[:-1])
            entry = entry_of(row)
        except (LedgerError, AttributeError, TypeError, ValueError) as error:  # values of other types
            raise LedgerDamaged(f"entry {number} is not what was written") from error
        name = f"entry {number} (run {entry.run!r})"
        if not genuine:
            raise LedgerDamaged(f"{name} is not what was written")
        if entry.time < self._time:
            raise LedgerDamaged(f"{name} is older than the one before it")
        if isinstance(entry, RunEntry) == (entry.run in self._balance.halves):
            raise LedgerDamaged(f"{name} opens a run twice, or belongs to one that was not opened")
        self._count(entry)
        if entry.spent_mu != self.spent_mu():
            raise LedgerDamaged(
                f"{name} says that mu = {entry.spent_mu!r} was spent in all, but it was {self.spent_mu()!r}"
            )

    def _count(self, entry: Entry) -> None:
        """Add an entry of the file to the balance."""
        charges = entry.charges if isinstance(entry, ReleaseEntry) else ()
        self._balance.halves[entry.run], self._balance.total = self._balance.after(entry.run, charges)
        self._head, self._time = (entry.number, entry.receipt), entry.time

    # -- reading ---------------------------------------------------------------------------------------------

    @property
    def _db(self) -> sqlite3.Connection:
        if self._connection is None:
            raise LedgerError(f"ledger {self.path} is closed; open it again")
        return self._connection

    def _one(self, where: str, *values: object) -> Entry | None:
        query = f"SELECT {COLUMNS} FROM entries WHERE {where} AND +number <= ?"  # plus: look it up by its index
        with self._guard, self._translating_errors():
            row = self._db.execute(query, (*values, self._head[0])).fetchone()
        return None if row is None else entry_of(row)

    def _rows(self, where: str = "TRUE", *values: object, last: int | None = None) -> Iterator[Row]:
        """Rows up to the last that this object knows, a page at a time."""
        query = f"SELECT {COLUMNS} FROM entries WHERE {where} AND number >= ? AND number <= ? ORDER BY number LIMIT ?"
        number, end = -(2**63), self._head[0] if last is None else last
        while True:
            with self._guard, self._translating_errors():
                page = self._db.execute(query, (*values, number, end, PAGE_ENTRIES)).fetchall()
            yield from page
            if len(page) < PAGE_ENTRIES:
                return
            number = page[-1][0] + 1

    @contextmanager
    def _translating_errors(self) -> Iterator[None]:
        """Turn errors of SQLite and the disk into a line for the owner; after most the file must be reopened."""
        if self._broken:
            raise LedgerError(self._broken)
        try:
            yield
        except sqlite3.Error as error:
            code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR) & 0xFF
            kind = LedgerError if code in SQLITE_ERRORS else LedgerDamaged
            what, way_out = SQLITE_ERRORS.get(code, ("is damaged", RESTORE))
            line = f"ledger {self.path} {what} ({error}); {way_out}"
            if code not in TRANSIENT:
                self._broken = line
            raise kind(line) from error
        except OSError as error:
            raise LedgerError(f"ledger {self.path}: {(error.strerror or str(error)).lower()}; {WRITABLE}") from error


# -- SQLite's files, byte by byte (https://www.sqlite.org/fileformat2.html) -------------------------------------


@functools.cache
def _descriptor(path: Path, device: int, number: int) -> int:
    """The file, open for reading and never closed: closing it would drop the locks that SQLite has in this process."""
    return os.open(path, os.O_RDONLY)


def _counter(page: bytes) -> int:
    """How often a database was written, from its first page."""
    return int.from_bytes(page[24:28], "big")


def _journaled(journal: Path) -> tuple[int | None, int]:
    """The counter before the write that a journal can undo, and the bytes that the database had then.

    A vault's journal has the first page before any page of the database is written. Where it does not have that page
    yet, the counter is None, and undoing only cuts the file to these bytes; -1 where it undoes pages all the same. What
    is not a journal undoes nothing, and no file is too long for it.
    """
    with journal.open("rb") as file:
        header = file.read(HEADER_BYTES)
        if len(header) < HEADER_BYTES or not header.startswith(JOURNAL_MAGIC):
            return None, sys.maxsize
        synced, _, pages, sector, page = (int.from_bytes(header[k : k + 4], "big") for k in range(8, 28, 4))
        record = 4 + page + 4  # number, content, checksum
        whole = max(os.fstat(file.fileno()).st_size - sector, 0) // record
        for place in range(min(synced or whole, whole)):
            file.seek(sector + place * record)
            head = file.read(4 + HEADER_BYTES)
            if head[:4] == b"\0\0\0\1":
                return _counter(head[4:]), pages * page
        return (-1 if synced else None), pages * page
