"""The vault of a site: the only process that sees its rows. It answers what the policy allows, noised and charged.

A server proposes a spec; the vault writes the schedule from it itself, so queries, costs and noise are its own. What it
takes from the server is what the step uses: parameters, and public values that queries are proved for whatever they
are (a clip norm, scales, bin edges); it checks that they are numbers of sensible size. What it refuses depends on
requests, policy and ledger, never on rows. Every request carries the spec, so that a site may join, or come back, in
any round.
"""

import hashlib
import json
import logging
import math
import secrets
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import numba
import numpy as np

from fedmest.core.exceptions import InputError, ScheduleError
from fedmest.core.typing import FloatArray
from fedmest.data.federation import Federation
from fedmest.data.schema import DesignSpec
from fedmest.privacy import discrete_noise
from fedmest.privacy.discrete_noise import GridNoise
from fedmest.privacy.noise import Keys, Noise, SeededNoise, site_keys
from fedmest.queries import MAX_PARAM, QueryInputs, SiteData
from fedmest.queries.schedule import Step
from fedmest.runs.messages import (
    Arrays,
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
    pack,
    unpack,
)
from fedmest.runs.phases import PublicState, PublicValue, public_values
from fedmest.runs.phases.clip_norm import check_clip_norm
from fedmest.runs.spec import RunSpec
from fedmest.site.agreed_run import AgreedRun, Refused
from fedmest.site.ledger import Charge, Ledger, LedgerError, OverBudget, ReleaseEntry
from fedmest.site.policy import Policy

MAX_SITES = 10_000
MAX_OPTION = 10_000  # of whole numbers, such as rounds: what a schedule may cost in time
MAX_SCHEDULE = 1_000_000  # whole numbers multiplied with each other and with the sites: what it may cost in memory
MAX_REASON_CHARACTERS = 500  # of a refusal, which may quote the request
MAX_CACHED_ROWS = 2  # scaled copies of the rows
MAX_CACHED_RUNS = 32  # schedules; the ledger holds the specs of all

log = logging.getLogger("fedmest.vault")


class Vault:
    """Rows, policy and ledger of one site; `handle` turns any bytes into a reply or a refusal."""

    def __init__(self, policy: Policy, clock: Callable[[], float] = time.time, create: bool = True) -> None:
        discrete_noise.prepare()
        self.policy = policy
        self.columns = policy.load()
        self.rows = len(next(iter(self.columns.values())))
        self.ledger = Ledger(policy.ledger, clock, create=create)
        self.lock = threading.Lock()
        self.runs: dict[str, AgreedRun] = {}
        self.data: dict[str, SiteData] = {}

    def close(self) -> None:
        self.ledger.close()

    # -- requests ---------------------------------------------------------------------------------------------

    def handle(self, body: bytes) -> bytes:
        """The reply to a request, whatever it is; a refusal where it must not be answered."""
        request: Message | None = None
        try:
            request = decode(body)
            with self.lock:
                return encode(self._answer(request, hashlib.sha256(body).hexdigest()))
        except (Malformed, Refused) as reason:
            return self._refuse(request, str(reason))
        except InputError as reason:  # a spec or values that cannot be; no row is read where these are raised
            return self._refuse(request, str(reason))
        except OverBudget as reason:
            return self._refuse(request, "the site's budget does not allow this release", str(reason))
        except LedgerError as reason:
            return self._refuse(request, "the site's ledger cannot be written; its owner knows more", str(reason))
        except Exception:
            log.exception("an error of ours")
            return self._refuse(request, "an error inside the vault; its owner knows more")

    def _refuse(self, request: Message | None, reason: str, detail: str = "") -> bytes:
        facts = {"kind": request.kind if request is not None else "none"}
        for key in ("run_id", "round", "query"):
            if hasattr(request, key):
                facts[key] = str(getattr(request, key))[:64]
        facts["reason"] = (detail or reason)[:MAX_REASON_CHARACTERS]
        log.warning("refused", extra={"facts": facts})
        return encode(Refusal(self.policy.name, reason[:MAX_REASON_CHARACTERS]))

    def _answer(self, request: Message, digest: str) -> Message:
        match request:
            case Describe():
                return SiteDescription(self.policy.name, self.rows, self.policy.insecure)
            case OpenRun():
                return RunOpened(self.policy.name, self._open(request).id)
            case RoundRequest():
                return self._round(self._open(request), request, digest)
        raise Refused("a site answers describe, open run and round request")

    # -- runs -------------------------------------------------------------------------------------------------

    def _open(self, request: OpenRun | RoundRequest) -> AgreedRun:
        """Agree to a run's spec, or say why not. Once something was released under it, it stays."""
        run_id, text, seed64 = request.run_id, request.spec, request.seed64
        if not 8 <= len(run_id) <= 64 or not all(c in "0123456789abcdef" for c in run_id):
            raise Refused("a run is named by 8 to 64 hexadecimal digits")
        if seed64 is not None and not self.policy.insecure:
            raise Refused("this site draws its noise from its operating system; a seed is for simulations (insecure)")
        agreed = self._run(run_id)
        if agreed is not None:
            if (agreed.text, agreed.seed64) != (text, seed64):
                raise Refused(f"run {run_id} was opened with another spec")
            return agreed
        spec, place = self._agree(text)
        split_seed = seed64 if seed64 is not None else secrets.randbits(63)
        return AgreedRun(run_id, text, spec, place, split_seed, seed64, recorded=False)

    def _record(self, run: AgreedRun) -> None:
        """Write a run down, once, when it is about to release something that the site can afford."""
        if run.recorded:
            return
        stored = {"spec": run.text, "seed64": run.seed64, "split_seed": run.split_seed}
        self.ledger.open_run(run.id, json.dumps(stored, sort_keys=True))
        run.recorded = True
        self._keep(run)
        log.info("opened", extra={"facts": {"run": run.id, "insecure": run.seed64 is not None}})

    def _keep(self, run: AgreedRun) -> None:
        while len(self.runs) >= MAX_CACHED_RUNS:
            self.runs.pop(next(iter(self.runs)))
        self.runs[run.id] = run

    def _run(self, run_id: str) -> AgreedRun | None:
        """A run that was agreed to, today or in an earlier life of the vault; the policy may have changed since."""
        if run_id not in self.runs:
            known = self.ledger.spec(run_id)
            if known is None:
                return None
            stored = json.loads(known)
            if "spec" not in stored:
                raise Refused(f"run {run_id} was opened under an earlier version; start a new run")
            spec, place = self._agree(stored["spec"])
            self._keep(AgreedRun(run_id, stored["spec"], spec, place, stored["split_seed"], stored["seed64"]))
            for entry in self.ledger.entries(run_id):
                self.runs[run_id].pins.update(unpack(entry.reply)[0])
        return self.runs[run_id]

    def _agree(self, text: str) -> tuple[RunSpec, int]:
        """A spec that the policy allows, and this site's place in it."""
        policy, spec = self.policy, RunSpec.from_json(text)
        model, settings, data = spec.model, spec.settings, spec.data
        for what, name, allowed in (
            ("model", model.name, policy.models),
            ("method", spec.method.id, policy.methods),
            ("calibration", settings.calibration, policy.calibrations),
        ):
            if name not in allowed:
                raise Refused(f"{what} {name!r} is not allowed here; the site allows {', '.join(allowed)}")
        if not spec.mu <= policy.run_mu * (1 + 1e-9):  # also where it is infinite
            raise Refused(f"mu = {spec.mu:g} for a run; the site allows {policy.run_mu:g}")
        if settings.clip_norm == "paper" or spec.scaling == "data":
            raise Refused("a clip norm or scales that are read off the rows without spending are not given out")
        if len(data.sites) > MAX_SITES:
            raise Refused(f"{len(data.sites):,} sites; at most {MAX_SITES:,}")
        if not isinstance(settings.clip_norm, str):
            check_clip_norm(float(settings.clip_norm or 0))
        if "tau1" in spec.options:  # the paper's noise is divided by it
            raise Refused("option tau1 sets the size of the noise, which is not the server's to choose")
        whole = {name: value for name, value in vars(spec.method).items() if type(value) is int}
        for name, value in whole.items():
            if value > MAX_OPTION:
                raise Refused(f"option {name} = {value:,}; at most {MAX_OPTION:,}")
        if (size := math.prod([len(data.sites), *whole.values()])) > MAX_SCHEDULE:
            raise Refused(f"a schedule of {size:,} entries ({', '.join(whole)}, sites); at most {MAX_SCHEDULE:,}")
        places = np.flatnonzero(data.sites == policy.name)
        if len(places) != 1 or data.sizes[places[0]] != self.rows:
            raise Refused(f"the spec does not list site {policy.name!r} with its {self.rows} rows")
        design = DesignSpec.of(policy.columns, data.features, data.target_name, model.target_rule, model.name)
        if (design.features, design.classes) != (data.features, tuple(model.classes)):
            raise Refused(
                f"the target's classes or the features differ from this site's: {design.features}, {design.classes}"
            )
        if design.bounds != data.bounds:
            odd = sorted(set(design.bounds.items()) ^ set(data.bounds.items()))[0][0]
            there, here = data.bounds.get(odd), design.bounds.get(odd)
            raise Refused(f"the range of {odd!r} is {there} in the spec and {here} at this site")
        try:
            spec.check_budget()  # whoever cannot be scheduled is refused now, too
        except ScheduleError as error:
            raise Refused(str(error)) from None
        return spec, int(places[0])

    # -- rounds -----------------------------------------------------------------------------------------------

    def _round(self, run: AgreedRun, request: RoundRequest, digest: str) -> RoundReply:
        number, query = request.round, request.query
        if number >= 2**31:
            raise Refused("a round has a number from 0 on")
        entry = self.ledger.find(run.id, number)
        if entry is not None:
            if entry.request != digest:
                raise Refused(f"round {number + 1} was answered before, to another request")
            return self._reply(entry)
        step, mus = run.step(number, query)
        pins: dict[str, str] = {}
        state = self._state(run, number, step, request.values, pins)
        inputs = self._inputs(run, number, step, request.values, state)
        for name, value in pins.items():
            if run.pins.get(name, value) != value:
                raise Refused(f"the {name.partition(' ')[0]} has changed since an earlier round of this run")
        charges = [
            Charge(release.what, release.part, float(mu))
            for release, mu in zip(step.query.releases(), mus[:, 0], strict=True)
        ]
        self.ledger.check_budget(run.id, charges, lifetime_mu=self.policy.lifetime_mu, run_mu=self.policy.run_mu)
        self._record(run)
        started = time.perf_counter()
        reply, failed = pack(pins), False
        try:
            noise: Noise = GridNoise(mus, self.rows)
            if run.seed64 is not None:
                noise = SeededNoise(self._site_keys(), run.seed64, number)
            with _one_thread():
                values = step.query.answer(self._rows(run, state), np.array([0]), inputs, mus, noise)[0]
            if not np.isfinite(values).all():  # they are noisy by now, so that this tells nothing more of the rows
                raise ArithmeticError("the reply is not finite")
            reply = pack(pins, {"values": values})
        except Exception:  # whatever of the rows it may tell, it is charged
            log.exception("the query failed")
            failed = True
        computed = time.perf_counter()
        entry = self.ledger.release(
            run.id, number, query, digest, charges, reply, failed=failed,
            lifetime_mu=self.policy.lifetime_mu, run_mu=self.policy.run_mu,
        )  # fmt: skip
        run.pins.update(pins)
        log.info("released", extra={"facts": {
            "run": run.id, "round": number, "query": query, "mu": math.hypot(*(c.mu for c in charges)),
            "receipt": entry.receipt, "compute_ms": round(1e3 * (computed - started), 3),
            "ledger_ms": round(1e3 * (time.perf_counter() - computed), 3),
        }})  # fmt: skip
        return self._reply(entry)

    def _reply(self, entry: ReleaseEntry) -> RoundReply:
        if entry.failed:
            raise Refused(f"round {entry.round + 1} failed inside the site, and was charged")
        return RoundReply(self.policy.name, entry.run, entry.round, entry.receipt, unpack(entry.reply)[1])

    def _state(self, run: AgreedRun, number: int, step: Step, arrays: Arrays, pins: dict[str, str]) -> PublicState:
        """Public values: from the spec, or from the server where an earlier step has set them, looked at one by one."""
        state = run.spec.initial_state()
        kinds = public_values()
        for name in sorted(step.uses & set(kinds)):
            value = kinds[name].from_arrays(arrays, run.spec)
            pins[f"{name} {run.spec.schedule.times_set(name, number)}"] = _digest(value)
            state = state.having(value)
        return state

    def _inputs(self, run: AgreedRun, number: int, step: Step, arrays: Arrays, state: PublicState) -> QueryInputs:
        """What the query is asked, from numbers that were looked at one by one; nothing else may have been sent."""
        spec, shape = run.spec, run.spec.context.shape
        known = {"params", "edges", "drift"} & step.uses
        for name in step.uses & set(public_values()):
            known |= set(state[name].to_arrays())
        if odd := sorted(set(arrays) - known):
            raise Refused(f"round {number + 1} takes no {odd[0]} from the server")
        params = _array(arrays, "params", shape, MAX_PARAM)
        drift = _array(arrays, "drift", shape, MAX_PARAM)[None] if "drift" in step.uses else None
        edges = _edges(arrays, step) if "edges" in step.uses else None
        penalty = spec.penalty(state["scaling"])
        if not np.isfinite(penalty).all():
            raise Refused("the ridge is too large for these scales")
        clipping = step.query.clipping(spec.clipping(state["clip_norm"].bound), spec.model)
        return QueryInputs(params, clipping, penalty, drift, edges)

    def _site_keys(self) -> Keys:
        return site_keys(np.array([self.policy.name], dtype=object))

    def _rows(self, run: AgreedRun, state: PublicState) -> SiteData:
        """The rows as a run sees them; the last few forms are kept."""
        data, model = run.spec.data, run.spec.model
        changing = sorted((name, _digest(value)) for name, value in state.values.items() if value.changes_rows)
        if (key := f"{run.id} {changing}") not in self.data:
            while len(self.data) >= MAX_CACHED_ROWS:
                self.data.pop(next(iter(self.data)))
            indicators = {
                feature: (name, place)
                for name, column in self.policy.columns.items()
                for place, feature in enumerate(column.features, start=1)
            }
            X = np.empty((self.rows, len(data.features)))
            for j, feature in enumerate(data.features):
                name, place = indicators[feature]
                own = self.columns[name]
                X[:, j] = own == place if self.policy.columns[name].levels else own
            names = np.full(self.rows, self.policy.name, dtype=object)
            target = self.columns[data.target_name]
            federation = Federation.from_arrays(X, target, names, features=data.features, degenerate="keep")
            rows = state.rows(federation, target, run.spec.intercept)
            self.data[key] = SiteData(model, rows, run.split_seed, self._site_keys())
        return self.data[key]


@contextmanager
def _one_thread() -> Iterator[None]:
    """Compiled loops share sites out among threads; waking them for one site costs ten times what it computes."""
    before = numba.get_num_threads()
    numba.set_num_threads(1)
    try:
        yield
    finally:
        numba.set_num_threads(before)


def _digest(value: PublicValue) -> str:
    content = b"".join(array.tobytes() for _, array in sorted(value.to_arrays().items()))
    return hashlib.sha256(content).hexdigest()


def _array(arrays: Arrays, name: str, shape: tuple[int, ...], largest: float) -> FloatArray:
    if name not in arrays or arrays[name].shape != shape:
        raise Refused(f"{name} must be an array of shape {shape}")
    if not (np.abs(arrays[name]) <= largest).all():  # not a number is none of these
        raise Refused(f"{name} must hold finite numbers of at most {largest:g}")
    return arrays[name]


def _edges(arrays: Arrays, step: Step) -> FloatArray:
    edges = _array(arrays, "edges", step.query.edges_shape(), math.inf)
    if not np.isfinite(edges).all() or (np.diff(edges, axis=1) < 0).any():
        raise Refused("bin edges must be finite numbers in ascending order")
    return edges
