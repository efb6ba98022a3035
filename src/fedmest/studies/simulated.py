"""Designs whose rows are drawn from the model itself, so that estimates can be held against the truth."""

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from fedmest.errors import InputError
from fedmest.fitting import fit
from fedmest.methods import METHODS
from fedmest.simulation import FEATURE_SD, TRUTH, simulate
from fedmest.studies.cells import Cell, Design, Row, options, word


@dataclass(frozen=True, repr=False)
class Simulated(Design):
    """What the paper leaves open, the same at all points of a study. The error is the squared distance from theta."""

    model: str
    theta: tuple[float, ...]  # the intercept first
    feature_sd: float

    measure = "mean squared error"

    def __repr__(self) -> str:
        """Rows and noise are seeded by this text: change it, and all numbers of `docs/studies` change."""
        return f"Design(model={self.model!r}, theta={self.theta!r}, feature_sd={self.feature_sd!r})"

    @classmethod
    def of(cls, model: str, theta: tuple[float, ...] | None = None, feature_sd: float | None = None) -> "Simulated":
        """The choices of this project, unless others are given."""
        return cls(model, theta or tuple(TRUTH.tolist()), FEATURE_SD[model] if feature_sd is None else feature_sd)

    def rows(self, cell: Cell) -> Iterator[Row]:
        point, truth = cell.point, np.array(self.theta)
        # rows depend on sites and sizes alone, so that points which differ in mu or K are compared on the same rows
        rows_word = word(self, replace(point, mu=0.0, K=None))
        noise_word = word(cell.study, self, point)
        for r in range(cell.first, cell.last):
            sizes = point.sizes.draw(point.m, np.random.default_rng([rows_word, r, 0]))
            federation = simulate(self.model, sizes, [rows_word, r, 1], truth, self.feature_sd)
            for estimator in cell.estimators:
                settings = {"calibration": estimator.calibration} if METHODS[estimator.method].private else {}
                try:
                    result = fit(
                        federation, self.model, estimator.method, point.mu if estimator.mu is None else estimator.mu,
                        scaling="none", seed=(noise_word << 20) + r,
                        **settings, **options(estimator.method, point.K),  # type: ignore[arg-type]
                    )  # fmt: skip
                except InputError as fault:
                    yield Row(estimator.label, r, math.inf, fault=str(fault))
                    continue
                theta = result.theta
                yield Row(estimator.label, r, float(np.sum((theta - truth) ** 2)), tuple(theta.tolist()))

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

    def told(self) -> str:
        return (
            f"{self.model}: coefficients {', '.join(f'{t:g}' for t in self.theta)} (the intercept first), features "
            f"normal with standard deviation {self.feature_sd:g}"
        )
