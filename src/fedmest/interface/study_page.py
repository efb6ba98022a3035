"""The page of a run: verdicts first, then every figure with its settings. And the verdicts as a Markdown table."""

from collections.abc import Iterable
from importlib.metadata import version
from pathlib import Path

from fedmest import __version__
from fedmest.interface.html import Html, badge, document, escape, figure, html, section, table, text
from fedmest.methods import METHODS
from fedmest.studies import claims
from fedmest.studies.base import CALIBRATIONS, Study
from fedmest.studies.claims import Finding
from fedmest.studies.reproduce import Outcome, ReproductionJob
from fedmest.studies.summary import ErrorTable

HEADS = {"paper": "The paper's calibration", "certified": "Certified (ours)"}
KINDS = {"holds": "good", "fails": "bad"}  # of badges; else open
TITLE = "The paper's experiments, run again"
SIMULATED = "C1 to C7 are judged for logistic regression; C8 says whether all of them hold for Poisson. "
RULE = (
    "A claim <em>fails</em> where the numbers contradict it beyond chance at any point that was looked at, "
    "<em>holds</em> where they support it beyond chance, and is <em>unclear</em> otherwise (95 % confidence for all "
    "comparisons of a claim in a study together; one run alone supports nothing)."
)
EVIDENCE = (
    "Slopes are of the logarithm of the error on that of what varies, ± one standard error. Ratios of errors are "
    "averaged over the grid on the log scale. Where a claim about simulations fails, the last sentence gives the "
    "cause, from runs that remove the noise, and then clipping, too (the studies called anatomy)."
)
MEASURES = {  # what an error is, by Layout.lines
    "curves": "In simulations errors are squared distances from the true coefficients, averaged over repetitions, "
    "always beside the pooled fit without privacy on the same rows.",
    "box": "Regressions on pixels are scored on the fold that each site left out; a site's score is the mean over its "
    "five folds, and medians over sites are compared; uncertainty is that over sites, given the fits.",
    "accuracy": "Networks are scored on the official test images after the last round.",
}


def write(outcome: Outcome, job: ReproductionJob, drawn: dict[str, list[Path]], folder: Path) -> None:
    """index.html and claims.md, from what was judged and drawn."""
    (folder / "index.html").write_text(_page(outcome, job, drawn, folder), encoding="utf-8")
    (folder / "claims.md").write_text(_markdown(outcome), encoding="utf-8")


def cause(finding: Finding, errors: dict[str, ErrorTable]) -> str:
    """The cause of a failure, where the runs that isolate causes have been made."""
    isolated = errors.get(finding.study.split("-")[0] + "-anatomy")
    return claims.reason(finding, isolated) if finding.broken and isolated else ""


def command_line(job: ReproductionJob, studies: Iterable[str]) -> str:
    """The command that computes these studies as the job does."""
    words = ["fedmest reproduce", *studies]
    words.append(f"--scale {job.scale}" if job.repetitions is None else f"--reps {job.repetitions}")
    for flag, value in (("mu", job.options.get("mu")), ("sigma", job.options.get("feature_sd"))):
        words += [f"--{flag} {value!r}"] if value is not None else []
    if theta := job.options.get("theta"):
        words.append(f"--beta {','.join(map(repr, theta))}")
    return " ".join(words)


def _pairs(findings: list[Finding]) -> list[tuple[str, str, dict[str, Finding]]]:
    """Findings of one claim in one study side by side, by calibration."""
    found: dict[tuple[str, str], dict[str, Finding]] = {}
    for finding in findings:
        found.setdefault((finding.claim, finding.study), {})[finding.calibration] = finding
    return [(claim, study, both) for (claim, study), both in found.items()]


def _markdown(outcome: Outcome) -> str:
    heads = " | ".join(HEADS[c].lower() for c in CALIBRATIONS)
    lines = [f"| claim | {heads} |", "|---|---|---|"]
    for claim, words in outcome.claims().items():
        verdicts = (claims.overall(outcome.findings, claim, c) for c in CALIBRATIONS)
        lines.append(f"| {claim}. {words} | {' | '.join(verdicts)} |")
    lines += ["", f"| claim | study | {heads} |", "|---|---|---|---|"]
    for claim, study, both in _pairs(outcome.findings):
        cells = []
        for finding in (both[calibration] for calibration in CALIBRATIONS):
            why = cause(finding, outcome.errors)
            cells.append(f"**{finding.verdict}**. {finding.evidence()}." + (f" *{why}.*" if why else ""))
        lines.append(f"| {claim} | {study} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def _page(outcome: Outcome, job: ReproductionJob, drawn: dict[str, list[Path]], folder: Path) -> str:
    count = len(outcome.errors)
    studies = f"{count} {'study' if count == 1 else 'studies'} under the paper's calibration and under ours."
    rule = (SIMULATED if "C8" in outcome.claims() else "") + RULE
    figures = [_figure(outcome.errors[name].study, files, folder) for name, files in drawn.items()]
    return document(
        TITLE,
        text(f"{studies} {_measures(outcome)}"),
        section("Claims", text(Html(rule)), _verdicts(outcome)),
        section("Figures", *figures),
        section("What the verdicts rest on", text(EVIDENCE, "small"), _evidence(outcome)),
        section("To run it again", text(_settings(outcome, job), "small")),
    )


def _measures(outcome: Outcome) -> str:
    """What an error is in the studies at hand."""
    kinds = {errors.study.layout.lines for errors in outcome.errors.values()}
    named = [kind for kind in ("box", "accuracy") if kind in kinds]
    return " ".join(MEASURES[kind] for kind in (["curves", *named] if kinds - {"box", "accuracy"} else named))


def _badge(verdict: str) -> Html:
    return badge(verdict, KINDS.get(verdict, "open"))


def _verdicts(outcome: Outcome) -> str:
    rows = [
        [claim, words, *(_badge(claims.overall(outcome.findings, claim, c)) for c in CALIBRATIONS)]
        for claim, words in outcome.claims().items()
    ]
    return table(["Claim", "", *(HEADS[c] for c in CALIBRATIONS)], rows, label="verdicts by claim")


def _evidence(outcome: Outcome) -> str:
    heads = [HEADS[c] for c in CALIBRATIONS]
    rows = [
        [claim, Html(f"<a href='#{study}'>{study}</a>"), *(_found(both[c], outcome.errors) for c in CALIBRATIONS)]
        for claim, study, both in _pairs(outcome.findings)
    ]
    return table(["Claim", "Study", *heads], rows, label="evidence by claim and study", long=heads)


def _found(finding: Finding, errors: dict[str, ErrorTable]) -> Html:
    why = cause(finding, errors)
    more = f"<span class=small>{escape(why)}.</span>" if why else ""
    return Html(f"{_badge(finding.verdict)}. {escape(finding.evidence())}.{more}")


def _figure(study: Study, files: list[Path], folder: Path) -> str:
    png, svg = (file.relative_to(folder).as_posix() for file in files)
    budgets = dict.fromkeys(point.mu for point in study.points)
    used = any(e.mu is None and METHODS[e.method].private for e in study.estimators)
    mu = f" mu = {next(iter(budgets)):g}." if len(budgets) == 1 and used else ""
    bears = f" Bears on {', '.join(study.claims)}." if study.claims else ""
    caption = f"{study.title}. In the paper: {study.figure}.{mu}{bears} {study.note}".strip()
    image = f"<img src='{svg}' alt='{escape(study.title)}' loading=lazy>"
    return figure(image, Html(f"<b>{study.id}</b>. {html(caption)} (<a href='{png}'>PNG</a>)"), study.id)


def _settings(outcome: Outcome, job: ReproductionJob) -> Html:
    sources = "; ".join(dict.fromkeys(e.study.source.describe() for e in outcome.errors.values()))
    tools = ", ".join(f"{name} {version(name)}" for name in ("numpy", "numba", "scipy"))
    command = escape(command_line(job, outcome.errors))
    return Html(
        f"<code>{command}</code>, fedmest {__version__} with {tools}. {escape(sources)}. "
        f"{outcome.cells:,} cells, {outcome.seconds / 60:,.0f} minutes of wall time, summed over cells. All fits are "
        "in <code>results.parquet</code>, means and standard errors in <code>summary.csv</code>."
    )
