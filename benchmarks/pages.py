"""The pages in a real browser (Debian's chromium, by Playwright): how soon sliders are answered, and the pictures.

    python benchmarks/pages.py moves        # of `fedmest explore`, 1,000 sites; milliseconds, measured in the page
    python benchmarks/pages.py pictures     # docs/images, of a report and of the planning page

A move lasts from the slider's event until the plan is on the page (its choice, table and command), and until the
curves are.
"""

import argparse
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

import fedmest as fm

IMAGES = Path(__file__).parents[1] / "docs" / "images"
PROGRAM = [sys.executable, "-c", "import sys; from fedmest.interface.cli.main import main; sys.exit(main())"]
DESKTOP, PHONE = {"width": 1240, "height": 900}, {"width": 390, "height": 844}
SLIDERS = ("mu", "sites", "sizes", "features", "rounds")


@contextmanager
def explorer() -> Iterator[str]:
    with subprocess.Popen([*PROGRAM, "explore", "--no-browser"], stdout=subprocess.PIPE, text=True) as program:
        assert program.stdout is not None
        found = re.search(r"http://\S+", program.stdout.readline())
        assert found is not None
        yield found[0]
        program.send_signal(signal.SIGINT)


@contextmanager
def chromium() -> Iterator[Any]:
    from playwright.sync_api import sync_playwright

    with sync_playwright() as play:
        started = play.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        yield started
        started.close()


def moves(count: int) -> None:
    print(f"1,000 sites, milliseconds, median and 95th of {count} moves of each slider\n")
    print("| model | slider | answered | 95 % | curves | 95 % |\n|---|---|---|---|---|---|")
    with explorer() as address, chromium() as browser:
        page = browser.new_page(viewport=DESKTOP)
        page.goto(address)
        page.wait_for_selector("#timing[data-count]")
        for model in ("logistic", "poisson", "linear"):
            times: list[list[float]] = []
            page.select_option("#model", model)
            page.fill("#sites", "1000")
            page.wait_for_timeout(2000)
            for slider in SLIDERS:
                part = page.evaluate(MOVE, [slider, count])
                times += part
                _row(model, slider, part)
            _row(model, "all", times)


MOVE = """([id, count]) => new Promise((done) => {
  const slider = document.getElementById(`${id}-slider`), timing = document.getElementById("timing");
  const start = Number(slider.value), times = [];
  const move = () => {
    slider.value = Math.max(0, start - 40 * (1 + times.length % 2));
    slider.dispatchEvent(new Event("input"));
  };
  const watch = new MutationObserver(() => {
    times.push([Number(timing.dataset.answered), Number(timing.dataset.drawn)]);
    if (times.length < count) setTimeout(move, 50);
    else { watch.disconnect(); done(times); }
  });
  watch.observe(timing, { attributeFilter: ["data-count"] });
  move();
})"""  # in the page itself: a driver that looks every few milliseconds would slow it down


def _row(model: str, slider: str, times: list[list[float]]) -> None:
    found = np.array(times)
    middle, late = np.median(found, axis=0), np.quantile(found, 0.95, axis=0)
    print(f"| {model} | {slider} | {middle[0]:.0f} | {late[0]:.0f} | {middle[1]:.0f} | {late[1]:.0f} |", flush=True)


def pictures() -> None:
    with chromium() as browser, tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.html"
        report.write_text(visits().to_html(), encoding="utf-8")
        with explorer() as address:
            for name, url, sign in (("report", report.as_uri(), "h1"), ("explore", address, "#timing[data-count]")):
                for kind, viewport, scheme in (("desktop", DESKTOP, "light"), ("phone", PHONE, "dark")):
                    page = browser.new_page(viewport=viewport, color_scheme=scheme)
                    page.goto(url)
                    page.wait_for_selector(sign)
                    page.evaluate("() => document.getElementById('timing')?.remove()")  # differs from run to run
                    page.screenshot(path=IMAGES / f"{name}-{kind}.png", full_page=True)
                    print(IMAGES.name, f"{name}-{kind}.png")


def visits() -> fm.Result:
    """Visits to six clinics, simulated."""
    rng = np.random.default_rng(4)
    sizes = [2620, 1410, 1300, 3880, 950, 2505]
    n = sum(sizes)
    age, dose = rng.normal(55, 14, n).clip(18, 95), rng.gamma(2, 2, n).clip(0, 20)
    female, before = (rng.random(n) < 0.5).astype(float), rng.poisson(1.2, n).clip(0, 10).astype(float)
    y = rng.poisson(np.exp(-0.9 + 0.012 * age - 0.05 * dose + 0.18 * female + 0.15 * before)).astype(float)
    fed = fm.Federation.from_arrays(
        np.column_stack([age, dose, female, before]), y,
        np.repeat(["Aarhus", "Bergen", "Graz", "Leeds", "Porto", "Turku"], sizes),
        features=["age", "dose", "female", "visits before"], target_name="visits",
        bounds={"age": (18, 95), "dose": (0, 20), "female": (0, 1), "visits before": (0, 10)},
    )  # fmt: skip
    return fm.fit(fed, "poisson", "fedirls", 3.0, seed=1)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["moves", "pictures"])
    parser.add_argument("--count", type=int, default=20)
    given = parser.parse_args()
    moves(given.count) if given.what == "moves" else pictures()
