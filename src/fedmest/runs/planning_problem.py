"""The search for each method's best settings in a planning problem, and the choice among methods. Reads no rows."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np

from fedmest.core.exceptions import InputError
from fedmest.inference.population import Population
from fedmest.methods import METHODS, Method, method_named
from fedmest.models import Model
from fedmest.runs.plan import SETTINGS, Candidate, Plan
from fedmest.runs.settings import Settings
from fedmest.runs.spec import PublicFacts, RunSpec

AUTO = "auto"
SETTING_GRID = {name: info.plan_values for name, info in Settings.info().items() if info.plan_values}
TIE = 0.05  # of an error: what fewer rounds may cost, less than what predictions are good for
MAX_INTERVALS_COST = 1.2  # times the least error: what standard errors may cost
LEAST_GAIN = 0.02  # what another setting must win before it is preferred to the default
BEYOND = ("takes", "sends")  # how the reasons begin for which a method is beyond the limits


@dataclass(frozen=True)
class Limits:
    """Limits on a run.

    Parameters
    ----------
    rounds : int, optional
        Largest number of rounds.
    bytes : int, optional
        Largest number of bytes sent, in both directions.
    """

    rounds: int | None = None
    bytes: int | None = None

    def __post_init__(self) -> None:
        for f in fields(self):
            value = getattr(self, f.name)
            if value is not None and (isinstance(value, bool) or not value >= 1):
                raise InputError(f"{f.name}={value!r} must be at least 1")

    def problem(self, candidate: Candidate) -> str | None:
        """Limit that a candidate exceeds.

        Parameters
        ----------
        candidate : Candidate
            The candidate.

        Returns
        -------
        str or None
            The limit in words; None if it keeps within all.
        """
        if self.rounds is not None and candidate.rounds > self.rounds:
            return f"{BEYOND[0]} {candidate.rounds:,} rounds"
        if self.bytes is not None and candidate.bytes > self.bytes:
            return f"{BEYOND[1]} {candidate.bytes:,} bytes"
        return None


@dataclass(frozen=True)
class PlanningProblem:
    """Public facts, a model, a budget, and assumptions about the rows, for which methods are to be ranked.

    Parameters
    ----------
    data : PublicFacts
        Sites, sizes and columns.
    model : Model
        The model.
    mu : float
        Privacy budget of every site's rows.
    settings : Settings
        Settings that every method gets.
    population : Population
        What is assumed of the rows.
    limits : Limits
        Limits on a run.
    """

    data: PublicFacts
    model: Model
    mu: float
    settings: Settings
    population: Population
    limits: Limits = Limits()

    def __post_init__(self) -> None:
        if self.settings.calibration != "certified":
            raise InputError("a plan is for calibration='certified': what the paper's clipping costs is not predicted")
        if self.settings.participation < 1:
            raise InputError("a plan is for runs in which every site takes part; leave participation at 1")

    @staticmethod
    def typical(data: PublicFacts, model: Model, mu: float, settings: Settings) -> "PlanningProblem":
        """Planning problem with default assumptions about the rows.

        Parameters
        ----------
        data : PublicFacts
            Sites, sizes and columns.
        model : Model
            The model.
        mu : float
            Privacy budget.
        settings : Settings
            Settings that every method gets.

        Returns
        -------
        PlanningProblem
        """
        population = Population.typical(model, len(data.features) + settings.fit_intercept)
        return PlanningProblem(data, model, mu, settings, population)

    def advise(self, methods: Sequence[str] | None = None) -> Plan:
        """Rank methods.

        Parameters
        ----------
        methods : sequence of str, optional
            Ids; by default `methods`.

        Returns
        -------
        Plan

        Raises
        ------
        InputError
            If no method can be predicted, or none keeps within the limits.
        """
        return self.rank({name: self.tried(name) for name in (self.methods if methods is None else methods)})

    @property
    def methods(self) -> list[str]:
        """Ids of the methods that are considered where none are named."""
        return [m.id for m in METHODS.values() if m.private and m.supports(self.model)]

    def tried(self, method: str) -> Candidate | str:
        """One method at the settings that suit it best.

        Parameters
        ----------
        method : str
            Its id.

        Returns
        -------
        Candidate or str
            The reason, where the method is left out.
        """
        try:
            return self._best(method)
        except InputError as reason:
            return str(reason)

    def rank(self, outcomes: Mapping[str, Candidate | str]) -> Plan:
        """Plan from methods that were tried; `Plan` has the rule.

        Parameters
        ----------
        outcomes : mapping of str to Candidate or str
            What `tried` returned, by id.

        Returns
        -------
        Plan

        Raises
        ------
        InputError
            If no method is left.
        """
        found = [c for c in outcomes.values() if isinstance(c, Candidate)]
        left_out = {name: why for name, why in outcomes.items() if isinstance(why, str)}
        if not found:
            beyond = [f"{name} {problem}" for name, problem in left_out.items() if problem.startswith(BEYOND)]
            if beyond:
                raise InputError(
                    f"no method keeps within the limits: {'; '.join(beyond)}; allow more, or declare bounds"
                )
            raise InputError("; ".join(dict.fromkeys(left_out.values())))
        found.sort(key=lambda c: c.prediction.mse)
        cov_type, within = self.settings.cov_type, MAX_INTERVALS_COST * min(c.regret for c in found)
        asked = cov_type not in ("auto", "none")  # then they are worth any error
        able = [c for c in found if cov_type == "none" or (c.has_intervals and (asked or c.regret <= within))] or found
        least = min(c.regret for c in able)
        enough = [c for c in able if c.regret <= (1 + TIE) * least]
        best = min(enough, key=lambda c: c.rounds)
        return Plan(best, tuple(found), left_out, self.mu, self.population, self.data.sizes)

    def at(self, method: str, settings: dict[str, Any]) -> Candidate:
        """One method at given settings.

        Parameters
        ----------
        method : str
            Its id.
        settings : dict
            Settings and options of the method, by name.

        Returns
        -------
        Candidate
        """
        chosen = {key: value for key, value in settings.items() if key in SETTINGS}
        options = {key: value for key, value in settings.items() if key not in SETTINGS}
        spec = RunSpec.create(self.data, self.model, method, self.mu, replace(self.settings, **chosen), options)
        return Candidate(method, settings, spec, spec.predict(self.population), self.population)

    def _best(self, method: str) -> Candidate:
        """The settings of least regret, found one option after another, from the defaults on."""
        kind = method_named(method)
        unequal = len(np.unique(self.data.sizes)) > 1
        free = {
            "budget_schedule": self.settings.budget_schedule is None and "eta" in kind.param_grid,
            "aggregation_weights": unequal and math.isfinite(self.mu),
        }
        param_grid = {**kind.param_grid, **{key: values for key, values in SETTING_GRID.items() if free[key]}}

        def better(other: Candidate, than: Candidate) -> bool:
            beyond, beyond_now = (self.limits.problem(c) is not None for c in (other, than))
            enough = than.regret * (1 - LEAST_GAIN)
            if beyond != beyond_now:
                return beyond_now
            return other.excess < enough and other.regret < enough  # the first is cheaper to ask for

        best = self.at(method, {})
        if self.settings.cov_type == "auto" and best.spec.route.affordable:
            best = self.at(method, {"cov_type": "nonrobust"})
        usual = {**vars(best.spec.method), **vars(best.spec.settings)}
        for option, values in param_grid.items():
            for value in values:
                if value != best.settings.get(option, usual[option]):
                    other = self.at(method, {**best.settings, option: value})
                    best = other if better(other, best) else best
        if (problem := self.limits.problem(best)) is not None:
            raise InputError(problem)
        return best


def choose(
    data: PublicFacts,
    model: Model,
    method: str | type[Method],
    mu: float,
    settings: Settings,
    options: Mapping[str, Any],
    public_seed: int = 0,
) -> RunSpec:
    """Spec of a fit; for method "auto", of the method that a plan recommends.

    Parameters
    ----------
    data : PublicFacts
        Sites, sizes and columns.
    model : Model
        The model.
    method : str or type of Method
        An id, a class, or "auto".
    mu : float
        Privacy budget.
    settings : Settings
        How the fit is done.
    options : mapping
        Options of the method.
    public_seed : int, default 0
        Seed of public draws.

    Returns
    -------
    RunSpec

    Raises
    ------
    InputError
        If an argument is not possible.
    """
    if method == AUTO:
        if options:
            raise InputError(f"method='auto' chooses options itself; take {', '.join(options)} out, or name a method")
        best = PlanningProblem.typical(data, model, mu, settings).advise().best.spec
        method, settings, options = best.method.id, best.settings, best.options
    return RunSpec.create(data, model, method, mu, settings, options, public_seed)
