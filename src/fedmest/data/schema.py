"""Columns as they are declared in public, before anyone reads a row: numbers with their range, or categories.

A study and its sites declare the same columns. That a site's file keeps to its own declarations is checked when the
site starts; what a server learns later depends on the declarations alone, so it cannot be used to probe for values.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from fedmest.core.exceptions import InputError
from fedmest.core.files import entry, nearest
from fedmest.core.typing import Bounds, FloatArray
from fedmest.data.federation import Federation
from fedmest.data.validation import MAX_FEATURE, MAX_LEVELS


def _levels_problem(levels: tuple[str, ...]) -> str | None:
    if 2 <= len(set(levels)) == len(levels) <= MAX_LEVELS:
        return None
    return f"2 to {MAX_LEVELS} different strings"


def _limit_problem(limit: float) -> str | None:
    """Not a number fails, too."""
    return None if abs(limit) <= MAX_FEATURE else f"{MAX_FEATURE:g} at most; leave it out if it is not known"


@dataclass(frozen=True)
class Column:
    """One declared column: categories where `levels` are given, else numbers.

    Parameters
    ----------
    name : str
        Name of the table: "age" of [columns.age].
    source : str, optional
        Name in the data file (key `column`), if it is another.
    low, high : float, optional
        Range of a column of numbers.
    whole : bool
        All numbers are whole ones.
    levels : tuple of str
        Categories; the first is the reference.
    """

    name: str = entry(table_name=True)
    source: str = entry("", key="column")
    low: float | None = entry(None, check=_limit_problem)
    high: float | None = entry(None, check=_limit_problem)
    whole: bool = False
    levels: tuple[str, ...] = entry((), check=_levels_problem)

    def __post_init__(self) -> None:
        if not self.source:
            object.__setattr__(self, "source", self.name)
        if self.levels and (self.low is not None or self.high is not None or self.whole):
            raise InputError("a column with levels cannot have low, high or whole; choose one kind")
        if self.low is not None and self.high is not None and not self.high - self.low > 1 / MAX_FEATURE:
            raise InputError(f"low = {self.low:g} must lie below high = {self.high:g}")

    @property
    def features(self) -> tuple[str, ...]:
        """Names of its features in a design: itself, or an indicator of every level but the first."""
        return tuple(f"{self.name}={level}" for level in self.levels[1:]) if self.levels else (self.name,)

    @property
    def bounds(self) -> Bounds:
        """Declared ranges of its features."""
        if self.levels:
            return dict.fromkeys(self.features, (0.0, 1.0))
        return {self.name: (self.low, self.high)} if self.low is not None and self.high is not None else {}

    def values(self, frame: pd.DataFrame, where: str) -> FloatArray:
        """Column of a data frame as numbers, levels by their place; an InputError where it breaks the declaration."""
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
        numbers = np.array(pd.to_numeric(column, errors="coerce"), dtype=float)  # a copy: pandas may return a view
        if np.isnan(numbers).any():
            odd = column.iloc[int(np.flatnonzero(np.isnan(numbers))[0])]
            raise InputError(f"{place} holds {odd!r}, which is not a number; fix it, or declare levels")
        wrong = np.abs(numbers) > MAX_FEATURE
        wrong |= (numbers < self.low) if self.low is not None else False
        wrong |= (numbers > self.high) if self.high is not None else False
        wrong |= (numbers != np.floor(numbers)) if self.whole else False
        if wrong.any():
            odd = numbers[int(np.flatnonzero(wrong)[0])]
            raise InputError(
                f"{place} holds {odd:g}, against its declaration ({self.kind}); fix the file or the declaration"
            )
        return numbers

    @property
    def kind(self) -> str:
        """The declaration in words: "whole numbers from 0 to 1"."""
        if self.levels:
            return "one of " + ", ".join(self.levels)
        span = "" if self.low is None else f" from {self.low:g}"
        span += "" if self.high is None else f" to {self.high:g}"
        return ("whole numbers" if self.whole else "numbers") + span


@dataclass(frozen=True, kw_only=True)
class TargetRule:
    """What a model's response may be: numbers within a range, classes, or either.

    Attributes
    ----------
    declared : str
        What a declared column must be, in words; empty for models whose rows are no declared columns.
    numbers : str
        What numbers must be, in words; empty where numbers are labels like any others.
    low, high : float
        Range of the numbers.
    low_included : bool
        Whether `low` itself is one of them.
    whole : bool
        Whether only whole numbers are responses.
    max_classes : int
        Largest number of classes; 0 where responses are numbers alone.
    scaled : bool
        Whether the response is brought to unit scale like a feature.
    hint : str
        What to try where there are too many classes.
    """

    declared: str
    numbers: str = ""
    low: float = -math.inf
    high: float = math.inf
    low_included: bool = True
    whole: bool = False
    max_classes: int = 0
    scaled: bool = False
    hint: str = ""

    def accepts(self, column: Column) -> bool:
        """Whether every value that a declaration allows is a response of the model.

        Parameters
        ----------
        column : Column
            The declared target.

        Returns
        -------
        bool
        """
        if column.levels:
            return len(column.levels) <= self.max_classes
        if not self.numbers or (self.whole and not column.whole):
            return False
        low = -math.inf if column.low is None else column.low
        high = math.inf if column.high is None else column.high
        return (low >= self.low if self.low_included else low > self.low) and high <= self.high

    def problem(self, column: Column, model: str) -> str:
        """Reason why a column cannot be the target of a model.

        Parameters
        ----------
        column : Column
            The declared target.
        model : str
            Name of the model, for the message.

        Returns
        -------
        str
            What the model needs; empty if the column can be its target.
        """
        if self.accepts(column):
            return ""
        if not self.declared:
            return f"a table of numbers cannot feed the {model} model"
        return f"the {model} model needs {self.declared}; target {column.name!r} is declared as {column.kind}"

    def encode(
        self, federation: Federation, model: str, classes: tuple[Any, ...] = ()
    ) -> tuple[tuple[Any, ...], FloatArray]:
        """Classes, and responses as numbers; a class is its place among the classes.

        Parameters
        ----------
        federation : Federation
            Holds the target.
        model : str
            Name of the model, for messages.
        classes : tuple, optional
            Classes in order; by default the sorted values of the target.

        Returns
        -------
        classes : tuple
            Empty where responses are numbers.
        y : FloatArray
            Responses.

        Raises
        ------
        InputError
            If a value is not possible; the message names it and the site.
        """
        labels = federation.target.dtype.kind not in "fiub"
        if self.numbers and not (labels and self.max_classes):
            return classes, self._numbers(federation, model, labels)
        values = federation.target.astype(str) if labels else federation.target
        found, codes = np.unique(values, return_inverse=True)
        levels = tuple(level.item() if hasattr(level, "item") else level for level in found)
        if classes:
            places = [classes.index(level) if level in classes else -1 for level in levels]
            coded = np.array(places, dtype=float)[codes]
            if (coded < 0).any():
                raise self._error(federation, coded < 0, model, "one of " + ", ".join(map(str, classes)))
            return classes, coded
        if len(levels) < 2:
            raise self._constant(federation)
        if len(levels) > self.max_classes:
            raise InputError(
                f"target {federation.target_name!r} has {len(levels)} distinct values; the {model} model takes at most "
                f"{self.max_classes} classes{self.hint and f' ({self.hint})'}"
            )
        return levels, codes.astype(float)

    def _numbers(self, federation: Federation, model: str, labels: bool) -> FloatArray:
        if labels:
            raise InputError(
                f"target {federation.target_name!r} holds text such as {federation.target[0]!r}; the {model} model "
                f"needs {self.numbers}"
            )
        y = np.ascontiguousarray(federation.target, dtype=float)
        wrong = ((y < self.low) if self.low_included else (y <= self.low)) | (y > self.high)
        if self.whole:
            wrong |= y != np.floor(y)
        if wrong.any():
            raise self._error(federation, wrong, model, self.numbers)
        if self.max_classes and y.min() == y.max():
            raise self._constant(federation)
        return y

    @staticmethod
    def _error(federation: Federation, wrong: npt.NDArray[np.bool_], model: str, need: str) -> InputError:
        """The error for the first value that the model cannot take."""
        row = int(np.flatnonzero(wrong)[0])
        site = federation.sites[np.searchsorted(federation.offsets, row, side="right") - 1]
        return InputError(
            f"target {federation.target_name!r}, site {site!r}: value {federation.target[row]!s} does not fit the "
            f"{model} model, which needs {need}"
        )

    @staticmethod
    def _constant(federation: Federation) -> InputError:
        value = federation.target[0]
        text = f"{value:g}" if federation.target.dtype.kind in "fiu" else str(value)
        return InputError(
            f"target {federation.target_name!r} is {text} in every row of every site; nothing to estimate"
        )


NO_TABLE = TargetRule(declared="")  # of models whose rows are no declared columns


COLUMN_EXAMPLE = "[columns.age] with low = 0, high = 100"


def check_columns(columns: Mapping[str, Column]) -> None:
    """Check of an `entry` of declared columns: at least one, and no two that make the same feature."""
    if not columns:
        raise InputError(f"no column is declared; add tables such as {COLUMN_EXAMPLE}")
    seen: dict[str, str] = {}
    for column in columns.values():
        for feature in column.features:
            if feature in seen:
                raise InputError(f"columns {seen[feature]!r} and {column.name!r} both make {feature!r}")
            seen[feature] = column.name


def columns_entry() -> Any:
    """The dataclass field of the tables [columns.NAME], in a policy and in a study."""
    return entry(check=check_columns, example=COLUMN_EXAMPLE)


@dataclass(frozen=True)
class DesignSpec:
    """Features and target of a model, from declared columns: the public facts of its rows."""

    features: tuple[str, ...]
    target_name: str
    bounds: Bounds
    classes: tuple[str, ...]

    @staticmethod
    def of(
        columns: Mapping[str, Column], features: Sequence[str], target: str, rule: TargetRule, model: str
    ) -> "DesignSpec":
        """Design for features (columns, or single indicators) and target; an InputError where they do not fit."""
        own = {feature: column for column in columns.values() for feature in column.features}
        whole = {name: column.features for name, column in columns.items()}
        if target not in columns:
            raise InputError(f"no column {target!r} is declared, which is the target; {nearest(target, columns)}")
        if problem := rule.problem(columns[target], model):
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
        if rule.scaled:
            bounds |= columns[target].bounds
        return DesignSpec(tuple(names), target, bounds, columns[target].levels)
