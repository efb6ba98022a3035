"""Images: regressions on pixels, cross-validated within sites, and networks, scored on the test split."""

import json
import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
from scipy.stats import rankdata

from fedmest.core.exceptions import ConvergenceError, InputError
from fedmest.core.typing import FloatArray, IntArray
from fedmest.data import datasets as data
from fedmest.data.federation import Federation
from fedmest.methods import METHODS
from fedmest.models import Model, NetworkModel, model_named
from fedmest.models.grad_sample import need_torch
from fedmest.runs.fit import fit
from fedmest.runs.result import Result
from fedmest.runs.runner import RoundInfo
from fedmest.studies.cells import Cell, DataSource, FitRecord, Point, study_seed

FOLDS = 5
EVALUATIONS = 5  # of the accuracy of a network during a run
WIDEST = {"mnist-cnn": 7, "cifar-cnn": 10}  # the layer with nearly all the weights


@cache
def images(name: str) -> data.Images:
    """The images, read once per process."""
    return data.load(name)


def need_images(name: str) -> None:
    """Raise an InputError if the files are missing, without reading them."""
    if data.missing(name):
        data.load(name)  # raises an error that tells how to get them


@dataclass(frozen=True)
class PixelRegression(DataSource):
    """All images, training and test split together, dealt out to sites; each site's images in five folds.

    Repetition r leaves out fold r mod 5 of partition r div 5. A score is what an estimate achieves on the fold that a
    site left out: the area under the ROC curve (odd against even digits), or the accuracy over ten classes. A site's
    error is one minus its score, averaged over folds.
    """

    data: str
    model: str  # logistic: is the digit odd? multinomial: which is it?
    ridge: float

    typical = "median"

    def key(self) -> str:
        return f"PixelRegression(data={self.data!r}, model={self.model!r}, ridge={self.ridge!r})"

    @property
    def measure(self) -> str:  # type: ignore[override]
        return "AUC" if self.model == "logistic" else "accuracy"

    def check(self) -> None:
        need_images(self.data)

    def compute(self, cell: Cell) -> Iterator[FitRecord]:
        point = cell.point
        seed = study_seed(cell.study, self, point) << 20
        for r in range(cell.first, cell.last):
            held_out, federation = self._split(point, r)
            for estimator in cell.estimators:
                settings = {"calibration": estimator.calibration} if METHODS[estimator.method].private else {}
                try:
                    result = fit(
                        federation,
                        self.model,
                        estimator.method,
                        point.mu if estimator.mu is None else estimator.mu,
                        scaling="none",
                        ridge=self.ridge,
                        seed=seed + r,
                        **settings,  # type: ignore[arg-type]
                    )
                except (InputError, ConvergenceError) as error:
                    yield FitRecord(estimator.label, r, math.inf, failure=str(error))
                    continue
                scores = self._scores(result, held_out)
                yield FitRecord(estimator.label, r, 1.0 - float(np.median(scores)), scores)

    def _split(self, point: Point, r: int) -> tuple["HeldOut", Federation]:
        """What repetition r leaves out, and what it fits."""
        partition, fold = divmod(r, FOLDS)
        found = images(self.data)
        rng = np.random.default_rng([study_seed(self.data, point.m, point.sizes), partition])
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
            theta = result.coef_matrix if result.site_params is None else result.site_params[site]
            predictors = X @ theta[:, 1:].T + theta[:, 0]
            if self.model == "logistic":
                scores.append(area_under_curve(predictors[:, 0], y))
            else:
                scores.append(float(np.mean(predictors.argmax(axis=1) == y)))
        return tuple(scores)

    def errors(self, results: pd.DataFrame) -> FloatArray:
        """One per site and partition: one minus the mean score over its folds. Infinite where a fit broke down."""
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

    def describe(self) -> str:
        return f"{self.data}: {self.model} regression on pixels from 0 to 1, the same ridge of {self.ridge:g} for all"


@dataclass(frozen=True)
class NetworkTraining(DataSource):
    """Images of the training split dealt out to sites, each of which trains on four fifths of its own.

    The paper puts a tenth aside for validation and a tenth for a local test; neither is used. FedAvg has `rounds` of
    `steps` local steps; FedSGD and FedHybrid as many gradients in all, FedNewton-Iter as many local steps. The error
    is one minus the accuracy on the official test images after the last round; `detail` has the accuracy on the way.
    """

    data: str
    model: str
    rounds: int
    steps: int  # local steps per round
    eta: float
    server_eta: float
    clip_norm: float
    participation: float = 0.1

    measure = "accuracy"

    def key(self) -> str:
        return (
            f"NetworkTraining(data={self.data!r}, model={self.model!r}, rounds={self.rounds!r}, steps={self.steps!r}, "
            f"eta={self.eta!r}, server_eta={self.server_eta!r}, bound={self.clip_norm!r}, "
            f"participation={self.participation!r})"
        )

    def check(self) -> None:
        need_torch()
        need_images(self.data)

    def options(self, method: str) -> dict[str, Any]:
        """What makes the paper's methods comparable: the same number of gradients at every participating site."""
        total = self.rounds * self.steps
        local = {"K": self.steps, "eta": self.eta, "server_eta": self.server_eta}
        return {
            "fedsgd": {"K": total, "eta": self.eta},
            "fedhybrid": {"K1": self.steps, "K2": total - self.steps, "eta": self.eta},
            "fedavg": {"R": self.rounds, **local},
            "fednewton-iter": {"cycles": 2, "R": self.rounds // 2, **local},
        }[method]

    def settings(self, method: str, point: Point) -> tuple[Model, dict[str, Any]]:
        """The network, and how it is trained. FedSGD-M is ours: three gradients of every site, one site per round.

        Noise walks at random through theta, as far as the step size times sqrt(m) / n lets it: steps are those of
        `benchmarks/recipe.py`, where m = 100 and n = 600, scaled to walk as far as there. All of it is public.
        """
        model = model_named(self.model)
        if method != "fedsgd-m":
            return model, {**self.options(method), "clip_norm": self.clip_norm, "participation": self.participation}
        assert isinstance(model, NetworkModel)
        scale = point.rows() / point.m / 600 * math.sqrt(100 / point.m)
        ours = {"K": 3 * point.m, "eta": scale, "momentum": 0.9, "average": 3 * point.m // 10, "clip_norm": 0.3}
        held = NetworkModel(model.layers, model.row_shape, model.name, (WIDEST[self.model],))
        return held, {**ours, "participation": 1.0 / point.m}

    def compute(self, cell: Cell) -> Iterator[FitRecord]:
        point = cell.point
        found = images(self.data)
        test = slice(found.n_train, None)
        X_test, y_test = scaled(found.pixels[test]), found.labels[test]
        seed = study_seed(cell.study, self, point) << 20
        for r in range(cell.first, cell.last):
            federation = self._federation(point, r)
            for estimator in cell.estimators:
                model, settings = self.settings(estimator.method, point)
                path: list[float] = []

                def watch(info: RoundInfo, model: Model = model, path: list[float] = path) -> None:
                    done, of = info.round, info.rounds
                    if info.params is not None and done * EVALUATIONS // of > (done - 1) * EVALUATIONS // of:
                        classes = model.predictors(X_test, info.params, False).argmax(axis=1)
                        path.append(float(np.mean(classes == y_test)))

                try:
                    fit(
                        federation,
                        model,
                        estimator.method,
                        point.mu if estimator.mu is None else estimator.mu,
                        calibration=estimator.calibration,
                        seed=seed + r,
                        callback=watch,
                        **settings,
                    )
                except (InputError, ConvergenceError) as error:
                    yield FitRecord(estimator.label, r, math.inf, failure=str(error))
                    continue
                yield FitRecord(estimator.label, r, 1.0 - path[-1], tuple(path))

    def _federation(self, point: Point, r: int) -> Federation:
        found = images(self.data)
        rng = np.random.default_rng([study_seed(self.data, point.m, point.sizes), r])
        sizes = point.sizes.draw(point.m, rng)
        rows = rng.permutation(found.n_train)[: int(sizes.sum())]
        trains = np.concatenate([np.arange(n) < n - 2 * round(0.1 * n) for n in sizes])
        sites = np.repeat(np.arange(point.m), sizes)
        X, y = scaled(found.pixels[rows[trains]]), found.labels[rows[trains]]
        return Federation.from_arrays(X, y, sites[trains], degenerate="keep")

    def cost(self, cell: Cell) -> float:
        """Gradients of rows, as measured for the two networks of the paper."""
        each = {"mnist-cnn": 0.85e-3, "cifar-cnn": 1.3e-3}[self.model] * 0.8 * cell.point.rows()
        passes = {"fedsgd-m": 3.0}
        whole = sum(passes.get(e.method, self.participation * self.rounds * self.steps) for e in cell.estimators)
        return (cell.last - cell.first) * (10.0 + each * whole)

    def describe(self) -> str:
        return (
            f"{self.data}: {self.rounds} rounds of {self.steps} local steps, learning rate {self.eta:g}, of the server "
            f"{self.server_eta:g}, rows clipped at {self.clip_norm:g}, {self.participation:.0%} of the sites per "
            "round, pixels from -1 to 1"
        )


def scaled(pixels: npt.NDArray[np.uint8]) -> FloatArray:
    """From -1 to 1, by the format alone and not by what the images are like."""
    return pixels / 127.5 - 1.0


@dataclass(frozen=True)
class HeldOut:
    """Rows that no fit has seen, site by site."""

    X: FloatArray
    y: IntArray
    offsets: IntArray

    def of_site(self, site: int) -> tuple[FloatArray, IntArray]:
        own = slice(self.offsets[site], self.offsets[site + 1])
        return self.X[own], self.y[own]


def area_under_curve(scores: FloatArray, positive: IntArray) -> float:
    """The chance that a positive row scores above a negative one, ties counting half (Mann and Whitney).

    >>> area_under_curve(np.array([0.1, 0.4, 0.35, 0.8]), np.array([0, 0, 1, 1]))
    0.75
    """
    yes = int(positive.sum())
    ranks = rankdata(scores)[positive == 1].sum()
    return float((ranks - yes * (yes + 1) / 2) / (yes * (len(positive) - yes)))
