"""Every block of code in the documentation runs and prints what the page says it prints."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import pytest

import pages
from pages import RUN, same, shown


@pytest.fixture(scope="module")
def played(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[str, "Future[dict[int, str]]"]]:
    """The pages whose tests were asked for, two at a time."""

    def run(page: str, folder: Path) -> dict[int, str]:
        into = folder / "printed.json"
        command = [sys.executable, pages.__file__, page, str(into)]
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
        message = f"{page}, line {block.line}: `python tests/pages.py {page}` writes what is printed now"
        assert same(printed[above]) == same(block.text), message
