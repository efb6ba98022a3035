"""What has left a site and what it cost: one SQLite file that only grows, written before a reply can leave.

Prices are mu of Gaussian differential privacy and compose as the root of the sum of their squares. Within a run a row
is in the first or in the second half of the site, never in both, so the dearer half is what the run costs; halves are
drawn anew in every run, so runs add up. Squares are summed exactly: their order does not matter and nothing drifts.
Limits are compared with a slack of one part in 1e9, for budgets that were split with rounding; it does not build up,
because totals are compared, not steps.

Every entry carries a hash over itself and the hash before it, its receipt. A changed, missing or moved entry breaks the
chain. Cutting off the end does not, nor does restoring an old copy, and whoever may write the file can make a new
chain. So receipts leave the site with the replies: one that the chain does not hold proves that it is not the old one.

A rollback journal, not a write-ahead log: five syncs a release instead of one, but all that was ever committed is in
the one file. A copy of it is a backup, and no file beside it can take charges along when it is lost.
"""

import fcntl
import hashlib
import json
import math
import os
import re
import sqlite3
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from fractions import Fraction
from pathlib import Path
from typing import Any, Self

VERSION = 1
APPLICATION = 0x666D6C67  # in the file's header: "fmlg"
SLACK = 1 + Fraction(1, 10**9)
START = "0" * 64  # what the first entry follows
PATIENCE = 10.0  # seconds to wait for another program's read or write to end
PAGE = 100  # entries read at a time; no lock is held between pages
YEAR_10000 = 253402300800.0

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
OTHERS = "was changed by another program; end that, and start the vault again"
FAULTS = {  # of SQLite: what to tell the owner; any other is damage
    sqlite3.SQLITE_FULL: ("found the disk full, and nothing was released", "make room and ask again"),
    sqlite3.SQLITE_BUSY: (f"was held by another program for {PATIENCE:.0f} s", "let that end and ask again"),
    sqlite3.SQLITE_READONLY: ("may not be written", WRITABLE),
    sqlite3.SQLITE_CANTOPEN: ("cannot be opened", WRITABLE),
    sqlite3.SQLITE_IOERR: ("met a fault of the disk", "mend the disk and start the vault again"),
    sqlite3.SQLITE_NOTADB: ("is not a ledger, or its beginning is damaged", "check the path"),
}
PASSING = (sqlite3.SQLITE_FULL, sqlite3.SQLITE_BUSY, sqlite3.SQLITE_TOOBIG)  # faults that rolling back leaves behind

Row = tuple[Any, ...]
Halves = tuple[Fraction, Fraction]


class LedgerError(Exception):
    """One line for the site's owner: what is wrong, and the way out. A reply that it holds up must not leave."""


class OverBudget(LedgerError):
    """A release that the run's or the site's budget does not allow."""


class Damaged(LedgerError):
    """The file does not say any more what was written to it."""


@dataclass(frozen=True)
class Charge:
    """One value that leaves: what it is, which part of the rows it reads ("all", "first", "second"), its price."""

    what: str
    part: str
    mu: float

    def __post_init__(self) -> None:
        _check_name("what leaves", self.what)
        if self.part not in ("all", "first", "second"):
            raise LedgerError(f"{self.what}: {self.part!r} is no part of the rows; name all, first or second")
        if isinstance(self.mu, bool) or not isinstance(self.mu, int | float) or not 1e-100 < self.mu < 1e100:
            raise LedgerError(f"{self.what}: mu = {self.mu!r} is no price; name a positive number")


@dataclass(frozen=True)
class Opening:
    """The entry that opens a run, under terms that bind all of it."""

    number: int
    time: float
    run: str
    terms: str
    spent: float
    receipt: str


@dataclass(frozen=True)
class Entry:
    """A release: what was asked and what left for it. `spent` is the site's total with it, `receipt` its chain hash.

    `request` is the hex digest of all that the server sent; `failed` says that the price bought no useful reply.
    """

    number: int
    time: float
    run: str
    round: int
    query: str
    request: str
    charges: tuple[Charge, ...]
    reply: bytes = field(repr=False)
    failed: bool
    spent: float
    receipt: str

    @property
    def mu(self) -> float:
        """The price of this release by itself."""
        return cost(self.charges)


def cost(charges: Iterable[Charge]) -> float:
    """The mu of releases within one run.

    >>> cost([Charge("gradient", "second", 4.0), Charge("curvature", "first", 3.0), Charge("norms", "all", 3.0)])
    5.0
    """
    return math.sqrt(max(_add((Fraction(0), Fraction(0)), charges)))


def left(limit: float, spent: float) -> float:
    """The mu that a release on all rows may still cost.

    >>> left(5.0, 3.0)
    4.0
    """
    return math.sqrt(max((limit - spent) * (limit + spent), 0.0))


def digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def stamp(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat(" ", "seconds").replace("+00:00", "Z")


class Balance:
    """The squares of what rows have paid: by run, of its first and of its second half; and of the site."""

    def __init__(self) -> None:
        self.halves: dict[str, Halves] = {}
        self.total = Fraction(0)

    def of(self, run: str) -> Halves:
        return self.halves.get(run, (Fraction(0), Fraction(0)))

    def after(self, run: str, charges: Iterable[Charge]) -> tuple[Halves, Fraction]:
        """The run's halves and the site's total as they would be with these charges."""
        halves = _add(self.of(run), charges)
        return halves, self.total - max(self.of(run)) + max(halves)


class Records:
    """A ledger as it stands, for reading, proved from the first entry to the last; a vault may be writing to it.

    What a vault adds meanwhile stays out. Where a killed vault left a write unfinished, opening takes it back, as the
    next vault would; nothing else is ever changed.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path).resolve()
        self._guard = threading.RLock()
        self._balance = Balance()
        self._head = 0, START
        self._time = 0.0
        self._broken = ""
        self._connection: sqlite3.Connection | None = None
        try:
            with self._explained():
                self._open()
                self._prove()
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def close(self) -> None:
        with self._guard:
            if self._connection is not None:
                self._connection.close()
                self._connection = None

    def __len__(self) -> int:
        """Entries in the chain, openings of runs among them."""
        return self._head[0]

    def spent(self, run: str | None = None) -> float:
        """The mu that a run, or the whole site, has paid so far."""
        with self._guard:
            return math.sqrt(self._balance.total if run is None else max(self._balance.of(run)))

    def chain(self) -> Iterator[Opening | Entry]:
        """Everything, in the order of writing."""
        return map(_read, self._rows())

    def entries(self, run: str | None = None) -> Iterator[Entry]:
        """The releases, in the order of writing."""
        found = self._rows() if run is None else self._rows("run = ?", run)
        return (entry for entry in map(_read, found) if isinstance(entry, Entry))

    def runs(self) -> list[Opening]:
        """The runs, in the order of opening."""
        return [entry for entry in map(_read, self._rows("terms IS NOT NULL")) if isinstance(entry, Opening)]

    def find(self, run: str, round: int) -> Entry | None:
        """The release of a round, or None where there was none."""
        _check_round(run, round)
        entry = self._one("run = ? AND round = ?", run, round)
        return entry if isinstance(entry, Entry) else None

    def terms(self, run: str) -> str | None:
        """What the run was opened under, or None where it was not."""
        _check_name("the run", run)
        entry = self._one("run = ? AND terms IS NOT NULL", run)
        return entry.terms if isinstance(entry, Opening) else None

    def holding(self, receipt: str) -> Opening | Entry | None:
        """The entry with this receipt, or None where the chain does not hold it."""
        return self._one("receipt = ?", receipt)

    # -- opening ---------------------------------------------------------------------------------------------

    def _open(self) -> None:
        """Connect, able to take back what a killed vault left unfinished, and to change nothing else."""
        self._connect()
        self._db.execute("PRAGMA query_only = ON")

    def _connect(self) -> None:
        if not self.path.is_file():
            found = "is not a file" if self.path.exists() else "does not exist"
            raise LedgerError(f"ledger {self.path} {found}; check the path")
        if self.path.stat().st_size == 0:  # SQLite would take it for a new one, and the budget for unspent
            raise Damaged(f"ledger {self.path} is empty; {RESTORE}")
        self._connection = sqlite3.connect(
            f"{self.path.as_uri()}?mode=rw", uri=True, isolation_level=None, timeout=PATIENCE, check_same_thread=False
        )
        self._connection.text_factory = lambda text: text.decode("utf-8", "surrogateescape")  # the chain tells
        self._connection.execute("PRAGMA trusted_schema = OFF")

    def _prove(self) -> None:
        """Check the form of the file, then follow the chain and add up the prices."""
        version = int(self._db.execute("PRAGMA user_version").fetchone()[0])
        if self._db.execute("PRAGMA application_id").fetchone()[0] != APPLICATION:
            raise LedgerError(f"{self.path} is an SQLite file but no ledger; check the path")
        if version > VERSION:
            raise LedgerError(f"ledger {self.path} has format {version} and not {VERSION}; install a newer fedmest")
        fault = self._db.execute("PRAGMA integrity_check(1)").fetchone()[0]
        if fault != "ok":
            raise Damaged(f"ledger {self.path} is damaged ({fault}); {RESTORE}")
        found = {row[0] for row in self._db.execute("SELECT sql FROM sqlite_master")}
        if found != set(SCHEMA) or version != VERSION:  # a trigger could undo charges
            raise Damaged(f"ledger {self.path}: its tables are not as fedmest made them; {RESTORE}")
        last = self._db.execute(HEAD).fetchone() or self._head
        for row in self._rows(last=last[0]):
            try:
                self._follow(row)
            except Damaged as broken:
                raise Damaged(f"ledger {self.path}: {broken}; {RESTORE}") from broken

    def _follow(self, row: Row) -> None:
        """Take the next entry of the chain, if it is one."""
        number = self._head[0] + 1
        if row[0] != number:
            raise Damaged(f"entry {number} is missing" if row[0] > number else f"entry {row[0]} has no place")
        try:
            genuine = row[-1] == _receipt(self._head[1], row[:-1])
            entry = _read(row)
        except (LedgerError, AttributeError, TypeError, ValueError) as fault:  # values of other kinds
            raise Damaged(f"entry {number} is not what was written") from fault
        name = f"entry {number} (run {entry.run!r})"
        if not genuine:
            raise Damaged(f"{name} is not what was written")
        if entry.time < self._time:
            raise Damaged(f"{name} is older than the one before it")
        if isinstance(entry, Opening) == (entry.run in self._balance.halves):
            raise Damaged(f"{name} opens a run twice, or belongs to one that was not opened")
        self._take(entry)
        if entry.spent != self.spent():
            raise Damaged(f"{name} says that mu = {entry.spent!r} was spent in all, but it was {self.spent()!r}")

    def _take(self, entry: Opening | Entry) -> None:
        """Count an entry that is in the file."""
        charges = entry.charges if isinstance(entry, Entry) else ()
        self._balance.halves[entry.run], self._balance.total = self._balance.after(entry.run, charges)
        self._head, self._time = (entry.number, entry.receipt), entry.time

    # -- reading ---------------------------------------------------------------------------------------------

    @property
    def _db(self) -> sqlite3.Connection:
        if self._connection is None:
            raise LedgerError(f"ledger {self.path} is closed; open it again")
        return self._connection

    def _one(self, where: str, *values: object) -> Opening | Entry | None:
        query = f"SELECT {COLUMNS} FROM entries WHERE {where} AND +number <= ?"  # plus: look it up by its index
        with self._guard, self._explained():
            row = self._db.execute(query, (*values, self._head[0])).fetchone()
        return None if row is None else _read(row)

    def _rows(self, where: str = "TRUE", *values: object, last: int | None = None) -> Iterator[Row]:
        """Entries up to the last that this object knows, a page at a time."""
        query = f"SELECT {COLUMNS} FROM entries WHERE {where} AND number >= ? AND number <= ? ORDER BY number LIMIT ?"
        number, end = -(2**63), self._head[0] if last is None else last
        while True:
            with self._guard, self._explained():
                page = self._db.execute(query, (*values, number, end, PAGE)).fetchall()
            yield from page
            if len(page) < PAGE:
                return
            number = page[-1][0] + 1

    @contextmanager
    def _explained(self) -> Iterator[None]:
        """Faults of SQLite and the disk become a line for the owner; after most of them the file must be reopened."""
        if self._broken:
            raise LedgerError(self._broken)
        try:
            yield
        except sqlite3.Error as error:
            code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR) & 0xFF
            kind = LedgerError if code in FAULTS else Damaged
            what, way_out = FAULTS.get(code, ("is damaged", RESTORE))
            line = f"ledger {self.path} {what} ({error}); {way_out}"
            if code not in PASSING:
                self._broken = line
            raise kind(line) from error
        except OSError as error:
            raise LedgerError(f"ledger {self.path}: {(error.strerror or str(error)).lower()}; {WRITABLE}") from error


class Ledger(Records):
    """The ledger as its one vault holds it. A second vault is refused; the lock beside the file ends with the process.

    Opening proves the whole chain, and that the file can be written. A file that is not there is made, unless `create`
    is off, so that a mistaken path or a disk that is not mounted cannot pass for an unspent budget. `clock_slack` is
    how far, in seconds, the clock may stand behind the last entry. Threads may share the object; forks may not.
    """

    def __init__(
        self, path: str | Path, clock: Callable[[], float] = time.time, *,
        create: bool = True, clock_slack: float = 60.0,
    ) -> None:  # fmt: skip
        self._clock = clock
        self._create = create
        self._clock_slack = clock_slack
        self._lock: int | None = None
        super().__init__(path)

    def close(self) -> None:
        with self._guard:
            super().close()
            if self._lock is not None:
                os.close(self._lock)
                self._lock = None

    def open_run(self, run: str, terms: str) -> None:
        """Let a run begin, or go on under the terms that it began with."""
        if not isinstance(terms, str) or not _is_unicode(terms):
            raise LedgerError(f"run {run!r}: its terms are not text; send text")
        with self._guard:
            known = self.terms(run)
            if known is not None and known != terms:
                raise LedgerError(f"run {run!r} was opened under other terms; begin a new run for these")
            if known is None:
                with self._transaction():
                    entry = self._write((run, terms, None, None, None, None, None, None, self.spent()))
                self._take(entry)

    def afford(self, run: str, charges: Iterable[Charge], *, lifetime: float, limit: float) -> Fraction:
        """OverBudget where a release would be beyond a limit; else the square of what the site would have paid.

        For asking before rows are read: refusals are free, and how long one takes should not depend on rows.
        """
        with self._guard:
            charges = tuple(charges)
            halves, total = self._balance.after(run, charges)
            _check_limit(f"run {run!r}", limit, self.spent(run), charges, max(halves))
            _check_limit("the site", lifetime, self.spent(), charges, total)
            return total

    def release(
        self, run: str, round: int, query: str, request: str, charges: Iterable[Charge], reply: bytes, *,
        lifetime: float, limit: float, failed: bool = False,
    ) -> Entry:  # fmt: skip
        """Charge for a reply and store both, so that it may leave once this has returned.

        `limit` is the most that the run may cost and `lifetime` the most that the site may, this release included. All
        of it is one transaction, on the disk before this returns. When it raises, the reply must not leave; nothing was
        written then, except that a failing disk may have kept the whole entry: it is paid for, and found on reopening.
        """
        _check_round(run, round)
        charges, name = tuple(charges), f"run {run!r}, round {round}"
        _check_name(f"{name}: the query", query)
        if not charges:
            raise LedgerError(f"{name}: a release without a price; name what leaves")
        if not isinstance(request, str) or not re.fullmatch("[0-9a-f]{32,128}", request):
            raise LedgerError(f"{name}: the digest {request!r} of the request is not in hex; send one that is")
        if not isinstance(reply, bytes):
            raise LedgerError(f"{name}: the reply is not bytes; encode it first")
        with self._guard:
            with self._transaction():
                if run not in self._balance.halves:
                    raise LedgerError(f"{name}: the run was not opened; open it first")
                if self.find(run, round) is not None:
                    raise LedgerError(f"{name} was released before; send what is stored")
                total = self.afford(run, charges, lifetime=lifetime, limit=limit)
                prices = json.dumps([(c.what, c.part, float(c.mu)) for c in charges])
                fields = run, None, round, query, request, prices, reply, int(failed), math.sqrt(total)
                entry = self._write(fields)
            self._take(entry)
        assert isinstance(entry, Entry)
        return entry

    # -- opening ---------------------------------------------------------------------------------------------

    def _open(self) -> None:
        """Take the lock, make the file if there is none, connect."""
        if not self.path.parent.is_dir():
            raise LedgerError(f"ledger {self.path}: there is no folder {self.path.parent}; make it first")
        self._lock = os.open(f"{self.path}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as taken:
            raise LedgerError(f"ledger {self.path} is in use by another vault; stop that one first") from taken
        if self._create and not self.path.exists():
            self._make()
        self._connect()
        self._place = _place(self.path)
        mode = self._db.execute("PRAGMA journal_mode = DELETE").fetchone()[0]
        if mode != "delete":
            raise LedgerError(f"ledger {self.path} stays in journal mode {mode}; end what else has it open")
        self._db.execute("PRAGMA synchronous = EXTRA")  # FULL: after a power cut the journal may be back, and undo it
        self._db.execute("PRAGMA fullfsync = ON")

    def _make(self) -> None:
        """A new ledger under its name, whole or not at all, so that an empty file is never one of ours."""
        journal = self.path.with_name(f"{self.path.name}-journal")
        if journal.exists():
            raise LedgerError(f"ledger {self.path} is gone, but {journal.name} is there; bring the ledger back")
        draft = self.path.with_name(f"{self.path.name}.new")
        for leftover in (draft, draft.with_name(f"{draft.name}-journal")):
            leftover.unlink(missing_ok=True)
        os.close(os.open(draft, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600))
        db = sqlite3.connect(draft, isolation_level=None)
        try:
            db.execute("BEGIN")
            for statement in (f"PRAGMA application_id = {APPLICATION}", f"PRAGMA user_version = {VERSION}", *SCHEMA):
                db.execute(statement)
            db.execute("COMMIT")
        finally:
            db.close()
        draft.rename(self.path)
        folder = os.open(self.path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)  # or the name could be lost with the power
        finally:
            os.close(folder)

    def _prove(self) -> None:
        super()._prove()
        with self._transaction():  # better refused now than at the first release
            self._db.execute(f"PRAGMA user_version = {VERSION}")

    # -- writing ---------------------------------------------------------------------------------------------

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        """All or nothing, on a file that is as this object left it."""
        with self._explained():
            if _place(self.path) != self._place:
                raise LedgerError(f"ledger {self.path} was moved or replaced; bring it back and start the vault again")
            try:
                self._db.execute("BEGIN IMMEDIATE")
                if not self._is_head():
                    raise LedgerError(f"ledger {self.path} {OTHERS}")
                yield
                self._db.execute("COMMIT")
            except BaseException:
                self._undo()
                raise

    def _undo(self) -> None:
        """Back to where the last entry left the file, or, when that is not certain, no further with this object."""
        try:
            if self._db.in_transaction:
                self._db.execute("ROLLBACK")
            whole = self._is_head()
        except sqlite3.Error:
            whole = False
        if not whole:
            self._broken = f"ledger {self.path} {OTHERS}"

    def _is_head(self) -> bool:
        return bool((self._db.execute(HEAD).fetchone() or (0, START)) == self._head)

    def _write(self, fields: Row) -> Opening | Entry:
        row = (self._head[0] + 1, self._now(), *fields)
        row = (*row, _receipt(self._head[1], row))
        self._db.execute(f"INSERT INTO entries ({COLUMNS}) VALUES ({', '.join('?' * len(row))})", row)
        return _read(row)

    def _now(self) -> float:
        now = float(self._clock())
        if not 0 <= now < YEAR_10000:
            raise LedgerError(f"the clock shows {now} s since 1970; set it right")
        if now < self._time - self._clock_slack:
            raise LedgerError(
                f"the clock shows {stamp(now)}, but the last entry of ledger {self.path} was written at "
                f"{stamp(self._time)}; set the clock right, or, if that entry is what is wrong, allow more clock slack"
            )
        return max(now, self._time)


def _receipt(previous: str, row: Row) -> str:
    """SHA-256 of the receipt before and, as a JSON array, all fields as stored.

    Terms and reply go in as their own SHA-256: they may be long, and whoever checks a chain need not see them.
    """
    number, moment, run, terms, round, query, request, charges, reply, failed, spent = row
    agreed = None if terms is None else digest(terms.encode("utf-8", "surrogateescape"))
    answer = None if reply is None else digest(reply)
    fields = [number, moment, run, agreed, round, query, request, charges, answer, failed, spent]
    return digest(previous.encode() + json.dumps(fields, separators=(",", ":"), allow_nan=False).encode())


def _read(row: Row) -> Opening | Entry:
    number, moment, run, terms, round, query, request, charges, reply, failed, spent, receipt = row
    if terms is not None:
        return Opening(number, moment, run, terms, spent, receipt)
    paid = tuple(Charge(*charge) for charge in json.loads(charges))
    return Entry(number, moment, run, round, query, request, paid, reply, bool(failed), spent, receipt)


def _add(halves: Halves, charges: Iterable[Charge]) -> Halves:
    first, second = halves
    for charge in charges:
        square = Fraction(charge.mu) ** 2
        first += 0 if charge.part == "second" else square
        second += 0 if charge.part == "first" else square
    return first, second


def _check_limit(whose: str, limit: float, spent: float, charges: tuple[Charge, ...], after: Fraction) -> None:
    if not 0 <= limit < math.inf:
        raise LedgerError(f"{whose}: a budget of mu = {limit!r} is none; set a number")
    if after > (Fraction(limit) * SLACK) ** 2:
        raise OverBudget(
            f"{whose} may spend mu = {limit:.6g} and has spent {spent:.6g}; this release costs {cost(charges):.6g} and "
            f"{left(limit, spent):.6g} is left; ask for less, or let the site's owner allow more"
        )


def _check_name(whose: str, name: object) -> None:
    """Names come from servers and go to screens and spreadsheets: no control characters, no formulas."""
    if not isinstance(name, str) or not 0 < len(name) <= 200 or not name.isprintable() or not name[0].isalnum():
        raise LedgerError(f"{whose} is named {name!r}; use printable text of at most 200, a letter or digit first")


def _check_round(run: object, round: object) -> None:
    _check_name("the run", run)
    if isinstance(round, bool) or not isinstance(round, int) or not 0 <= round < 2**63:
        raise LedgerError(f"run {run!r}: {round!r} is no round; count from 0")


def _is_unicode(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _place(path: Path) -> tuple[int, int]:
    """Which file it is, whatever its name."""
    try:
        found = path.stat()
    except FileNotFoundError:
        return 0, 0
    return found.st_dev, found.st_ino
