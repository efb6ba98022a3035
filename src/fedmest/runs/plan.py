"""What a plan finds: methods at their best settings with their expected errors, and the recommended one."""

import math
from dataclasses import dataclass, field
from functools import cached_property
from shlex import quote
from typing import Any

from fedmest.core.text import listed
from fedmest.core.typing import IntArray
from fedmest.inference import rates
from fedmest.inference.covariance import MAX_TOTAL_BIAS_SHARE
from fedmest.inference.population import Population
from fedmest.inference.prediction import Prediction
from fedmest.queries import Role
from fedmest.runs.phases.estimation import EstimationPhase
from fedmest.runs.settings import Settings, flag_of
from fedmest.runs.spec import RunSpec

SETTINGS = frozenset(Settings.info())
NORMAL_95 = 1.959964
PARTS = ("sampling", "privacy", "optimisation", "bias")


@dataclass(frozen=True)
class Candidate:
    """A method at its best settings, with its expected error.

    Parameters
    ----------
    method : str
        Its id.
    settings : dict
        The settings and options that were chosen, as `fit` takes them.
    spec : RunSpec
        The run.
    prediction : Prediction
        Its expected error.
    population : Population
        What is assumed of the rows.
    """

    method: str
    settings: dict[str, Any]
    spec: RunSpec = field(repr=False)
    prediction: Prediction
    population: Population = field(repr=False)

    @cached_property
    def excess(self) -> float:
        """Expected error over that of the pooled fit, for rows as assumed."""
        return self.prediction.mse * self._rows / self.population.pooled_error

    @cached_property
    def regret(self) -> float:
        """The larger of the excess for rows as assumed and for harder ones."""
        return max(self.excess, self._harder.mse * self._rows / self.population.harder.pooled_error)

    @cached_property
    def missed(self) -> float:
        """Error that intervals would not show, over the error that they do; the larger of both populations."""
        return max(e.missed / (e.sampling + e.privacy) for e in (self.prediction, self._harder))

    @cached_property
    def _harder(self) -> Prediction:
        return self.spec.predict(self.population.harder)

    @property
    def _rows(self) -> float:
        return float(self.spec.data.sizes.sum())

    @property
    def has_intervals(self) -> bool:
        """Whether intervals are expected to be valid: the error is noise of known size, and next to no bias."""
        spec = self.spec
        last = spec.schedule.of(EstimationPhase.name)[-1].query.roles
        arrives = Role.RECORD_MOMENTS in last or Role.CURVATURE in last  # whatever the length of the steps
        if spec.route.cov_type == "none" or (spec.settings.cov_type == "robust" and not arrives):
            return False
        return self.missed <= (MAX_TOTAL_BIAS_SHARE if arrives else MAX_TOTAL_BIAS_SHARE / 5)

    @property
    def rounds(self) -> int:
        """Rounds of the run."""
        return len(self.spec.schedule.steps)

    @property
    def bytes(self) -> int:
        """Bytes that the run sends, in both directions."""
        return 8 * self.spec.floats

    @property
    def arguments(self) -> dict[str, Any]:
        """Arguments of `fit` that differ from its defaults, whether chosen or requested."""
        return {**self.spec.options, **self.spec.settings.changed(self.spec.model)}

    @property
    def half_width(self) -> float:
        """Half-width of a 95 % interval for a slope."""
        return NORMAL_95 * math.sqrt(float(self.prediction.variances.sum()))


@dataclass(frozen=True)
class Plan:
    """Ranked methods, the least expected error first, and the recommended one.

    Parameters
    ----------
    best : Candidate
        Rule: (1) keep methods with valid intervals, unless ``cov_type="none"`` or they cost more than 20 % in error and
        were not requested; (2) among those within 5 % of the smallest worst-case error take the fewest rounds.
    candidates : tuple of Candidate
        All methods with a prediction.
    left_out : dict
        Methods without a prediction or beyond the limits, with the reason.
    mu : float
        Privacy budget.
    population : Population
        What was assumed of the rows.
    sizes : IntArray
        Rows of each site.
    """

    best: Candidate
    candidates: tuple[Candidate, ...]
    left_out: dict[str, str]
    mu: float
    population: Population
    sizes: IntArray

    def __repr__(self) -> str:
        best, others = self.best, [c.method for c in self.candidates if c is not self.best]
        return (
            f"<Plan: {self.population.model.label}, mu = {self.mu:g}\n"
            f" {int(self.sizes.sum()):,} rows at {len(self.sizes):,} sites, {self.population.columns:,} columns\n"
            f" best: {best.method}, error {best.prediction.mse:.3g}, {best.excess:.3g} times that of the pooled fit\n"
            f" others: {listed(others) or 'none'}\n"
            f" left out: {listed(list(self.left_out)) or 'none'}>"
        )

    @property
    def pooled(self) -> float:
        """Expected error of the pooled fit without privacy."""
        return self.population.pooled_error / float(self.sizes.sum())

    @property
    def lower_bound(self) -> float:
        """Lower bound on the error of any private method at this budget, up to constants."""
        return self.lower_bound_at(self.mu)

    def lower_bound_at(self, mu: float) -> float:
        """Lower bound on the error of any private method, up to constants.

        The estimate zero is no farther off than the length of the true coefficients, which bounds it from above.

        Parameters
        ----------
        mu : float
            Privacy budget.

        Returns
        -------
        float
        """
        p = self.population
        rows = p.columns / p.pooled_error  # that one row counts for
        prior = p.columns / max(p.length(p.truth), 1e-300)
        return rates.lower_bound(self.sizes, p.columns, mu, rows, rows, prior)

    @property
    def effective_rows(self) -> float:
        """Number of rows without privacy that would be worth as much."""
        return float(rates.effective_sizes(self.sizes, self.population.columns, self.mu).sum())

    @property
    def fit_call(self) -> str:
        """The recommendation as a call of `fit`."""
        chosen = "".join(f", {name}={value!r}" for name, value in self.best.arguments.items())
        return f"fit(..., method={self.best.method!r}, mu={self.mu:g}{chosen})"

    @property
    def fit_command(self) -> str:
        """The recommendation as a shell command."""
        words = [
            "fedmest fit FILE --target COLUMN --site COLUMN",
            f"--model {quote(self.population.model.label)}",
            f"--method {self.best.method}",
            f"--mu {self.mu:g}",
        ]
        for name, value in self.best.arguments.items():
            known = f"{flag_of(name)} {value}" if name in SETTINGS else f"--option {name}={value}"
            words.append(flag_of(name) if isinstance(value, bool) and name in SETTINGS else known)
        return " ".join(words)

    def to_dict(self) -> dict[str, Any]:
        """Plain numbers and texts, for JSON."""
        return {
            "mu": self.mu if math.isfinite(self.mu) else None, "sites": len(self.sizes), "rows": int(self.sizes.sum()),
            "effective_rows": self.effective_rows, "model": self.population.model.label,
            "assumed": {key: getattr(self.population, key) for key in ("intercept", "slopes", "feature_sd")},
            "choice": {"method": self.best.method, "settings": self.best.settings}, "pooled_mse": self.pooled,
            "lower_bound": self.lower_bound, "left_out": self.left_out,
            "methods": [
                {
                    "method": c.method, "settings": c.settings, "mse": _number(c.prediction.mse),
                    **{key: _number(getattr(c.prediction, key)) for key in PARTS},
                    "half_width": _number(c.half_width), "rounds": c.rounds, "bytes": c.bytes,
                    "has_intervals": c.has_intervals,
                }
                for c in self.candidates
            ],
        }  # fmt: skip


def _number(value: float) -> float | None:
    """JSON knows no infinity."""
    return value if math.isfinite(value) else None
