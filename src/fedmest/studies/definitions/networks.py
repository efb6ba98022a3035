"""The paper's networks: accuracy against the rows of a site, and against the number of sites that share all rows."""

from fedmest.studies.base import CALIBRATIONS, Layout, Study
from fedmest.studies.cells import Estimator, Point, Sizes
from fedmest.studies.sources.images import NetworkTraining

METHODS = ("fedsgd", "fedhybrid", "fedavg", "fednewton-iter")
OURS = Estimator("fedsgd-m")
ESTIMATORS = (*(Estimator(method, calibration) for calibration in CALIBRATIONS for method in METHODS), OURS)
NAMES = {"mnist": "MNIST", "cifar10": "CIFAR-10"}
SOURCES = {
    "mnist": NetworkTraining("mnist", "mnist-cnn", rounds=10, steps=10, eta=0.01, server_eta=1.0, clip_norm=1.0),
    "cifar10": NetworkTraining("cifar10", "cifar-cnn", rounds=10, steps=30, eta=0.005, server_eta=0.75, clip_norm=0.75),
}
ROWS = {"mnist": (50, 75, 100, 200, 300, 400, 600), "cifar10": (50, 75, 100, 200, 300, 400, 500)}
SITES = (100, 200, 300, 500, 800, 1000)
TOTAL = {"mnist": 60_000, "cifar10": 50_000}
QUICK_ROWS, QUICK_SITES = (50, 400), (100, 1000)
NOTE = "Quick has one run at the ends of the grid, paper all points."
LONG = {"cifar10"}  # about 400 minutes of core time with all training images, at the quick scale
LONG_NOTE = " About 400 minutes of core time even so, so quick leaves this study out unless its full id is given."


def _samples(rows: tuple[int, ...]) -> tuple[Point, ...]:
    return tuple(Point(100, Sizes("equal", n)) for n in rows)


def _clients(name: str, sites: tuple[int, ...]) -> tuple[Point, ...]:
    return tuple(Point(m, Sizes("equal", 1, total=TOTAL[name])) for m in sites)


STUDIES = (
    *(
        Study(
            id=f"cnn-samples-{name}",
            title=f"A network on {NAMES[name]}, 100 sites, more and more rows per site",
            figure=f"CNN, increasing samples per client, {NAMES[name]}",
            source=SOURCES[name], points=_samples(ROWS[name]), quick=_samples(QUICK_ROWS),
            estimators=ESTIMATORS, layout=Layout(panels="calibration", lines="accuracy", x="n"), claims=("C11",),
            note=NOTE, repetitions=(1, 5), block=1, apart=True,
        )
        for name in NAMES
    ),
    *(
        Study(
            id=f"cnn-clients-{name}",
            title=f"A network on {NAMES[name]}, the whole training split over more and more sites",
            figure=f"CNN, increasing number of clients, {NAMES[name]}",
            source=SOURCES[name], points=_clients(name, SITES), quick=_clients(name, QUICK_SITES),
            estimators=ESTIMATORS, layout=Layout(panels="calibration", lines="accuracy", x="m"), claims=("C12",),
            note=NOTE + (LONG_NOTE if name in LONG else ""), repetitions=(1, 4), block=1, apart=True, long=name in LONG,
        )
        for name in NAMES
    ),
)  # fmt: skip
