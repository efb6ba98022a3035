"""scikit-learn estimators around `fit`: `fit(X, y, sites=...)`, pipelines, cross-validation with metadata routing.

Extra: `sklearn`. Without `sites` all rows are one site's. Noise makes a private fit random: `random_state` repeats it.
"""

from typing import Any, Self

import numpy as np
import numpy.typing as npt
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted, validate_data

from fedmest.federation import Federation
from fedmest.fitting import fit as fit_federation
from fedmest.privacy.gdp import Array
from fedmest.result import Result


class FederatedModel(BaseEstimator):  # type: ignore[misc]
    """What the estimators have in common. After `fit`, `result_` holds the `Result`, privacy report and all.

    mu: the privacy budget of every site's rows, or inf. method: an id, or "auto". bounds: public ranges of features,
    {place: (low, high)}. options: of the method, and further settings of `fedmest.fit`. random_state: a whole number.
    """

    model = "linear"

    def __init__(
        self, mu: float = 2.0, method: str = "fednewton", *, bounds: dict[int, tuple[float, float]] | None = None,
        ridge: float = 0.0, fit_intercept: bool = True, options: dict[str, Any] | None = None,
        random_state: int | None = None,
    ) -> None:  # fmt: skip
        self.mu = mu
        self.method = method
        self.bounds = bounds
        self.ridge = ridge
        self.fit_intercept = fit_intercept
        self.options = options
        self.random_state = random_state

    def fit(self, X: npt.ArrayLike, y: npt.ArrayLike, sites: npt.ArrayLike | None = None) -> Self:
        """Fit over all sites; `sites` names the site of every row."""
        numeric = self.model != "logistic"
        values, target = validate_data(self, X, y, dtype=np.float64, y_numeric=numeric, ensure_min_samples=2)
        self._fit(values, target, np.zeros(len(values), dtype=int) if sites is None else np.asarray(sites), self.model)
        return self

    def _fit(self, X: Array, y: npt.NDArray[Any], sites: npt.NDArray[Any], model: str) -> None:
        names = [f"x{j}" for j in range(X.shape[1])]
        bounds = {names[j]: pair for j, pair in (self.bounds or {}).items()}
        federation = Federation.from_arrays(X, y, sites, features=names, bounds=bounds, degenerate="keep")
        self.result_: Result = fit_federation(
            federation, model, self.method, self.mu, ridge=self.ridge, fit_intercept=self.fit_intercept,
            seed=self.random_state, **(self.options or {}),
        )  # fmt: skip
        theta = self.result_.coefficients
        self.coef_: Array = theta[:, int(self.fit_intercept) :]
        self.intercept_: Any = theta[:, 0] if self.fit_intercept else np.zeros(len(theta))

    def _predictors(self, X: npt.ArrayLike) -> Array:
        check_is_fitted(self)
        values = validate_data(self, X, dtype=np.float64, reset=False)
        return np.asarray(values @ self.coef_.T + self.intercept_)


class FederatedLinearRegression(RegressorMixin, FederatedModel):  # type: ignore[misc]
    """Least squares under a privacy budget."""

    def fit(self, X: npt.ArrayLike, y: npt.ArrayLike, sites: npt.ArrayLike | None = None) -> Self:
        super().fit(X, y, sites)
        self.coef_, self.intercept_ = self.coef_[0], float(self.intercept_[0])
        return self

    def predict(self, X: npt.ArrayLike) -> Array:
        return self._predictors(X)


class FederatedPoissonRegressor(FederatedLinearRegression):
    """Counts with a log link under a privacy budget."""

    model = "poisson"

    def predict(self, X: npt.ArrayLike) -> Array:
        return np.exp(np.minimum(self._predictors(X), 700.0))

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.positive_only = True
        return tags


class FederatedLogisticRegression(ClassifierMixin, FederatedModel):  # type: ignore[misc]
    """Two classes or more under a privacy budget. The classes are public."""

    model = "logistic"

    def _fit(self, X: Array, y: npt.NDArray[Any], sites: npt.NDArray[Any], model: str) -> None:
        check_classification_targets(y)
        self.classes_, codes = np.unique(y, return_inverse=True)
        if len(self.classes_) < 2:
            raise ValueError(f"y has only one class, {self.classes_[0]!r}; a classifier needs two")
        super()._fit(X, codes.astype(float), sites, model if len(self.classes_) == 2 else "multinomial")

    def decision_function(self, X: npt.ArrayLike) -> Array:
        scores = self._predictors(X)
        return scores[:, 0] if len(self.classes_) == 2 else scores

    def predict_proba(self, X: npt.ArrayLike) -> Array:
        scores = self._predictors(X)
        mean = self.result_.model.mean(scores)
        return np.column_stack([1 - mean[:, 0], mean[:, 0]]) if len(self.classes_) == 2 else mean

    def predict(self, X: npt.ArrayLike) -> npt.NDArray[Any]:
        likeliest = self.predict_proba(X).argmax(axis=1)
        return np.asarray(self.classes_[likeliest])
