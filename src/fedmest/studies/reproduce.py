"""From ids of studies to verdicts: compute the cells that are missing in a folder, and judge the paper's claims."""

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pandas as pd

from fedmest.core.exceptions import InputError
from fedmest.studies import STUDIES, claims, studies_named
from fedmest.studies.base import SCALES, Study
from fedmest.studies.cells import Cell
from fedmest.studies.claims import Finding
from fedmest.studies.runner import Done, check, check_installed, complete
from fedmest.studies.sources.simulated import Simulated
from fedmest.studies.store import Store
from fedmest.studies.summary import ErrorTable


@dataclass(frozen=True)
class ReproductionJob:
    """Which studies to run, at which scale and under which options."""

    studies: tuple[Study, ...]
    repetitions: int | None  # None: each study's own at this scale
    options: dict[str, Any]
    scale: str = "quick"

    @classmethod
    def create(
        cls,
        ids: Sequence[str] = (),
        scale: str = "quick",
        reps: int | None = None,
        mu: float | None = None,
        theta: tuple[float, ...] | None = None,
        feature_sd: float | None = None,
    ) -> "ReproductionJob":
        """All simulations unless studies are named; `mu`, `theta` (the intercept first), `feature_sd` change them.

        At the quick scale, a long study is left out unless its full id is given.
        """
        if scale not in SCALES:
            raise InputError(f"there is no scale {scale!r}; choose {' or '.join(SCALES)}")
        if reps is not None and reps < 2:
            raise InputError(f"reps={reps} must be at least 2: one repetition has no standard error")
        if mu is not None and not mu > 0:
            raise InputError(f"mu={mu!r} must be a positive number (inf for no privacy)")
        if feature_sd is not None and not 0 < feature_sd < math.inf:
            raise InputError(f"sigma={feature_sd!r} must be a positive number")
        if theta is not None and not (len(theta) > 1 and all(map(math.isfinite, theta))):
            raise InputError("beta needs the intercept and at least one slope, finite numbers such as 0.5,-0.5")
        options = {"mu": mu, "theta": theta, "feature_sd": feature_sd}
        simulations = [name for name, study in STUDIES.items() if isinstance(study.source, Simulated)]
        chosen = dict.fromkeys(
            study.id
            for name in ids or simulations
            for study in studies_named(name)
            if name == study.id or not (study.long and scale == "quick")
        )
        studies = tuple(STUDIES[name].at(scale).changed(mu, theta, feature_sd) for name in chosen)
        given = {name: value for name, value in options.items() if value is not None}
        return cls(studies, reps, given, scale)

    def repetitions_of(self, study: Study) -> int:
        return self.repetitions or study.repetitions[SCALES.index(self.scale)]

    def cells_of(self, study: Study) -> list[Cell]:
        return study.cells(self.repetitions_of(study))

    def cells(self) -> list[Cell]:
        return [cell for study in self.studies for cell in self.cells_of(study)]

    def all_studies(self) -> list[Study]:
        """Every study under the same options, asked for or not."""
        own = {study.id: study for study in self.studies}
        return [own.get(s.id) or s.at(self.scale).changed(**self.options) for s in STUDIES.values()]


@dataclass(frozen=True)
class Outcome:
    """What a folder holds: the studies that are complete in it, and the verdicts from them."""

    errors: dict[str, ErrorTable]
    findings: list[Finding]
    seconds: float  # wall time, summed over all cells that went into it
    cells: int
    left_out: int  # stored cells of these studies under other settings
    computed: int = 0  # cells of this call; the others were stored before
    wall: float = 0.0  # seconds from the first to the last of these
    fits: pd.DataFrame = field(default_factory=pd.DataFrame, repr=False)  # one row per fit

    def claims(self) -> dict[str, str]:
        """The claims to report on, by id."""
        return claims.by_id(errors.study for errors in self.errors.values())

    def summary(self) -> pd.DataFrame:
        """One row per study, point and estimator: mean, standard error, median."""
        return pd.concat([errors.frame() for errors in self.errors.values()])


def run(
    job: ReproductionJob,
    folder: Path,
    workers: int,
    backend: str = "loky",
    address: str | None = None,
    progress: Callable[[Done], None] | None = None,
) -> Outcome:
    """Complete the job's cells in the folder's store, and judge all studies that are complete there."""
    check(workers, backend, address)  # before there is a folder
    check_installed(backend)
    for study in job.studies:
        study.source.check()
    with Store(folder) as store:
        computed, start = len(store.missing(job.cells())), time.perf_counter()
        complete(job.cells(), store, workers, backend, address, progress)
        wall = time.perf_counter() - start
        studies = [study for study in job.all_studies() if not store.missing(job.cells_of(study))]
        cells = [cell for study in studies for cell in job.cells_of(study)]
        fits = store.table(cells)
        seconds, left_out = store.seconds(cells), store.others(cells)
    errors = {study.id: ErrorTable(study, fits) for study in studies}
    return Outcome(errors, claims.judge_all(errors), seconds, len(cells), left_out, computed, wall, fits)
