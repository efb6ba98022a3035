"""The terminal: paragraphs and tables on stdout, progress on stderr. Rich is imported where it is used."""

import json
import math
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from fedmest.core.text import printable
from fedmest.interface import tables

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from fedmest.data.federation import Federation
    from fedmest.interface.demo import DemoFit
    from fedmest.runs.plan import Plan
    from fedmest.runs.result import Result
    from fedmest.runs.runner import Callback
    from fedmest.site.policy import Policy
    from fedmest.studies.reproduce import Outcome, ReproductionJob
    from fedmest.studies.runner import Done

WIDTH = 100  # of paragraphs, and of output that is not a terminal
COLUMN = 14  # characters that one result needs in a table of several

Progress = Callable[[int, int], None] | None


# -- building blocks -----------------------------------------------------------------------------------------


def open_console() -> "Console":
    """Console for plain text; of fixed width where the output is not a terminal."""
    from rich.console import Console

    return Console(highlight=False, markup=False, width=None if sys.stdout.isatty() else WIDTH)


def print_text(out: "Console", text: str) -> None:
    """Print a paragraph."""
    out.print(printable(text, keep="\n"), width=min(out.width, WIDTH))


def print_lines(text: str, *, to_stderr: bool = False) -> None:
    """Print lines as they are, but for control characters: those of names would reach the terminal."""
    print(printable(text, keep="\n"), file=sys.stderr if to_stderr else sys.stdout, flush=to_stderr)


def print_json(content: Any) -> None:
    """Print as JSON."""
    print(json.dumps(content, indent=2, allow_nan=False))


def text_table(
    heads: Sequence[str], rows: Sequence[Sequence[str]] = (), numbers: Sequence[str] = (), *, wrap: bool = True
) -> "Table":
    """Columns whose heads are in `numbers` are right-aligned; long texts are folded, or, without `wrap`, left whole."""
    from rich import box
    from rich.table import Table
    from rich.text import Text

    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, header_style="bold")
    for head in heads:
        side: Literal["left", "right"] = "right" if head in numbers else "left"
        table.add_column(Text(printable(head)), justify=side, overflow="fold", no_wrap=not wrap)
    for row in rows:
        table.add_row(*(Text(printable(cell)) for cell in row))
    return table


def coefficients(results: dict[str, "Result"], title: str | None = None, difference: bool = False) -> "Table":
    """Coefficients side by side, one column per result; classes of a multinomial model one below the other."""
    from rich.text import Text

    heads, blocks = tables.side_by_side(results, difference)
    table = text_table(heads, numbers=heads[1:], wrap=False)
    table.title, table.title_justify = (Text(title, style="bold") if title else None), "left"
    for number, block in enumerate(blocks):
        if number:
            table.add_section()
        if block.title:
            table.add_row(Text(block.title, style="bold"))
        for row in block.rows:
            table.add_row(*map(Text, row))
    return table


# -- what commands print -------------------------------------------------------------------------------------


def show_comparison(federation: "Federation", model: str, results: Mapping[str, "Result"]) -> None:
    """Coefficients and budgets of several fits."""
    out = open_console()
    first = next(iter(results.values()))
    kind = f"{model} regression" if first.model.has_coefficients else model
    print_text(out, f"{kind} of {federation.target_name}: {federation.n_rows:,} rows at {federation.n_sites:,} sites")
    per_table = max(1, (out.width - max(len(printable(name)) for name in first.param_names)) // COLUMN)
    names = list(results) if first.model.has_coefficients else []  # a network's parameters are not for reading
    for start in range(0, len(names), per_table):
        out.print()
        out.print(coefficients({name: results[name] for name in names[start : start + per_table]}))
    rows = [
        [
            name,
            f"{r.privacy.mu:.4g}",
            f"{r.privacy.third_party_mu():.4g}",
            "yes" if r.privacy.certified else "no",
            f"{r.communication.rounds:,}",
            f"{r.communication.bytes:,}",
        ]
        for name, r in results.items()
    ]
    heads = ("method", "mu", "third-party mu", "certified", "rounds", "bytes")
    out.print()
    out.print(text_table(heads, rows, heads[1:]))
    private = [name for name, result in results.items() if math.isfinite(result.privacy.mu)]
    if len(private) > 1:
        out.print()
        print_text(out, "Each private method spends its own budget: publish one, or the squares of mu add up.")


def show_demo(fits: Sequence["DemoFit"], mu: float, notes: Sequence[str]) -> None:
    """Private fits beside pooled ones, and the privacy statement."""
    out = open_console()
    first = fits[0].private
    size = f"{first.n_rows:,} person-years at {first.n_sites} sites"
    print_text(out, f"RAND Health Insurance Experiment: {size}; rows with gaps left out.")
    for fit in fits:
        out.print()
        columns = {"pooled (not private)": fit.pooled, f"private (mu={mu:g})": fit.private}
        out.print(coefficients(columns, fit.title, difference=True))
    both = math.hypot(*(fit.private.privacy.mu for fit in fits))
    out.print()
    print_text(out, fits[0].private.privacy.statement())
    out.print()
    print_text(out, f"The statement holds for each fit by itself; publishing both costs mu = {both:.3g} together.")
    for note in notes:
        out.print()
        print_text(out, note)


def show_plan(plan: "Plan") -> None:
    """Every method's expected error and what it is made of, and the one to choose."""
    out = open_console()
    n, assumed = plan.sizes, plan.population
    size = f"{assumed.columns} coefficients, {n.sum():,} rows at {len(n):,} sites"
    print_text(out, f"{assumed.model.label} regression, {size}, mu = {plan.mu:g}")
    out.print()
    out.print(text_table(tables.PLAN_HEADS, tables.plan_rows(plan), tables.PLAN_HEADS[1:], wrap=False))
    out.print()
    print_text(out, f"Choose: {plan.fit_call}")
    out.print()
    print_text(out, tables.PLAN_LEGEND)
    for note in tables.plan_notes(plan):
        print_text(out, note)


def show_methods(entries: Sequence[dict[str, Any]]) -> None:
    """The registry of methods."""
    rows = []
    for entry in entries:
        paper = entry["paper_options"]
        options = [f"{k}={v}" + (f" (paper: {paper[k]})" if paper[k] != v else "") for k, v in entry["options"].items()]
        only = f"; {', '.join(entry['models'])} only" if len(entry["models"]) <= 2 else ""
        private = "yes" if entry["private"] else "no"
        rows.append(
            [entry["id"], private, str(entry["rounds"]), entry["release_summary"] + only, ", ".join(options) or "none"]
        )
    out = open_console()
    out.print(text_table(("method", "private", "rounds", "sites send", "options"), rows, ("rounds",)))
    out.print()
    print_text(
        out,
        "Rounds are those of the default options; np-pooled stops when it has converged. Scaling and "
        "the clip norm may add up to three. Set options with --option NAME=VALUE.",
    )


def show_audits(entries: Sequence[dict[str, Any]]) -> None:
    """What is claimed and what was found."""
    out = open_console()
    out.print(text_table(tables.AUDIT_HEADS, tables.audit_rows(entries), tables.AUDIT_NUMBERS))
    out.print()
    print_text(out, tables.audit_legend(entries))


def show_studies(job: "ReproductionJob", workers: int, as_json: bool) -> None:
    """The studies: what they are in the paper, which claims they bear on, and how long they take."""
    entries: list[dict[str, Any]] = []
    for study in job.studies:
        cells = job.cells_of(study)
        entries.append(
            {
                "id": study.id,
                "title": study.title,
                "figure": study.figure,
                "claims": list(study.claims),
                "repetitions": job.repetitions_of(study),
                "cells": len(cells),
                "minutes": sum(cell.cost() for cell in cells) / workers / 60,
            }
        )
    if as_json:
        print_json(entries)
        return
    numbers = ("repetitions", "cells", "minutes")
    rows = [
        [e["id"], e["figure"], " ".join(e["claims"]), f"{e['repetitions']}", f"{e['cells']:,}", f"{e['minutes']:.1f}"]
        for e in entries
    ]
    out = open_console()
    out.print(text_table(("study", "in the paper", "claims", *numbers), rows, numbers))
    out.print()
    minutes = sum(e["minutes"] for e in entries)
    print_text(
        out,
        f"About {minutes:.0f} minutes in all, estimated for {workers} free cores. A cell is the unit of "
        "work and storage: a point of a grid, some repetitions, methods.",
    )


def show_claims(outcome: "Outcome", folder: Path, as_json: bool) -> None:
    """The verdicts, and where everything else is."""
    from fedmest.studies.base import CALIBRATIONS
    from fedmest.studies.claims import overall

    claims = outcome.claims()
    verdicts = {claim: {c: overall(outcome.findings, claim, c) for c in CALIBRATIONS} for claim in claims}
    if as_json:
        details = [
            {
                "claim": f.claim,
                "study": f.study,
                "calibration": f.calibration,
                "verdict": f.verdict,
                "evidence": f.evidence(),
            }
            for f in outcome.findings
        ]
        print_json({"claims": verdicts, "findings": details, "page": str(folder / "index.html")})
        return
    rows = [[claim, text, *verdicts[claim].values()] for claim, text in claims.items()]
    out = open_console()
    out.print(text_table(("", "claim of the paper", "its calibration", "certified"), rows))
    out.print()
    if outcome.computed:
        print_text(
            out,
            f"{outcome.computed:,} cells were computed in {outcome.wall / 60:.1f} minutes, "
            f"{outcome.computed / outcome.wall:.2f} per second.",
        )
    print_text(
        out,
        f"{outcome.cells:,} cells, {outcome.seconds / 60:.1f} minutes of computing. Figures, evidence, "
        f"reasons: {folder / 'index.html'}",
    )
    if outcome.left_out:
        print_text(
            out, f"{outcome.left_out:,} stored cells belong to other settings of these studies and were left out."
        )


def show_policy(policy: "Policy", rows: int, as_json: bool) -> None:
    """What a site allows."""
    if as_json:
        print_json({
            "site": policy.name, "rows": rows, "columns": {c.name: c.kind for c in policy.columns.values()},
            "models": list(policy.models), "methods": list(policy.methods), "calibrations": list(policy.calibrations),
            "lifetime_mu": policy.lifetime_mu, "run_mu": policy.run_mu, "insecure": policy.insecure,
        })  # fmt: skip
        return
    print_lines(f"{policy.name}: {rows:,} rows in {policy.data}")
    for column in policy.columns.values():
        print_lines(f"  {column.name}: {column.kind}")
    print_lines(f"allows {', '.join(policy.models)} by {', '.join(policy.methods)} ({', '.join(policy.calibrations)})")
    print(f"mu = {policy.run_mu:g} per run, {policy.lifetime_mu:g} in all")
    if policy.insecure:
        print("INSECURE: servers may set the seed of the noise; only for simulations with rows that need no protection")


# -- progress ------------------------------------------------------------------------------------------------


@contextmanager
def progress_bar(label: str) -> Iterator[Progress]:
    """A bar on stderr, where that is a terminal."""
    if not sys.stderr.isatty():
        yield None
        return
    from rich import progress
    from rich.console import Console

    columns = progress.TextColumn("{task.description}"), progress.BarColumn(), progress.TimeElapsedColumn()
    with progress.Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(label, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)


def by_round(progress: Progress) -> "Callback | None":
    """A callback of `fit` that moves a progress bar."""
    return None if progress is None else lambda info: progress(info.round, info.rounds)


@contextmanager
def cell_progress() -> Iterator[Callable[["Done"], None]]:
    """Cells done and the time left: a bar where stderr is a terminal, else one line per minute."""
    if not sys.stderr.isatty():
        yield _line_per_minute()
        return
    from rich import progress
    from rich.console import Console

    columns = (
        progress.TextColumn("{task.description}"),
        progress.BarColumn(),
        progress.TimeElapsedColumn(),
        progress.TextColumn("left"),
        progress.TimeRemainingColumn(),
    )
    # cells differ in length: the bar counts the work that is in them
    with progress.Progress(*columns, console=Console(stderr=True), speed_estimate_period=300, transient=True) as bar:
        task = bar.add_task("cells")
        yield lambda now: bar.update(
            task, description=f"{now.cells:,} of {now.of_cells:,} cells", completed=now.work, total=now.of_work
        )


def _line_per_minute() -> Callable[["Done"], None]:
    started = printed = time.monotonic()
    first = -1.0

    def show(now: "Done") -> None:
        nonlocal printed, first
        clock = time.monotonic()
        if first < 0:
            first = now.work
        if clock - printed < 60 or now.work == first:
            return
        printed = clock
        minutes = (now.of_work - now.work) * (clock - started) / (now.work - first) / 60
        print(f"fedmest: {now.cells:,} of {now.of_cells:,} cells, about {minutes:.0f} minutes left", file=sys.stderr)

    return show
