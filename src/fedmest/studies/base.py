"""A study is data: a grid, the estimators tried on it, how its figure is laid out, and the claims it bears on."""

from dataclasses import dataclass, replace

from fedmest.core import choices
from fedmest.methods import METHODS
from fedmest.studies.cells import Cell, DataSource, Estimator, Point
from fedmest.studies.sources.simulated import Simulated

SCALES = ("quick", "paper")

PAPER_MODELS = {"logistic": "logistic", "poisson": "Poisson"}  # of the paper's simulations, with their names in titles
PAPER_METHODS = ("fedsgd", "fedhybrid", "fedavg", "fednewton")  # the paper's methods, in the order of its panels
CALIBRATIONS = choices.CALIBRATIONS[::-1]  # the paper's first: the rows of a figure

POOLED = Estimator("np-pooled")
BOTH = tuple(Estimator(method, calibration) for calibration in CALIBRATIONS for method in PAPER_METHODS)
OURS = Estimator("fedirls")


@dataclass(frozen=True)
class Layout:
    """Panels side by side, lines in a panel, and what runs along the horizontal axis.

    Each is `method`, or what varies over the points: `m`, `n` (the sizes), `mu`, `K`. Where no curves of errors
    are drawn, `lines` names the drawing: `stage`, `box`, `accuracy`.
    """

    panels: str
    lines: str
    x: str


@dataclass(frozen=True)
class Study:
    """One experiment: where rows come from, the grid, the estimators, the figure, and the claims that it bears on."""

    id: str
    title: str
    figure: str  # in the paper
    source: DataSource
    points: tuple[Point, ...]
    estimators: tuple[Estimator, ...]
    layout: Layout
    claims: tuple[str, ...]
    note: str = ""  # what the paper leaves open and is decided here
    repetitions: tuple[int, int] = (10, 100)  # at each of SCALES
    block: int = 10  # repetitions in a cell
    apart: bool = False  # one cell per estimator, where one fit takes minutes
    quick: tuple[Point, ...] = ()  # the points of the quick scale; all, where none are named
    long: bool = False  # hours even so: the quick scale runs it only under its full id

    def at(self, scale: str) -> "Study":
        """The study with the points of a scale."""
        return replace(self, points=self.quick) if scale == "quick" and self.quick else self

    def changed(
        self, mu: float | None = None, theta: tuple[float, ...] | None = None, feature_sd: float | None = None
    ) -> "Study":
        """The study under another budget, truth or spread of the features; a budget that varies stays as it is."""
        points = self.points
        if mu is not None and len({point.mu for point in points}) == 1:
            points = tuple(replace(point, mu=mu) for point in points)
        source = self.source
        if isinstance(source, Simulated) and (theta is not None or feature_sd is not None):
            source = Simulated.create(source.model, theta, feature_sd)
        return replace(self, points=points, source=source)

    def cells(self, reps: int) -> list[Cell]:
        """The work, point by point. A longer study begins with the cells of a shorter one."""
        groups = [(e,) for e in self.estimators] if self.apart else [self.estimators]
        return [
            Cell(self.id, self.source, point, group, first, min(first + self.block, reps))
            for point in self.points
            for first in range(0, reps, self.block)
            for group in groups
        ]

    @property
    def methods(self) -> tuple[str, ...]:
        """Private methods of the study, in order, once each."""
        return tuple(dict.fromkeys(e.method for e in self.estimators if METHODS[e.method].private))
