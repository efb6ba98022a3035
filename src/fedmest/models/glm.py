"""Models with linear predictors: compiled loops over packed rows, for any family."""

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Self

import numpy as np

from fedmest.core.exceptions import InputError
from fedmest.core.typing import FloatArray, IntArray
from fedmest.data.federation import Federation
from fedmest.data.packing import Rows
from fedmest.data.schema import TargetRule
from fedmest.models import kernels
from fedmest.models.base import Model
from fedmest.models.clipping import Clipping
from fedmest.models.family import AuditResponses, Family
from fedmest.privacy.noise import Noise, SeededNoise

ROWS_AT_ONCE = 4096  # whose scores are held together


@dataclass(frozen=True)
class GLM(Model):
    """A generalized linear model: a family, the values of its parameters, and the classes of the target.

    Parameters
    ----------
    family : Family
        Distribution of the response, and link.
    params : tuple of float
        Values of the family's parameters, in order.
    classes : tuple
        Classes of the target; empty for numbers.

    Examples
    --------
    >>> from fedmest.models import MODELS
    >>> MODELS["negative-binomial"](dispersion=0.5).identity
    'negative-binomial(dispersion=0.5)'
    """

    family: Family
    params: tuple[float, ...] = ()
    classes: tuple[Any, ...] = ()

    @classmethod
    def create(cls, family: Family, **params: object) -> "GLM":
        """Make the model of a family.

        Parameters
        ----------
        family : Family
            The family.
        **params : float
            Its parameters by name; those left out have their defaults.

        Returns
        -------
        GLM

        Raises
        ------
        InputError
            If there is no such parameter, or its value is not possible.
        """
        return cls(family, family.param_values(params))

    def __post_init__(self) -> None:
        if len(self.params) != len(self.family.params):
            raise InputError(f"the {self.name} model has {len(self.family.params)} parameters, not {len(self.params)}")

    # -- what the family says ---------------------------------------------------------------------------------

    @property
    def name(self) -> str:  # type: ignore[override]
        return self.family.name

    @property
    def identity(self) -> str:
        return self.label

    @property
    def label(self) -> str:
        named = zip(self.family.params, self.params, strict=True)
        values = ", ".join(f"{param.name}={value!r}" for param, value in named)
        return f"{self.name}({values})" if values else self.name

    @property
    def target_rule(self) -> TargetRule:
        return self.family.target

    @property
    def audit(self) -> AuditResponses:
        return self.family.audit

    @property
    def outputs(self) -> int:
        return len(self.classes) if self.family.multiclass and self.classes else 1

    @property
    def typical_curvature(self) -> float:
        return self.family.typical_curvature

    @property
    def clip_quantile(self) -> float:
        return self.family.clip_quantile

    @property
    def misspecification_factor(self) -> float:
        return self.family.misspecification_factor

    @property
    def curvature_slope(self) -> float:
        return self.family.curvature_slope

    @property
    def curvature_upper_bound(self) -> float | None:
        return self.family.curvature_upper_bound

    @property
    def dispersion_known(self) -> bool:
        return self.family.dispersion == "one"

    @cached_property
    def param_array(self) -> FloatArray:
        """Values of the family's parameters, as compiled functions take them."""
        return np.array(self.params, dtype=float)

    def with_classes(self, classes: tuple[Any, ...]) -> Self:
        return replace(self, classes=classes)

    def to_json(self) -> dict[str, Any]:
        named = zip(self.family.params, self.params, strict=True)
        params = {param.name: value for param, value in named}
        return super().to_json() | ({"params": params} if params else {})

    def curvature_clip_norm(self, bound: float, columns: int, trusted: bool = True) -> float:
        return self.family.curvature_clip_norm(bound, columns, trusted)

    # -- rows -------------------------------------------------------------------------------------------------

    def encode_target(self, federation: Federation) -> tuple[Self, FloatArray]:
        classes, y = self.family.target.encode(federation, self.name, self.classes)
        return self.with_classes(classes), y

    def residual(self, eta: FloatArray, y: FloatArray, limits: FloatArray, consistent: bool) -> None:
        """Turn linear predictors into clipped residuals, in place; see `kernels.RESIDUAL`.

        Parameters
        ----------
        eta : FloatArray
            Linear predictors (outputs, n); residuals afterwards.
        y : FloatArray
            Encoded responses.
        limits : FloatArray
            Largest length of each row's residual.
        consistent : bool
            Whether the rule is "consistent".
        """
        self.family.residual(eta, y, limits, consistent, self.param_array)

    def curvature(
        self,
        eta: FloatArray,
        y: FloatArray,
        norms: FloatArray,
        bound: float,
        consistent: bool,
        largest: float,
        weights: FloatArray,
    ) -> None:
        """Compute curvature weights; see `kernels.CURVATURE`.

        Parameters
        ----------
        eta : FloatArray
            Linear predictors (outputs, n).
        y : FloatArray
            Encoded responses.
        norms : FloatArray
            Length of each row.
        bound : float
            Bound on a row's score.
        consistent : bool
            Whether the rule is "consistent".
        largest : float
            Bound on the Frobenius norm of a row's curvature.
        weights : FloatArray
            Filled with the weights (outputs, outputs, n).
        """
        self.family.curvature(eta, y, norms, bound, consistent, largest, self.param_array, weights)

    def mean_scores(
        self, rows: Rows, sites: IntArray, thetas: FloatArray, clipping: Clipping, penalty: FloatArray
    ) -> FloatArray:
        out = np.empty((len(sites), self.outputs, rows.columns))
        kernels.mean_scores(
            self.family.residual, self.param_array, rows.packed, rows.y, *_extras(rows), rows.norms, rows.offsets,
            rows.columns, sites, _stack(thetas), clipping.bound, clipping.consistent, penalty, out,
        )  # fmt: skip
        return out

    def local_descents(
        self,
        rows: Rows,
        sites: IntArray,
        thetas: FloatArray,
        steps: int,
        eta: float,
        clipping: Clipping,
        penalty: FloatArray,
        drifts: FloatArray,
        sds: FloatArray,
        factors: FloatArray,
        noise: Noise,
    ) -> FloatArray:
        out = np.empty((len(sites), self.outputs, rows.columns))
        starts, drifts = _stack(thetas), _stack(drifts)
        if not isinstance(noise, SeededNoise):  # which alone compiled loops can draw
            for i, site in enumerate(sites):
                out[i] = starts[i % len(starts)]
                for k in range(steps):
                    move = -eta * self.mean_scores(rows, sites[i : i + 1], out[i], clipping, 0.0 * penalty)[0]
                    noise.add_step(move.reshape(-1), float(sds[i] * factors[k, i % factors.shape[1]]), int(site), k)
                    out[i] += move - eta * (penalty * out[i] + drifts[i % len(drifts)])
            return out
        kernels.local_descents(
            self.family.residual, self.param_array, rows.packed, rows.y, *_extras(rows), rows.norms, rows.offsets,
            rows.columns, sites, starts, steps, eta, clipping.bound, clipping.consistent, penalty, drifts, sds, factors,
            noise.keys, np.uint64(noise.seed64), noise.stream(), out,
        )  # fmt: skip
        return out

    def score_norms(self, rows: Rows, theta: FloatArray, clipping: Clipping | None = None) -> FloatArray:
        """Norm of every row's score.

        Parameters
        ----------
        rows : Rows
            Rows of all sites.
        theta : FloatArray
            Coefficients (outputs, d).
        clipping : Clipping, optional
            How rows are clipped; by default they are not.

        Returns
        -------
        FloatArray
            One norm per row.
        """
        clipping = clipping or Clipping()
        out = np.empty(len(rows.y))
        kernels.score_norms(
            self.family.residual, self.param_array, rows.packed, rows.y, *_extras(rows), rows.norms, rows.offsets,
            rows.columns, np.ascontiguousarray(theta), clipping.bound, clipping.consistent, out,
        )  # fmt: skip
        return out

    def mean_curvatures(
        self, rows: Rows, sites: IntArray, thetas: FloatArray, clipping: Clipping, penalty: FloatArray
    ) -> FloatArray:
        size = self.outputs * rows.columns
        out = np.empty((len(sites), size, size))
        kernels.mean_curvatures(
            self.family.curvature, self.param_array, rows.packed, rows.y, *_extras(rows), rows.norms, rows.offsets,
            rows.columns, sites, _stack(thetas), clipping.bound, clipping.consistent, clipping.curvature, penalty, out,
        )  # fmt: skip
        return out

    def mean_score_squares(self, rows: Rows, sites: IntArray, theta: FloatArray, clipping: Clipping) -> FloatArray:
        """Mean of s s' over each site's rows, s the clipped score without penalty.

        Parameters
        ----------
        rows : Rows
            Rows of all sites.
        sites : IntArray
            Sites to compute it for.
        theta : FloatArray
            Coefficients (outputs, d).
        clipping : Clipping
            How rows are clipped.

        Returns
        -------
        FloatArray
            (k, outputs * d, outputs * d).
        """
        size = theta.size
        out = np.empty((len(sites), size, size))
        for i, site in enumerate(sites):
            X, begin = rows.of_site(site), rows.offsets[site]
            with np.errstate(over="ignore", invalid="ignore"):  # a residual is cut to its limit, whatever comes
                residuals = np.ascontiguousarray(theta @ X.T)
            own, (offset, weight) = slice(begin, begin + len(X)), _extras(rows)
            if offset.size:
                residuals += offset[own]
            limits = kernels.limits_of(clipping.bound, rows.norms, weight, own.start, own.stop)
            self.residual(residuals, rows.targets_of_site(site), limits, clipping.consistent)
            if weight.size:
                residuals *= weight[own]
            total = np.zeros((size, size))
            for first in range(0, len(X), ROWS_AT_ONCE):
                part = slice(first, first + ROWS_AT_ONCE)
                scores = (residuals[:, part].T[:, :, None] * X[part, None, :]).reshape(-1, size)
                total += scores.T @ scores
            out[i] = total / max(len(X), 1)
        return out

    def features(self, rows: Rows, site: int, theta: FloatArray) -> FloatArray:
        return rows.of_site(site)

    def contrasts(self, columns: int) -> FloatArray | None:
        if not self.family.multiclass:
            return None
        centred = np.eye(self.outputs) - 1.0 / self.outputs
        basis = np.linalg.svd(centred)[0][:, : self.outputs - 1]
        return np.asarray(np.kron(basis, np.eye(columns)))

    def first_residual(self) -> float:
        if self.family.residual_at_zero is None:
            raise InputError(f"the residuals of the {self.name} model have no bound at theta = 0")
        return self.family.residual_at_zero(self.outputs)

    # -- predictions ------------------------------------------------------------------------------------------

    def predictors(self, X: FloatArray, theta: FloatArray, intercept: bool) -> FloatArray:
        return np.asarray(X @ theta[:, 1:].T + theta[:, 0] if intercept else X @ theta.T)

    def mean(self, eta: FloatArray) -> FloatArray:
        return self.family.mean(eta, self.param_array)

    def loglike(self, eta: FloatArray, y: FloatArray) -> float:
        return self.family.loglike(eta if self.family.multiclass else eta[:, 0], y, self.param_array)

    def support(self, eta: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Responses that the model allows, with their probabilities.

        Parameters
        ----------
        eta : FloatArray
            Linear predictors (k,).

        Returns
        -------
        responses, probabilities : FloatArray
            Both (k, responses).

        Raises
        ------
        InputError
            If the family has no such list.
        """
        if self.family.support is None:
            raise InputError(f"there is no plan for the {self.name} model")
        return self.family.support(eta, self.param_array)

    def simulate(self, eta: FloatArray, rng: np.random.Generator) -> FloatArray:
        """Draw responses from the model.

        Parameters
        ----------
        eta : FloatArray
            Linear predictors (n,), or (n, classes).
        rng : numpy.random.Generator
            Source of the draws.

        Returns
        -------
        FloatArray
            (n,).
        """
        return self.family.simulate(eta, rng, self.param_array)


def _extras(rows: Rows) -> tuple[FloatArray, FloatArray]:
    """Offsets and weights of rows, empty where there are none."""
    none = np.empty(0)
    return none if rows.offset is None else rows.offset, none if rows.row_weight is None else rows.row_weight


def _stack(thetas: FloatArray) -> FloatArray:
    return np.ascontiguousarray(thetas if thetas.ndim == 3 else thetas[None])
