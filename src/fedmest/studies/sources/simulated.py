"""Rows drawn from the model itself, so that estimates can be compared with the truth."""

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from fedmest.core.exceptions import ConvergenceError, InputError
from fedmest.methods import METHODS
from fedmest.models.simulate import TRUTH, simulate, usual_feature_sd
from fedmest.runs.fit import fit
from fedmest.studies.cells import Cell, DataSource, FitRecord, options, study_seed


@dataclass(frozen=True)
class Simulated(DataSource):
    """Simulated rows, the same law at all points of a study. The error is the squared distance from theta."""

    model: str
    theta: tuple[float, ...]  # the intercept first
    feature_sd: float

    measure = "mean squared error"

    def key(self) -> str:
        """Rows and noise are seeded by this text: change it, and all numbers of `docs/studies` change."""
        return f"Design(model={self.model!r}, theta={self.theta!r}, feature_sd={self.feature_sd!r})"

    @classmethod
    def create(cls, model: str, theta: tuple[float, ...] | None = None, feature_sd: float | None = None) -> "Simulated":
        """With this project's defaults for what is not given: the paper leaves it open."""
        return cls(model, theta or tuple(TRUTH.tolist()), usual_feature_sd(model) if feature_sd is None else feature_sd)

    def compute(self, cell: Cell) -> Iterator[FitRecord]:
        point, truth = cell.point, np.array(self.theta)
        # rows depend on sites and sizes alone, so that points which differ in mu or K are compared on the same rows
        rows_seed = study_seed(self, replace(point, mu=0.0, K=None))
        noise_seed = study_seed(cell.study, self, point)
        for r in range(cell.first, cell.last):
            sizes = point.sizes.draw(point.m, np.random.default_rng([rows_seed, r, 0]))
            federation = simulate(self.model, sizes, [rows_seed, r, 1], truth, self.feature_sd)
            for estimator in cell.estimators:
                settings: dict[str, Any] = (
                    {"calibration": estimator.calibration} if METHODS[estimator.method].private else {}
                )
                try:
                    result = fit(
                        federation,
                        self.model,
                        estimator.method,
                        point.mu if estimator.mu is None else estimator.mu,
                        scaling="none",
                        seed=(noise_seed << 20) + r,
                        **settings,
                        **options(estimator.method, point.K),
                    )
                except (InputError, ConvergenceError) as error:
                    yield FitRecord(estimator.label, r, math.inf, failure=str(error))
                    continue
                theta = result.coef_matrix[0]
                yield FitRecord(estimator.label, r, float(np.sum((theta - truth) ** 2)), tuple(theta.tolist()))

    def cost(self, cell: Cell) -> float:
        """Rows, steps and fits as measured."""
        point, rows = cell.point, cell.point.rows()
        seconds = 2e-3 + 1.5e-7 * rows
        for estimator in cell.estimators:
            counts = self.model == "poisson" and estimator.calibration == "certified"
            steps = 5 if estimator.method in ("np-pooled", "fedirls") else point.K or 50
            local = estimator.method in ("fedavg", "fednewton")
            every_step = 3e-5 + 5e-7 * point.m if local else 1.8e-4
            rounds = 2 if estimator.method == "fedavg" else 1
            seconds += 2.5e-3 + rounds * steps * (every_step + rows * (3.2e-8 if counts else 7e-9))
        return (cell.last - cell.first) * seconds

    def describe(self) -> str:
        return (
            f"{self.model}: coefficients {', '.join(f'{t:g}' for t in self.theta)} (the intercept first), features "
            f"normal with standard deviation {self.feature_sd:g}"
        )
