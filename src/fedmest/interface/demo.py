"""Private regression on real data, for `fedmest demo`: two questions to the RAND Health Insurance Experiment."""

from collections.abc import Callable
from dataclasses import dataclass

from fedmest.data.federation import Federation
from fedmest.data.rand_hie import FEATURES, load
from fedmest.runs.fit import fit
from fedmest.runs.result import Result

NOTES = (
    "What is protected is a row. In these data a row is one person in one year, and a person has up to five: "
    "someone who looks for a person with k rows faces k times mu at most.",
    "Much of a difference is not noise but clipping, which limits the pull of single rows. It changes little "
    "where the model holds; but visits vary far more than a Poisson count would, and people with very many "
    "weigh less here. The intercept shows it most.",
)


@dataclass(frozen=True)
class DemoFit:
    """One question of the demo, answered without and with privacy."""

    title: str
    pooled: Result
    private: Result


def demo_fits(mu: float, seed: int, progress: Callable[[int, int], None] | None = None) -> list[DemoFit]:
    """Any visit to a doctor in the year (logistic), and the number of visits (Poisson)."""
    frame = load()
    bounds = dict(FEATURES.values())
    questions = (
        ("Any visit to a doctor in the year (logistic)", "any visit", "logistic"),
        ("Number of visits to a doctor in the year (Poisson)", "visits", "poisson"),
    )
    done = []
    for number, (title, target, model) in enumerate(questions):
        federation = Federation.from_frame(frame, target, "site", features=list(bounds), bounds=bounds, missing="drop")
        pooled = fit(federation, model, "np-pooled")
        if progress is not None:
            progress(2 * number + 1, 2 * len(questions))
        private = fit(federation, model, "fedirls", mu, seed=seed)
        if progress is not None:
            progress(2 * number + 2, 2 * len(questions))
        done.append(DemoFit(title, pooled, private))
    return done
