"""From fits to means: errors by study, point and estimator, and contrasts of their logarithms with standard errors."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
from scipy import stats

from fedmest.core.typing import FloatArray
from fedmest.methods import METHODS
from fedmest.studies.base import Study
from fedmest.studies.cells import Estimator, Point

Place = tuple[Point, Estimator]


@dataclass(frozen=True)
class Contrast:
    """A sum of c log(error), such as a slope or a log ratio, with its standard error. Errors are means or medians."""

    label: str
    value: float
    se: float
    repetitions: int

    def limits(self, confidence: float) -> tuple[float, float]:
        reach = float(stats.t.ppf((1 + confidence) / 2, max(self.repetitions - 1, 1))) * self.se
        return self.value - reach, self.value + reach


class ErrorTable:
    """Errors of one study, an array over repetitions (or sites) for each place on its grid."""

    def __init__(self, study: Study, table: pd.DataFrame) -> None:
        self.study = study
        own = table[table["study"] == study.id] if len(table) else table
        grouped = (
            {key: study.source.errors(p) for key, p in own.groupby(["m", "n", "mu", "K", "estimator"], sort=False)}
            if len(own)
            else {}
        )
        self._errors: dict[Place, FloatArray] = {}
        for point in study.points:
            for estimator in study.estimators:
                key = (point.m, point.sizes.label, point.mu, -1 if point.K is None else point.K, estimator.label)
                if key in grouped:
                    self._errors[point, estimator] = grouped[key]

    def __bool__(self) -> bool:
        """Whether every place has been computed."""
        return len(self._errors) == len(self.study.points) * len(self.study.estimators)

    def at(self, point: Point, estimator: Estimator) -> FloatArray:
        return self._errors[point, estimator]

    def mse(self, point: Point, estimator: Estimator) -> tuple[float, float]:
        """Mean over repetitions and its standard error."""
        errors = self.at(point, estimator)
        if not np.isfinite(errors).all():
            return math.inf, math.nan
        return float(errors.mean()), float(errors.std(ddof=1) / math.sqrt(len(errors))) if len(errors) > 1 else math.nan

    def finite(self, calibration: str) -> bool:
        """Whether no private fit by the paper's methods broke down under this calibration."""
        return all(
            np.isfinite(errors).all()
            for (_, estimator), errors in self._errors.items()
            if METHODS[estimator.method].in_paper and METHODS[estimator.method].private
            if estimator.calibration == calibration
        )

    def contrast(self, label: str, weights: Mapping[Place, float]) -> Contrast:
        """sum of weight * log(error), standard error by the delta method, repetition by repetition.

        Places that share rows are compared on them: what they have in common cancels in the sum over places.
        """
        places = [(self.at(*place), weight) for place, weight in weights.items()]
        reps = min(len(errors) for errors, _ in places)
        if not all(np.isfinite(errors).all() for errors, _ in places):
            return Contrast(label, math.nan, math.nan, reps)
        centre = np.mean if self.study.source.typical == "mean" else np.median
        value = math.fsum(weight * math.log(centre(errors)) for errors, weight in places)
        pull = sum((weight * self._pull(errors)[:reps] for errors, weight in places), np.zeros(reps))
        se = float(pull.std(ddof=1) / math.sqrt(reps)) if reps > 1 else math.inf
        return Contrast(label, value, se, reps)

    def _pull(self, errors: FloatArray) -> FloatArray:
        """How much each error moves the logarithm of their mean, or of their median (its influence function)."""
        if self.study.source.typical == "mean":
            return np.asarray(errors / errors.mean())
        low, middle, high = np.quantile(errors, (0.3, 0.5, 0.7))
        density = 0.4 / max(high - low, 1e-300)
        return np.asarray((np.sign(errors - middle) / 2) / density / middle)

    def frame(self) -> pd.DataFrame:
        """One row per place: mean, standard error, median, and how many fits broke down."""
        lines = []
        for (point, estimator), errors in self._errors.items():
            mse, se = self.mse(point, estimator)
            lines.append({
                "study": self.study.id, "m": point.m, "n": point.sizes.label, "mu": point.mu, "K": point.K,
                "estimator": estimator.label, "repetitions": len(errors), "mean": mse, "se": se,
                "median": float(np.median(errors)), "broke_down": int((~np.isfinite(errors)).sum()),
            })  # fmt: skip
        return pd.DataFrame(lines).astype({"K": "Int64"}) if lines else pd.DataFrame()


def power(x: float) -> str:
    """A very large or small number in about three characters.

    >>> power(4.04e7), power(5.4e-5), power(2e12)
    ('4e7', '5e-5', '2e12')
    """
    return f"{x:.0e}".replace("e+0", "e").replace("e-0", "e-").replace("e+", "e")


def slope(places: Sequence[Place], x: Sequence[float]) -> dict[Place, float]:
    """Weights of the least-squares slope of log(MSE) on log(x)."""
    u = np.log(x)
    u = (u - u.mean()) / np.sum((u - u.mean()) ** 2)
    return dict(zip(places, u.tolist(), strict=True))


def ratio(above: Sequence[Place], below: Sequence[Place]) -> dict[Place, float]:
    """Weights of the log ratio of MSEs, averaged over places."""
    return {**dict.fromkeys(above, 1 / len(above)), **dict.fromkeys(below, -1 / len(below))}
