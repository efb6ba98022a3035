"""A small study that tests in several folders run, and tables of errors whose truth is known."""

import math
from collections.abc import Callable
from dataclasses import replace
from itertools import product
from pathlib import Path

import numpy as np
import pandas as pd

from fedmest.studies import STUDIES
from fedmest.studies.base import PAPER_METHODS, Study
from fedmest.studies.cells import Estimator, Point
from fedmest.studies.claims import judge
from fedmest.studies.sources.simulated import Simulated
from fedmest.studies.summary import ErrorTable, Place

CALL = ["reproduce", "logistic-equal", "--reps", "2"]  # 25 cells of about 0.1 s
NUMBERS = ("results.parquet", "summary.csv")


def corner(name: str = "logistic-equal", m: tuple[int, ...] = (20, 30), n: tuple[int, ...] = (30, 50)) -> Study:
    """A few points of a registered study."""
    study = STUDIES[name]
    return replace(study, points=tuple(p for p in study.points if p.m in m and p.sizes.a in n))


def numbers(folder: Path) -> list[bytes]:
    return [(folder / name).read_bytes() for name in NUMBERS]


SIMULATIONS = [name for name, study in STUDIES.items() if isinstance(study.source, Simulated)]


# -- tables whose truth is known -----------------------------------------------------------------------------


Mse = Callable[[Point, Estimator], float]
Edit = Callable[[dict[Place, np.ndarray]], None]


def made_up(
    study: Study, mse: Mse, reps: int = 100, spread: float = 0.3, seed: int = 0, edit: Edit | None = None
) -> ErrorTable:
    """Errors with these means; their standard deviation is `spread` times the mean. `edit` may then change some."""
    places = list(product(study.points, study.estimators))
    errors = np.random.default_rng(seed).gamma(spread**-2, spread**2, (len(places), reps))
    errors *= np.array([[mse(*place)] for place in places])
    if edit is not None:
        edit(dict(zip(places, errors, strict=True)))
    facts = [(study.id, p.m, p.sizes.label, p.mu, -1 if p.K is None else p.K, e.label) for p, e in places]
    table = pd.DataFrame(facts, columns=["study", "m", "n", "mu", "K", "estimator"])
    table = table.loc[table.index.repeat(reps)].reset_index(drop=True)
    return ErrorTable(study, table.assign(repetition=np.tile(np.arange(reps), len(places)), error=errors.ravel()))


def broken_at(point: Point, estimator: Estimator, value: float = math.inf) -> Edit:
    def edit(errors: dict[Place, np.ndarray]) -> None:
        errors[point, estimator][0] = value

    return edit


def verdict(claim: str, errors: ErrorTable, calibration: str = "paper") -> str:
    return judge(claim, errors, calibration).verdict


def by_method(*means: float) -> Mse:
    """Of FedSGD, FedHybrid, FedAvg and FedNewton; one for the others."""
    return lambda point, estimator: dict(zip(PAPER_METHODS, means, strict=True)).get(estimator.method, 1.0)


def rate(point: Point, estimator: Estimator) -> float:
    return 3 / (point.m * point.sizes.mean)
