"""What error a run will have, before it is run: noise and sampling error carried through the moves of its schedule.

The estimate is taken as normal: a mean, a covariance from privacy noise, and its derivative by the rows' mean score.
Each move of a method changes the three. Curvature and mean score are averaged over the spread that theta has by then,
so that the mean feels what noise does to it through a nonlinear model: at the sites, in local steps, that is the bias
of averaging, which no number of sites removes.
"""

import math
from dataclasses import dataclass, field

import numpy as np

from fedmest.methods import Step
from fedmest.models import Clipping
from fedmest.privacy.gdp import Array
from fedmest.queries import Ask
from fedmest.queries.histogram import SCORE_GRID, main_body
from fedmest.queries.newton import floored_inverse, spectral_noise
from fedmest.scaling import FINE_BINS, SIGNED_GRID
from fedmest.terms import Terms
from fedmest.theory.population import Population, State

MOST_GROUPS = 4  # of sites of like size, for which local steps are followed


@dataclass(frozen=True)
class Prediction:
    """Mean squared error of the coefficients and its parts, and what the run sends."""

    sampling: float
    privacy: float
    optimisation: float  # what is left of the way from the start
    bias: float  # of averaging what is not linear
    rounds: int
    bytes: int
    missed: float  # what intervals around the estimate do not show: both kinds of bias, had they not cancelled
    variances: Array = field(repr=False)  # sampling and privacy of a typical slope

    @property
    def mse(self) -> float:
        total = self.sampling + self.privacy + self.optimisation + self.bias
        return total if math.isfinite(total) else math.inf


def predict(terms: Terms, population: Population) -> Prediction:
    """The error that a fit on these terms is to be expected to have. Reads no rows."""
    steps = terms.plan.method_steps
    path = Path(terms, population, _clipping(terms, population))
    rounds, floats = _traffic(terms)
    with np.errstate(all="ignore"):  # steps may be too long: the error is infinite then
        terms.method.propagate(path, steps)
        return path.outcome(rounds, 8 * floats)


def pooled_error(population: Population, rows: float) -> float:
    """Of the fit to all rows in one place, without privacy."""
    nodes, truth = population.nodes, population.truth
    inverse = np.linalg.inv(nodes.curvature(truth, Clipping()))
    return population.trace(inverse @ nodes.score_covariance(truth, Clipping()) @ inverse) / rows


def _traffic(terms: Terms) -> tuple[int, int]:
    """Rounds, and numbers sent in both directions."""
    plan, columns = terms.plan, terms.setting.columns
    zero = np.zeros(terms.setting.shape)
    grids = [SIGNED_GRID.size, FINE_BINS + 1][: len(plan.scaling_steps)] + [SCORE_GRID.size] * len(plan.bound_steps)
    floats = 0
    for number, step in enumerate(plan.steps):
        groups = len(plan.columns_to_scale) if number < len(plan.scaling_steps) else 1
        edges = np.empty((groups, grids[number])) if number < len(grids) else None
        ask = Ask(zero, Clipping(), zero, edges=edges)
        floats += len(step.sites) * (step.query.reply_size(ask, columns) + ask.floats_down)
    return len(plan.steps), floats


def _clipping(terms: Terms, population: Population) -> Clipping:
    wish = terms.wishes.bound
    if math.isinf(terms.mu):
        return Clipping(terms.setting.clip)
    if not isinstance(wish, str):
        return terms.clipping(float(wish or 0))
    total = float(terms.facts.sizes.sum())
    counts: Array | None = total * population.shares(terms.method.bounds)
    if wish == "private":
        step = terms.plan.bound_steps[0]
        sds = step.query.noise_sds(terms.facts.sizes.astype(float), Clipping(), step.mus)[0]
        counts = main_body(total * population.shares(terms.method.bounds), float(np.linalg.norm(sds)), total)
    return terms.clipping(terms.bought_bound(counts))


class Path:
    """The moves of a method, on a population. Vectors and matrices are in its three coordinates."""

    def __init__(self, terms: Terms, population: Population, clipping: Clipping) -> None:
        self.population, self.nodes, self.clipping = population, population.nodes, clipping
        self.sizes = terms.facts.sizes.astype(float)
        self.weights = terms.setting.weights()
        self.per_row = float(np.sum(self.weights**2 / self.sizes))  # 1 / N where weights go by size
        truth = population.truth
        self.scores = self.nodes.score_covariance(truth, clipping)
        self.true_curvature = self.nodes.curvature(truth, clipping)
        self.mean = np.zeros(3)
        self.plain = np.zeros(3)  # the mean without noise or sampling error
        self.privacy = np.zeros((3, 3))
        self.by_score = np.zeros((3, 3))  # derivative of the estimate by the pooled mean score
        self.waiting: list[tuple[float, float]] = []  # gradient steps and the variance of their noise, taken together

    # -- moves ------------------------------------------------------------------------------------------------

    def gradient(self, step: Step, eta: float) -> None:
        eta = self.clipping.step(eta)
        if self.waiting and self.waiting[0][0] != eta:
            self._arrive()
        self.waiting.append((eta, eta**2 * self._noise(step, 0)))

    def _arrive(self) -> None:
        """Take the gradient steps that are waiting: in one call, as calls are what costs."""
        if not self.waiting:
            return
        eta, variances = self.waiting[0][0], np.array([variance for _, variance in self.waiting])
        self.waiting.clear()
        state = State(self.mean.copy(), self.by_score.copy(), self.privacy.copy(), np.eye(3))
        self.nodes.descend(state, self.clipping, eta, variances, self.per_row, self.scores, np.zeros((3, 3)))
        self.mean, self.by_score, self.privacy = state.mean, state.by_score, state.noise
        self.plain = self._without_noise(eta, len(variances))

    def descent(self, step: Step, eta: float, server_eta: float = 1.0) -> None:
        self._arrive()
        eta = self.clipping.step(eta)
        common = self._spread()
        mean, passed, by_score, privacy = np.zeros(3), np.zeros((3, 3)), np.zeros((3, 3)), np.zeros((3, 3))
        for n, share, square in _groups(self.sizes, step.weights):
            variances = step.query.noise_sds(np.array([n]), self.clipping, step.mus[:, :1])[:, 0] ** 2
            state = State(self.mean.copy(), np.zeros((3, 3)), np.zeros((3, 3)), np.eye(3))
            self.nodes.descend(state, self.clipping, eta, variances, 1 / n, self.scores, common)
            mean, passed = mean + share * state.mean, passed + share * state.passed
            by_score, privacy = by_score + share * state.by_score, privacy + square * state.noise
        move = server_eta * (passed - np.eye(3)) + np.eye(3)
        self.mean = self.mean + server_eta * (mean - self.mean)
        self.plain = self.plain + server_eta * (self._without_noise(eta, len(step.mus)) - self.plain)
        self.privacy = move @ self.privacy @ move.T + server_eta**2 * privacy
        self.by_score = move @ self.by_score + server_eta * by_score

    def newton(self, step: Step) -> None:
        self._arrive()
        population, nodes = self.population, self.nodes
        spread = self._spread()
        sd = math.sqrt(self._noise(step, 1))
        curvature = nodes.curvature(self.mean, self.clipping)
        inverse = self._inverse(curvature, sd)
        at_mean = nodes.score(self.mean, self.clipping)
        bent = nodes.score(self.mean, self.clipping, spread) - at_mean
        direction = inverse @ at_mean
        # a Newton step overshoots what the spread bends: theta - H(theta)^-1 g(theta) = + H^-1 T[e, e] / 2
        self.mean = self.mean - direction + inverse @ bent
        plain = nodes.curvature(self.plain, self.clipping)
        self.plain = self.plain - self._inverse(plain, 0.0) @ nodes.score(self.plain, self.clipping)
        passed = np.eye(3) - inverse @ self.true_curvature
        square = np.outer(direction, direction) + spread
        shaken = sd**2 / 2 * (population.trace(square) * np.eye(3) + square)
        within = self._noise(step, 0) * np.eye(3) + shaken
        self.privacy = passed @ self.privacy @ passed.T + inverse @ within @ inverse
        self.by_score = passed @ self.by_score - inverse

    def moments(self, step: Step) -> None:
        """Least squares from second moments: exact, so that there is no way to go and nothing bends."""
        inverse = self._inverse(self.true_curvature, 0.0)
        theta = self.population.truth
        noise = self._noise(step, 0) / 2
        within = noise * ((1 + self.population.length(theta)) * np.eye(3) + np.outer(theta, theta))
        self.mean = self.plain = theta
        self.privacy = inverse @ within @ inverse
        self.by_score = -inverse

    # -- what they come to ------------------------------------------------------------------------------------

    def outcome(self, rounds: int, sent: int) -> Prediction:
        self._arrive()
        population = self.population
        sampling = self.per_row * self.by_score @ self.scores @ self.by_score.T
        way = population.length(self.mean - population.truth)
        optimisation = min(population.length(self.plain - population.truth), way)
        typical = 2 if population.across else 1 if population.columns > 1 else 0
        return Prediction(
            population.trace(sampling), population.trace(self.privacy), optimisation, way - optimisation, rounds, sent,
            population.length(self.plain - population.truth) + population.length(self.mean - self.plain),
            np.array([sampling[typical, typical], self.privacy[typical, typical]]),
        )  # fmt: skip

    def _without_noise(self, eta: float, steps: int) -> Array:
        """Where steps lead from the plain mean."""
        zero = np.zeros((3, 3))
        state = State(self.plain.copy(), zero.copy(), zero.copy(), np.eye(3))
        self.nodes.descend(state, self.clipping, eta, np.zeros(steps), 0.0, zero, zero)
        return state.mean

    def _spread(self) -> Array:
        return np.asarray(self.privacy + self.per_row * self.by_score @ self.scores @ self.by_score.T)

    def _noise(self, step: Step, release: int) -> float:
        """Variance of the noise in each number of the weighted sum of replies."""
        sds = step.query.noise_sds(self.sizes, self.clipping, step.mus)[release]
        return float(np.sum((step.weights * sds) ** 2))

    def _inverse(self, curvature: Array, sd: float) -> Array:
        return floored_inverse(curvature, max(1e-6, spectral_noise(sd, self.population.columns)))


def _groups(sizes: Array, weights: Array) -> list[tuple[float, float, float]]:
    """Sites of like size: their size, the sum of their weights, the sum of their weights' squares."""
    order = np.argsort(sizes, kind="stable")
    distinct = np.unique(sizes)
    if len(distinct) <= MOST_GROUPS:
        parts = [np.flatnonzero(sizes == n) for n in distinct]
    else:
        parts = np.array_split(order, MOST_GROUPS)
    return [
        (float(np.exp(np.log(sizes[p]).mean())), float(weights[p].sum()), float((weights[p] ** 2).sum())) for p in parts
    ]
