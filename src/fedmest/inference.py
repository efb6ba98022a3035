"""How sure an estimate is: its covariance from sampling and from privacy noise, or the reason why there is none.

Near the truth an estimate is linear in the rows' mean score and in the noise. With curvature H, covariance of scores S
and V the known covariance of the noise that reached the estimate,

    Cov = J S J' / N + V,      J = -H^-1 where the method has arrived.

H is a noisy release. For S there are three routes. `model`: the model is right, so that S = H (times a dispersion where
the model leaves it open). `sandwich`: S is bought, too. `sites`: the replies of many sites are private already, and
their spread is free; it holds sampling and noise together, whatever the rows are like, as long as sites are alike.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
from scipy import stats

from fedmest.errors import InputError
from fedmest.methods.base import NotTraced, Record, Replies, Server, Step
from fedmest.privacy.gdp import Array
from fedmest.queries import Descent, Moments
from fedmest.queries.newton import from_triangle, spectral_noise

if TYPE_CHECKING:
    from fedmest.terms import Terms

ROUTES = ("auto", "model", "sandwich", "sites", "none")
FEWEST_SITES = 20  # whose spread says something
MOST_PARAMETERS = 300
DROWNED = 2.0  # the smallest curvature must exceed its noise by this factor
TOLERATED = 0.02  # of the variance, over all coefficients: what a bias may be, squared, before intervals miss it
TOLERATED_ONCE = 0.1  # the same for each coefficient by itself
KEPT_SHARES = 64
_shares: dict[tuple[str, bytes], float | None] = {}


@dataclass(frozen=True)
class Uncertainty:
    """Covariances of the coefficients (flat, on the original scale); `why` says what there is not, and the way out."""

    sampling: Array | None = field(default=None, repr=False)
    privacy: Array | None = field(default=None, repr=False)
    route: str = "none"
    freedom: float = math.inf  # degrees of freedom of t-intervals
    why: str = ""
    together: bool = False  # what is called sampling holds the noise, too

    @property
    def total(self) -> Array | None:
        return None if self.sampling is None or self.privacy is None else self.sampling + self.privacy

    def quantile(self, level: float) -> float:
        """How many standard errors to either side an interval of this level goes."""
        return float(stats.t.ppf(0.5 + level / 2, self.freedom))

    def carried(self, map_: Array) -> "Uncertainty":
        """Of linear functions of the coefficients."""
        if self.sampling is None or self.privacy is None:
            return self
        return Uncertainty(map_ @ self.sampling @ map_.T, map_ @ self.privacy @ map_.T, self.route, self.freedom,
                           self.why, self.together)  # fmt: skip


class Unearned(Exception):
    """There is no valid interval, for the reason given."""


def assess(server: Server, terms: "Terms", theta: Array, last: Replies, released: Replies | None) -> Uncertainty:
    """The uncertainty of an estimate, on the scale of the fit. `released` is the round that was bought for it."""
    if terms.errors.route == "none":
        return Uncertainty(why=terms.errors.why)
    records = server.records[len(terms.plan.steps) - len(terms.plan.method_steps) - len(terms.plan.error_steps) :]
    own = records[: len(records) - (released is not None)]
    try:
        if isinstance(own[-1].step.query, Descent):
            _check_bias(terms)
            if terms.errors.route == "sites":
                return _spread_of_estimates(own[-1], last)
        return _linear(server, terms, theta, own, last, released)
    except (Unearned, NotTraced) as reason:
        return Uncertainty(why=str(reason))


def _linear(
    server: Server, terms: "Terms", theta: Array, own: Sequence[Record], last: Replies, released: Replies | None
) -> Uncertainty:
    size, final, route = theta.size, own[-1], terms.errors.route
    penalty = np.diag(server.penalty.ravel())
    scores, dispersion = None, 1.0
    if released is not None:
        both = released.combined()
        half = size * (size + 1) // 2
        curvature, scores = from_triangle(both[:half], size), from_triangle(both[half:], size)
        sd = server.last_noise(0)
    elif isinstance(final.step.query, Moments):
        moments = from_triangle(last.combined(), size + 1)
        curvature, sd = moments[:size, :size] + penalty, server.last_noise(0)
        ends = np.append(-theta.ravel(), 1.0)
        dispersion = float(ends @ moments @ ends)
    else:
        curvature, sd = from_triangle(last.combined()[size:], size), server.last_noise(1)
    basis = terms.model.contrasts(terms.setting.columns)
    inverse = _inverse(curvature, sd, basis)
    path = Linearised(curvature, inverse, theta, server.history[-2] if len(server.history) > 1 else 0 * theta, own)
    terms.method.propagate(path, [record.step for record in own])
    bare = curvature - penalty
    if not terms.model.dispersion_known and scores is not None:
        rows = float(final.sizes.sum())
        ratio = scores[0, 0] / bare[0, 0] if terms.intercept else np.trace(inverse @ scores) / size
        dispersion = float(ratio) * rows / max(rows - size, 1.0)
    per_row = float(np.sum(final.step.weights**2 / final.sizes))
    freedom = math.inf
    if route == "sites":
        within, freedom = _between(last.values[:, :size], final.step.weights, final.sizes, final.sds[0])
        total = path.by_score @ within @ path.by_score.T
        sampling = _positive(total - path.privacy)
    else:
        middle = scores if route == "sandwich" and scores is not None else max(dispersion, 0.0) * bare
        sampling = _positive(per_row * path.by_score @ middle @ path.by_score.T)
    path.check_arrival(theta, np.diag(sampling) + np.diag(path.privacy))
    typical = float(bare[0, 0]) if terms.intercept else 0.0  # mean over rows: the intercept's feature is one
    bend = terms.model.bend / max(terms.model.typical_curvature, typical)
    path.check_straight(sampling + path.privacy, bend)
    return Uncertainty(sampling, path.privacy, route, freedom)


def _spread_of_estimates(final: Record, last: Replies) -> Uncertainty:
    """Of averages of what sites found: the spread of these is the estimate's own."""
    total, freedom = _between(last.values, final.step.weights, final.sizes, None)
    return Uncertainty(total, np.zeros_like(total), "sites", freedom, together=True)


def _check_bias(terms: "Terms") -> None:
    """Averages of local steps have a bias that is not in their spread."""
    share = _bias_share(terms)
    if share is None or share > TOLERATED:
        size = "not known" if share is None else f"expected to be {100 * share:.0f} % of the variance"
        raise Unearned(
            f"no standard errors: the bias of averaging local steps, squared, is {size}, and intervals would miss it; "
            "use method='fednewton' or 'fedirls'"
        )


def _bias_share(terms: "Terms") -> float | None:
    """The squared bias to be expected, as a share of the variance; from public facts alone, so that fits share it."""
    from fedmest.theory.population import Population
    from fedmest.theory.prediction import predict

    key = terms.name, terms.facts.sizes.tobytes()
    if key not in _shares:
        if len(_shares) >= KEPT_SHARES:
            _shares.clear()
        try:
            expected = predict(terms, Population.typical(terms.model, terms.setting.columns))
            _shares[key] = expected.missed / (expected.sampling + expected.privacy)
        except InputError:
            _shares[key] = None
    return _shares[key]


def _between(replies: Array, weights: Array, sizes: Array, sds: Array | None) -> tuple[Array, float]:
    """Covariance of the weighted sum of independent replies from their spread, and its degrees of freedom."""
    apart = replies - weights @ replies
    spread = weights**2 / (1 - 2 * weights + np.sum(weights**2))
    total = (apart * spread[:, None]).T @ apart
    shares = weights**2 / sizes
    if sds is not None and sds.any():
        noise = weights**2 * sds**2
        sampled = max(float(np.trace(total)) / replies.shape[1] - float(noise.sum()), 0.0)
        shares = sampled * shares / shares.sum() + noise
    freedom = float(shares.sum() ** 2 / np.sum(shares**2)) - 1
    if freedom < FEWEST_SITES / 2:
        raise Unearned(
            "no standard errors: a few large sites make up most of the estimate, and the spread of so few says little; "
            "use errors='model'"
        )
    return total, freedom


class Linearised:
    """The moves of a method near its end, where the curvature stays what it is."""

    def __init__(
        self, curvature: Array, inverse: Array, theta: Array, before: Array, records: Sequence[Record]
    ) -> None:
        self.curvature, self.inverse = curvature, inverse
        self.theta, self.direction = theta.ravel(), (before - theta).ravel()
        self.records = {id(record.step): record for record in records}
        size = theta.size
        self.privacy = np.zeros((size, size))
        self.by_score = np.zeros((size, size))
        self.passed = np.eye(size)  # what is left of an error at the start
        self.stepped = False  # by Newton, at the end

    def gradient(self, step: Step, eta: float) -> None:
        record = self.records[id(step)]
        eta = record.clipping.step(eta)
        self._shrink(eta)
        self.privacy += eta**2 * self._noise(step, 0) * np.eye(len(self.theta))

    def descent(self, step: Step, eta: float, server_eta: float = 1.0) -> None:
        if server_eta != 1.0:
            raise NotTraced("no standard errors: they are worked out for server_eta=1")
        record = self.records[id(step)]
        eta, sds = record.clipping.step(eta), record.sds
        for k in range(len(step.mus)):
            self._shrink(eta)
            self.privacy += float(np.sum((step.weights * sds[k]) ** 2)) * np.eye(len(self.theta))

    def newton(self, step: Step) -> None:
        square = np.outer(self.direction, self.direction)
        shaken = self._noise(step, 1) / 2 * (np.trace(square) * np.eye(len(square)) + square)
        within = self._noise(step, 0) * np.eye(len(square)) + shaken
        self.privacy = self.inverse @ within @ self.inverse
        self.by_score, self.passed, self.stepped = -self.inverse, np.zeros_like(square), True

    def moments(self, step: Step) -> None:
        square = np.outer(self.theta, self.theta)
        within = self._noise(step, 0) / 2 * ((1 + np.trace(square)) * np.eye(len(square)) + square)
        self.privacy = self.inverse @ within @ self.inverse
        self.by_score, self.passed = -self.inverse, np.zeros_like(square)

    def check_arrival(self, theta: Array, variances: Array) -> None:
        """A method that is still under way has an error that no interval around its estimate shows."""
        if not self.passed.any():
            return
        away = np.eye(len(self.theta)) - self.passed
        left = self.passed @ np.linalg.lstsq(away, theta.ravel(), rcond=None)[0]
        share = float(np.max(left**2 / np.maximum(variances, 1e-300)))
        if share > TOLERATED_ONCE:
            raise Unearned(
                f"no standard errors: the steps end {math.sqrt(share):.1f} standard errors short of where they lead, "
                "and intervals would miss it; take more steps (K) or longer ones (eta), or use method='fednewton'"
            )

    def check_straight(self, covariance: Array, bend: float) -> None:
        """A Newton step d misses by about H^-1 T[d, d] / 2, T being how curvature H changes with theta.

        With v for a row's curvature and v r for its change, x'd has a mean square of d'Hd / v, and the miss, in the
        norm of H, a square of the size of (d'Hd)^2 r^2 / (4 v). `bend` is r^2 / v.
        """
        if not self.stepped:
            return
        missed = float(self.direction @ self.curvature @ self.direction) ** 2 * bend / 4
        share = missed / max(float(np.trace(self.curvature @ covariance)), 1e-300)
        if share > TOLERATED_ONCE:
            raise Unearned(
                "no standard errors: the last Newton step was so long that curvature changed on its way, by a bias "
                f"that may be, squared, {100 * share:.0f} % of the variance; use method='fedirls', more of its rounds "
                "(R), a larger mu, or narrower bounds"
            )

    def _shrink(self, eta: float) -> None:
        shrink = np.eye(len(self.theta)) - eta * self.curvature
        self.privacy = shrink @ self.privacy @ shrink
        self.by_score = shrink @ self.by_score - eta * np.eye(len(self.theta))
        self.passed = shrink @ self.passed

    def _noise(self, step: Step, release: int) -> float:
        record = self.records[id(step)]
        return float(np.sum((step.weights * record.sds[release]) ** 2))


def _inverse(curvature: Array, sd: float, basis: Array | None) -> Array:
    inner = curvature if basis is None else basis.T @ curvature @ basis
    noise = spectral_noise(sd, len(inner))
    least = float(np.linalg.eigvalsh(inner)[0])
    if least <= DROWNED * noise or least <= 1e-12:
        raise Unearned(
            f"no standard errors: the smallest curvature, {least:.2g}, drowns in its noise of {noise:.2g} (or columns "
            "repeat each other); spend more (mu) or use fewer columns"
        )
    inverse = np.linalg.inv(inner)
    return np.asarray(inverse if basis is None else basis @ inverse @ basis.T)


def _positive(matrix: Array) -> Array:
    """The nearest matrix without negative eigenvalues: noise may have left some."""
    values, vectors = np.linalg.eigh((matrix + matrix.T) / 2)
    return np.asarray((vectors * np.maximum(values, 0.0)) @ vectors.T)
