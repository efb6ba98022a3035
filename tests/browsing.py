"""A page that is open in a real browser, and what the browser had to say of it. Chromium is Debian's."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

CHROMIUM = "chromium"
SERIOUS = ("serious", "critical")


@contextmanager
def chromium(path: str) -> Iterator[Any]:
    from playwright.sync_api import sync_playwright

    with sync_playwright() as play:
        started = play.chromium.launch(executable_path=path, args=["--no-sandbox"])
        yield started
        started.close()


class Visit:
    def __init__(self, browser: Any, url: str, width: int = 1000, scheme: str = "light", **more: Any) -> None:
        self.said: list[str] = []
        self.asked: list[str] = []
        self.page = browser.new_page(viewport={"width": width, "height": 900}, color_scheme=scheme, **more)
        self.page.on("console", lambda message: self.said.append(message.text))
        self.page.on("pageerror", lambda error: self.said.append(str(error)))
        self.page.on("request", lambda request: self.asked.append(request.url))
        self.page.goto(url)

    def obstacles(self) -> list[str]:
        """What stands in the way of keyboard and eyes, by axe-core (contrast included), and what sticks out."""
        from axe_playwright_python.sync_playwright import Axe

        found = [v["id"] for v in Axe().run(self.page).response["violations"] if v["impact"] in SERIOUS]
        wide = self.page.evaluate("document.documentElement.scrollWidth > document.documentElement.clientWidth")
        return found + (["sticks out of the screen"] if wide else [])
