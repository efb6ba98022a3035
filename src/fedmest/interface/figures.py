"""Figures of the studies: the paper's calibration above, certified below, on one axis so that they can be compared."""

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from scipy import stats

from fedmest.core.exceptions import InputError
from fedmest.methods import METHODS
from fedmest.studies.base import CALIBRATIONS, PAPER_METHODS, POOLED, Study
from fedmest.studies.cells import Estimator, Point, Sizes
from fedmest.studies.definitions.anatomy import STAGES
from fedmest.studies.summary import ErrorTable, Place, power

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from fedmest.auditing import AuditResult


WIDTH = 10.0  # inches; on a page 1,000 pixels wide 8 points are 11 pixels
SMALL, LINE = 8.0, 9.6  # points: letters, and from one line to the next
DECADES = 4  # where means span one more, the axis ends here: a method that fails would flatten all the others
STYLE: dict[Any, Any] = {
    "font.size": 9, "axes.titlesize": 10, "xtick.labelsize": SMALL, "ytick.labelsize": SMALL, "legend.fontsize": SMALL,
    "axes.linewidth": 0.6, "axes.grid": True, "axes.grid.axis": "y", "axes.axisbelow": True, "grid.color": "0.9",
    "grid.linewidth": 0.5, "lines.linewidth": 1.2, "lines.markersize": 5, "legend.frameon": False,
    "legend.columnspacing": 1.4, "svg.fonttype": "none", "svg.hashsalt": "fedmest",
}  # fmt: skip
ROWS = {"paper": "paper's calibration", "certified": "certified (ours)"}
MSE, AXES = "mean squared error", {"m": "number of sites m", "K": "iterations K"}
MARKERS = "osD^vP"
# Okabe and Ito's colours, which colour-blind readers tell apart
METHOD_COLOURS = {
    "fedsgd": "#0072B2",
    "fedhybrid": "#CC79A7",
    "fedavg": "#E69F00",
    "fednewton": "#D55E00",
    "fedirls": "#009E73",
    "scaffold": "#56B4E9",
    "fednewton-iter": "#D55E00",
    "fedsgd-m": "#009E73",
}
CAUSES = {"algorithm": "#0072B2", "clipping": "#E69F00", "noise": "#D55E00"}  # what each of STAGES adds
GREY, BROKEN = "0.45", "×"
EDGE = {"^": "beyond the axis (value printed)", ">": "beyond the axis (largest value printed)", "x": "a fit broke down"}


def check_installed() -> None:
    """Raise an InputError before hours of work if matplotlib is missing."""
    if find_spec("matplotlib") is None:
        raise InputError("figures need matplotlib: pip install 'fedmest[studies]'")


def draw(errors: ErrorTable, folder: Path) -> list[Path]:
    """Draw a study of which every place has been computed: <study id>.png and <study id>.svg in the folder."""
    import matplotlib

    folder.mkdir(parents=True, exist_ok=True)
    png, svg = (folder / f"{errors.study.id}.{kind}" for kind in ("png", "svg"))
    with matplotlib.rc_context(STYLE):
        figure = DRAWINGS.get(errors.study.layout.lines, _curves)(errors)
        # neither date nor version, so that the same results give the same files
        figure.savefig(png, dpi=130, metadata={"Software": None})
        figure.set_layout_engine("none")  # it has been laid out
        figure.savefig(svg, metadata={"Date": None, "Creator": None})
    return [png, svg]


def _curves(errors: ErrorTable) -> "Figure":
    """MSE against what runs along the horizontal axis, with standard errors."""
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    study, layout = errors.study, errors.study.layout
    panels = PAPER_METHODS if layout.panels == "method" else _values(study, layout.panels)
    looks = _looks(study)
    own_rows = layout.lines == "n"  # lines by method or budget share their rows, and with them the pooled fit
    reference: dict[str, Any] = {"ls": ":", "lw": 1.0} if own_rows else {"ls": "--", "lw": 1.2}
    low, high = _range(errors)
    figure, grid = _grid(panels, AXES[layout.x], height=5.6)
    beyond: dict[tuple[Axes, float], list[tuple[str, Any]]] = defaultdict(list)
    for row, calibration in enumerate(CALIBRATIONS):
        for ax, panel in zip(grid[row], panels, strict=True):
            for value, look in looks.items():
                places = _line(study, calibration, {layout.panels: panel, layout.lines: value})
                if not places:
                    continue
                x = [float(_value(point, layout.x)) for point, _ in places]
                if own_rows or value == next(iter(looks)):
                    pooled = [errors.mse(point, POOLED)[0] for point, _ in places]
                    ax.plot(x, pooled, color=look["color"] if own_rows else GREY, **reference)
                fits = [errors.mse(*place) for place in places]
                below, above = zip(*(_band(*fit) for fit in fits), strict=True)
                ax.fill_between(x, below, above, color=look["color"], alpha=0.18, lw=0)
                ax.plot(x, [mean if math.isfinite(mean) else math.nan for mean, _ in fits], **look)
                for at, (mean, _) in zip(x, fits, strict=True):
                    if mean > high:
                        beyond[ax, at].append((_short(mean), look["color"]))
    for (ax, at), texts in beyond.items():
        _at_edge(ax, "^", at, texts)
    deepest = max((len(texts) for (ax, _), texts in beyond.items() if ax in grid[0]), default=0)
    for ax in grid[0]:  # clear of what is printed over a panel
        ax.set_title(ax.get_title(), pad=6 + LINE * deepest + 3 * bool(deepest))
    figure.supylabel(MSE, size=9)
    shared = grid[0, 0]
    shared.set(yscale="log", ylim=(low, high))
    shared.set_xticks(_values(study, layout.x))
    shared.set_xticks([], minor=True)
    shared.yaxis.set_major_formatter("{x:g}")
    handles = [
        *(Line2D([], [], **look) for look in looks.values()),
        Line2D([], [], color=GREY, label="pooled, not private", **reference),
        Patch(color=GREY, alpha=0.3, lw=0, label="± 1 standard error"),
    ]
    _legend(figure, handles, "^", {text for texts in beyond.values() for text, _ in texts})
    return figure


def _anatomy(errors: ErrorTable) -> "Figure":
    """What each step from the pooled fit to the private one adds to the error, point by point."""
    from matplotlib.lines import Line2D

    points, colours = errors.study.points, list(CAUSES.values())
    low, high = _range(errors)
    figure, grid = _grid(PAPER_METHODS, MSE, height=8.4)
    printed = set()
    start: dict[str, Any] = {"color": GREY, "marker": "|", "ms": 8, "mew": 2, "ls": ""}
    for row, calibration in enumerate(CALIBRATIONS):
        for ax, method in zip(grid[row], PAPER_METHODS, strict=True):
            stages = [POOLED, *(Estimator(method, calibration, mu) for mu in STAGES)]
            means = [[errors.mse(point, estimator)[0] for estimator in stages] for point in points]
            ax.plot([steps[0] for steps in means], [y - 0.25 for y in range(len(points))], **start)
            for i, colour in enumerate(colours):
                # one line, broken after each point; a little below the step before, which a step back would hide
                x = [end for steps in means for end in (*(min(mean, 10 * high) for mean in steps[i : i + 2]), math.nan)]
                levels = [y + 0.25 * (i - 1) for y in range(len(points)) for _ in range(3)]
                ax.plot(x, levels, color=colour, marker="o", ms=4, mew=0, markevery=(1, 3))
            for y, steps in enumerate(means):
                worst = max(steps)
                if worst > high:
                    printed.add(_short(worst))
                    _at_edge(ax, ">", y, [(_short(worst), colours[steps.index(worst) - 1])])
            ax.grid(False, axis="y")
            ax.grid(True, axis="x")
            ax.hlines([y + 0.5 for y in range(len(points) - 1)], low, high, color="0.9", lw=0.5, zorder=0)
        grid[row, 0].text(-0.03, 1.01, "sites × rows", transform=grid[row, 0].transAxes, ha="right", size=SMALL)
    shared = grid[0, 0]
    shared.set(xlim=(low, high), ylim=(len(points) - 0.4, -0.6))
    shared.minorticks_off()
    shared.set_yticks(range(len(points)), [_site_sizes(point) for point in points])
    handles = [
        Line2D([], [], label="pooled, not private", **start),
        *(Line2D([], [], color=colour, marker="o", ms=4, label=f"+ {cause}") for cause, colour in CAUSES.items()),
    ]
    _legend(figure, handles, ">", printed)
    return figure


def _boxes(errors: ErrorTable) -> "Figure":
    """Scores over sites, one box per estimator, grey without privacy. Boxes far below the others are cut off."""
    from matplotlib.figure import Figure

    study = errors.study
    (point,) = study.points
    budgets = list(dict.fromkeys(e.mu for e in study.estimators if e.mu is not None))
    scores = {e: 1.0 - errors.at(point, e) for e in study.estimators}
    lows = sorted(float(v.min()) for v in scores.values())
    low = next(v for v in lows if v > lows[-1] - 3 * (lows[-1] - lows[len(lows) // 2]) - 0.02)
    high = max(float(v.max()) for v in scores.values())
    figure = Figure((WIDTH, 6.4), layout="constrained")
    grid = figure.subplots(len(CALIBRATIONS), len(budgets), sharex=True, sharey=True, squeeze=False)
    for row, calibration in zip(grid, CALIBRATIONS, strict=True):
        for ax, mu in zip(row, budgets, strict=True):
            private = [Estimator(method, calibration, mu) for method in study.methods]
            shown = [*private, *(e for e in study.estimators if e.mu is None)]
            boxes = ax.boxplot(
                [scores[e] for e in shown],
                widths=0.6,
                patch_artist=True,
                medianprops={"color": "black", "lw": 1.2},
                flierprops={"marker": ".", "ms": 3, "mec": "none", "mfc": "0.6"},
                boxprops={"lw": 0.6},
                whiskerprops={"lw": 0.6},
                capprops={"lw": 0.6},
            )
            for place, (box, e) in enumerate(zip(boxes["boxes"], shown, strict=True), start=1):
                box.set_facecolor(METHOD_COLOURS.get(e.method, "0.85"))
                middle = float(np.median(scores[e]))
                if middle < low:
                    ax.plot(place, 0.0, "v", color="black", ms=4, transform=ax.get_xaxis_transform(), clip_on=False)
                    ax.annotate(
                        f"{middle:.2f}",
                        (place, 0.0),
                        (0, 6),
                        xycoords=ax.get_xaxis_transform(),
                        textcoords="offset points",
                        ha="center",
                        size=SMALL,
                    )
            best = max(float(np.median(scores[e])) for e in private)
            ax.axhline(best, color=GREY, lw=0.8, ls=":")
            ax.set_xticks(
                range(1, len(shown) + 1), [METHODS[e.method].display_name for e in shown], rotation=40, ha="right"
            )
            if calibration == CALIBRATIONS[0]:
                ax.set_title(_title(mu))
            ax.label_outer(remove_inner_ticks=True)
        row[0].set_ylabel(f"{ROWS[calibration]}\n{study.source.measure} of a site")
    pad = 0.04 * (high - low)
    grid[0, 0].set_ylim(low - pad, high + pad)
    return figure


def _accuracies(errors: ErrorTable) -> "Figure":
    """Median accuracy of the runs against what varies, one panel per calibration; bars from worst to best run."""
    from matplotlib.figure import Figure

    study = errors.study
    x = [point.m if study.layout.x == "m" else point.sizes.mean for point in study.points]
    figure = Figure((WIDTH, 3.8), layout="constrained")
    panels = figure.subplots(1, len(CALIBRATIONS), sharex=True, sharey=True)
    for ax, calibration in zip(panels, CALIBRATIONS, strict=True):
        for method, marker in zip(study.methods, MARKERS, strict=False):
            if Estimator(method, calibration) not in study.estimators:
                continue
            runs = [1.0 - errors.at(point, Estimator(method, calibration)) for point in study.points]
            middle = [float(np.median(r)) for r in runs]
            reach = [
                [m - r.min() for m, r in zip(middle, runs, strict=True)],
                [r.max() - m for m, r in zip(middle, runs, strict=True)],
            ]
            ax.errorbar(x, middle, reach, label=METHODS[method].display_name, color=METHOD_COLOURS[method],
                        marker=marker, mec="white", mew=0.5, elinewidth=0.8, capsize=2)  # fmt: skip
        ax.set_title(ROWS[calibration])
        ax.set_xscale("log")
        ax.set_xticks(x, [f"{v:g}" for v in x])
        ax.set_xticks([], minor=True)
        ax.set_xlabel("number of sites m" if study.layout.x == "m" else "rows of a site n")
        ax.label_outer(remove_inner_ticks=True)
    panels[0].set_ylabel("test accuracy, median of runs")
    figure.legend(*panels[-1].get_legend_handles_labels(), loc="outside lower center", ncols=len(study.methods))
    return figure


def _grid(panels: Sequence[Any], xlabel: str, height: float) -> tuple["Figure", Any]:
    """One row per calibration, one column per panel, all on the same logarithmic axes: powers are lines."""
    from matplotlib.figure import Figure

    figure = Figure((WIDTH, height), layout="constrained")
    grid = figure.subplots(len(CALIBRATIONS), len(panels), sharex=True, sharey=True, squeeze=False)
    grid[0, 0].set_xscale("log")
    grid[0, 0].xaxis.set_major_formatter("{x:g}")
    for ax in grid.flat:
        ax.label_outer(remove_inner_ticks=True)
    for top, bottom, panel in zip(grid[0], grid[-1], panels, strict=True):
        top.set_title(_title(panel))
        bottom.set_xlabel(xlabel)
    for ax, calibration in zip(grid[:, 0], CALIBRATIONS, strict=True):
        ax.set_ylabel(ROWS[calibration], weight="bold")
    return figure, grid


def _at_edge(ax: "Axes", arrow: str, at: float, texts: list[tuple[str, Any]]) -> None:
    """What lies beyond the axis: an arrow on its edge, and outside the values in the colours of their lines."""
    up = arrow == "^"
    place = (at, 1.0) if up else (1.0, at)
    frame: Any = ax.get_xaxis_transform() if up else ax.get_yaxis_transform()
    if any(text != BROKEN for text, _ in texts):
        ax.plot(*place, color="black", marker=arrow, ms=4, clip_on=False, transform=frame, zorder=3)
    for i, (text, colour) in enumerate(reversed(texts)):
        ax.annotate(
            text, place, (0, 5 + LINE * i) if up else (6, 0), xycoords=frame, textcoords="offset points", color=colour,
            size=SMALL, ha="center" if up else "left", va="bottom" if up else "center_baseline", annotation_clip=False,
        )  # fmt: skip


def _legend(figure: "Figure", handles: list[Any], arrow: str, printed: set[str]) -> None:
    """Below all panels; marks at the edge are explained where there are any."""
    from matplotlib.lines import Line2D

    marks = [arrow] * bool(printed - {BROKEN}) + ["x"] * (BROKEN in printed)
    handles += [Line2D([], [], color="black", marker=mark, ms=4, ls="", label=EDGE[mark]) for mark in marks]
    figure.legend(handles=handles, loc="outside lower center", ncols=len(handles) if len(handles) <= 8 else 5)


def _line(study: Study, calibration: str, chosen: Mapping[str, Any]) -> list[Place]:
    """The places of one line, in the order of the points; none where the study has no such estimator."""
    estimator = Estimator(chosen["method"], calibration)
    if estimator not in study.estimators:
        return []
    varying = [(name, value) for name, value in chosen.items() if name != "method"]
    return [(point, estimator) for point in study.points if all(_value(point, name) == v for name, v in varying)]


def _value(point: Point, name: str) -> Any:
    return getattr(point, "sizes" if name == "n" else name)


def _values(study: Study, name: str) -> list[Any]:
    return list(dict.fromkeys(_value(point, name) for point in study.points))


def _looks(study: Study) -> dict[Any, dict[str, Any]]:
    """How lines are drawn, by what they stand for."""
    from matplotlib import colormaps

    if study.layout.lines == "method":
        values: list[Any] = list(study.methods)
        colours: list[Any] = [METHOD_COLOURS[method] for method in values]
    else:  # darkest for the smallest; sizes with the same mean get neighbouring shades
        values = _values(study, study.layout.lines)
        means = [value.mean if isinstance(value, Sizes) else value for value in values]
        ranks = [sorted(set(means)).index(m) + 0.7 * means[:i].count(m) / means.count(m) for i, m in enumerate(means)]
        colours = [colormaps["viridis"](0.85 * rank / max(*ranks, 1)) for rank in ranks]
    return {
        value: {"label": _title(value), "color": colour, "marker": marker, "mec": "white", "mew": 0.5}
        for value, colour, marker in zip(values, colours, MARKERS, strict=False)
    }


def _title(value: str | float | Sizes) -> str:
    """Of a method, a budget, or how large sites are."""
    if isinstance(value, str):
        return METHODS[value].display_name
    if isinstance(value, Sizes):
        return f"n = {value.label}" if value.total is None else f"{value.label} sizes"
    return "μ = ∞" if math.isinf(value) else f"μ = {value:g}"


def _site_sizes(point: Point) -> str:
    law = "uniform " if point.sizes.law == "uniform" else ""
    return f"{point.m} × {law}{point.sizes.label}" + (f", K = {point.K}" if point.K is not None else "")


def _band(mean: float, se: float) -> tuple[float, float]:
    """One standard error to either side, as a factor, for a logarithmic axis ends above zero."""
    return (mean / (1 + se / mean), mean + se) if math.isfinite(mean) else (math.nan, math.nan)


def _range(errors: ErrorTable) -> tuple[float, float]:
    """Of the axis that all panels share."""
    means = [errors.mse(point, estimator)[0] for point in errors.study.points for estimator in errors.study.estimators]
    finite = [mean for mean in means if math.isfinite(mean)] or [1.0]
    low, high = 0.75 * min(finite), 1.4 * max(finite)
    return low, high if high < low * 10 ** (DECADES + 1) else low * 10**DECADES


DRAWINGS = {"stage": _anatomy, "box": _boxes, "accuracy": _accuracies}  # by what Layout.lines says; else curves


def _short(mean: float) -> str:
    """Mean as a short text.

    Examples
    --------
    >>> [_short(mean) for mean in (36.2, 4.69e7, math.inf)]
    ['36.2', '5e7', '×']
    """
    if math.isinf(mean):
        return BROKEN
    return f"{mean:.3g}" if mean < 999.5 else power(mean)


def draw_roc(found: "AuditResult", path: Path) -> None:
    """The attack's ROC curve, and the most that the claim allows."""
    check_installed()
    import matplotlib
    from matplotlib import pyplot as plt

    with matplotlib.rc_context(STYLE):
        figure, axes = plt.subplots(figsize=(4.2, 4.2), layout="constrained")
        rates = np.linspace(0, 1, 500)
        claimed = stats.norm.cdf(stats.norm.ppf(rates) + found.mu_claimed)
        axes.fill_between(rates, claimed, 1, color="0.92", linewidth=0)
        axes.plot(rates, claimed, color="0.25", label=f"most that {found.mu_claimed:.3g}-GDP allows")
        axes.plot([0, 1], [0, 1], color="0.7", linestyle=":", label="guessing")
        if len(found.scores[0]):
            axes.plot(*found.roc(), color="#D55E00", label=f"attack: {found.scenario}")
        axes.set(
            xlim=(0, 1),
            ylim=(0, 1),
            xlabel="false positives",
            ylabel="true positives",
            aspect="equal",
            title=f"{found.method}, {found.model}, {found.calibration}",
        )
        axes.legend(loc="lower right")
        figure.savefig(path, dpi=150)
        plt.close(figure)
