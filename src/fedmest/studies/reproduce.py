"""From ids to a folder: run what is missing, then write tables, figures, and the page with the verdicts."""

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from fedmest.errors import InputError
from fedmest.studies import STUDIES, claims, figures, page, studies_named
from fedmest.studies.base import SCALES, Study
from fedmest.studies.cells import Cell
from fedmest.studies.claims import Finding
from fedmest.studies.runner import Done, check, check_installed, complete
from fedmest.studies.simulated import Simulated
from fedmest.studies.store import Store
from fedmest.studies.summary import Errors


@dataclass(frozen=True)
class Plan:
    """What is to be run, under which options."""

    studies: tuple[Study, ...]
    repetitions: int | None  # None: each study's own at this scale
    options: dict[str, Any]
    scale: str = "quick"

    @classmethod
    def of(
        cls, ids: Sequence[str] = (), scale: str = "quick", reps: int | None = None, mu: float | None = None,
        theta: tuple[float, ...] | None = None, feature_sd: float | None = None,
    ) -> "Plan":  # fmt: skip
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
        simulations = [name for name, study in STUDIES.items() if isinstance(study.design, Simulated)]
        chosen = dict.fromkeys(
            study.id
            for name in ids or simulations
            for study in studies_named(name)
            if name == study.id or not (study.long and scale == "quick")
        )
        studies = tuple(STUDIES[name].at(scale).changed(mu, theta, feature_sd) for name in chosen)
        given = {name: value for name, value in options.items() if value is not None}
        return cls(studies, reps, given, scale)

    def flags(self) -> str:
        """As they are given on the command line."""
        text = f" --scale {self.scale}" if self.repetitions is None else f" --reps {self.repetitions}"
        for flag, value in (("mu", self.options.get("mu")), ("sigma", self.options.get("feature_sd"))):
            text += f" --{flag} {value!r}" if value is not None else ""
        if theta := self.options.get("theta"):
            text += f" --beta {','.join(map(repr, theta))}"
        return text

    def reps(self, study: Study) -> int:
        return self.repetitions or study.repetitions[SCALES.index(self.scale)]

    def cells_of(self, study: Study) -> list[Cell]:
        return study.cells(self.reps(study))

    def cells(self) -> list[Cell]:
        return [cell for study in self.studies for cell in self.cells_of(study)]

    def all_studies(self) -> list[Study]:
        """Every study under the same options, asked for or not."""
        own = {study.id: study for study in self.studies}
        return [own.get(s.id) or s.at(self.scale).changed(**self.options) for s in STUDIES.values()]


@dataclass(frozen=True)
class Outcome:
    """What the folder now holds: studies that are complete in it, and the verdicts from them."""

    errors: dict[str, Errors]
    findings: list[Finding]
    seconds: float  # by the clock, of all cells that went into it
    cells: int
    left_out: int  # stored cells of these studies under other settings
    computed: int = 0  # cells of this call; the others were there
    wall: float = 0.0  # seconds that they took together


def reproduce(
    plan: Plan,
    folder: Path,
    workers: int,
    backend: str = "loky",
    address: str | None = None,
    progress: Callable[[Done], None] | None = None,
) -> Outcome:
    """Complete the plan's cells in the folder's store, then write everything that follows from them."""
    check(workers, backend, address)  # before there is a folder
    check_installed(backend)
    figures.check_installed()
    for study in plan.studies:
        study.design.check()
    with Store(folder) as store:
        computed, start = len(store.missing(plan.cells())), time.perf_counter()
        complete(plan.cells(), store, workers, backend, address, progress)
        wall = time.perf_counter() - start
        studies = [study for study in plan.all_studies() if not store.missing(plan.cells_of(study))]
        cells = [cell for study in studies for cell in plan.cells_of(study)]
        table = store.table(cells)
        seconds, left_out = store.seconds(cells), store.others(cells)
    errors = {study.id: Errors(study, table) for study in studies}
    outcome = Outcome(errors, claims.judge_all(errors), seconds, len(cells), left_out, computed, wall)
    table.to_parquet(folder / "results.parquet", index=False)
    pd.concat([e.frame() for e in errors.values()]).to_csv(folder / "summary.csv", index=False, float_format="%.6g")
    drawn = {name: figures.draw(found, folder / "figures") for name, found in errors.items()}
    page.write(outcome, plan, drawn, folder)
    return outcome
