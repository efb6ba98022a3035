"""What the page asks and what it is told: the plan, and how its methods would do with another mu or other rounds.

All of it comes from `fedmest.planner`; the texts are those that `fedmest plan` prints.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Protocol

from fedmest.arguments import listed_sizes, number
from fedmest.errors import InputError
from fedmest.planner import Candidate, case_of
from fedmest.tables import PLAN, PLAN_LEGEND, plan_notes, plan_rows
from fedmest.terms import Terms
from fedmest.theory.prediction import predict

MUS = (0.1, 0.25, 0.6, 1.5, 4.0, 10.0)  # where curves are computed, beside the mu of the plan
MOST = 100_000  # sites or features
WHOLE = ("sites", "features", "rounds")
FIELDS = {"model", "mu", "sizes", "bounded", *WHOLE}

Curve = list[tuple[float, float]]


class Run(Protocol):
    """Goes through a list of things to do: `map`, or that of a pool of processes."""

    def __call__(self, work: Callable[[Any], Any], over: Sequence[Any], /) -> Iterable[Any]: ...


def answers(asked: Mapping[str, str], run: Run = map) -> Iterator[dict[str, Any]]:
    """What the page shows for these fields: first the plan, then the curves around it.

    An InputError where the fields make no sense.
    """
    arguments = _arguments(asked)
    case = case_of(**arguments)
    outcomes = run(partial(_tried, arguments), case.methods)
    advice = case.choose(dict(zip(case.methods, outcomes, strict=True)))
    best = advice.best
    yield {
        "plan": advice.as_dict(), "heads": PLAN, "rows": plan_rows(advice), "legend": PLAN_LEGEND,
        "notes": plan_notes(advice), "command": advice.fit_command, "method": best.method,
        "title": best.terms.method.title, "expected": f"{best.prediction.mse / advice.pooled:.3g}",
        "half_width": f"{best.half_width:.2g}", "rounds": f"{best.prediction.rounds:,}",
        "megabytes": f"{best.prediction.bytes / 1e6:.3g}", "earns_errors": best.earns_errors,
    }  # fmt: skip
    chosen = {c.method: c.settings for c in advice.candidates}
    yield {
        "curves": dict(zip(chosen, run(partial(_curves, arguments), list(chosen.items())), strict=True)),
        "lower_bound": [(mu, advice.lower_bound_at(mu)) for mu in sorted({*MUS, advice.mu})],
        "zero": advice.population.length(advice.population.truth),
    }


def _tried(arguments: dict[str, Any], method: str) -> Candidate | str:
    return case_of(**arguments).tried(method)


def _curves(arguments: dict[str, Any], chosen: tuple[str, dict[str, Any]]) -> dict[str, Curve]:
    candidate = case_of(**arguments).at(*chosen)
    return {"mu": by_mu(candidate), "rounds": by_rounds(candidate)}


def by_mu(candidate: Candidate) -> Curve:
    """Error with other budgets, at the settings that suit the plan's."""
    terms = candidate.terms
    points = {mu: predict(replace(terms, mu=mu), candidate.population).mse for mu in MUS if mu != terms.mu}
    return _sorted({**points, terms.mu: candidate.prediction.mse})


def by_rounds(candidate: Candidate) -> Curve:
    """Error with more or fewer rounds, as far as the method's options go."""
    terms = candidate.terms
    points = {float(candidate.prediction.rounds): candidate.prediction.mse}
    for option, values in terms.method.paces.items():
        for value in values:
            if value != getattr(terms.method, option):
                options = {**terms.options, option: value}
                other = Terms.agree(terms.facts, terms.model, terms.method.id, terms.mu, terms.wishes, options)
                expected = predict(other, candidate.population)
                points[float(expected.rounds)] = expected.mse
    return _sorted(points)


def _sorted(points: dict[float, float]) -> Curve:
    return [(x, y) for x, y in sorted(points.items()) if math.isfinite(y)]


def _arguments(asked: Mapping[str, str]) -> dict[str, Any]:
    """Arguments of a plan. Fields that are empty do not count; no field can name a file."""
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
    for name in ("mu", *WHOLE):
        if name in given:
            value = number(given[name])
            whole = name in WHOLE
            if isinstance(value, (bool, str)) or not math.isfinite(value) or (whole and value != int(value)):
                raise InputError(f"{name}={given[name]!r} must be a {'whole ' if whole else ''}number")
            values[name] = int(value) if whole else float(value)
    if not isinstance(sizes, int):
        values.pop("sites", None)
    if max(values.get("sites", 1), values["features"]) > MOST:
        raise InputError(f"more than {MOST:,} sites or features are too many for this page; use 'fedmest plan'")
    return values
