"""What a fit returns. It is one thing: tables, pages and files all read this class, and none keeps a second copy."""

import math
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
from scipy import stats

from fedmest.core.exceptions import InputError, NoStandardErrors
from fedmest.core.text import listed, printable, shorten
from fedmest.core.typing import FloatArray
from fedmest.data.federation import Federation
from fedmest.inference.covariance import CovarianceEstimate
from fedmest.inference.wald import WaldTest, wald_test
from fedmest.models import Model
from fedmest.privacy.report import PrivacyReport
from fedmest.runs.communication import Communication
from fedmest.runs.phases import PublicState
from fedmest.runs.spec import RunSpec

COV_DESCRIPTIONS = {
    "nonrobust": "Standard errors assume that the model is right.",
    "robust": "Standard errors hold where the model is wrong, too (sandwich).",
    "cluster": "Standard errors from the spread of the sites' replies ({df:.0f} degrees of freedom).",
}


@dataclass(frozen=True)
class Result:
    """An estimate with its privacy report.

    Attributes
    ----------
    coef_matrix : FloatArray
        Coefficients (outputs, d) on the original scale, intercept first; all parameters of a network in one row.
    spec : RunSpec
        The run as asked for, complete: model, method, mu, every setting, options, sites and columns.
    resolved : PublicState
        Public values that the run found: the clip norm and the scales that were used.
    privacy : PrivacyReport
        The guarantee, and every release.
    communication : Communication
        Traffic of the run.
    history : tuple of FloatArray
        Iterates, on the original scale.
    covariance : CovarianceEstimate
        Covariance of the coefficients by cause, or the reason why there is none.
    site_params : FloatArray or None
        Every site's own estimate, where the method has them.
    seed : int or None
        As it was given.
    network : dict or None
        For a run between sites: its id, its rounds, incidents, and the sites' receipts.
    """

    coef_matrix: FloatArray
    spec: RunSpec
    resolved: PublicState
    privacy: PrivacyReport
    communication: Communication
    history: tuple[FloatArray, ...]
    covariance: CovarianceEstimate = field(default_factory=CovarianceEstimate)
    site_params: FloatArray | None = None
    seed: int | None = None
    network: dict[str, Any] | None = None

    def __repr__(self) -> str:
        values = zip(self.param_names, self.coef_matrix[0], strict=False)
        shown = listed([f"{name}={value:.4g}" for name, value in values], 100)
        if not self.model.has_coefficients:
            shown = f"{self.coef_matrix.size:,} parameters"
        elif self.model.outputs > 1:
            shown = f"{self.coef_matrix.shape[0]} classes x {self.coef_matrix.shape[1]} coefficients"
        return (
            f"<Result: {shorten(self.model.label)}, {self.spec.method.display_name}\n"
            f" {self.n_rows:,} rows at {self.n_sites:,} sites, {self.communication.rounds} rounds\n"
            f" mu = {self.privacy.mu:.4g}{', certified' if self.privacy.certified else ''}\n"
            f" standard errors: {self.covariance.cov_type}\n"
            f" params: {shown}>"
        )

    # -- the estimate -----------------------------------------------------------------------------------------

    @property
    def model(self) -> Model:
        """The model, with its classes."""
        return self.spec.model

    @property
    def method(self) -> str:
        """Id of the method."""
        return self.spec.method.id

    @property
    def has_intercept(self) -> bool:
        """Whether the first coefficient is an intercept."""
        return self.spec.intercept and self.model.has_coefficients

    @property
    def n_rows(self) -> int:
        """Rows of all sites."""
        return int(self.spec.data.sizes.sum())

    @property
    def n_sites(self) -> int:
        """Number of sites."""
        return len(self.spec.data.sizes)

    @property
    def site_sizes(self) -> dict[str, int]:
        """Rows of each site, by name; they are public."""
        return dict(zip(map(str, self.spec.data.sites), self.spec.data.sizes.tolist(), strict=True))

    @property
    def param_names(self) -> tuple[str, ...]:
        """Names of the columns of `coef_matrix`; for a network, of the features that it reads."""
        return (("intercept",) if self.has_intercept else ()) + self.spec.data.features

    @property
    def params(self) -> "pd.Series[float]":
        """Coefficients by name; by (class, name) for models with classes; by number for a network."""
        return pd.Series(self.coef_matrix.ravel(), index=self._index, name="coef")

    @property
    def _index(self) -> pd.Index:
        if not self.model.has_coefficients:
            return pd.RangeIndex(self.coef_matrix.size)
        if self.model.outputs == 1:
            return pd.Index(self.param_names)
        return pd.MultiIndex.from_product([[str(c) for c in self.model.classes], self.param_names])

    def predict(self, X: npt.ArrayLike | pd.DataFrame) -> FloatArray:
        """Expected responses.

        Parameters
        ----------
        X : array-like or DataFrame
            Rows of features on the original scale. A data frame may hold its columns in any order, and text columns
            as they were fitted.

        Returns
        -------
        FloatArray
            (n,), or (n, classes) of probabilities.

        Raises
        ------
        InputError
            If a column is missing.

        Examples
        --------
        >>> from fedmest import Federation, fit
        >>> fed = Federation.from_arrays([[0.0], [1.0], [2.0], [4.0]], [1.0, 3.0, 5.0, 9.0], ["a", "a", "b", "b"])
        >>> fit(fed, "linear", "np-pooled").predict([[3.0]]).round(6).tolist()
        [7.0]
        """
        values = self._values(X)
        mean = self.model.mean(self.model.predictors(values, self.coef_matrix, self.has_intercept))
        return mean if mean.shape[1] > 1 else np.asarray(mean[:, 0])

    def _values(self, X: npt.ArrayLike | pd.DataFrame) -> FloatArray:
        values = self._design(X) if isinstance(X, pd.DataFrame) else np.asarray(X, dtype=float)
        wanted = len(self.spec.data.features)
        if values.ndim != 2 or values.shape[1] != wanted:
            raise InputError(f"X has shape {values.shape}; the fit needs {wanted} feature columns")
        return values

    def _design(self, frame: pd.DataFrame) -> FloatArray:
        columns = []
        for name in self.spec.data.features:
            source, _, level = name.rpartition("=")
            if name in frame.columns:
                columns.append(frame[name].to_numpy(dtype=float))
            elif source in frame.columns:
                columns.append((frame[source].astype(str) == level).to_numpy(dtype=float))
            else:
                have = ", ".join(map(str, frame.columns))
                raise InputError(f"the fit needs a column {source or name!r}; the columns are {have}")
        return np.column_stack(columns)

    def loglike(self, federation: Federation) -> float:
        """Log-likelihood at the estimate. It is computed without noise and is not private.

        Parameters
        ----------
        federation : Federation
            Rows at hand.

        Returns
        -------
        float
        """
        eta = self.model.predictors(federation.design()[:, 1:], self.coef_matrix, self.has_intercept)
        return self.model.loglike(eta, self.model.encode_target(federation)[1])

    # -- standard errors --------------------------------------------------------------------------------------

    def cov_params(self) -> pd.DataFrame:
        """Covariance of the coefficients.

        Returns
        -------
        DataFrame

        Raises
        ------
        NoStandardErrors
            If there is no valid one; the message says why, and what would help.
        """
        return pd.DataFrame(self._cov(), index=self._index, columns=self._index)

    def _cov(self) -> FloatArray:
        total = self.covariance.total
        if total is None:
            raise NoStandardErrors(self.covariance.reason or "no standard errors")
        return total

    @property
    def bse(self) -> "pd.Series[float]":
        """Standard errors."""
        return pd.Series(np.sqrt(np.diag(self._cov())), index=self._index, name="std err")

    @property
    def tvalues(self) -> "pd.Series[float]":
        """Coefficients over their standard errors."""
        return (self.params / self.bse).rename(self._statistic)

    @property
    def pvalues(self) -> "pd.Series[float]":
        """Two-sided p-values for the hypothesis that a coefficient is zero."""
        values = 2 * stats.t.sf(np.abs(self.tvalues.to_numpy()), self.covariance.df)
        return pd.Series(values, index=self._index, name=f"P>|{self._statistic}|")

    @property
    def _statistic(self) -> str:
        return "z" if math.isinf(self.covariance.df) else "t"

    def summary_frame(self, alpha: float = 0.05) -> pd.DataFrame:
        """Coefficient table: standard errors, tests of zero, intervals; sampling error and privacy error apart.

        Parameters
        ----------
        alpha : float, default 0.05
            Intervals have level 1 - alpha.

        Returns
        -------
        DataFrame
            One row per coefficient.

        Raises
        ------
        NoStandardErrors
            If there are no valid standard errors.

        Examples
        --------
        >>> from fedmest import Federation, fit
        >>> rng = np.random.default_rng(0)
        >>> X, sites = rng.uniform(-1, 1, (400, 1)), np.repeat(["a", "b"], 200)
        >>> y = (X[:, 0] + rng.normal(size=400) > 0).astype(int)
        >>> fed = Federation.from_arrays(X, y, sites, bounds={"x1": (-1, 1)})
        >>> fit(fed, seed=1).summary_frame().columns.tolist()
        ['coef', 'std err', 'z', 'P>|z|', 'lower', 'upper', 'sampling', 'privacy']
        """
        half = self._half_widths(alpha)
        columns = {s.name: s for s in (self.params, self.bse, self.tvalues, self.pvalues)}
        frame = pd.DataFrame({**columns, "lower": self.params - half, "upper": self.params + half})
        parts = self.covariance
        if not parts.includes_privacy and parts.sampling is not None and parts.privacy is not None:
            frame["sampling"], frame["privacy"] = np.sqrt(np.diag(parts.sampling)), np.sqrt(np.diag(parts.privacy))
        return frame

    def conf_int(self, alpha: float = 0.05) -> pd.DataFrame:
        """Confidence intervals for the coefficients.

        Parameters
        ----------
        alpha : float, default 0.05
            Intervals have level 1 - alpha.

        Returns
        -------
        DataFrame
            Columns lower and upper, one row per coefficient.

        Raises
        ------
        NoStandardErrors
            If there are no valid standard errors.

        Examples
        --------
        >>> from fedmest import Federation, fit
        >>> rng = np.random.default_rng(0)
        >>> X, sites = rng.uniform(-1, 1, (400, 1)), np.repeat(["a", "b"], 200)
        >>> fed = Federation.from_arrays(X, X[:, 0] + rng.normal(size=400), sites)
        >>> ends = fit(fed, "linear", "np-pooled").conf_int(alpha=0.1)
        >>> bool(ends.loc["x1", "lower"] < 1 < ends.loc["x1", "upper"])
        True
        """
        return self.summary_frame(alpha)[["lower", "upper"]]

    def _half_widths(self, alpha: float) -> FloatArray:
        _check_alpha(alpha)
        return np.asarray(self.covariance.quantile(alpha) * self.bse.to_numpy(), dtype=float)

    def wald_test(self, R: npt.ArrayLike, r: npt.ArrayLike = 0.0) -> WaldTest:
        """Wald test of the restrictions R b = r, b the coefficients in the order of `params`.

        Parameters
        ----------
        R : array-like
            Restrictions (k, coefficients); a vector is one restriction.
        r : array-like, default 0
            Values that they are tested against.

        Returns
        -------
        WaldTest

        Raises
        ------
        InputError
            If R has another number of columns, or its rows depend on each other.
        NoStandardErrors
            If there are no valid standard errors.
        """
        return wald_test(self.coef_matrix.ravel(), self._cov(), self.covariance.df, R, r)

    def get_prediction(self, X: npt.ArrayLike | pd.DataFrame) -> "PredictionResult":
        """Mean responses for rows of features, with their standard errors.

        Parameters
        ----------
        X : array-like or DataFrame
            Rows of features, as in `predict`.

        Returns
        -------
        PredictionResult

        Raises
        ------
        InputError
            If the model has more than one linear predictor, or a column is missing.
        NoStandardErrors
            If there are no valid standard errors.

        Examples
        --------
        >>> from fedmest import Federation, fit
        >>> rng = np.random.default_rng(0)
        >>> X, sites = rng.uniform(-1, 1, (400, 1)), np.repeat(["a", "b"], 200)
        >>> fed = Federation.from_arrays(X, X[:, 0] + rng.normal(size=400), sites)
        >>> fit(fed, "linear", "np-pooled").get_prediction([[0.0], [1.0]]).summary_frame().columns.tolist()
        ['mean', 'lower', 'upper']
        """
        if self.model.outputs > 1 or not self.model.has_coefficients:
            raise InputError(f"intervals for means are for models with one linear predictor, not for {self.model.name}")
        values = self._values(X)
        design = np.column_stack([np.ones(len(values)), values]) if self.has_intercept else values
        sds = np.sqrt(np.einsum("ij,jk,ik->i", design, self._cov(), design))
        index = X.index if isinstance(X, pd.DataFrame) else None
        return PredictionResult(self, design @ self.coef_matrix[0], sds, index)

    @property
    def cov_description(self) -> str:
        """What the standard errors rest on, or why there are none."""
        covariance = self.covariance
        if covariance.total is None:
            return (covariance.reason[:1].upper() + covariance.reason[1:] or "No standard errors") + "."
        text = COV_DESCRIPTIONS[covariance.cov_type].format(df=covariance.df)
        if covariance.includes_privacy:
            return text + " They hold sampling and privacy error together."
        return text + " std err^2 = sampling^2 + privacy^2."

    # -- for people and programs ------------------------------------------------------------------------------

    def summary(self) -> str:
        """Coefficients, what the run was, and the privacy statement."""
        import textwrap

        kind = " regression" if self.model.has_coefficients else ""
        title = f"{self.model.label}{kind}, {self.spec.method.display_name}"
        if self.model.has_coefficients and self.model.outputs == 1 and self.model.classes:
            title += f"; log-odds of {self.model.classes[1]!r} against {self.model.classes[0]!r}"
        facts = (
            f"{self.n_rows:,} rows at {self.n_sites:,} sites; "
            f"{self.communication.rounds} rounds, {self.communication.bytes:,} bytes; seed {self.seed}"
        )
        lines = [title, facts, *self._network_lines(), "", *self.table(), ""]
        if self.model.has_coefficients:
            lines += [*textwrap.wrap(self.cov_description, 100), ""]
        lines += textwrap.wrap(self.privacy.statement(), 100)
        return "\n".join(lines)

    def _network_lines(self) -> list[str]:
        """What the network did, one line per round, and what went wrong on it."""
        network = self.network or {"rounds": [], "incidents": []}
        lines = [
            f"round {r['round']}: {r['query']}, {r['answered']} of {r['asked']} sites, {r['seconds']:.1f} s, "
            f"{r['bytes_down'] + r['bytes_up']:,} bytes"
            for r in network["rounds"]
        ]
        return lines + [printable(f"round {i['round']}: {i['site']} {i['what']}") for i in network["incidents"]]

    def table(self) -> list[str]:
        """The coefficient table, one line per row; for a network, its number of parameters."""
        from fedmest.interface.tables import coefficient_lines

        return coefficient_lines(self)

    def _blocks(self) -> list[pd.DataFrame]:
        """The table of each class; of other models, the table."""
        frame, step = self.summary_frame(), len(self.param_names)
        starts = range(0, len(frame), step)
        return [frame.iloc[at : at + step].set_axis(list(self.param_names), axis=0) for at in starts]

    def to_html(self) -> str:
        """A self-contained page: the guarantee, coefficients, budget, traffic, sites, settings."""
        from fedmest.interface.pages import fit_page

        return fit_page(self)

    def _repr_html_(self) -> str:
        """For notebooks: the table and the guarantee."""
        from fedmest.interface.pages import notebook

        return notebook(self)

    def fit_arguments(self) -> dict[str, Any]:
        """Arguments of `fit` that run the fit again on the same rows."""
        spec = self.spec
        mu = spec.mu if math.isfinite(spec.mu) else None
        given = {"model": spec.model.label, "method": spec.method.id, "mu": mu, "seed": self.seed}
        unused = spec.method.inapplicable_options.get(spec.settings.calibration, ())
        options = {name: value for name, value in vars(spec.method).items() if name not in unused}
        return {**given, **asdict(spec.settings), "options": options}

    def resolved_values(self) -> dict[str, Any]:
        """Public values that the run found: the clip norm, and centre and scale of each feature."""
        clip_norm, scaling = self.resolved["clip_norm"].bound, self.resolved["scaling"]
        pairs = zip(self.spec.data.features, scaling.centre, scaling.scale, strict=True)
        scales = {name: [float(c), float(s)] for name, c, s in pairs if self.model.has_coefficients}
        return {
            "clip_norm": clip_norm if math.isfinite(clip_norm) else None, "scaling": self.spec.scaling, "scales": scales
        }  # fmt: skip

    def to_dict(self) -> dict[str, Any]:
        """Plain numbers and texts, for JSON."""
        private = math.isfinite(self.privacy.mu)
        rows = [
            dict(zip(self.param_names, row.tolist(), strict=True))
            for row in self.coef_matrix
            if self.model.has_coefficients
        ]
        estimate: dict[str, Any] = {"parameters": self.coef_matrix.size}
        if self.model.has_coefficients:
            labels = map(str, self.model.classes)
            estimate = {"coefficients": dict(zip(labels, rows, strict=True)) if self.model.outputs > 1 else rows[0]}
        network = {"network": self.network} if self.network is not None else {}
        return {
            "model": self.model.label,
            "method": self.method,
            "n_rows": self.n_rows,
            "n_sites": self.n_sites,
            "classes": [str(label) for label in self.model.classes],
            **estimate,
            "covariance": self._covariance_dict(),
            "privacy": {
                "mu": self.privacy.mu if private else None,
                "epsilon_at_delta_1e-6": self.privacy.epsilon(1e-6) if private else None,
                "third_party_mu": self.privacy.third_party_mu() if private else None,
                "certified": self.privacy.certified,
                "caveats": list(self.privacy.caveats),
                "statement": self.privacy.statement(),
            },
            "communication": {
                "rounds": self.communication.rounds,
                "floats_up": self.communication.floats_up,
                "floats_down": self.communication.floats_down,
            },
            "settings": self.fit_arguments(),
            "resolved": self.resolved_values(),
            **network,
        }

    def _covariance_dict(self) -> dict[str, Any]:
        covariance = self.covariance
        if covariance.total is None:
            return {"cov_type": None, "reason": covariance.reason}
        df = covariance.df if math.isfinite(covariance.df) else None
        blocks = [frame.to_dict("index") for frame in self._blocks()]
        labels = [str(label) for label in self.model.classes]
        table = dict(zip(labels, blocks, strict=True)) if self.model.outputs > 1 else blocks[0]
        return {"cov_type": covariance.cov_type, "df": df, "table": table, "cov_params": covariance.total.tolist()}


@dataclass(frozen=True)
class PredictionResult:
    """Mean responses with their standard errors on the scale of the linear predictor.

    Parameters
    ----------
    result : Result
        The fit.
    linear, se_linear : FloatArray
        Linear predictor of each row, and its standard error.
    index : pandas.Index, optional
        Index of the rows.
    """

    result: Result = field(repr=False)
    linear: FloatArray
    se_linear: FloatArray
    index: pd.Index | None = field(default=None, repr=False)

    def summary_frame(self, alpha: float = 0.05) -> pd.DataFrame:
        """Mean response of each row, with an interval for that mean.

        Parameters
        ----------
        alpha : float, default 0.05
            Intervals have level 1 - alpha.

        Returns
        -------
        DataFrame
            Columns mean, lower and upper.
        """
        _check_alpha(alpha)
        half = self.result.covariance.quantile(alpha) * self.se_linear
        ends = {"mean": self.linear, "lower": self.linear - half, "upper": self.linear + half}
        return pd.DataFrame({name: self.result.model.mean(end) for name, end in ends.items()}, index=self.index)


def _check_alpha(alpha: float) -> None:
    if not 0 < alpha < 0.5:
        raise InputError(f"alpha={alpha!r} must lie between 0 and 0.5; 0.05 gives 95 % intervals")
