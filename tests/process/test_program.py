"""The program itself, as a user starts it."""

import json
import os
import signal
import subprocess
from contextlib import suppress
from pathlib import Path

import pytest

from cli_cases import arguments, write_rows
from conftest import PROGRAM


@pytest.fixture
def rows(tmp_path: Path) -> Path:
    return write_rows(tmp_path)


def test_the_program_prints_json_and_nothing_else(rows: Path) -> None:
    done = subprocess.run([*PROGRAM, *arguments(rows, "--json")], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0
    assert done.stderr == ""
    assert json.loads(done.stdout)["method"] == "fednewton"


def test_the_program_reports_an_error_with_code_2(rows: Path) -> None:
    done = subprocess.run(
        [*PROGRAM, "fit", "none.csv", *arguments(rows)[2:]], capture_output=True, text=True, timeout=120
    )
    assert (done.returncode, done.stdout, done.stderr) == (2, "", "fedmest: there is no file none.csv\n")


def test_ctrl_c_stops_the_program_with_one_line(rows: Path) -> None:
    """SIGINT while pandas reads, which makes an error of it; a pipe tells when the program has got there."""
    pipe = rows.with_name("pipe.csv")
    os.mkfifo(pipe)
    process = subprocess.Popen([*PROGRAM, *arguments(pipe)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    with pipe.open("w"):  # opens when the program reads
        for _ in range(6):  # now and then a callback inside pandas swallows the first: press again, as a person would
            process.send_signal(signal.SIGINT)
            with suppress(subprocess.TimeoutExpired):
                process.wait(timeout=10)
                break
        out, err = process.communicate(timeout=10)
    assert process.returncode == 130
    assert out == ""
    assert err == "fedmest: interrupted; nothing was written\n"
