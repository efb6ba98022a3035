"""What is attacked, and the rows and messages that an attacker would choose."""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from fedmest.core.typing import FloatArray
from fedmest.data.federation import Federation
from fedmest.methods import Method
from fedmest.models import Model, NetworkModel, model_named
from fedmest.queries import Role
from fedmest.runs.backend import LocalBackend
from fedmest.runs.phases.estimation import EstimationPhase
from fedmest.runs.settings import Settings
from fedmest.runs.spec import PublicFacts, RunSpec

NETWORK = "network"  # a small one, to stand for all
COLUMNS = 4


@dataclass(frozen=True)
class Scenario:
    """Two data sets that differ in their last row, and what the server may send."""

    name: str
    X: FloatArray  # the rows that both have in common
    y: FloatArray
    first: tuple[FloatArray, float]
    second: tuple[FloatArray, float]
    thetas: tuple[FloatArray, ...]

    def rows(self, other: bool, times: int = 1) -> tuple[FloatArray, FloatArray]:
        """One of the data sets, the common rows repeated `times` times."""
        x, y = self.second if other else self.first
        return np.vstack([np.tile(self.X, (times, 1)), x]), np.append(np.tile(self.y, times), y)


@dataclass
class AuditTarget:
    """A method on a model with a budget, for any number of sites that all hold the same rows."""

    kind: type[Method]
    model: str | Model
    mu: float
    calibration: str
    settings: dict[str, Any]
    options: dict[str, Any]
    backend: Callable[..., LocalBackend]
    release: str | None

    def __post_init__(self) -> None:
        self.model_name = self.model if isinstance(self.model, str) else self.model.label

    def fresh_model(self) -> Model:
        if self.model == NETWORK:
            return small_network()
        return model_named(self.model) if isinstance(self.model, str) else self.model

    def run(self, X: FloatArray, y: FloatArray, sites: npt.ArrayLike, seed: int) -> tuple[RunSpec, LocalBackend]:
        """Spec and backend of a run on these rows."""
        federation = Federation.from_arrays(X, y, sites, degenerate="keep")
        model, target = self.fresh_model().encode_target(federation)
        usual = {"scaling": "none" if self.calibration == "paper" else "private", "fit_intercept": False}
        usual = usual if model.has_coefficients else {}
        settings = Settings(**{"calibration": self.calibration, **usual, **self.settings})
        data = PublicFacts.of(federation)
        spec = RunSpec.create(data, model, self.kind, self.mu, settings, self.options)
        if model.has_coefficients and "ridge" not in self.settings:
            spec = replace(spec, settings=replace(spec.settings, ridge=_ridge(spec)))
        return spec, self.backend(federation, model, target, spec.intercept, seed)

    def scenarios(self) -> Iterator[Scenario]:
        """The rows that an attacker would choose.

        A margin: one of the thetas puts rows that have something in the first column far on the wrong side, so that
        their scores are as long as clipping lets them be and stay so in all local steps.
        """
        model = self.fresh_model()
        regression, chosen = model.has_coefficients, model.audit
        zero = np.zeros(model.with_classes(tuple(range(chosen.classes))).shape(COLUMNS) if regression else (1, COLUMNS))
        margin = zero.copy()
        margin[0, 0], margin[1:2, 0] = -1000.0, 1000.0
        thetas, responses = (margin, zero) if regression else _starts(model), chosen.extreme
        along = np.array([0.0, *[3.0 / math.sqrt(COLUMNS - 1)] * (COLUMNS - 1)])
        shift, axes = np.array([0.3, 0.0, 0.0, 0.0]), np.eye(COLUMNS)
        none, few = np.zeros((9, COLUMNS)), chosen.common(9)
        pair = ((shift + along, responses[0]), (2 * (shift - along), responses[1]))
        yield Scenario("opposite scores", none, few, *pair, thetas)
        yield Scenario("a score or none", none, few, pair[0], (0 * along, responses[1]), thetas)
        huge = ((shift + 1e6 * along, responses[0]), (2 * shift - 2e6 * along, responses[1]))
        yield Scenario("huge rows", none, few, *huge, thetas)
        level = chosen.level
        yield Scenario("orthogonal rows", none, few, (3 * axes[1], level), (6 * axes[2], level), thetas)
        if chosen.classes == 2:
            far = shift + 10 * along
            yield Scenario("the other label", none, few, (far, 1.0), (far, 0.0), thetas)
        if not regression:  # the labels of all other rows balance: the last one decides where the mean points
            yield Scenario(
                "a row that turns the mean",
                np.zeros((48, COLUMNS)),
                chosen.common(48),
                (0 * along, 1.0),
                (0 * along, 0.0),
                thetas,
            )
        if not regression or chosen.classes != 2:
            return
        ones = np.ones(19)
        weak = np.outer(ones, 0.1 * axes[1])  # hardly any curvature but for the last row
        yield Scenario("a row that carries the curvature", weak, ones, (3 * axes[1], 0.0), (3 * axes[2], 0.0), (zero,))
        spread = 1.9 * axes[np.arange(199) % COLUMNS]  # curvature 0.22 in every direction, with or without the last row
        steep = ((1.9 * axes[2], 1.0), (20 * axes[1], 1.0))
        yield Scenario("a steep row", spread, (np.arange(199) > 0).astype(float), *steep, (zero,))


def _starts(model: Model) -> tuple[FloatArray, ...]:
    """A network's random start, and zero, where all its outputs are alike."""
    start = model.start(COLUMNS + 1, 0)
    return start, np.zeros_like(start)


def _ridge(spec: RunSpec) -> float:
    """A penalty, which the server may set, that makes most of what sites send after local steps.

    Where it damps a step's gradient to w_k, the last theta tells (sum w_k)^2 / sum(w_k^2 / mu_k^2), at most sum mu_k^2.
    """
    rounds = [step for step in spec.schedule.of(EstimationPhase.name) if Role.ESTIMATE in step.query.roles]
    if not rounds:
        return 0.0

    def evidence(damping: float) -> float:
        weights = [damping ** np.arange(len(step.mus) - 1, -1, -1.0) for step in rounds]
        return sum(
            float(w.sum() ** 2 / np.sum((w / step.mus[:, 0]) ** 2)) for w, step in zip(weights, rounds, strict=True)
        )

    return float(1 - max(np.linspace(0.4, 1.0, 61), key=evidence)) / float(vars(spec.method)["eta"])


def small_network() -> NetworkModel:
    """A network of four inputs and two classes, small enough for thousands of games."""

    def layers() -> Any:
        from torch import nn

        return nn.Sequential(nn.Linear(COLUMNS, 3), nn.Tanh(), nn.Linear(3, 2))

    return NetworkModel(layers, (COLUMNS,), name=NETWORK)
