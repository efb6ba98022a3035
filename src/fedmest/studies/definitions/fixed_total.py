"""The same 20,000 rows, spread over more and more sites."""

from fedmest.studies.base import BOTH, OURS, PAPER_MODELS, POOLED, Layout, Study
from fedmest.studies.cells import Point, Sizes
from fedmest.studies.sources.simulated import Simulated

TOTAL = 20_000
# relative to their mean, the sizes of the comparison: all alike, uniform on 1/4 to 7/4, lognormal with sd 1
LAWS = (
    Sizes("equal", 1, total=TOTAL),
    Sizes("uniform", 1000, 7000, total=TOTAL),
    Sizes("lognormal", 0, 1, total=TOTAL),
)

STUDIES = tuple(
    Study(
        id=f"{model}-fixed-total",
        title=f"{TOTAL:,} rows in all, over more and more sites; {name} regression",
        figure=f"{'Figure 5' if model == 'logistic' else 'appendix, Poisson GLM'}, fixed total sample size",
        source=Simulated.create(model),
        points=tuple(Point(m, sizes) for sizes in LAWS for m in (20, 50, 100, 150, 200)),
        estimators=(POOLED, *BOTH, OURS),
        layout=Layout(panels="n", lines="method", x="m"),
        claims=("C7",),
        note="The paper does not say how far m grows; here from 20 to 200, that is, from 1,000 rows per site to 100. "
        "No site has fewer than 10 rows.",
    )
    for model, name in PAPER_MODELS.items()
)
