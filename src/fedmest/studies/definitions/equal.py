"""All sites have the same number of rows (the paper's first simulations)."""

from fedmest.studies.base import BOTH, PAPER_MODELS, POOLED, Layout, Study
from fedmest.studies.cells import Point, Sizes
from fedmest.studies.sources.simulated import Simulated

FIGURES = {"logistic": "Figures 1 and 2", "poisson": "appendix, Poisson GLM, 'same n'"}

STUDIES = tuple(
    Study(
        id=f"{model}-equal",
        title=f"MSE against the number of sites, every site with n rows; {name} regression",
        figure=FIGURES[model],
        source=Simulated.create(model),
        points=tuple(Point(m, Sizes("equal", n)) for n in (30, 50, 70, 90, 110) for m in (20, 30, 40, 50, 60)),
        estimators=(POOLED, *BOTH),
        layout=Layout(panels="method", lines="n", x="m"),
        claims=("C1", "C2", "C3", "C4"),
    )
    for model, name in PAPER_MODELS.items()
)
