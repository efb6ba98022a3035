"""Studies on several processes, killed and interrupted in the middle: the same bytes in the end."""

import os
import re
import signal
import sqlite3
import subprocess
import sys
import time
from contextlib import closing, suppress
from multiprocessing import active_children
from pathlib import Path
from typing import Any

import pytest

from conftest import PROGRAM
from fedmest.interface.cli.main import main
from fedmest.interface.study_output import reproduce
from fedmest.studies import STUDIES
from fedmest.studies.reproduce import ReproductionJob
from fedmest.studies.runner import Done
from fedmest.studies.store import FILE, Store
from study_cases import CALL, corner, numbers


def stored(folder: Path) -> int:
    """Cells in a store that another process may be writing."""
    with (
        suppress(sqlite3.OperationalError),
        closing(sqlite3.connect(f"file:{folder / FILE}?mode=ro", uri=True, timeout=30)) as db,
    ):
        return int(db.execute("SELECT count(*) FROM cells").fetchone()[0])
    return 0


@pytest.mark.parametrize("backend", ["loky", "dask"])
def test_two_processes_give_the_bytes_that_one_gives(backend: str, alone: Path, tmp_path: Path) -> None:
    from distributed import Client

    crew: list[object] = []

    def look(now: Done) -> None:
        if backend == "loky":
            crew.append(len(active_children()))
        elif now.cells:
            crew.append(Client.current().run_on_scheduler(workers_and_tasks))

    reproduce(ReproductionJob((corner(),), 2, {}), tmp_path, workers=2, backend=backend, progress=look)
    assert crew[-1] == (2 if backend == "loky" else (2, 4))
    assert numbers(tmp_path) == numbers(alone)


def workers_and_tasks(dask_scheduler: Any) -> tuple[int, int]:
    """Of a Dask cluster, and tasks that were done there."""
    done = (prefix.state_counts["memory"] for prefix in dask_scheduler.task_prefixes.values())
    return len(dask_scheduler.workers), sum(done)


def start(folder: Path, workers: int) -> "subprocess.Popen[str]":
    """`CALL` in a process group of its own, once it has stored a few cells and is busy with the next."""
    process = subprocess.Popen(
        [*PROGRAM, *CALL, "--workers", str(workers), "--out", str(folder)],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True,
    )  # fmt: skip
    deadline = time.monotonic() + 120
    while stored(folder) < 3:
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.01)
    return process


def assert_whole_cells(folder: Path, fits: int) -> None:
    with closing(sqlite3.connect(folder / FILE)) as db:
        assert db.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
        counts = db.execute("SELECT count(r.cell) FROM cells c LEFT JOIN results r ON r.cell = c.id GROUP BY c.id")
        assert {count for (count,) in counts} <= {fits}
        assert db.execute("SELECT count(*) FROM results WHERE cell NOT IN (SELECT id FROM cells)").fetchone() == (0,)


def test_a_killed_run_leaves_whole_cells_and_goes_on_to_the_same_bytes(whole: Path, tmp_path: Path) -> None:
    process = start(tmp_path, workers=1)
    process.kill()
    process.communicate(timeout=60)
    assert process.returncode == -signal.SIGKILL
    before = stored(tmp_path)
    assert 3 <= before < 25
    assert_whole_cells(tmp_path, fits=2 * len(STUDIES["logistic-equal"].estimators))
    assert not (tmp_path / "results.parquet").exists()
    assert main([*CALL, "--workers", "1", "--out", str(tmp_path)]) == 0
    assert stored(tmp_path) == 25
    assert numbers(tmp_path) == numbers(whole)


def test_ctrl_c_says_how_many_cells_are_stored_and_the_same_command_goes_on(whole: Path, tmp_path: Path) -> None:
    """SIGINT to the whole group, as a terminal sends it: two processes compute, and may complain by themselves."""
    process = start(tmp_path, workers=2)
    os.killpg(process.pid, signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert (process.returncode, out) == (130, "")
    said = "\n".join(line for line in err.splitlines() if line.startswith("fedmest:"))
    note = re.fullmatch(r"fedmest: interrupted; (\d+) of 25 cells are stored in (\S+); the same command .*", said)
    assert note is not None, err
    assert note[2] == str(tmp_path)
    assert int(note[1]) <= stored(tmp_path) <= int(note[1]) + 1 < 25  # one can be stored and not yet counted
    assert_whole_cells(tmp_path, fits=2 * len(STUDIES["logistic-equal"].estimators))
    assert main([*CALL, "--workers", "1", "--out", str(tmp_path)]) == 0
    assert numbers(tmp_path) == numbers(whole)


def test_a_killed_worker_ends_the_run_with_what_is_stored(tmp_path: Path) -> None:
    process = start(tmp_path, workers=2)
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    workers = [pid for pid in children if "LokyProcess" in Path(f"/proc/{pid}/cmdline").read_text()]
    os.kill(int(workers[0]), signal.SIGKILL)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 1
    assert re.search(r"^fedmest: a process was killed .*; \d+ of 25 cells are stored in", err, re.MULTILINE), err
    assert_whole_cells(tmp_path, fits=2 * len(STUDIES["logistic-equal"].estimators))


def test_a_kill_while_a_cell_is_written_leaves_nothing_of_it(tmp_path: Path) -> None:
    script = """
import os, signal, sys
from pathlib import Path
from fedmest.studies import STUDIES
from fedmest.studies.cells import FitRecord
from fedmest.studies.store import Store
def rows():
    yield FitRecord("np-pooled", 0, 1.0)
    os.kill(os.getpid(), signal.SIGKILL)
first, second = STUDIES["logistic-equal"].cells(2)[:2]
store = Store(Path(sys.argv[1]))
store.add(first, [FitRecord("np-pooled", 0, 1.0)], 1.0)
store.add(second, rows(), 1.0)
"""
    done = subprocess.run([sys.executable, "-c", script, str(tmp_path)], timeout=120)
    assert done.returncode == -signal.SIGKILL
    assert stored(tmp_path) == 1
    assert_whole_cells(tmp_path, fits=1)
    cells = STUDIES["logistic-equal"].cells(2)
    with Store(tmp_path) as store:
        assert store.missing(cells) == cells[1:]
