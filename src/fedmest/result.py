"""What a fit returns."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from fedmest.errors import InputError
from fedmest.federation import Federation
from fedmest.models import Model
from fedmest.privacy.gdp import Array
from fedmest.privacy.statement import PrivacyReport


@dataclass(frozen=True)
class Communication:
    """Traffic of a run. Floats are 8 bytes."""

    rounds: int
    floats_up: int
    floats_down: int

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

    @property
    def theta(self) -> Array:
        """(d,) with the intercept first, or all of a network; (classes, d) for the multinomial model."""
        return self.coefficients if self.model.outputs > 1 else self.coefficients[0]

    def predict(self, X: npt.ArrayLike | pd.DataFrame) -> Array:
        """Expected response for rows of features on the original scale: (n,), or (n, classes) of probabilities.

        A data frame may hold its columns in any order, and text columns as they were fitted.
        """
        values = self._design(X) if isinstance(X, pd.DataFrame) else np.asarray(X, dtype=float)
        wanted = len(self.names) - self.fit_intercept
        if values.ndim != 2 or values.shape[1] != wanted:
            raise InputError(f"X has shape {values.shape}; the fit needs {wanted} feature columns")
        mean = self.model.mean(self.model.predictors(values, self.coefficients, self.fit_intercept))
        return mean if mean.shape[1] > 1 else np.asarray(mean[:, 0])

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
        labels = [str(c) for c in self.model.classes] if self.model.outputs > 1 else ["coef"]
        width = max(len(n) for n in self.names)
        head = " " * width + "".join(f"{label[:12]:>13}" for label in labels)
        rows = [
            f"{name:<{width}}" + "".join(f"{value:>13}" for value in aligned(self.coefficients[:, j].tolist()))
            for j, name in enumerate(self.names)
        ]
        return [head, *rows]

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


def aligned(values: Sequence[float]) -> list[str]:
    """Five decimals, so that columns line up; powers of ten where these would say nothing."""
    plain = 1e-3 <= max(abs(v) for v in values) < 1e5 or not any(values)
    return [f"{v:.5f}" if plain else f"{v:.3e}" for v in values]
