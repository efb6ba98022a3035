"""Sites have different numbers of rows, drawn anew in every repetition."""

from fedmest.studies.base import BOTH, PAPER_MODELS, POOLED, Layout, Study
from fedmest.studies.cells import Point, Sizes
from fedmest.studies.sources.simulated import Simulated

RANGES = ((10, 90), (20, 80), (30, 70), (60, 160), (80, 140), (100, 120))

STUDIES = tuple(
    Study(
        id=f"{model}-random",
        title=f"MSE against the number of sites, sizes uniform between two limits; {name} regression",
        figure=f"appendix, {'logistic regression' if model == 'logistic' else 'Poisson GLM'}, 'different n'",
        source=Simulated.create(model),
        points=tuple(Point(m, Sizes("uniform", *limits)) for limits in RANGES for m in (20, 30, 40, 50, 60)),
        estimators=(POOLED, *BOTH),
        layout=Layout(panels="method", lines="n", x="m"),
        claims=("C1", "C2", "C3", "C4"),
    )
    for model, name in PAPER_MODELS.items()
)
