"""The command that shows private regression on real data."""

from typing import Annotated

import typer

from fedmest.core.exceptions import InputError
from fedmest.interface import console
from fedmest.interface.cli.options import AsJson


def demo(
    mu: Annotated[float, typer.Option("--mu", metavar="NUMBER", help="Privacy budget of every site's rows.")] = 2.0,
    seed: Annotated[int, typer.Option("--seed", metavar="N", help="Seed of the noise.")] = 7,
    as_json: AsJson = False,
) -> None:
    """Private regression on real data: the RAND Health Insurance Experiment at its six sites."""
    if not mu > 0:
        raise InputError(f"mu={mu!r} must be a positive number (inf for a fit without privacy)")
    from fedmest.interface import demo as example

    with console.progress_bar("RAND HIE") as progress:
        fits = example.demo_fits(mu, seed, progress)
    if as_json:
        content = {
            fit.private.model.name: {
                "title": fit.title,
                "pooled": fit.pooled.to_dict(),
                "private": fit.private.to_dict(),
            }
            for fit in fits
        }
        console.print_json({"studies": content, "notes": example.NOTES})
        return
    console.show_demo(fits, mu, example.NOTES)
