"""What error a run will have, before it is run: noise and sampling error carried through the moves of its schedule.

The estimate is taken as normal: a mean, a covariance from privacy noise, and its derivative by the rows' mean score.
Each move of a method changes the three. Curvature and mean score are averaged over the spread that theta has by then,
so that the mean feels what noise does to it through a nonlinear model: at the sites, in local steps, that is the bias
of averaging, which no number of sites removes.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from fedmest.core.typing import FloatArray
from fedmest.inference.population import Population, State
from fedmest.methods import Method
from fedmest.models import Clipping
from fedmest.queries.linalg import floored_inverse, spectral_noise
from fedmest.queries.schedule import PublicContext, Step

MAX_GROUPS = 4  # of sites of like size, for which local steps are followed


@dataclass(frozen=True)
class Prediction:
    """Expected mean squared error of the coefficients, and its parts.

    Parameters
    ----------
    sampling, privacy : float
        Parts due to the rows and to the noise.
    optimisation : float
        Part due to the remaining distance from the optimum.
    bias : float
        Part due to averaging what is not linear.
    missed : float
        What intervals around the estimate do not show: both kinds of bias, without their cancelling.
    variances : FloatArray
        Sampling and privacy variance of a typical slope.
    """

    sampling: float
    privacy: float
    optimisation: float
    bias: float
    missed: float
    variances: FloatArray = field(repr=False)

    @property
    def mse(self) -> float:
        """The sum of the parts; infinite if the method does not converge."""
        total = self.sampling + self.privacy + self.optimisation + self.bias
        return total if math.isfinite(total) else math.inf


def predict(
    method: Method, steps: Sequence[Step], context: PublicContext, population: Population, clipping: Clipping
) -> Prediction:
    """Expected error of a method, with rows from a population. Reads no rows.

    Parameters
    ----------
    method : Method
        The method.
    steps : sequence of Step
        The method's own part of the schedule.
    context : PublicContext
        Public facts of the run.
    population : Population
        What is assumed of the rows.
    clipping : Clipping
        How rows are clipped while the method runs.

    Returns
    -------
    Prediction

    Raises
    ------
    NoNoiseModel
        If the propagation of noise is not worked out for the method.
    """
    path = PredictedPath(context, population, clipping)
    with np.errstate(all="ignore"):  # steps may be too long: the error is infinite then
        method.propagate_noise(path, steps)
        return path.outcome()


class PredictedPath:
    """The noise model of predictions, on a population. Vectors and matrices are in its three coordinates."""

    def __init__(self, context: PublicContext, population: Population, clipping: Clipping) -> None:
        self.population, self.nodes, self.clipping = population, population.nodes, clipping
        self.sizes = context.sizes.astype(float)
        self.weights = context.weights()
        self.per_row = float(np.sum(self.weights**2 / self.sizes))  # 1 / N where weights go by size
        self.scores, self.true_curvature = population.at_truth(clipping)
        self.mean = np.zeros(3)
        self.plain = np.zeros(3)  # the mean without noise or sampling error
        self.privacy = np.zeros((3, 3))
        self.by_score = np.zeros((3, 3))  # derivative of the estimate by the pooled mean score
        self.waiting: list[tuple[float, Step]] = []  # gradient steps, which are taken together

    # -- moves ------------------------------------------------------------------------------------------------

    def gradient(self, step: Step, eta: float) -> None:
        eta = self.clipping.step(eta)
        if self.waiting and self.waiting[0][0] != eta:
            self._arrive()
        self.waiting.append((eta, step))

    def _arrive(self) -> None:
        """Take the gradient steps that are waiting: in one call, as calls are what costs."""
        if not self.waiting:
            return
        eta, variances = self.waiting[0][0], self._gradient_noise([step for _, step in self.waiting])
        variances *= eta**2
        self.waiting.clear()
        state = State(self.mean.copy(), self.plain.copy(), self.by_score.copy(), self.privacy.copy(), np.eye(3))
        self.nodes.descend(state, self.clipping, eta, variances, self.per_row, self.scores, np.zeros((3, 3)))
        self.mean, self.plain, self.by_score, self.privacy = state.mean, state.plain, state.by_score, state.noise

    def descent(self, step: Step, eta: float, server_eta: float = 1.0) -> None:
        self._arrive()
        eta = self.clipping.step(eta)
        common = self._spread()
        mean, passed, by_score, privacy = np.zeros(3), np.zeros((3, 3)), np.zeros((3, 3)), np.zeros((3, 3))
        for n, share, square in _groups(self.sizes, step.weights):
            variances = step.query.noise_sds(np.array([n]), self.clipping, step.mus[:, :1])[:, 0] ** 2
            state = State(self.mean.copy(), self.plain.copy(), np.zeros((3, 3)), np.zeros((3, 3)), np.eye(3))
            self.nodes.descend(state, self.clipping, eta, variances, 1 / n, self.scores, common)
            mean, passed = mean + share * state.mean, passed + share * state.passed
            by_score, privacy = by_score + share * state.by_score, privacy + square * state.noise
        move = server_eta * (passed - np.eye(3)) + np.eye(3)
        self.mean = self.mean + server_eta * (mean - self.mean)
        self.plain = self.plain + server_eta * (state.plain - self.plain)  # the same at every site
        self.privacy = move @ self.privacy @ move.T + server_eta**2 * privacy
        self.by_score = move @ self.by_score + server_eta * by_score

    def newton(self, step: Step) -> None:
        self._arrive()
        population, nodes = self.population, self.nodes
        spread = self._spread()
        noise, curvature_noise = self._noise(step)
        sd = math.sqrt(curvature_noise)
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
        within = noise * np.eye(3) + shaken
        self.privacy = passed @ self.privacy @ passed.T + inverse @ within @ inverse
        self.by_score = passed @ self.by_score - inverse

    def moments(self, step: Step) -> None:
        """Least squares from second moments: exact, so that there is no way to go and nothing bends."""
        inverse = self._inverse(self.true_curvature, 0.0)
        theta = self.population.truth
        noise = self._noise(step)[0] / 2
        within = noise * ((1 + self.population.length(theta)) * np.eye(3) + np.outer(theta, theta))
        self.mean = self.plain = theta
        self.privacy = inverse @ within @ inverse
        self.by_score = -inverse

    # -- what they come to ------------------------------------------------------------------------------------

    def outcome(self) -> Prediction:
        self._arrive()
        population = self.population
        sampling = self.per_row * self.by_score @ self.scores @ self.by_score.T
        way = population.length(self.mean - population.truth)
        optimisation = min(population.length(self.plain - population.truth), way)
        typical = 2 if population.across else 1 if population.columns > 1 else 0
        return Prediction(
            population.trace(sampling),
            population.trace(self.privacy),
            optimisation,
            way - optimisation,
            population.length(self.plain - population.truth) + population.length(self.mean - self.plain),
            np.array([sampling[typical, typical], self.privacy[typical, typical]]),
        )

    def _spread(self) -> FloatArray:
        return np.asarray(self.privacy + self.per_row * self.by_score @ self.scores @ self.by_score.T)

    def _noise(self, step: Step) -> FloatArray:
        """Variance of the noise in each number of the weighted sum of replies, for each release."""
        sds = step.query.noise_sds(self.sizes, self.clipping, step.mus)
        return np.asarray(np.sum((step.weights * sds) ** 2, axis=1))

    def _gradient_noise(self, steps: list[Step]) -> FloatArray:
        """The same for steps with one release each: at once where they differ in nothing but their costs."""
        first = steps[0]
        if math.isinf(self.clipping.bound) or any(
            (step.query is not first.query and step.query != first.query)
            or step.weights is not first.weights
            or step.mus.size > 1
            for step in steps
        ):
            return np.concatenate([self._noise(step) for step in steps])
        mus = np.concatenate([step.mus for step in steps])[:, 0]
        return np.asarray(self._noise(first) * (mus[0] / mus) ** 2)

    def _inverse(self, curvature: FloatArray, sd: float) -> FloatArray:
        return floored_inverse(curvature, max(1e-6, spectral_noise(sd, self.population.columns)))


def _groups(sizes: FloatArray, weights: FloatArray) -> list[tuple[float, float, float]]:
    """Sites of like size: their size, the sum of their weights, the sum of their weights' squares."""
    if (sizes == sizes[0]).all():
        return [(float(sizes[0]), float(weights.sum()), float((weights**2).sum()))]
    distinct = np.unique(sizes)
    if len(distinct) <= MAX_GROUPS:
        parts = [np.flatnonzero(sizes == n) for n in distinct]
    else:
        parts = np.array_split(np.argsort(sizes, kind="stable"), MAX_GROUPS)
    return [
        (float(np.exp(np.log(sizes[p]).mean())), float(weights[p].sum()), float((weights[p] ** 2).sum())) for p in parts
    ]
