"""Commands that fit: `fit`, `compare`, and `methods`, the list of what they can use."""

import math
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fedmest.core.exceptions import InputError
from fedmest.interface import console
from fedmest.interface.cli.options import AsJson, FitOptions, with_fit_options
from fedmest.interface.cli.parsing import parse_options

if TYPE_CHECKING:
    from fedmest.methods import Method
    from fedmest.runs.result import Result


@with_fit_options
def fit(
    options: FitOptions,
    method: Annotated[
        str, typer.Option("--method", metavar="ID", help="One that 'fedmest methods' lists, or auto.")
    ] = "fednewton",
) -> None:
    """Fit one model and print its coefficients and its privacy statement."""
    from fedmest.methods import method_named
    from fedmest.runs import fit as fitting

    method_options = parse_options(options.option)
    if method != "auto":
        fitting.options_by_method([method], method_options)
        method_named(method).with_options(method_options, options.settings.get("calibration", "certified"))
    with console.progress_bar("reading"):
        federation, model = options.load()
    with console.progress_bar(method) as progress:
        result = fitting.fit(
            federation, model, method, callback=console.by_round(progress), **options.fit_arguments(), **method_options
        )
    options.write_outputs(result.to_dict(), lambda: console.print_lines(result.summary()), result.to_html)


@with_fit_options
def compare(
    options: FitOptions,
    methods: Annotated[
        str, typer.Option("--methods", metavar="ID,ID,...", help="Each spends the whole budget.")
    ] = "np-pooled,fedsgd,fedavg,fedhybrid,fednewton",
) -> None:
    """Fit the same model by several methods and print them side by side.

    An --option goes to the methods that have it.
    """
    from fedmest.runs import fit as fitting
    from fedmest.runs.comparison import Comparison

    chosen = [name for name in dict.fromkeys(map(str.strip, methods.split(","))) if name]
    if not chosen:
        raise InputError("--methods names no method; see 'fedmest methods'")
    by_method = fitting.options_by_method(chosen, parse_options(options.option))
    with console.progress_bar("reading"):
        federation, model = options.load()
    results: dict[str, Result] = {}
    for name in chosen:
        with console.progress_bar(name) as progress:
            results[name] = fitting.fit(
                federation,
                model,
                name,
                callback=console.by_round(progress),
                **options.fit_arguments(),
                **by_method[name],
            )
    compared = Comparison(results)
    options.write_outputs(
        compared.to_dict(), lambda: console.show_comparison(federation, model, compared), compared.to_html
    )


def methods(as_json: AsJson = False) -> None:
    """List the methods: what is sent, in how many rounds, whether it is private, and the options."""
    from fedmest.methods import METHODS

    entries = [_describe(method) for method in METHODS.values()]
    if as_json:
        console.print_json(entries)
    else:
        console.show_methods(entries)


def _describe(method: type["Method"]) -> dict[str, Any]:
    """A method's entry in the registry. Rounds are counted on the schedule itself."""
    import numpy as np

    from fedmest.models import MODELS, model_named
    from fedmest.queries.schedule import PublicContext

    models = [name for name in MODELS if method.supports(model_named(name))]
    certified, paper = (method.with_options({}, name) for name in ("certified", "paper"))
    mu = 1.0 if method.private else math.inf
    two_sites = PublicContext(model_named(models[0]), np.array([50, 50], dtype=np.int64), 2, mu)
    return {
        "id": method.id,
        "display_name": method.display_name,
        "release_summary": method.release_summary,
        "private": method.private,
        "models": models,
        "supports_client_sampling": method.supports_client_sampling,
        "rounds": len(certified.schedule(two_sites)),
        "options": dict(vars(certified)),
        "paper_options": dict(vars(paper)),
    }
