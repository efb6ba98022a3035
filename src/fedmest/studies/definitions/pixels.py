"""Regressions on MNIST's pixels: odd against even digits, and all ten."""

from fedmest.studies.base import CALIBRATIONS, PAPER_METHODS, POOLED, Layout, Study
from fedmest.studies.cells import Estimator, Point, Sizes
from fedmest.studies.sources.images import PixelRegression

BUDGETS = (6.0, 2.0)
PRIVATE = (*PAPER_METHODS, "scaffold")
BASELINES = (Estimator("np-scaffold"), Estimator("np-fedavg"), Estimator("np-local"), POOLED)
# 800 images per site at least, the rest by random proportions
POINT = Point(80, Sizes("uniform", 1, 1000, total=70_000, least=800))

STUDIES = tuple(
    Study(
        id=f"mnist-{name}",
        title=title,
        figure=f"MNIST, {'binary' if name == 'binary' else 'multiclass'} logistic regression",
        source=PixelRegression("mnist", model, ridge=1e-2),
        points=(POINT,),
        estimators=(
            *(Estimator(m, c, mu) for c in CALIBRATIONS for mu in BUDGETS for m in PRIVATE),
            *BASELINES,
        ),
        layout=Layout(panels="mu", lines="box", x="method"),
        claims=(claim,),
        note="Fold-averaged scores of 80 sites in 3 partitions; the dotted line is the best private median. The paper "
        "states no ridge, but half a site's rows have a singular Hessian: all nine estimators have the same, the power "
        "of ten at which sites alone do best.",
        repetitions=(5, 15),
        block=1,
    )
    for name, model, claim, title in (
        ("binary", "logistic", "C9", "Odd or even? Logistic regression on MNIST, 80 sites"),
        ("multiclass", "multinomial", "C10", "Which digit? Multinomial regression on MNIST, 80 sites"),
    )
)
