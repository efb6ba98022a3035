"""The server that asks vaults, when sites fail it."""

import random
import signal
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("opendp")

import fedmest as fm
import vaults
from conftest import coef
from fedmest.core.exceptions import ConvergenceError, InputError, QuorumError
from fedmest.runs.messages import Refusal, RoundReply, RoundRequest, RunOpened, SiteDescription, decode, encode, unpack
from fedmest.server.coordinator import Coordinator
from fedmest.server.transports.memory import MemoryTransport
from fedmest.server.transports.socket import SocketTransport
from fedmest.site import connection
from fedmest.site.ledger import LedgerReader
from fedmest.site.policy import Policy
from fedmest.site.vault import Vault
from vault_cases import FRAMES, Asker, altered, call, connected, federation, number_of_entries, sockets
from vaults import Meddling, Nursery, answered, open_vaults, raw, read, study, values_of, write_site, write_sites


def incidents(result: fm.Result, site: str) -> list[tuple[int, str]]:
    assert result.network is not None
    return [(i["round"], i["what"]) for i in result.network["incidents"] if i["site"] == site]


def round_of(request: bytes) -> int:
    """The round that is asked for; -1 for other requests."""
    message = decode(request)
    return message.round if isinstance(message, RoundRequest) else -1


def test_a_site_whose_budget_ends_in_the_middle_drops_out_and_the_rest_stands_in_for_it(folder: Path) -> None:
    paths = write_sites(folder, FRAMES)
    write_site(folder / "b", "b", FRAMES["b"], budget={"lifetime": 2.5, "run": 2.5})
    opened = open_vaults(paths)
    coordinator = Coordinator(study(method="fedsgd", mu=2.0, options={"K": 6}, quorum=3), MemoryTransport(opened))
    coordinator.run(folder / "first")
    result = coordinator.run(folder / "second")
    missed = [number for number, what in incidents(result, "b") if "budget does not allow" in what]
    assert missed and missed == list(range(missed[0], 10)) and missed[0] > 4
    assert 2.0 < opened["b"].ledger.spent_mu() <= 2.5 * (1 + 1e-9)
    answered = {entry["round"]: entry["answered"] for entry in result.network["rounds"]}
    assert answered == {number: 3 if number in missed else 4 for number in range(1, 10)}
    for release in result.privacy.releases:
        gone = release.round + 1 in missed
        assert release.sites.tolist() == [0, 1, 2, 3]  # who was asked counts as having spent
        assert len(release.weights) == (3 if gone else 4)
        assert release.weights.sum() == pytest.approx(4.0 if "histogram" in release.query else 1.0, rel=1e-12)
        if gone:
            sizes = np.array([60, 90, 101])
            np.testing.assert_allclose(release.weights, sizes / sizes.sum())
    assert result.privacy.mu == pytest.approx(2.0)
    for vault in opened.values():
        vault.close()


def forge(change: Callable[[RoundReply], bytes]) -> vaults.Meddle:
    """Site b sends something else than its vault does: what `change` makes of its replies."""

    def meddle(name: str, request: bytes, answer: vaults.Answer) -> bytes | None:
        reply = answer(request)
        message = read(reply)
        return change(message) if name == "b" and isinstance(message, RoundReply) else reply

    return meddle


def numbers(reply: RoundReply, values: np.ndarray) -> bytes:
    return encode(replace(reply, values={"values": values}))


def sent(reply: RoundReply) -> np.ndarray:
    return reply.values["values"]


GARBAGE: dict[str, Callable[[RoundReply], bytes]] = {
    "random bytes": lambda reply: random.Random(0).randbytes(400),
    "nothing": lambda reply: b"",
    "a cut message": lambda reply: encode(reply)[:-3],
    "one number too many": lambda reply: numbers(reply, np.append(sent(reply), 0.0)),
    "a matrix": lambda reply: numbers(reply, sent(reply)[None]),
    "no values": lambda reply: encode(replace(reply, values={})),
    "values of another name": lambda reply: encode(replace(reply, values={"numbers": sent(reply)})),
    "not a number": lambda reply: numbers(reply, np.full_like(sent(reply), np.nan)),
    "an infinity": lambda reply: numbers(reply, np.append(sent(reply)[:-1], np.inf)),
    "another run": lambda reply: encode(replace(reply, run_id="0" * 32)),
    "another round": lambda reply: encode(replace(reply, round=reply.round + 1)),
    "another site's name": lambda reply: encode(replace(reply, site="a")),
    "a million numbers": lambda reply: numbers(reply, np.zeros(2**20)),
    "no table": lambda reply: raw([1, 2]),
    "a field too many": lambda reply: altered(reply, mu=0.0),
    "a field too few": lambda reply: altered(reply, without=("receipt",)),
    "a round in words": lambda reply: altered(reply, round="1"),
    "a message of another kind": lambda reply: encode(RunOpened("b", reply.run_id)),
    "its own request": lambda reply: encode(RoundRequest(reply.run_id, "{}", None, reply.round, "gradient", {})),
    "an endless refusal": lambda reply: encode(Refusal("b", "\x1b[2J\n" * 100_000)),
    "a refusal for the screen": lambda reply: encode(Refusal("b", "\x1b[2J\n" * 100)),
}


@pytest.mark.parametrize("what", GARBAGE)
def test_a_site_that_answers_garbage_is_left_out_and_named(seeded: dict[str, Vault], folder: Path, what: str) -> None:
    proposal = study(method="fedsgd", seed=21, options={"K": 2}, quorum=3)

    def silent(name: str, request: bytes, answer: vaults.Answer) -> bytes | None:
        return None if name == "b" and round_of(request) >= 0 else answer(request)

    without = Coordinator(proposal, Meddling(seeded, silent)).run(folder / "without")
    result = Coordinator(proposal, Meddling(seeded, forge(GARBAGE[what]))).run(folder / "with")
    np.testing.assert_array_equal(coef(result), coef(without))
    noted = incidents(result, "b")
    assert [number for number, _ in noted] == [1, 2, 3, 4, 5]
    assert all(line.isprintable() and len(line) < 600 for _, line in noted)
    assert not np.array_equal(coef(result), coef(fm.fit(federation("logistic"), method="fedsgd", seed=21, K=2)))


def test_a_slow_site_is_charged_for_what_came_too_late_and_is_back_in_the_next_round(
    nursery: Nursery, folder: Path
) -> None:
    paths = write_sites(folder, {name: FRAMES[name] for name in "ab"})
    running = {name: nursery.serve(path) for name, path in paths.items()}

    class Slow(SocketTransport):
        def exchange(self, requests: dict[str, bytes], timeout: float) -> dict[str, bytes]:
            late = round_of(requests["b"]) == 4
            if late:
                running["b"].send(signal.SIGSTOP)
            replies = super().exchange(requests, timeout)
            if late:
                running["b"].send(signal.SIGCONT)
            return replies

    proposal = study(method="fedsgd", options={"K": 4}, sites=["a", "b"], timeout=3.0)
    result = Coordinator(proposal, Slow(sockets(paths))).run(folder / "run")
    assert [number for number, _ in incidents(result, "b")] == [5]
    assert "did not answer within 3 s" in incidents(result, "b")[0][1]
    assert [entry["answered"] for entry in result.network["rounds"]] == [2, 2, 2, 2, 1, 2, 2]
    with LedgerReader(folder / "b" / "ledger.sqlite") as records:
        assert [entry.round for entry in records.entries()] == list(range(7))
        assert records.spent_mu() == pytest.approx(2.0) == pytest.approx(result.privacy.mu)
    for process in running.values():
        process.kill()


def test_without_a_quorum_the_run_stops_with_reasons_and_goes_on_when_the_sites_are_back(
    seeded: dict[str, Vault], folder: Path
) -> None:
    proposal = study(method="fedhybrid", seed=31, options={"K1": 2, "K2": 3}, quorum=3)
    gone = {"b": 2, "d": 4}  # from this round on

    def failing(name: str, request: bytes, answer: vaults.Answer) -> bytes | None:
        if round_of(request) >= gone.get(name, 99):
            return None if name == "b" else encode(Refusal(name, "closed for lunch"))
        return answer(request)

    coordinator = Coordinator(proposal, Meddling(seeded, failing))
    with pytest.raises(QuorumError, match=r"round 5: 2 sites answered, the quorum is 3. b did not answer.*; d refused: "
                                          "closed for lunch"):  # fmt: skip
        coordinator.run(folder / "run")
    gone = {"b": 2}
    result = coordinator.run(folder / "run")
    again = coordinator.run(folder / "other")
    np.testing.assert_array_equal(coef(result), coef(again))
    run = result.network["run"]
    assert [entry["round"] for entry in result.network["rounds"]] == [5, 6, 7]
    for name, vault in seeded.items():
        rounds = [entry.round for entry in vault.ledger.entries(run)]
        assert rounds == list(range(2 if name == "b" else 7))


def test_a_run_that_too_few_sites_agree_to_costs_nobody_anything(folder: Path) -> None:
    opened = open_vaults(write_sites(folder, FRAMES, budget={"lifetime": 1.0, "run": 1.0}))
    with pytest.raises(QuorumError, match=r"before the first round: 0 sites .* a refused: mu = 2 for a run; the s"):
        Coordinator(study(mu=2.0), MemoryTransport(opened)).run(folder / "run")
    with pytest.raises(QuorumError, match="1 sites are there, the quorum is 4; missing: b, c, d"):
        few = MemoryTransport({"a": opened["a"]})
        Coordinator(study(mu=1.0, quorum=4, timeout=1.0), few).run(folder / "second")
    with pytest.raises(InputError, match="site 'a' draws its own noise"):
        Coordinator(study(mu=1.0, seed=1), MemoryTransport(opened)).run(folder / "third")
    for vault in opened.values():
        assert vault.ledger.spent_mu() == 0.0
        vault.close()


X = SiteDescription("x", 5, True)
STRANGERS = {
    "nothing": b"", "zeros": b"\0" * 99, "no table": raw([]), "no kind": altered(X, without=("kind",)),
    "another kind": encode(RunOpened("x", "0" * 32)), "no rows": altered(X, without=("rows",)),
    "a number for a name": altered(X, site=3), "rows that are true": altered(X, rows=True),
    "rows beyond all numbers": altered(X, rows=2**64), "rows beyond all doubles": altered(X, rows=2**60),
    "no row": altered(X, rows=0), "less than no row": altered(X, rows=-5), "rows by halves": altered(X, rows=5.0),
    "a word too many": altered(X, mu=1.0), "a refusal": encode(Refusal("x", "closed")),
}  # fmt: skip


@pytest.mark.parametrize("odd", STRANGERS)
def test_a_node_that_cannot_say_who_it_is_takes_no_part(seeded: dict[str, Vault], folder: Path, odd: str) -> None:
    class Crowd(MemoryTransport):
        def discover(self, request: bytes, timeout: float) -> list[bytes]:
            return [STRANGERS[odd], *super().discover(request, timeout)]

    proposal = study(seed=41, options={"K": 1}, sites=None, quorum=4)
    result = Coordinator(proposal, Crowd(seeded)).run(folder / "run")
    assert result.n_sites == 4


def test_two_nodes_of_one_name_are_not_mistaken_for_each_other(seeded: dict[str, Vault], folder: Path) -> None:
    class Crowd(MemoryTransport):
        def discover(self, request: bytes, timeout: float) -> list[bytes]:
            return super().discover(request, timeout) * 2

    with pytest.raises(InputError, match="two nodes call themselves 'a'"):
        Coordinator(study(seed=41), Crowd(seeded)).run(folder / "run")


@pytest.mark.filterwarnings("ignore:overflow", "ignore:invalid value")
def test_a_site_that_sends_numbers_beyond_all_sense_stops_the_run_with_a_reason(
    seeded: dict[str, Vault], folder: Path
) -> None:
    """Who takes part can spoil an estimate; it must not pass for one."""
    huge = forge(lambda reply: numbers(reply, np.full_like(sent(reply), 1.7e308)))
    proposal = study(method="fedsgd", seed=42, options={"K": 2})
    with pytest.raises((ConvergenceError, QuorumError), match=r"finite|at most 1e\+06"):
        Coordinator(proposal, Meddling(seeded, huge)).run(folder / "run")


def test_a_request_that_comes_again_gets_the_same_bytes_and_costs_nothing(nursery: Nursery, folder: Path) -> None:
    process = nursery.serve(write_site(folder, "a", FRAMES["a"]))
    asker = Asker(60, rounds=5)
    replies: list[bytes] = []
    threads = [threading.Thread(target=lambda: replies.append(call(folder, asker.body(0)))) for _ in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(replies) == 12 and len(set(replies)) == 1
    with LedgerReader(folder / "ledger.sqlite") as records:
        (entry,) = records.entries()
        assert records.spent_mu() == entry.mu
        assert records.find_receipt(answered(replies[0]).receipt) == entry
    process.kill()


def test_a_caller_that_hangs_up_before_the_reply_finds_it_again_for_nothing(nursery: Nursery, folder: Path) -> None:
    process = nursery.serve(write_site(folder, "a", FRAMES["a"]))
    asker = Asker(60, rounds=5)
    with connected(folder) as opened:
        connection.send(opened, asker.body(0))
    until = time.monotonic() + vaults.PATIENCE
    while number_of_entries(folder / "site.toml") < 2 and time.monotonic() < until:
        time.sleep(0.01)
    reply = call(folder, asker.body(0))
    with LedgerReader(folder / "ledger.sqlite") as records:
        (entry,) = records.entries()
        assert entry.receipt == answered(reply).receipt
        np.testing.assert_array_equal(unpack(entry.reply)[1]["values"], values_of(reply))
    process.kill()


def test_two_runs_at_once_share_one_budget(folder: Path) -> None:
    """Two servers in threads; together they would cost 2.55."""
    vault = Vault(Policy.read(write_site(folder, "a", FRAMES["a"], budget={"lifetime": 2.0, "run": 2.0})))
    outcomes: list[object] = []

    def serve(name: str) -> None:
        try:
            proposal = study(mu=1.8, options={"K": 20}, sites=["a"])
            outcomes.append(Coordinator(proposal, MemoryTransport({"a": vault})).run(folder / name))
        except QuorumError as error:
            outcomes.append(error)

    threads = [threading.Thread(target=serve, args=[name]) for name in ("one", "two")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(outcomes) == 2
    assert any("budget does not allow this release" in str(outcome) for outcome in outcomes)
    assert 1.5 < vault.ledger.spent_mu() <= 2.0 * (1 + 1e-9)
    with_rounds = {run.run: [entry.round for entry in vault.ledger.entries(run.run)] for run in vault.ledger.runs()}
    assert len(with_rounds) == 2
    assert all(rounds == list(range(len(rounds))) for rounds in with_rounds.values())
    vault.close()


def test_two_server_processes_share_one_budget(nursery: Nursery, folder: Path) -> None:
    process = nursery.serve(write_site(folder, "a", FRAMES["a"], budget={"lifetime": 2.0, "run": 2.0}))
    for name in ("one", "two"):
        vaults.save_proposal(folder / name, {"mu": 1.8, "options": {"K": 20}, "sites": ["a"]})
    servers = [nursery.start("study", folder / name, f"a={folder / 's'}") for name in ("one", "two")]
    assert sorted(server.wait() for server in servers) != [0, 0]
    assert any("budget does not allow this release" in server.output for server in servers)
    with LedgerReader(folder / "ledger.sqlite") as records:
        assert 1.5 < records.spent_mu() <= 2.0 * (1 + 1e-9)
    process.kill()
