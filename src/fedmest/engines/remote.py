"""Sites elsewhere: asks vaults over a network, goes on with those that answer, and says what happened.

The network itself is behind a small protocol: `flower` is one. Nothing here bears on privacy; the vaults see to that.
"""

import hashlib
import logging
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from fedmest.checkpoint import Checkpoint, write_all
from fedmest.errors import InputError
from fedmest.federation import Index
from fedmest.fitting import carry_out
from fedmest.methods.base import Step
from fedmest.privacy.gdp import Array
from fedmest.privacy.noise import seed_word
from fedmest.privacy.secure import distance
from fedmest.proposal import Proposal
from fedmest.queries import Ask
from fedmest.result import Result
from fedmest.scaling import Scaling
from fedmest.site.wire import Malformed, pack, unpack
from fedmest.terms import Terms

log = logging.getLogger("fedmest.server")

LONGEST_TEXT = 500  # characters of what a site says

SEEDED = "The noise of this run is a rehearsal: floating-point numbers from a recorded seed that the server knows."


class TooFewSites(Exception):
    """The quorum was not reached; what was done so far is in the checkpoint."""


class Network(Protocol):
    """How requests reach sites."""

    def discover(self, request: bytes, timeout: float) -> list[bytes]:
        """The answers of everyone who is there; remembers who is who."""

    def exchange(self, requests: dict[str, bytes], timeout: float) -> dict[str, bytes]:
        """The answers of the sites that gave one in time."""


@dataclass(frozen=True)
class Incident:
    """What went otherwise than planned."""

    round: int  # 0: before the first
    site: str
    what: str


@dataclass(frozen=True)
class RoundLog:
    round: int
    query: str
    asked: int
    answered: int
    seconds: float
    bytes_down: int
    bytes_up: int


class RemoteEngine:
    """Carries a schedule out at vaults. Replies are ordered by site name, whatever order they come in."""

    def __init__(self, terms: Terms, network: Network, run: str, word: int | None, quorum: int, timeout: float) -> None:
        self.terms = terms
        self.text = terms.as_json()
        self.network = network
        self.run = run
        self.word = word
        self.quorum = quorum
        self.timeout = timeout
        self.scaling: Scaling | None = None
        self.incidents: list[Incident] = []
        self.rounds: list[RoundLog] = []
        self.receipts: dict[str, str] = {}
        floats = sum(len(step.mus) * self._most_floats(step) for step in terms.plan.steps)
        self.noise_caveat = SEEDED if word is not None else (
            "Noise was drawn at the sites, from their operating systems, on a grid; all of it together is within "
            f"{distance(floats):.1g} (total variation) of the normal noise that mu speaks of."
        )  # fmt: skip

    def _most_floats(self, step: Step) -> int:
        theta = np.zeros(self.terms.setting.shape)
        groups = getattr(step.query, "groups", 1)
        sample = Ask(theta, self.terms.clipping(1.0), theta, edges=np.zeros((groups, 200)))
        return step.query.reply_size(sample, self.terms.setting.columns)

    # -- the run ----------------------------------------------------------------------------------------------

    def open(self) -> None:
        """Ask every site to agree before any of them pays."""
        body = pack({"do": "open", "run": self.run, "terms": self.text, "word": self.word})
        names = [str(name) for name in self.terms.facts.sites]
        replies = self.network.exchange(dict.fromkeys(names, body), self.timeout)
        agreed = [name for name in names if self._read(0, name, replies.get(name)) is not None]
        self._check_quorum(0, len(agreed))

    def answer(self, number: int, step: Step, ask: Ask) -> tuple[Array, Index]:
        names = self.terms.facts.sites
        started = time.monotonic()
        requests = {str(names[site]): self._request(number, step, ask, i) for i, site in enumerate(step.sites)}
        replies = self.network.exchange(requests, self.timeout)
        size = step.query.reply_size(ask, self.terms.setting.columns)
        values, answered = [], []
        for site in step.sites:
            name = str(names[site])
            reply = self._read(number + 1, name, replies.get(name))
            if reply is None:
                continue
            head, found = reply
            if head.get("run") != self.run or head.get("round") != number or found.shape != (size,):
                self._note(number + 1, name, f"sent what was not asked for (shape {found.shape} instead of ({size},))")
            elif not np.isfinite(found).all():
                self._note(number + 1, name, "sent numbers that are not finite")
            else:
                values.append(found)
                answered.append(site)
                self.receipts[name] = _plain(head.get("receipt", ""))
        seconds = time.monotonic() - started
        down, up = sum(map(len, requests.values())), sum(map(len, replies.values()))
        entry = RoundLog(number + 1, step.query.name, len(step.sites), len(answered), round(seconds, 3), down, up)
        self.rounds.append(entry)
        log.info("round", extra={"facts": {**asdict(entry), "of": len(self.terms.plan.steps)}})
        self._check_quorum(number + 1, len(answered), len(step.sites))
        return np.array(values), np.array(answered, dtype=np.int64)

    def rescale(self, scaling: Scaling) -> None:
        self.scaling = scaling

    def scaling_of_rows(self) -> Scaling:
        raise InputError("sites give out no scales that are read off their rows without paying")

    def paper_bound(self, start: Array) -> float:
        raise InputError("sites give out no bound that is read off their rows without paying")

    # -- messages ---------------------------------------------------------------------------------------------

    def _request(self, number: int, step: Step, ask: Ask, place: int) -> bytes:
        head: dict[str, Any] = {
            "do": "round", "run": self.run, "terms": self.text, "word": self.word, "round": number,
            "query": step.query.name,
        }  # fmt: skip
        arrays = {"theta": ask.theta}
        if ask.drifts is not None:
            arrays["drift"] = ask.drifts[place] if ask.drifts.ndim == 3 else ask.drifts
        if ask.edges is not None:
            arrays["edges"] = ask.edges
        if number >= len(self.terms.plan.scaling_steps) + len(self.terms.plan.bound_steps):
            head["bound"] = float(ask.bound)
        if self.scaling is not None and self.terms.scaling == "private":
            arrays["centre"], arrays["scale"] = self.scaling.centre, self.scaling.scale
            head["target_scale"] = [float(self.scaling.target_centre), float(self.scaling.target_scale)]
        return pack(head, arrays)

    def _read(self, number: int, site: str, body: bytes | None) -> tuple[dict[str, Any], Array] | None:
        """A reply's head and values; None, with a note, where there is none to use."""
        if body is None:
            self._note(number, site, f"did not answer within {self.timeout:g} s")
            return None
        try:
            head, arrays = unpack(body)
        except Malformed as fault:
            self._note(number, site, f"sent garbage: {fault}")
            return None
        if "refused" in head or head.get("site") != site:
            reason = f"refused: {_plain(head['refused'])}" if "refused" in head else "answered under another name"
            self._note(number, site, reason)
            return None
        return head, arrays.get("values", np.zeros(0))

    def _note(self, number: int, site: str, what: str) -> None:
        self.incidents.append(Incident(number, site, what))
        log.warning("incident", extra={"facts": {"round": number, "site": site, "what": what}})

    def _check_quorum(self, number: int, answered: int, asked: int | None = None) -> None:
        need = self.quorum if asked is None else min(self.quorum, asked)
        if answered < need:
            last = {i.site: i.what for i in self.incidents if i.round == number}
            why = "; ".join(f"{site} {what}" for site, what in sorted(last.items())[:8])
            where = f"round {number}" if number else "before the first round"
            raise TooFewSites(f"{where}: {answered} sites answered, the quorum is {need}. {why}")


def _plain(text: Any) -> str:
    """What a site says, fit for a log and a screen."""
    return "".join(c for c in str(text)[:LONGEST_TEXT] if c.isprintable())


def run_study(
    proposal: Proposal,
    network: Network,
    folder: str | Path,
    progress: Callable[[int, int], None] | None = None,
) -> Result:
    """Fit a proposal at the sites of a network. The folder keeps the run: called again, it goes on from there."""
    folder = Path(folder)
    terms_file = folder / "terms.json"
    seeded = proposal.seed is not None
    heads = _discover(proposal, network)
    rows = {name: int(head["rows"]) for name, head in heads.items()}
    if seeded and (wary := sorted(name for name, head in heads.items() if not head.get("insecure"))):
        raise InputError(f"seed is set, but site {wary[0]!r} draws its own noise; leave the seed out")
    sites = tuple(sorted(rows))
    terms = proposal.terms(sites, np.array([rows[name] for name in sites], dtype=np.int64), 0)
    with Checkpoint(folder, proposal.digest, seed_word(proposal.seed, terms.name)) as saved:
        if terms_file.exists():  # a run keeps the sites and sizes that it began with
            terms = Terms.from_json(terms_file.read_text(encoding="utf-8"))
        else:
            terms = replace(terms, seed=seed_word(saved.word, "public draws"))
            write_all(terms_file, lambda file: file.write(terms.as_json().encode()))
        name = f"{saved.word} {terms.as_json()}".encode()
        run = hashlib.blake2b(name, digest_size=16, person=b"fedmest run").hexdigest()
        engine = RemoteEngine(
            terms, network, run, saved.word if seeded else None, proposal.quorum, proposal.timeout
        )
        log.info("run", extra={"facts": {"run": run, "sites": len(terms.facts.sites), "rounds": len(terms.plan.steps)}})
        engine.open()
        result = carry_out(terms, engine, seed=proposal.seed, progress=progress, checkpoint=saved)
    result.settings["network"] = {
        "run": run,
        "rounds": [asdict(entry) for entry in engine.rounds],
        "incidents": [asdict(incident) for incident in engine.incidents],
        "receipts": engine.receipts,
    }
    return result


def _discover(proposal: Proposal, network: Network) -> dict[str, dict[str, Any]]:
    """Who is there, by name. Waits for the sites that the proposal names, or for the quorum."""
    wanted, until = set(proposal.sites), time.monotonic() + proposal.timeout
    while True:
        heads: dict[str, dict[str, Any]] = {}
        for body in network.discover(pack({"do": "describe"}), proposal.timeout):
            head = _described(body)
            if head is None:
                continue
            if head["site"] in heads:
                raise InputError(f"two nodes call themselves {head['site']!r}; give every site a name of its own")
            if not wanted or head["site"] in wanted:
                heads[head["site"]] = head
        if (wanted and len(heads) == len(wanted)) or (not wanted and len(heads) >= proposal.quorum):
            return heads
        if time.monotonic() > until:
            if len(heads) >= proposal.quorum:
                return heads
            absent = ", ".join(sorted(wanted - set(heads))) or "some"
            raise TooFewSites(f"{len(heads)} sites are there, the quorum is {proposal.quorum}; missing: {absent}")
        time.sleep(0.5)


def _described(body: bytes) -> dict[str, Any] | None:
    try:
        head, _ = unpack(body)
        if not isinstance(head["site"], str) or type(head["rows"]) is not int or not 0 < head["rows"] < 2**53:
            raise Malformed("no name and number of rows")
    except (Malformed, KeyError) as fault:
        log.warning("incident", extra={"facts": {"round": 0, "what": f"a node sent garbage: {fault}"}})
        return None
    return head
