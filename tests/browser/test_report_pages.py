"""Pages, in a real browser: nothing but the file is loaded, nobody complains, and what is drawn is what was found.

Chromium is Debian's; where there is none the browser's tests are skipped.
"""

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fedmest as fm
from browsing import Visit
from conftest import coef, simulate
from fedmest.interface.pages import audit_page, compare_page, plan_page
from reported import reported

NASTY = "<script>document.title='owned'</script>"


def pages() -> dict[str, str]:
    found = reported()
    single = fm.audit("fedsgd", "logistic", 2.0, games=500, K=2)
    return {
        **{name: result.to_html() for name, result in found.items()},
        "comparison": compare_page("logistic regression of y", {n: found[n] for n in ("certified", "not private")}),
        "plan": plan_page(fm.plan([400] * 100, 4, "logistic", 2.0)),
        "audit": audit_page([{**single.to_dict(), "settings": {"clip_norm": 1.0}}], single),
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
    result = reported()["certified"]
    page = Visit(browser, written["certified"].as_uri()).page
    marks = [m.bounding_box() for m in page.locator(".forest .track b").all()]
    outer = [m.bounding_box() for m in page.locator(".forest .track .pale").all()]
    inner = [m.bounding_box() for m in page.locator(".forest .track .deep").all()]
    places = np.array([m["x"] + m["width"] / 2 for m in marks])
    slope, start = np.polyfit(coef(result)[1:], places, 1)
    np.testing.assert_allclose(places, start + slope * coef(result)[1:], atol=1.5)  # pixels
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
    text = visit.page.locator("section", has_text="10,000 sites with").inner_text()
    assert sum(int(n.replace(",", "")) for n in re.findall(r"([\d,]+) sites\n?", text.split("cost.")[1])) == 10_000
