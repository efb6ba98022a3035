"""Columns as they are declared, in public, before anyone looks at a row: numbers with their range, or categories.

A study and its sites declare the same columns. That a site's file keeps to its own declarations is checked when the
site starts; what a server hears of it later depends on the declarations alone, so it cannot be used to feel for values.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from fedmest.errors import InputError
from fedmest.federation import Bounds
from fedmest.inputs import LARGEST_FEATURE, MOST_LEVELS, nearest
from fedmest.models import Model
from fedmest.privacy.gdp import Array

KEYS = {"column": str, "low": float, "high": float, "whole": bool, "levels": list}


@dataclass(frozen=True)
class Column:
    """One column: categories where `levels` are given, else numbers, whole ones or not, within a range or not."""

    name: str
    source: str  # what the file calls it
    low: float | None = None
    high: float | None = None
    whole: bool = False
    levels: tuple[str, ...] = ()

    @staticmethod
    def of(name: str, given: Any, where: str) -> "Column":
        """A checked declaration; `where` is the file it stands in."""
        place = f"{where}: column {name!r}"
        if not isinstance(given, dict):
            raise InputError(f"{place} must be a table such as [columns.{name}] with low = 0, high = 100")
        for key, value in given.items():
            if key not in KEYS:
                raise InputError(f"{place} has no setting {key!r}; {nearest(key, KEYS, 'there are')}")
            number = KEYS[key] is float and isinstance(value, int) and not isinstance(value, bool)
            if not (number or isinstance(value, KEYS[key])):
                raise InputError(f"{place}: {key} = {value!r} must be of type {KEYS[key].__name__}")
        levels = given.get("levels", [])
        if "levels" in given:
            if not all(isinstance(v, str) for v in levels) or not 2 <= len(set(levels)) == len(levels) <= MOST_LEVELS:
                raise InputError(f"{place}: levels must be 2 to {MOST_LEVELS} different texts in quotes")
            if {"low", "high", "whole"} & set(given):
                raise InputError(f"{place} has levels, so it cannot have low, high or whole; choose one kind")
        low, high = given.get("low"), given.get("high")
        if not all(v is None or abs(v) <= LARGEST_FEATURE for v in (low, high)):  # not a number is not
            raise InputError(f"{place}: low and high may be {LARGEST_FEATURE:g} at most; leave out what is not known")
        if low is not None and high is not None and not high - low > 1 / LARGEST_FEATURE:
            raise InputError(f"{place}: low = {float(low):g} must lie below high = {float(high):g}")
        return Column(
            name, given.get("column", name), None if low is None else float(low), None if high is None else float(high),
            given.get("whole", False), tuple(levels),
        )  # fmt: skip

    @property
    def features(self) -> tuple[str, ...]:
        """What it adds to a design: itself, or an indicator of every level but the first."""
        return tuple(f"{self.name}={level}" for level in self.levels[1:]) if self.levels else (self.name,)

    @property
    def bounds(self) -> Bounds:
        if self.levels:
            return dict.fromkeys(self.features, (0.0, 1.0))
        return {self.name: (self.low, self.high)} if self.low is not None and self.high is not None else {}

    def values(self, frame: pd.DataFrame, where: str) -> Array:
        """The column as numbers, levels by their place; an InputError where the file breaks the declaration."""
        place = f"{where}: column {self.source!r}"
        if self.source not in frame.columns:
            raise InputError(f"{where} has no column {self.source!r}; {nearest(self.source, map(str, frame.columns))}")
        column = frame[self.source]
        if self.levels:
            texts = column.map(lambda v: str(int(v)) if isinstance(v, float) and v.is_integer() else str(v))
            codes = pd.Index(self.levels).get_indexer(pd.Index(texts))
            if (codes < 0).any():
                odd = texts.iloc[int(np.flatnonzero(codes < 0)[0])]
                raise InputError(f"{place} holds {odd!r}, which is none of its levels ({', '.join(self.levels)})")
            return codes.astype(float)
        numbers = np.array(pd.to_numeric(column, errors="coerce"), dtype=float)  # our own: pandas may hand out a view
        if np.isnan(numbers).any():
            odd = column.iloc[int(np.flatnonzero(np.isnan(numbers))[0])]
            raise InputError(f"{place} holds {odd!r}, which is no number; mend it, or declare levels")
        wrong = np.abs(numbers) > LARGEST_FEATURE
        wrong |= (numbers < self.low) if self.low is not None else False
        wrong |= (numbers > self.high) if self.high is not None else False
        wrong |= (numbers != np.floor(numbers)) if self.whole else False
        if wrong.any():
            odd = numbers[int(np.flatnonzero(wrong)[0])]
            raise InputError(f"{place} holds {odd:g}, against its declaration ({self.kind}); mend the file or the line")
        return numbers

    @property
    def kind(self) -> str:
        if self.levels:
            return "one of " + ", ".join(self.levels)
        span = "" if self.low is None else f" from {self.low:g}"
        span += "" if self.high is None else f" to {self.high:g}"
        return ("whole numbers" if self.whole else "numbers") + span

    def fits(self, model: Model) -> str:
        """Empty where this column can be the target of the model, else what the model needs."""
        binary = self.whole and (self.low, self.high) == (0.0, 1.0)
        needs = {
            "linear": ("numbers", not self.levels),
            "logistic": ("two levels, or whole numbers from 0 to 1", len(self.levels) == 2 or binary),
            "poisson": ("whole numbers of at least 0", self.whole and self.low is not None and self.low >= 0),
            "multinomial": ("levels", len(self.levels) >= 2),
        }
        if model.name not in needs:
            return f"a table of numbers cannot feed the {model.name} model"
        need, met = needs[model.name]
        return "" if met else f"the {model.name} model needs {need}; target {self.name!r} is declared as {self.kind}"


def columns_of(given: Any, where: str) -> dict[str, Column]:
    """The declarations under [columns]."""
    if not isinstance(given, dict) or not given:
        raise InputError(f"{where} declares no columns; add tables such as [columns.age] with low = 0, high = 100")
    columns = {name: Column.of(name, value, where) for name, value in given.items()}
    seen: dict[str, str] = {}
    for column in columns.values():
        for feature in column.features:
            if feature in seen:
                raise InputError(f"{where}: columns {seen[feature]!r} and {column.name!r} both make {feature!r}")
            seen[feature] = column.name
    return columns


@dataclass(frozen=True)
class Design:
    """Which declared columns explain which: the public facts of a model's rows."""

    features: tuple[str, ...]
    target_name: str
    bounds: Bounds
    classes: tuple[str, ...]

    @staticmethod
    def of(columns: Mapping[str, Column], features: Sequence[str], target: str, model: Model) -> "Design":
        """The design for features (columns, or single indicators) and target; an InputError where it cannot be."""
        own = {feature: column for column in columns.values() for feature in column.features}
        whole = {name: column.features for name, column in columns.items()}
        if target not in columns:
            raise InputError(f"no column {target!r} is declared, which is the target; {nearest(target, columns)}")
        if problem := columns[target].fits(model):
            raise InputError(problem)
        names: list[str] = []
        for feature in features:
            found = (feature,) if feature in own else whole.get(feature, ())
            if not found:
                raise InputError(f"no column {feature!r} is declared; {nearest(feature, [*columns, *own])}")
            if own[found[0]].name == target:
                raise InputError(f"column {target!r} is the target; leave it out of the features")
            names += found
        if not names or len(set(names)) < len(names):
            raise InputError("name each feature once, and at least one" if names else "no feature is named")
        bounds = {name: pair for name in names for n, pair in own[name].bounds.items() if n == name}
        if model.scales_target:
            bounds |= columns[target].bounds
        return Design(tuple(names), target, bounds, columns[target].levels)
