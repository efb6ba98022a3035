"""Error against the number of iterations: more steps come closer to the optimum and need more noise each."""

import math

from fedmest.studies.base import BOTH, PAPER_MODELS, POOLED, Layout, Study
from fedmest.studies.cells import Point, Sizes
from fedmest.studies.sources.simulated import Simulated

STUDIES = tuple(
    Study(
        id=f"{model}-iterations",
        title=f"MSE against the number of iterations; {name} regression",
        figure=f"{'Figure 4' if model == 'logistic' else 'appendix, Poisson GLM'}, accuracy and privacy trade-off",
        source=Simulated.create(model),
        points=tuple(
            Point(40, Sizes("equal", 70), mu, K) for mu in (2.0, 6.0, math.inf) for K in (5, 10, 20, 50, 100, 200, 400)
        ),
        estimators=(POOLED, *BOTH),
        layout=Layout(panels="method", lines="mu", x="K"),
        claims=("C6",),
        note="The paper does not say how many sites and rows; m = 40 and n = 70 are the middle of its first grid. "
        "K counts FedSGD's rounds; FedHybrid's local steps and rounds together, 3 to 2; local steps per round of "
        "FedAvg (two rounds) and FedNewton (one).",
    )
    for model, name in PAPER_MODELS.items()
)
