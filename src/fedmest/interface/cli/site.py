"""Commands of a site's own vault: the process that keeps its rows."""

from pathlib import Path
from typing import Annotated

import typer

from fedmest.core.exceptions import InputError, Stopped
from fedmest.interface import console
from fedmest.interface.cli.options import AsJson

site_app = typer.Typer(rich_markup_mode=None, help="A site's own vault: the process that keeps its rows.")

PolicyFile = Annotated[Path, typer.Argument(metavar="SITE.toml", show_default=False, help="The site's policy.")]


@site_app.command()
def check(file: PolicyFile, as_json: AsJson = False) -> None:
    """Check a site's file against its policy, and print what the vault would answer. Nothing is released."""
    from fedmest.site.policy import Policy

    policy = Policy.read(file)
    with console.progress_bar("reading"):
        rows = len(next(iter(policy.load().values())))
    console.show_policy(policy, rows, as_json)


@site_app.command("init")
def begin(file: PolicyFile) -> None:
    """Check a site's file and policy, and begin its ledger; once."""
    from fedmest.site.ledger import Ledger, LedgerError
    from fedmest.site.policy import Policy

    policy = Policy.read(file)
    if policy.ledger.exists():
        raise InputError(f"there is a ledger {policy.ledger} already; it goes on counting")
    with console.progress_bar("reading"):
        rows = len(next(iter(policy.load().values())))
    try:
        Ledger(policy.ledger).close()
    except LedgerError as error:
        raise Stopped(str(error), 1) from None
    console.show_policy(policy, rows, as_json=False)
    console.print_lines(f"{policy.ledger} is begun; 'fedmest site serve {file}' starts the vault")


@site_app.command()
def serve(file: PolicyFile) -> None:
    """Keep a site's rows and answer what its policy allows, until Ctrl-C."""
    from fedmest.site.daemon import serve as run
    from fedmest.site.ledger import LedgerError
    from fedmest.site.policy import Policy

    try:
        run(Policy.read(file))
    except LedgerError as error:
        raise Stopped(str(error), 1) from None
