"""What an attack found, beside what is claimed, and its picture."""

import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from scipy import stats

from fedmest.privacy.gdp import Array


@dataclass(frozen=True)
class Audit:
    """What an attack found, beside what is claimed.

    `mu_lower` holds with the given confidence. `mu_exact` is what the best test of this attack would find, known where
    all that the site sends is Gaussian given the past, with the noise that the queries state.
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
    scene: str
    certified: bool
    leak: str = ""  # what tells the data sets apart, or undoes the noise, whatever its size
    scores: tuple[Array, Array] = field(repr=False, default=(np.zeros(0), np.zeros(0)))

    @property
    def broken(self) -> bool:
        """Whether the claim is refuted, at this confidence."""
        return bool(self.leak) or self.mu_lower > self.mu_claimed

    @property
    def verdict(self) -> str:
        return "refuted" if self.broken else "not refuted"

    def roc(self) -> tuple[Array, Array]:
        """False and true positive rates of the attack at every threshold."""
        cuts = np.unique(np.concatenate(self.scores))[::-1]
        rates = [1 - np.searchsorted(np.sort(s), cuts, side="left") / len(s) for s in self.scores]
        return np.concatenate([[0.0], rates[0]]), np.concatenate([[0.0], rates[1]])

    def as_dict(self) -> dict[str, Any]:
        """Plain numbers and texts, for JSON, which knows no infinity."""
        names = (
            "method", "model", "calibration", "observer", "release", "mu_claimed", "mu_lower", "mu_exact", "confidence",
            "games", "false_positives", "false_negatives", "scene", "certified", "leak", "verdict",
        )  # fmt: skip
        values = {name: getattr(self, name) for name in names}
        return {k: None if isinstance(v, float) and not math.isfinite(v) else v for k, v in values.items()}

    def plot(self, path: str | Path) -> None:
        """The attack's ROC curve, and the most that the claim allows."""
        draw_roc(self, Path(path))


def draw_roc(found: Audit, path: Path) -> None:
    from fedmest.studies.figures import STYLE, check_installed

    check_installed()
    import matplotlib
    from matplotlib import pyplot as plt

    with matplotlib.rc_context(STYLE):
        figure, axes = plt.subplots(figsize=(4.2, 4.2), layout="constrained")
        rates = np.linspace(0, 1, 500)
        claimed = stats.norm.cdf(stats.norm.ppf(rates) + found.mu_claimed)
        axes.fill_between(rates, claimed, 1, color="0.92", linewidth=0)
        axes.plot(rates, claimed, color="0.25", label=f"most that {found.mu_claimed:.3g}-GDP allows")
        axes.plot([0, 1], [0, 1], color="0.7", linestyle=":", label="guessing")
        if len(found.scores[0]):
            axes.plot(*found.roc(), color="#D55E00", label=f"attack: {found.scene}")
        axes.set(xlim=(0, 1), ylim=(0, 1), xlabel="false positives", ylabel="true positives", aspect="equal",
                 title=f"{found.method}, {found.model}, {found.calibration}")  # fmt: skip
        axes.legend(loc="lower right")
        figure.savefig(path, dpi=150)
        plt.close(figure)
