"""Entries of a ledger: what left a site, what it cost, and the hash chain that ties entries to each other.

Costs are mu of Gaussian differential privacy and compose as the root of the sum of their squares. Within a run a row is
in the first or in the second half of the site, never in both, so the half that spent more is what the run costs; halves
are drawn anew in every run, so runs add up. Squares are summed exactly, as fractions: their order does not matter and
nothing drifts. Limits are compared with a slack of one part in 1e9, for budgets that were split with rounding; it does
not build up, because totals are compared, not steps.

The columns of the table are the file's format and keep their names: `terms` holds a run's spec, `spent` the total mu.
"""

import hashlib
import json
import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from fractions import Fraction
from typing import Any

from fedmest.core.exceptions import FedmestError, InputError

BUDGET_SLACK = 1 + Fraction(1, 10**9)
FIRST_RECEIPT = "0" * 64  # what the first entry follows
MAX_NAME = 200  # characters
MIN_MU, MAX_MU = 1e-100, 1e100  # of one value that leaves; squares of others may not be numbers

Row = tuple[Any, ...]
Halves = tuple[Fraction, Fraction]


class LedgerError(FedmestError):
    """One line for the site's owner: what is wrong, and the way out. The reply that it stops must not leave."""


class ChargeError(LedgerError, InputError):
    """A cost that cannot be charged, whatever the budget: it comes from the spec, so whoever proposed that is told."""


class OverBudget(LedgerError):
    """A release that the run's or the site's budget does not allow."""


class LedgerDamaged(LedgerError):
    """The file is not what was written to it."""


@dataclass(frozen=True)
class Charge:
    """Cost of one value that leaves.

    Parameters
    ----------
    what : str
        Name of the value.
    part : {"all", "first", "second"}
        Part of the rows that it is computed from.
    mu : float
        Its privacy loss, above 1e-100 and below 1e100.

    Raises
    ------
    ChargeError
        If the loss is not such a number.
    """

    what: str
    part: str
    mu: float

    def __post_init__(self) -> None:
        check_name("what leaves", self.what)
        if self.part not in ("all", "first", "second"):
            raise LedgerError(f"{self.what}: part = {self.part!r} must be one of all, first, second")
        if isinstance(self.mu, bool) or not isinstance(self.mu, int | float) or not MIN_MU < self.mu < MAX_MU:
            raise ChargeError(
                f"{self.what}: mu = {self.mu!r} must be a positive number, above {MIN_MU:g} and below {MAX_MU:g}"
            )


@dataclass(frozen=True)
class RunEntry:
    """Opening of a run, with the spec that binds all of it."""

    number: int
    time: float
    run: str
    spec: str
    spent_mu: float
    receipt: str


@dataclass(frozen=True)
class ReleaseEntry:
    """A release: what was asked and what left.

    `request` is the hex digest of all that the server sent, `failed` says that the reply is of no use, `spent_mu` is
    the site's total with this release, and `receipt` its hash in the chain.
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
    spent_mu: float
    receipt: str

    @property
    def mu(self) -> float:
        """Cost of this release by itself."""
        return cost(self.charges)


Entry = RunEntry | ReleaseEntry


# -- costs ---------------------------------------------------------------------------------------------------


def cost(charges: Iterable[Charge]) -> float:
    """mu of releases within one run.

    >>> cost([Charge("gradient", "second", 4.0), Charge("curvature", "first", 3.0), Charge("norms", "all", 3.0)])
    5.0
    """
    return math.sqrt(max(_add((Fraction(0), Fraction(0)), charges)))


def remaining_mu(limit: float, spent: float) -> float:
    """mu that a release on all rows may still cost.

    >>> remaining_mu(5.0, 3.0)
    4.0
    """
    return math.sqrt(max((limit - spent) * (limit + spent), 0.0))


class Balance:
    """Squares of the mu that rows have spent: per run, of its first and of its second half; and of the site."""

    def __init__(self) -> None:
        self.halves: dict[str, Halves] = {}
        self.total = Fraction(0)

    def of(self, run: str) -> Halves:
        """The two halves of a run; zeros where it is not known."""
        return self.halves.get(run, (Fraction(0), Fraction(0)))

    def after(self, run: str, charges: Iterable[Charge]) -> tuple[Halves, Fraction]:
        """The run's halves and the site's total as they would be with these charges."""
        halves = _add(self.of(run), charges)
        return halves, self.total - max(self.of(run)) + max(halves)


def check_limit(whose: str, limit: float, spent: float, charges: tuple[Charge, ...], after: Fraction) -> None:
    """Raise OverBudget where `after`, the square of what would be spent, is beyond the limit."""
    if not 0 <= limit < math.inf:
        raise LedgerError(f"{whose}: mu = {limit!r} is not a budget; set a number that is not negative")
    if after > (Fraction(limit) * BUDGET_SLACK) ** 2:
        raise OverBudget(
            f"{whose} may spend mu = {limit:.6g} and has spent {spent:.6g}; this release costs {cost(charges):.6g} and "
            f"{remaining_mu(limit, spent):.6g} is left; ask for less, or let the site's owner allow more"
        )


def _add(halves: Halves, charges: Iterable[Charge]) -> Halves:
    first, second = halves
    for charge in charges:
        square = Fraction(charge.mu) ** 2
        first += 0 if charge.part == "second" else square
        second += 0 if charge.part == "first" else square
    return first, second


# -- rows and receipts ---------------------------------------------------------------------------------------


def receipt_of(previous: str, row: Row) -> str:
    """SHA-256 of the receipt before and, as a JSON array, all fields as stored.

    Spec and reply go in as their own SHA-256: they may be long, and whoever checks a chain need not see them.
    """
    number, moment, run, spec, round, query, request, charges, reply, failed, spent = row
    agreed = None if spec is None else digest(spec.encode("utf-8", "surrogateescape"))
    answer = None if reply is None else digest(reply)
    fields = [number, moment, run, agreed, round, query, request, charges, answer, failed, spent]
    return digest(previous.encode() + json.dumps(fields, separators=(",", ":"), allow_nan=False).encode())


def entry_of(row: Row) -> Entry:
    """Entry from a row of the table."""
    number, moment, run, spec, round, query, request, charges, reply, failed, spent, receipt = row
    if spec is not None:
        return RunEntry(number, moment, run, spec, spent, receipt)
    own = tuple(Charge(*charge) for charge in json.loads(charges))
    return ReleaseEntry(number, moment, run, round, query, request, own, reply, bool(failed), spent, receipt)


def digest(content: bytes) -> str:
    """SHA-256 in hex."""
    return hashlib.sha256(content).hexdigest()


def stamp(seconds: float) -> str:
    """A time in UTC, for people."""
    return datetime.fromtimestamp(seconds, UTC).isoformat(" ", "seconds").replace("+00:00", "Z")


# -- checks --------------------------------------------------------------------------------------------------


def check_name(whose: str, name: object) -> None:
    """Names come from servers and go to screens and spreadsheets: no control characters, no formulas."""
    if not isinstance(name, str) or not 0 < len(name) <= MAX_NAME or not name.isprintable() or not name[0].isalnum():
        raise LedgerError(f"{whose} is named {name!r}; use printable text of at most {MAX_NAME}, letter or digit first")


def check_round(run: object, round: object) -> None:
    """A run's name, and a round that SQLite can hold."""
    check_name("the run", run)
    if isinstance(round, bool) or not isinstance(round, int) or not 0 <= round < 2**63:
        raise LedgerError(f"run {run!r}: {round!r} is not a round; count from 0")


def is_unicode(text: str) -> bool:
    """Whether a text can be stored as UTF-8."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
