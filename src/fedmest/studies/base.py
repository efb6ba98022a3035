"""A study is data: a grid, the estimators tried on it, how its figure is laid out, and the claims it bears on."""

from dataclasses import dataclass, replace

from fedmest.methods import METHODS
from fedmest.studies.cells import Cell, Design, Estimator, Point, cells

NAMES = {"logistic": "logistic", "poisson": "Poisson"}
MODELS = tuple(NAMES)
PAPER = ("fedsgd", "fedhybrid", "fedavg", "fednewton")  # the paper's methods, in the order of its panels
CALIBRATIONS = ("paper", "certified")  # the rows of a figure

POOLED = Estimator("np-pooled")
BOTH = tuple(Estimator(method, calibration) for calibration in CALIBRATIONS for method in PAPER)
OURS = Estimator("fedirls")


@dataclass(frozen=True)
class Layout:
    """Panels side by side, lines in a panel, and what runs along the horizontal axis.

    Each is `method`, or what varies over the points: `m`, `n` (the sizes), `mu`, `K`.
    """

    panels: str
    lines: str
    x: str


@dataclass(frozen=True)
class Study:
    id: str
    title: str
    figure: str  # in the paper
    design: Design
    points: tuple[Point, ...]
    estimators: tuple[Estimator, ...]
    layout: Layout
    claims: tuple[str, ...]
    note: str = ""  # what the paper does not say and is settled here

    def changed(
        self, mu: float | None = None, theta: tuple[float, ...] | None = None, feature_sd: float | None = None
    ) -> "Study":
        """The study under another budget, truth or spread of the features; a budget that varies stays as it is."""
        points = self.points
        if mu is not None and len({point.mu for point in points}) == 1:
            points = tuple(replace(point, mu=mu) for point in points)
        return replace(self, points=points, design=Design.of(self.design.model, theta, feature_sd))

    def cells(self, reps: int) -> list[Cell]:
        return cells(self.id, self.design, self.points, self.estimators, reps)

    @property
    def methods(self) -> tuple[str, ...]:
        """Private methods of the study, in order, once each."""
        return tuple(dict.fromkeys(e.method for e in self.estimators if METHODS[e.method].private))


def cost(cell: Cell) -> float:
    """A guess of the seconds that one core needs, for `--list` and the time left: rows, steps and fits as measured."""
    point, rows = cell.point, cell.point.rows()
    seconds = 2e-3 + 1.5e-7 * rows
    for estimator in cell.estimators:
        counts = cell.design.model == "poisson" and estimator.calibration == "certified"
        steps = 5 if estimator.method in ("np-pooled", "fedirls") else point.K or 50
        local = estimator.method in ("fedavg", "fednewton")
        every_step = 3e-5 + 5e-7 * point.m if local else 1.8e-4
        rounds = 2 if estimator.method == "fedavg" else 1
        seconds += 2.5e-3 + rounds * steps * (every_step + rows * (3.2e-8 if counts else 7e-9))
    return (cell.last - cell.first) * seconds
