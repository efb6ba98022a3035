"""The documentation: it builds without a warning and loads nothing from elsewhere; every block of code in it runs and
prints what the page says it prints.

A page is run from top to bottom in a process and a folder of its own. Blocks of Python share their names, blocks of
shell commands their files. An `output` block holds what the block above it prints.

`python tests/test_docs.py docs/tutorial.md` runs a page and writes what it prints into its `output` blocks.
"""

import io
import json
import os
import re
import runpy
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import redirect_stdout
from dataclasses import dataclass
from functools import partial
from html.parser import HTMLParser
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from itertools import pairwise
from pathlib import Path
from threading import Thread
from typing import Any

import numpy as np
import pandas as pd
import pytest

from browsing import Visit

ROOT = Path(__file__).resolve().parent.parent
PAGES = ("README.md", *sorted(path.relative_to(ROOT).as_posix() for path in (ROOT / "docs").rglob("*.md")))
SHELL = ("", "bash")  # a block without a language is for the shell

# Blocks that are not run here, by their first line: who runs them, or what they are.
ELSEWHERE = {
    ("README.md", 'pip install -e ".[site]" -c constraints.txt'):
        "three sites on a Flower network: tests/test_flower.py::test_the_readmes_commands_take_a_newcomer_to_a_fit",
    ("docs/architecture.md", "Federation ──► Method.schedule ──► Engine ──► Result"): "a drawing",
    ("docs/between-sites.md", "server                            site"): "a drawing",
}  # fmt: skip

# Commands that are not run as they stand: what is run instead, and why.
INSTEAD = {
    "pip install -e . -c constraints.txt && fedmest demo":
        ("fedmest demo", "pip needs a network; .ci/run installs the package with all extras"),
    'pip install -e ".[test]" -c constraints.txt && pytest -n 2 --dist loadfile':
        ("", "these tests; .ci/run takes the command from the page and runs it"),
    'pip install -e ".[studies]" -c constraints.txt':
        ("", "pip needs a network; .ci/run installs the package with all extras"),
    "fedmest reproduce --scale quick":
        ("", "five minutes; tests/test_studies.py::whole, one study with two repetitions"),
    "fedmest reproduce --scale paper --out DIR":
        ("", "forty minutes; tests/test_studies.py::test_the_list_tells_what_there_is_and_runs_nothing, listed only"),
    "fedmest data fetch mnist":
        ("", "a download; tests/test_data.py::test_mnist_is_fetched_from_openml, from a stand-in"),
    "fedmest reproduce mnist --scale paper":
        ("", "hours; tests/test_images.py::test_a_study_of_pixels_runs_from_the_command_to_its_page, on small digits"),
    "fedmest reproduce cnn-samples cnn-clients":
        ("", "hours; tests/test_images.py::test_a_network_is_trained_on_mnist_and_scored_on_its_test_images, a cell"),
    "fedmest audit fedsgd --model logistic":
        ("fedmest audit fedsgd --model logistic --games 200", "fewer games"),
    "fedmest audit --out audits.jsonl":
        ("fedmest audit fedirls --model poisson --games 200 --out audits.jsonl", "every method and model: an hour"),
    "fedmest audit fedsgd --model logistic --calibration certified --bound 1 --plot roc.png --report audit.html":
        ("fedmest audit fedsgd --model logistic --calibration certified --bound 1 --games 200 --plot roc.png "
         "--report audit.html", "fewer games"),
    "fedmest audit fedsgd --model logistic --observer public --games 2000":
        ("fedmest audit fedsgd --model logistic --observer public --games 100 --calibration certified --option K=5",
         "every game is a fit"),
}  # fmt: skip


# -- blocks --------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Block:
    """A fenced block; `line` is that of its fence."""

    page: str
    line: int
    language: str
    text: str

    @property
    def name(self) -> tuple[str, str]:
        return self.page, self.text.partition("\n")[0].rstrip()

    @property
    def runs(self) -> bool:
        return self.language in (*SHELL, "python") and self.name not in ELSEWHERE

    @property
    def script(self) -> str:
        """The commands, some of them in a shorter form."""
        return "\n".join(INSTEAD[bare(line)][0] if bare(line) in INSTEAD else line for line in self.text.splitlines())


def bare(line: str) -> str:
    """A command without what is said about it."""
    return line.partition(" #")[0].rstrip()


def blocks_of(page: str, text: str | None = None) -> list[Block]:
    found: list[Block] = []
    inside: list[str] | None = None
    begin, language = 0, ""
    for number, line in enumerate((text or (ROOT / page).read_text(encoding="utf-8")).splitlines(), 1):
        fence = line.lstrip().startswith("```")
        if not fence:
            if inside is not None:
                inside.append(line)
        elif inside is None:
            inside, begin, language = [], number, line.lstrip().removeprefix("```").strip()
        else:
            found.append(Block(page, begin, language, "\n".join(inside)))
            inside = None
    assert inside is None, f"{page}, line {begin}: a block without an end"
    return found


ALL = [block for page in PAGES for block in blocks_of(page)]
RUN = [page for page in PAGES if any(block.runs for block in blocks_of(page))]


def shown(page: str, text: str | None = None) -> dict[int, Block]:
    """The output blocks of a page, by the line of the block that has to print them."""
    blocks = blocks_of(page, text)
    return {above.line: block for above, block in pairwise(blocks) if block.language == "output"}


# -- a page, run ---------------------------------------------------------------------------------------------


def play(page: str) -> dict[int, str]:
    """What the blocks of a page print, by their lines; in this process and in this folder."""
    provide()
    printed: dict[int, str] = {}
    names: dict[str, Any] = {"__name__": "__main__"}
    for block in blocks_of(page):
        if not block.runs:
            continue
        if block.language == "python":
            code = compile("\n" * block.line + block.text, page, "exec")  # so that errors name the page's lines
            with redirect_stdout(io.StringIO()) as out:
                exec(code, names)
            printed[block.line] = out.getvalue()
            continue
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        done = subprocess.run(["bash", "-euo", "pipefail", "-c", block.script], env={**os.environ, "PATH": path},
                              capture_output=True, text=True)  # fmt: skip
        if done.returncode:
            raise SystemExit(f"{page}, line {block.line}: exit code {done.returncode}\n{done.stdout}\n{done.stderr}")
        printed[block.line] = done.stdout
    return printed


def provide() -> None:
    """The files that the README takes for granted."""
    rng = np.random.default_rng(1)
    rows = 6000
    frame = pd.DataFrame({
        "hospital": rng.choice(["hill", "lake", "north", "south"], rows), "age": rng.integers(18, 96, rows),
        "sex": rng.choice(["f", "m"], rows), "smoker": rng.integers(0, 2, rows),
    })  # fmt: skip
    expected = np.exp(0.2 + 0.008 * frame["age"] + 0.2 * (frame["sex"] == "f") + 0.3 * frame["smoker"])
    frame.assign(visits=rng.poisson(expected)).to_csv("visits.csv", index=False)
    pd.DataFrame({"site": range(20), "rows": rng.integers(200, 900, 20)}).to_csv("sites.csv", index=False)


def same(text: str) -> list[str]:
    """Lines without what no reader sees."""
    return [line.rstrip() for line in text.strip("\n").splitlines()]


def refreshed(page: str, printed: dict[int, str]) -> str:
    """The page with what was printed in its output blocks."""
    text = (ROOT / page).read_text(encoding="utf-8")
    lines = text.splitlines()
    for above, block in sorted(shown(page, text).items(), reverse=True):
        lines[block.line : block.line + len(block.text.splitlines())] = same(printed[above])
    return "\n".join(lines) + "\n"


def main(page: str, into: str | None = None) -> None:
    """Run a page here and write what it prints `into` a file, or, without one, elsewhere and into the page itself."""
    if into is not None:
        Path(into).write_text(json.dumps(play(page)), encoding="utf-8")
        return
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        (ROOT / page).write_text(refreshed(page, play(page)), encoding="utf-8")
        os.chdir(ROOT)



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
    named = [found for why in reasons for found in re.findall(r"(tests/\w+\.py)::(\w+)", why)]
    assert len(named) == 6
    for file, test in named:
        assert f"def {test}(" in (ROOT / file).read_text(encoding="utf-8"), f"{file}::{test}"
    assert 'pip install -e "\\.\\[test\\]"' in (ROOT / ".ci" / "run").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def played(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[str, "Future[dict[int, str]]"]]:
    """The pages whose tests were asked for, two at a time."""

    def run(page: str, folder: Path) -> dict[int, str]:
        into = folder / "printed.json"
        command = [sys.executable, __file__, page, str(into)]
        environment = {**os.environ, "NUMBA_NUM_THREADS": "1"}
        done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=900)
        assert done.returncode == 0, done.stderr
        return {int(line): text for line, text in json.loads(into.read_text(encoding="utf-8")).items()}

    asked = [item.callspec.params["page"] for item in request.session.items
             if getattr(item, "originalname", "") == test_a_page_runs_and_prints_what_it_says.__name__]  # fmt: skip
    with ThreadPoolExecutor(2) as pool:
        folders = {page: tmp_path_factory.mktemp(re.sub(r"\W+", "-", page)) for page in asked}
        yield {page: pool.submit(run, page, folder) for page, folder in folders.items()}


@pytest.mark.parametrize("page", RUN)
def test_a_page_runs_and_prints_what_it_says(played: dict[str, "Future[dict[int, str]]"], page: str) -> None:
    printed = played[page].result()
    for above, block in shown(page).items():
        message = f"{page}, line {block.line}: `python tests/test_docs.py {page}` writes what is printed now"
        assert same(printed[above]) == same(block.text), message


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


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """The built site, and what was said while it was built."""
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)]
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}  # the theme's advertisement of its successor
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return folder, done.stdout + done.stderr


def test_the_site_is_built_without_a_warning(site: tuple[Path, str]) -> None:
    folder, said = site
    assert re.findall("(?i)warning|error", said) == []
    assert "Documentation built" in said
    pages = [page.removeprefix("docs/").replace("README", "index") for page in PAGES[1:]]
    assert [page for page in pages if not (folder / page).with_suffix(".html").is_file()] == []


def test_the_reference_has_what_is_public(site: tuple[Path, str]) -> None:
    import fedmest

    text = (site[0] / "reference.html").read_text(encoding="utf-8")
    names = {f"fedmest.{name}" for name in fedmest.__all__ if name.upper() != name}
    wanted = names | {
        "fedmest.methods.Method", "fedmest.queries.Query", "fedmest.models.Model", "fedmest.FederatedLinearRegression",
        "fedmest.FederatedLogisticRegression", "fedmest.FederatedPoissonRegressor", "fedmest.privacy.gdp.compose",
        "fedmest.theory.bounds.lower_bound",
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


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: Any) -> None:
        pass


@pytest.fixture(scope="module")
def address(site: tuple[Path, str]) -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(site[0]))) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def test_a_browser_asks_nobody_else_and_finds_words(browser: Any, address: str) -> None:
    """Scripts included: the search is tried, too."""
    for name in ("index", "tutorial", "ethics-board", "reference"):
        visit = Visit(browser, f"{address}/{name}.html")
        assert visit.page.locator("h1").count() == 1
        visit.page.locator("input.md-search__input").fill("ledger")
        visit.page.locator(".md-search-result__link").first.wait_for()
        assert [url for url in visit.asked if not url.startswith((address, "data:", "blob:"))] == []
        assert visit.said == []


if __name__ == "__main__":
    main(*sys.argv[1:])
