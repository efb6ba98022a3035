"""The pages themselves: of a fit, of several, of a plan, of audits."""

import math
import platform
from collections.abc import Sequence
from html import escape
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Any

import numpy as np

from fedmest import __version__
from fedmest.report.page import bars, bullets, document, forest, section, table, text, trade_off
from fedmest.result import short
from fedmest.tables import AUDIT, PLAN, PLAN_LEGEND, audit_legend, audit_rows, plan_notes, plan_rows
from fedmest.theory import bounds

if TYPE_CHECKING:
    from fedmest.auditing import Audit
    from fedmest.planner import Advice
    from fedmest.privacy.statement import PrivacyReport
    from fedmest.result import Result

MOST_LINES = 60  # of a list of rounds or sites; beyond, groups are shown
GROUPS = 12
GAME = (
    "Suppose that somebody who knows all rows but one, and sees everything that was sent, has to tell whether a "
    "person's row is in the data or another in its place."
)


# -- of a fit ------------------------------------------------------------------------------------------------


def fit_page(result: "Result") -> str:
    """What a board, a data officer and an investigator ask, in that order."""
    return document(
        f"{_capital(result.model.name)}{' regression' if result.model.linear else ''}, "
        f"{result.settings['method_title']}",
        text(f"{result.settings['n_rows']:,} rows at {result.settings['n_sites']:,} sites, "
             f"{result.communication.rounds} rounds, {result.communication.bytes:,} bytes", "small"),
        _guarantee(result), _coefficients(result), _budget(result), _traffic(result), _sites(result),
        section("Settings, to run it again", _settings(result)),
    )  # fmt: skip


def _capital(name: str) -> str:
    return name[:1].upper() + name[1:]


def notebook(result: "Result") -> str:
    """A table and the guarantee, without a style of its own."""
    heads, rows = _rows(result)
    return f"{table(heads, rows, heads[1:])}{text(result.privacy.statement(), 'small')}"


def _guarantee(result: "Result") -> str:
    privacy = result.privacy
    if math.isinf(privacy.mu):
        told = f"<p><span class=bad>Not private.</span> {escape(privacy.statement())}</p>"
        return section("What is guaranteed", told)
    badge = "<span class=good>Certified</span>" if privacy.certified else "<span class=bad>Not certified</span>"
    proved = "every noise follows from a sensitivity that the code proves"
    why = proved if privacy.certified else "for the reasons below"
    plain = f"{GAME} A coin would be right half of the time; {_promise(privacy)}."
    caveats = section("Not covered", bullets(privacy.caveats)) if privacy.caveats else ""
    statement = privacy.statement().split(" Not covered:")[0]
    return (
        section("What is guaranteed", f"<p>{badge}: {escape(why)}.</p>", text(plain),
                f"<div class=statement>{text(statement)}</div>",
                f"<figure style='margin:1rem 0'>{trade_off(privacy.mu)}<figcaption class=small>How often a row can be "
                "found at best, against false alarms. The dotted line is guessing.</figcaption></figure>")
        + caveats
    )  # fmt: skip


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
    heads, rows = _rows(result)
    if not result.model.linear:
        return section(title, text(result.table()[0]))
    uncertainty = result.uncertainty
    drawn = []
    if uncertainty.total is not None:
        reach = uncertainty.quantile(0.95)
        total = reach * np.sqrt(np.diag(uncertainty.total)).reshape(result.coefficients.shape)
        sampling, together = uncertainty.sampling, uncertainty.together
        inner = total if together or sampling is None else reach * np.sqrt(np.diag(sampling)).reshape(total.shape)
        for block, label in enumerate(result.model.classes if result.model.outputs > 1 else ("",)):
            if str(label):
                drawn.append(f"<h3>class {escape(str(label))}</h3>" if result.model.outputs > 1 else "")
            slopes = slice(int(result.fit_intercept and len(result.names) > 1), None)  # an intercept has its own scale
            drawn.append(forest(result.names[slopes], result.coefficients[block, slopes], inner[block, slopes],
                                total[block, slopes], "Estimates with 95 % intervals"))  # fmt: skip
        key = (
            "95 % intervals" if together or math.isinf(result.privacy.mu)
            else "95 % intervals:<span class='key deep'></span>sampling error alone<span class='key pale'></span>with "
            "privacy noise"
        )  # fmt: skip
        drawn.append(f"<p class=small>{key}. {escape(result.how_sure())}</p>")
    else:
        drawn.append(text(result.how_sure(), "small"))
    return section(title, *drawn, table(heads, rows, heads[1:], f"coefficients, {result.settings['method_title']}"))


def _rows(result: "Result") -> tuple[list[str], list[list[str]]]:
    """The coefficient table as texts."""
    if not result.model.linear:
        return ["estimate", "parameters"], [["network", f"{result.theta.size:,}"]]
    if result.uncertainty.total is None:
        labels = [str(c) for c in result.model.classes] if result.model.outputs > 1 else ["coef"]
        values = [[name, *(short(v) for v in result.coefficients[:, j])] for j, name in enumerate(result.names)]
        return ["column", *labels], values
    frame = result.frame()
    rows = []
    for label, row in zip(frame.index, frame.itertuples(index=False), strict=True):
        name = " / ".join(label) if isinstance(label, tuple) else str(label)
        told = [
            f"{v:.3f}" if c in ("z", "t") or c.startswith("P>") else short(float(v))
            for c, v in zip(frame.columns, row, strict=True)
        ]
        rows.append([name, *told])
    return ["column", *map(str, frame.columns)], rows


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
        "Where the budget went", text(f"Shares of mu squared, which adds up; mu = {privacy.mu:.4g} in all."),
        bars(spent, "Shares of the budget by purpose"),
        _folded("by round", bars(_grouped(rounds), "Shares of the budget by round")),
    )  # fmt: skip


def _grouped(rounds: list[tuple[str, float, str]]) -> list[tuple[str, float, str]]:
    """Rounds one by one, or a few together where there are many."""
    if len(rounds) <= MOST_LINES:
        return rounds
    parts = np.array_split(np.arange(len(rounds)), GROUPS)
    sums = [sum(rounds[i][1] for i in part) for part in parts]
    return [
        (f"rounds {part[0] + 1} to {part[-1] + 1}", total, f"{100 * total:.1f} %")
        for part, total in zip(parts, sums, strict=True)
    ]


def _folded(title: str, body: str) -> str:
    return f"<details><summary>{escape(title)}</summary>{body}</details>"


def _traffic(result: "Result") -> str:
    rounds = result.communication.by_round
    sent = [8 * (r.floats_up + r.floats_down) for r in rounds]
    items = [
        (f"{number + 1}: {r.query}", float(size), f"{_bytes(size)}, {r.sites:,} sites")
        for number, (r, size) in enumerate(zip(rounds, sent, strict=True))
    ]
    if len(items) > MOST_LINES:
        parts = np.array_split(np.arange(len(items)), GROUPS)
        sums = [sum(sent[i] for i in part) for part in parts]
        items = [
            (f"rounds {part[0] + 1} to {part[-1] + 1}", float(size), _bytes(size))
            for part, size in zip(parts, sums, strict=True)
        ]
    up = 8 * result.communication.floats_up
    told = f"{_bytes(sum(sent))} in all, {_bytes(up)} of them from the sites, 8 bytes a number."
    return section("What was sent", text(told), bars(items, "Bytes by round"))


def _bytes(size: float) -> str:
    for unit, scale in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if size >= scale:
            return f"{size / scale:.3g} {unit}"
    return f"{size:.0f} B"


def _sites(result: "Result") -> str:
    """Every site, or, where there are many, how many there are of each size."""
    sizes = np.array(list(result.sites.values()), dtype=float)
    if not len(sizes):
        return ""
    d, private = result.coefficients.size, math.isfinite(result.privacy.mu)
    worth = bounds.effective_sizes(sizes, d, result.privacy.mu) if private else sizes
    told = f"{len(sizes):,} sites with {sizes.sum():,.0f} rows."
    if private and result.model.linear:
        told += (
            f" Under this budget they are worth {worth.sum():,.0f} rows without privacy, by the rates of the theory "
            "(up to constants): a site with few rows hides its people at a greater cost."
        )
    if len(sizes) > MOST_LINES:
        edges = np.unique(np.round(np.geomspace(max(sizes.min(), 1), sizes.max() + 1, GROUPS + 1)))
        counts, _ = np.histogram(sizes, edges)
        items = [
            (f"{low:,.0f} to {high - 1:,.0f} rows", float(count), f"{count:,} sites")
            for low, high, count in zip(edges[:-1], edges[1:], counts, strict=True)
        ]
        return section("Sites", text(told), bars(items, "Sites by size"))
    order = np.argsort(-sizes, kind="stable")
    names = list(result.sites)
    items = [
        (names[i], float(sizes[i]), f"{sizes[i]:,.0f}" + (f", worth {worth[i]:,.0f}" if private else "")) for i in order
    ]
    return section("Sites", text(told), bars(items, "Rows of each site"))


def _settings(result: "Result") -> str:
    settings = result.settings
    rows = [
        [name, ", ".join(f"{k}={v}" for k, v in value.items()) if isinstance(value, dict) else str(value)]
        for name, value in settings.items()
        if name not in ("method_title", "scales", "network")
    ]
    scales = [[name, short(pair[0]), short(pair[1])] for name, pair in settings.get("scales", {}).items()]
    heads = ["feature", "centre", "scale"]
    return "\n".join(
        [table(["setting", "value"], [["model", result.model.name], ["method", result.method], *rows]),
         _folded("centre and scale of each feature", table(heads, scales, heads[1:])),
         text(_versions(), "small")]
    )  # fmt: skip


def _versions() -> str:
    found = []
    for name in ("numpy", "scipy", "numba", "pandas", "torch", "flwr"):
        try:
            found.append(f"{name} {version(name)}")
        except PackageNotFoundError:
            continue
    return f"fedmest {__version__}, Python {platform.python_version()}, {', '.join(found)}."


# -- of several fits -----------------------------------------------------------------------------------------


def compare_page(title: str, results: dict[str, "Result"]) -> str:
    """The same model by several methods."""
    rows = []
    for name, r in results.items():
        budgets = [f"{mu:.3g}" if math.isfinite(mu) else "none" for mu in (r.privacy.mu, r.privacy.third_party)]
        certified, traffic = "yes" if r.privacy.certified else "no", r.communication
        rows.append([name, *budgets, certified, str(traffic.rounds), _bytes(traffic.bytes)])
    heads = ["method", "mu", "third-party mu", "certified", "rounds", "sent"]
    private = [r for r in results.values() if math.isfinite(r.privacy.mu)]
    together = math.sqrt(sum(r.privacy.mu**2 for r in private))
    told = f"Each statement holds for its fit alone; publishing all of them costs mu = {together:.3g} together."
    promises = bullets([f"{name}: {_promise(r.privacy)}." for name, r in results.items()])
    parts = [
        section("What is guaranteed", text(GAME), promises),
        section("Methods", table(heads, rows, heads[1:]), text(told, "small") if len(private) > 1 else ""),
    ]
    for name, result in results.items():
        parts.append(_coefficients(result, result.settings["method_title"]))
        parts.append(_folded(f"what is guaranteed of {name}", text(result.privacy.statement())))
    return document(title, *parts)


# -- of a plan -----------------------------------------------------------------------------------------------


def plan_page(advice: "Advice") -> str:
    """What each method is expected to achieve, and the one to choose."""
    n, assumed, best = advice.sizes, advice.population, advice.best
    over = [(c.method, c.prediction.mse / advice.pooled) for c in advice.candidates]
    shown = [(method, min(value, 10.0), f"{value:.3g}") for method, value in over if math.isfinite(value)]
    return document(
        f"A plan: {assumed.model.name} regression at {len(n):,} sites",
        text(f"{n.sum():,} rows, {assumed.columns} coefficients, mu = {advice.mu:g}. No row was read.", "small"),
        section("Choose", f"<pre><code>{escape(advice.fit_call)}</code></pre>",
                text(f"Expected error: {best.prediction.mse / advice.pooled:.3g} times that of the pooled fit without "
                     f"privacy; a slope will be known to ±\N{NO-BREAK SPACE}{best.half_width:.2g} (95 %).")),
        section("Every method", text("Mean squared error over that of the pooled fit, bars cut at 10:"),
                bars(shown, "Expected error of each method over that of the pooled fit"),
                table(PLAN, plan_rows(advice), PLAN[1:]), text(PLAN_LEGEND, "small")),
        section("How to read it", bullets(plan_notes(advice))),
        text(_versions(), "small"),
    )  # fmt: skip


# -- of audits -----------------------------------------------------------------------------------------------


def audit_page(entries: Sequence[dict[str, Any]], drawn: "Audit | None" = None) -> str:
    """What attacks found beside what is claimed."""
    broken = [e for e in entries if e["verdict"] == "refuted" and e["certified"]]
    verdict = (
        "<p><span class=bad>A certified claim is refuted.</span></p>" if broken
        else "<p><span class=good>No certified claim is refuted.</span></p>"
    )  # fmt: skip
    curve = ""
    if drawn is not None and len(drawn.scores[0]):
        told = "Blue: the most that the claim allows. Red: what the attack achieved, over all thresholds."
        curve = section("The attack", trade_off(drawn.mu_claimed, drawn.roc()), text(told, "small"))
    return document(
        "Attacks on our own releases", verdict, curve,
        section("Claims and findings", table(AUDIT, audit_rows(entries), ["claim", "found", "exact"]),
                text(audit_legend(entries), "small")),
        text(_versions(), "small"),
    )  # fmt: skip
