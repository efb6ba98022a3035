"""Pages, in a real browser: nothing but the file is loaded, nobody complains, and what is drawn is what was found.

Chromium is Debian's; where there is none the browser's tests are skipped.
"""

import re
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import fedmest as fm
from browsing import Visit
from conftest import one_line, simulate
from fedmest.cli import main
from fedmest.report.page import ticks
from fedmest.report.views import audit_page, compare_page, plan_page

NASTY = "<script>document.title='owned'</script>"


def fits() -> dict[str, fm.Result]:
    logistic, classes = simulate("logistic", 6, 500, seed=2).fed, simulate("multinomial", 3, 400, seed=1).fed
    return {
        "certified": fm.fit(logistic, "logistic", "fednewton", 2.0, seed=1),
        "without errors": fm.fit(logistic, "logistic", "fedsgd", 2.0, seed=1),
        "paper": fm.fit(logistic, "logistic", "fedsgd", 2.0, calibration="paper", seed=1),
        "not private": fm.fit(logistic, "logistic", "np-pooled"),
        "classes": fm.fit(classes, "multinomial", "fedirls", 3.0, seed=1),
    }


def pages() -> dict[str, str]:
    found = fits()
    single = fm.audit("fedsgd", "logistic", 2.0, games=500, K=2)
    return {
        **{name: result.to_html() for name, result in found.items()},
        "comparison": compare_page("logistic regression of y", {n: found[n] for n in ("certified", "not private")}),
        "plan": plan_page(fm.plan([400] * 100, 4, "logistic", 2.0)),
        "audit": audit_page([{**single.as_dict(), "settings": {"bound": 1.0}}], single),
    }


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("pages")
    files = {name: folder / f"{name.replace(' ', '-')}.html" for name in NAMES}
    for name, page in pages().items():
        files[name].write_text(page, encoding="utf-8")
    return files


NAMES = ["certified", "without errors", "paper", "not private", "classes", "comparison", "plan", "audit"]


@pytest.mark.parametrize("name", NAMES)
def test_a_page_opens_without_complaint_and_asks_for_nothing_else(
    browser: Any, written: dict[str, Path], name: str
) -> None:
    visit = Visit(browser, written[name].as_uri())
    assert visit.said == []
    assert visit.asked == [written[name].as_uri()]
    assert visit.page.locator("h1").count() == 1


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("name", NAMES)
def test_nothing_serious_stands_in_the_way_of_keyboard_eyes_or_phone(
    browser: Any, written: dict[str, Path], name: str, scheme: str
) -> None:
    assert Visit(browser, written[name].as_uri(), width=390, scheme=scheme).obstacles() == []


def test_the_forest_plot_shows_estimates_where_they_are_and_sampling_error_inside_the_whole(
    browser: Any, written: dict[str, Path]
) -> None:
    result = fits()["certified"]
    page = Visit(browser, written["certified"].as_uri()).page
    marks = [m.bounding_box() for m in page.locator(".forest .track b").all()]
    outer = [m.bounding_box() for m in page.locator(".forest .track .pale").all()]
    inner = [m.bounding_box() for m in page.locator(".forest .track .deep").all()]
    places = np.array([m["x"] + m["width"] / 2 for m in marks])
    slope, start = np.polyfit(result.theta[1:], places, 1)
    np.testing.assert_allclose(places, start + slope * result.theta[1:], atol=1.5)  # pixels
    widths = np.ptp(result.conf_int().to_numpy(), axis=1)[1:]
    np.testing.assert_allclose([m["width"] for m in outer], slope * widths, atol=1.5)
    assert all(0 < i["width"] < o["width"] for i, o in zip(inner, outer, strict=True))


def test_what_is_folded_opens_by_keyboard(browser: Any, written: dict[str, Path]) -> None:
    page = Visit(browser, written["certified"].as_uri()).page
    fold = page.locator("details").first
    for _ in range(10):
        page.keyboard.press("Tab")
        if page.evaluate("document.activeElement.tagName") == "SUMMARY":
            break
    page.keyboard.press("Enter")
    assert fold.get_attribute("open") is not None
    assert fold.locator(".track").first.is_visible()


def test_names_are_text_and_nothing_else(browser: Any, tmp_path: Path) -> None:
    case = simulate("logistic", 3, 60, d=3)
    fed = fm.Federation.from_arrays(
        case.X, case.y, np.array([NASTY, "b", "c"])[case.sites], features=[NASTY, "x&y"], target_name=NASTY
    )
    file = tmp_path / "nasty.html"
    file.write_text(fm.fit(fed, "logistic", "fednewton", 2.0, seed=1).to_html(), encoding="utf-8")
    visit = Visit(browser, file.as_uri())
    assert visit.said == []
    assert visit.page.title() == "Logistic regression, FedNewton"
    assert visit.page.locator("main", has_text="<script>").count() == 1
    assert visit.page.locator("script").count() == 0


def test_a_page_stays_small_with_many_sites_and_opens_with_ten_thousand(browser: Any, tmp_path: Path) -> None:
    hundred = fm.fit(simulate("logistic", 100, 30).fed, "logistic", "fedsgd", 2.0, seed=1).to_html()
    assert len(hundred.encode()) < 100_000  # two megabytes would be allowed
    sizes = np.tile([3, 5, 8, 20], 2500)
    many = fm.fit(simulate("logistic", 10_000, sizes).fed, "logistic", "fedirls", 2.0, seed=1).to_html()
    assert len(many.encode()) < 100_000
    file = tmp_path / "many.html"
    file.write_text(many, encoding="utf-8")
    visit = Visit(browser, file.as_uri())
    assert visit.said == []
    told = visit.page.locator("section", has_text="10,000 sites with").inner_text()
    assert sum(int(n.replace(",", "")) for n in re.findall(r"([\d,]+) sites\n?", told.split("cost.")[1])) == 10_000


def test_the_guarantee_comes_first_and_says_what_it_is() -> None:
    found = fits()
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
        ["audit", "fedsgd", "--model", "logistic", "--calibration", "certified", "--bound", "1", "--games", "200",
         "--option", "K=2"],
    ):  # fmt: skip
        assert main([*call, "--report", str(page)]) == 0
        assert page.read_text(encoding="utf-8").startswith("<!doctype html>")
        page.unlink()
    capsys.readouterr()
    words = one_line(capsys, main(["fit", *rows, "--report", str(tmp_path / "no" / "page.html")]))
    assert "--report" in words
    assert "there is no folder" in words


@pytest.mark.parametrize(("low", "high"), [(-0.43, 0.71), (0.0, 1e-6), (-3e5, 2e4), (-1.0, 1.0)])
def test_ticks_are_round_and_inside(low: float, high: float) -> None:
    found = ticks(low, high)
    assert 2 <= len(found) <= 7
    assert all(low <= t <= high for t in found)
