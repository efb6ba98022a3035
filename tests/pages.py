"""The blocks of code on the pages of the documentation, and how they are run.

A page is run from top to bottom in a process and a folder of its own. Blocks of Python share their names, blocks of
shell commands their files. An `output` block holds what the block above it prints.

`python tests/pages.py docs/tutorial.md` runs a page and writes what it prints into its `output` blocks.
"""

import io
import json
import os
import subprocess
import sys
import tempfile
from contextlib import redirect_stdout
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

ROOT = Path(__file__).resolve().parent.parent
PAGES = ("README.md", *sorted(path.relative_to(ROOT).as_posix() for path in (ROOT / "docs").rglob("*.md")))
SHELL = ("", "bash")  # a block without a language is for the shell

# Blocks that are not run here, by their first line: who runs them, or what they are.
ELSEWHERE = {
    ("README.md", 'pip install -e ".[site]" -c constraints.txt'):
        "three sites: tests/network/test_flower.py::test_the_readmes_commands_take_a_newcomer_to_a_fit",
    ("docs/architecture.md", "Federation ──► RunSpec (phases, schedule) ──► Backend ──► Result"): "a drawing",
    ("docs/between-sites.md", "server                            site"): "a drawing",
}  # fmt: skip

# Commands that are not run as they stand: what is run instead, and why.
INSTEAD = {
    "pip install -e . -c constraints.txt && fedmest demo":
        ("fedmest demo", "pip needs a network; .ci/run installs the package with all extras"),
    'pip install -e ".[test]" -c constraints.txt && pytest -n 2 --dist loadgroup':
        ("", "these tests; .ci/run takes the command from the page and runs it"),
    'pip install -e ".[studies]" -c constraints.txt':
        ("", "pip needs a network; .ci/run installs the package with all extras"),
    "fedmest reproduce --scale quick":
        ("", "five minutes; tests/shared_fixtures.py::whole, one study with two repetitions"),
    "fedmest reproduce --scale paper --out DIR":
        ("", "forty minutes; tests/integration/test_study_output.py::"
             "test_the_list_tells_what_there_is_and_runs_nothing, listed only"),
    "fedmest data fetch mnist":
        ("", "a download; tests/unit/test_data.py::test_mnist_is_fetched_from_openml, from a stand-in"),
    "fedmest reproduce mnist --scale paper":
        ("", "hours; tests/statistical/test_images.py::"
             "test_a_study_of_pixels_runs_from_the_command_to_its_page, on small digits"),
    "fedmest reproduce cnn-samples cnn-clients":
        ("", "hours; tests/statistical/test_images.py::"
             "test_a_network_is_trained_on_mnist_and_scored_on_its_test_images, a cell"),
    "fedmest audit fedsgd --model logistic":
        ("fedmest audit fedsgd --model logistic --games 200", "fewer games"),
    "fedmest audit --out audits.jsonl":
        ("fedmest audit fedirls --model poisson --games 200 --out audits.jsonl", "every method and model: an hour"),
    "fedmest audit fedsgd --model logistic --calibration certified --clip-norm 1 --plot roc.png --report audit.html":
        ("fedmest audit fedsgd --model logistic --calibration certified --clip-norm 1 --games 200 --plot roc.png "
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


if __name__ == "__main__":
    main(*sys.argv[1:])
