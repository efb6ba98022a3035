"""What a fit returns."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
from scipy import stats

from fedmest.errors import InputError
from fedmest.federation import Federation
from fedmest.inference import Uncertainty
from fedmest.models import Model
from fedmest.privacy.gdp import Array
from fedmest.privacy.statement import PrivacyReport


@dataclass(frozen=True)
class Round:
    """What went back and forth in one round, over all sites that answered."""

    query: str
    sites: int
    floats_up: int
    floats_down: int


@dataclass(frozen=True)
class Communication:
    """Traffic of a run. Floats are 8 bytes."""

    by_round: tuple[Round, ...]

    @property
    def rounds(self) -> int:
        return len(self.by_round)

    @property
    def floats_up(self) -> int:
        return sum(r.floats_up for r in self.by_round)

    @property
    def floats_down(self) -> int:
        return sum(r.floats_down for r in self.by_round)

    @property
    def bytes(self) -> int:
        return 8 * (self.floats_up + self.floats_down)


@dataclass(frozen=True)
class Result:
    """An estimate with its privacy report. Coefficients are on the original scale, intercept first.

    A network's are all its parameters in one row, and `names` the features it reads.
    """

    coefficients: Array  # (outputs, d)
    names: tuple[str, ...]
    model: Model
    method: str
    privacy: PrivacyReport
    communication: Communication
    history: tuple[Array, ...]
    settings: dict[str, Any]
    fit_intercept: bool = True
    site_thetas: Array | None = field(default=None, repr=False)
    uncertainty: Uncertainty = field(default_factory=Uncertainty)
    sites: dict[str, int] = field(default_factory=dict, repr=False)  # names and sizes, which are public

    @property
    def theta(self) -> Array:
        """(d,) with the intercept first, or all of a network; (classes, d) for the multinomial model."""
        return self.coefficients if self.model.outputs > 1 else self.coefficients[0]

    def predict(self, X: npt.ArrayLike | pd.DataFrame) -> Array:
        """Expected response for rows of features on the original scale: (n,), or (n, classes) of probabilities.

        A data frame may hold its columns in any order, and text columns as they were fitted.
        """
        values = self._values(X)
        mean = self.model.mean(self.model.predictors(values, self.coefficients, self.fit_intercept))
        return mean if mean.shape[1] > 1 else np.asarray(mean[:, 0])

    def _values(self, X: npt.ArrayLike | pd.DataFrame) -> Array:
        values = self._design(X) if isinstance(X, pd.DataFrame) else np.asarray(X, dtype=float)
        wanted = len(self.names) - self.fit_intercept
        if values.ndim != 2 or values.shape[1] != wanted:
            raise InputError(f"X has shape {values.shape}; the fit needs {wanted} feature columns")
        return values

    def _design(self, frame: pd.DataFrame) -> Array:
        columns = []
        for name in self.names[self.fit_intercept :]:
            source, _, level = name.rpartition("=")
            if name in frame.columns:
                columns.append(frame[name].to_numpy(dtype=float))
            elif source in frame.columns:
                columns.append((frame[source].astype(str) == level).to_numpy(dtype=float))
            else:
                have = ", ".join(map(str, frame.columns))
                raise InputError(f"the fit needs a column {source or name!r}; the columns are {have}")
        return np.column_stack(columns)

    def log_likelihood(self, federation: Federation) -> float:
        """Log-likelihood at the estimate, of rows that you hold; it is computed without noise and is not private."""
        eta = self.model.predictors(federation.design()[:, 1:], self.coefficients, self.fit_intercept)
        return self.model.log_likelihood(eta, self.model.target(federation))

    # -- how sure it is -----------------------------------------------------------------------------------------

    @property
    def cov(self) -> Array:
        """Covariance of the coefficients, in the order of `frame`; an InputError says why where there is none."""
        total = self.uncertainty.total
        if total is None:
            raise InputError(self.uncertainty.why or "no standard errors")
        return total

    @property
    def bse(self) -> Array:
        """Standard errors, in the shape of `theta`."""
        return np.asarray(np.sqrt(np.diag(self.cov)).reshape(self.theta.shape))

    def frame(self, level: float = 0.95) -> pd.DataFrame:
        """The coefficient table: standard errors, tests of zero, intervals; how much is sampling, how much privacy."""
        _check_level(level)
        parts, total = self.uncertainty, np.diag(self.cov)
        assert parts.sampling is not None and parts.privacy is not None
        coef, errors = self.coefficients.ravel(), np.sqrt(total)
        ratio = coef / errors
        reach = parts.quantile(level) * errors
        index: pd.Index = pd.Index(self.names)
        if self.model.outputs > 1:
            index = pd.MultiIndex.from_product([[str(c) for c in self.model.classes], self.names])
        letter = "z" if math.isinf(parts.freedom) else "t"
        columns = {
            "coef": coef, "std err": errors, letter: ratio,
            f"P>|{letter}|": 2 * stats.t.sf(np.abs(ratio), parts.freedom), "lower": coef - reach, "upper": coef + reach,
        }  # fmt: skip
        if not parts.together:
            columns["sampling"], columns["privacy"] = np.sqrt(np.diag(parts.sampling)), np.sqrt(np.diag(parts.privacy))
        return pd.DataFrame(columns, index=index)

    def conf_int(self, level: float = 0.95) -> pd.DataFrame:
        """Intervals for the coefficients."""
        return self.frame(level)[["lower", "upper"]]

    def wald_test(self, R: npt.ArrayLike, r: npt.ArrayLike = 0.0) -> "WaldTest":
        """Test of R b = r, b the coefficients in the order of `frame`; a vector R is one restriction."""
        matrix = np.atleast_2d(np.asarray(R, dtype=float))
        size = self.coefficients.size
        if matrix.ndim != 2 or matrix.shape[1] != size:
            raise InputError(f"R has shape {matrix.shape}; it needs a column for each of the {size} coefficients")
        away = matrix @ self.coefficients.ravel() - np.asarray(r, dtype=float)
        within = matrix @ self.cov @ matrix.T
        if np.linalg.eigvalsh(within)[0] <= 1e-10 * np.linalg.norm(matrix) ** 2 * np.linalg.norm(self.cov):
            raise InputError("the restrictions in R repeat each other (or, of classes, sum to zero anyway)")
        statistic = float(away @ np.linalg.solve(within, away))
        count, freedom = len(matrix), self.uncertainty.freedom
        if math.isinf(freedom):
            return WaldTest(statistic, count, freedom, float(stats.chi2.sf(statistic, count)))
        return WaldTest(statistic / count, count, freedom, float(stats.f.sf(statistic / count, count, freedom)))

    def predict_interval(self, X: npt.ArrayLike | pd.DataFrame, level: float = 0.95) -> pd.DataFrame:
        """The mean response for rows of features, with an interval for that mean."""
        _check_level(level)
        if self.model.outputs > 1 or not self.model.linear:
            raise InputError(f"intervals for means are for models with one linear predictor, not for {self.model.name}")
        values = self._values(X)
        design = np.column_stack([np.ones(len(values)), values]) if self.fit_intercept else values
        eta = design @ self.coefficients[0]
        reach = self.uncertainty.quantile(level) * np.sqrt(np.einsum("ij,jk,ik->i", design, self.cov, design))
        ends = {"mean": eta, "lower": eta - reach, "upper": eta + reach}
        index = X.index if isinstance(X, pd.DataFrame) else None
        return pd.DataFrame({name: self.model.mean(end) for name, end in ends.items()}, index=index)

    def summary(self) -> str:
        """Coefficients, the settings that matter, and the privacy statement."""
        import textwrap

        title = f"{self.model.name}{' regression' if self.model.linear else ''}, {self.settings['method_title']}"
        if self.model.linear and self.model.outputs == 1 and self.model.classes:
            title += f"; log-odds of {self.model.classes[1]!r} against {self.model.classes[0]!r}"
        facts = (
            f"{self.settings['n_rows']:,} rows at {self.settings['n_sites']:,} sites; "
            f"{self.communication.rounds} rounds, {self.communication.bytes:,} bytes; seed {self.settings['seed']}"
        )
        lines = [title, facts, *self._network(), "", *self.table(), ""]
        if self.model.linear:
            lines += [*textwrap.wrap(self.how_sure(), 100), ""]
        lines += textwrap.wrap(self.privacy.statement(), 100)
        return "\n".join(lines)

    def _network(self) -> list[str]:
        """What the network did, a line a round, and what went wrong on it."""
        network = self.settings.get("network", {"rounds": [], "incidents": []})
        lines = [
            f"round {r['round']}: {r['query']}, {r['answered']} of {r['asked']} sites, {r['seconds']:.1f} s, "
            f"{r['bytes_down'] + r['bytes_up']:,} bytes"
            for r in network["rounds"]
        ]
        return lines + [f"round {i['round']}: {i['site']} {i['what']}" for i in network["incidents"]]

    def table(self) -> list[str]:
        """The coefficient table, a line each; of a network, how many parameters it has."""
        if not self.model.linear:
            return [f"{self.theta.size:,} parameters for {len(self.model.classes)} classes"]
        if self.uncertainty.total is not None:
            return self._full_table()
        labels = [str(c) for c in self.model.classes] if self.model.outputs > 1 else ["coef"]
        width = max(len(n) for n in self.names)
        head = " " * width + "".join(f"{label[:12]:>13}" for label in labels)
        rows = [
            f"{name:<{width}}" + "".join(f"{value:>13}" for value in aligned(self.coefficients[:, j].tolist()))
            for j, name in enumerate(self.names)
        ]
        return [head, *rows]

    def _errors(self) -> dict[str, Any]:
        u = self.uncertainty
        if u.total is None:
            return {"route": None, "why": u.why}
        freedom = u.freedom if math.isfinite(u.freedom) else None
        blocks = [frame.to_dict("index") for frame in self._blocks()]
        labels = [str(label) for label in self.model.classes]
        table = dict(zip(labels, blocks, strict=True)) if self.model.outputs > 1 else blocks[0]
        return {"route": u.route, "degrees_of_freedom": freedom, "table": table, "covariance": u.total.tolist()}

    def _blocks(self) -> list[pd.DataFrame]:
        """The table of each class; of other models, the table."""
        frame, step = self.frame(), len(self.names)
        starts = range(0, len(frame), step)
        return [frame.iloc[at : at + step].set_axis(list(self.names), axis=0) for at in starts]

    def _full_table(self) -> list[str]:
        """With standard errors, as statisticians know it; classes one below the other."""
        frame = self.frame()
        width = max(len(n) for n in self.names)
        heads = {"lower": "[0.025", "upper": "0.975]"}
        lines = [" " * width + "".join(f"{heads.get(c, c):>11}" for c in frame.columns)]
        for number, rows in enumerate(self._blocks()):
            if self.model.outputs > 1:
                lines.append(f"class {self.model.classes[number]}")
            for name, row in zip(self.names, rows.itertuples(index=False), strict=True):
                texts = [f"{v:.3f}" if c in ("z", "t") or c.startswith("P>") else short(v)
                         for c, v in zip(frame.columns, row, strict=True)]  # fmt: skip
                lines.append(f"{name:<{width}}" + "".join(f"{text:>11}" for text in texts))
        return lines

    def how_sure(self) -> str:
        """What the standard errors rest on, or why there are none."""
        u = self.uncertainty
        if u.total is None:
            return (u.why[:1].upper() + u.why[1:] or "No standard errors") + "."
        text = {
            "model": "Standard errors suppose that the model is right.",
            "sandwich": "Standard errors hold where the model is wrong, too (sandwich).",
            "sites": f"Standard errors from the spread of the sites' replies ({u.freedom:.0f} degrees of freedom).",
        }[u.route]
        if u.together:
            return text + " They hold sampling and privacy error together."
        return text + " std err^2 = sampling^2 + privacy^2."

    def to_html(self) -> str:
        """A page that needs nothing else: the guarantee, coefficients, budget, traffic, sites, settings."""
        from fedmest.report.views import fit_page

        return fit_page(self)

    def _repr_html_(self) -> str:
        """For notebooks: the table and the guarantee."""
        from fedmest.report.views import notebook

        return notebook(self)

    def as_dict(self) -> dict[str, Any]:
        """Plain numbers and texts, for JSON."""
        private = math.isfinite(self.privacy.mu)
        rows = [dict(zip(self.names, row.tolist(), strict=True)) for row in self.coefficients if self.model.linear]
        estimate: dict[str, Any] = {"parameters": self.coefficients.size}
        if self.model.linear:
            labels = map(str, self.model.classes)
            estimate = {"coefficients": dict(zip(labels, rows, strict=True)) if self.model.outputs > 1 else rows[0]}
        return {
            "model": self.model.name,
            "method": self.method,
            "classes": [str(label) for label in self.model.classes],
            **estimate,
            "errors": self._errors(),
            "privacy": {
                "mu": self.privacy.mu if private else None,
                "epsilon_at_delta_1e-6": self.privacy.epsilon(1e-6) if private else None,
                "third_party_mu": self.privacy.third_party if private else None,
                "certified": self.privacy.certified,
                "caveats": list(self.privacy.caveats),
                "statement": self.privacy.statement(),
            },
            "communication": {
                "rounds": self.communication.rounds,
                "floats_up": self.communication.floats_up,
                "floats_down": self.communication.floats_down,
            },
            "settings": self.settings,
        }


@dataclass(frozen=True)
class WaldTest:
    """Chi-square with `count` degrees of freedom, or F with `count` and `freedom` where these are few."""

    statistic: float
    count: int
    freedom: float
    pvalue: float


def _check_level(level: float) -> None:
    if not 0 < level < 1:
        raise InputError(f"level={level!r} must lie between 0 and 1, such as 0.95")


def short(value: float) -> str:
    """Four decimals, or powers of ten where these would say nothing."""
    return f"{value:.4f}" if 1e-2 <= abs(value) < 1e5 or value == 0 else f"{value:.2e}"


def aligned(values: Sequence[float]) -> list[str]:
    """Five decimals, so that columns line up; powers of ten where these would say nothing."""
    plain = 1e-3 <= max(abs(v) for v in values) < 1e5 or not any(values)
    return [f"{v:.5f}" if plain else f"{v:.3e}" for v in values]
