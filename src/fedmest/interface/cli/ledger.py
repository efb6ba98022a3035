"""What a site's owner and an auditor can ask of a ledger, also while a vault is writing to it.

A broken chain, a receipt that is not in it, a budget overspent: exit code 1. A path that is no ledger: 2.
"""

import math
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer

from fedmest.core.exceptions import InputError
from fedmest.core.text import printable
from fedmest.interface import console
from fedmest.interface.cli.options import AsJson, check_writable, flag

if TYPE_CHECKING:
    from fedmest.site.ledger import LedgerReader

ledger_app = typer.Typer(rich_markup_mode=None, help="What has left a site, and what it cost.")


File = Annotated[Path, typer.Argument(metavar="LEDGER", show_default=False, help="The site's ledger.")]
Lifetime = Annotated[
    float | None, flag("--lifetime", metavar="MU", help="The site's budget; shows what remains of it.")
]


@ledger_app.command()
def show(
    file: File,
    run: Annotated[str | None, flag("--run", metavar="RUN", help="All releases of one run.")] = None,
    lifetime: Lifetime = None,
    as_json: AsJson = False,
) -> None:
    """Show runs and releases: what left, when, and for how much."""
    from fedmest.interface.ledger_output import show_ledger

    _check_budget(lifetime)
    with _opened(file) as records:
        runs = [opening for opening in records.runs() if run in (None, opening.run)]
        if run is not None and not runs:
            raise InputError(f"--run {run!r} is not in {file}; 'fedmest ledger show {file}' lists what is")
        releases = list(records.entries(run))
    show_ledger(file, records, runs, releases, lifetime, all_releases=run is not None, as_json=as_json)


@ledger_app.command()
def export(
    file: File,
    form: Annotated[
        str, typer.Option("--format", metavar="json|csv", help="json holds all; csv has one line per charge.")
    ] = "json",
    out: Annotated[Path | None, flag("--out", metavar="FILE", help="Write to a file, not to the screen.")] = None,
) -> None:
    """Write the whole ledger out. From the JSON, anyone can compute the receipts again.

    Of replies and specs it holds digests only: a spec may hold how the site drew its halves.
    """
    from fedmest.interface.ledger_output import as_csv, as_json

    if form not in ("json", "csv"):
        raise InputError(f"--format {form!r} is not known; choose json or csv")
    if out is not None:
        check_writable(out)
        if out.resolve() == file.resolve():
            raise InputError(f"--out {out} is the ledger itself; name another file")
    with _opened(file) as records:
        text = as_json(records) if form == "json" else as_csv(records)
    if out is None:
        print(text if form == "json" else printable(text, keep="\r\n"), end="")  # JSON has no control characters
    else:
        out.write_text(text, encoding="utf-8", newline="")


@ledger_app.command()
def verify(
    file: File,
    receipt: Annotated[
        list[str] | None, flag("--receipt", metavar="HEX", help="Of a reply that left; repeatable.")
    ] = None,
    lifetime: Lifetime = None,
) -> None:
    """Compute every hash and every total again, and look receipts up.

    The chain alone cannot tell that its end was cut off. A receipt from outside the site can.
    """
    from fedmest.interface.ledger_output import spent_text
    from fedmest.site.ledger import ReleaseEntry, stamp

    _check_budget(lifetime)
    for text in receipt or ():
        if not re.fullmatch("[0-9a-fA-F]{64}", text):
            raise InputError(f"--receipt {text!r} is no receipt; a receipt is 64 hex digits")
    with _opened(file) as records:
        found = {text: records.find_receipt(text.lower()) for text in receipt or ()}
    console.print_lines(f"{len(records):,} entries, chain intact, spent {spent_text(records, lifetime)}")
    for text, entry in found.items():
        if entry is None:
            _fail(f"receipt {text} is not in {file}: its end was cut off, it was written anew, or it is another one's")
        where = f", round {entry.round}" if isinstance(entry, ReleaseEntry) else ""
        console.print_lines(f"receipt {text} is entry {entry.number}, run {entry.run}{where}, {stamp(entry.time)}")
    if lifetime is not None and records.spent_mu() > lifetime * (1 + 1e-9):
        _fail(
            f"{file} has spent mu = {records.spent_mu():.6g}, more than the {lifetime:g} allowed; release nothing more"
        )


@contextmanager
def _opened(file: Path) -> Iterator["LedgerReader"]:
    from fedmest.site.ledger import LedgerDamaged, LedgerError, LedgerReader

    try:
        with LedgerReader(file) as records:
            yield records
    except LedgerDamaged as error:
        _fail(error)
    except LedgerError as error:
        raise InputError(str(error)) from error


def _fail(line: object) -> NoReturn:
    sys.stdout.flush()
    console.print_lines(f"fedmest: {line}", to_stderr=True)
    raise typer.Exit(1)


def _check_budget(lifetime: float | None) -> None:
    if lifetime is not None and not 0 <= lifetime < math.inf:
        raise InputError(f"--lifetime {lifetime!r} is no budget; give a number that is not negative")
