"""The ledger of a site: real files, real processes, real kills. Costs are powers of two where sums must be exact."""

import csv
import gzip
import hashlib
import io
import json
import math
import os
import random
import shutil
import signal
import sqlite3
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from conftest import PROGRAM, one_line
from fedmest.interface.cli.main import main
from fedmest.site.ledger import (
    Charge,
    ChargeError,
    Ledger,
    LedgerDamaged,
    LedgerError,
    LedgerReader,
    OverBudget,
    ReleaseEntry,
    RunEntry,
    cost,
    remaining_mu,
)

REQUEST = hashlib.sha256(b"theta").hexdigest()
GRADIENT = Charge("gradient", "all", 0.5)
COLUMNS = (
    "number", "time", "run", "terms", "round", "query", "request", "charges", "reply", "failed", "spent", "receipt"
)  # fmt: skip
PART_OF_SPLIT = (Charge("gradient", "second", 0.25), Charge("curvature", "first", 0.5))


def release(ledger: Ledger, round: int, *charges: Charge, run: str = "run-1", **changed: Any) -> ReleaseEntry:
    given = {
        "query": "gradient", "request": REQUEST, "charges": charges or (GRADIENT,), "reply": b"noise",
        "lifetime_mu": 8.0, "run_mu": 4.0,
    }  # fmt: skip
    return ledger.release(run, round, **{**given, **changed})


def memory() -> str | None:
    """A place where syncs are free, for tests that do not need them."""
    return "/dev/shm" if os.access("/dev/shm", os.W_OK) else None


@pytest.fixture
def path() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(dir=memory()) as folder:
        yield Path(folder) / "ledger.sqlite"


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A ledger with two runs and six releases. Tests copy it."""
    path = tmp_path_factory.mktemp("model") / "ledger.sqlite"
    with Ledger(path) as ledger:
        for run in ("run-1", "run-2"):
            ledger.open_run(run, f'{{"model": "poisson", "run": "{run}"}}')
            for round in range(3):
                release(ledger, round, *PART_OF_SPLIT, run=run, reply=os.urandom(3000))
    return path


@pytest.fixture
def filled(model: Path, path: Path) -> Path:
    shutil.copy(model, path)
    return path


def change(path: Path, *statements: str) -> None:
    """What anyone with the file and SQLite can do to it."""
    with closing(sqlite3.connect(path, isolation_level=None)) as db:
        for statement in statements:
            db.execute(statement)


def content(path: Path) -> list[RunEntry | ReleaseEntry]:
    with LedgerReader(path) as records:
        return list(records.chain())


def python(script: str, *arguments: object, **options: Any) -> "subprocess.Popen[str]":
    """Another process, which knows the ledger."""
    begin = "import os, sys, time\nfrom fedmest.site.ledger import *\n"
    return subprocess.Popen(
        [*options.pop("before", ()), sys.executable, "-c", begin + script, *map(str, arguments)], text=True,
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, **options,
    )  # fmt: skip


def output(process: "subprocess.Popen[str]") -> str:
    out, _ = process.communicate(timeout=60)
    assert process.returncode == 0, out
    return out.strip()


# -- what is stored -----------------------------------------------------------------------------------------


def test_a_release_is_found_again_with_all_that_it_was_given(path: Path) -> None:
    with Ledger(path, clock=lambda: 1000.5) as ledger:
        ledger.open_run("run-1", "spec")
        made = release(ledger, 3, *PART_OF_SPLIT, failed=True, reply=b"\x00\xff noise")
        assert ledger.find("run-1", 3) == made
    with Ledger(path) as ledger:
        assert ledger.find("run-1", 3) == made
        assert (made.number, made.time, made.run, made.round, made.query) == (2, 1000.5, "run-1", 3, "gradient")
        assert (made.request, made.charges, made.failed) == (REQUEST, PART_OF_SPLIT, True)
        assert made.reply == b"\x00\xff noise"
        assert (made.mu, made.spent_mu, len(made.receipt)) == (0.5, 0.5, 64)
        assert ledger.find("run-1", 4) is None
        assert ledger.find("run-2", 3) is None
        assert ledger.spec("run-1") == "spec"
        assert ledger.spec("run-2") is None
        assert list(ledger.entries()) == list(ledger.entries("run-1")) == [made]
        assert [(opening.run, opening.spec) for opening in ledger.runs()] == [("run-1", "spec")]
        assert len(ledger) == 2


def test_a_run_opens_once_and_keeps_its_spec(path: Path) -> None:
    with Ledger(path) as ledger:
        ledger.open_run("run-1", "spec")
        ledger.open_run("run-1", "spec")
        with pytest.raises(LedgerError, match=r"run 'run-1' was opened with another spec; begin a new run"):
            ledger.open_run("run-1", "other spec")
        assert len(ledger) == 1
    with Ledger(path) as ledger, pytest.raises(LedgerError, match="another spec"):
        ledger.open_run("run-1", "other spec")


def test_a_round_is_released_once(path: Path) -> None:
    with Ledger(path) as ledger:
        ledger.open_run("run-1", "spec")
        first = release(ledger, 0)
        with pytest.raises(LedgerError, match="round 0 was released before; send what is stored"):
            release(ledger, 0, reply=b"other noise")
        assert list(ledger.entries()) == [first]
        assert ledger.spent_mu() == 0.5


@pytest.mark.parametrize("change", [
    {"round": -1}, {"round": 2**63}, {"round": True}, {"round": 1.0}, {"round": "1"},
    {"run": "run-2"}, {"run": ""}, {"run": "=1+1"}, {"run": "a\x1b[2Jb"}, {"run": "a\nb"}, {"run": "a\udcff"},
    {"run": 7}, {"run": "r" * 201}, {"query": ""}, {"query": None},
    {"request": "theta"}, {"request": b"ab" * 32}, {"request": "AB" * 32},
    {"charges": ()}, {"reply": "text"}, {"reply": None}, {"run_mu": math.nan}, {"run_mu": math.inf}, {"run_mu": -1.0},
    {"lifetime_mu": math.nan}, {"lifetime_mu": math.inf}, {"lifetime_mu": -1.0},
])  # fmt: skip
def test_a_release_that_is_not_well_formed_is_refused(path: Path, change: dict[str, Any]) -> None:
    with Ledger(path) as ledger:
        ledger.open_run("run-1", "spec")
        round = change.pop("round", 0)
        with pytest.raises(LedgerError, match=";") as refusal:
            release(ledger, round, **change)
        assert "\n" not in str(refusal.value)
        assert "\x1b" not in str(refusal.value)
        assert not isinstance(refusal.value, OverBudget)
        assert len(ledger) == 1
        release(ledger, 0)


@pytest.mark.parametrize("mu", [0.0, -1.0, math.nan, math.inf, -math.inf, 1e-200, 1e200, True, "1", None])
def test_a_cost_is_a_positive_number(mu: Any) -> None:
    with pytest.raises(ChargeError, match="must be a positive number, above 1e-100 and below 1e\\+100"):
        Charge("gradient", "all", mu)


def test_a_charge_names_what_leaves_and_a_part_of_the_rows() -> None:
    with pytest.raises(LedgerError, match="part = 'third' must be one of all, first, second"):
        Charge("gradient", "third", 1.0)
    with pytest.raises(LedgerError, match="use printable text"):
        Charge("", "all", 1.0)


def test_only_the_owner_may_read_the_file(path: Path) -> None:
    before = os.umask(0)
    try:
        with Ledger(path) as ledger:
            ledger.open_run("run-1", "spec")
            modes = {file.name: file.stat().st_mode & 0o777 for file in path.parent.iterdir()}
    finally:
        os.umask(before)
    assert modes == {"ledger.sqlite": 0o600, "ledger.sqlite.lock": 0o600}


def test_a_copy_of_the_one_file_is_a_backup_even_while_a_vault_has_it(path: Path, tmp_path: Path) -> None:
    with Ledger(path) as ledger:
        ledger.open_run("run-1", "spec")
        made = [release(ledger, round) for round in range(3)]
        shutil.copy(path, tmp_path / "copy.sqlite")
    assert content(tmp_path / "copy.sqlite")[1:] == made


def test_a_ledger_in_another_journal_mode_is_brought_back_to_one_file(filled: Path) -> None:
    change(filled, "PRAGMA journal_mode = WAL")
    with Ledger(filled) as ledger:
        release(ledger, 7)
        assert {file.name for file in filled.parent.iterdir()} == {"ledger.sqlite", "ledger.sqlite.lock"}


# -- what it costs ------------------------------------------------------------------------------------------


def test_halves_cost_what_their_dearer_one_costs_and_runs_add_up(path: Path) -> None:
    """By hand. Run 1: first 3, both 4, second 1: max(9 + 16, 16 + 1) = 25. Run 2: second 12: 144. Together 169."""
    with Ledger(path) as ledger:
        for run in ("run-1", "run-2"):
            ledger.open_run(run, "spec")
        free = {"lifetime_mu": 13.0, "run_mu": 13.0}
        release(ledger, 0, Charge("curvature", "first", 3.0), **free)
        assert (ledger.spent_mu("run-1"), ledger.spent_mu()) == (3.0, 3.0)
        release(ledger, 1, Charge("gradient", "all", 4.0), **free)
        assert (ledger.spent_mu("run-1"), ledger.spent_mu()) == (5.0, 5.0)
        release(ledger, 2, Charge("gradient", "second", 1.0), **free)  # the other half is dearer already
        assert (ledger.spent_mu("run-1"), ledger.spent_mu()) == (5.0, 5.0)
        release(ledger, 0, Charge("gradient", "second", 12.0), run="run-2", **free)
        assert (ledger.spent_mu("run-2"), ledger.spent_mu()) == (12.0, 13.0)
        assert ledger.spent_mu("run-3") == 0.0
        assert [entry.spent_mu for entry in ledger.entries()] == [3.0, 5.0, 5.0, 13.0]
        with pytest.raises(OverBudget):
            release(ledger, 1, Charge("gradient", "all", 1.0), run="run-2", lifetime_mu=13.0, run_mu=20.0)
    with LedgerReader(path) as records:
        assert (records.spent_mu("run-1"), records.spent_mu("run-2"), records.spent_mu()) == (5.0, 12.0, 13.0)


def test_a_refusal_names_what_is_spent_what_it_costs_and_what_is_left(path: Path) -> None:
    with Ledger(path) as ledger:
        ledger.open_run("run-1", "spec")
        release(ledger, 0, Charge("gradient", "all", 3.0), run_mu=5.0)
        with pytest.raises(OverBudget) as refusal:
            release(ledger, 1, Charge("gradient", "all", 4.5), run_mu=5.0)
        assert str(refusal.value) == (
            "run 'run-1' may spend mu = 5 and has spent 3; this release costs 4.5 and 4 is left; "
            "ask for less, or let the site's owner allow more"
        )
        with pytest.raises(OverBudget, match=r"the site may spend mu = 4 and has spent 3; .* 2.64575 is left"):
            release(ledger, 1, Charge("gradient", "all", 3.0), run_mu=5.0, lifetime_mu=4.0)
        assert ledger.spent_mu() == 3.0
        release(ledger, 1, Charge("gradient", "all", 4.0), run_mu=5.0, lifetime_mu=5.0)
        with pytest.raises(OverBudget, match="0 is left"):
            release(ledger, 2, Charge("gradient", "all", 1e-3), run_mu=5.0)


def test_a_budget_of_nothing_releases_nothing(path: Path) -> None:
    with Ledger(path) as ledger:
        ledger.open_run("run-1", "spec")
        for budget in ({"run_mu": 0.0}, {"lifetime_mu": 0.0}):
            with pytest.raises(OverBudget):
                release(ledger, 0, Charge("gradient", "all", 1e-9), **budget)


def test_rounding_of_a_split_budget_is_forgiven_and_does_not_build_up(path: Path) -> None:
    with Ledger(path) as ledger:
        ledger.open_run("run-1", "spec")
        share = 2.0 / math.sqrt(10) * (1 + 5e-10)
        for round in range(10):
            release(ledger, round, Charge("gradient", "all", share), run_mu=2.0)
        assert 2.0 < ledger.spent_mu() <= 2.0 * (1 + 1e-9)
        with pytest.raises(OverBudget):
            release(ledger, 10, Charge("gradient", "all", 1e-4), run_mu=2.0)
        with pytest.raises(OverBudget):
            release(ledger, 10, Charge("gradient", "all", 1e-4), lifetime_mu=2.0)


PRICES = st.one_of(st.floats(1e-6, 3.0), st.sampled_from([0.1, 0.5, 1.0]))
CHARGE = st.builds(Charge, st.just("value"), st.sampled_from(["all", "first", "second"]), PRICES)
CHARGES = st.lists(CHARGE, min_size=1, max_size=3)
ASKED = st.tuples(st.sampled_from(["run-1", "run-2", "run-3"]), st.integers(0, 3), CHARGES)


@settings(max_examples=25)
@given(st.lists(ASKED, max_size=12), st.floats(0.1, 4.0), st.floats(0.1, 4.0))
def test_whatever_is_asked_the_limits_hold_and_the_sums_are_those_of_the_entries(
    asked: list[tuple[str, int, list[Charge]]], lifetime: float, limit: float
) -> None:
    with tempfile.TemporaryDirectory(dir=memory()) as folder, Ledger(Path(folder) / "ledger.sqlite") as ledger:
        for run in ("run-1", "run-2", "run-3"):
            ledger.open_run(run, "spec")
        for run, round, charges in asked:
            before = list(ledger.entries())
            try:
                made = release(ledger, round, *charges, run=run, lifetime_mu=lifetime, run_mu=limit)
                assert list(ledger.entries()) == [*before, made]
            except LedgerError as refusal:
                assert list(ledger.entries()) == before
                over = isinstance(refusal, OverBudget)
                assert over != any((entry.run, entry.round) == (run, round) for entry in before)
                if over:
                    sums = by_hand([*before, (run, charges)])
                    assert sums["site"] > lifetime * (1 + 0.9e-9) or sums[run] > limit * (1 + 0.9e-9)
            sums = by_hand(list(ledger.entries()))
            assert sums["site"] <= lifetime * (1 + 1.1e-9)
            assert ledger.spent_mu() == pytest.approx(sums["site"], rel=1e-14, abs=0)
            for run in ("run-1", "run-2", "run-3"):
                assert sums[run] <= limit * (1 + 1.1e-9)
                assert ledger.spent_mu(run) == pytest.approx(sums[run], rel=1e-14, abs=0)
        with LedgerReader(ledger.path) as records:
            assert list(records.chain()) == list(ledger.chain())
            assert records.spent_mu() == ledger.spent_mu()


def by_hand(entries: list[Any]) -> dict[str, float]:
    """The total of each run and of the site, from the charges alone."""
    squares: dict[str, float] = {}
    spent = [(e.run, e.charges) if isinstance(e, ReleaseEntry) else e for e in entries]
    for run in ("run-1", "run-2", "run-3"):
        charges = [charge for whose, charges in spent if whose == run for charge in charges]
        halves = [math.fsum(c.mu**2 for c in charges if c.part in ("all", half)) for half in ("first", "second")]
        squares[run] = max(halves)
    squares["site"] = math.fsum(squares.values())
    return {name: math.sqrt(square) for name, square in squares.items()}


def test_cost_and_left_agree_with_hand_computed_numbers() -> None:
    assert cost([]) == 0.0
    assert cost([Charge("a", "all", 3.0), Charge("b", "first", 4.0), Charge("c", "second", 1.0)]) == 5.0
    assert remaining_mu(2.0, 2.0 * (1 + 1e-10)) == 0.0


# -- one vault, killed or not --------------------------------------------------------------------------------

VAULTS = """
path, lifetime = sys.argv[1], float(sys.argv[2])

def vault():
    with Ledger(path) as ledger:
        ledger.open_run("run-1", "spec")
        for round in range(len(ledger) - 1, 10**6):
            reply = os.urandom(600)
            try:
                entry = ledger.release("run-1", round, "gradient", "ab" * 32, [Charge("gradient", "all", 0.125)], reply,
                                       lifetime_mu=lifetime, run_mu=100.0)
            except OverBudget:
                time.sleep(60)
            os.write(1, f"{round} {reply.hex()} {entry.receipt}\\n".encode())

for line in sys.stdin:
    child = os.fork()
    if child == 0:
        try:
            vault()
        except BaseException as error:
            os.write(1, f"error {error!r}\\n".encode())
        os._exit(1)
    time.sleep(float(line))
    os.kill(child, 9)
    os.waitpid(child, 0)
    os.write(1, b"dead\\n")
"""


def test_fifty_kills_lose_nothing_that_left_and_overspend_nothing(tmp_path: Path) -> None:
    """Vaults that release in a loop, each killed at a random moment: while opening, waiting, writing or answering."""
    moments, path = random.Random(5), tmp_path / "ledger.sqlite"
    lifetime = 0.125 * math.sqrt(200)
    left_site: dict[int, tuple[bytes, str]] = {}
    zygote = python(VAULTS, path, lifetime)
    assert zygote.stdin is not None
    assert zygote.stdout is not None
    with zygote:
        for _ in range(50):
            zygote.stdin.write(f"{moments.uniform(0.0, 0.1)}\n")
            zygote.stdin.flush()
            while (line := zygote.stdout.readline()) != "dead\n":
                round, reply, receipt = line.split()
                assert int(round) not in left_site
                left_site[int(round)] = bytes.fromhex(reply), receipt
            if not path.exists():
                assert not left_site
                continue
            with LedgerReader(path) as records:
                stored = list(records.entries())
                assert [entry.round for entry in stored] == list(range(len(stored)))
                assert len(stored) >= len(left_site)
                for entry in stored:
                    assert left_site.get(entry.round, (entry.reply, entry.receipt)) == (entry.reply, entry.receipt)
                assert set(left_site) <= {entry.round for entry in stored}
                assert records.spent_mu() == pytest.approx(0.125 * math.sqrt(len(stored)), rel=1e-14, abs=0)
                assert records.spent_mu() <= lifetime * (1 + 1e-9)
        zygote.stdin.close()
    assert len(left_site) > 10  # fewer where other work slows the start of each life
    with Ledger(path) as ledger:
        assert len(list(ledger.entries())) >= len(left_site)


HOLDER = """
try:
    with Ledger(sys.argv[1]) as ledger:
        print("open", flush=True)
        sys.stdin.read()
except LedgerError as refusal:
    print(refusal, flush=True)
"""


def test_of_many_vaults_on_one_ledger_one_is_let_in_until_it_ends(path: Path) -> None:
    vaults = [python(HOLDER, path) for _ in range(4)]
    try:
        said = [vault.stdout.readline().strip() for vault in vaults]  # type: ignore[union-attr]
        assert said.count("open") == 1, said
        refusals = {line for line in said if line != "open"}
        assert refusals == {f"ledger {path} is in use by another vault; stop that one first"}
        with pytest.raises(LedgerError, match="in use by another vault"):
            Ledger(path)
        holder = vaults[said.index("open")]
        holder.send_signal(signal.SIGKILL)
        holder.wait(timeout=10)
        with Ledger(path) as ledger:
            ledger.open_run("run-1", "spec")
            with pytest.raises(LedgerError, match="in use by another vault"):
                Ledger(path)
            release(ledger, 0)
        with Ledger(path) as ledger:
            assert ledger.spent_mu() == 0.5
    finally:
        for vault in vaults:
            vault.kill()
            vault.communicate()


def test_a_symbolic_link_is_the_same_ledger(path: Path, tmp_path: Path) -> None:
    link = tmp_path / "link.sqlite"
    link.symlink_to(path)
    with Ledger(path), pytest.raises(LedgerError, match="in use by another vault"):
        Ledger(link)


def test_a_vault_whose_lock_was_deleted_stops_once_another_has_written(path: Path) -> None:
    with Ledger(path) as first:
        first.open_run("run-1", "spec")
        Path(f"{path}.lock").unlink()
        with Ledger(path) as second:
            release(second, 0)
            with pytest.raises(LedgerError, match="was changed by another program; end that, and start"):
                release(first, 1)
            release(second, 1)
        with pytest.raises(LedgerError, match="changed by another program"):
            release(first, 2)
    assert len(content(path)) == 3


def test_a_ledger_that_is_moved_away_or_replaced_under_a_vault_is_not_written_any_more(filled: Path) -> None:
    backup, aside = filled.with_name("backup"), filled.with_name("aside")
    shutil.copy(filled, backup)
    with Ledger(filled) as ledger:
        filled.rename(aside)
        with pytest.raises(LedgerError, match="was moved or replaced; bring it back"):
            release(ledger, 7)
        assert not filled.exists()
        aside.rename(filled)
        release(ledger, 7)
        filled.write_bytes(backup.read_bytes())  # the old copy, into the open file
        with pytest.raises(LedgerError, match="changed by another program"):
            release(ledger, 8)


def test_a_missing_ledger_whose_journal_is_there_is_not_made_anew(path: Path) -> None:
    path.with_name("ledger.sqlite-journal").write_bytes(b"rest")
    with pytest.raises(LedgerError, match=r"is gone, but ledger\.sqlite-journal is there; bring the ledger back"):
        Ledger(path)


def test_without_leave_to_create_a_missing_ledger_is_an_error(path: Path) -> None:
    with pytest.raises(LedgerError, match="does not exist; check the path"):
        Ledger(path, create=False)
    Ledger(path).close()
    Ledger(path, create=False).close()


def test_threads_may_share_a_ledger(path: Path) -> None:
    refused = []

    def ask(rounds: range) -> None:
        for round in rounds:
            try:
                release(ledger, round, Charge("gradient", "all", 0.125), run_mu=0.5)
            except OverBudget:
                refused.append(round)

    with Ledger(path) as ledger:
        ledger.open_run("run-1", "spec")
        threads = [threading.Thread(target=ask, args=(range(5 * k, 5 * k + 5),)) for k in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert ledger.spent_mu() == 0.5
        assert len(ledger) == 17
        assert len(refused) == 14
    assert len(content(path)) == 17


def test_reading_goes_on_while_a_vault_writes_and_does_not_stop_it(path: Path) -> None:
    with Ledger(path) as ledger:
        ledger.open_run("run-1", "spec")
        with LedgerReader(path) as early:
            writer = threading.Thread(
                target=lambda: [release(ledger, round, Charge("gradient", "all", 0.125)) for round in range(40)]
            )
            writer.start()
            lengths = []
            while writer.is_alive():
                lengths.append(len(content(path)))
            writer.join()
            assert len(list(early.chain())) == len(early) == 1  # as it was when it was opened
            assert early.find("run-1", 0) is None
        assert lengths == sorted(lengths)
        assert len(content(path)) == 41


def test_an_unfinished_write_of_a_killed_vault_is_taken_back_by_a_reader(filled: Path) -> None:
    """The journal of a release that was never committed is put beside a file with some of its pages written."""
    before = content(filled)
    script = """
import sqlite3
db = sqlite3.connect(sys.argv[1], isolation_level=None)
db.execute("PRAGMA cache_size = 1")
db.execute("PRAGMA synchronous = OFF")
db.execute("BEGIN IMMEDIATE")
db.execute("UPDATE entries SET reply = zeroblob(100000)")
os.kill(os.getpid(), 9)
"""
    killed = python(script, filled)
    killed.communicate(timeout=30)
    assert killed.returncode == -signal.SIGKILL
    assert filled.with_name("ledger.sqlite-journal").stat().st_size > 0
    assert content(filled) == before
    with Ledger(filled) as ledger:
        release(ledger, 7)


def killed_in_a_write(path: Path) -> Path:
    """The journal of a vault that was killed when the journal was on the disk, and some pages were written."""
    script = """
import sqlite3
db = sqlite3.connect(sys.argv[1], isolation_level=None)
db.execute("PRAGMA cache_size = 1")
db.execute("BEGIN IMMEDIATE")
for k in range(200):
    db.execute("INSERT INTO entries (number, time, run, round, spent, receipt) VALUES (?, 0, ?, ?, 0, ?)",
               (1000 + k, "run-1", 50 + k, "x" * 5000))
os.kill(os.getpid(), 9)
"""
    killed = python(script, path)
    killed.communicate(timeout=30)
    assert killed.returncode == -signal.SIGKILL
    journal = path.with_name(f"{path.name}-journal")
    assert journal.stat().st_size > 0
    return journal


def test_a_ledger_with_two_names_is_refused(filled: Path) -> None:
    """A journal is named after one of them; under the other a vault would go on, and be rolled back later."""
    other = filled.with_name("other.sqlite")
    with Ledger(filled) as ledger:
        other.hardlink_to(filled)
        with pytest.raises(LedgerError, match=r"has 2 names \(hard links\)"):
            release(ledger, 7)
        other.unlink()
        release(ledger, 7)
    before = content(filled)
    other.hardlink_to(filled)
    killed_in_a_write(filled)
    for name in (filled, other):
        for kind in (Ledger, LedgerReader):
            with pytest.raises(LedgerError, match=r"has 2 names \(hard links\).*; remove the others"):
                kind(name)
    other.unlink()
    assert content(filled) == before


def test_a_journal_that_would_undo_later_charges_is_refused(filled: Path) -> None:
    """The ledger went on under another name (here renamed; a bind mount does the same) and came back."""
    other = filled.with_name("other.sqlite")
    journal = killed_in_a_write(filled)
    filled.rename(other)
    with Ledger(other) as ledger:
        release(ledger, 7, Charge("gradient", "all", 2.0))
        spent = ledger.spent_mu()
    other.rename(filled)
    raw = filled.read_bytes()
    for kind in (Ledger, LedgerReader):
        with pytest.raises(LedgerError, match=r"ledger.sqlite-journal is not of its last write, .*; move the journal"):
            kind(filled)
    assert filled.read_bytes() == raw
    journal.rename(filled.with_name("aside"))
    with LedgerReader(filled) as records:
        assert records.spent_mu() == spent


def test_a_journal_of_a_newer_ledger_is_refused_beside_an_older_copy(filled: Path) -> None:
    old = filled.read_bytes()
    with Ledger(filled) as ledger:
        release(ledger, 7)
    killed_in_a_write(filled)
    filled.write_bytes(old)
    with pytest.raises(LedgerError, match="is not of its last write"):
        Ledger(filled)
    assert filled.read_bytes() == old


def test_what_is_no_journal_and_a_journal_that_was_not_begun_undo_nothing(filled: Path) -> None:
    journal, before = filled.with_name("ledger.sqlite-journal"), content(filled)
    for rest in (b"", b"rest", bytes(4096)):
        journal.write_bytes(rest)
        assert content(filled) == before
    header = killed_in_a_write(filled).read_bytes()[:512]
    assert content(filled) == before
    unsynced = header[:8] + bytes(4) + header[12:]
    journal.write_bytes(unsynced)
    assert content(filled) == before
    with Ledger(filled) as ledger:
        before += [release(ledger, 7, reply=bytes(100_000))]
    journal.write_bytes(unsynced)  # would cut the file
    with pytest.raises(LedgerError, match="is not of its last write"):
        LedgerReader(filled)
    journal.write_bytes(header)  # has pages to undo, but not the first
    with pytest.raises(LedgerError, match="is not of its last write"):
        LedgerReader(filled)
    journal.unlink()
    assert content(filled) == before


def test_a_closed_ledger_says_so(path: Path) -> None:
    ledger = Ledger(path)
    ledger.open_run("run-1", "spec")
    ledger.close()
    ledger.close()
    for use in (lambda: release(ledger, 0), lambda: ledger.find("run-1", 0), lambda: list(ledger.entries())):
        with pytest.raises(LedgerError, match="is closed; open it again"):
            use()


# -- a disk, a clock, a file that fails ----------------------------------------------------------------------


def test_a_limit_on_file_sizes_stops_the_vault_until_it_is_started_again(filled: Path) -> None:
    script = """
import resource
with Ledger(sys.argv[1]) as ledger:
    size = os.path.getsize(sys.argv[1])
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))
    ask = lambda k: ledger.release("run-1", k, "gradient", "ab" * 32, [Charge("gradient", "all", 0.5)], b"x" * 50000,
                                   lifetime_mu=8.0, run_mu=4.0)
    for k in (10, 11):
        try:
            ask(k)
        except LedgerError as error:
            print(error)
    resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    for use in (lambda: ask(12), lambda: ledger.find("run-1", 0), lambda: ledger.open_run("run-9", "spec")):
        try:
            use()
        except LedgerError as error:
            print(error)
with Ledger(sys.argv[1]) as ledger:
    ask(13)
"""
    before = content(filled)
    said = output(python(script, filled)).splitlines()
    assert len(said) == 5, said
    assert set(said) == {f"ledger {filled} met a disk error (disk I/O error); fix the disk and start the vault again"}
    after = content(filled)
    assert after[:-1] == before
    assert isinstance(after[-1], ReleaseEntry)
    assert after[-1].round == 13


FULL_DISK = """
import subprocess
folder = sys.argv[1]
subprocess.run(["mount", "-t", "tmpfs", "-o", "size=256k", "none", folder], check=True)
path = folder + "/ledger.sqlite"
with Ledger(path) as ledger:
    ledger.open_run("run-1", "spec")
    ask = lambda k: ledger.release("run-1", k, "gradient", "ab" * 32, [Charge("gradient", "all", 0.5)], b"x" * 6000,
                                   lifetime_mu=8.0, run_mu=4.0)
    ask(0)
    with open(folder + "/other", "wb", buffering=0) as other:
        try:
            while True:
                other.write(b"x" * 4096)
        except OSError:
            pass
    for k in (1, 1):
        try:
            ask(k)
        except LedgerError as error:
            print(error)
    print(ledger.find("run-1", 0).spent_mu, ledger.find("run-1", 1), ledger.spent_mu())
    os.unlink(folder + "/other")
    print(ask(1).round, round(ledger.spent_mu() ** 2, 9))
with LedgerReader(path) as records:
    print(len(records))
"""


def test_on_a_full_disk_nothing_is_released_until_there_is_room(tmp_path: Path) -> None:
    """A disk of 256 KiB of its own, in a mount namespace of its own."""
    alone = ["unshare", "--mount"]
    mount = [*alone, "mount", "-t", "tmpfs", "none", str(tmp_path)]
    if not shutil.which("unshare") or subprocess.run(mount, capture_output=True, check=False).returncode != 0:
        pytest.skip("mounting a small disk needs root and unshare")
    said = output(python(FULL_DISK, tmp_path, before=alone)).splitlines()
    full = f"ledger {tmp_path}/ledger.sqlite found the disk full, and nothing was released"
    assert said[:2] == [f"{full} (database or disk is full); free some space and ask again"] * 2
    assert said[2:] == ["0.5 None 0.5", "1 0.5", "3"]


def test_a_database_that_may_not_grow_releases_nothing_and_goes_on_once_it_may(filled: Path) -> None:
    before = content(filled)
    with Ledger(filled) as ledger:
        pages = ledger._db.execute("PRAGMA page_count").fetchone()[0]
        ledger._db.execute(f"PRAGMA max_page_count = {pages}")
        with pytest.raises(LedgerError, match="found the disk full, and nothing was released"):
            release(ledger, 7, reply=bytes(50_000))
        assert list(ledger.chain()) == before
        ledger._db.execute("PRAGMA max_page_count = 100000")
        release(ledger, 7, reply=bytes(50_000))


AS_NOBODY = """
if os.getuid() == 0:
    os.setgroups([])
    os.setgid(65534)
    os.setuid(65534)
try:
    with (Ledger if sys.argv[2] == "write" else LedgerReader)(sys.argv[1]) as ledger:
        print(len(ledger), "entries")
except LedgerError as error:
    print(error)
"""


READ_ONLY = "ledger {} may not be written (attempt to write a readonly database); let the vault's user"


@pytest.fixture
def public(model: Path) -> Iterator[Path]:
    """A ledger that all may read and only its owner may write, in such a folder."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        shutil.copy(model, folder / "ledger.sqlite")
        (folder / "ledger.sqlite").chmod(0o444)
        folder.chmod(0o555)
        yield folder / "ledger.sqlite"
        folder.chmod(0o755)


def test_a_folder_that_may_not_be_written_is_refused_at_opening(public: Path) -> None:
    line = output(python(AS_NOBODY, public, "write"))
    assert line == f"ledger {public}: permission denied; let the vault's user read and write the file and its folder"


@pytest.mark.parametrize("folder", [0o555, 0o777])
def test_a_file_that_may_not_be_written_is_refused_at_opening(public: Path, folder: int) -> None:
    public.parent.chmod(0o755)
    lock = Path(f"{public}.lock")
    lock.touch()
    lock.chmod(0o666)
    public.parent.chmod(folder)
    line = output(python(AS_NOBODY, public, "write"))
    assert line.startswith(READ_ONLY.format(public))


def test_a_journal_that_may_not_be_made_is_found_at_opening(public: Path) -> None:
    public.parent.chmod(0o755)
    lock = Path(f"{public}.lock")
    lock.touch()
    lock.chmod(0o666)
    public.chmod(0o666)
    public.parent.chmod(0o555)
    line = output(python(AS_NOBODY, public, "write"))
    assert line.startswith(READ_ONLY.format(public))


def test_reading_needs_no_leave_to_write(public: Path) -> None:
    assert output(python(AS_NOBODY, public, "read")) == "8 entries"


def test_reading_without_leave_is_refused(public: Path) -> None:
    public.chmod(0o600)
    if os.getuid() != 0:
        public.chmod(0o000)
    assert "cannot be opened (unable to open database file); let the vault's user" in output(
        python(AS_NOBODY, public, "read")
    )


def test_a_clock_that_was_ahead_stops_nothing_and_times_never_go_back(
    path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    now = [1_000_000.0]
    with Ledger(path, clock=lambda: now[0]) as ledger:
        ledger.open_run("run-1", "spec")
        assert release(ledger, 0).time == 1_000_000.0
        now[0] -= 59
        assert release(ledger, 1).time == 1_000_000.0
        assert not caplog.records
        now[0] -= 2
        assert release(ledger, 2).time == 1_000_000.0
        assert [record.facts for record in caplog.records] == [{"ledger": str(path), "reason": (  # type: ignore[attr-defined]
            "the clock shows 1970-01-12 13:45:39Z, but the last entry has 1970-01-12 13:46:40Z, and a new entry takes "
            "that time, too; set the clock right if it is wrong; if it was ahead before, nothing needs to be done"
        )}]  # fmt: skip
        now[0] += 100
        assert release(ledger, 3).time == 1_000_039.0
        now[0] += 366 * 86400
        ahead = release(ledger, 4).time
        now[0] -= 366 * 86400
        assert release(ledger, 5).time == ahead == 1_000_039.0 + 366 * 86400
        ledger.open_run("run-2", "spec")
    with Ledger(path, clock=lambda: 0.0) as ledger:
        assert release(ledger, 6).time == ahead
    assert len(caplog.records) == 4
    assert [entry.time for entry in content(path)] == sorted(entry.time for entry in content(path))


@pytest.mark.parametrize("now", [math.nan, math.inf, -1.0, 1e18])
def test_a_clock_that_shows_no_date_is_refused(path: Path, now: float) -> None:
    with Ledger(path, clock=lambda: now) as ledger, pytest.raises(LedgerError, match="since 1970; set it right"):
        ledger.open_run("run-1", "spec")


def test_what_is_not_a_ledger_is_left_as_it_is(path: Path, tmp_path: Path) -> None:
    cases: dict[str, tuple[Callable[[], object], str]] = {
        "text": (lambda: path.write_text("hello\n" * 2000), "is not a ledger, or its beginning is damaged"),
        "short text": (lambda: path.write_text("hello"), "is not a ledger, or its beginning is damaged"),
        "nothing": (lambda: path.write_bytes(b""), "is empty; keep it, and restore a copy"),
        "another database": (lambda: change(path, "CREATE TABLE t (x)"), "is an SQLite file but not a ledger; check"),
        "a folder": (lambda: path.mkdir(), "is not a file; check the path"),
    }
    for make, message in cases.values():
        make()
        before = path.read_bytes() if path.is_file() else b""
        for kind in (Ledger, LedgerReader):
            with pytest.raises(LedgerError, match=message):
                kind(path)
        if path.is_file():
            assert path.read_bytes() == before
            path.unlink()
    with pytest.raises(LedgerError, match=r"there is no folder .*/none; create it first"):
        Ledger(tmp_path / "none" / "ledger.sqlite")


def test_a_ledger_of_a_later_format_is_refused(filled: Path) -> None:
    change(filled, "PRAGMA user_version = 2")
    for kind in (Ledger, LedgerReader):
        with pytest.raises(LedgerError, match="has format 2 and not 1; install a newer fedmest"):
            kind(filled)


def test_a_truncated_file_is_damaged(filled: Path) -> None:
    whole = filled.read_bytes()
    for size in {*range(4096, len(whole), 4096), len(whole) - 1, len(whole) // 2, 1000}:
        filled.write_bytes(whole[:size])
        for kind in (Ledger, LedgerReader):
            with pytest.raises(LedgerError, match=r"damaged|is not what was written"):
                kind(filled)


def test_no_changed_byte_changes_what_is_read(filled: Path) -> None:
    """200 bytes at random, one at a time: an error, or a byte that bears on nothing."""
    draw = random.Random(11)
    before, whole, errors = content(filled), filled.read_bytes(), 0
    for _ in range(200):
        damaged = bytearray(whole)
        damaged[draw.randrange(len(whole))] ^= draw.randrange(1, 256)
        filled.write_bytes(damaged)
        try:
            assert content(filled) == before
        except LedgerError:
            errors += 1
    assert errors > 50


def test_zeros_in_the_middle_are_found(filled: Path) -> None:
    whole = filled.read_bytes()
    middle = len(whole) // 2
    filled.write_bytes(whole[:middle] + bytes(4096) + whole[middle + 4096 :])
    with pytest.raises(LedgerDamaged, match="keep it, and restore a copy that holds the last receipts"):
        Ledger(filled)


# -- the chain -----------------------------------------------------------------------------------------------


def test_every_column_is_in_the_chain(filled: Path) -> None:
    with closing(sqlite3.connect(filled)) as db:
        assert [row[1] for row in db.execute("PRAGMA table_info(entries)")] == list(COLUMNS)
        assert [row[0] for row in db.execute("SELECT name FROM sqlite_master WHERE type = 'table'")] == ["entries"]


TAMPERED = {
    "number": "number + 100", "time": "time - 1e-6", "run": "run || 'x'", "terms": "'other'", "round": "9",
    "query": "'other'", "request": "'00'", "charges": "coalesce(replace(charges, '0.5', '0.25'), '[]')",
    "reply": "zeroblob(3000)", "failed": "1", "spent": "spent + 0.01", "receipt": "substr(receipt, 2) || 'x'",
}  # fmt: skip
PLACES = [(column, number) for column in COLUMNS for number in ((1, 5) if column == "terms" else (1, 2, 4, 5, 7, 8))]


@pytest.mark.parametrize(("column", "number"), PLACES)
def test_a_changed_value_is_found_and_its_entry_named(
    filled: Path, column: str, number: int, capsys: pytest.CaptureFixture[str]
) -> None:
    change(filled, f"UPDATE entries SET {column} = {TAMPERED[column]} WHERE number = {number}")
    assert main(["ledger", "verify", str(filled)]) == 1
    out, err = capsys.readouterr()
    assert out == ""
    assert f"entry {number} " in err
    with pytest.raises(LedgerDamaged):
        Ledger(filled)


@pytest.mark.parametrize("value", ["NULL", "x'ff'", "'text'", "CAST(x'ff' AS TEXT)", "7", "1e999"])
@pytest.mark.parametrize("column", COLUMNS)
def test_values_of_other_kinds_are_found(filled: Path, column: str, value: str) -> None:
    with suppress(sqlite3.IntegrityError):  # what SQLite itself refuses is no danger
        change(filled, f"UPDATE entries SET {column} = {value} WHERE number = {5 if column == 'terms' else 4}")
        with pytest.raises(LedgerDamaged):
            LedgerReader(filled)


@pytest.mark.parametrize("statements", [
    ["DELETE FROM entries WHERE number = 4"],
    ["DELETE FROM entries WHERE number = 1"],
    ["DELETE FROM entries WHERE number = 4", "UPDATE entries SET number = number - 1 WHERE number > 4"],
    ["UPDATE entries SET number = 99 WHERE number = 3", "UPDATE entries SET number = 3 WHERE number = 4",
     "UPDATE entries SET number = 4 WHERE number = 99"],
    ["INSERT INTO entries SELECT 9, time, run, terms, 9, query, request, charges, reply, failed, spent, receipt "
     "FROM entries WHERE number = 8"],
    ["INSERT INTO entries SELECT -7, time, run, terms, 9, query, request, charges, reply, failed, spent, receipt "
     "FROM entries WHERE number = 8"],
    ["CREATE TRIGGER undo AFTER INSERT ON entries BEGIN DELETE FROM entries WHERE number = NEW.number; END"],
    ["DROP INDEX rounds"],
    ["CREATE TABLE other (x)"],
    ["ALTER TABLE entries ADD COLUMN note TEXT"],
    ["CREATE VIEW other AS SELECT * FROM entries"],
    ["PRAGMA user_version = 0"],
], ids=lambda statements: statements[0][:40])  # fmt: skip
def test_rows_deleted_swapped_added_and_tables_changed_are_found(filled: Path, statements: list[str]) -> None:
    change(filled, *statements)
    for kind in (Ledger, LedgerReader):
        with pytest.raises(LedgerDamaged):
            kind(filled)


def test_a_missing_entry_is_named(filled: Path) -> None:
    change(filled, "DELETE FROM entries WHERE number = 4")
    with pytest.raises(LedgerDamaged, match="entry 4 is missing; keep it"):
        LedgerReader(filled)


def rechained(path: Path, **changed: object) -> None:
    """Change entry 5 of a ledger and make the chain anew, as one who knows how it is made."""
    with closing(sqlite3.connect(path, isolation_level=None)) as db:
        previous = "0" * 64
        for row in db.execute("SELECT * FROM entries ORDER BY number").fetchall():
            fields = dict(zip(COLUMNS, row, strict=True))
            if fields["number"] == 5:
                fields |= changed
            fields["receipt"] = previous = chained(previous, [fields[column] for column in COLUMNS[:-1]])
            places = ", ".join("?" * len(COLUMNS))
            db.execute(f"REPLACE INTO entries VALUES ({places})", list(fields.values()))


def chained(previous: str, fields: list[Any]) -> str:
    """The receipt of an entry from the stored fields, or with the digests of its spec and its reply among them."""
    plain = list(fields)
    if isinstance(plain[3], str) and len(plain[3]) != 64:
        plain[3] = hashlib.sha256(plain[3].encode()).hexdigest()
    if isinstance(plain[8], bytes):
        plain[8] = hashlib.sha256(plain[8]).hexdigest()
    return hashlib.sha256((previous + json.dumps(plain, separators=(",", ":"))).encode()).hexdigest()


@pytest.mark.parametrize(("changed", "message"), [
    ({"spent": 0.1}, r"entry 5 \(run 'run-2'\) says that mu = 0.1 was spent in all, but it was 0.866"),
    ({"time": 1.0}, r"entry 5 \(run 'run-2'\) is older than the one before it"),
    ({"run": "run-1", "terms": "other"}, r"entry 5 \(run 'run-1'\) opens a run twice"),
    ({"run": "run-3"}, r"entry 6 \(run 'run-2'\) .* belongs to one that was not opened"),
    ({"terms": None, "charges": "[]"}, r"entry 5 \(run 'run-2'\) .* belongs to one that was not opened"),
    ({"terms": None, "charges": '[["gradient", "all", -1.0]]'}, "entry 5 is not what was written"),
])  # fmt: skip
def test_a_new_chain_must_still_add_up(filled: Path, changed: dict[str, object], message: str) -> None:
    rechained(filled)
    content(filled)
    with closing(sqlite3.connect(filled, isolation_level=None)) as db:
        db.execute("DROP INDEX openings")
    rechained(filled, **changed)
    with suppress(sqlite3.IntegrityError):
        change(filled, "CREATE UNIQUE INDEX openings ON entries (run) WHERE terms IS NOT NULL")
        with pytest.raises(LedgerDamaged, match=message):
            LedgerReader(filled)
        return
    assert message.endswith("opens a run twice")  # which the index does not allow either
    with pytest.raises(LedgerDamaged):
        LedgerReader(filled)


def test_a_cut_or_rewritten_chain_is_found_by_a_receipt_from_outside(
    filled: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    entries = content(filled)
    last = entries[-1].receipt
    assert main(["ledger", "verify", str(filled), "--receipt", last.upper(), "--receipt", entries[0].receipt]) == 0
    out, err = capsys.readouterr()
    assert out.splitlines()[0] == f"8 entries, chain intact, spent mu = {math.sqrt(1.5):.6g}"
    assert "is entry 8, run run-2, round 2" in out.splitlines()[1]
    assert "is entry 1, run run-1" in out.splitlines()[2]
    assert err == ""
    change(filled, "DELETE FROM entries WHERE number = 8")
    assert main(["ledger", "verify", str(filled)]) == 0  # the chain by itself cannot tell
    assert capsys.readouterr().out.startswith("7 entries, chain intact")
    assert main(["ledger", "verify", str(filled), "--receipt", last]) == 1
    assert f"receipt {last} is not in {filled}" in capsys.readouterr().err


# -- the commands --------------------------------------------------------------------------------------------


def test_show_lists_runs_releases_and_what_is_left(filled: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["ledger", "show", str(filled), "--lifetime", "2"]) == 0
    out, err = capsys.readouterr()
    lines = [line.rstrip() for line in out.splitlines()]
    assert [line.split()[0] for line in lines if line.endswith("  0.866")] == ["run-1", "run-2", "4"]
    assert sum("gradient (second half)" in line for line in lines) == 6
    assert lines[-1] == f"Spent in all: mu = {math.sqrt(1.5):.6g} of 2, {math.sqrt(2.5):.6g} left."
    assert max(map(len, lines)) <= 100
    assert err == ""
    assert main(["ledger", "show", str(filled), "--run", "run-2"]) == 0
    out = capsys.readouterr().out
    assert "run-1" not in out
    assert out.count("gradient (second half)") == 3


def test_show_in_json_holds_every_release(filled: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["ledger", "show", str(filled), "--json", "--lifetime", "2"]) == 0
    shown = json.loads(capsys.readouterr().out)
    entries = content(filled)
    assert (shown["entries"], shown["spent_mu"], shown["remaining_mu"]) == (
        8,
        math.sqrt(1.5),
        pytest.approx(math.sqrt(2.5)),
    )
    assert [(run["run"], run["releases"], run["mu"]) for run in shown["runs"]] == [
        ("run-1", 3, math.sqrt(0.75)), ("run-2", 3, math.sqrt(0.75)),
    ]  # fmt: skip
    assert [release["receipt"] for release in shown["releases"]] == [
        entry.receipt for entry in entries if isinstance(entry, ReleaseEntry)
    ]
    assert shown["releases"][0]["charges"][0] == {"what": "gradient", "part": "second", "mu": 0.25}


def test_names_are_printed_as_they_are(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with Ledger(path) as ledger:
        ledger.open_run("a:smile:[red]b", "spec")
        release(ledger, 0, run="a:smile:[red]b")
    assert main(["ledger", "show", str(path)]) == 0
    out = capsys.readouterr().out
    assert out.count("a:smile:[red]b") == 1 and out.count("a:smile:") == 2  # the table of releases has its beginning


def test_a_long_ledger_shows_its_last_releases(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with Ledger(path) as ledger:
        ledger.open_run("run-1", "spec")
        for round in range(250):
            release(ledger, round, Charge("gradient", "all", 0.125))
        assert [entry.round for entry in ledger.entries()] == list(range(250))  # more than a page
    assert main(["ledger", "show", str(path)]) == 0
    out = capsys.readouterr().out
    assert out.count("gradient 0.125") == 100
    assert "The last 100 of 250 releases; --run RUN shows all of one run." in out
    assert main(["ledger", "show", str(path), "--run", "run-1"]) == 0
    assert capsys.readouterr().out.count("gradient 0.125") == 250


def test_an_empty_ledger_can_be_shown(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Ledger(path).close()
    assert main(["ledger", "show", str(path)]) == 0
    assert "Spent in all: mu = 0." in capsys.readouterr().out
    assert main(["ledger", "verify", str(path)]) == 0
    assert capsys.readouterr().out == "0 entries, chain intact, spent mu = 0\n"


def test_from_the_json_export_anyone_can_compute_the_receipts(filled: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["ledger", "export", str(filled), "--format", "json"]) == 0
    out = capsys.readouterr().out
    assert "poisson" not in out  # the spec stays at the site
    exported = json.loads(out)
    assert len(exported["entries"]) == 8
    previous = "0" * 64
    for entry in exported["entries"]:
        common = [entry["number"], entry["time"], entry["run"]]
        if "spec_sha256" in entry:
            fields = [*common, entry["spec_sha256"], *[None] * 6, entry["spent_mu"]]
        else:
            charges = json.dumps([[c["what"], c["part"], c["mu"]] for c in entry["charges"]])
            asked = [entry["round"], entry["query"], entry["request"]]
            fields = [*common, None, *asked, charges, entry["reply_sha256"], int(entry["failed"]), entry["spent_mu"]]
        previous = chained(previous, fields)
        assert entry["receipt"] == previous


def test_the_csv_export_has_one_line_per_charge(filled: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["ledger", "export", str(filled), "--format", "csv"]) == 0
    lines = list(csv.DictReader(io.StringIO(capsys.readouterr().out, newline="")))
    assert len(lines) == 2 + 6 * 2
    assert lines[0]["what"] == "run opened"
    costs = [(line["what"], line["part"], line["mu"]) for line in lines[1:3]]
    assert costs == [("gradient", "second", "0.25"), ("curvature", "first", "0.5")]
    assert float(lines[-1]["site_total_mu"]) == math.sqrt(1.5)
    assert lines[-1]["receipt"] == content(filled)[-1].receipt


def test_an_export_goes_to_a_file_and_never_over_the_ledger(
    filled: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for form in ("json", "csv"):
        assert main(["ledger", "export", str(filled), "--format", form]) == 0
        printed = capsys.readouterr().out
        out = tmp_path / f"out.{form}"
        assert main(["ledger", "export", str(filled), "--format", form, "--out", str(out)]) == 0
        assert capsys.readouterr().out == ""
        assert out.read_bytes().decode().splitlines() == printed.splitlines()
    before = filled.read_bytes()
    assert "is the ledger itself" in one_line(capsys, main(["ledger", "export", str(filled), "--out", str(filled)]))
    assert filled.read_bytes() == before


@pytest.mark.parametrize(("arguments", "message"), [
    (["show", "{none}"], "does not exist; check the path"),
    (["verify", "{none}"], "does not exist; check the path"),
    (["export", "{none}"], "does not exist; check the path"),
    (["verify", "{text}"], "is not a ledger"),
    (["show", "{folder}"], "is not a file; check the path"),
    (["show", "{ledger}", "--run", "run-9"], "--run 'run-9' is not in"),
    (["show", "{ledger}", "--lifetime", "nan"], "--lifetime nan is no budget"),
    (["verify", "{ledger}", "--lifetime", "-1"], "--lifetime -1.0 is no budget"),
    (["verify", "{ledger}", "--receipt", "12ab"], "--receipt '12ab' is no receipt; a receipt is 64 hex digits"),
    (["export", "{ledger}", "--format", "xml"], "--format 'xml' is not known; choose json or csv"),
    (["export", "{ledger}", "--out", "{folder}"], "is a folder; name a file"),
])  # fmt: skip
def test_a_wrong_call_is_one_line(
    filled: Path, tmp_path: Path, arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    text = tmp_path / "text"
    text.write_text("hello\n" * 1000)
    places = {"ledger": filled, "none": tmp_path / "none", "text": text, "folder": tmp_path}
    code = main(["ledger", *(argument.format(**places) for argument in arguments)])
    assert message in one_line(capsys, code)


@pytest.mark.parametrize("command", ["show", "verify", "export"])
def test_a_broken_chain_ends_every_command_with_one_line(
    filled: Path, command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    change(filled, "UPDATE entries SET failed = 1 WHERE number = 6")
    line = one_line(capsys, main(["ledger", command, str(filled)]), expected=1)
    assert "entry 6 (run 'run-2') is not what was written; keep it, and restore a copy" in line


def test_verify_fails_where_more_was_spent_than_allowed(filled: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["ledger", "verify", str(filled), "--lifetime", "1.3"]) == 0
    assert "of 1.3" in capsys.readouterr().out
    assert main(["ledger", "verify", str(filled), "--lifetime", "1"]) == 1
    assert "has spent mu = 1.22474, more than the 1 allowed" in capsys.readouterr().err


def test_the_program_reads_a_ledger_that_a_vault_has_open(filled: Path) -> None:
    with Ledger(filled) as ledger:
        release(ledger, 7)
        done = subprocess.run(
            [*PROGRAM, "ledger", "show", str(filled)], capture_output=True, text=True, timeout=60, check=False
        )
        assert (done.returncode, done.stderr) == (0, "")
        assert "Spent in all: mu = 1.32288." in done.stdout
        assert "\x1b" not in done.stdout
        release(ledger, 8)
    assert len(content(filled)) == 10


# -- the format ----------------------------------------------------------------------------------------------

FORMAT_1 = Path(__file__).parent.parent / "data" / "ledger-format-1.sqlite.gz"  # written in November 2026


def test_a_ledger_of_an_earlier_version_still_verifies_and_goes_on(path: Path) -> None:
    """Tables, hashes and totals are a format that sites have on disk: no rename in the code may change them."""
    path.write_bytes(gzip.decompress(FORMAT_1.read_bytes()))
    entries = content(path)
    assert entries[-1].receipt == "35f0500e9c11269a6bab4beb5703baa4e4379fe195e40329d801a13629fb5d18"
    assert [type(entry).__name__[:3] for entry in entries] == ["Run", "Rel", "Rel", "Run", "Rel", "Rel", "Run"]
    with Ledger(path, clock=lambda: 1_700_001_000.5) as ledger:
        assert ledger.spent_mu() == 1.3824294235551815
        assert [ledger.spent_mu(f"run-{k}") for k in (1, 2, 3)] == [1.118033988749895, 0.8130873945100312, 0.0]
        assert ledger.spec("run-1") == '{"model": "poisson", "site": "Zürich"}'
        split, failed = ledger.find("run-1", 1), ledger.find("run-2", 1)
        assert split is not None and failed is not None
        assert split.charges == (Charge("gradient", "second", 0.75), Charge("curvature", "first", 1.0))
        assert (failed.failed, failed.request, failed.mu) == (True, "01" * 64, 1 / 3)
        made = release(ledger, 0, run="run-3")
        assert made.receipt == "6269e605dd83964fb685939138b1293e08e41028c3d9ed2a9d4b1ce128a6fbe8"
    assert content(path) == [*entries, made]
