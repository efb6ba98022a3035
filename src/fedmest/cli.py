"""The command line. A fault is one line on stderr; exit code 2 where the call or the input is wrong, else 1.

Whatever compiles or reads numbers is imported inside the commands, so that `--help` answers at once.
"""

import json
import math
import os
import signal
import sys
import threading
import traceback
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
import typer.core

from fedmest import tables
from fedmest.arguments import (
    AsJson,
    Call,
    Report,
    check_writable,
    flag,
    number,
    parse_beta,
    parse_options,
    parse_sizes,
    takes_call,
)
from fedmest.errors import INTERRUPTED, InputError, Stopped
from fedmest.progress import bar, work_bar
from fedmest.site.commands import deploy_app, ledger_app, site_app

if TYPE_CHECKING:
    from fedmest.methods import Method
    from fedmest.result import Result
    from fedmest.studies.runner import Done

typer.core.HAS_RICH = False  # else help escapes brackets for a markup that is switched off
app = typer.Typer(
    name="fedmest", add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None,
    help="Differentially private regression over rows that stay at their sites.",
)  # fmt: skip
data_app = typer.Typer(rich_markup_mode=None, help="Public data sets for studies and benchmarks: get them, find them.")
app.add_typer(data_app, name="data")
app.add_typer(site_app, name="site")
app.add_typer(ledger_app, name="ledger")
app.add_typer(deploy_app, name="deploy")


def main(args: Sequence[str] | None = None) -> int:
    """Run a command line (default: the process's own) and return its exit code."""
    command = typer.main.get_command(app)
    try:
        with _noticing_interrupts(), warnings.catch_warnings():
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
        return _fault(note, note.code)
    except (KeyboardInterrupt, typer.Abort):
        return _fault("interrupted; nothing was written", INTERRUPTED)
    except BrokenPipeError:  # whoever read our output has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except InputError as error:
        return _fault(error, 2)
    except MemoryError:
        return _fault("not enough memory; use fewer columns or rows, or a larger machine", 1)
    except OSError as error:
        return _fault(f"{error.filename or 'the output'} could not be written: {error.strerror}", 1)
    except Exception as error:
        usage = getattr(error, "format_message", None)  # typer's own: unknown option, missing argument ...
        if usage is not None:
            where = getattr(getattr(error, "ctx", None), "command_path", "fedmest")
            return _fault(f"{_lower(usage())} (try '{where} --help')", 2)
        kind = f"{type(error).__name__}: {error}".rstrip(": ")
        return _fault(f"this is a bug ({kind}); please report it, with what FEDMEST_DEBUG=1 adds", 1)


@contextmanager
def _noticing_interrupts() -> Iterator[None]:
    """Ctrl-C stays Ctrl-C, also where a library (pandas, while it reads) turns it into a fault of its own."""
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


def _fault(message: object, code: int) -> int:
    if _debugging() and sys.exc_info()[0] is not None:
        traceback.print_exc()
    print("fedmest:", " ".join(str(message).split()), file=sys.stderr)
    return code


def _debugging() -> bool:
    return os.environ.get("FEDMEST_DEBUG", "") not in ("", "0")


def _lower(message: str) -> str:
    return message[:1].lower() + message[1:].rstrip().removesuffix(".")


# -- commands ------------------------------------------------------------------------------------------------


def _version(wanted: bool) -> None:
    if wanted:
        from fedmest import __version__

        print("fedmest", __version__)
        raise typer.Exit


@app.callback(invoke_without_command=True)
def _root(
    context: typer.Context,
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and stop.")
    ] = False,
) -> None:
    if context.invoked_subcommand is None:
        print(context.get_help())


@app.command()
@takes_call
def fit(
    call: Call,
    method: Annotated[
        str, typer.Option("--method", metavar="ID", help="One that 'fedmest methods' lists, or auto.")
    ] = "fednewton",
) -> None:
    """Fit one model and print its coefficients and its privacy statement."""
    from fedmest import fitting
    from fedmest.methods import method_named

    options = parse_options(call.option)
    if method != "auto":
        method_named(method).with_options(options, call.calibration or "certified")
    with bar("reading"):
        federation, model = call.load()
    with bar(method) as progress:
        result = fitting.fit(federation, model, method, progress=progress, **call.settings(), **options)
    call.give(result.as_dict(), lambda: print(result.summary()), result.to_html)


@app.command()
@takes_call
def compare(
    call: Call,
    methods: Annotated[
        str, typer.Option("--methods", metavar="ID,ID,...", help="Each spends the whole budget.")
    ] = "np-pooled,fedsgd,fedavg,fedhybrid,fednewton",
) -> None:
    """Fit the same model by several methods and print them side by side.

    An --option goes to the methods that have it.
    """
    from fedmest import fitting

    chosen = [name for name in dict.fromkeys(map(str.strip, methods.split(","))) if name]
    if not chosen:
        raise InputError("--methods names no method; see 'fedmest methods'")
    options = fitting.options_by_method(chosen, parse_options(call.option))
    with bar("reading"):
        federation, model = call.load()
    results: dict[str, Result] = {}
    for name in chosen:
        with bar(name) as progress:
            results[name] = fitting.fit(
                federation, model, name, progress=progress, **call.settings(), **options[name]
            )
    content = {"model": model, "methods": {name: result.as_dict() for name, result in results.items()}}

    def page() -> str:
        from fedmest.report.views import compare_page

        return compare_page(f"{model} regression of {federation.target_name}", results)

    call.give(content, lambda: tables.show_comparison(federation, model, results), page)


@app.command()
def plan(
    sizes: Annotated[
        str, typer.Option("--sizes", metavar="N|N,N,...|FILE.csv", help="Rows of each site; one N with --sites.")
    ],
    features: Annotated[int, typer.Option("--features", metavar="N", help="Columns to explain with.")],
    sites: Annotated[int | None, flag("--sites", metavar="N", help="Number of sites, all of one size.")] = None,
    model: Annotated[str, typer.Option("--model", metavar="NAME", help="linear, logistic or poisson.")] = "logistic",
    mu: Annotated[float, typer.Option("--mu", metavar="NUMBER", help="Privacy budget.")] = 2.0,
    mu_for: Annotated[
        float | None, flag("--mu-for", metavar="WIDTH", help="The mu that gives slopes a 95 % half-width of this.")
    ] = None,
    mu_for_mse: Annotated[
        float | None, flag("--mu-for-mse", metavar="MSE", help="The mu that gives this mean squared error.")
    ] = None,
    rounds: Annotated[int | None, flag("--rounds", metavar="N", help="Most rounds that a run may take.")] = None,
    most_bytes: Annotated[int | None, flag("--bytes", metavar="N", help="Most bytes that it may send.")] = None,
    methods: Annotated[
        str | None, flag("--methods", metavar="ID,ID,...", help="Those to consider (default: all that can be).")
    ] = None,
    bounded: Annotated[bool, flag("--bounded", help="Ranges of all columns will be declared.")] = False,
    errors: Annotated[str, typer.Option("--errors", metavar="ROUTE", help="Standard errors, as in fit.")] = "auto",
    intercept: Annotated[
        float | None, flag("--intercept", metavar="NUMBER", help="Expected intercept (default 0.5).")
    ] = None,
    slopes: Annotated[
        float | None, flag("--slopes", metavar="NUMBER", help="Expected length of the vector of slopes.")
    ] = None,
    feature_sd: Annotated[
        float, typer.Option("--feature-sd", metavar="NUMBER", help="Expected spread of scaled features.")
    ] = 1.0,
    report: Report = None,
    as_json: AsJson = False,
) -> None:
    """What a budget will buy, before it is spent: all methods, and the one to choose. Reads no rows."""
    from fedmest import planner

    check_writable(report, "--report")
    chosen = [name for name in map(str.strip, methods.split(",")) if name] if methods is not None else None
    with bar("planning"):
        advice = planner.plan(
            parse_sizes(sizes), features, model, mu, sites=sites, mse=mu_for_mse, half_width=mu_for, rounds=rounds,
            bytes=most_bytes, methods=chosen, bounded=bounded, intercept=intercept, slopes=slopes,
            feature_sd=feature_sd, errors=errors,
        )  # fmt: skip
    if report is not None:
        from fedmest.report.views import plan_page

        report.write_text(plan_page(advice), encoding="utf-8")
    if as_json:
        print(json.dumps(advice.as_dict(), indent=2, allow_nan=False))
    else:
        tables.show_plan(advice)


@app.command()
def explore(
    port: Annotated[int, typer.Option("--port", metavar="N", help="On this machine (0: any that is free).")] = 0,
    no_browser: Annotated[bool, flag("--no-browser", help="Print the address and open nothing.")] = False,
) -> None:
    """A page for planning a study: sliders, curves, the method to choose. Reads no rows; answers this machine alone."""
    import webbrowser

    with bar("getting ready"):  # the first time, that is to compile
        from fedmest.explore.server import Explorer

        explorer = Explorer(port)
        explorer.warm()
    with explorer:
        print(f"Plan a study at {explorer.url} (Ctrl-C stops)", flush=True)
        if not no_browser:
            webbrowser.open(explorer.url)
        try:
            explorer.serve_forever()
        except KeyboardInterrupt:
            print("stopped")


@app.command()
def audit(
    methods: Annotated[
        list[str] | None, typer.Argument(metavar="[ID]...", show_default=False, help="Methods (default: all).")
    ] = None,
    model: Annotated[
        list[str] | None, flag("--model", metavar="NAME", help="A model; repeatable (default: all).")
    ] = None,
    mu: Annotated[float, typer.Option("--mu", metavar="NUMBER", help="The claim to attack.")] = 2.0,
    calibration: Annotated[
        str | None, flag("--calibration", metavar="NAME", help="certified or paper (default: both).")
    ] = None,
    observer: Annotated[
        str, typer.Option("--observer", metavar="WHO", help="server, or public: sees only what is published.")
    ] = "server",
    games: Annotated[int, typer.Option("--games", metavar="N", help="Games that are judged.")] = 20_000,
    confidence: Annotated[float, typer.Option("--confidence", metavar="LEVEL", help="Of the bound on mu.")] = 0.99,
    bound: Annotated[str | None, flag("--bound", metavar="RULE", help="As in fit.")] = None,
    schedule: Annotated[str | None, flag("--schedule", metavar="RULE", help="As in fit.")] = None,
    scene: Annotated[
        str | None, flag("--scene", metavar="NAME", help="The attack (default: the most promising).")
    ] = None,
    release: Annotated[
        str | None, flag("--release", metavar="NAME", help="One kind of release alone, such as 'mean curvature'.")
    ] = None,
    errors: Annotated[str | None, flag("--errors", metavar="ROUTE", help="As in fit: auto, model or none.")] = None,
    option: Annotated[
        list[str] | None, flag("--option", metavar="NAME=VALUE", help="An option of the method; repeatable.")
    ] = None,
    seed: Annotated[int, typer.Option("--seed", metavar="N", help="Seed of the games.")] = 0,
    plot: Annotated[Path | None, flag("--plot", metavar="FILE.png", help="The ROC curve of a single audit.")] = None,
    out: Annotated[
        Path | None, flag("--out", metavar="FILE.jsonl", help="Keep what is found; the same call goes on from there.")
    ] = None,
    report: Report = None,
    as_json: AsJson = False,
) -> None:
    """Attack our own releases: what a distinguishing game finds, beside what is claimed. Reads no data.

    Exit code 1 if a certified claim is refuted.
    """
    from fedmest import auditing
    from fedmest.fitting import options_by_method
    from fedmest.methods import CALIBRATIONS

    given = {"bound": number(bound) if bound is not None else None, "schedule": schedule, "errors": errors}
    settings = {name: value for name, value in given.items() if value is not None}
    calibrations = CALIBRATIONS if calibration is None else (calibration,)
    todo = list(auditing.cases(methods or (), model or (), calibrations, settings))
    if not todo:
        raise InputError("there is nothing to audit: no private method of these takes such a model and calibration")
    if plot is not None and len(todo) > 1:
        raise InputError(f"--plot is for one audit, not for {len(todo)}; name a method, --model and --calibration")
    for argument, path in (("--out", out), ("--plot", plot), ("--report", report)):
        check_writable(path, argument)
    options = options_by_method(sorted({case.method for case in todo}), parse_options(option or []))
    with bar("audits") as progress:
        entries, found = auditing.audit_all(
            todo, options, out, anew=plot is not None, progress=progress, mu=mu, games=games, observer=observer,
            confidence=confidence, scene=scene, release=release, seed=seed,
        )  # fmt: skip
    if plot is not None and found is not None:
        found.plot(plot)
    if report is not None:
        from fedmest.report.views import audit_page

        report.write_text(audit_page(entries, found if len(entries) == 1 else None), encoding="utf-8")
    if as_json:
        print(json.dumps(entries, indent=2, allow_nan=False))
    else:
        tables.show_audits(entries)
    if broken := [entry for entry in entries if entry["verdict"] == "refuted" and entry["certified"]]:
        named = ", ".join(f"{entry['method']} ({entry['model']})" for entry in broken)
        raise Stopped(f"a certified claim is refuted: {named}", 1)


@app.command()
def demo(
    mu: Annotated[
        float, typer.Option("--mu", metavar="NUMBER", help="Privacy budget of every site's rows.")
    ] = 2.0,
    seed: Annotated[int, typer.Option("--seed", metavar="N", help="Seed of the noise.")] = 7,
    as_json: AsJson = False,
) -> None:
    """Private regression on real data: the RAND Health Insurance Experiment at its six sites."""
    if not mu > 0:
        raise InputError(f"mu={mu!r} must be a positive number (inf for a fit without privacy)")
    from fedmest import demo as example

    with bar("RAND HIE") as progress:
        studies = example.studies(mu, seed, progress)
    if as_json:
        content = {
            study.private.model.name: {
                "title": study.title, "pooled": study.pooled.as_dict(), "private": study.private.as_dict()
            }
            for study in studies
        }  # fmt: skip
        print(json.dumps({"studies": content, "notes": example.NOTES}, indent=2, allow_nan=False))
        return
    page = tables.open_page()
    facts = studies[0].private.settings
    size = f"{facts['n_rows']:,} person-years at {facts['n_sites']} sites"
    tables.say(page, f"RAND Health Insurance Experiment: {size}; rows with gaps left out.")
    for study in studies:
        page.print()
        columns = {"pooled (not private)": study.pooled, f"private (mu={mu:g})": study.private}
        page.print(tables.coefficients(study.title, columns, difference=True))
    page.print()
    tables.say(page, studies[0].private.privacy.statement())
    page.print()
    both = math.hypot(*(study.private.privacy.mu for study in studies))
    tables.say(page, f"The statement holds for each fit by itself; publishing both costs mu = {both:.3g} together.")
    for note in example.NOTES:
        page.print()
        tables.say(page, note)


@app.command()
def methods(as_json: AsJson = False) -> None:
    """List the methods: what is sent, in how many rounds, whether it is private, and the options."""
    from fedmest.methods import METHODS

    entries = [_describe(method) for method in METHODS.values()]
    if as_json:
        print(json.dumps(entries, indent=2, allow_nan=False))
        return
    table = tables.plain_table()
    for head in ("method", "private", "rounds", "sites send", "options"):
        table.add_column(head, justify="right" if head == "rounds" else "left", overflow="fold")
    for entry in entries:
        paper = entry["paper_options"]
        options = [
            f"{k}={v}" + (f" (paper: {paper[k]})" if paper[k] != v else "")
            for k, v in entry["options"].items()
        ]
        only = f"; {', '.join(entry['models'])} only" if len(entry["models"]) <= 2 else ""
        table.add_row(
            entry["id"], "yes" if entry["private"] else "no", str(entry["rounds"]), entry["sends"] + only,
            ", ".join(options) or "none",
        )  # fmt: skip
    page = tables.open_page()
    page.print(table)
    page.print()
    tables.say(page, "Rounds are those of the default options; np-pooled stops when it has converged. Scaling and "
               "the clipping bound may add up to three. Set options with --option NAME=VALUE.")  # fmt: skip


@app.command()
def reproduce(
    ids: Annotated[
        list[str] | None,
        typer.Argument(metavar="[ID]...", show_default=False,
                       help="Studies, or how their ids begin (default: all simulations)."),
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

    from fedmest.studies.reproduce import Plan
    from fedmest.studies.reproduce import reproduce as run
    from fedmest.studies.runner import check

    plan = Plan.of(ids or (), scale, reps, mu, parse_beta(beta), sigma)
    crew = workers if workers is not None else os.cpu_count() or 1
    if listing:
        check(crew, backend, address)
        tables.show_studies(plan, crew, as_json)
        return
    done = 0, len(plan.cells())
    with work_bar() as show:

        def progress(now: "Done") -> None:
            nonlocal done
            done = now.cells, now.of_cells
            show(now)

        try:
            outcome = run(plan, out, crew, backend, address, progress)
        except (KeyboardInterrupt, BrokenProcessPool) as end:
            ctrl_c = isinstance(end, KeyboardInterrupt)
            why = "interrupted" if ctrl_c else "a process was killed (out of memory? try fewer --workers)"
            note = f"{why}; {done[0]:,} of {done[1]:,} cells are stored in {out}; the same command goes on from there"
            raise Stopped(note, INTERRUPTED if ctrl_c else 1) from None
    tables.show_claims(outcome, out, as_json)


@data_app.command()
def fetch(
    name: Annotated[str, typer.Argument(metavar="mnist|cifar10", show_default=False, help="The data set.")],
) -> None:
    """Download a data set into the folder that `fedmest data where` shows, unless it is there."""
    from fedmest import data

    with bar(f"fetching {name}"):
        try:
            fetched = data.fetch(name)
        except data.DownloadError as error:
            raise Stopped(str(error), 1) from None
    print(f"{name} is {'now' if fetched else 'already'} in {data.data_folder() / name}")


@data_app.command()
def where(as_json: AsJson = False) -> None:
    """Show the folder that data sets are read from, and which it holds."""
    from fedmest import data

    folder = data.data_folder()
    states = {}
    for name, archive in data.ARCHIVES.items():
        lacks = data.missing(name)
        states[name] = "absent" if len(lacks) == len(archive.files) else "incomplete" if lacks else "present"
    if as_json:
        print(json.dumps({"folder": str(folder), "data_sets": states}, indent=2))
        return
    source = f"named by {data.VARIABLE}" if os.environ.get(data.VARIABLE) else f"{data.VARIABLE} names another"
    print(f"{folder} ({source})")
    for name, state in states.items():
        print(f"  {name:<8} {state}" + ("" if state == "present" else f"; run 'fedmest data fetch {name}'"))
    print("  digits   comes with scikit-learn")


def _describe(method: type["Method"]) -> dict[str, Any]:
    """A method's entry in the registry. Rounds are counted on the schedule itself."""
    import numpy as np

    from fedmest.methods import Setting
    from fedmest.models import MODELS, model_named

    models = [name for name in MODELS if method.takes(model_named(name))]
    certified, paper = (method.with_options({}, name) for name in ("certified", "paper"))
    mu = 1.0 if method.private else math.inf
    two_sites = Setting(model_named(models[0]), np.array([50, 50], dtype=np.int64), 2, mu)
    return {
        "id": method.id, "title": method.title, "sends": method.sends, "private": method.private,
        "models": models, "samples_sites": method.samples_sites, "rounds": len(certified.schedule(two_sites)),
        "options": dict(vars(certified)), "paper_options": dict(vars(paper)),
    }  # fmt: skip
