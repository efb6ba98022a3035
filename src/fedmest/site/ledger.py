"""What has left a site and what it cost: one SQLite file that only grows, written before a reply can leave.

Every entry carries a hash over itself and the hash before it, its receipt. A changed, missing or moved entry breaks the
chain. Cutting off the end does not, nor does restoring an old copy, and whoever may write the file can make a new
chain. So receipts leave the site with the replies: one that the chain does not hold proves that it is not the old one.

A rollback journal, not a write-ahead log: five syncs per release instead of one, but all that was ever committed is in
the one file. A copy of it is a backup, and no file beside it can take charges along when it is lost.

Entries, costs and receipts are in `ledger_entries`, reading and verifying in `ledger_reader`; import all from here.
"""

import fcntl
import json
import logging
import math
import os
import re
import sqlite3
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from fractions import Fraction
from pathlib import Path

from fedmest.core.files import sync_folder
from fedmest.site.ledger_entries import (
    FIRST_RECEIPT,
    Charge,
    ChargeError,
    Entry,
    LedgerDamaged,
    LedgerError,
    OverBudget,
    ReleaseEntry,
    Row,
    RunEntry,
    check_limit,
    check_name,
    check_round,
    cost,
    digest,
    entry_of,
    is_unicode,
    receipt_of,
    remaining_mu,
    stamp,
)
from fedmest.site.ledger_reader import APPLICATION, COLUMNS, HEAD, SCHEMA, VERSION, LedgerReader

__all__ = [
    "VERSION", "Charge", "ChargeError", "Entry", "Ledger", "LedgerDamaged", "LedgerError", "LedgerReader",
    "OverBudget", "ReleaseEntry", "RunEntry", "cost", "digest", "remaining_mu", "stamp",
]  # fmt: skip

YEAR_10000 = 253402300800.0
CLOCK_STEP_S = 60.0  # that the clock may be behind the last entry without a line in the log
CHANGED = "was changed by another program; end that, and start the vault again"

log = logging.getLogger("fedmest.ledger")


class Ledger(LedgerReader):
    """The ledger as its one vault holds it.

    Opening verifies the whole chain, and that the file can be written. A second vault is refused; the lock beside the
    file ends with the process. Threads may share the object; forks may not.

    Times in the ledger never go back: an entry takes the clock's time or the last entry's, whichever is later. So the
    chain gives the order whatever the clock did, and a clock that was ahead once stops nothing. Where the clock is
    more than a minute behind the last entry, the log says so with every entry, until the clock has caught up.

    Parameters
    ----------
    path : str or Path
        The ledger's file.
    clock : callable
        Seconds since 1970.
    create : bool
        Whether a missing file is created. Off, so that a wrong path or a disk that is not mounted cannot pass for an
        unspent budget.
    """

    def __init__(
        self,
        path: str | Path,
        clock: Callable[[], float] = time.time,
        *,
        create: bool = True,
    ) -> None:
        self._clock = clock
        self._create = create
        self._lock: int | None = None
        super().__init__(path)

    def close(self) -> None:
        """Close the file and give up the lock."""
        with self._guard:
            super().close()
            if self._lock is not None:
                os.close(self._lock)
                self._lock = None

    def open_run(self, run: str, spec: str) -> None:
        """Begin a run, or continue one with the spec that it began with."""
        if not isinstance(spec, str) or not is_unicode(spec):
            raise LedgerError(f"run {run!r}: its spec is not text; send text")
        with self._guard:
            known = self.spec(run)
            if known is not None and known != spec:
                raise LedgerError(f"run {run!r} was opened with another spec; begin a new run for this one")
            if known is None:
                with self._transaction():
                    entry = self._write((run, spec, None, None, None, None, None, None, self.spent_mu()))
                self._count(entry)

    def check_budget(self, run: str, charges: Iterable[Charge], *, lifetime_mu: float, run_mu: float) -> Fraction:
        """Check a release against the budgets, before rows are read.

        Refusals are free, and how long one takes should not depend on rows.

        Returns
        -------
        Fraction
            Square of the mu that the site would have spent.

        Raises
        ------
        OverBudget
            If the release would exceed the run's or the site's budget.
        """
        with self._guard:
            charges = tuple(charges)
            halves, total = self._balance.after(run, charges)
            check_limit(f"run {run!r}", run_mu, self.spent_mu(run), charges, max(halves))
            check_limit("the site", lifetime_mu, self.spent_mu(), charges, total)
            return total

    def release(
        self,
        run: str,
        round: int,
        query: str,
        request: str,
        charges: Iterable[Charge],
        reply: bytes,
        *,
        lifetime_mu: float,
        run_mu: float,
        failed: bool = False,
    ) -> ReleaseEntry:
        """Charge for a reply and store both, so that it may leave once this has returned.

        All of it is one transaction, on the disk before this returns.

        Parameters
        ----------
        run, round, query : str, int, str
            Which release it is; there is one per round.
        request : str
            Hex digest of all that the server sent.
        charges : iterable of Charge
            What leaves, and what it costs.
        reply : bytes
            What is sent.
        lifetime_mu, run_mu : float
            Budgets of the site and of the run, this release included.
        failed : bool
            The reply is of no use, but was charged for.

        Raises
        ------
        LedgerError
            The reply must not leave. Nothing was written, except that a failing disk may have kept the whole entry:
            then it counts as spent, and is found on reopening.
        """
        check_round(run, round)
        charges, name = tuple(charges), f"run {run!r}, round {round}"
        check_name(f"{name}: the query", query)
        if not charges:
            raise LedgerError(f"{name}: a release without charges; name what leaves")
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
                total = self.check_budget(run, charges, lifetime_mu=lifetime_mu, run_mu=run_mu)
                costs = json.dumps([(c.what, c.part, float(c.mu)) for c in charges])
                fields = run, None, round, query, request, costs, reply, int(failed), math.sqrt(total)
                entry = self._write(fields)
            self._count(entry)
        assert isinstance(entry, ReleaseEntry)
        return entry

    # -- opening ---------------------------------------------------------------------------------------------

    def _open(self) -> None:
        """Take the lock, create the file if there is none, connect."""
        if not self.path.parent.is_dir():
            raise LedgerError(f"ledger {self.path}: there is no folder {self.path.parent}; create it first")
        self._lock = os.open(f"{self.path}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as taken:
            raise LedgerError(f"ledger {self.path} is in use by another vault; stop that one first") from taken
        if self._create and not self.path.exists():
            self._create_file()
        self._connect()
        self._file = _file_id(self.path)
        mode = self._db.execute("PRAGMA journal_mode = DELETE").fetchone()[0]
        if mode != "delete":
            raise LedgerError(f"ledger {self.path} stays in journal mode {mode}; end what else has it open")
        self._db.execute("PRAGMA synchronous = EXTRA")  # FULL: after a power cut the journal may be back, and undo it
        self._db.execute("PRAGMA fullfsync = ON")

    def _create_file(self) -> None:
        """Create the ledger under its name whole or not at all, so that an empty file is never one of ours."""
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
        sync_folder(self.path.parent)

    def _verify(self) -> None:
        super()._verify()
        with self._transaction():  # better to fail now than at the first release
            self._db.execute(f"PRAGMA user_version = {VERSION}")

    # -- writing ---------------------------------------------------------------------------------------------

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        """All or nothing, on a file that is as this object left it."""
        with self._translating_errors():
            if _file_id(self.path) != self._file:
                raise LedgerError(f"ledger {self.path} was moved or replaced; bring it back and start the vault again")
            self._check_one_name()
            try:
                self._db.execute("BEGIN IMMEDIATE")
                if not self._is_head():
                    raise LedgerError(f"ledger {self.path} {CHANGED}")
                yield
                self._db.execute("COMMIT")
            except BaseException:
                self._roll_back()
                raise

    def _roll_back(self) -> None:
        """Return to where the last entry left the file; where that is not certain, refuse all further use."""
        try:
            if self._db.in_transaction:
                self._db.execute("ROLLBACK")
            whole = self._is_head()
        except sqlite3.Error:
            whole = False
        if not whole:
            self._broken = f"ledger {self.path} {CHANGED}"

    def _is_head(self) -> bool:
        return bool((self._db.execute(HEAD).fetchone() or (0, FIRST_RECEIPT)) == self._head)

    def _write(self, fields: Row) -> Entry:
        row = (self._head[0] + 1, self._now(), *fields)
        row = (*row, receipt_of(self._head[1], row))
        self._db.execute(f"INSERT INTO entries ({COLUMNS}) VALUES ({', '.join('?' * len(row))})", row)
        return entry_of(row)

    def _now(self) -> float:
        now = float(self._clock())
        if not 0 <= now < YEAR_10000:
            raise LedgerError(f"the clock shows {now} s since 1970; set it right")
        if now < self._time - CLOCK_STEP_S:
            log.warning("clock behind", extra={"facts": {"ledger": str(self.path), "reason": (
                f"the clock shows {stamp(now)}, but the last entry has {stamp(self._time)}, and a new entry takes that "
                "time, too; set the clock right if it is wrong; if it was ahead before, nothing needs to be done"
            )}})  # fmt: skip
        return max(now, self._time)


def _file_id(path: Path) -> tuple[int, int]:
    """Device and number of a file, which stay when it is renamed."""
    try:
        found = path.stat()
    except FileNotFoundError:
        return 0, 0
    return found.st_dev, found.st_ino
