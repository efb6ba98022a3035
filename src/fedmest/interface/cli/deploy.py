"""Commands for studies between sites, on a Flower network."""

from pathlib import Path
from typing import Annotated

import typer

from fedmest.core.exceptions import INTERRUPTED, Stopped
from fedmest.interface import console
from fedmest.interface.cli.options import AsJson, flag

deploy_app = typer.Typer(rich_markup_mode=None, help="Studies between sites, on a Flower network.")

Project = Annotated[Path, typer.Argument(metavar="FOLDER", show_default=False, help="The project.")]


@deploy_app.command()
def init(
    folder: Project,
    site: Annotated[list[str] | None, flag("--site", metavar="NAME", help="A site; repeatable.")] = None,
    demo_rows: Annotated[bool, flag("--demo", help="Three sites of RAND HIE, rows included.")] = False,
) -> None:
    """Write a project: the study, the Flower app, a policy for every site, and the commands for all of them."""
    from fedmest.server import project

    sites = project.init(folder, site or [], demo_rows)
    console.print_lines(f"{folder} has a study for {len(sites)} sites: {', '.join(sites)}. Read {folder / 'README.md'}")


@deploy_app.command("run")
def run_project(
    folder: Project,
    resume: Annotated[bool, flag("--resume", help="Go on with the last run; no budget is spent twice.")] = False,
    as_json: AsJson = False,
) -> None:
    """Run the project's study at its sites and print the result."""
    from fedmest.server import project

    try:
        result = project.run(folder, resume, lambda line: console.print_lines(line, to_stderr=True))
    except RuntimeError as error:
        raise Stopped(str(error), 1) from None
    except KeyboardInterrupt:
        note = f"interrupted; the server may still be at work. 'fedmest deploy run {folder} --resume' goes on"
        raise Stopped(note, INTERRUPTED) from None
    if as_json:
        console.print_json(result)
    else:
        console.print_lines(result["summary"])
