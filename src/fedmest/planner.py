"""What a budget will buy, before it is spent: every method's predicted error, and the one to choose.

Nothing but public facts enters: sizes, columns, bounds, the budget, and what is assumed of the rows.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cached_property, lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

from fedmest.errors import InputError
from fedmest.inference import TOLERATED
from fedmest.methods import METHODS, method_named
from fedmest.models import Model, model_named
from fedmest.queries import Moments, NewtonParts
from fedmest.terms import Facts, Roster, Terms, Wishes
from fedmest.theory import bounds
from fedmest.theory.population import Population
from fedmest.theory.prediction import Prediction, predict

AUTO = "auto"
TRIED = {"schedule": ("geometric", "uniform"), "weights": ("size", "optimal")}  # settings of `fit` that plans choose
WISHES = frozenset(f.name for f in fields(Wishes))
TIE = 0.05  # of an error: what fewer rounds may cost, less than what predictions are good for
ERRORS_WORTH = 1.2  # times the least error: what standard errors may cost
LEAST_GAIN = 0.02  # what another setting must win before it is preferred to the default
BEYOND = ("takes", "sends")  # how the reasons begin for which a method is beyond the limits
SMALLEST_MU, LARGEST_MU = 1e-3, 1e3
NORMAL_95 = 1.959964


@dataclass(frozen=True)
class Candidate:
    """A method at its best settings, which `fit` takes by name, and what is expected of it."""

    method: str
    settings: dict[str, Any]
    terms: Terms = field(repr=False)
    prediction: Prediction
    population: Population = field(repr=False)

    @cached_property
    def excess(self) -> float:
        """Error over that of the pooled fit, where rows are as assumed."""
        return self.prediction.mse * self._rows / self.population.pooled_error

    @cached_property
    def regret(self) -> float:
        """The same where rows are as assumed or harder, whichever is worse."""
        return max(self.excess, self._harder.mse * self._rows / self.population.harder.pooled_error)

    @cached_property
    def missed(self) -> float:
        """What intervals would not show, over what they do; likewise."""
        return max(e.missed / (e.sampling + e.privacy) for e in (self.prediction, self._harder))

    @cached_property
    def _harder(self) -> Prediction:
        return predict(self.terms, self.population.harder)

    @property
    def _rows(self) -> float:
        return float(self.terms.facts.sizes.sum())

    @property
    def earns_errors(self) -> bool:
        """Whether intervals can be expected to hold: nothing but noise in the error, and the means to tell its size."""
        terms = self.terms
        arrives = isinstance(terms.plan.method_steps[-1].query, NewtonParts | Moments)  # whatever the steps' length
        if terms.errors.route == "none" or (terms.wishes.errors == "sandwich" and not arrives):
            return False
        return self.missed <= (TOLERATED if arrives else TOLERATED / 5)

    @property
    def arguments(self) -> dict[str, Any]:
        """Those of `fit` that are not its defaults, whether the plan chose them or was asked for them."""
        usual = vars(Wishes().settled(self.terms.model))
        return {**self.terms.options, **{k: v for k, v in vars(self.terms.wishes).items() if v != usual[k]}}

    @property
    def half_width(self) -> float:
        """Of a 95 % interval for a slope."""
        return NORMAL_95 * math.sqrt(float(self.prediction.variances.sum()))


@dataclass(frozen=True)
class Advice:
    """All methods, the least error first, and the one to choose: of those that earn standard errors (unless none are
    wanted, or nobody asked for them and they would cost a fifth of the error) the best, or one nearly as good with
    fewer rounds.

    `left_out` gives the reason for those without a prediction or beyond the limits.
    """

    best: Candidate
    candidates: tuple[Candidate, ...]
    left_out: dict[str, str]
    mu: float
    population: Population
    sizes: npt.NDArray[np.int64]

    @property
    def pooled(self) -> float:
        """Expected error of the pooled fit without privacy."""
        return self.population.pooled_error / float(self.sizes.sum())

    @property
    def lower_bound(self) -> float:
        return self.lower_bound_at(self.mu)

    def lower_bound_at(self, mu: float) -> float:
        """What any private method has at least, up to constants; who says zero is no farther off than the truth."""
        p = self.population
        rows = p.columns / p.pooled_error  # that one row counts for
        prior = p.columns / max(p.length(p.truth), 1e-300)
        return bounds.lower_bound(self.sizes, p.columns, mu, rows, rows, prior)

    @property
    def effective_rows(self) -> float:
        return float(bounds.effective_sizes(self.sizes, self.population.columns, self.mu).sum())

    @property
    def fit_call(self) -> str:
        """The choice, in Python."""
        chosen = "".join(f", {name}={value!r}" for name, value in self.best.arguments.items())
        return f"fit(..., method={self.best.method!r}, mu={self.mu:g}{chosen})"

    @property
    def fit_command(self) -> str:
        """The choice, for the shell."""
        words = ["fedmest fit FILE --target COLUMN --site COLUMN", f"--model {self.population.model.name}",
                 f"--method {self.best.method}", f"--mu {self.mu:g}"]  # fmt: skip
        for name, value in self.best.arguments.items():
            known = f"--{name} {value}" if name in WISHES else f"--option {name}={value}"
            words.append("--no-intercept" if name == "fit_intercept" else known)
        return " ".join(words)

    def as_dict(self) -> dict[str, Any]:
        """Plain numbers and texts, for JSON."""
        return {
            "mu": self.mu if math.isfinite(self.mu) else None, "sites": len(self.sizes), "rows": int(self.sizes.sum()),
            "effective_rows": self.effective_rows, "model": self.population.model.name,
            "assumed": {key: getattr(self.population, key) for key in ("intercept", "slopes", "feature_sd")},
            "choice": {"method": self.best.method, "settings": self.best.settings}, "pooled_mse": self.pooled,
            "lower_bound": self.lower_bound, "left_out": self.left_out,
            "methods": [
                {
                    "method": c.method, "settings": c.settings, "mse": _number(c.prediction.mse),
                    **{key: _number(getattr(c.prediction, key)) for key in PARTS},
                    "half_width": _number(c.half_width), "rounds": c.prediction.rounds, "bytes": c.prediction.bytes,
                    "earns_errors": c.earns_errors,
                }
                for c in self.candidates
            ],
        }  # fmt: skip


def _number(value: float) -> float | None:
    """JSON knows no infinity."""
    return value if math.isfinite(value) else None


PARTS = ("sampling", "privacy", "optimisation", "bias")


def plan(
    sizes: npt.ArrayLike,
    features: int,
    model: str = "logistic",
    mu: float = 2.0,
    *,
    sites: int | None = None,
    mse: float | None = None,
    half_width: float | None = None,
    rounds: int | None = None,
    bytes: int | None = None,
    methods: Sequence[str] | None = None,
    bounded: bool = False,
    intercept: float | None = None,
    slopes: float | None = None,
    feature_sd: float = 1.0,
    **settings: Any,
) -> Advice:
    """What each method will achieve on sites of these sizes, from public facts and assumptions alone.

    sizes: the number of rows of each site, or one number for all `sites`.
    mse, half_width: a target to reach; the smallest mu that does takes the place of `mu`.
    rounds, bytes: limits on a run. methods: those to consider, by id (default: all that can be predicted).
    bounded: whether ranges of all columns will be declared; if not, 5 % of the budget goes to scales.
    intercept, slopes, feature_sd: the rows to expect, features being scaled; `slopes` is the length of their vector.
    Further settings are those of `fit` (bound, clip, ridge ...).

    >>> advice = plan([400] * 100, features=4, mu=2.0)
    >>> advice.best.method, round(advice.best.prediction.mse / advice.pooled, 1)
    ('fedirls', 1.1)
    """
    case = case_of(sizes, features, model, mu, sites=sites, rounds=rounds, bytes=bytes, bounded=bounded,
                   intercept=intercept, slopes=slopes, feature_sd=feature_sd, **settings)  # fmt: skip
    if mse is None and half_width is None:
        return case.advise(methods)
    if mse is not None and half_width is not None:
        raise InputError("give one target, mse or half_width")
    return _reach(case, methods, mse, half_width)


def case_of(
    sizes: npt.ArrayLike, features: int, model: str = "logistic", mu: float = 2.0, *, sites: int | None = None,
    rounds: int | None = None, bytes: int | None = None, bounded: bool = False, intercept: float | None = None,
    slopes: float | None = None, feature_sd: float = 1.0, **settings: Any,
) -> "Case":  # fmt: skip
    """The case that arguments of `plan` describe."""
    wishes = _wishes(settings)
    n = _sizes(sizes, sites)
    if isinstance(features, bool) or not isinstance(features, (int, np.integer)) or features < 1:
        raise InputError(f"features={features!r} must be a whole number of at least 1")
    given = {"intercept": intercept, "slopes": slopes, "feature_sd": feature_sd}
    for name, value in given.items():
        if value is not None and not (isinstance(value, (int, float)) and math.isfinite(value)):
            raise InputError(f"{name}={value!r} must be a number")
    population = _assumed(model, int(features) + wishes.fit_intercept, **given)
    names = tuple(f"x{j + 1}" for j in range(int(features)))
    declared = dict.fromkeys((*names, "y"), (0.0, 1.0)) if bounded else {}
    facts = Roster(np.array([str(i) for i in range(len(n))], dtype=object), n, names, "y", declared)
    return Case(facts, model_named(model), mu, wishes, population, Limits(rounds, bytes))


@lru_cache(maxsize=32)
def _assumed(model: str, columns: int, **given: float | None) -> Population:
    """Kept, as drawing rows takes longer than the plan for them."""
    said = {name: float(value) for name, value in given.items() if value is not None}
    population = replace(Population.typical(model_named(model), columns), **said)  # type: ignore[arg-type]
    if not (population.feature_sd > 0 and population.slopes >= 0):
        raise InputError("feature_sd must be positive, and slopes, a length, at least 0")
    return population


@dataclass(frozen=True)
class Limits:
    """What a run may take at most."""

    rounds: int | None = None
    bytes: int | None = None

    def __post_init__(self) -> None:
        for f in fields(self):
            value = getattr(self, f.name)
            if value is not None and (isinstance(value, bool) or not value >= 1):
                raise InputError(f"{f.name}={value!r} must be at least 1")

    def fault(self, p: Prediction) -> str | None:
        if self.rounds is not None and p.rounds > self.rounds:
            return f"{BEYOND[0]} {p.rounds:,} rounds"
        if self.bytes is not None and p.bytes > self.bytes:
            return f"{BEYOND[1]} {p.bytes:,} bytes"
        return None


@dataclass(frozen=True)
class Case:
    """What a plan is for: public facts, a model, a budget, and what is assumed of the rows."""

    facts: Facts
    model: Model
    mu: float
    wishes: Wishes
    population: Population
    limits: Limits = Limits()

    def __post_init__(self) -> None:
        if self.wishes.calibration != "certified":
            raise InputError("a plan is for calibration='certified': what the paper's clipping costs is not predicted")
        if self.wishes.participation < 1:
            raise InputError("a plan is for runs in which every site takes part; leave participation at 1")

    @staticmethod
    def typical(facts: Facts, model: Model, mu: float, wishes: Wishes) -> "Case":
        """With rows as they are assumed where nothing is said of them."""
        population = Population.typical(model, len(facts.features) + wishes.fit_intercept)
        return Case(facts, model, mu, wishes, population)

    def advise(self, methods: Sequence[str] | None = None) -> Advice:
        return self.choose({name: self.tried(name) for name in (self.methods if methods is None else methods)})

    @property
    def methods(self) -> list[str]:
        """Those to consider where none are named."""
        return [m.id for m in METHODS.values() if m.private and m.takes(self.model)]

    def tried(self, method: str) -> Candidate | str:
        """A method at the settings that suit it best, or why it is left out."""
        try:
            return self._best(method)
        except InputError as reason:
            return str(reason)

    def choose(self, outcomes: Mapping[str, Candidate | str]) -> Advice:
        """The best of methods that were tried; see `Advice`."""
        found = [c for c in outcomes.values() if isinstance(c, Candidate)]
        left_out = {name: why for name, why in outcomes.items() if isinstance(why, str)}
        if not found:
            beyond = [f"{name} {fault}" for name, fault in left_out.items() if fault.startswith(BEYOND)]
            if beyond:
                raise InputError(f"no method keeps within the limits: {'; '.join(beyond)}; allow more, or declare "
                                 "bounds")  # fmt: skip
            raise InputError("; ".join(dict.fromkeys(left_out.values())))
        found.sort(key=lambda c: c.prediction.mse)
        wish, within = self.wishes.errors, ERRORS_WORTH * min(c.regret for c in found)
        asked = wish not in ("auto", "none")  # then they are worth any error
        able = [c for c in found if wish == "none" or (c.earns_errors and (asked or c.regret <= within))] or found
        least = min(c.regret for c in able)
        enough = [c for c in able if c.regret <= (1 + TIE) * least]
        best = min(enough, key=lambda c: c.prediction.rounds)
        return Advice(best, tuple(found), left_out, self.mu, self.population, self.facts.sizes)

    def at(self, method: str, settings: dict[str, Any]) -> Candidate:
        wished = {key: value for key, value in settings.items() if key in WISHES}
        options = {key: value for key, value in settings.items() if key not in WISHES}
        terms = Terms.agree(self.facts, self.model, method, self.mu, replace(self.wishes, **wished), options)
        return Candidate(method, settings, terms, predict(terms, self.population), self.population)

    def _best(self, method: str) -> Candidate:
        """The settings of least regret, found one option after another, from the defaults on."""
        kind = method_named(method)
        unequal = len(np.unique(self.facts.sizes)) > 1
        free = {"schedule": self.wishes.schedule is None and "eta" in kind.tries,
                "weights": unequal and math.isfinite(self.mu)}  # fmt: skip
        tries = {**kind.tries, **{key: values for key, values in TRIED.items() if free[key]}}

        def better(other: Candidate, than: Candidate) -> bool:
            beyond, beyond_now = (self.limits.fault(c.prediction) is not None for c in (other, than))
            enough = than.regret * (1 - LEAST_GAIN)
            if beyond != beyond_now:
                return beyond_now
            return other.excess < enough and other.regret < enough  # the first is cheaper to ask for

        best = self.at(method, {})
        if self.wishes.errors == "auto" and (errors := best.terms.errors).route == "none" and errors.for_sale:
            best = self.at(method, {"errors": "model"})
        usual = {**vars(best.terms.method), **vars(best.terms.wishes)}
        for option, values in tries.items():
            for value in values:
                if value != best.settings.get(option, usual[option]):
                    other = self.at(method, {**best.settings, option: value})
                    best = other if better(other, best) else best
        if (fault := self.limits.fault(best.prediction)) is not None:
            raise InputError(fault)
        return best


def agree(
    facts: Facts, model: Model, method: str, mu: float, wishes: Wishes, options: dict[str, Any], seed: int = 0
) -> Terms:
    """Terms of a fit; where the method is "auto", of the one that a plan chooses from the public facts."""
    if method == AUTO:
        if options:
            raise InputError(f"method='auto' chooses options itself; take {', '.join(options)} out, or name a method")
        public = Roster(facts.sites, facts.sizes, facts.features, facts.target_name, facts.bounds)
        best = Case.typical(public, model, mu, wishes).advise().best.terms
        method, wishes, options = best.method.id, best.wishes, best.options
    return Terms.agree(facts, model, method, mu, wishes, options, seed)


def _reach(case: Case, methods: Sequence[str] | None, mse: float | None, half_width: float | None) -> Advice:
    """The plan with the smallest mu, to three digits, whose best method meets the target."""
    target = mse if mse is not None else half_width
    what = "an MSE" if mse is not None else "a half-width"
    if isinstance(target, bool) or not isinstance(target, (int, float)) or not target > 0:
        raise InputError(f"a target must be a positive number, not {target!r}")

    def missed(candidate: Candidate) -> float:
        return (candidate.prediction.mse if mse is not None else candidate.half_width) / target

    def least(mu: float) -> float:
        """At the settings that suit mu = 2; the plan that comes out is made anew."""
        return min(missed(replace(case, mu=mu).at(c.method, c.settings)) for c in able)

    trial = replace(case, mu=2.0).advise(methods)
    able = [c for c in trial.candidates if c.earns_errors] or list(trial.candidates)
    if (short := least(LARGEST_MU)) > 1:
        raise InputError(f"{what} of {target:g} is out of reach: with hardly any privacy it is {short * target:.3g} "
                         "for rows like these; more rows would help")  # fmt: skip
    low, high = math.log(SMALLEST_MU), math.log(LARGEST_MU)
    while high - low > 5e-3:
        middle = (low + high) / 2
        low, high = (low, middle) if least(math.exp(middle)) <= 1 else (middle, high)
    while True:  # the one to choose may not be the one with the least error
        digits = 2 - math.floor(high / math.log(10))
        mu = math.ceil(math.exp(high) * 10.0**digits) / 10.0**digits
        advice = replace(case, mu=mu).advise(methods)
        if missed(advice.best) <= 1 or mu >= LARGEST_MU:
            return advice
        high += min(0.5 * math.log(missed(advice.best)), 0.5) + 5e-3


def _wishes(settings: dict[str, Any]) -> Wishes:
    for name in settings:
        if name not in WISHES:
            raise InputError(f"plan has no setting {name!r}; those of fit are {', '.join(sorted(WISHES))}")
    return Wishes(**settings)


def _sizes(sizes: npt.ArrayLike, sites: int | None) -> npt.NDArray[np.int64]:
    n = np.asarray(sizes)
    if (n.ndim == 0) != (sites is not None):
        raise InputError("give one size and the number of sites (sites=...), or a list of sizes without it")
    if sites is not None:
        if isinstance(sites, bool) or not isinstance(sites, (int, np.integer)) or sites < 1:
            raise InputError(f"sites={sites!r} must be a whole number of at least 1")
        n = np.full(int(sites), n)
    if n.ndim != 1 or n.size == 0 or n.dtype.kind not in "iuf" or not (n >= 1).all() or (n != np.floor(n)).any():
        raise InputError("sizes must list the number of rows of every site: whole numbers of at least 1")
    return n.astype(np.int64)
