"""The result of an audit."""

import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from fedmest.core.text import shorten
from fedmest.core.typing import FloatArray


@dataclass(frozen=True)
class AuditResult:
    """Result of an attack, compared with the claim; returned by `fedmest.audit`.

    Attributes
    ----------
    method, model, calibration : str
        What was attacked.
    observer : str
        "server" sees every reply of the site, "public" only the published estimate.
    release : str or None
        The one kind of release that was attacked; None: all of them.
    mu_claimed : float
        mu as the run states it.
    mu_lower : float
        Lower bound on mu that holds with the given confidence.
    mu_exact : float or None
        mu that the best test of this attack would find; known where every reply is Gaussian given the past, with the
        noise that the queries state.
    confidence : float
        Confidence of `mu_lower`.
    games : int
        Number of games that were judged, half of them with either data set.
    false_positives, false_negatives : int
        Mistakes of the attacker in these games.
    scenario : str
        The attack.
    certified : bool
        Whether the claim is backed by proved sensitivities.
    leak : str
        What tells the data sets apart, or undoes the noise, at any noise level; empty if nothing does.
    scores : tuple of two arrays
        The attacker's scores in the games with either data set.
    """

    method: str
    model: str
    calibration: str
    observer: str
    release: str | None
    mu_claimed: float
    mu_lower: float
    mu_exact: float | None
    confidence: float
    games: int
    false_positives: int
    false_negatives: int
    scenario: str
    certified: bool
    leak: str = ""
    scores: tuple[FloatArray, FloatArray] = field(repr=False, default=(np.zeros(0), np.zeros(0)))

    def __repr__(self) -> str:
        wrong = self.false_positives + self.false_negatives
        found = f"at least {self.mu_lower:.3g} with {100 * self.confidence:g} % confidence"
        exact = "" if self.mu_exact is None else f", {self.mu_exact:.3g} by the best test"
        return (
            f"<AuditResult: {self.method}, {shorten(self.model, 60)}, {self.calibration}: {self.verdict}\n"
            f" mu: claimed {self.mu_claimed:.3g}; {found}{exact}\n"
            f" {self.games:,} games, {wrong:,} mistakes, observer {self.observer}\n"
            f" scenario: {shorten(self.scenario)}{f', release {shorten(self.release, 40)}' if self.release else ''}\n"
            f" leak: {shorten(self.leak) or 'none'}>"
        )

    @property
    def refuted(self) -> bool:
        """Whether the claim is refuted, at this confidence."""
        return bool(self.leak) or self.mu_lower > self.mu_claimed

    @property
    def verdict(self) -> str:
        """Whether the claim is refuted, in words."""
        return "refuted" if self.refuted else "not refuted"

    def roc(self) -> tuple[FloatArray, FloatArray]:
        """ROC curve of the attack.

        Returns
        -------
        false_positive_rates, true_positive_rates : ndarray
            At every threshold, the strictest first.
        """
        cuts = np.unique(np.concatenate(self.scores))[::-1]
        rates = [1 - np.searchsorted(np.sort(s), cuts, side="left") / len(s) for s in self.scores]
        return np.concatenate([[0.0], rates[0]]), np.concatenate([[0.0], rates[1]])

    def to_dict(self) -> dict[str, Any]:
        """Plain numbers and texts for JSON; None where a number is infinite.

        Returns
        -------
        dict
        """
        names = (
            "method", "model", "calibration", "observer", "release", "mu_claimed", "mu_lower", "mu_exact", "confidence",
            "games", "false_positives", "false_negatives", "scenario", "certified", "leak", "verdict",
        )  # fmt: skip
        values = {name: getattr(self, name) for name in names}
        return {k: None if isinstance(v, float) and not math.isfinite(v) else v for k, v in values.items()}
