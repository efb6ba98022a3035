"""What a study computes: a point of its grid, the estimators tried there, and a block of repetitions, called a cell.

A cell is the unit of work, of storage and of resumption. All it depends on is written in it; two cells with the same
key give the same numbers on any machine of the cluster, in any order. Estimators of a cell see the same rows.
"""

import json
import math
import zlib
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

import numba
import numpy as np
from threadpoolctl import threadpool_limits

from fedmest.errors import InputError
from fedmest.federation import Index
from fedmest.fitting import fit
from fedmest.methods import METHODS
from fedmest.simulation import FEATURE_SD, TRUTH, simulate

BLOCK = 10  # repetitions in a cell


@dataclass(frozen=True)
class Sizes:
    """How many rows the sites have, and at least `least`.

    equal: `a` each; uniform: whole numbers from `a` to `b`; lognormal: `a` and `b` are mean and standard deviation of
    the logarithm. With `total`, what was drawn is scaled to that many rows over all sites.
    """

    law: Literal["equal", "uniform", "lognormal"]
    a: float
    b: float = 0.0
    total: int | None = None
    least: int = 10

    def draw(self, m: int, rng: np.random.Generator) -> Index:
        """
        >>> Sizes("equal", 1, total=100).draw(3, np.random.default_rng(0)).tolist()
        [34, 33, 33]
        """
        if self.law == "equal":
            n = np.full(m, self.a)
        elif self.law == "uniform":
            n = rng.integers(int(self.a), int(self.b) + 1, m).astype(float)
        else:
            n = rng.lognormal(self.a, self.b, m)
        if self.total is None:
            return np.maximum(np.rint(n).astype(np.int64), self.least)  # type: ignore[no-any-return]
        spare = self.total - m * self.least
        if spare < 0:
            raise InputError(f"{self.total:,} rows do not give {m:,} sites {self.least} each")
        share = spare * n / n.sum()
        whole = np.floor(share).astype(np.int64)
        whole[np.argsort(whole - share, kind="stable")[: spare - int(whole.sum())]] += 1
        return np.asarray(whole + self.least)

    @property
    def mean(self) -> float:
        """Rows of a site, on average; with `total`, before scaling."""
        if self.law == "lognormal":
            return math.exp(self.a + self.b**2 / 2)
        return self.a if self.law == "equal" else (self.a + self.b) / 2

    @property
    def label(self) -> str:
        text = {
            "equal": f"{self.a:g}",
            "uniform": f"{self.a:g} to {self.b:g}",
            "lognormal": f"lognormal({self.a:g}, {self.b:g})",
        }[self.law]
        return self.law if self.total is not None else text


@dataclass(frozen=True)
class Point:
    """One setting of a study's grid. `K` is the number of iterations; None leaves each method its own."""

    m: int
    sizes: Sizes
    mu: float = 2.0
    K: int | None = None

    def rows(self) -> float:
        return self.sizes.total or self.m * self.sizes.mean


@dataclass(frozen=True)
class Estimator:
    """A method as it is tried at a point; `mu`, where given, stands instead of the point's."""

    method: str
    calibration: str = "certified"
    mu: float | None = None

    @property
    def label(self) -> str:
        """What the stored rows are filed under, for a reader of the table.

        >>> Estimator("fedsgd", "paper", mu=math.inf).label
        'fedsgd/paper/mu=inf'
        """
        if not METHODS[self.method].private:
            return self.method
        return f"{self.method}/{self.calibration}" + (f"/mu={self.mu:g}" if self.mu is not None else "")


@dataclass(frozen=True)
class Design:
    """What the paper leaves open, the same at all points of a study."""

    model: str
    theta: tuple[float, ...]  # the intercept first
    feature_sd: float

    @classmethod
    def of(cls, model: str, theta: tuple[float, ...] | None = None, feature_sd: float | None = None) -> "Design":
        """The choices of this project, unless others are given."""
        return cls(model, theta or tuple(TRUTH.tolist()), FEATURE_SD[model] if feature_sd is None else feature_sd)


@dataclass(frozen=True)
class Cell:
    study: str
    design: Design
    point: Point
    estimators: tuple[Estimator, ...]
    first: int
    last: int  # repetitions first, ..., last - 1

    @property
    def key(self) -> str:
        """All settings as text; what is stored under one key was computed with these and no others."""
        return json.dumps(asdict(self), sort_keys=True)


@dataclass(frozen=True)
class Row:
    """One fit. `error` is the squared distance from the truth, infinite where the fit broke down: `fault` says why."""

    estimator: str
    repetition: int
    error: float
    theta: tuple[float, ...] = ()
    fault: str = ""


def cells(
    study: str, design: Design, points: tuple[Point, ...], estimators: tuple[Estimator, ...], reps: int
) -> list[Cell]:
    """The work of a study, point by point. A longer study begins with the cells of a shorter one."""
    return [
        Cell(study, design, point, estimators, first, min(first + BLOCK, reps))
        for point in points
        for first in range(0, reps, BLOCK)
    ]


def run(cell: Cell) -> list[Row]:
    """Compute a cell on one thread; cells run beside each other."""
    threads = numba.get_num_threads()
    numba.set_num_threads(1)
    try:
        with threadpool_limits(1):
            return list(_rows(cell))
    finally:
        numba.set_num_threads(threads)


def _rows(cell: Cell) -> Iterator[Row]:
    design, point = cell.design, cell.point
    truth = np.array(design.theta)
    # rows depend on sites and sizes alone, so that points which differ in mu or K are compared on the same rows
    rows_word = _word(design, replace(point, mu=0.0, K=None))
    noise_word = _word(cell.study, design, point)
    for r in range(cell.first, cell.last):
        sizes = point.sizes.draw(point.m, np.random.default_rng([rows_word, r, 0]))
        federation = simulate(design.model, sizes, [rows_word, r, 1], truth, design.feature_sd)
        for estimator in cell.estimators:
            settings = {"calibration": estimator.calibration} if METHODS[estimator.method].private else {}
            try:
                result = fit(
                    federation, design.model, estimator.method, point.mu if estimator.mu is None else estimator.mu,
                    scaling="none", seed=(noise_word << 20) + r,
                    **settings, **options(estimator.method, point.K),  # type: ignore[arg-type]
                )  # fmt: skip
            except InputError as fault:
                yield Row(estimator.label, r, math.inf, fault=str(fault))
                continue
            theta = result.theta
            yield Row(estimator.label, r, float(np.sum((theta - truth) ** 2)), tuple(theta.tolist()))


def options(method: str, K: int | None) -> dict[str, Any]:
    """Where a study counts iterations: K for each method; FedHybrid splits them 3 to 2, as the paper's 30 and 20."""
    if K is None or not METHODS[method].private:
        return {}
    if method == "fedhybrid":
        local = max(1, round(0.6 * K))
        return {"K1": local, "K2": K - local}
    return {"K": K}


def _word(*parts: object) -> int:
    return zlib.crc32(repr(parts).encode())
