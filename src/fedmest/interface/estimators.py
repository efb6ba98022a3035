"""scikit-learn estimators around `fit`: `fit(X, y, sites=...)`, pipelines, cross-validation with metadata routing.

Extra: `sklearn`. Without `sites` all rows are one site's. Noise makes a private fit random: `random_state` repeats it.
"""

import inspect
from collections.abc import Callable
from dataclasses import fields
from typing import Any, Self

import numpy as np
import numpy.typing as npt
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted, validate_data

from fedmest.core.typing import FloatArray
from fedmest.data.federation import Federation
from fedmest.models import LINEAR, LOGISTIC, MULTINOMIAL, POISSON, Model, model_named
from fedmest.runs.fit import fit as fit_federation
from fedmest.runs.result import Result
from fedmest.runs.settings import Settings

SETTINGS = {f.name: f.default for f in fields(Settings)}


def _with_settings(init: Callable[..., None]) -> Callable[..., None]:
    """Every field of `Settings` as a keyword argument, where scikit-learn looks for parameters."""
    own = inspect.signature(init).parameters.values()
    kept = [p for p in own if p.kind is not p.VAR_KEYWORD]
    added = [inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=d) for name, d in SETTINGS.items()]
    init.__signature__ = inspect.Signature([*kept, *added])  # type: ignore[attr-defined]
    return init


class FederatedModel(BaseEstimator):  # type: ignore[misc]
    """Base of the scikit-learn estimators.

    Parameters
    ----------
    mu : float, default 2.0
        Privacy budget of every site's rows; inf for a fit without privacy.
    method : str, default "fednewton"
        Id of a method, or "auto".
    bounds : dict of int to (low, high), optional
        Public ranges of features, by column number.
    options : dict, optional
        Options of the method.
    random_state : int, optional
        Repeats the noise, for simulations only.
    **settings
        Fields of `Settings`: ``ridge``, ``fit_intercept``, ``clip_norm`` ...

    Attributes
    ----------
    coef_ : ndarray
        Slopes on the original scale.
    intercept_ : float or ndarray
        Intercept, or one per class.
    result_ : Result
        What `fedmest.fit` returned, with the privacy report.
    """

    model: str | Model = LINEAR.name

    @_with_settings
    def __init__(
        self,
        mu: float = 2.0,
        method: str = "fednewton",
        *,
        bounds: dict[int, tuple[float, float]] | None = None,
        options: dict[str, Any] | None = None,
        random_state: int | None = None,
        **settings: Any,
    ) -> None:
        self.mu = mu
        self.method = method
        self.bounds = bounds
        self.options = options
        self.random_state = random_state
        if odd := sorted(set(settings) - set(SETTINGS)):
            raise TypeError(f"{type(self).__name__} has no parameter {odd[0]!r}")
        for name, default in SETTINGS.items():
            setattr(self, name, settings.get(name, default))

    def fit(self, X: npt.ArrayLike, y: npt.ArrayLike, sites: npt.ArrayLike | None = None) -> Self:
        """Fit over all sites.

        Parameters
        ----------
        X : array-like of shape (rows, features)
        y : array-like of shape (rows,)
        sites : array-like of shape (rows,), optional
            The site of every row; without it, all rows are one site's.

        Returns
        -------
        self
        """
        numeric = not self._known_model().target_rule.max_classes
        values, target = validate_data(self, X, y, dtype=np.float64, y_numeric=numeric, ensure_min_samples=2)
        self._fit(values, target, np.zeros(len(values), dtype=int) if sites is None else np.asarray(sites), self.model)
        return self

    def _fit(self, X: FloatArray, y: npt.NDArray[Any], sites: npt.NDArray[Any], model: str | Model) -> None:
        names = [f"x{j}" for j in range(X.shape[1])]
        bounds = {names[j]: pair for j, pair in (self.bounds or {}).items()}
        federation = Federation.from_arrays(X, y, sites, features=names, bounds=bounds, degenerate="keep")
        settings = {name: getattr(self, name) for name in SETTINGS}
        self.result_: Result = fit_federation(
            federation, model, self.method, self.mu, seed=self.random_state, **settings, **(self.options or {})
        )
        coef, intercept = self.result_.coef_matrix, self.result_.has_intercept
        self.coef_: FloatArray = coef[:, int(intercept) :]
        self.intercept_: Any = coef[:, 0] if intercept else np.zeros(len(coef))

    def _known_model(self) -> Model:
        return model_named(self.model) if isinstance(self.model, str) else self.model

    def _predictors(self, X: npt.ArrayLike) -> FloatArray:
        check_is_fitted(self)
        values = validate_data(self, X, dtype=np.float64, reset=False)
        return np.asarray(values @ self.coef_.T + self.intercept_)


class _Regressor(RegressorMixin, FederatedModel):  # type: ignore[misc]
    """Estimators whose responses are numbers: predictions are means, tags follow from the family's target rule."""

    def fit(self, X: npt.ArrayLike, y: npt.ArrayLike, sites: npt.ArrayLike | None = None) -> Self:
        super().fit(X, y, sites)
        self.coef_, self.intercept_ = self.coef_[0], float(self.intercept_[0])
        return self

    def predict(self, X: npt.ArrayLike) -> FloatArray:
        """Expected response of rows.

        Parameters
        ----------
        X : array-like of shape (rows, features)

        Returns
        -------
        ndarray of shape (rows,)
        """
        predictors = self._predictors(X)
        return self.result_.model.mean(predictors)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.positive_only = self._known_model().target_rule.low >= 0
        return tags


class FederatedLinearRegression(_Regressor):
    """Least squares under a privacy budget.

    Parameters
    ----------
    mu, method, bounds, options, random_state
        As in `FederatedModel`.
    **settings
        Fields of `Settings`.
    """


class FederatedPoissonRegressor(_Regressor):
    """Poisson regression with a log link under a privacy budget.

    Parameters
    ----------
    mu, method, bounds, options, random_state
        As in `FederatedModel`.
    **settings
        Fields of `Settings`.
    """

    model = POISSON.name


class FederatedRegressor(_Regressor):
    """Regression with one linear predictor, of any family, under a privacy budget.

    Parameters
    ----------
    model : str or Model
        A name such as "negative-binomial(dispersion=0.5)", or a `Model`.
    mu, method, bounds, options, random_state
        As in `FederatedModel`.
    **settings
        Fields of `Settings`.
    """

    @_with_settings
    def __init__(
        self,
        model: str | Model = LINEAR.name,
        mu: float = 2.0,
        method: str = "fednewton",
        *,
        bounds: dict[int, tuple[float, float]] | None = None,
        options: dict[str, Any] | None = None,
        random_state: int | None = None,
        **settings: Any,
    ) -> None:
        super().__init__(mu, method, bounds=bounds, options=options, random_state=random_state, **settings)
        self.model = model


class FederatedLogisticRegression(ClassifierMixin, FederatedModel):  # type: ignore[misc]
    """Logistic regression, multinomial for more than two classes, under a privacy budget. The classes are public.

    Parameters
    ----------
    mu, method, bounds, options, random_state
        As in `FederatedModel`.
    **settings
        Fields of `Settings`.

    Attributes
    ----------
    classes_ : ndarray
        Labels of the classes, sorted.
    """

    model = LOGISTIC.name

    def _fit(self, X: FloatArray, y: npt.NDArray[Any], sites: npt.NDArray[Any], model: str | Model) -> None:
        check_classification_targets(y)
        self.classes_, codes = np.unique(y, return_inverse=True)
        if len(self.classes_) < 2:
            raise ValueError(f"y has only one class, {self.classes_[0]!r}; a classifier needs two")
        super()._fit(X, codes.astype(float), sites, model if len(self.classes_) == 2 else MULTINOMIAL.name)

    def decision_function(self, X: npt.ArrayLike) -> FloatArray:
        """Linear predictors of rows.

        Parameters
        ----------
        X : array-like of shape (rows, features)

        Returns
        -------
        ndarray of shape (rows,), or (rows, classes) for more than two classes
        """
        scores = self._predictors(X)
        return scores[:, 0] if len(self.classes_) == 2 else scores

    def predict_proba(self, X: npt.ArrayLike) -> FloatArray:
        """Probabilities of the classes.

        Parameters
        ----------
        X : array-like of shape (rows, features)

        Returns
        -------
        ndarray of shape (rows, classes)
        """
        scores = self._predictors(X)
        mean = self.result_.model.mean(scores)
        return np.column_stack([1 - mean[:, 0], mean[:, 0]]) if len(self.classes_) == 2 else mean

    def predict(self, X: npt.ArrayLike) -> npt.NDArray[Any]:
        """The most probable class of each row.

        Parameters
        ----------
        X : array-like of shape (rows, features)

        Returns
        -------
        ndarray of shape (rows,)
        """
        likeliest = self.predict_proba(X).argmax(axis=1)
        return np.asarray(self.classes_[likeliest])
