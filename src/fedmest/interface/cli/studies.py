"""Commands for the paper's experiments: `reproduce` runs them, `data` gets the public data sets that they need."""

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fedmest.core.exceptions import INTERRUPTED, Stopped
from fedmest.interface import console
from fedmest.interface.cli.options import AsJson, flag
from fedmest.interface.cli.parsing import parse_beta

if TYPE_CHECKING:
    from fedmest.studies.runner import Done

data_app = typer.Typer(rich_markup_mode=None, help="Public data sets for studies and benchmarks: get them, find them.")


def reproduce(
    ids: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[ID]...", show_default=False, help="Studies, or how their ids begin (default: all simulations)."
        ),
    ] = None,
    scale: Annotated[
        str, typer.Option("--scale", metavar="NAME", help="quick; paper: all points, as many runs as there.")
    ] = "quick",
    out: Annotated[Path, typer.Option("--out", metavar="FOLDER", help="Results, figures, page.")] = Path("studies"),
    listing: Annotated[bool, flag("--list", help="List the studies and what they cost, and stop.")] = False,
    workers: Annotated[
        int | None, flag("--workers", metavar="N", help="Processes, or cells in flight (default: all cores).")
    ] = None,
    backend: Annotated[str, typer.Option("--backend", metavar="NAME", help="loky, dask or ray.")] = "loky",
    address: Annotated[
        str | None, flag("--address", metavar="HOST:PORT", help="A running Dask or Ray cluster.")
    ] = None,
    reps: Annotated[int | None, flag("--reps", metavar="N", help="Repetitions, instead of --scale.")] = None,
    mu: Annotated[float | None, flag("--mu", metavar="NUMBER", help="Budget (default 2).")] = None,
    beta: Annotated[
        str | None, flag("--beta", metavar="B,B,...", help="True coefficients, the intercept first.")
    ] = None,
    sigma: Annotated[
        float | None, flag("--sigma", metavar="NUMBER", help="Standard deviation of the features.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Run the paper's experiments again, draw its figures, and judge its claims.

    Finished cells are kept: an interrupted run goes on where it stopped, and a longer one builds on a shorter one.
    """
    from concurrent.futures.process import BrokenProcessPool

    from fedmest.interface import study_output
    from fedmest.studies.reproduce import ReproductionJob
    from fedmest.studies.runner import check

    job = ReproductionJob.create(ids or (), scale, reps, mu, parse_beta(beta), sigma)
    processes = workers if workers is not None else os.cpu_count() or 1
    if listing:
        check(processes, backend, address)
        console.show_studies(job, processes, as_json)
        return
    done = 0, len(job.cells())
    with console.cell_progress() as show:

        def progress(now: "Done") -> None:
            nonlocal done
            done = now.cells, now.of_cells
            show(now)

        try:
            outcome = study_output.reproduce(job, out, processes, backend, address, progress)
        except (KeyboardInterrupt, BrokenProcessPool) as end:
            ctrl_c = isinstance(end, KeyboardInterrupt)
            why = "interrupted" if ctrl_c else "a process was killed (out of memory? try fewer --workers)"
            note = f"{why}; {done[0]:,} of {done[1]:,} cells are stored in {out}; the same command goes on from there"
            raise Stopped(note, INTERRUPTED if ctrl_c else 1) from None
    console.show_claims(outcome, out, as_json)


@data_app.command()
def fetch(
    name: Annotated[str, typer.Argument(metavar="mnist|cifar10", show_default=False, help="The data set.")],
) -> None:
    """Download a data set into the folder that `fedmest data where` shows, unless it is there."""
    from fedmest.data import datasets

    with console.progress_bar(f"fetching {name}"):
        try:
            fetched = datasets.fetch(name)
        except datasets.DownloadError as error:
            raise Stopped(str(error), 1) from None
    console.print_lines(f"{name} is {'now' if fetched else 'already'} in {datasets.data_folder() / name}")


@data_app.command()
def where(as_json: AsJson = False) -> None:
    """Show the folder that data sets are read from, and which it holds."""
    from fedmest.data import datasets

    folder = datasets.data_folder()
    states = {}
    for name, archive in datasets.ARCHIVES.items():
        lacks = datasets.missing(name)
        states[name] = "absent" if len(lacks) == len(archive.files) else "incomplete" if lacks else "present"
    if as_json:
        console.print_json({"folder": str(folder), "data_sets": states})
        return
    source = (
        f"named by {datasets.VARIABLE}" if os.environ.get(datasets.VARIABLE) else f"{datasets.VARIABLE} names another"
    )
    console.print_lines(f"{folder} ({source})")
    for name, state in states.items():
        print(f"  {name:<8} {state}" + ("" if state == "present" else f"; run 'fedmest data fetch {name}'"))
    print("  digits   comes with scikit-learn")
