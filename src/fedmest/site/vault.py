"""The vault of a site: the only process that sees its rows. It answers what the policy allows, noised and paid for.

A server proposes terms; the vault writes the schedule from them itself, so queries, prices and noise are its own. From
the server it takes a theta and public numbers that queries are proved for whatever they are (a bound, scales, bin
edges), and checks that they are numbers of sensible size. What it refuses depends on requests, policy and ledger, never
on rows. Every request carries the terms, so that a site may join, or come back, in any round.
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
from dataclasses import dataclass, field
from typing import Any

import numba
import numpy as np

from fedmest.errors import InputError
from fedmest.federation import Federation
from fedmest.methods import Step
from fedmest.models import Clipping
from fedmest.privacy import secure
from fedmest.privacy.gdp import Array
from fedmest.privacy.noise import Keys, Noise, SeededNoise, site_keys
from fedmest.privacy.secure import GridNoise
from fedmest.queries import LARGEST_THETA, Ask, Descent, SiteData
from fedmest.scaling import Scaling, from_bounds
from fedmest.schema import Design
from fedmest.site.ledger import Charge, Entry, Ledger, LedgerError, OverBudget
from fedmest.site.policy import Policy
from fedmest.site.wire import Arrays, Head, Malformed, pack, unpack
from fedmest.terms import Terms

SCALES = (1e-30, 1e30)
BOUNDS = (1e-9, 1e9)
MOST_EDGES = 4096
MOST_SITES = 10_000
LARGEST_OPTION = 10_000  # of whole numbers, such as rounds: what a schedule may cost in time
LARGEST_PLAN = 1_000_000  # whole numbers multiplied with each other and with the sites: what it may cost in memory
LONGEST_TERMS = 1_000_000  # characters; they go to the ledger before anyone pays
LONGEST_REASON = 500  # characters of a refusal, which may quote the request
KEPT_ROWS = 2  # scaled copies of the rows
KEPT_RUNS = 32  # schedules; the ledger holds the terms of all

log = logging.getLogger("fedmest.vault")


class Refused(Exception):
    """Why a request is not answered; the server reads it, so no row has a part in it."""


@dataclass
class Run:
    """A run that this site agreed to take part in."""

    id: str
    text: str  # of the terms, as they came
    terms: Terms
    place: int  # of this site among the run's
    split: int  # which rows are in which half
    word: int | None  # of the noise, in rehearsals; None: noise from the operating system
    pins: dict[str, str] = field(default_factory=dict)  # public numbers, once used
    recorded: bool = True  # in the ledger

    def step(self, number: int, query: str) -> tuple[Step, Array]:
        """The step that is due in a round, and this site's prices in it."""
        steps = self.terms.plan.steps
        if number >= len(steps):
            raise Refused(f"round {number + 1}: the schedule has {len(steps)} rounds")
        step = steps[number]
        if step.query.name != query:
            raise Refused(f"round {number + 1} is for the query {step.query.name!r}, not for {query!r}")
        places = np.flatnonzero(step.sites == self.place)
        if len(places) == 0:
            raise Refused(f"round {number + 1}: this site does not take part in it")
        return step, step.mus if step.mus.shape[1] == 1 else step.mus[:, places]


class Vault:
    """Rows, policy and ledger of one site; `answer` turns any bytes into a reply or a refusal."""

    def __init__(self, policy: Policy, clock: Callable[[], float] = time.time, create: bool = True) -> None:
        secure.prepare()
        self.policy = policy
        self.columns = policy.load()
        self.rows = len(next(iter(self.columns.values())))
        self.ledger = Ledger(policy.ledger, clock, create=create)
        self.lock = threading.Lock()
        self.runs: dict[str, Run] = {}
        self.data: dict[str, SiteData] = {}

    def close(self) -> None:
        self.ledger.close()

    # -- requests ---------------------------------------------------------------------------------------------

    def answer(self, body: bytes) -> bytes:
        """The reply to a request, whatever it is; a refusal where it must not be answered."""
        what: Head = {}
        try:
            what, arrays = unpack(body)
            with self.lock:
                return self._answer(what, arrays, hashlib.sha256(body).hexdigest())
        except (Malformed, Refused) as reason:
            return self._refuse(what, str(reason))
        except InputError as reason:  # terms that cannot be; no row is read where these are raised
            return self._refuse(what, str(reason))
        except OverBudget as reason:
            return self._refuse(what, "the site's budget does not allow this release", str(reason))
        except LedgerError as reason:
            return self._refuse(what, "the site's ledger cannot be written; its owner knows more", str(reason))
        except Exception:
            log.exception("a fault of ours")
            return self._refuse(what, "a fault inside the vault; its owner knows more")

    def _refuse(self, what: Head, reason: str, detail: str = "") -> bytes:
        named = [key for key in ("do", "run", "round", "query") if isinstance(what.get(key), (str, int))]
        facts: Head = {key: str(what[key])[:64] for key in named}
        facts["reason"] = (detail or reason)[:LONGEST_REASON]
        log.warning("refused", extra={"facts": facts})
        return pack({"site": self.policy.name, "refused": reason[:LONGEST_REASON]})

    def _answer(self, head: Head, arrays: Arrays, digest: str) -> bytes:
        match head.get("do"):
            case "describe":
                _only(head, {"do"}, arrays, set())
                return pack({"site": self.policy.name, "rows": self.rows, "insecure": self.policy.insecure})
            case "open":
                _only(head, {"do", "run", "terms", "word"}, arrays, set())
                run = self._open(_run_id(head.get("run")), head.get("terms"), head.get("word"))
                return pack({"site": self.policy.name, "run": run.id})
            case "round":
                _only(head, {"do", "run", "terms", "word", "round", "query", "bound", "target_scale"}, arrays,
                      {"theta", "edges", "drift", "centre", "scale"})  # fmt: skip
                run = self._open(_run_id(head.get("run")), head.get("terms"), head.get("word"))
                return self._round(run, head, arrays, digest)
        raise Refused("unknown request; there are describe, open and round")

    # -- runs -------------------------------------------------------------------------------------------------

    def _open(self, run: str, text: Any, word: Any) -> Run:
        """Agree to a run's terms, or say why not. Once something was released under them, they stay."""
        if not isinstance(text, str) or len(text) > LONGEST_TERMS:
            raise Refused(f"a run must be opened with its terms, in at most {LONGEST_TERMS:,} characters")
        if word is not None and not self.policy.insecure:
            raise Refused("this site draws its noise from its operating system; a seed is for rehearsals (insecure)")
        if word is not None and (type(word) is not int or not 0 <= word < 2**64):
            raise Refused("the seed word must be a whole number of 64 bits")
        agreed = self._run(run)
        if agreed is not None:
            if (agreed.text, agreed.word) != (text, word):
                raise Refused(f"run {run} was opened with other terms")
            return agreed
        terms, place = self._agree(text)
        return Run(run, text, terms, place, word if word is not None else secrets.randbits(63), word, recorded=False)

    def _record(self, run: Run) -> None:
        """Write a run down, once, when it is about to release something that the site can afford."""
        if run.recorded:
            return
        stored = {"terms": run.text, "word": run.word, "split": run.split}
        self.ledger.open_run(run.id, json.dumps(stored, sort_keys=True))
        run.recorded = True
        self._keep(run)
        log.info("opened", extra={"facts": {"run": run.id, "insecure": run.word is not None}})

    def _keep(self, run: Run) -> None:
        while len(self.runs) >= KEPT_RUNS:
            self.runs.pop(next(iter(self.runs)))
        self.runs[run.id] = run

    def _run(self, run: str) -> Run | None:
        """A run that was agreed to, today or in an earlier life of the vault; the policy may have changed since."""
        if run not in self.runs:
            known = self.ledger.terms(run)
            if known is None:
                return None
            stored = json.loads(known)
            terms, place = self._agree(stored["terms"])
            self._keep(Run(run, stored["terms"], terms, place, stored["split"], stored["word"]))
            for entry in self.ledger.entries(run):
                self.runs[run].pins.update(unpack(entry.reply)[0])
        return self.runs[run]

    def _agree(self, text: str) -> tuple[Terms, int]:
        """Terms that the policy allows, and this site's place in them."""
        policy, terms = self.policy, Terms.from_json(text)
        model, wishes, facts = terms.model, terms.wishes, terms.facts
        for what, name, allowed in (
            ("model", model.name, policy.models), ("method", terms.method.id, policy.methods),
            ("calibration", wishes.calibration, policy.calibrations),
        ):  # fmt: skip
            if name not in allowed:
                raise Refused(f"{what} {name!r} is not allowed here; the site allows {', '.join(allowed)}")
        if not terms.mu <= policy.run * (1 + 1e-9):  # also where it is infinite
            raise Refused(f"mu = {terms.mu:g} for a run; the site allows {policy.run:g}")
        if wishes.bound == "paper" or terms.scaling == "data":
            raise Refused("a bound or scales that are read off the rows without paying are not given out")
        if len(facts.sites) > MOST_SITES:
            raise Refused(f"{len(facts.sites):,} sites; at most {MOST_SITES:,}")
        if not isinstance(wishes.bound, str) and not BOUNDS[0] <= float(wishes.bound or 0) <= BOUNDS[1]:
            raise Refused(f"bound = {wishes.bound}: it must lie between {BOUNDS[0]:g} and {BOUNDS[1]:g}")
        if "tau1" in terms.options:  # the paper's noise is divided by it
            raise Refused("option tau1 sets the size of the noise, which is not the server's to choose")
        whole = {name: value for name, value in vars(terms.method).items() if type(value) is int}
        for name, value in whole.items():
            if value > LARGEST_OPTION:
                raise Refused(f"option {name} = {value:,}; at most {LARGEST_OPTION:,}")
        if (size := math.prod([len(facts.sites), *whole.values()])) > LARGEST_PLAN:
            raise Refused(f"a schedule of {size:,} entries ({', '.join(whole)}, sites); at most {LARGEST_PLAN:,}")
        places = np.flatnonzero(facts.sites == policy.name)
        if len(places) != 1 or facts.sizes[places[0]] != self.rows:
            raise Refused(f"the terms do not list site {policy.name!r} with its {self.rows} rows")
        design = Design.of(policy.columns, facts.features, facts.target_name, model)
        if (design.features, design.classes) != (facts.features, tuple(model.classes)):
            raise Refused(f"the target's classes or the features differ from this site's: {design.features}, "
                          f"{design.classes}")  # fmt: skip
        if design.bounds != facts.bounds:
            odd = sorted(set(design.bounds.items()) ^ set(facts.bounds.items()))[0][0]
            there, here = facts.bounds.get(odd), design.bounds.get(odd)
            raise Refused(f"the range of {odd!r} is {there} in the terms and {here} at this site")
        try:
            terms.check_spending()  # whoever cannot be scheduled is refused now, too
        except RuntimeError as fault:
            raise Refused(str(fault)) from None
        return terms, int(places[0])

    # -- rounds -----------------------------------------------------------------------------------------------

    def _round(self, run: Run, head: Head, arrays: Arrays, digest: str) -> bytes:
        number, query = head.get("round"), head.get("query")
        if type(number) is not int or not 0 <= number < 2**31 or not isinstance(query, str):
            raise Refused("a round has a number from 0 on and the name of a query")
        entry = self.ledger.find(run.id, number)
        if entry is not None:
            if entry.request != digest:
                raise Refused(f"round {number + 1} was answered before, to another request")
            return self._reply(entry)
        step, mus = run.step(number, query)
        pins: dict[str, str] = {}
        scaling = self._scaling(run, number, head, arrays, pins)
        ask = self._ask(run, number, step, head, arrays, scaling, pins)
        for what, value in pins.items():
            if run.pins.get(what, value) != value:
                raise Refused(f"the {what} has changed since an earlier round of this run")
        charges = [
            Charge(release.what, release.part, float(mu))
            for release, mu in zip(step.query.releases(), mus[:, 0], strict=True)
        ]
        self.ledger.afford(run.id, charges, lifetime=self.policy.lifetime, limit=self.policy.run)
        self._record(run)
        started = time.perf_counter()
        reply, failed = pack(pins), False
        try:
            noise: Noise = GridNoise(mus, self.rows)
            if run.word is not None:
                noise = SeededNoise(self._site_keys(), run.word, number)
            with _one_thread():
                values = step.query.answer(self._rows(run, scaling), np.array([0]), ask, mus, noise)[0]
            if not np.isfinite(values).all():  # they are noisy by now, so that this tells nothing more of the rows
                raise ArithmeticError("the reply is not finite")
            reply = pack(pins, {"values": values})
        except Exception:  # whatever of the rows it may tell, it is paid for
            log.exception("the query failed")
            failed = True
        computed = time.perf_counter()
        entry = self.ledger.release(
            run.id, number, query, digest, charges, reply, lifetime=self.policy.lifetime, limit=self.policy.run,
            failed=failed,
        )  # fmt: skip
        run.pins.update(pins)
        log.info("released", extra={"facts": {
            "run": run.id, "round": number, "query": query, "mu": math.hypot(*(c.mu for c in charges)),
            "receipt": entry.receipt, "compute_ms": round(1e3 * (computed - started), 3),
            "ledger_ms": round(1e3 * (time.perf_counter() - computed), 3),
        }})  # fmt: skip
        return self._reply(entry)

    def _reply(self, entry: Entry) -> bytes:
        if entry.failed:
            raise Refused(f"round {entry.round + 1} failed inside the site, and was paid for")
        head = {"site": self.policy.name, "run": entry.run, "round": entry.round, "receipt": entry.receipt}
        return pack(head, unpack(entry.reply)[1])

    def _scaling(self, run: Run, number: int, head: Head, arrays: Arrays, pins: dict[str, str]) -> Scaling:
        """Scales of features and target: from declared bounds, or what the server made of noisy histograms."""
        terms, facts = run.terms, run.terms.facts
        pair = head.get("target_scale")
        bought = terms.scaling == "private" and number >= len(terms.plan.scaling_steps)
        if not bought:
            if pair is not None or "centre" in arrays or "scale" in arrays:
                raise Refused(f"round {number + 1} takes no scales from the server")
            if terms.scaling != "bounds":
                return Scaling.none(len(facts.features))
            with_target = terms.model.scales_target
            return from_bounds(facts.features, facts.target_name, facts.bounds, terms.intercept, with_target)
        shape = (len(facts.features),)
        centre, scale = _array(arrays, "centre", shape, SCALES[1]), _array(arrays, "scale", shape, SCALES[1])
        if not isinstance(pair, list) or len(pair) != 2 or not all(type(v) is float for v in pair):
            raise Refused("target_scale must be two numbers")
        sizes = np.append(scale, pair[1])
        if not ((sizes >= SCALES[0]) & (sizes <= SCALES[1])).all() or not abs(pair[0]) <= SCALES[1]:
            raise Refused(f"scales must lie between {SCALES[0]:g} and {SCALES[1]:g}")
        if not terms.model.scales_target and pair != [0.0, 1.0]:  # clipping is proved for classes and counts only
            raise Refused(f"the {terms.model.name} model takes its target as it is; target_scale must be 0 and 1")
        text = json.dumps([centre.tolist(), scale.tolist(), pair])
        pins["scaling"] = hashlib.sha256(text.encode()).hexdigest()
        return Scaling(centre, scale, *pair)

    def _ask(
        self, run: Run, number: int, step: Step, head: Head, arrays: Arrays, scaling: Scaling, pins: dict[str, str]
    ) -> Ask:
        """What the query is asked, from numbers that were looked at one by one."""
        terms, shape = run.terms, run.terms.setting.shape
        theta = _array(arrays, "theta", shape, LARGEST_THETA)
        penalty = terms.penalty(scaling)
        if not np.isfinite(penalty).all():
            raise Refused("the ridge is too large for these scales")
        drift = None
        if "drift" in arrays:
            if not isinstance(step.query, Descent):
                raise Refused(f"round {number + 1} takes no drift")
            drift = _array(arrays, "drift", shape, LARGEST_THETA)[None]
        bound, wish = head.get("bound"), terms.wishes.bound
        before = number < len(terms.plan.scaling_steps) + len(terms.plan.bound_steps)
        if before:  # histograms: nothing is clipped yet
            if bound is not None:
                raise Refused(f"round {number + 1} takes no bound")
            return Ask(theta, Clipping(terms.setting.clip), penalty, drift, _edges(arrays, step))
        if "edges" in arrays:
            raise Refused(f"round {number + 1} takes no bin edges")
        if type(bound) is not float or not BOUNDS[0] <= bound <= BOUNDS[1]:
            raise Refused(f"the bound must lie between {BOUNDS[0]:g} and {BOUNDS[1]:g}")
        if not isinstance(wish, str) and bound != wish:
            raise Refused(f"the terms say bound = {wish}, not {bound}")
        pins["bound"] = repr(bound)
        clipping = step.query.clipping(terms.clipping(bound), terms.model)
        return Ask(theta, clipping, penalty, drift, None)

    def _site_keys(self) -> Keys:
        return site_keys(np.array([self.policy.name], dtype=object))

    def _rows(self, run: Run, scaling: Scaling) -> SiteData:
        """The rows as a run sees them; the last few forms are kept."""
        facts, model = run.terms.facts, run.terms.model
        numbers = [*scaling.centre.tolist(), *scaling.scale.tolist(), scaling.target_centre, scaling.target_scale]
        if (key := f"{run.id} {numbers}") not in self.data:
            while len(self.data) >= KEPT_ROWS:
                self.data.pop(next(iter(self.data)))
            indicators = {
                feature: (name, place)
                for name, column in self.policy.columns.items()
                for place, feature in enumerate(column.features, start=1)
            }
            X = np.empty((self.rows, len(facts.features)))
            for j, feature in enumerate(facts.features):
                name, place = indicators[feature]
                own = self.columns[name]
                X[:, j] = own == place if self.policy.columns[name].levels else own
            names = np.full(self.rows, self.policy.name, dtype=object)
            target = self.columns[facts.target_name]
            federation = Federation.from_arrays(X, target, names, features=facts.features, degenerate="keep")
            packed = federation.rows(
                scaling.apply_target(target), scaling.centre, scaling.scale, run.terms.intercept
            )
            self.data[key] = SiteData(model, packed, run.split, self._site_keys())
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


def _only(head: Head, keys: set[str], arrays: Arrays, names: set[str]) -> None:
    """A field that we do not know could be one that someone believes we heed."""
    if odd := sorted((set(head) - keys) | (set(arrays) - names)):
        raise Refused(f"unknown field {odd[0]!r}")


def _run_id(value: Any) -> str:
    if not isinstance(value, str) or not 8 <= len(value) <= 64 or not all(c in "0123456789abcdef" for c in value):
        raise Refused("a run is named by 8 to 64 hexadecimal digits")
    return value


def _array(arrays: Arrays, name: str, shape: tuple[int, ...], largest: float) -> Array:
    if name not in arrays or arrays[name].shape != shape:
        raise Refused(f"{name} must be an array of shape {shape}")
    if not (np.abs(arrays[name]) <= largest).all():  # not a number is none of these
        raise Refused(f"{name} must hold finite numbers of at most {largest:g}")
    return arrays[name]


def _edges(arrays: Arrays, step: Step) -> Array:
    edges = arrays.get("edges")
    if edges is None or edges.ndim != 2 or len(edges) != getattr(step.query, "groups", 0) or edges.size > MOST_EDGES:
        raise Refused("bin edges must be given, a row for each histogram")
    if not np.isfinite(edges).all() or (np.diff(edges, axis=1) < 0).any() or edges.shape[1] < 1:
        raise Refused("bin edges must be finite numbers in ascending order")
    return edges
