"""What a site's owner and an auditor can ask of a ledger, also while a vault is writing to it.

A broken chain, a receipt that is not in it, a budget overspent: exit code 1. A path that is no ledger: 2.
"""

import csv
import io
import json
import math
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer

from fedmest import tables
from fedmest.arguments import AsJson, check_writable, flag
from fedmest.errors import INTERRUPTED, InputError, Stopped
from fedmest.progress import bar
from fedmest.site.ledger import VERSION, Damaged, Entry, LedgerError, Opening, Records, digest, left, stamp

if TYPE_CHECKING:
    from rich.table import Table

SHOWN = 100  # releases of all runs in a table; the rest is for `--run`, `--json` and `export`

site_app = typer.Typer(rich_markup_mode=None, help="A site's own vault: the process that keeps its rows.")
ledger_app = typer.Typer(rich_markup_mode=None, help="What has left a site, and what it cost.")
deploy_app = typer.Typer(rich_markup_mode=None, help="Studies between sites, on a Flower network.")

PolicyFile = Annotated[Path, typer.Argument(metavar="SITE.toml", show_default=False, help="The site's policy.")]


@site_app.command()
def check(file: PolicyFile, as_json: AsJson = False) -> None:
    """Check a site's file against its own policy, and say what the vault would answer for. Nothing is released."""
    from fedmest.site.policy import Policy

    policy = Policy.read(file)
    with bar("reading"):
        rows = len(next(iter(policy.load().values())))
    tables.show_policy(policy, rows, as_json)


@site_app.command("init")
def begin(file: PolicyFile) -> None:
    """Check a site's file and policy, and begin its ledger; once."""
    from fedmest.site.ledger import Ledger, LedgerError
    from fedmest.site.policy import Policy

    policy = Policy.read(file)
    if policy.ledger.exists():
        raise InputError(f"there is a ledger {policy.ledger} already; it goes on counting")
    with bar("reading"):
        rows = len(next(iter(policy.load().values())))
    try:
        Ledger(policy.ledger).close()
    except LedgerError as error:
        raise Stopped(str(error), 1) from None
    tables.show_policy(policy, rows, as_json=False)
    print(f"{policy.ledger} is begun; 'fedmest site serve {file}' starts the vault")


@site_app.command()
def serve(file: PolicyFile) -> None:
    """Keep a site's rows and answer what its policy allows, until Ctrl-C."""
    from fedmest.site.ledger import LedgerError
    from fedmest.site.policy import Policy
    from fedmest.site.serve import serve as run

    try:
        run(Policy.read(file))
    except LedgerError as error:
        raise Stopped(str(error), 1) from None


Project = Annotated[Path, typer.Argument(metavar="FOLDER", show_default=False, help="The project.")]


@deploy_app.command()
def init(
    folder: Project,
    site: Annotated[list[str] | None, flag("--site", metavar="NAME", help="A site; repeatable.")] = None,
    demo_rows: Annotated[bool, flag("--demo", help="Three sites of RAND HIE, rows included.")] = False,
) -> None:
    """Write a project: the study, the Flower app, a policy for every site, and the commands for all of them."""
    from fedmest import deploy

    sites = deploy.init(folder, site or [], demo_rows)
    print(f"{folder} has a study for {len(sites)} sites: {', '.join(sites)}. Read {folder / 'README.md'}")


@deploy_app.command("run")
def run_project(
    folder: Project,
    resume: Annotated[bool, flag("--resume", help="Go on with the last run; no site pays twice.")] = False,
    as_json: AsJson = False,
) -> None:
    """Run the project's study at its sites and print the result."""
    from fedmest import deploy

    try:
        result = deploy.run(folder, resume, lambda line: print(line, file=sys.stderr, flush=True))
    except RuntimeError as fault:
        raise Stopped(str(fault), 1) from None
    except KeyboardInterrupt:
        note = f"interrupted; the server may still be at work. 'fedmest deploy run {folder} --resume' goes on"
        raise Stopped(note, INTERRUPTED) from None
    print(json.dumps(result, indent=2) if as_json else result.pop("summary"))


File = Annotated[Path, typer.Argument(metavar="LEDGER", show_default=False, help="The site's ledger.")]
Lifetime = Annotated[
    float | None, flag("--lifetime", metavar="MU", help="The site's budget; tells what is left of it.")
]


@ledger_app.command()
def show(
    file: File,
    run: Annotated[str | None, flag("--run", metavar="RUN", help="All releases of one run.")] = None,
    lifetime: Lifetime = None,
    as_json: AsJson = False,
) -> None:
    """Show runs and releases: what left, when, and for how much."""
    _check_budget(lifetime)
    with _opened(file) as records:
        runs = [opening for opening in records.runs() if run in (None, opening.run)]
        if run is not None and not runs:
            raise InputError(f"--run {run!r} is not in {file}; 'fedmest ledger show {file}' lists what is")
        releases = list(records.entries(run))
    counts = {opening.run: 0 for opening in runs}
    for entry in releases:
        counts[entry.run] += 1
    if as_json:
        content = {
            "ledger": str(file), **_totals(records, lifetime),
            "runs": [
                {"run": o.run, "opened": stamp(o.time), "releases": counts[o.run], "mu": records.spent(o.run),
                 "receipt": o.receipt}
                for o in runs
            ],
            "releases": [_public(entry) for entry in releases],
        }  # fmt: skip
        print(json.dumps(content, indent=2, allow_nan=False))
        return
    from rich.text import Text

    page = tables.open_page()
    table = tables.plain_table()
    for head in ("run", "opened", "releases", "mu"):
        table.add_column(head, justify="right" if head in ("releases", "mu") else "left", overflow="fold")
    for opening in runs:
        price = f"{records.spent(opening.run):.4g}"
        table.add_row(Text(opening.run), stamp(opening.time), f"{counts[opening.run]:,}", price)
    page.print(table)
    page.print()
    shown = releases if run is not None else releases[-SHOWN:]
    if shown:
        page.print(_releases(shown))
        page.print()
    if len(shown) < len(releases):
        tables.say(page, f"The last {len(shown)} of {len(releases):,} releases; --run RUN shows all of one run.")
    tables.say(page, f"Spent in all: {_spent(records, lifetime)}.")


@ledger_app.command()
def export(
    file: File,
    form: Annotated[
        str, typer.Option("--format", metavar="json|csv", help="json holds all; csv is a line a price.")
    ] = "json",
    out: Annotated[Path | None, flag("--out", metavar="FILE", help="Write to a file, not to the screen.")] = None,
) -> None:
    """Write the whole ledger out. From the JSON, anyone can compute the receipts again.

    Of replies and terms it holds digests only: the terms may hold how the site drew its halves.
    """
    if form not in ("json", "csv"):
        raise InputError(f"--format {form!r} is not known; choose json or csv")
    if out is not None:
        check_writable(out)
        if out.resolve() == file.resolve():
            raise InputError(f"--out {out} is the ledger itself; name another file")
    with _opened(file) as records:
        text = _as_json(records) if form == "json" else _as_csv(records)
    if out is None:
        print(text, end="")
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
    _check_budget(lifetime)
    for text in receipt or ():
        if not re.fullmatch("[0-9a-fA-F]{64}", text):
            raise InputError(f"--receipt {text!r} is none; a receipt is 64 hex digits")
    with _opened(file) as records:
        found = {text: records.holding(text.lower()) for text in receipt or ()}
    print(f"{len(records):,} entries, chain intact, spent {_spent(records, lifetime)}")
    for text, entry in found.items():
        if entry is None:
            _fail(f"receipt {text} is not in {file}: its end was cut off, it was written anew, or it is another one's")
        print(f"receipt {text} is entry {entry.number}, run {entry.run}" + (
            f", round {entry.round}, {stamp(entry.time)}" if isinstance(entry, Entry) else f", {stamp(entry.time)}"
        ))  # fmt: skip
    if lifetime is not None and records.spent() > lifetime * (1 + 1e-9):
        _fail(f"{file} has spent mu = {records.spent():.6g}, more than the {lifetime:g} allowed; release nothing more")


@contextmanager
def _opened(file: Path) -> Iterator[Records]:
    try:
        with Records(file) as records:
            yield records
    except Damaged as fault:
        _fail(fault)
    except LedgerError as fault:
        raise InputError(str(fault)) from fault


def _fail(line: object) -> NoReturn:
    sys.stdout.flush()
    print("fedmest:", line, file=sys.stderr)
    raise typer.Exit(1)


def _check_budget(lifetime: float | None) -> None:
    if lifetime is not None and not 0 <= lifetime < math.inf:
        raise InputError(f"--lifetime {lifetime!r} is no budget; give a number that is not negative")


def _totals(records: Records, lifetime: float | None) -> dict[str, Any]:
    rest = None if lifetime is None else left(lifetime, records.spent())
    return {"entries": len(records), "spent": records.spent(), "lifetime": lifetime, "left": rest}


def _spent(records: Records, lifetime: float | None) -> str:
    spent = records.spent()
    return f"mu = {spent:.6g}" + ("" if lifetime is None else f" of {lifetime:g}, {left(lifetime, spent):.6g} left")


def _releases(entries: list[Entry]) -> "Table":
    from rich.text import Text

    table = tables.plain_table()
    for head in ("", "time", "run", "round", "what left", "mu", "in all"):
        right = head in ("", "round", "mu", "in all")
        table.add_column(head, justify="right" if right else "left", overflow="fold")
    for entry in entries:
        what = ", ".join(_charges(entry)) + ("; failed" if entry.failed else "")
        table.add_row(
            str(entry.number), stamp(entry.time), Text(entry.run[:8]), str(entry.round + 1), Text(what),
            f"{entry.mu:.4g}", f"{entry.spent:.4g}",
        )  # fmt: skip
    return table


def _charges(entry: Entry) -> Iterator[str]:
    """What left, a line each; the numbered steps of a descent together."""
    for (what, part), group in groupby(entry.charges, lambda c: (re.sub(r" \d+$", "", c.what), c.part)):
        own = list(group)
        count = f"{len(own)} x " if len(own) > 1 else ""
        half = "" if part == "all" else f" ({part} half)"
        yield f"{count}{what}{half} {math.hypot(*(c.mu for c in own)):.4g}"


def _public(entry: Opening | Entry) -> dict[str, Any]:
    """An entry, with digests for the terms and the reply."""
    fields = asdict(entry)
    if isinstance(entry, Opening):
        terms = fields.pop("terms")
        return {**fields, "terms_sha256": digest(terms.encode())}
    reply = fields.pop("reply")
    return {**fields, "mu": entry.mu, "reply_bytes": len(reply), "reply_sha256": digest(reply)}


def _as_json(records: Records) -> str:
    entries = [_public(entry) for entry in records.chain()]
    content = {"format": VERSION, "spent": records.spent(), "entries": entries}
    return json.dumps(content, indent=2, allow_nan=False) + "\n"


def _as_csv(records: Records) -> str:
    """A line a price, for a spreadsheet; an opening is a line without one."""
    page = io.StringIO()
    lines = csv.writer(page)
    lines.writerow(
        ("number", "time", "run", "round", "query", "what", "part", "mu", "failed", "site_total_mu", "receipt")
    )
    for entry in records.chain():
        begin, end = (entry.number, stamp(entry.time), entry.run), (repr(entry.spent), entry.receipt)
        if isinstance(entry, Opening):
            lines.writerow((*begin, "", "", "run opened", "", "", "", *end))
            continue
        for c in entry.charges:
            answer = "yes" if entry.failed else "no"
            lines.writerow((*begin, entry.round, entry.query, c.what, c.part, repr(c.mu), answer, *end))
    return page.getvalue()
