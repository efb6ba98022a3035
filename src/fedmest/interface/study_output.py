"""A folder of results: run a job, then write tables, figures, and the page with the verdicts."""

from collections.abc import Callable
from pathlib import Path

from fedmest.interface import figures, study_page
from fedmest.studies.reproduce import Outcome, ReproductionJob, run
from fedmest.studies.runner import Done


def reproduce(
    job: ReproductionJob,
    folder: Path,
    workers: int,
    backend: str = "loky",
    address: str | None = None,
    progress: Callable[[Done], None] | None = None,
) -> Outcome:
    """Complete the job's cells in the folder's store, then write everything that follows from them."""
    figures.check_installed()
    outcome = run(job, folder, workers, backend, address, progress)
    write(outcome, job, folder)
    return outcome


def write(outcome: Outcome, job: ReproductionJob, folder: Path) -> None:
    """results.parquet, summary.csv, figures/, index.html and claims.md."""
    outcome.fits.to_parquet(folder / "results.parquet", index=False)
    outcome.summary().to_csv(folder / "summary.csv", index=False, float_format="%.6g")
    drawn = {name: figures.draw(errors, folder / "figures") for name, errors in outcome.errors.items()}
    study_page.write(outcome, job, drawn, folder)
