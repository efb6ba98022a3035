"""The documentation: it builds without a warning, loads nothing from elsewhere, and some test runs each block."""

import re
import runpy
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest

from pages import ALL, ELSEWHERE, INSTEAD, PAGES, ROOT, SHELL, bare, blocks_of

# -- tests of pages ------------------------------------------------------------------------------------------


def test_every_block_is_run_or_listed() -> None:
    """Blocks in a language that nobody knows here, too: a drawing has to be listed as one."""
    strangers = [
        f"{block.page}, line {block.line}: {block.language}" for block in ALL
        if not block.runs and block.language != "output" and block.name not in ELSEWHERE
    ]  # fmt: skip
    assert strangers == []


def test_every_output_stands_below_a_block_that_is_run() -> None:
    for page in PAGES:
        blocks = blocks_of(page)
        for above, block in zip([None, *blocks], blocks, strict=False):
            if block.language == "output":
                assert above is not None and above.runs, f"{page}, line {block.line}"


def test_nothing_is_listed_that_is_no_longer_there() -> None:
    assert set(ELSEWHERE) <= {block.name for block in ALL}
    lines = {bare(line) for block in ALL if block.language in SHELL for line in block.text.splitlines()}
    assert set(INSTEAD) <= lines


def test_who_is_said_to_run_a_block_is_there() -> None:
    reasons = [*ELSEWHERE.values(), *(why for _, why in INSTEAD.values())]
    named = [found for why in reasons for found in re.findall(r"(tests/[\w/]+\.py)::(\w+)", why)]
    assert len(named) == 6
    for file, test in named:
        assert f"def {test}(" in (ROOT / file).read_text(encoding="utf-8"), f"{file}::{test}"
    assert 'pip install -e "\\.\\[test\\]"' in (ROOT / ".ci" / "run").read_text(encoding="utf-8")


NUMBER = re.compile(r"(?<![\w.])\d[\d,]*(?:\.\d+)?")


@pytest.mark.parametrize("page", ["docs/tutorial.md", "docs/ethics-board.md", "docs/add-a-method.md"])
def test_numbers_in_the_text_are_in_the_blocks_as_well(page: str) -> None:
    text = (ROOT / page).read_text(encoding="utf-8")
    blocks = {number for block in blocks_of(page) for number in NUMBER.findall(block.text)}
    prose = re.sub(r"(?ms)^```.*?^```$|`[^`]*`|\]\([^)]*\)", "", text)
    prose = prose.replace("Dong, Roth and Su 2022", "").replace("L2", "").replace("Phi^-1", "").replace("mu / 2", "")
    assert [number for number in NUMBER.findall(prose) if number.rstrip(",") not in blocks] == []


def test_the_picture_of_the_trade_off_is_what_its_script_draws() -> None:
    """And the script draws what mu allows: points of the curves, read off the picture, lie where theory has them."""
    from scipy.stats import norm

    script = runpy.run_path(str(ROOT / "docs" / "images" / "trade_off.py"))
    picture = (ROOT / "docs" / "images" / "trade-off.svg").read_text(encoding="utf-8")
    assert script["draw"]() == picture
    curves = [line for line in re.findall(r'<polyline points="([^"]*)"', picture) if line.count(" ") > 100]
    assert len(curves) == len(script["CURVES"])
    for mu, line in zip(script["CURVES"], curves, strict=True):
        x, y = np.array([point.split(",") for point in line.split()], dtype=float).T
        alarms, found = (x - script["LEFT"]) / script["SIZE"], 1 - (y - script["TOP"]) / script["SIZE"]
        drawn = (alarms > 0.02) & (alarms < 0.98)  # at the ends a tenth of a pixel is much
        assert drawn.sum() > 30
        np.testing.assert_allclose(found[drawn], norm.cdf(norm.ppf(alarms[drawn]) + mu), atol=0.003)


# -- tests of the site ---------------------------------------------------------------------------------------


def test_the_site_is_built_without_a_warning(site: tuple[Path, str]) -> None:
    folder, said = site
    assert re.findall("(?i)warning|error", said) == []
    assert "Documentation built" in said
    pages = [page.removeprefix("docs/").replace("README", "index") for page in PAGES[1:]]
    assert [page for page in pages if not (folder / page).with_suffix(".html").is_file()] == []


MODULES = ("methods", "models")  # public as modules: the reference has their parts


def test_the_reference_has_what_is_public(site: tuple[Path, str]) -> None:
    import fedmest

    text = (site[0] / "reference.html").read_text(encoding="utf-8")
    names = {f"fedmest.{name}" for name in fedmest.__all__ if name.upper() != name and name not in MODULES}
    wanted = names | {
        "fedmest.methods.Method", "fedmest.queries.Query", "fedmest.models.Model", "fedmest.FederatedLinearRegression",
        "fedmest.FederatedLogisticRegression", "fedmest.FederatedPoissonRegressor", "fedmest.privacy.gdp.compose",
        "fedmest.inference.rates.lower_bound",
    }  # fmt: skip
    assert {name for name in wanted if f'id="{name}"' not in text} == set()
    assert "every site's rows are protected by mu-Gaussian differential privacy" in text  # a docstring
    assert "&gt;&gt;&gt;" in text and "<blockquote>" not in text  # examples are code


class Loads(HTMLParser):
    """Addresses that a browser fetches by itself."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.found: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attributes}
        self.found += [given[name] for name in ("src", "srcset", "poster", "data") if name in given and tag != "a"]
        if tag in ("link", "use", "image"):
            self.found += [given[name] for name in ("href", "xlink:href") if name in given]

    def handle_data(self, data: str) -> None:
        if self.lasttag == "style":
            self.found += in_style(data)


def in_style(text: str) -> list[str]:
    return re.findall(r"""(?:@import\s+|url\(\s*)["']?(https?:[^"')\s;]*|//[^"')\s;]*)""", text)


def elsewhere(address: str) -> bool:
    return address.startswith(("http:", "https:", "//"))


def test_what_a_page_loads_is_seen() -> None:
    seen = Loads("<link rel=preconnect href=https://a><script src='//b'></script><style>@import 'https://c';</style>"
                 "<p style='color:red'>https://no</p><a href=https://no>x</a>")  # fmt: skip
    assert [address for address in seen.found if elsewhere(address)] == ["https://a", "//b", "https://c"]


def test_no_page_loads_anything_from_elsewhere(site: tuple[Path, str]) -> None:
    pages = sorted(site[0].rglob("*.html"))
    assert len(pages) >= 15
    for page in pages:
        seen = Loads(page.read_text(encoding="utf-8"))
        assert len(seen.found) > 0
        assert [address for address in seen.found if elsewhere(address)] == [], page
    for style in site[0].rglob("*.css"):
        assert in_style(style.read_text(encoding="utf-8")) == [], style


def test_links_between_pages_lead_somewhere(site: tuple[Path, str]) -> None:
    """mkdocs looks at those in Markdown; these are all that were built."""
    for page in site[0].rglob("*.html"):
        text = page.read_text(encoding="utf-8")
        for address in re.findall(r'(?:href|src)="([^"#:]+)(?:#[^"]*)?"', text):
            if page.name != "404.html":
                assert (page.parent / address).exists(), (page, address)
