"""Pages of a fit, of several fits, of a plan, of audits."""

import math
import platform
from collections.abc import Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Any

import numpy as np

from fedmest import __version__
from fedmest.inference import rates
from fedmest.interface import tables
from fedmest.interface.html import (
    badge,
    bars,
    bullets,
    document,
    escape,
    figure,
    folded,
    forest,
    section,
    table,
    text,
    trade_off,
)

if TYPE_CHECKING:
    from fedmest.auditing import AuditResult
    from fedmest.privacy.report import PrivacyReport
    from fedmest.runs.plan import Plan
    from fedmest.runs.result import Result

MAX_LINES = 60  # of a list of rounds or sites; beyond, groups are shown
GROUPS = 12
GAME = (
    "Suppose that somebody who knows all rows but one, and sees everything that was sent, has to tell whether a "
    "person's row is in the data or another in its place."
)


# -- of a fit ------------------------------------------------------------------------------------------------


def fit_page(result: "Result") -> str:
    """What a board, a data officer and an investigator ask, in that order."""
    return document(
        f"{_capital(result.model.label)}{' regression' if result.model.has_coefficients else ''}, "
        f"{result.spec.method.display_name}",
        text(
            f"{result.n_rows:,} rows at {result.n_sites:,} sites, "
            f"{result.communication.rounds} rounds, {result.communication.bytes:,} bytes",
            "small",
        ),
        _guarantee(result),
        _coefficients(result),
        _budget(result),
        _traffic(result),
        _sites(result),
        section("Settings, to run it again", _settings(result)),
    )


def _capital(name: str) -> str:
    return name[:1].upper() + name[1:]


def notebook(result: "Result") -> str:
    """The coefficient table and the guarantee, without a style of its own."""
    return f"{_coefficient_table(result)}{text(result.privacy.statement(), 'small')}"


def _guarantee(result: "Result") -> str:
    privacy = result.privacy
    if math.isinf(privacy.mu):
        return section("What is guaranteed", f"<p>{badge('Not private.', 'bad')} {escape(privacy.statement())}</p>")
    verdict = badge("Certified", "good") if privacy.certified else badge("Not certified", "bad")
    proved = "every noise follows from a sensitivity that the code proves"
    why = proved if privacy.certified else "for the reasons below"
    plain = f"{GAME} A coin would be right half of the time; {_promise(privacy)}."
    caveats = section("Not covered", bullets(privacy.caveats)) if privacy.caveats else ""
    statement = privacy.statement().split(" Not covered:")[0]
    return (
        section(
            "What is guaranteed",
            f"<p>{verdict}: {escape(why)}.</p>",
            text(plain),
            f"<div class=statement>{text(statement)}</div>",
            figure(
                trade_off(privacy.mu),
                "How often a row can be found at best, against false alarms. The dotted line is guessing.",
            ),
        )
        + caveats
    )


def _promise(privacy: "PrivacyReport") -> str:
    if math.isinf(privacy.mu):
        return "this fit is not private: somebody could be right every time"
    guess = f"{100 * _advantage(privacy.mu):.0f} % of the time"
    if privacy.certified:
        return f"with mu = {privacy.mu:.3g} nobody can be right more often than {guess}"
    claim = f"if the claim of mu = {privacy.mu:.3g} held"
    return f"{claim}, nobody could be right more often than {guess}; here somebody may be"


def _advantage(mu: float) -> float:
    """The most that a guess between two equally likely data sets can be right."""
    from scipy.stats import norm

    return float(norm.cdf(mu / 2))


def _coefficients(result: "Result", title: str = "Coefficients") -> str:
    if not result.model.has_coefficients:
        return section(title, text(tables.coefficient_lines(result)[0]))
    covariance = result.covariance
    drawn = []
    if covariance.total is not None:
        reach = covariance.quantile(0.05)
        total = reach * np.sqrt(np.diag(covariance.total)).reshape(result.coef_matrix.shape)
        sampling, combined = covariance.sampling, covariance.includes_privacy
        inner = total if combined or sampling is None else reach * np.sqrt(np.diag(sampling)).reshape(total.shape)
        for block, label in enumerate(result.model.classes if result.model.outputs > 1 else ("",)):
            if str(label):
                drawn.append(f"<h3>class {escape(str(label))}</h3>" if result.model.outputs > 1 else "")
            slopes = slice(
                int(result.has_intercept and len(result.param_names) > 1), None
            )  # an intercept has its own scale
            drawn.append(
                forest(
                    result.param_names[slopes],
                    result.coef_matrix[block, slopes],
                    inner[block, slopes],
                    total[block, slopes],
                    "Estimates with 95 % intervals",
                )
            )
        key = (
            "95 % intervals"
            if combined or math.isinf(result.privacy.mu)
            else "95 % intervals:<span class='key deep'></span>sampling error alone<span class='key pale'></span>with "
            "privacy noise"
        )
        drawn.append(f"<p class=small>{key}. {escape(result.cov_description)}</p>")
    else:
        drawn.append(text(result.cov_description, "small"))
    return section(title, *drawn, _coefficient_table(result))


def _coefficient_table(result: "Result") -> str:
    """The coefficient table; rows of several classes carry the class in their names."""
    label = f"coefficients, {result.spec.method.display_name}"
    if not result.model.has_coefficients:
        return table(["estimate", "parameters"], [["network", f"{result.coef_matrix.size:,}"]], ["parameters"], label)
    heads, blocks = tables.coefficient_table(result)
    classes = [block.title.removeprefix("class ") for block in blocks]
    rows = [
        [f"{name} / {row[0]}" if name else row[0], *row[1:]]
        for name, block in zip(classes, blocks, strict=True)
        for row in block.rows
    ]
    return table(["column", *heads[1:]], rows, heads[1:], label)


def _budget(result: "Result") -> str:
    privacy = result.privacy
    if math.isinf(privacy.mu):
        return ""
    spent = [(what, share, f"{100 * share:.1f} %") for what, share in privacy.by_purpose.items()]
    by_round: dict[int, tuple[str, float]] = {}
    for release in privacy.releases:
        name, square = by_round.get(release.round, (release.query, 0.0))
        by_round[release.round] = name, square + float(release.mu.max()) ** 2
    rounds = [
        (f"{number + 1}: {name}", square / privacy.mu**2, f"{100 * square / privacy.mu**2:.1f} %")
        for number, (name, square) in by_round.items()
    ]
    return section(
        "Where the budget went",
        text(f"Shares of mu squared, which adds up; mu = {privacy.mu:.4g} in all."),
        bars(spent, "Shares of the budget by purpose"),
        folded("by round", bars(_grouped(rounds), "Shares of the budget by round")),
    )


def _grouped(rounds: list[tuple[str, float, str]]) -> list[tuple[str, float, str]]:
    """Rounds one by one, or a few together where there are many."""
    if len(rounds) <= MAX_LINES:
        return rounds
    parts = np.array_split(np.arange(len(rounds)), GROUPS)
    sums = [sum(rounds[i][1] for i in part) for part in parts]
    return [
        (f"rounds {part[0] + 1} to {part[-1] + 1}", total, f"{100 * total:.1f} %")
        for part, total in zip(parts, sums, strict=True)
    ]


def _traffic(result: "Result") -> str:
    rounds = result.communication.by_round
    sent = [8 * (r.floats_up + r.floats_down) for r in rounds]
    items = [
        (f"{number + 1}: {r.query}", float(size), f"{_bytes(size)}, {r.sites:,} sites")
        for number, (r, size) in enumerate(zip(rounds, sent, strict=True))
    ]
    if len(items) > MAX_LINES:
        parts = np.array_split(np.arange(len(items)), GROUPS)
        sums = [sum(sent[i] for i in part) for part in parts]
        items = [
            (f"rounds {part[0] + 1} to {part[-1] + 1}", float(size), _bytes(size))
            for part, size in zip(parts, sums, strict=True)
        ]
    up = 8 * result.communication.floats_up
    total = f"{_bytes(sum(sent))} in all, {_bytes(up)} of them from the sites, 8 bytes per number."
    return section("What was sent", text(total), bars(items, "Bytes by round"))


def _bytes(size: float) -> str:
    for unit, scale in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if size >= scale:
            return f"{size / scale:.3g} {unit}"
    return f"{size:.0f} B"


def _sites(result: "Result") -> str:
    """Every site, or, where there are many, how many there are of each size."""
    sizes = np.array(list(result.site_sizes.values()), dtype=float)
    if not len(sizes):
        return ""
    d, private = result.coef_matrix.size, math.isfinite(result.privacy.mu)
    worth = rates.effective_sizes(sizes, d, result.privacy.mu) if private else sizes
    summary = f"{len(sizes):,} sites with {sizes.sum():,.0f} rows."
    if private and result.model.has_coefficients:
        summary += (
            f" Under this budget they are worth {worth.sum():,.0f} rows without privacy, by the rates of the theory "
            "(up to constants): a site with few rows protects its people at a greater cost."
        )
    if len(sizes) > MAX_LINES:
        edges = np.unique(np.round(np.geomspace(max(sizes.min(), 1), sizes.max() + 1, GROUPS + 1)))
        counts, _ = np.histogram(sizes, edges)
        items = [
            (f"{low:,.0f} to {high - 1:,.0f} rows", float(count), f"{count:,} sites")
            for low, high, count in zip(edges[:-1], edges[1:], counts, strict=True)
        ]
        return section("Sites", text(summary), bars(items, "Sites by size"))
    order = np.argsort(-sizes, kind="stable")
    names = list(result.site_sizes)
    items = [
        (names[i], float(sizes[i]), f"{sizes[i]:,.0f}" + (f", worth {worth[i]:,.0f}" if private else "")) for i in order
    ]
    return section("Sites", text(summary), bars(items, "Rows of each site"))


def _settings(result: "Result") -> str:
    found = result.resolved_values()
    rows = [
        [name, ", ".join(f"{k}={v}" for k, v in value.items()) if isinstance(value, dict) else str(value)]
        for name, value in [*result.fit_arguments().items(), ("clip norm that was used", found["clip_norm"])]
    ]
    scales = [
        [name, tables.short_number(pair[0]), tables.short_number(pair[1])] for name, pair in found["scales"].items()
    ]
    heads = ["feature", "centre", "scale"]
    return "\n".join(
        [
            table(["setting", "value"], rows),
            folded("centre and scale of each feature", table(heads, scales, heads[1:])),
            text(_versions(), "small"),
        ]
    )


def _versions() -> str:
    found = []
    for name in ("numpy", "scipy", "numba", "pandas", "torch", "flwr"):
        try:
            found.append(f"{name} {version(name)}")
        except PackageNotFoundError:
            continue
    return f"fedmest {__version__}, Python {platform.python_version()}, {', '.join(found)}."


# -- of several fits -----------------------------------------------------------------------------------------


def compare_page(title: str, results: Mapping[str, "Result"]) -> str:
    """Page of one model fitted by several methods."""
    rows = []
    for name, r in results.items():
        budgets = [f"{mu:.3g}" if math.isfinite(mu) else "none" for mu in (r.privacy.mu, r.privacy.third_party_mu())]
        certified, traffic = "yes" if r.privacy.certified else "no", r.communication
        rows.append([name, *budgets, certified, str(traffic.rounds), _bytes(traffic.bytes)])
    heads = ["method", "mu", "third-party mu", "certified", "rounds", "sent"]
    private = [r for r in results.values() if math.isfinite(r.privacy.mu)]
    total = math.sqrt(sum(r.privacy.mu**2 for r in private))
    note = f"Each statement holds for its fit alone; publishing all of them costs mu = {total:.3g} together."
    promises = bullets([f"{name}: {_promise(r.privacy)}." for name, r in results.items()])
    parts = [
        section("What is guaranteed", text(GAME), promises),
        section("Methods", table(heads, rows, heads[1:]), text(note, "small") if len(private) > 1 else ""),
    ]
    for name, result in results.items():
        parts.append(_coefficients(result, result.spec.method.display_name))
        parts.append(folded(f"what is guaranteed of {name}", text(result.privacy.statement())))
    return document(title, *parts)


# -- of a plan -----------------------------------------------------------------------------------------------


def plan_page(plan: "Plan") -> str:
    """Page of a plan: the expected error of each method, and the one to choose."""
    n, assumed, best = plan.sizes, plan.population, plan.best
    over = [(c.method, c.prediction.mse / plan.pooled) for c in plan.candidates]
    shown = [(method, min(value, 10.0), f"{value:.3g}") for method, value in over if math.isfinite(value)]
    return document(
        f"A plan: {assumed.model.label} regression at {len(n):,} sites",
        text(f"{n.sum():,} rows, {assumed.columns} coefficients, mu = {plan.mu:g}. No row was read.", "small"),
        section("Choose", f"<pre><code>{escape(plan.fit_call)}</code></pre>",
                text(f"Expected error: {best.prediction.mse / plan.pooled:.3g} times that of the pooled fit without "
                     f"privacy; a slope will be known to ±\N{NO-BREAK SPACE}{best.half_width:.2g} (95 %).")),
        section("Every method", text("Mean squared error over that of the pooled fit, bars cut at 10:"),
                bars(shown, "Expected error of each method over that of the pooled fit"),
                table(tables.PLAN_HEADS, tables.plan_rows(plan), tables.PLAN_HEADS[1:]),
                text(tables.PLAN_LEGEND, "small")),
        section("How to read it", bullets(tables.plan_notes(plan))),
        text(_versions(), "small"),
    )  # fmt: skip


# -- of audits -----------------------------------------------------------------------------------------------


def audit_page(entries: Sequence[dict[str, Any]], drawn: "AuditResult | None" = None) -> str:
    """Page of audits: what attacks found, compared with what is claimed."""
    refuted = [e for e in entries if e["verdict"] == "refuted" and e["certified"]]
    verdict = (
        badge("A certified claim is refuted.", "bad") if refuted else badge("No certified claim is refuted.", "good")
    )
    curve = ""
    if drawn is not None and len(drawn.scores[0]):
        legend = "Blue: the most that the claim allows. Red: what the attack achieved, over all thresholds."
        curve = section("The attack", figure(trade_off(drawn.mu_claimed, drawn.roc()), legend))
    return document(
        "Attacks on our own releases",
        text(verdict),
        curve,
        section(
            "Claims and findings",
            table(tables.AUDIT_HEADS, tables.audit_rows(entries), tables.AUDIT_NUMBERS),
            text(tables.audit_legend(entries), "small"),
        ),
        text(_versions(), "small"),
    )
