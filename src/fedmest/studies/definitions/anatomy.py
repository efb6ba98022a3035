"""Where the error comes from. The same fits with the noise taken away, and with clipping taken away, too.

Not in the paper. It isolates the causes behind the verdicts: what the noise adds (mu against a budget so large that
clipping stays and noise is gone), what clipping adds (that against mu = inf), what the algorithm itself adds (mu = inf
against the pooled fit: steps that did not converge, averages of small sites).
"""

import math

from fedmest.studies.base import BOTH, PAPER_MODELS, POOLED, Layout, Study
from fedmest.studies.cells import Estimator, Point, Sizes
from fedmest.studies.sources.simulated import Simulated

NO_NOISE = 1e6  # a budget at which rows are clipped and noise is a millionth
STAGES = (math.inf, NO_NOISE, None)

STUDIES = tuple(
    Study(
        id=f"{model}-anatomy",
        title=f"Where the error comes from; {name} regression",
        figure="not in the paper",
        source=Simulated.create(model),
        points=(
            Point(20, Sizes("equal", 30)),
            Point(60, Sizes("equal", 30)),
            Point(20, Sizes("equal", 110)),
            Point(60, Sizes("equal", 110)),
            Point(20, Sizes("uniform", 10, 90)),
            Point(60, Sizes("uniform", 10, 90)),
            Point(100, Sizes("equal", 400)),
            Point(100, Sizes("lognormal", 5.5, 1)),
            Point(200, Sizes("equal", 100)),
            *(Point(40, Sizes("equal", 70), K=K) for K in (5, 50, 400)),
        ),
        estimators=(POOLED, *(Estimator(e.method, e.calibration, mu) for e in BOTH for mu in STAGES)),
        layout=Layout(panels="method", lines="stage", x="n"),
        claims=(),
    )
    for model, name in PAPER_MODELS.items()
)
