"""Vaults and servers that are killed, fifty times over, and go on where they stopped."""

import json
import math
import random
import signal
import subprocess
import threading
import time
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("opendp")

import fedmest as fm
import vaults
from conftest import PROGRAM, coef
from fedmest.runs.messages import unpack
from fedmest.site.ledger import LedgerReader
from vault_cases import FRAMES, Asker, call, federation, number_of_entries, sockets
from vaults import Nursery, is_refused, values_of, write_site


def check_ledger(path: Path, heard: dict[tuple[str, int], bytes], lifetime: float) -> float:
    """Whatever was heard is in the ledger as it was heard, and charged for; the total keeps to the policy."""
    with LedgerReader(path) as records:
        entries = {(entry.run, entry.round): entry for entry in records.entries()}
        released = math.hypot(*(entries[place].mu for place in heard), 0.0)
        for place, reply in heard.items():
            np.testing.assert_array_equal(unpack(entries[place].reply)[1]["values"], values_of(reply))
        assert released <= records.spent_mu() * (1 + 1e-12) <= lifetime * (1 + 1e-9)
        return records.spent_mu()


def test_fifty_kills_lose_no_charge_overspend_nothing_and_yield_no_second_noise(nursery: Nursery, folder: Path) -> None:
    """Kill -9 while the vault starts, reads, computes, writes and answers; started again it is asked the same bytes."""
    lifetime = 2.0
    policy = write_site(folder, "a", FRAMES["a"][:20], budget={"lifetime": lifetime, "run": 1.0})
    asker, chance, ledger, number = Asker(20), random.Random(7), folder / "ledger.sqlite", 0
    for life in range(50):
        process = nursery.start("site", "serve", policy)
        if life % 10 == 0:  # it may not even listen by then
            time.sleep(chance.uniform(0, 0.1))
            process.kill()
            process = nursery.start("site", "serve", policy)
        vaults.await_vault(folder / "s", process)
        for earlier in (max(number - 1, 0), number):  # the last that was heard, and the one that a kill cut off
            assert asker.ask(folder / "s", earlier) is not None
        killer = threading.Timer(chance.uniform(0, 0.03), process.send, [signal.SIGKILL])
        killer.start()
        while asker.ask(folder / "s", number) is not None:
            number += 1
        killer.join()
        assert process.wait() == -signal.SIGKILL
        check_ledger(ledger, asker.heard, lifetime)
    assert len(asker.heard) > 50
    process = nursery.serve(policy)
    while not is_refused(asker.ask(folder / "s", number) or b""):  # until the budget is gone
        number += 1
    for earlier in range(0, number, 7):
        asker.ask(folder / "s", earlier)
    assert check_ledger(ledger, asker.heard, lifetime) == pytest.approx(lifetime, rel=0.02)
    process.kill()


def test_a_server_that_is_killed_goes_on_where_it_stopped_and_no_site_is_charged_twice(
    nursery: Nursery, processes: dict[str, Path], folder: Path
) -> None:
    vaults.save_proposal(folder, {"mu": 2.0, "seed": 11, "options": {"K": 97}})
    calls = [f"{name}={path}" for name, path in sockets(processes).items()]
    chance, kills, rounds = random.Random(1), 0, 100
    before = {name: number_of_entries(path) for name, path in processes.items()}
    for _ in range(6):
        server, done = nursery.start("study", folder, *calls), len(list(folder.glob("run/round-*.npz")))
        until = time.monotonic() + vaults.PATIENCE
        while time.monotonic() < until and len(list(folder.glob("run/round-*.npz"))) < min(done + 3, rounds):
            time.sleep(0.002)
        time.sleep(chance.uniform(0, 0.02))
        server.send(signal.SIGKILL)
        kills += server.wait() == -signal.SIGKILL
    assert kills >= 2
    last = nursery.start("study", folder, *calls)
    assert last.wait() == 0, last.output
    params = np.array(json.loads((folder / "params.json").read_text()))
    here = fm.fit(federation("logistic"), "logistic", "fedsgd", 2.0, seed=11, K=97)
    np.testing.assert_allclose(params, coef(here), rtol=1e-12, atol=1e-12)
    for name, path in processes.items():
        with LedgerReader(path.parent / "ledger.sqlite") as records:
            run = records.runs()[-1].run
            assert [entry.round for entry in records.entries(run)] == list(range(rounds))
            assert records.spent_mu(run) == pytest.approx(2.0)
        assert number_of_entries(path) == before[name] + rounds + 1  # and the opening


@pytest.mark.slow
def test_the_program_as_a_user_starts_it_ends_with_ctrl_c(folder: Path) -> None:
    path = write_site(folder, "a", FRAMES["a"])
    program = subprocess.Popen([*PROGRAM, "site", "serve", str(path)], stderr=subprocess.PIPE, text=True)
    until = time.monotonic() + vaults.PATIENCE
    while not (folder / "s").exists() and time.monotonic() < until:
        time.sleep(0.01)
    values_of(call(folder, Asker(60).body(0)))
    program.send_signal(signal.SIGINT)
    _, log = program.communicate(timeout=vaults.PATIENCE)
    assert program.returncode == 0, log
    assert not (folder / "s").exists()
