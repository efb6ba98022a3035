"""Pages as text: what they say, and the commands that write them."""

import re
from pathlib import Path

import pandas as pd
import pytest

import fedmest as fm
from conftest import one_line, simulate
from fedmest.interface.cli.main import main
from fedmest.interface.html import ticks
from fedmest.interface.pages import compare_page
from reported import reported


def test_the_guarantee_comes_first_and_says_what_it_is() -> None:
    found = reported()
    certified, paper, plain = (found[name].to_html() for name in ("certified", "paper", "not private"))
    assert certified.index("What is guaranteed") < certified.index("Coefficients")
    assert ">Certified<" in certified
    assert "84 % of the time" in certified  # Phi(mu / 2) at mu = 2
    assert ">Not certified<" in paper
    assert "nobody can be right" not in paper
    assert "here somebody may be" in paper
    assert "read off the data" in paper
    assert "Not private." in plain
    assert "Where the budget went" not in plain
    both = compare_page("both", {"one": found["certified"], "other": found["not private"]})
    assert both.index("nobody can be right more often than 84 %") < both.index("Methods")
    assert "other: this fit is not private" in both
    assert "with privacy noise" not in plain
    shown = found["certified"]._repr_html_()
    assert shown.startswith("<div")
    assert "2-Gaussian" in shown


def test_commands_write_pages(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    case = simulate("logistic", 3, 60, d=3)
    frame = pd.DataFrame(case.X, columns=["age", "dose"]).assign(sick=case.y.astype(int), clinic=case.sites)
    frame.to_csv(data := tmp_path / "rows.csv", index=False)
    page = tmp_path / "page.html"
    rows = [str(data), "--target", "sick", "--site", "clinic", "--model", "logistic", "--seed", "1"]
    for call in (
        ["fit", *rows], ["compare", *rows, "--methods", "np-pooled,fedsgd"],
        ["plan", "--sizes", "100", "--sites", "5", "--features", "3"],
        ["audit", "fedsgd", "--model", "logistic", "--calibration", "certified", "--clip-norm", "1", "--games", "200",
         "--option", "K=2"],
    ):  # fmt: skip
        assert main([*call, "--report", str(page)]) == 0
        assert page.read_text(encoding="utf-8").startswith("<!doctype html>")
        page.unlink()
    capsys.readouterr()
    words = one_line(capsys, main(["fit", *rows, "--report", str(tmp_path / "no" / "page.html")]))
    assert "--report" in words
    assert "there is no folder" in words


ESCAPE = "\x1b[2J"  # clears a terminal
SHOWN = r"\x1b[2J"


@pytest.mark.parametrize("model", ["logistic", "multinomial"])
def test_control_characters_in_names_are_written_out(
    model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Names of columns, levels and sites: in a summary, in tables, in reprs, on pages."""
    case = simulate("logistic", 3, 60, d=3)
    levels = [f"{ESCAPE}no", "yes\x9b31m", "may\u202ebe"][: 2 if model == "logistic" else 3]
    sick = [levels[i % len(levels)] for i in range(len(case.y))]
    names = [f"age{ESCAPE}", "dose\r\n"]
    frame = pd.DataFrame(case.X, columns=names).assign(sick=sick, clinic=[f"{ESCAPE}{s}" for s in case.sites])
    federation = fm.Federation.from_frame(frame, "sick", "clinic")
    result = fm.fit(federation, model, "fedsgd", 2.0, seed=1)
    assert result.param_names[1:] == tuple(names)
    frame.to_csv(data := tmp_path / "rows.csv", index=False)
    rows = [str(data), "--target", "sick", "--site", "clinic", "--model", model, "--seed", "1"]
    page, printed = tmp_path / "page.html", []
    for call in (["fit", *rows], ["compare", *rows, "--methods", "np-pooled,fedsgd"]):
        assert main([*call, "--report", str(page)]) == 0
        printed += [capsys.readouterr().out, page.read_text(encoding="utf-8")]
    for text in (result.summary(), result.to_html(), result._repr_html_(), repr(federation), *printed):
        assert not re.search("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202e]", text)
        assert f"age{SHOWN}" in text
        assert r"dose\x0d\x0a" in text
    widths = {len(line) for line in result.summary().splitlines() if line.startswith(("(Intercept)", "age", "dose"))}
    assert len(widths) == 1


@pytest.mark.parametrize(("low", "high"), [(-0.43, 0.71), (0.0, 1e-6), (-3e5, 2e4), (-1.0, 1.0)])
def test_ticks_are_round_and_inside(low: float, high: float) -> None:
    found = ticks(low, high)
    assert 2 <= len(found) <= 7
    assert all(low <= t <= high for t in found)
