"""What is attacked, and the rows and messages that an attacker would choose."""

import math
from collections.abc import Callable, Iterator
from copy import copy
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from fedmest.engines import LocalEngine
from fedmest.federation import Federation
from fedmest.methods import Method
from fedmest.models import Model, NetworkModel, model_named
from fedmest.privacy.gdp import Array
from fedmest.queries import Descent
from fedmest.terms import Terms, Wishes

NETWORK = "network"  # a small one, to stand for all
COLUMNS = 4
CLASSES = 3


@dataclass(frozen=True)
class Scene:
    """Two data sets that differ in their last row, and what the server may send."""

    name: str
    X: Array  # the rows that both have in common
    y: Array
    first: tuple[Array, float]
    second: tuple[Array, float]
    thetas: tuple[Array, ...]

    def rows(self, other: bool, times: int = 1) -> tuple[Array, Array]:
        """One of the data sets, the common rows so many times."""
        x, y = self.second if other else self.first
        return np.vstack([np.tile(self.X, (times, 1)), x]), np.append(np.tile(self.y, times), y)


@dataclass
class Stage:
    """A method on a model with a budget, for any number of sites that all hold the same rows."""

    kind: type[Method]
    model: str | Model
    mu: float
    calibration: str
    settings: dict[str, Any]
    options: dict[str, Any]
    engine: Callable[..., LocalEngine]
    release: str | None

    def __post_init__(self) -> None:
        self.model_name = self.model if isinstance(self.model, str) else self.model.name

    def fresh_model(self) -> Model:
        if self.model == NETWORK:
            return small_network()
        return model_named(self.model) if isinstance(self.model, str) else copy(self.model)

    def run(self, X: Array, y: Array, sites: npt.ArrayLike, seed: int) -> tuple[Terms, LocalEngine]:
        """Terms and sites of a run on these rows."""
        federation = Federation.from_arrays(X, y, sites, degenerate="keep")
        model = self.fresh_model()
        target = model.target(federation)
        usual = {"scaling": "none" if self.calibration == "paper" else "private", "fit_intercept": False}
        wishes = Wishes(**{"calibration": self.calibration, **(usual if model.linear else {}), **self.settings})
        terms = Terms.agree(federation, model, self.kind, self.mu, wishes, self.options)
        if model.linear and "ridge" not in self.settings:
            terms = replace(terms, wishes=replace(terms.wishes, ridge=_ridge(terms)))
        return terms, self.engine(federation, model, target, terms.intercept, seed)

    def scenes(self) -> Iterator[Scene]:
        """The rows that an attacker would choose.

        A margin: one of the thetas puts rows that have something in the first column far on the wrong side, so that
        their scores are as long as clipping lets them be and stay so in all local steps.
        """
        model = self.fresh_model()
        name = model.name if model.linear else NETWORK
        counted = name in ("poisson", "linear")
        outputs = CLASSES if name == "multinomial" else 1
        zero = np.zeros((outputs, COLUMNS))
        margin = zero.copy()
        margin[0, 0], margin[1:2, 0] = -1000.0, 1000.0
        thetas = (margin, zero) if model.linear else _starts(model)
        responses = (1000.0, 4000.0) if counted else (1.0, 1.0) if outputs == 1 else (0.0, 0.0)
        classes = 2 if name in ("logistic", NETWORK) else CLASSES
        along = np.array([0.0, *[3.0 / math.sqrt(COLUMNS - 1)] * (COLUMNS - 1)])
        shift, axes = np.array([0.3, 0.0, 0.0, 0.0]), np.eye(COLUMNS)

        def labels(n: int) -> Array:
            return np.zeros(n) if counted else np.arange(n, dtype=float) % classes

        none, few = np.zeros((9, COLUMNS)), labels(9)
        pair = ((shift + along, responses[0]), (2 * (shift - along), responses[1]))
        yield Scene("opposite scores", none, few, *pair, thetas)
        yield Scene("a score or none", none, few, pair[0], (0 * along, responses[1]), thetas)
        huge = ((shift + 1e6 * along, responses[0]), (2 * shift - 2e6 * along, responses[1]))
        yield Scene("huge rows", none, few, *huge, thetas)
        level = 0.0 if name == "linear" else responses[0]
        yield Scene("orthogonal rows", none, few, (3 * axes[1], level), (6 * axes[2], level), thetas)
        if name in ("logistic", NETWORK):
            far = shift + 10 * along
            yield Scene("the other label", none, few, (far, 1.0), (far, 0.0), thetas)
        if name == NETWORK:  # the labels of all other rows balance: the last one decides where the mean points
            yield Scene("a row that turns the mean", np.zeros((48, COLUMNS)), labels(48), (0 * along, 1.0),
                        (0 * along, 0.0), thetas)  # fmt: skip
        if name != "logistic":
            return
        ones = np.ones(19)
        weak = np.outer(ones, 0.1 * axes[1])  # hardly any curvature but for the last row
        yield Scene("a row that carries the curvature", weak, ones, (3 * axes[1], 0.0), (3 * axes[2], 0.0), (zero,))
        spread = 1.9 * axes[np.arange(199) % COLUMNS]  # curvature 0.22 in every direction, with or without the last row
        steep = ((1.9 * axes[2], 1.0), (20 * axes[1], 1.0))
        yield Scene("a steep row", spread, (np.arange(199) > 0).astype(float), *steep, (zero,))


def _starts(model: Model) -> tuple[Array, ...]:
    """A network's random start, and zero, where all its outputs are alike."""
    start = model.start(COLUMNS + 1, 0)
    return start, np.zeros_like(start)


def _ridge(terms: Terms) -> float:
    """A penalty, which the server may set, that makes most of what sites send after local steps.

    Where it damps a step's gradient to w_k, the last theta tells (sum w_k)^2 / sum(w_k^2 / mu_k^2), at most sum mu_k^2.
    """
    rounds = [step for step in terms.plan.method_steps if isinstance(step.query, Descent)]
    if not rounds:
        return 0.0

    def told(damping: float) -> float:
        weights = [damping ** np.arange(len(step.mus) - 1, -1, -1.0) for step in rounds]
        return sum(
            float(w.sum() ** 2 / np.sum((w / step.mus[:, 0]) ** 2)) for w, step in zip(weights, rounds, strict=True)
        )

    assert isinstance(rounds[0].query, Descent)
    return float(1 - max(np.linspace(0.4, 1.0, 61), key=told)) / rounds[0].query.eta


def small_network() -> NetworkModel:
    def layers() -> Any:
        from torch import nn

        return nn.Sequential(nn.Linear(COLUMNS, 3), nn.Tanh(), nn.Linear(3, 2))

    return NetworkModel(layers, (COLUMNS,), name=NETWORK)
