"""Answers for the page: the plan, and the expected errors of its methods with another mu or other rounds.

All of it comes from `fedmest.runs.planning`; the texts are those that `fedmest plan` prints.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Protocol

from fedmest.core.exceptions import InputError
from fedmest.interface.cli.parsing import listed_sizes, number
from fedmest.interface.tables import PLAN_HEADS, PLAN_LEGEND, plan_notes, plan_rows
from fedmest.runs.plan import Candidate
from fedmest.runs.planning import planning_problem
from fedmest.runs.spec import RunSpec

MUS = (0.1, 0.25, 0.6, 1.5, 4.0, 10.0)  # where curves are computed, beside the mu of the plan
MAX_COUNT = 100_000  # sites or features
INTEGERS = ("sites", "features", "rounds")
FIELDS = {"model", "mu", "sizes", "bounded", *INTEGERS}

Curve = list[tuple[float, float]]


class MapFunction(Protocol):
    """Applies a function to a sequence: `map`, or the `map` of a pool of processes."""

    def __call__(self, work: Callable[[Any], Any], over: Sequence[Any], /) -> Iterable[Any]: ...


def answers(asked: Mapping[str, str], map_function: MapFunction = map) -> Iterator[dict[str, Any]]:
    """What the page shows for these fields: first the plan, then the curves around it.

    Raises an InputError where the fields make no sense.
    """
    arguments = _arguments(asked)
    case = planning_problem(**arguments)
    outcomes = map_function(partial(_tried, arguments), case.methods)
    plan = case.rank(dict(zip(case.methods, outcomes, strict=True)))
    best = plan.best
    yield {
        "plan": plan.to_dict(), "heads": PLAN_HEADS, "rows": plan_rows(plan), "legend": PLAN_LEGEND,
        "notes": plan_notes(plan), "command": plan.fit_command, "method": best.method,
        "title": best.spec.method.display_name, "expected": f"{best.prediction.mse / plan.pooled:.3g}",
        "half_width": f"{best.half_width:.2g}", "rounds": f"{best.rounds:,}",
        "megabytes": f"{best.bytes / 1e6:.3g}", "has_intervals": best.has_intervals,
    }  # fmt: skip
    chosen = {c.method: c.settings for c in plan.candidates}
    yield {
        "curves": dict(zip(chosen, map_function(partial(_curves, arguments), list(chosen.items())), strict=True)),
        "lower_bound": [(mu, plan.lower_bound_at(mu)) for mu in sorted({*MUS, plan.mu})],
        "zero": plan.population.length(plan.population.truth),
    }


def _tried(arguments: dict[str, Any], method: str) -> Candidate | str:
    return planning_problem(**arguments).tried(method)


def _curves(arguments: dict[str, Any], chosen: tuple[str, dict[str, Any]]) -> dict[str, Curve]:
    candidate = planning_problem(**arguments).at(*chosen)
    return {"mu": by_mu(candidate), "rounds": by_rounds(candidate)}


def by_mu(candidate: Candidate) -> Curve:
    """Error with other budgets, at the settings that suit the plan's."""
    spec = candidate.spec
    points = {mu: replace(spec, mu=mu).predict(candidate.population).mse for mu in MUS if mu != spec.mu}
    return _sorted({**points, spec.mu: candidate.prediction.mse})


def by_rounds(candidate: Candidate) -> Curve:
    """Error with more or fewer rounds, as far as the method's options go."""
    spec = candidate.spec
    points = {float(candidate.rounds): candidate.prediction.mse}
    for option, values in spec.method.rounds_grid.items():
        for value in values:
            if value != getattr(spec.method, option):
                options = {**spec.options, option: value}
                other = RunSpec.create(spec.data, spec.model, spec.method.id, spec.mu, spec.settings, options)
                points[float(len(other.schedule.steps))] = other.predict(candidate.population).mse
    return _sorted(points)


def _sorted(points: dict[float, float]) -> Curve:
    return [(x, y) for x, y in sorted(points.items()) if math.isfinite(y)]


def _arguments(asked: Mapping[str, str]) -> dict[str, Any]:
    """Arguments of a plan. Empty fields are left out; no field can name a file."""
    given = {name: value.strip() for name, value in asked.items() if value.strip()}
    if odd := sorted(set(given) - FIELDS):
        raise InputError(f"there is no field {odd[0]!r}")
    for name in ("sizes", "features", "model", "mu"):
        if name not in given:
            raise InputError(f"{name} is missing: fill in the field")
    sizes = listed_sizes(given["sizes"])
    if sizes is None:
        raise InputError(f"rows {given['sizes']!r}: write a number, or numbers with commas between them")
    values: dict[str, Any] = {"sizes": sizes, "model": given["model"], "bounded": given.get("bounded") == "true"}
    for name in ("mu", *INTEGERS):
        if name in given:
            value = number(given[name])
            whole = name in INTEGERS
            if isinstance(value, (bool, str)) or not math.isfinite(value) or (whole and value != int(value)):
                raise InputError(f"{name}={given[name]!r} must be a {'whole ' if whole else ''}number")
            values[name] = int(value) if whole else float(value)
    if not isinstance(sizes, int):
        values.pop("sites", None)
    if max(values.get("sites", 1), values["features"]) > MAX_COUNT:
        raise InputError(f"more than {MAX_COUNT:,} sites or features are too many for this page; use 'fedmest plan'")
    return values
