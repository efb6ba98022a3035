"""The methods against each other, sites of about 400 rows."""

from fedmest.studies.base import BOTH, OURS, PAPER_MODELS, POOLED, Layout, Study
from fedmest.studies.cells import Point, Sizes
from fedmest.studies.sources.simulated import Simulated

LAWS = (Sizes("uniform", 100, 700), Sizes("equal", 400), Sizes("lognormal", 5.5, 1))

STUDIES = tuple(
    Study(
        id=f"{model}-compare",
        title=f"The methods against each other, about 400 rows per site; {name} regression",
        figure=f"{'Figure 3' if model == 'logistic' else 'Poisson GLM'}, sizes with mean around 400",
        source=Simulated.create(model),
        points=tuple(Point(m, sizes) for sizes in LAWS for m in (60, 80, 100, 120, 140)),
        estimators=(POOLED, *BOTH, OURS),
        layout=Layout(panels="n", lines="method", x="m"),
        claims=("C1", "C3", "C4", "C5"),
    )
    for model, name in PAPER_MODELS.items()
)
