"""Sites elsewhere: asks vaults over a transport, goes on with those that answer, and says what happened.

How requests travel is behind a small protocol: `transports` has three. Nothing here bears on privacy; the vaults see
to that.
"""

import hashlib
import logging
import time
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from fedmest.core.exceptions import InputError, QuorumError
from fedmest.core.files import write_atomic
from fedmest.core.typing import FloatArray, IntArray
from fedmest.privacy.discrete_noise import total_variation
from fedmest.privacy.noise import derive_seed
from fedmest.queries import QueryInputs
from fedmest.queries.schedule import Step
from fedmest.runs.checkpoint import Checkpoint
from fedmest.runs.execute import execute
from fedmest.runs.messages import (
    Describe,
    Malformed,
    Message,
    OpenRun,
    Refusal,
    RoundReply,
    RoundRequest,
    RunOpened,
    SiteDescription,
    decode,
    encode,
)
from fedmest.runs.phases import PublicState
from fedmest.runs.phases.scaling import Scaling
from fedmest.runs.result import Result
from fedmest.runs.runner import Callback
from fedmest.runs.spec import RunSpec
from fedmest.server.proposal import Proposal

log = logging.getLogger("fedmest.server")

MAX_TEXT_CHARACTERS = 500  # of what a site says
RETRY_S = 0.5  # between looks for sites that are not there yet
SEEDED = "The noise of this run is simulated: floating-point numbers from a recorded seed that the server knows."


class Transport(Protocol):
    """Connection to the sites."""

    def discover(self, request: bytes, timeout: float) -> list[bytes]:
        """Send a request to all sites that are there, and remember which is which.

        Parameters
        ----------
        request : bytes
            An encoded message.
        timeout : float
            Seconds to wait.

        Returns
        -------
        list of bytes
            Their answers.
        """

    def exchange(self, requests: dict[str, bytes], timeout: float) -> dict[str, bytes]:
        """Send each site its request.

        Parameters
        ----------
        requests : dict of str to bytes
            Encoded messages, by site name.
        timeout : float
            Seconds to wait.

        Returns
        -------
        dict of str to bytes
            Answers of the sites that gave one in time.
        """


@dataclass(frozen=True)
class Incident:
    """What went otherwise than planned."""

    round: int  # 0: before the first
    site: str
    what: str


@dataclass(frozen=True)
class RoundLog:
    """One round on the network."""

    round: int
    query: str
    asked: int
    answered: int
    seconds: float
    bytes_down: int
    bytes_up: int


class RemoteBackend:
    """Carries a schedule out at vaults. Replies are ordered by site name, whatever order they come in."""

    def __init__(
        self, spec: RunSpec, transport: Transport, run_id: str, seed64: int | None, quorum: int, timeout: float
    ) -> None:
        self.spec = spec
        self.text = spec.to_json()
        self.transport = transport
        self.run_id, self.seed64 = run_id, seed64
        self.quorum, self.timeout = quorum, timeout
        self.state = spec.initial_state()
        self.incidents: list[Incident] = []
        self.rounds: list[RoundLog] = []
        self.receipts: dict[str, str] = {}
        floats = sum(len(step.mus) * step.floats_up(spec.context) for step in spec.schedule.steps)
        self.noise_caveat = (
            SEEDED
            if seed64 is not None
            else (
                "Noise was drawn at the sites, from their operating systems, on a grid; all of it together is within "
                f"{total_variation(floats):.1g} (total variation) of the normal noise that mu speaks of."
            )
        )

    # -- the run ----------------------------------------------------------------------------------------------

    def open(self) -> None:
        """Ask every site to agree before any of them spends."""
        body = encode(OpenRun(self.run_id, self.text, self.seed64))
        names = [str(name) for name in self.spec.data.sites]
        replies = self.transport.exchange(dict.fromkeys(names, body), self.timeout)
        agreed = [name for name in names if self._read(0, name, replies.get(name), RunOpened) is not None]
        self._check_quorum(0, len(agreed))

    def answer(self, number: int, step: Step, inputs: QueryInputs) -> tuple[FloatArray, IntArray]:
        names = self.spec.data.sites
        started = time.monotonic()
        requests = {
            str(names[site]): encode(self._request(number, step, inputs, place))
            for place, site in enumerate(step.sites)
        }
        replies = self.transport.exchange(requests, self.timeout)
        size = step.floats_up(self.spec.context)
        values, answered = [], []
        for site in step.sites:
            name = str(names[site])
            reply = self._read(number + 1, name, replies.get(name), RoundReply)
            if not isinstance(reply, RoundReply):
                continue
            found = reply.values.get("values", np.zeros(0))
            if reply.run_id != self.run_id or reply.round != number or found.shape != (size,):
                self._note(number + 1, name, f"sent what was not asked for (shape {found.shape} instead of ({size},))")
            elif not np.isfinite(found).all():
                self._note(number + 1, name, "sent numbers that are not finite")
            else:
                values.append(found)
                answered.append(site)
                self.receipts[name] = _printable(reply.receipt)
        seconds = time.monotonic() - started
        down, up = sum(map(len, requests.values())), sum(map(len, replies.values()))
        entry = RoundLog(number + 1, step.query.name, len(step.sites), len(answered), round(seconds, 3), down, up)
        self.rounds.append(entry)
        log.info("round", extra={"facts": {**asdict(entry), "of": len(self.spec.schedule.steps)}})
        self._check_quorum(number + 1, len(answered), len(step.sites))
        return np.array(values), np.array(answered, dtype=np.int64)

    def apply(self, state: PublicState) -> None:
        self.state = state

    def scaling_of_rows(self) -> Scaling:
        raise InputError("sites give out no scales that are read off their rows without spending on it")

    def paper_clip_norm(self, start: FloatArray) -> float:
        raise InputError("sites give out no clip norm that is read off their rows without spending on it")

    # -- messages ---------------------------------------------------------------------------------------------

    def _request(self, number: int, step: Step, inputs: QueryInputs, place: int) -> RoundRequest:
        """What the step uses, and nothing else."""
        drifts = inputs.drifts if inputs.drifts is not None else np.zeros_like(inputs.params)
        own = {"params": inputs.params, "edges": inputs.edges, "drift": drifts[place] if drifts.ndim == 3 else drifts}
        values = {name: array for name, array in own.items() if name in step.uses and array is not None}
        for name in step.uses - set(own):
            values |= self.state[name].to_arrays()
        return RoundRequest(self.run_id, self.text, self.seed64, number, step.query.name, values)

    def _read(self, number: int, site: str, body: bytes | None, kind: type[Message]) -> Message | None:
        """A reply of the kind that was asked for; None, with a note, where there is none to use."""
        if body is None:
            self._note(number, site, f"did not answer within {self.timeout:g} s")
            return None
        try:
            reply = decode(body)
        except Malformed as error:
            self._note(number, site, f"sent garbage: {error}")
            return None
        if isinstance(reply, Refusal):
            self._note(number, site, f"refused: {_printable(reply.reason)}")
        elif not isinstance(reply, kind):
            self._note(number, site, f"sent a message of another kind ({reply.kind})")
        elif getattr(reply, "site", "") != site:
            self._note(number, site, "answered under another name")
        else:
            return reply
        return None

    def _note(self, number: int, site: str, what: str) -> None:
        self.incidents.append(Incident(number, site, what))
        log.warning("incident", extra={"facts": {"round": number, "site": site, "what": what}})

    def _check_quorum(self, number: int, answered: int, asked: int | None = None) -> None:
        need = self.quorum if asked is None else min(self.quorum, asked)
        if answered < need:
            last = {i.site: i.what for i in self.incidents if i.round == number}
            why = "; ".join(f"{site} {what}" for site, what in sorted(last.items())[:8])
            where = f"round {number}" if number else "before the first round"
            raise QuorumError(f"{where}: {answered} sites answered, the quorum is {need}. {why}")


def _printable(text: str) -> str:
    """What a site says, fit for a log and a screen."""
    return "".join(c for c in text[:MAX_TEXT_CHARACTERS] if c.isprintable())


class Coordinator:
    """The server's side of a study: finds its sites, agrees with them on a spec, and carries it out."""

    def __init__(self, proposal: Proposal, transport: Transport) -> None:
        self.proposal, self.transport = proposal, transport

    def run(self, folder: str | Path, callback: Callback | None = None) -> Result:
        """Fit the proposal. The folder keeps the run: called again, it goes on from there."""
        proposal, folder = self.proposal, Path(folder)
        spec_file = folder / "spec.json"
        seeded = proposal.seed is not None
        found = self._discover()
        if seeded and (wary := sorted(name for name, site in found.items() if not site.insecure)):
            raise InputError(f"seed is set, but site {wary[0]!r} draws its own noise; leave the seed out")
        sites = tuple(sorted(found))
        spec = proposal.spec(sites, np.array([found[name].rows for name in sites], dtype=np.int64), 0)
        with Checkpoint(folder, proposal.digest, derive_seed(proposal.seed, spec.noise_key)) as saved:
            if spec_file.exists():  # a run keeps the sites and sizes that it began with
                spec = RunSpec.from_json(spec_file.read_text(encoding="utf-8"))
            else:
                spec = replace(spec, public_seed=derive_seed(saved.seed64, "public draws"))
                write_atomic(spec_file, lambda file: file.write(spec.to_json().encode()))
            name = f"{saved.seed64} {spec.to_json()}".encode()
            run_id = hashlib.blake2b(name, digest_size=16, person=b"fedmest run").hexdigest()
            seed64 = saved.seed64 if seeded else None
            backend = RemoteBackend(spec, self.transport, run_id, seed64, proposal.quorum, proposal.timeout)
            facts = {"run": run_id, "sites": len(spec.data.sites), "rounds": len(spec.schedule.steps)}
            log.info("run", extra={"facts": facts})
            backend.open()
            result = execute(spec, backend, seed=proposal.seed, callback=callback, checkpoint=saved)
        network: dict[str, Any] = {
            "run": run_id,
            "rounds": [asdict(entry) for entry in backend.rounds],
            "incidents": [asdict(incident) for incident in backend.incidents],
            "receipts": backend.receipts,
        }
        return replace(result, network=network)

    def _discover(self) -> dict[str, SiteDescription]:
        """Who is there, by name. Waits for the sites that the proposal names, or for the quorum."""
        proposal = self.proposal
        wanted, until = set(proposal.sites), time.monotonic() + proposal.timeout
        while True:
            found: dict[str, SiteDescription] = {}
            for body in self.transport.discover(encode(Describe()), proposal.timeout):
                site = _described(body)
                if site is None:
                    continue
                if site.site in found:
                    raise InputError(f"two nodes call themselves {site.site!r}; give every site a name of its own")
                if not wanted or site.site in wanted:
                    found[site.site] = site
            if (wanted and len(found) == len(wanted)) or (not wanted and len(found) >= proposal.quorum):
                return found
            if time.monotonic() > until:
                if len(found) >= proposal.quorum:
                    return found
                absent = ", ".join(sorted(wanted - set(found))) or "some"
                raise QuorumError(f"{len(found)} sites are there, the quorum is {proposal.quorum}; missing: {absent}")
            time.sleep(RETRY_S)


def _described(body: bytes) -> SiteDescription | None:
    try:
        site = decode(body)
        if not isinstance(site, SiteDescription) or not 0 < site.rows < 2**53:
            raise Malformed("no name and number of rows")
    except Malformed as error:
        log.warning("incident", extra={"facts": {"round": 0, "what": f"a node sent garbage: {error}"}})
        return None
    return site
