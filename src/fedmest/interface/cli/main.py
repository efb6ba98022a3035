"""The command line: the program, its groups of commands, and how errors end it.

An error is one line on stderr; exit code 2 where the call or the input is wrong, else 1. Modules that compile or read
numbers are imported inside the commands, so that `--help` answers at once.
"""

import os
import signal
import sys
import threading
import traceback
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Annotated

import typer
import typer.core

from fedmest.core.exceptions import INTERRUPTED, FedmestError, InputError, Stopped
from fedmest.core.text import printable
from fedmest.interface.cli.audit import audit
from fedmest.interface.cli.demo import demo
from fedmest.interface.cli.deploy import deploy_app
from fedmest.interface.cli.fit import compare, fit, methods
from fedmest.interface.cli.ledger import ledger_app
from fedmest.interface.cli.plan import explore, plan
from fedmest.interface.cli.site import site_app
from fedmest.interface.cli.studies import data_app, reproduce

typer.core.HAS_RICH = False  # else help escapes brackets for a markup that is switched off
app = typer.Typer(
    name="fedmest",
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    help="Differentially private regression over rows that stay at their sites.",
)
for command in (fit, compare, plan, explore, audit, demo, methods, reproduce):
    app.command()(command)
for name, group in {"data": data_app, "site": site_app, "ledger": ledger_app, "deploy": deploy_app}.items():
    app.add_typer(group, name=name)


def _print_version(wanted: bool) -> None:
    if wanted:
        from fedmest import __version__

        print("fedmest", __version__)
        raise typer.Exit


@app.callback(invoke_without_command=True)
def _root(
    context: typer.Context,
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and stop.")
    ] = False,
) -> None:
    if context.invoked_subcommand is None:
        print(context.get_help())


def main(args: Sequence[str] | None = None) -> int:
    """Run a command line (default: the process's own) and return its exit code."""
    command = typer.main.get_command(app)
    try:
        with _keep_interrupts(), warnings.catch_warnings():
            if not _debugging():
                warnings.simplefilter("ignore")
            code = command.main(
                args=list(sys.argv[1:] if args is None else args), prog_name="fedmest", standalone_mode=False
            )
        if code == INTERRUPTED:  # how typer passes Ctrl-C on, unless as Abort
            raise KeyboardInterrupt
        sys.stdout.flush()
        return int(code or 0)
    except Stopped as note:
        return _print_error(note, note.code)
    except (KeyboardInterrupt, typer.Abort):
        return _print_error("interrupted; nothing was written", INTERRUPTED)
    except BrokenPipeError:  # the reader of our output has closed it
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except InputError as error:
        return _print_error(error, 2)
    except FedmestError as error:  # no input is to blame
        return _print_error(error, 1)
    except MemoryError:
        return _print_error("not enough memory; use fewer columns or rows, or a larger machine", 1)
    except OSError as error:
        return _print_error(f"{error.filename or 'the output'} could not be written: {error.strerror}", 1)
    except Exception as error:
        usage = getattr(error, "format_message", None)  # typer's own: unknown option, missing argument ...
        if usage is not None:
            where = getattr(getattr(error, "ctx", None), "command_path", "fedmest")
            return _print_error(f"{_lower(usage())} (try '{where} --help')", 2)
        kind = f"{type(error).__name__}: {error}".rstrip(": ")
        return _print_error(f"this is a bug ({kind}); please report it, with what FEDMEST_DEBUG=1 adds", 1)


@contextmanager
def _keep_interrupts() -> Iterator[None]:
    """Ctrl-C stays Ctrl-C, also where a library (pandas, while it reads) turns it into an error of its own."""
    seen = []

    def notice(*signal_and_frame: object) -> None:
        seen.append(signal_and_frame)
        raise KeyboardInterrupt

    if threading.current_thread() is not threading.main_thread():  # signals go to the main thread alone
        yield
        return
    before = signal.signal(signal.SIGINT, notice)
    try:
        yield
    except Stopped:
        raise
    except Exception as error:
        if seen:
            raise KeyboardInterrupt from error
        raise
    finally:
        signal.signal(signal.SIGINT, before)


def _print_error(message: object, code: int) -> int:
    if _debugging() and sys.exc_info()[0] is not None:
        print(printable(traceback.format_exc(), keep="\n"), end="", file=sys.stderr)
    print("fedmest:", printable(" ".join(str(message).split())), file=sys.stderr)
    return code


def _debugging() -> bool:
    return os.environ.get("FEDMEST_DEBUG", "") not in ("", "0")


def _lower(message: str) -> str:
    return message[:1].lower() + message[1:].rstrip().removesuffix(".")
