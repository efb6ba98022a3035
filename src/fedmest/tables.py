"""What the commands print for people: paragraphs and tables on a page."""

import json
import math
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from fedmest.federation import Federation
    from fedmest.planner import Advice
    from fedmest.result import Result
    from fedmest.site.policy import Policy
    from fedmest.studies.reproduce import Outcome, Plan

WIDTH = 100  # of paragraphs, and of pages that are not a terminal


def open_page() -> "Console":
    from rich.console import Console

    return Console(highlight=False, markup=False, width=None if sys.stdout.isatty() else WIDTH)


def say(page: "Console", text: str) -> None:
    page.print(text, width=min(page.width, WIDTH))


def plain_table(title: str | None = None) -> "Table":
    from rich import box
    from rich.table import Table
    from rich.text import Text

    caption = Text(title, style="bold") if title else None
    return Table(
        title=caption, title_justify="left", box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False,
        header_style="bold",
    )  # fmt: skip


def coefficients(title: str | None, results: dict[str, "Result"], difference: bool = False) -> "Table":
    """Coefficients side by side, one column a result; classes of a multinomial model one below the other."""
    from rich.text import Text

    from fedmest.result import aligned

    first = next(iter(results.values()))
    table = plain_table(title)
    table.add_column("")
    for head in [*results, *(["difference"] if difference else [])]:
        table.add_column(Text(head), justify="right", no_wrap=True)
    blocks = len(first.coefficients)
    for block in range(blocks):
        if blocks > 1:
            table.add_row(Text(f"class {first.model.classes[block]}", style="bold"))
        for j, name in enumerate(first.names):
            values = [float(result.coefficients[block, j]) for result in results.values()]
            if difference:
                values.append(values[-1] - values[0])
            table.add_row(Text(name), *aligned(values))
        if block + 1 < blocks:
            table.add_section()
    return table


def show_comparison(federation: "Federation", model: str, results: dict[str, "Result"]) -> None:
    page = open_page()
    first = next(iter(results.values()))
    kind = f"{model} regression" if first.model.linear else model
    say(page, f"{kind} of {federation.target_name}: {federation.n_rows:,} rows at {federation.n_sites:,} sites")
    fitting = max(1, (page.width - max(len(n) for n in first.names)) // 14)
    names = list(results) if first.model.linear else []  # a network's parameters are not for reading
    for start in range(0, len(names), fitting):
        page.print()
        page.print(coefficients(None, {name: results[name] for name in names[start : start + fitting]}))
    facts = plain_table()
    for head in ("method", "mu", "third-party mu", "certified", "rounds", "bytes"):
        facts.add_column(head, justify="left" if head == "method" else "right")
    for name, result in results.items():
        report, traffic = result.privacy, result.communication
        facts.add_row(
            name, f"{report.mu:.4g}", f"{report.third_party:.4g}", "yes" if report.certified else "no",
            f"{traffic.rounds:,}", f"{traffic.bytes:,}",
        )  # fmt: skip
    page.print()
    page.print(facts)
    private = [name for name, result in results.items() if math.isfinite(result.privacy.mu)]
    if len(private) > 1:
        page.print()
        say(page, "Each private method spends its own budget: publish one, or the squares of mu add up.")


def show_plan(advice: "Advice") -> None:
    """Every method's expected error and what it is made of, and the one to choose."""
    page = open_page()
    n, assumed = advice.sizes, advice.population
    say(page, f"{assumed.model.name} regression, {assumed.columns} coefficients, {n.sum():,} rows at {len(n):,} sites, "
              f"mu = {advice.mu:g}")  # fmt: skip
    page.print()
    table = plain_table()
    for head in PLAN:
        table.add_column(head, justify="left" if head == "method" else "right", no_wrap=True)
    for row in plan_rows(advice):
        table.add_row(*row)
    page.print(table)
    page.print()
    say(page, f"Choose: {advice.fit_call}")
    page.print()
    say(page, PLAN_LEGEND)
    for note in plan_notes(advice):
        say(page, note)


PLAN = ("method", "MSE", "/ pooled", "sampling", "privacy", "to go", "bias", "±", "rounds", "MB", "SE")
PLAN_LEGEND = (
    "MSE: summed over the coefficients, of features at unit scale; its parts are sampling error, privacy noise, what "
    "is left of the way from the start, and the bias of averaging. ±: half-width of a 95 % interval for a slope. "
    "SE: whether standard errors can be expected to hold."
)


def plan_rows(advice: "Advice") -> list[list[str]]:
    """One method a row, under the heads of PLAN."""
    rows = []
    for c in advice.candidates:
        p = c.prediction
        shares = [f"{100 * part / p.mse:.0f} %" for part in (p.sampling, p.privacy, p.optimisation, p.bias)]
        rows.append([
            c.method, f"{p.mse:.3g}", f"{p.mse / advice.pooled:.3g}", *shares, f"{c.half_width:.2g}", f"{p.rounds:,}",
            f"{p.bytes / 1e6:.3g}", "yes" if c.earns_errors else "no",
        ])  # fmt: skip
    return rows


def plan_notes(advice: "Advice") -> list[str]:
    """What the table is to be held against, and what was assumed."""
    assumed = advice.population
    notes = [
        f"The pooled fit without privacy would have {advice.pooled:.3g}. Lower bound for any private method, up to "
        f"constants: {advice.lower_bound:.3g}. The rows are worth {advice.effective_rows:,.0f} without privacy.",
        f"Assumed of the rows: intercept {assumed.intercept:g}, slopes of length {assumed.slopes:g}, normal features "
        f"with standard deviation {assumed.feature_sd:g}. No row was read.",
    ]
    if advice.best.prediction.mse > assumed.length(assumed.truth):
        notes.append("This budget buys nothing from so few rows: zero for every coefficient would be closer to the "
                     "truth.")  # fmt: skip
    return notes + [f"Left out: {name}: {why}" for name, why in advice.left_out.items()]


AUDIT = ("method", "model", "calibration", "claim", "found", "exact", "verdict", "attack")


def audit_rows(entries: Sequence[dict[str, Any]]) -> list[list[str]]:
    """One audit a row, under the heads of AUDIT."""
    rows = []
    for entry in entries:
        variant = "".join(f", {name}={value}" for name, value in entry["settings"].items())
        exact = f"{entry['mu_exact']:.3f}" if entry["mu_exact"] is not None else ""
        found = "no limit" if entry["leak"] else f"{entry['mu_lower']:.3f}"
        rows.append([
            entry["method"], entry["model"], entry["calibration"] + variant, f"{entry['mu_claimed']:.3f}", found, exact,
            entry["verdict"], entry["leak"] or entry["scene"],
        ])  # fmt: skip
    return rows


def audit_legend(entries: Sequence[dict[str, Any]]) -> str:
    first = entries[0]
    seen = "everything that a site sends" if first["observer"] == "server" else "the published estimate alone"
    return (
        f"claim: mu as the run states it. found: no smaller mu is possible, with {100 * first['confidence']:g} % "
        f"confidence, from games in which the attacker sees {seen}. exact: what the best test of this attack would "
        "find, where all replies are Gaussian. An attack that finds little proves nothing: there may be better ones."
    )


def show_audits(entries: Sequence[dict[str, Any]]) -> None:
    """What is claimed and what was found."""
    page = open_page()
    table = plain_table()
    for head in AUDIT:
        table.add_column(head, justify="right" if head in ("claim", "found", "exact") else "left", overflow="fold")
    for row in audit_rows(entries):
        table.add_row(*row)
    page.print(table)
    page.print()
    say(page, audit_legend(entries))


def show_studies(plan: "Plan", workers: int, as_json: bool) -> None:
    """The studies: what they are in the paper, which claims they bear on, and what they cost."""
    entries: list[dict[str, Any]] = []
    for study in plan.studies:
        cells = plan.cells_of(study)
        entries.append({
            "id": study.id, "title": study.title, "figure": study.figure, "claims": list(study.claims),
            "repetitions": plan.reps(study), "cells": len(cells),
            "minutes": sum(cell.cost() for cell in cells) / workers / 60,
        })  # fmt: skip
    if as_json:
        print(json.dumps(entries, indent=2, allow_nan=False))
        return
    table = plain_table()
    for head in ("study", "in the paper", "claims", "repetitions", "cells", "minutes"):
        table.add_column(head, justify="right" if head in ("repetitions", "cells", "minutes") else "left")
    for e in entries:
        numbers = f"{e['repetitions']}", f"{e['cells']:,}", f"{e['minutes']:.1f}"
        table.add_row(e["id"], e["figure"], " ".join(e["claims"]), *numbers)
    page = open_page()
    page.print(table)
    page.print()
    minutes = sum(e["minutes"] for e in entries)
    say(page, f"About {minutes:.0f} minutes in all, a guess for {workers} free cores. A cell is the unit of work and "
              "storage: a point of a grid, some repetitions, methods.")  # fmt: skip


def show_claims(outcome: "Outcome", folder: Path, as_json: bool) -> None:
    """The verdicts, and where everything else is."""
    from fedmest.studies.base import CALIBRATIONS
    from fedmest.studies.claims import listed, overall

    told = listed(errors.study for errors in outcome.errors.values())
    verdicts = {claim: {c: overall(outcome.findings, claim, c) for c in CALIBRATIONS} for claim in told}
    if as_json:
        details = [
            {"claim": f.claim, "study": f.study, "calibration": f.calibration, "verdict": f.verdict,
             "evidence": f.evidence()}
            for f in outcome.findings
        ]  # fmt: skip
        content = {"claims": verdicts, "findings": details, "page": str(folder / "index.html")}
        print(json.dumps(content, indent=2, allow_nan=False))
        return
    table = plain_table()
    for head in ("", "claim of the paper", "its calibration", "certified"):
        table.add_column(head)
    for claim, text in told.items():
        table.add_row(claim, text, *verdicts[claim].values())
    page = open_page()
    page.print(table)
    page.print()
    if outcome.computed:
        say(page, f"{outcome.computed:,} cells were computed in {outcome.wall / 60:.1f} minutes, "
                  f"{outcome.computed / outcome.wall:.2f} a second.")  # fmt: skip
    say(page, f"{outcome.cells:,} cells, {outcome.seconds / 60:.1f} minutes added up by the clock. Figures, evidence, "
              f"reasons: {folder / 'index.html'}")  # fmt: skip
    if outcome.left_out:
        say(page, f"{outcome.left_out:,} stored cells belong to other settings of these studies and were left out.")


def show_policy(policy: "Policy", rows: int, as_json: bool) -> None:
    """What a site allows."""
    if as_json:
        facts = {
            "site": policy.name, "rows": rows, "columns": {c.name: c.kind for c in policy.columns.values()},
            "models": list(policy.models), "methods": list(policy.methods), "calibrations": list(policy.calibrations),
            "lifetime_mu": policy.lifetime, "run_mu": policy.run, "insecure": policy.insecure,
        }  # fmt: skip
        print(json.dumps(facts, indent=2))
        return
    print(f"{policy.name}: {rows:,} rows in {policy.data}")
    for column in policy.columns.values():
        print(f"  {column.name}: {column.kind}")
    print(f"allows {', '.join(policy.models)} by {', '.join(policy.methods)} ({', '.join(policy.calibrations)})")
    print(f"mu = {policy.run:g} for a run, {policy.lifetime:g} in all")
    if policy.insecure:
        print("INSECURE: servers may set the seed of the noise; only for rehearsals with rows that need no protection")
