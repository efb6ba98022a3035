"""A ledger as tables, JSON and CSV."""

import csv
import io
import json
import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from itertools import groupby
from pathlib import Path
from typing import Any

from fedmest.interface.console import open_console, print_json, print_text, text_table
from fedmest.site.ledger import VERSION, LedgerReader, ReleaseEntry, RunEntry, digest, remaining_mu, stamp

MAX_RELEASES = 100  # of all runs in a table; the rest is for `--run`, `--json` and `export`
RELEASE_HEADS = ("", "time", "run", "round", "what left", "mu", "in all")


def show_ledger(
    file: Path,
    records: LedgerReader,
    runs: Sequence[RunEntry],
    releases: Sequence[ReleaseEntry],
    lifetime: float | None,
    *,
    all_releases: bool,
    as_json: bool,
) -> None:
    """Print runs and releases."""
    counts = {opening.run: 0 for opening in runs}
    for entry in releases:
        counts[entry.run] += 1
    if as_json:
        print_json({
            "ledger": str(file), **_totals(records, lifetime),
            "runs": [
                {"run": o.run, "opened": stamp(o.time), "releases": counts[o.run], "mu": records.spent_mu(o.run),
                 "receipt": o.receipt}
                for o in runs
            ],
            "releases": [_public(entry) for entry in releases],
        })  # fmt: skip
        return
    out = open_console()
    rows = [[o.run, stamp(o.time), f"{counts[o.run]:,}", f"{records.spent_mu(o.run):.4g}"] for o in runs]
    out.print(text_table(("run", "opened", "releases", "mu"), rows, ("releases", "mu")))
    out.print()
    shown = releases if all_releases else releases[-MAX_RELEASES:]
    if shown:
        out.print(text_table(RELEASE_HEADS, [_release_row(entry) for entry in shown], ("", "round", "mu", "in all")))
        out.print()
    if len(shown) < len(releases):
        print_text(out, f"The last {len(shown)} of {len(releases):,} releases; --run RUN shows all of one run.")
    print_text(out, f"Spent in all: {spent_text(records, lifetime)}.")


def spent_text(records: LedgerReader, lifetime: float | None) -> str:
    """What was spent, and what remains of a lifetime budget."""
    spent = records.spent_mu()
    return f"mu = {spent:.6g}" + (
        "" if lifetime is None else f" of {lifetime:g}, {remaining_mu(lifetime, spent):.6g} left"
    )


def _totals(records: LedgerReader, lifetime: float | None) -> dict[str, Any]:
    rest = None if lifetime is None else remaining_mu(lifetime, records.spent_mu())
    return {"entries": len(records), "spent_mu": records.spent_mu(), "lifetime_mu": lifetime, "remaining_mu": rest}


def _release_row(entry: ReleaseEntry) -> list[str]:
    what = ", ".join(_charges(entry)) + ("; failed" if entry.failed else "")
    return [
        str(entry.number),
        stamp(entry.time),
        entry.run[:8],
        str(entry.round + 1),
        what,
        f"{entry.mu:.4g}",
        f"{entry.spent_mu:.4g}",
    ]


def _charges(entry: ReleaseEntry) -> Iterator[str]:
    """What left and its cost; the numbered steps of a descent together."""
    for (what, part), group in groupby(entry.charges, lambda c: (re.sub(r" \d+$", "", c.what), c.part)):
        own = list(group)
        count = f"{len(own)} x " if len(own) > 1 else ""
        half = "" if part == "all" else f" ({part} half)"
        yield f"{count}{what}{half} {math.hypot(*(c.mu for c in own)):.4g}"


def _public(entry: RunEntry | ReleaseEntry) -> dict[str, Any]:
    """An entry, with digests for the spec and the reply."""
    fields = asdict(entry)
    if isinstance(entry, RunEntry):
        spec = fields.pop("spec")
        return {**fields, "spec_sha256": digest(spec.encode())}
    reply = fields.pop("reply")
    return {**fields, "mu": entry.mu, "reply_bytes": len(reply), "reply_sha256": digest(reply)}


def as_json(records: LedgerReader) -> str:
    """The whole ledger, from which receipts can be computed again."""
    entries = [_public(entry) for entry in records.chain()]
    content = {"format": VERSION, "spent_mu": records.spent_mu(), "entries": entries}
    return json.dumps(content, indent=2, allow_nan=False) + "\n"


def as_csv(records: LedgerReader) -> str:
    """For a spreadsheet: one line per charge, and one per run that was opened."""
    page = io.StringIO()
    lines = csv.writer(page)
    lines.writerow(
        ("number", "time", "run", "round", "query", "what", "part", "mu", "failed", "site_total_mu", "receipt")
    )
    for entry in records.chain():
        begin, end = (entry.number, stamp(entry.time), entry.run), (repr(entry.spent_mu), entry.receipt)
        if isinstance(entry, RunEntry):
            lines.writerow((*begin, "", "", "run opened", "", "", "", *end))
            continue
        for c in entry.charges:
            answer = "yes" if entry.failed else "no"
            lines.writerow((*begin, entry.round, entry.query, c.what, c.part, repr(c.mu), answer, *end))
    return page.getvalue()
