"""Figures, the page of a run, and the command `reproduce`."""

import json
import warnings
from html.parser import HTMLParser
from importlib import util
from pathlib import Path

import pandas as pd
import pytest

from conftest import one_line
from fedmest.interface import figures
from fedmest.interface import study_page as page
from fedmest.interface.cli.main import main
from fedmest.studies import STUDIES, claims
from fedmest.studies.cells import Estimator, Point
from fedmest.studies.claims import judge_all
from fedmest.studies.reproduce import Outcome, ReproductionJob
from study_cases import CALL, SIMULATIONS, broken_at, by_method, made_up, numbers, rate

# -- figures and the page ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["equal", "compare", "iterations", "anatomy"])
def test_a_figure_is_drawn_of_every_layout(kind: str, tmp_path: Path) -> None:
    """With values beyond the axis and fits that broke down; the same numbers give the same bytes."""
    from PIL import Image

    study = STUDIES[f"logistic-{kind}"]
    broken = broken_at(study.points[0], study.estimators[1])
    errors = made_up(study, by_method(1, 2, 1e9, 3), reps=3, edit=broken)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        png, svg = figures.draw(errors, tmp_path / "a")
    assert (png.name, svg.name) == (f"{study.id}.png", f"{study.id}.svg")
    with Image.open(png) as image:
        image.load()
        assert image.size == (1300, 1092 if kind == "anatomy" else 728)
        assert len(image.convert("RGB").getcolors(1 << 20)) > 100
    text = svg.read_text(encoding="utf-8")
    for words in ("FedNewton", "certified", "pooled", "1e9", "a fit broke down", "beyond the axis"):
        assert words in text
    if kind == "equal":
        again = figures.draw(errors, tmp_path / "b")
        assert [file.read_bytes() for file in again] == [png.read_bytes(), svg.read_bytes()]


class Page(HTMLParser):
    """Tags that open and close, what is linked to, and the ids and the text that are there."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.links: list[str] = []
        self.ids: list[str] = []
        self.words: list[str] = []
        self.feed(text)
        self.close()
        assert not self.open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag not in ("meta", "img", "link", "br"):
            self.open.append(tag)
        self.links += [value or "" for name, value in attrs if name in ("src", "href")]
        self.ids += [value or "" for name, value in attrs if name == "id"]

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.words.append(data)

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.words).split())


def test_the_page_of_a_run_has_every_claim_and_the_files_it_refers_to(alone: Path) -> None:
    text = (alone / "index.html").read_text(encoding="utf-8")
    assert "//" not in text  # no address outside the folder
    found = Page(text)
    for claim, words in claims.by_id([STUDIES["logistic-equal"]]).items():
        assert f"{claim} {words}" in found.text
        assert f"| {claim}. {words} | " in (alone / "claims.md").read_text(encoding="utf-8")
    assert found.ids == ["logistic-equal"]
    files = {link for link in found.links if not link.startswith("#")}
    assert files == {"figures/logistic-equal.svg", "figures/logistic-equal.png"}
    assert all((alone / file).stat().st_size > 1000 for file in files)
    assert "not run" in found.text
    assert "fedmest reproduce logistic-equal --reps 2" in found.text
    table = pd.read_parquet(alone / "results.parquet")
    assert len(table) == 4 * 2 * 9
    summary = pd.read_csv(alone / "summary.csv")
    first = table[(table["m"] == 20) & (table["n"] == "30") & (table["estimator"] == "fedavg/paper")]["error"]
    line = summary[(summary["m"] == 20) & (summary["n"] == 30) & (summary["estimator"] == "fedavg/paper")].iloc[0]
    assert line["mean"] == pytest.approx(first.mean(), rel=1e-5)
    assert line["se"] == pytest.approx(first.sem(), rel=1e-5)


def test_the_page_of_all_studies_tells_verdict_evidence_and_reason_of_each(tmp_path: Path) -> None:
    def mse(point: Point, estimator: Estimator) -> float:
        return point.m * (1 + (estimator.mu is None))

    errors = {name: made_up(STUDIES[name], mse, reps=3) for name in SIMULATIONS}
    findings = judge_all(errors)
    assert len(findings) == 2 * sum(len(STUDIES[name].claims) for name in SIMULATIONS)
    drawn = {name: [tmp_path / "figures" / f"{name}.{kind}" for kind in ("png", "svg")] for name in SIMULATIONS}
    page.write(Outcome(errors, findings, 90.0, 7, 0), ReproductionJob.create(reps=3), drawn, tmp_path)
    found = Page((tmp_path / "index.html").read_text(encoding="utf-8"))
    assert found.ids == SIMULATIONS
    assert {link[1:] for link in found.links if link.startswith("#")} == {f.study for f in findings}
    markdown = (tmp_path / "claims.md").read_text(encoding="utf-8")
    failed = [f for f in findings if f.broken]
    assert failed
    for f in findings:
        assert f"{f.verdict} . {f.evidence()}." in found.text
        assert f"**{f.verdict}**. {f.evidence()}." in markdown
    for f in failed:
        assert page.cause(f, errors) in found.text
        assert page.cause(f, errors) != ""
        assert page.cause(f, {}) == ""
    columns = {line.count("|") for line in markdown.splitlines() if line}
    assert columns == {4, 5}


def test_the_page_tells_the_options_to_run_it_again(tmp_path: Path) -> None:
    job = ReproductionJob.create(["logistic-equal"], reps=3, mu=1.5, theta=(0.25, 0.5), feature_sd=0.75)
    errors = {"logistic-equal": made_up(job.studies[0], rate, reps=3)}
    page.write(Outcome(errors, judge_all(errors), 90.0, 7, 0), job, {}, tmp_path)
    text = Page((tmp_path / "index.html").read_text(encoding="utf-8")).text
    for words in ("--mu 1.5", "--beta 0.25,0.5", "--sigma 0.75"):
        assert words in text


# -- the command ---------------------------------------------------------------------------------------------------


def test_the_list_tells_what_there_is_and_runs_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = ["--out", str(tmp_path / "none")]
    assert main(["reproduce", "--list", *out]) == 0
    text = capsys.readouterr().out
    assert all(name in text for name in SIMULATIONS)
    minutes = []
    for workers in ("1", "4"):
        assert main(["reproduce", "--list", "--json", "--scale", "paper", "--workers", workers, *out]) == 0
        entries = json.loads(capsys.readouterr().out)
        studies = [STUDIES[name] for name in SIMULATIONS]
        assert [entry["id"] for entry in entries] == SIMULATIONS
        assert [entry["cells"] for entry in entries] == [10 * len(study.points) for study in studies]
        assert {entry["repetitions"] for entry in entries} == {100}
        assert [tuple(entry["claims"]) for entry in entries] == [study.claims for study in studies]
        minutes.append(sum(entry["minutes"] for entry in entries))
    assert minutes[0] == pytest.approx(4 * minutes[1])
    assert main(["reproduce", "--list", "--json", "poisson-equal", "poisson-equal", *out]) == 0
    assert [entry["id"] for entry in json.loads(capsys.readouterr().out)] == ["poisson-equal"]
    assert not (tmp_path / "none").exists()


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["logistic-equel"], ("'logistic-equel'", "logistic-equal")),
        (["--scale", "huge"], ("'huge'", "quick or paper")),
        (["--reps", "1"], ("reps=1", "at least 2")), (["--reps", "many"], ("--reps",)),
        (["--workers", "0"], ("workers=0", "at least 1")), (["--backend", "spark"], ("'spark'", "loky, dask, ray")),
        (["--address", "host:1"], ("--address", "dask or ray")),
        (["--beta", "1,x"], ("'1,x'", "commas")), (["--beta", ""], ("--beta", "commas")),
        (["--beta", "1"], ("beta", "slope")), (["--mu", "0"], ("mu=0", "positive")),
        (["--mu", "nan"], ("mu=nan", "positive")), (["--sigma", "-1"], ("sigma=-1", "positive")),
        (["--sigma", "nan"], ("sigma=nan", "positive")),
        (["--list", "--workers", "0"], ("workers=0", "at least 1")), (["--sigma", "inf"], ("sigma=inf", "positive")),
        (["--beta", "1,inf"], ("beta", "finite")), (["--beta", "nan,1"], ("beta", "finite")),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)  # fmt: skip
def test_a_wrong_call_is_one_line(
    args: list[str], words: tuple[str, ...], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    name = [] if args[0].startswith("logistic") else ["poisson-equal"]
    line = one_line(capsys, main(["reproduce", *name, *args, "--out", str(tmp_path / "none")]))
    assert all(word in line for word in words)
    assert not (tmp_path / "none").exists()


def test_json_is_all_that_a_finished_run_prints(whole: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = numbers(whole)
    assert main([*CALL, "--json", "--out", str(whole)]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    content = json.loads(out)
    assert list(content["claims"]) == list(claims.by_id([STUDIES["logistic-equal"]]))
    assert content["claims"]["C5"] == {"paper": "not run", "certified": "not run"}
    assert {f["claim"] for f in content["findings"]} == set(STUDIES["logistic-equal"].claims)
    assert {f["verdict"] for f in content["findings"]} <= {"holds", "fails", "unclear"}
    assert content["page"] == str(whole / "index.html")
    assert numbers(whole) == before


def test_without_matplotlib_the_extra_is_named_before_anything_runs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(figures, "find_spec", lambda name: None if name == "matplotlib" else util.find_spec(name))
    line = one_line(capsys, main([*CALL, "--out", str(tmp_path / "none")]))
    assert "matplotlib" in line
    assert "fedmest[studies]" in line
    assert not (tmp_path / "none").exists()
