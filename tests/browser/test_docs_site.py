"""The documentation's site in a real browser: it asks nobody else, and its search finds words."""

from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
from playwright.sync_api import TimeoutError as PlaywrightTimeout

from browsing import Visit


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: Any) -> None:
        pass


@pytest.fixture(scope="module")
def address(site: tuple[Path, str]) -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(site[0]))) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def find(page: Any, word: str) -> None:
    """Type a word key by key (the page listens to keys) until there is a result; what is typed too early is lost."""
    box, result = page.locator("input.md-search__input"), page.locator(".md-search-result__link").first
    for _ in range(6):
        box.fill("")
        box.press_sequentially(word)
        try:
            return result.wait_for(timeout=10_000)
        except PlaywrightTimeout:
            continue
    raise AssertionError(f"the search finds no {word!r}")


def test_a_browser_asks_nobody_else_and_finds_words(browser: Any, address: str) -> None:
    """Scripts included: the search is tried, too."""
    for name in ("index", "tutorial", "ethics-board", "reference"):
        visit = Visit(browser, f"{address}/{name}.html")
        assert visit.page.locator("h1").count() == 1
        find(visit.page, "ledger")
        assert [url for url in visit.asked if not url.startswith((address, "data:", "blob:"))] == []
        assert visit.said == []
