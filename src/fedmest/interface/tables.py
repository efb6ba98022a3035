"""Tables as texts: column heads and rows, which the terminal, the pages and the explorer lay out in their own way."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from fedmest.core.text import printable

if TYPE_CHECKING:
    from fedmest.runs.plan import Plan
    from fedmest.runs.result import Result

PLAN_HEADS = ("method", "MSE", "/ pooled", "sampling", "privacy", "to go", "bias", "±", "rounds", "MB", "SE")
PLAN_LEGEND = (
    "MSE: summed over the coefficients, of features at unit scale; its parts are sampling error, privacy noise, the "
    "distance to the optimum that is left after the last round, and the bias of averaging. ±: half-width of a 95 % "
    "interval for a slope. SE: whether standard errors are available."
)
AUDIT_HEADS = ("method", "model", "calibration", "claim", "found", "exact", "verdict", "attack")
AUDIT_NUMBERS = ("claim", "found", "exact")


def short_number(value: float) -> str:
    """Four decimals, or powers of ten where these would show nothing."""
    return f"{value:.4f}" if 1e-2 <= abs(value) < 1e5 or value == 0 else f"{value:.2e}"


def aligned_numbers(values: Sequence[float]) -> list[str]:
    """Five decimals, so that columns line up; powers of ten where these would show nothing."""
    plain = 1e-3 <= max(abs(v) for v in values) < 1e5 or not any(values)
    return [f"{v:.5f}" if plain else f"{v:.3e}" for v in values]


class Block(NamedTuple):
    """Rows under a title: those of one class, or, without a title, all of them."""

    title: str
    rows: list[list[str]]


def coefficient_table(result: "Result") -> tuple[list[str], list[Block]]:
    """Heads and rows of a result's coefficients, with standard errors where there are any.

    Without them, classes stand side by side in one block; with them, one block per class.
    """
    labels = [printable(str(label)) for label in result.model.classes] if result.model.outputs > 1 else []
    names = [printable(name) for name in result.param_names]
    if result.covariance.total is None:
        rows = [[name, *aligned_numbers(result.coef_matrix[:, j].tolist())] for j, name in enumerate(names)]
        return ["", *(labels or ["coef"])], [Block("", rows)]
    frame = result.summary_frame()
    columns = [str(column) for column in frame.columns]
    tests = [column in ("z", "t") or column.startswith("P>") for column in columns]
    texts = [
        [f"{value:.3f}" if test else short_number(float(value)) for test, value in zip(tests, row, strict=True)]
        for row in frame.itertuples(index=False)
    ]
    blocks = [
        Block(
            f"class {label}" if labels else "",
            [[name, *text] for name, text in zip(names, texts[at : at + len(names)], strict=True)],
        )
        for label, at in zip(labels or [""], range(0, len(texts), len(names)), strict=True)
    ]
    heads = {"lower": "[0.025", "upper": "0.975]"}
    return ["", *(heads.get(column, column) for column in columns)], blocks


def coefficient_lines(result: "Result") -> list[str]:
    """The coefficient table as lines of text; for a network, the number of its parameters."""
    if not result.model.has_coefficients:
        return [f"{result.coef_matrix.size:,} parameters for {len(result.model.classes)} classes"]
    heads, blocks = coefficient_table(result)
    width = 13 if result.covariance.total is None else 11
    first = max(len(name) for block in blocks for name, *_ in block.rows)
    lines = [" " * first + "".join(f"{head[: width - 1]:>{width}}" for head in heads[1:])]
    for block in blocks:
        lines += [block.title] if block.title else []
        lines += [f"{name:<{first}}" + "".join(f"{text:>{width}}" for text in texts) for name, *texts in block.rows]
    return lines


def side_by_side(results: Mapping[str, "Result"], difference: bool = False) -> tuple[list[str], list[Block]]:
    """Coefficients of several results, one column per result; with `difference`, last minus first in another column."""
    first = next(iter(results.values()))
    blocks = []
    for number in range(len(first.coef_matrix)):
        rows = []
        for j, name in enumerate(map(printable, first.param_names)):
            values = [float(result.coef_matrix[number, j]) for result in results.values()]
            rows.append([name, *aligned_numbers([*values, values[-1] - values[0]] if difference else values)])
        title = printable(f"class {first.model.classes[number]}") if len(first.coef_matrix) > 1 else ""
        blocks.append(Block(title, rows))
    return ["", *results, *(["difference"] if difference else [])], blocks


def plan_rows(plan: "Plan") -> list[list[str]]:
    """One row per method, under PLAN_HEADS."""
    rows = []
    for c in plan.candidates:
        p = c.prediction
        shares = [f"{100 * part / p.mse:.0f} %" for part in (p.sampling, p.privacy, p.optimisation, p.bias)]
        rows.append([
            c.method, f"{p.mse:.3g}", f"{p.mse / plan.pooled:.3g}", *shares, f"{c.half_width:.2g}", f"{c.rounds:,}",
            f"{c.bytes / 1e6:.3g}", "yes" if c.has_intervals else "no",
        ])  # fmt: skip
    return rows


def plan_notes(plan: "Plan") -> list[str]:
    """What the table is to be compared with, and what was assumed."""
    assumed = plan.population
    notes = [
        f"The pooled fit without privacy would have {plan.pooled:.3g}. Lower bound for any private method, up to "
        f"constants: {plan.lower_bound:.3g}. The rows are worth {plan.effective_rows:,.0f} without privacy.",
        f"Assumed of the rows: intercept {assumed.intercept:g}, slopes of length {assumed.slopes:g}, normal features "
        f"with standard deviation {assumed.feature_sd:g}. No row was read.",
    ]
    if plan.best.prediction.mse > assumed.length(assumed.truth):
        notes.append(
            "This budget is too small for so few rows: zero for every coefficient would be closer to the truth."
        )
    return notes + [f"Left out: {name}: {why}" for name, why in plan.left_out.items()]


def audit_rows(entries: Sequence[dict[str, Any]]) -> list[list[str]]:
    """One row per audit, under AUDIT_HEADS."""
    rows = []
    for entry in entries:
        variant = "".join(f", {name}={value}" for name, value in entry["settings"].items())
        exact = f"{entry['mu_exact']:.3f}" if entry["mu_exact"] is not None else ""
        found = "no limit" if entry["leak"] else f"{entry['mu_lower']:.3f}"
        rows.append([
            entry["method"], entry["model"], entry["calibration"] + variant, f"{entry['mu_claimed']:.3f}", found, exact,
            entry["verdict"], entry["leak"] or entry["scenario"],
        ])  # fmt: skip
    return rows


def audit_legend(entries: Sequence[dict[str, Any]]) -> str:
    """Meaning of the columns of a table of audits."""
    first = entries[0]
    seen = "every reply of the site" if first["observer"] == "server" else "only the published estimate"
    return (
        f"claim: mu as the run states it. found: no smaller mu is possible, with {100 * first['confidence']:g} % "
        f"confidence, from games in which the attacker sees {seen}. exact: what the best test of this attack would "
        "find, where all replies are Gaussian. An attack that finds little proves nothing: there may be better ones."
    )
