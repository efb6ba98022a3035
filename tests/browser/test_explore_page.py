"""The planning page: the real command, a real browser, and the planner itself to hold its numbers against."""

import json
import os
import re
import signal
import socket
import subprocess
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fedmest as fm
from browsing import Visit
from conftest import PROGRAM
from fedmest.interface.explorer.answers import MUS
from fedmest.interface.tables import plan_rows
from fedmest.runs.planning import planning_problem


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    """Of `fedmest explore`, as a user starts it."""
    with subprocess.Popen(
        [*PROGRAM, "explore", "--no-browser"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        start_new_session=True,
    ) as program:  # fmt: skip
        assert program.stdout is not None
        assert program.stderr is not None
        yield re.search(r"http://\S+", program.stdout.readline())[0]  # type: ignore[index]
        os.killpg(program.pid, signal.SIGINT)  # as a terminal does: its processes hear it, too
        assert program.wait(60) == 0
        assert program.stdout.read() == "stopped\n"
        assert "Traceback" not in program.stderr.read()


class Planning(Visit):
    """The page, after it was drawn for the first time."""

    def __init__(self, browser: Any, address: str, **more: Any) -> None:
        super().__init__(browser, address, **more)
        self.drawn(1)

    def drawn(self, times: int) -> None:
        self.page.wait_for_selector(f"#timing[data-count='{times}']")

    def change(self, field: str, value: str) -> None:
        times = int(self.page.get_attribute("#timing", "data-count"))
        self.page.fill(f"#{field}", value)
        self.drawn(times + 1)

    def table(self) -> list[list[str]]:
        return [
            [cell.inner_text() for cell in row.locator("th, td").all()]
            for row in self.page.locator("#methods tbody tr").all()
        ]

    def curve(self, chart: str, method: str) -> np.ndarray:
        """Places on the screen."""
        points = self.page.get_attribute(f"#{chart} polyline[data-method={method}]", "points")
        return np.array([[float(v) for v in point.split(",")] for point in points.split()])


def test_it_opens_without_complaint_and_asks_nobody_else(browser: Any, address: str) -> None:
    planning = Planning(browser, address)
    assert planning.said == []
    assert {url.split("?")[0] for url in planning.asked if not url.startswith("data:")} == {
        address, f"{address}page.css", f"{address}page.js", f"{address}plan"
    }  # fmt: skip


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [390, 1240])
def test_nothing_serious_stands_in_the_way(browser: Any, address: str, width: int, scheme: str) -> None:
    assert Planning(browser, address, width=width, scheme=scheme).obstacles() == []


def test_the_numbers_are_those_of_a_plan_and_follow_mu(browser: Any, address: str) -> None:
    planning = Planning(browser, address)
    seen = []
    for mu in ("2", "0.5", "7.3"):
        if mu != "2":
            planning.change("mu", mu)
        advice = fm.plan(400, 5, "logistic", float(mu), sites=100)
        assert planning.table() == plan_rows(advice)
        assert planning.page.locator("tr.chosen th").inner_text() == advice.best.method
        assert planning.page.locator("#command").inner_text() == advice.fit_command
        over = f"{advice.best.prediction.mse / advice.pooled:.3g} times"
        assert over in planning.page.locator("#expected").inner_text()
        seen.append(planning.curve("by-rounds", "fedsgd"))
    assert not np.allclose(seen[0], seen[1])  # fewer mu: more error, the curve is higher up
    assert planning.said == []


def test_curves_are_drawn_where_the_planner_puts_them(browser: Any, address: str) -> None:
    planning = Planning(browser, address)
    case = planning_problem(400, 5, "logistic", 2.0, sites=100)
    advice = case.advise()
    places, errors = [], []
    for candidate in advice.candidates:
        points = planning.curve("by-mu", candidate.method)
        mus = sorted({*MUS, 2.0})
        assert len(points) == len(mus)
        across = np.ptp(points[:, 0]) / np.log(100)  # the axis goes from 0.1 to 10
        np.testing.assert_allclose(points[:, 0], points[0, 0] + across * np.log(np.array(mus) / 0.1), atol=0.2)
        places += list(points[:, 1])
        for mu in mus:
            planned = planning_problem(400, 5, "logistic", mu, sites=100).at(candidate.method, candidate.settings)
            errors.append(planned.prediction.mse)
    slope, start = np.polyfit(np.log(errors), places, 1)
    assert slope < 0  # more error is higher up
    np.testing.assert_allclose(places, start + slope * np.log(errors), atol=0.2)
    ring = planning.page.locator("#by-mu .ring")
    assert float(ring.get_attribute("cy")) == pytest.approx(start + slope * np.log(advice.best.prediction.mse), abs=0.2)


def test_the_lower_bound_is_drawn_where_it_is(browser: Any, address: str) -> None:
    planning = Planning(browser, address)
    planning.change("sizes", "30")
    advice = fm.plan(30, 5, "logistic", 2.0, sites=100)
    pooled, lower, zero = (
        np.array([float(point.split(",")[1]) for point in line.get_attribute("points").split()])
        for line in planning.page.locator("#by-mu .ref").all()
    )
    errors = [advice.lower_bound_at(mu) for mu in sorted({*MUS, 2.0})]
    assert errors[0] > 5 * errors[-1]
    scale = (zero[0] - pooled[0]) / np.log(advice.population.length(advice.population.truth) / advice.pooled)
    np.testing.assert_allclose(lower, pooled[0] + scale * np.log(np.array(errors) / advice.pooled), atol=0.3)


def test_sliders_move_by_keyboard_and_say_where_they_are(browser: Any, address: str) -> None:
    planning = Planning(browser, address)
    page = planning.page
    page.focus("#model")
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.id") == "mu-slider"
    page.keyboard.press("PageUp")
    planning.drawn(2)
    mu = page.input_value("#mu")
    assert float(mu) > 2
    assert page.get_attribute("#mu-slider", "aria-valuetext") == mu
    assert planning.table() == plan_rows(fm.plan(400, 5, "logistic", float(mu), sites=100))
    page.focus("#rounds-slider")
    page.keyboard.press("PageDown")
    planning.drawn(3)
    limit = int(page.input_value("#rounds"))
    assert planning.table() == plan_rows(fm.plan(400, 5, "logistic", float(mu), sites=100, rounds=limit))


def test_fields_for_other_studies(browser: Any, address: str) -> None:
    planning = Planning(browser, address)
    planning.page.select_option("#model", "poisson")
    planning.drawn(2)
    planning.change("sizes", "300, 120, 50, 900")
    assert planning.page.is_disabled("#sites")
    planning.page.check("#bounded")
    planning.drawn(4)
    assert planning.table() == plan_rows(fm.plan([300, 120, 50, 900], 5, "poisson", 2.0, bounded=True))
    planning.page.fill("#features", "none")
    planning.page.wait_for_selector("#error:not(:empty)")
    assert planning.page.locator("#error").inner_text() == "features='none' must be a whole number"
    assert not planning.page.is_visible("#found")
    planning.change("features", "3")
    assert planning.page.is_visible("#found")
    assert planning.page.locator("#error").inner_text() == ""


def test_the_command_is_copied_and_the_plan_saved(browser: Any, address: str, tmp_path: Path) -> None:
    planning = Planning(browser, address, permissions=["clipboard-read", "clipboard-write"])
    advice = fm.plan(400, 5, "logistic", 2.0, sites=100)
    planning.page.click("#copy")
    planning.page.wait_for_selector("#done:not(:empty)")
    assert planning.page.evaluate("() => navigator.clipboard.readText()") == advice.fit_command
    with planning.page.expect_download() as caught:
        planning.page.click("#save")
    caught.value.save_as(file := tmp_path / "plan.json")
    assert json.loads(file.read_text()) == advice.to_dict()


def test_it_answers_its_own_name_on_this_machine_alone(address: str) -> None:
    port = int(address.rstrip("/").rsplit(":", 1)[1])

    def get(path: str, host: str = f"127.0.0.1:{port}", method: str = "GET") -> tuple[int, str]:
        request = urllib.request.Request(f"http://127.0.0.1:{port}{path}", headers={"Host": host}, method=method)
        try:
            with urllib.request.urlopen(request, timeout=30) as reply:
                return reply.status, reply.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()

    assert get("/")[0] == 200
    assert get("/", f"localhost:{port}")[0] == 200
    assert get("/", "evil.example:80")[0] == 403
    assert get("/../answers.py")[0] == 404
    assert get("/", method="POST")[0] == 501
    status, answer = get("/plan?model=logistic&mu=2&sizes=/etc/passwd&features=3")
    assert status == 400
    assert "numbers with commas" in json.loads(answer)["error"]
    outside = socket.gethostbyname(socket.gethostname())
    if not outside.startswith("127."):
        with socket.socket() as knock:
            assert knock.connect_ex((outside, port)) != 0
