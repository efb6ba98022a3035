"""Designs on images: regressions on pixels, cross-validated within each site as in the paper."""

import json
import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache

import numpy as np
import pandas as pd
from scipy.stats import rankdata

from fedmest import data
from fedmest.errors import InputError
from fedmest.federation import Federation, Index
from fedmest.fitting import fit
from fedmest.methods import METHODS
from fedmest.privacy.gdp import Array
from fedmest.result import Result
from fedmest.studies.cells import Cell, Design, Point, Row, word

FOLDS = 5


@cache
def images(name: str) -> data.Images:
    """Read once a process."""
    return data.load(name)


@dataclass(frozen=True)
class PixelRegression(Design):
    """All images, training and test split together, dealt out to sites; each site's images in five folds.

    Repetition r leaves out fold r mod 5 of partition r div 5. A score is what an estimate achieves on the fold that a
    site left out: the area under the ROC curve (odd against even digits), or the accuracy over ten classes. A site's
    error is one less its score, averaged over folds.
    """

    data: str
    model: str  # logistic: is the digit odd? multinomial: which is it?
    ridge: float

    typical = "median"

    @property
    def measure(self) -> str:  # type: ignore[override]
        return "AUC" if self.model == "logistic" else "accuracy"

    def check(self) -> None:
        if data.missing(self.data):
            data.load(self.data)  # says what is missing and how to get it

    def rows(self, cell: Cell) -> Iterator[Row]:
        point = cell.point
        seed = word(cell.study, self, point) << 20
        for r in range(cell.first, cell.last):
            held_out, federation = self._split(point, r)
            for estimator in cell.estimators:
                settings = {"calibration": estimator.calibration} if METHODS[estimator.method].private else {}
                try:
                    result = fit(
                        federation, self.model, estimator.method, point.mu if estimator.mu is None else estimator.mu,
                        scaling="none", ridge=self.ridge, seed=seed + r, **settings,  # type: ignore[arg-type]
                    )  # fmt: skip
                except InputError as fault:
                    yield Row(estimator.label, r, math.inf, fault=str(fault))
                    continue
                scores = self._scores(result, held_out)
                yield Row(estimator.label, r, 1.0 - float(np.median(scores)), scores)

    def _split(self, point: Point, r: int) -> tuple["HeldOut", Federation]:
        """What repetition r leaves out, and what it fits."""
        partition, fold = divmod(r, FOLDS)
        found = images(self.data)
        rng = np.random.default_rng([word(self.data, point.m, point.sizes), partition])
        sizes = point.sizes.draw(point.m, rng)
        rows = rng.permutation(len(found.labels))[: int(sizes.sum())]
        sites = np.repeat(np.arange(point.m), sizes)
        out = np.concatenate([rng.permutation(np.arange(n) % FOLDS) for n in sizes]) == fold
        X = found.pixels[rows] / 255.0
        y = found.labels[rows] % 2 if self.model == "logistic" else found.labels[rows]
        federation = Federation.from_arrays(X[~out], y[~out], sites[~out], degenerate="keep")
        return HeldOut(X[out], y[out], np.searchsorted(sites[out], np.arange(point.m + 1))), federation

    def _scores(self, result: Result, held_out: "HeldOut") -> tuple[float, ...]:
        """Site by site; where every site has an estimate of its own, with that."""
        scores = []
        for site in range(len(held_out.offsets) - 1):
            X, y = held_out.of_site(site)
            theta = result.coefficients if result.site_thetas is None else result.site_thetas[site]
            predictors = X @ theta[:, 1:].T + theta[:, 0]
            if self.model == "logistic":
                scores.append(area_under_curve(predictors[:, 0], y))
            else:
                scores.append(float(np.mean(predictors.argmax(axis=1) == y)))
        return tuple(scores)

    def errors(self, results: pd.DataFrame) -> Array:
        """One a site and partition: over its folds, one less the mean score. Infinite where a fit broke down."""
        partitions = results["repetition"].to_numpy() // FOLDS
        details = [json.loads(text) for text in results["detail"]]
        sites = max(map(len, details), default=0) or 1
        scores = np.array([detail or [-math.inf] * sites for detail in details])
        return np.concatenate([1.0 - scores[partitions == p].mean(axis=0) for p in np.unique(partitions)])

    def cost(self, cell: Cell) -> float:
        """Seconds a fit as measured for 70,000 images of 784 pixels."""
        seconds = {"np-pooled": 40.0, "np-local": 30.0, "fednewton": 12.0, "fedsgd": 6.0, "fedhybrid": 6.0}
        each = sum(seconds.get(estimator.method, 9.5) for estimator in cell.estimators)
        share = cell.point.rows() / 70_000 * (1.0 if self.model == "multinomial" else 0.3)
        return (cell.last - cell.first) * (7.0 + each * share)

    def told(self) -> str:
        return f"{self.data}: {self.model} regression on pixels from 0 to 1, the same ridge of {self.ridge:g} for all"


@dataclass(frozen=True)
class HeldOut:
    """Rows that no fit has seen, site by site."""

    X: Array
    y: Index
    offsets: Index

    def of_site(self, site: int) -> tuple[Array, Index]:
        own = slice(self.offsets[site], self.offsets[site + 1])
        return self.X[own], self.y[own]


def area_under_curve(scores: Array, positive: Index) -> float:
    """The chance that a positive row scores above a negative one, ties counting half (Mann and Whitney).

    >>> area_under_curve(np.array([0.1, 0.4, 0.35, 0.8]), np.array([0, 0, 1, 1]))
    0.75
    """
    yes = int(positive.sum())
    ranks = rankdata(scores)[positive == 1].sum()
    return float((ranks - yes * (yes + 1) / 2) / (yes * (len(positive) - yes)))
