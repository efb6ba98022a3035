"""What queries, methods and `fit` need to know of a model: regressions and networks alike.

The module is one thing, the base class with the contract of each of its methods.
"""

import math
from typing import Any, ClassVar, Self

import numpy as np

from fedmest.core.choices import CLIP_RULES
from fedmest.core.typing import FloatArray, IntArray
from fedmest.data.federation import Federation
from fedmest.data.packing import Rows
from fedmest.data.schema import NO_TABLE, TargetRule
from fedmest.models.clipping import Clipping
from fedmest.models.family import AuditResponses
from fedmest.privacy.noise import Noise


class Model:
    """A model of rows: it knows rows and coefficients (outputs, d), but no budget.

    Models are frozen: what changes makes a new model.

    Attributes
    ----------
    name : str
        Its name for users.
    classes : tuple
        Classes of the target; empty for numbers, and until `encode_target` or `with_classes` sets them.
    has_coefficients : bool
        Whether columns have coefficients: a table of them, an intercept, scales.
    clips : tuple of str
        Rules by which rows' scores can be bounded, the default first.
    target_rule : TargetRule
        Declared columns that can be its target.
    audit : AuditResponses
        Responses that an attacker would choose.
    typical_curvature, clip_quantile, misspecification_factor, curvature_slope, curvature_upper_bound
        As in `Family`.
    """

    has_coefficients: ClassVar[bool] = True
    clips: ClassVar[tuple[str, ...]] = CLIP_RULES

    name: str
    classes: tuple[Any, ...]

    @property
    def target_rule(self) -> TargetRule:
        """Declared columns that can be its target."""
        return NO_TABLE

    @property
    def audit(self) -> AuditResponses:
        """Responses that an attacker would choose."""
        raise NotImplementedError

    @property
    def outputs(self) -> int:
        """Number of coefficient vectors."""
        return 1

    @property
    def typical_curvature(self) -> float:
        """As in `Family`."""
        raise NotImplementedError

    @property
    def clip_quantile(self) -> float:
        """As in `Family`."""
        raise NotImplementedError

    @property
    def misspecification_factor(self) -> float:
        """As in `Family`."""
        return 1.0

    @property
    def curvature_slope(self) -> float:
        """As in `Family`."""
        raise NotImplementedError

    @property
    def curvature_upper_bound(self) -> float | None:
        """As in `Family`."""
        return None

    @property
    def dispersion_known(self) -> bool:
        """Whether the model determines the variance of responses."""
        return True

    @property
    def label(self) -> str:
        """Its name in reports, with its parameters if it has any; `model_named` reads it."""
        return self.name

    @property
    def identity(self) -> str:
        """Text that two fits share only if their models are the same."""
        return self.name

    @property
    def tools(self) -> str:
        """Versions and settings of other libraries on which the last bits of an answer depend."""
        return ""

    def with_classes(self, classes: tuple[Any, ...]) -> Self:
        """The model with its classes, and with them its shape.

        Parameters
        ----------
        classes : tuple
            Classes of the target, in order.

        Returns
        -------
        Model
        """
        raise NotImplementedError

    def to_json(self) -> dict[str, Any]:
        """Entries that `model_from_json` reads: model, classes, and params where the family has any."""
        return {"model": self.name, "classes": list(self.classes)}

    # -- the parameter ----------------------------------------------------------------------------------------

    def shape(self, columns: int) -> tuple[int, int]:
        """Shape of the coefficients.

        Parameters
        ----------
        columns : int
            Columns of a row, the intercept's included.

        Returns
        -------
        tuple of int
            (outputs, d).
        """
        return self.outputs, columns

    def start(self, columns: int, seed: int) -> FloatArray:
        """Start of methods. Public: no row is read.

        Parameters
        ----------
        columns : int
            Columns of a row.
        seed : int
            Seed of public draws.

        Returns
        -------
        FloatArray
        """
        return np.zeros(self.shape(columns))

    def max_step_norm(self, columns: int) -> float:
        """Limit on step size times clip norm, see `Clipping`: |x| for features of unit scale.

        Parameters
        ----------
        columns : int
            Columns of a row.

        Returns
        -------
        float
        """
        return math.sqrt(columns)

    def fallback_clip_norm(self, columns: int) -> float:
        """Public bound on scores where the budget is too small for a private one.

        Parameters
        ----------
        columns : int
            Columns of a row.

        Returns
        -------
        float
        """
        return math.sqrt(columns)

    def curvature_clip_norm(self, bound: float, columns: int, trusted: bool = True) -> float:
        """Generous public bound on a row's curvature.

        Parameters
        ----------
        bound : float
            Bound on a row's score.
        columns : int
            Columns of a row.
        trusted : bool, default True
            Whether standard errors rely on the model.

        Returns
        -------
        float
            Bound on the Frobenius norm.
        """
        return math.inf

    # -- rows -------------------------------------------------------------------------------------------------

    def encode_target(self, federation: Federation) -> tuple[Self, FloatArray]:
        """Target as numbers.

        Parameters
        ----------
        federation : Federation
            Holds the target.

        Returns
        -------
        model : Model
            The model with its classes.
        y : FloatArray
            Target; a class is its place among the classes.

        Raises
        ------
        InputError
            If a value is not possible; the message names it and the site.
        """
        raise NotImplementedError

    def mean_scores(
        self, rows: Rows, sites: IntArray, thetas: FloatArray, clipping: Clipping, penalty: FloatArray
    ) -> FloatArray:
        """Mean clipped score of each site.

        Parameters
        ----------
        rows : Rows
            Rows of all sites.
        sites : IntArray
            Sites to compute it for.
        thetas : FloatArray
            Coefficients (outputs, d), or one set per site (k, outputs, d).
        clipping : Clipping
            How rows are clipped.
        penalty : FloatArray
            Ridge on each coefficient.

        Returns
        -------
        FloatArray
            (k, outputs, d).
        """
        raise NotImplementedError

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
        """Coefficients of each site after noisy local gradient steps; see `kernels.local_descents`.

        Parameters
        ----------
        rows : Rows
            Rows of all sites.
        sites : IntArray
            Sites that take the steps.
        thetas : FloatArray
            Start (outputs, d), or one per site (k, outputs, d).
        steps : int
            Number of steps.
        eta : float
            Step size.
        clipping : Clipping
            How rows are clipped.
        penalty : FloatArray
            Ridge on each coefficient.
        drifts : FloatArray
            Added to every gradient; one for each site where it has three dimensions.
        sds : FloatArray
            Standard deviation of the noise at each site, at a cost of one.
        factors : FloatArray
            Factors on it, (steps, sites or 1).
        noise : Noise
            Source of the noise.

        Returns
        -------
        FloatArray
            (k, outputs, d).
        """
        raise NotImplementedError

    def score_norms(self, rows: Rows, theta: FloatArray) -> FloatArray:
        """Norm of every row's unclipped score.

        Parameters
        ----------
        rows : Rows
            Rows of all sites.
        theta : FloatArray
            Coefficients (outputs, d).

        Returns
        -------
        FloatArray
            One norm per row.
        """
        raise NotImplementedError

    def mean_curvatures(
        self, rows: Rows, sites: IntArray, thetas: FloatArray, clipping: Clipping, penalty: FloatArray
    ) -> FloatArray:
        """Mean clipped curvature of each site.

        Parameters
        ----------
        rows : Rows
            Rows of all sites.
        sites : IntArray
            Sites to compute it for.
        thetas : FloatArray
            Coefficients (outputs, d), or one set per site (k, outputs, d).
        clipping : Clipping
            How rows are clipped.
        penalty : FloatArray
            Ridge on each coefficient.

        Returns
        -------
        FloatArray
            (k, outputs * d, outputs * d).
        """
        raise NotImplementedError

    def features(self, rows: Rows, site: int, theta: FloatArray) -> FloatArray:
        """What the predictors of a site's rows are linear in.

        Parameters
        ----------
        rows : Rows
            Rows of all sites.
        site : int
            The site.
        theta : FloatArray
            Coefficients (outputs, d).

        Returns
        -------
        FloatArray
            (rows, features), a copy.
        """
        raise NotImplementedError

    def first_residual(self) -> float:
        """Largest length of a row's residual at theta = 0: times |x| it is its score."""
        raise NotImplementedError

    def contrasts(self, columns: int) -> FloatArray | None:
        """Orthonormal basis of the directions of the coefficients that matter.

        Parameters
        ----------
        columns : int
            Columns of a row.

        Returns
        -------
        FloatArray or None
            (parameters, free parameters); None if all directions matter.
        """
        return None

    # -- predictions ------------------------------------------------------------------------------------------

    def predictors(self, X: FloatArray, theta: FloatArray, intercept: bool) -> FloatArray:
        """Linear predictors, of which `mean` makes responses; log-probabilities for a network.

        Parameters
        ----------
        X : FloatArray
            Rows of features, without an intercept column.
        theta : FloatArray
            Coefficients (outputs, d).
        intercept : bool
            Whether the first of them is the intercept.

        Returns
        -------
        FloatArray
            (n, outputs); for a network (n, classes).
        """
        raise NotImplementedError

    def mean(self, eta: FloatArray) -> FloatArray:
        """Expected responses.

        Parameters
        ----------
        eta : FloatArray
            Linear predictors (n, outputs).

        Returns
        -------
        FloatArray
            Of the same shape.
        """
        raise NotImplementedError

    def loglike(self, eta: FloatArray, y: FloatArray) -> float:
        """Log-likelihood.

        Parameters
        ----------
        eta : FloatArray
            Linear predictors (n, outputs).
        y : FloatArray
            Encoded responses.

        Returns
        -------
        float
        """
        raise NotImplementedError
