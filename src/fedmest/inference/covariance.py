"""Covariance of an estimate: from sampling and from privacy noise, or the reason why there is none.

Near the truth an estimate is linear in the rows' mean score and in the noise. With curvature H, covariance of scores S
and V the known covariance of the noise that reached the estimate,

    Cov = J S J' / N + V,      J = -H^-1 where the method has arrived.

H is a noisy release. For S there are three routes. `nonrobust`: the model is right, so that S = H (times a dispersion
where the model leaves it open). `robust`: S is a noisy release, too. `cluster`: the replies of many sites are private
already, and their spread is free; it holds sampling and noise together, whatever the rows are like, as long as sites
are alike.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
from scipy import stats

from fedmest.core.exceptions import NoStandardErrors
from fedmest.core.text import shorten
from fedmest.core.typing import FloatArray
from fedmest.inference.linearization import Linearization, usable_inverse
from fedmest.inference.routes import MIN_SITES, CovarianceRoute
from fedmest.methods import Method, NoNoiseModel
from fedmest.queries import Role
from fedmest.queries.linalg import from_triangle
from fedmest.queries.schedule import PublicContext, Replies, RoundRecord

MAX_TOTAL_BIAS_SHARE = 0.02  # of the variance, over all coefficients: what a bias may be, squared


@dataclass(frozen=True)
class CovarianceEstimate:
    """Covariances of the coefficients (flat, on the original scale).

    Parameters
    ----------
    sampling, privacy : FloatArray or None
        Parts due to the rows and to the noise; None where there is no valid estimate.
    cov_type : str
        "nonrobust", "robust", "cluster" or "none".
    df : float
        Degrees of freedom of t-intervals.
    reason : str
        Why there is none, and what would help.
    includes_privacy : bool
        Whether `sampling` holds the noise, too.
    """

    sampling: FloatArray | None = field(default=None, repr=False)
    privacy: FloatArray | None = field(default=None, repr=False)
    cov_type: str = "none"
    df: float = math.inf
    reason: str = ""
    includes_privacy: bool = False

    def __repr__(self) -> str:
        if self.sampling is None:
            return f"<CovarianceEstimate: {shorten(self.reason, 300) or 'none'}>"
        parts = "together" if self.includes_privacy else "apart"
        return (
            f"<CovarianceEstimate: {self.cov_type}, {len(self.sampling):,} coefficients\n"
            f" df = {self.df:g}\n"
            f" sampling and privacy {parts}>"
        )

    @property
    def total(self) -> FloatArray | None:
        """Covariance from both causes; None where there is no valid estimate."""
        return None if self.sampling is None or self.privacy is None else self.sampling + self.privacy

    def quantile(self, alpha: float) -> float:
        """Half-width of an interval, in standard errors.

        Parameters
        ----------
        alpha : float
            The interval has level 1 - alpha.

        Returns
        -------
        float
        """
        return float(stats.t.ppf(1 - alpha / 2, self.df))

    def transform(self, matrix: FloatArray) -> "CovarianceEstimate":
        """Covariance of linear functions of the coefficients.

        Parameters
        ----------
        matrix : FloatArray
            Their weights (functions, coefficients).

        Returns
        -------
        CovarianceEstimate
        """
        if self.sampling is None or self.privacy is None:
            return self
        return CovarianceEstimate(
            matrix @ self.sampling @ matrix.T,
            matrix @ self.privacy @ matrix.T,
            self.cov_type,
            self.df,
            self.reason,
            self.includes_privacy,
        )


@dataclass(frozen=True)
class Evidence:
    """What a run leaves behind that standard errors can be computed from.

    Attributes
    ----------
    route : CovarianceRoute
        How they are computed.
    method : Method
        The method of the run.
    context : PublicContext
        Public facts of the run.
    intercept : bool
        Whether the first column is the intercept's.
    params, previous : FloatArray
        The estimate and the iterate before it, on the scale of the fit.
    penalty : FloatArray
        Ridge on each coefficient.
    records : sequence of RoundRecord
        The rounds of the method.
    last : Replies
        Replies of the last of them.
    released : tuple of RoundRecord and Replies, or None
        The extra round for standard errors.
    expected_bias : callable
        Returns the expected squared bias as a share of the variance, or None where it is not known.
    """

    route: CovarianceRoute
    method: Method
    context: PublicContext
    intercept: bool
    params: FloatArray
    previous: FloatArray
    penalty: FloatArray
    records: Sequence[RoundRecord]
    last: Replies
    released: tuple[RoundRecord, Replies] | None
    expected_bias: Callable[[], float | None]

    @property
    def roles(self) -> tuple[Role, ...]:
        """What the method's last round released."""
        return self.records[-1].step.query.roles

    def parts(self, replies: Replies, record: RoundRecord) -> dict[Role, FloatArray]:
        """The aggregate of a round, by role."""
        return record.step.query.by_role(replies.aggregate(), self.params.size, self.context.columns)


def estimate_covariance(evidence: Evidence) -> CovarianceEstimate:
    """The covariance of an estimate, on the scale of the fit, or the reason why there is none."""
    if evidence.route.cov_type == "none":
        return CovarianceEstimate(reason=evidence.route.reason)
    try:
        if Role.ESTIMATE in evidence.roles:
            _check_bias(evidence.expected_bias())
            if evidence.route.cov_type == "cluster":
                return _spread_of_estimates(evidence.records[-1], evidence.last)
        return _linearized(evidence)
    except (NoStandardErrors, NoNoiseModel) as reason:
        return CovarianceEstimate(reason=str(reason))


def _linearized(evidence: Evidence) -> CovarianceEstimate:
    params, model, final = evidence.params, evidence.context.model, evidence.records[-1]
    size, cov_type = params.size, evidence.route.cov_type
    penalty = np.diag(evidence.penalty.ravel())
    scores, dispersion = None, 1.0
    if evidence.released is not None:
        record, replies = evidence.released
        released = evidence.parts(replies, record)
        curvature, scores = (from_triangle(released[role], size) for role in (Role.CURVATURE, Role.SCORE_MOMENTS))
        sd = record.aggregate_sd(0)
    elif Role.RECORD_MOMENTS in evidence.roles:
        moments = from_triangle(evidence.parts(evidence.last, final)[Role.RECORD_MOMENTS], size + 1)
        curvature, sd = moments[:size, :size] + penalty, final.aggregate_sd(0)
        ends = np.append(-params.ravel(), 1.0)
        dispersion = float(ends @ moments @ ends)
    else:
        released = evidence.parts(evidence.last, final)
        curvature, sd = from_triangle(released[Role.CURVATURE], size), final.aggregate_sd(1)
    inverse = usable_inverse(curvature, sd, model.contrasts(evidence.context.columns))
    path = Linearization(curvature, inverse, params, evidence.previous, evidence.records)
    evidence.method.propagate_noise(path, [record.step for record in evidence.records])
    bare = curvature - penalty
    if not model.dispersion_known and scores is not None:
        rows = float(final.sizes.sum())
        ratio = scores[0, 0] / bare[0, 0] if evidence.intercept else np.trace(inverse @ scores) / size
        dispersion = float(ratio) * rows / max(rows - size, 1.0)
    per_row = float(np.sum(final.step.weights**2 / final.sizes))
    df = math.inf
    if cov_type == "cluster":
        gradients = final.step.query.by_role(evidence.last.values, size, evidence.context.columns)[Role.GRADIENT]
        within, df = _between(gradients, final.step.weights, final.sizes, final.sds[0])
        total = path.by_score @ within @ path.by_score.T
        sampling = _positive(total - path.privacy)
    else:
        middle = scores if cov_type == "robust" and scores is not None else max(dispersion, 0.0) * bare
        sampling = _positive(per_row * path.by_score @ middle @ path.by_score.T)
    path.check_arrival(params, np.diag(sampling) + np.diag(path.privacy))
    typical = float(bare[0, 0]) if evidence.intercept else 0.0  # mean over rows: the intercept's feature is one
    slope = model.curvature_slope / max(model.typical_curvature, typical)
    path.check_straight(sampling + path.privacy, slope)
    return CovarianceEstimate(sampling, path.privacy, cov_type, df)


def _spread_of_estimates(final: RoundRecord, last: Replies) -> CovarianceEstimate:
    """Of averages of what sites found: the spread of these is the estimate's own."""
    total, df = _between(last.values, final.step.weights, final.sizes, None)
    return CovarianceEstimate(total, np.zeros_like(total), "cluster", df, includes_privacy=True)


def _check_bias(share: float | None) -> None:
    """Averages of local steps have a bias that is not in their spread."""
    if share is None or share > MAX_TOTAL_BIAS_SHARE:
        size = "not known" if share is None else f"expected to be {100 * share:.0f} % of the variance"
        raise NoStandardErrors(
            f"no standard errors: the bias of averaging local steps, squared, is {size}, and intervals would miss it; "
            "use method='fednewton' or 'fedirls'"
        )


def _between(
    replies: FloatArray, weights: FloatArray, sizes: FloatArray, sds: FloatArray | None
) -> tuple[FloatArray, float]:
    """Covariance of the weighted sum of independent replies from their spread, and its degrees of freedom."""
    apart = replies - weights @ replies
    spread = weights**2 / (1 - 2 * weights + np.sum(weights**2))
    total = (apart * spread[:, None]).T @ apart
    shares = weights**2 / sizes
    if sds is not None and sds.any():
        noise = weights**2 * sds**2
        sampled = max(float(np.trace(total)) / replies.shape[1] - float(noise.sum()), 0.0)
        shares = sampled * shares / shares.sum() + noise
    df = float(shares.sum() ** 2 / np.sum(shares**2)) - 1
    if df < MIN_SITES / 2:
        raise NoStandardErrors(
            "no standard errors: a few large sites make up most of the estimate, and the spread of so few says little; "
            "use cov_type='nonrobust'"
        )
    return total, df


def _positive(matrix: FloatArray) -> FloatArray:
    """The nearest matrix without negative eigenvalues: noise may have left some."""
    values, vectors = np.linalg.eigh((matrix + matrix.T) / 2)
    return np.asarray((vectors * np.maximum(values, 0.0)) @ vectors.T)
