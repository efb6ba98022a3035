"""What a study computes: a point of its grid, estimators tried there, and a block of repetitions, called a cell.

A cell is the unit of work, of storage and of resumption. All it depends on is written in it; two cells with the same
key give the same numbers on any machine of the cluster, in any order. Estimators of a cell see the same rows.
"""

import json
import math
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numba
import numpy as np
import pandas as pd
from threadpoolctl import threadpool_limits

from fedmest.core.exceptions import InputError
from fedmest.core.typing import FloatArray, IntArray
from fedmest.methods import METHODS


@dataclass(frozen=True)
class Sizes:
    """Law of the numbers of rows at the sites, each at least `least`.

    equal: `a` each; uniform: whole numbers from `a` to `b`; lognormal: `a` and `b` are mean and standard deviation of
    the logarithm. With `total`, what was drawn is scaled to that many rows over all sites.
    """

    law: Literal["equal", "uniform", "lognormal"]
    a: float
    b: float = 0.0
    total: int | None = None
    least: int = 10

    def key(self) -> str:
        """Text that rows are seeded by; it stays as it is whatever classes and fields are called."""
        return f"Sizes(law={self.law!r}, a={self.a!r}, b={self.b!r}, total={self.total!r}, least={self.least!r})"

    def draw(self, m: int, rng: np.random.Generator) -> IntArray:
        """Draw the sizes of m sites.

        Examples
        --------
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

    def key(self) -> str:
        """Text that rows and noise are seeded by; it stays as it is whatever classes and fields are called."""
        return f"Point(m={self.m!r}, sizes={self.sizes.key()}, mu={self.mu!r}, K={self.K!r})"

    def rows(self) -> float:
        """Rows of all sites, on average."""
        return self.sizes.total or self.m * self.sizes.mean


@dataclass(frozen=True)
class Estimator:
    """A method as it is tried at a point; `mu`, where given, replaces the point's."""

    method: str
    calibration: str = "certified"
    mu: float | None = None

    @property
    def label(self) -> str:
        """The name of the estimator in tables of results.

        >>> Estimator("fedsgd", "paper", mu=math.inf).label
        'fedsgd/paper/mu=inf'
        """
        if not METHODS[self.method].private:
            return self.method
        return f"{self.method}/{self.calibration}" + (f"/mu={self.mu:g}" if self.mu is not None else "")


class DataSource:
    """Where the rows of a study come from and what is measured on them; subclasses are frozen dataclasses.

    All that numbers depend on must be in the fields and in `key`, which is part of a cell's key.
    """

    measure: ClassVar[str]  # what the figures show
    typical: ClassVar[Literal["mean", "median"]] = "mean"  # of the errors: what the claims are about

    def key(self) -> str:
        """Text that rows and noise are seeded by; it stays as it is whatever classes and fields are called."""
        raise NotImplementedError

    def check(self) -> None:
        """Raise an InputError before hours of work if something that they need is missing."""

    def compute(self, cell: "Cell") -> Iterator["FitRecord"]:
        """The fits of a cell, repetition by repetition, estimators in their order."""
        raise NotImplementedError

    def errors(self, results: pd.DataFrame) -> FloatArray:
        """The errors that are summed up and compared, from the stored results of one estimator at one point."""
        return results["error"].to_numpy()

    def cost(self, cell: "Cell") -> float:
        """Estimated seconds on one core, for `--list` and the time left."""
        raise NotImplementedError

    def describe(self) -> str:
        """One sentence for the page, without its full stop."""
        raise NotImplementedError


@dataclass(frozen=True)
class Cell:
    """The unit of work: some estimators and repetitions at one point of a study's grid."""

    study: str
    source: DataSource
    point: Point
    estimators: tuple[Estimator, ...]
    first: int
    last: int  # repetitions first, ..., last - 1

    def key(self) -> str:
        """All settings as JSON; what is stored under one key was computed with these and no others."""
        facts = {
            "study": self.study,
            "source": self.source.key(),
            "point": self.point.key(),
            "estimators": [[e.method, e.calibration, e.mu] for e in self.estimators],
            "first": self.first,
            "last": self.last,
        }
        return json.dumps(facts)

    def cost(self) -> float:
        """Estimated seconds on one core."""
        return self.source.cost(self)


@dataclass(frozen=True)
class FitRecord:
    """One fit. `error` is infinite where it broke down; `failure` says why.

    `detail` is what lies behind the error: coefficients in simulations, scores site by site or round by round else.
    """

    estimator: str
    repetition: int
    error: float
    detail: tuple[float, ...] = ()
    failure: str = ""


def run(cell: Cell) -> list[FitRecord]:
    """Compute a cell on one thread; cells run beside each other."""
    threads = numba.get_num_threads()
    numba.set_num_threads(1)
    try:
        with threadpool_limits(1):
            return list(cell.source.compute(cell))
    finally:
        numba.set_num_threads(threads)


def options(method: str, K: int | None) -> dict[str, Any]:
    """Options of a method that runs K iterations; FedHybrid splits them 3 to 2, like the paper's 30 and 20."""
    if K is None or not METHODS[method].private:
        return {}
    if method == "fedhybrid":
        local = max(1, round(0.6 * K))
        return {"K1": local, "K2": K - local}
    return {"K": K}


def study_seed(*parts: str | int | Sizes | Point | DataSource) -> int:
    """A seed of 32 bits from what the draws may depend on."""
    texts = (repr(part) if isinstance(part, (str, int)) else part.key() for part in parts)
    return zlib.crc32(f"({', '.join(texts)})".encode())
