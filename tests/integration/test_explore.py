"""The planning page's answers, without the page."""

import json
import re
import socket
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

import fedmest as fm
from conftest import one_line, simulate
from fedmest.core.exceptions import InputError
from fedmest.interface.cli.main import main
from fedmest.interface.explorer.answers import answers
from fedmest.interface.explorer.server import INITIAL, Explorer
from fedmest.runs.planning import planning_problem


def test_rounds_are_counted_as_a_plan_counts_them() -> None:
    _, drawn = answers(INITIAL)
    for candidate in fm.plan(400, 5, "logistic", 2.0, sites=100).candidates:
        curve = dict(drawn["curves"][candidate.method]["rounds"])
        assert curve[candidate.rounds] == candidate.prediction.mse
        for option, values in candidate.spec.method.rounds_grid.items():
            assert len(curve) == len({*values, getattr(candidate.spec.method, option)})
    few = dict(drawn["curves"]["fedirls"]["rounds"])
    assert few[4] > 5 * few[6]  # one Newton step from zero does not arrive


@pytest.mark.parametrize(
    ("method", "settings"),
    [
        ("fedsgd", {"K": 30, "cov_type": "nonrobust", "budget_schedule": "uniform"}),
        ("fedirls", {"R": 4, "aggregation_weights": "optimal"}),
    ],
)
def test_the_command_runs(
    method: str, settings: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """With a file and columns in the places left for them, it does what `fit` does."""
    case = simulate("logistic", 4, 100, d=3)
    frame = pd.DataFrame(case.X, columns=["age", "dose"]).assign(sick=case.y.astype(int), clinic=case.sites)
    frame.to_csv(file := tmp_path / "rows.csv", index=False)
    planned = planning_problem(100, 2, "logistic", 2.5, sites=4)
    plan = replace(planned.advise(), best=planned.at(method, settings))
    words = [str(file) if word == "FILE" else word for word in plan.fit_command.split()]
    words[words.index("--target") + 1], words[words.index("--site") + 1] = "sick", "clinic"
    assert main([*words[1:], "--seed", "1", "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    fitted = fm.fit(fm.Federation.from_frame(frame, "sick", "clinic"), "logistic", method, 2.5, seed=1, **settings)
    assert answer == json.loads(json.dumps(fitted.to_dict()))


def test_the_command_has_what_was_asked_for() -> None:
    plan = fm.plan(400, 3, "poisson", 2.0, sites=40, cov_type="robust", fit_intercept=False, methods=["fedirls"])
    assert plan.fit_command.endswith("--mu 2 --option R=4 --no-intercept --cov-type robust")
    assert plan.fit_call.endswith("mu=2, R=4, fit_intercept=False, cov_type='robust')")


@pytest.mark.parametrize(
    ("field", "value", "words"),
    [
        ("mu", "", "mu is missing"), ("mu", "high", "mu='high' must be a number"), ("mu", "-1", "mu"),
        ("mu", "inf", "must be a number"), ("sizes", "/etc/passwd", "numbers with commas"), ("sizes", "0", "sizes"),
        ("features", "2.5", "whole number"), ("features", "0", "features=0"), ("model", "cnn", "cnn"),
        ("model", "multinomial", "multinomial"), ("sites", "1000000", "too many"), ("rounds", "1", "limits"),
        ("cov_type", "none", "no field 'cov_type'"),
    ],
)  # fmt: skip
def test_fields_that_make_no_sense_are_refused(field: str, value: str, words: str) -> None:
    with pytest.raises(InputError, match=re.escape(words)):
        list(answers({**INITIAL, field: value}))


def test_a_port_that_is_taken_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        words = one_line(capsys, main(["explore", "--no-browser", "--port", str(taken.getsockname()[1])]), 1)
    assert "cannot be had" in words
    assert "--port" in words


def test_six_hundred_features_have_an_answer() -> None:
    plan, drawn = answers({**INITIAL, "features": "600"})
    json.dumps([plan, drawn], allow_nan=False)
    assert all(len(curve["mu"]) > 1 for curve in drawn["curves"].values())


# -- the server ------------------------------------------------------------------------------------------------------

PLAN = "/plan?model=logistic&mu=2&sizes=100&sites=5&features=3"


@pytest.fixture
def explorer() -> Iterator[Explorer]:
    with Explorer(processes=1) as serving:
        thread = threading.Thread(target=serving.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield serving
        serving.shutdown()
        thread.join()


def exchange(explorer: Explorer, *requests: str) -> list[int]:
    """Send the requests over one connection, and return the status of each reply until the server closes it."""
    with socket.create_connection(("127.0.0.1", explorer.server_port), timeout=30) as line:
        line.sendall("".join(requests).encode())
        line.shutdown(socket.SHUT_WR)
        received = b"".join(iter(lambda: line.recv(65536), b""))
    return [int(status) for status in re.findall(rb"HTTP/1\.1 (\d+) ", received)]


def request(explorer: Explorer, path: str, **headers: str) -> str:
    said = {"Host": f"127.0.0.1:{explorer.server_port}", **headers}
    lines = [f"{name.replace('_', '-')}: {value}" for name, value in said.items()]
    return "\r\n".join([f"GET {path} HTTP/1.1", *lines, "", ""])


def test_a_connection_serves_several_requests_until_one_is_refused(explorer: Explorer) -> None:
    css = request(explorer, "/page.css")
    assert exchange(explorer, css, css) == [200, 200]
    assert exchange(explorer, css, request(explorer, "/none"), css) == [200, 404]
    assert exchange(explorer, request(explorer, "/page.css", Host="evil.example"), css) == [403]


def test_a_request_inside_a_body_is_not_answered(explorer: Explorer) -> None:
    """A page of another site may hide one there: its own headers are then the attacker's to write."""
    hidden = request(explorer, PLAN)
    for body in ({"Content_Length": str(len(hidden))}, {"Transfer_Encoding": "chunked"}):
        assert exchange(explorer, request(explorer, "/page.css", **body), hidden) == [400]
        assert exchange(explorer, request(explorer, "/page.css", Host="evil.example", **body), hidden) == [403]
    post = request(explorer, "/", Content_Length=str(len(hidden))).replace("GET", "POST", 1)
    assert exchange(explorer, post, hidden) == [501]


def test_pages_of_other_sites_get_no_plan(explorer: Explorer) -> None:
    own = f"http://127.0.0.1:{explorer.server_port}"
    for headers, status in (
        ({}, 200), ({"Sec_Fetch_Site": "same-origin"}, 200), ({"Sec_Fetch_Site": "none"}, 200), ({"Origin": own}, 200),
        ({"Sec_Fetch_Site": "cross-site"}, 403), ({"Sec_Fetch_Site": "same-site"}, 403), ({"Origin": "null"}, 403),
        ({"Origin": "https://evil.example"}, 403), ({"Origin": "http://127.0.0.1:1"}, 403),
    ):  # fmt: skip
        assert exchange(explorer, request(explorer, PLAN, **headers)) == [status], headers


def test_a_bug_in_a_plan_is_said_on_the_page(explorer: Explorer, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> Iterator[object]:
        raise ZeroDivisionError("by zero")

    monkeypatch.setattr("fedmest.interface.explorer.server.answers", broken)
    assert exchange(explorer, request(explorer, PLAN)) == [500]
