"""`plan`: what a budget gives, before it is spent: every method's predicted error, and the one to choose.

Nothing but public facts enters: sizes, columns, bounds, the budget, and what is assumed of the rows.
"""

import math
from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

from fedmest.core.exceptions import InputError
from fedmest.core.typing import IntArray
from fedmest.inference.population import Population
from fedmest.models import model_named
from fedmest.runs.plan import Candidate, Plan
from fedmest.runs.planning_problem import Limits, PlanningProblem
from fedmest.runs.settings import Settings
from fedmest.runs.spec import PublicFacts

MIN_MU, MAX_MU = 1e-3, 1e3


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
) -> Plan:
    """Expected error of each method on sites of these sizes, from public facts and assumptions alone.

    Parameters
    ----------
    sizes : array-like of int
        Rows of each site, or one number for all `sites`.
    features : int
        Number of features.
    model : str, default "logistic"
        Name of a model with one linear predictor.
    mu : float, default 2.0
        Privacy budget of every site's rows.
    sites : int, optional
        Number of sites, where `sizes` is one number.
    mse, half_width : float, optional
        A target; the smallest mu that reaches it takes the place of `mu`.
    rounds, bytes : int, optional
        Limits on a run.
    methods : sequence of str, optional
        Ids of the methods to consider; by default all that can be predicted.
    bounded : bool, default False
        Whether ranges of all columns will be declared; if not, 5 % of the budget goes to scales.
    intercept, slopes, feature_sd : float, optional
        Assumptions about the rows, features being scaled; `slopes` is the length of their vector.
    **settings
        Fields of `Settings` (``clip_norm``, ``ridge``, ``cov_type`` ...).

    Returns
    -------
    Plan

    Raises
    ------
    InputError
        If an argument is not possible, or no method keeps within the limits.

    Examples
    --------
    >>> advice = plan([400] * 100, features=4, mu=2.0)
    >>> advice.best.method, round(advice.best.prediction.mse / advice.pooled, 1)
    ('fedirls', 1.1)
    """
    case = planning_problem(sizes, features, model, mu, sites=sites, rounds=rounds, bytes=bytes, bounded=bounded,
                   intercept=intercept, slopes=slopes, feature_sd=feature_sd, **settings)  # fmt: skip
    if mse is None and half_width is None:
        return case.advise(methods)
    if mse is not None and half_width is not None:
        raise InputError("give one target, mse or half_width")
    return _reach(case, methods, mse, half_width)


def planning_problem(
    sizes: npt.ArrayLike,
    features: int,
    model: str = "logistic",
    mu: float = 2.0,
    *,
    sites: int | None = None,
    rounds: int | None = None,
    bytes: int | None = None,
    bounded: bool = False,
    intercept: float | None = None,
    slopes: float | None = None,
    feature_sd: float = 1.0,
    **settings: Any,
) -> PlanningProblem:
    """The planning problem that arguments of `plan` describe."""
    chosen = Settings.from_mapping(settings, "plan")
    n = _sizes(sizes, sites)
    if isinstance(features, bool) or not isinstance(features, (int, np.integer)) or features < 1:
        raise InputError(f"features={features!r} must be a whole number of at least 1")
    given = {"intercept": intercept, "slopes": slopes, "feature_sd": feature_sd}
    for name, value in given.items():
        if value is not None and not (isinstance(value, (int, float)) and math.isfinite(value)):
            raise InputError(f"{name}={value!r} must be a number")
    population = _assumed(model, int(features) + chosen.fit_intercept, **given)
    names = tuple(f"x{j + 1}" for j in range(int(features)))
    declared = dict.fromkeys((*names, "y"), (0.0, 1.0)) if bounded else {}
    data = PublicFacts(np.array([str(i) for i in range(len(n))], dtype=object), n, names, "y", declared)
    return PlanningProblem(data, model_named(model), mu, chosen, population, Limits(rounds, bytes))


@lru_cache(maxsize=32)
def _assumed(model: str, columns: int, **given: float | None) -> Population:
    """Kept, as drawing rows takes longer than the plan for them."""
    said = {name: float(value) for name, value in given.items() if value is not None}
    population = replace(Population.typical(model_named(model), columns), **said)  # type: ignore[arg-type]
    if not (population.feature_sd > 0 and population.slopes >= 0):
        raise InputError("feature_sd must be positive, and slopes, a length, at least 0")
    return population


def _reach(case: PlanningProblem, methods: Sequence[str] | None, mse: float | None, half_width: float | None) -> Plan:
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
    able = [c for c in trial.candidates if c.has_intervals] or list(trial.candidates)
    if (short := least(MAX_MU)) > 1:
        raise InputError(
            f"{what} of {target:g} is out of reach: with hardly any privacy it is {short * target:.3g} "
            "for rows like these; more rows would help"
        )
    low, high = math.log(MIN_MU), math.log(MAX_MU)
    while high - low > 5e-3:
        middle = (low + high) / 2
        low, high = (low, middle) if least(math.exp(middle)) <= 1 else (middle, high)
    while True:  # the one to choose may not be the one with the least error
        digits = 2 - math.floor(high / math.log(10))
        mu = math.ceil(math.exp(high) * 10.0**digits) / 10.0**digits
        advice = replace(case, mu=mu).advise(methods)
        if missed(advice.best) <= 1 or mu >= MAX_MU:
            return advice
        high += min(0.5 * math.log(missed(advice.best)), 0.5) + 5e-3


def _sizes(sizes: npt.ArrayLike, sites: int | None) -> IntArray:
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
