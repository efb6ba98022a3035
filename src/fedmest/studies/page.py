"""The page of a run: verdicts first, then every figure with its settings. And the verdicts as a Markdown table."""

import html
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING

from fedmest import __version__
from fedmest.methods import METHODS
from fedmest.studies import claims
from fedmest.studies.base import CALIBRATIONS, Study
from fedmest.studies.claims import Finding
from fedmest.studies.summary import Errors

if TYPE_CHECKING:
    from fedmest.studies.reproduce import Outcome, Plan

HEADS = {"paper": "The paper's calibration", "certified": "Certified (ours)"}

STYLE = """
:root { color-scheme: light dark; --ink: #1b1f24; --paper: #ffffff; --soft: #59636e; --line: #d0d7de; --plate: #ffffff;
  --holds: #1a7f37; --fails: #b42318; --unclear: #7a5c00; }
@media (prefers-color-scheme: dark) { :root { --ink: #e6edf3; --paper: #14181d; --soft: #9ba7b4; --line: #333b44;
  --plate: #f6f8fa; --holds: #4cc26b; --fails: #ff8a80; --unclear: #e3b341; } }
body { font: 16px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--paper); max-width: 1080px;
  margin: 0 auto; padding: 1.5rem 1rem 4rem; }
h1 { font-size: 1.6rem; margin: 0 0 .5rem; } h2 { font-size: 1.2rem; margin: 2.5rem 0 .5rem; }
p, figcaption { max-width: 46rem; } figcaption, .small { color: var(--soft); font-size: .88rem; }
.wide { overflow-x: auto; } table { border-collapse: collapse; width: 100%; }
th, td { text-align: left; vertical-align: top; padding: .45rem .7rem .45rem 0; border-bottom: 1px solid var(--line); }
td.evidence { min-width: 17rem; font-size: .82rem; } tbody a { white-space: nowrap; }
.verdict { font-weight: 650; } .holds { color: var(--holds); } .fails { color: var(--fails); }
.unclear, .not-run { color: var(--unclear); } .why { color: var(--soft); display: block; margin-top: .25rem; }
figure { margin: 1rem 0 2rem; } figure img { width: 100%; background: var(--plate); border-radius: 4px; }
code { font-size: .9em; }
@media print { body { max-width: none; } figure, tr { break-inside: avoid; } }
"""

TITLE = "The paper's experiments, run again"
SIMULATED = "C1 to C7 are judged for logistic regression; C8 says whether all of them hold for Poisson."
TOLD = {
    "curves": "In simulations errors are squared distances from the true coefficients, averaged over repetitions, "
    "always beside the pooled fit without privacy on the same rows.",
    "box": "Regressions on pixels are scored on the fold that each site left out; a site's score is the mean over its "
    "five folds, and medians over sites are compared; uncertainty is that over sites, given the fits.",
    "accuracy": "Networks are scored on the official test images after the last round.",
}


def write(outcome: "Outcome", plan: "Plan", drawn: dict[str, list[Path]], folder: Path) -> None:
    """index.html and claims.md, from what was judged and drawn."""
    (folder / "index.html").write_text(_page(outcome, plan, drawn, folder), encoding="utf-8")
    (folder / "claims.md").write_text(_markdown(outcome), encoding="utf-8")


def why(finding: Finding, errors: dict[str, Errors]) -> str:
    """The cause of a failure, where the runs that isolate causes have been made."""
    isolated = errors.get(finding.study.split("-")[0] + "-anatomy")
    return claims.reason(finding, isolated) if finding.broken and isolated else ""


def _pairs(findings: list[Finding]) -> list[tuple[str, str, dict[str, Finding]]]:
    """Findings of one claim in one study side by side, by calibration."""
    found: dict[tuple[str, str], dict[str, Finding]] = {}
    for finding in findings:
        found.setdefault((finding.claim, finding.study), {})[finding.calibration] = finding
    return [(claim, study, both) for (claim, study), both in found.items()]


def _listed(outcome: "Outcome") -> dict[str, str]:
    return claims.listed(errors.study for errors in outcome.errors.values())


def _markdown(outcome: "Outcome") -> str:
    lines = [f"| claim | {' | '.join(HEADS[c].lower() for c in CALIBRATIONS)} |", "|---|---|---|"]
    for claim, text in _listed(outcome).items():
        verdicts = (claims.overall(outcome.findings, claim, c) for c in CALIBRATIONS)
        lines.append(f"| {claim}. {text} | {' | '.join(verdicts)} |")
    lines += ["", f"| claim | study | {' | '.join(HEADS[c].lower() for c in CALIBRATIONS)} |", "|---|---|---|---|"]
    for claim, study, both in _pairs(outcome.findings):
        cells = []
        for calibration in CALIBRATIONS:
            finding = both[calibration]
            cause = why(finding, outcome.errors)
            cells.append(f"**{finding.verdict}**. {finding.evidence()}." + (f" *{cause}.*" if cause else ""))
        lines.append(f"| {claim} | {study} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def _page(outcome: "Outcome", plan: "Plan", drawn: dict[str, list[Path]], folder: Path) -> str:
    body = [
        f"<h1>{TITLE}</h1>",
        f"<p>{len(outcome.errors)} studies under the paper's calibration and under ours. {' '.join(_measured(outcome))}"
        "</p>",
        "<h2>Claims</h2>",
        f"<p>{SIMULATED if 'C8' in _listed(outcome) else ''} A claim <em>fails</em> "
        "where the numbers contradict it beyond chance at any point that was looked at, <em>holds</em> "
        "where they bear it out beyond chance, and is <em>unclear</em> else (95 % confidence for all comparisons of a "
        "claim in a study together; one run alone bears nothing out).</p>",
        _verdicts(outcome),
        "<h2>Figures</h2>",
        *(_figure(outcome.errors[name].study, files, folder) for name, files in drawn.items()),
        "<h2>What the verdicts rest on</h2>",
        "<p class=small>Slopes are of the logarithm of the error on that of what varies, ± one standard error. Ratios "
        "of errors are averaged over the grid on the log scale. Where a claim about simulations fails, the last "
        "sentence says what is behind it, from runs that take the noise away, and then clipping, too (the studies "
        "called anatomy).</p>",
        _evidence(outcome),
        "<h2>To run it again</h2>",
        f"<p class=small>{_settings(outcome, plan)}</p>",
    ]  # fmt: skip
    return (
        "<!doctype html>\n<html lang=en><head><meta charset=utf-8><meta name=viewport content='width=device-width'>"
        f"<title>{TITLE}</title><style>{STYLE}</style></head>\n<body>\n"
        + "\n".join(body)
        + "\n</body></html>\n"
    )


def _measured(outcome: "Outcome") -> list[str]:
    """What an error is in the studies at hand."""
    kinds = {errors.study.layout.lines for errors in outcome.errors.values()}
    told = [TOLD[kind] for kind in ("box", "accuracy") if kind in kinds]
    return [TOLD["curves"], *told] if kinds - {"box", "accuracy"} else told


def _badge(verdict: str) -> str:
    return f"<span class='verdict {verdict.replace(' ', '-')}'>{verdict}</span>"


def _verdicts(outcome: "Outcome") -> str:
    rows = []
    for claim, text in _listed(outcome).items():
        cells = "".join(f"<td>{_badge(claims.overall(outcome.findings, claim, c))}</td>" for c in CALIBRATIONS)
        rows.append(f"<tr><th scope=row>{claim}</th><td>{text}</td>{cells}</tr>")
    heads = "".join(f"<th scope=col>{HEADS[c]}</th>" for c in CALIBRATIONS)
    return (
        f"<div class=wide><table><thead><tr><th scope=col>Claim</th><th></th>{heads}</tr></thead>"
        f"<tbody>{''.join(rows)}</tbody></table></div>"
    )


def _evidence(outcome: "Outcome") -> str:
    rows = []
    for claim, study, both in _pairs(outcome.findings):
        cells = []
        for calibration in CALIBRATIONS:
            finding = both[calibration]
            cause = why(finding, outcome.errors)
            told = f"<span class=why>{html.escape(cause)}.</span>" if cause else ""
            cells.append(f"<td class=evidence>{_badge(finding.verdict)}. {html.escape(finding.evidence())}.{told}</td>")
        rows.append(f"<tr><th scope=row>{claim}</th><td><a href='#{study}'>{study}</a></td>{''.join(cells)}</tr>")
    heads = "".join(f"<th scope=col>{HEADS[c]}</th>" for c in CALIBRATIONS)
    return (
        f"<div class=wide><table><thead><tr><th scope=col>Claim</th><th scope=col>Study</th>{heads}</tr></thead>"
        f"<tbody>{''.join(rows)}</tbody></table></div>"
    )


def _figure(study: Study, files: list[Path], folder: Path) -> str:
    png, svg = (file.relative_to(folder).as_posix() for file in files)
    budgets = dict.fromkeys(point.mu for point in study.points)
    used = any(e.mu is None and METHODS[e.method].private for e in study.estimators)
    mu = f" mu = {next(iter(budgets)):g}." if len(budgets) == 1 and used else ""
    bears = f" Bears on {', '.join(study.claims)}." if study.claims else ""
    caption = f"{study.title}. In the paper: {study.figure}.{mu}{bears} {study.note}".strip()
    return (
        f"<figure id='{study.id}'><img src='{svg}' alt='{html.escape(study.title)}' loading=lazy>"
        f"<figcaption><b>{study.id}</b>. {html.escape(caption)} (<a href='{png}'>PNG</a>)</figcaption></figure>"
    )


def _settings(outcome: "Outcome", plan: "Plan") -> str:
    told = "; ".join(dict.fromkeys(e.study.design.told() for e in outcome.errors.values()))
    tools = ", ".join(f"{name} {version(name)}" for name in ("numpy", "numba", "scipy"))
    return (
        f"<code>fedmest reproduce {' '.join(outcome.errors)}{plan.flags()}</code>, fedmest {__version__} "
        f"with {tools}. {html.escape(told)}. {outcome.cells:,} cells, {outcome.seconds / 60:,.0f} minutes, "
        "added up over cells by the clock. All fits are in <code>results.parquet</code>, means and standard errors in "
        "<code>summary.csv</code>."
    )
