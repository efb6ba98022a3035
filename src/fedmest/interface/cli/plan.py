"""Commands that plan a study: `plan` on the terminal, `explore` in a browser."""

from typing import Annotated, Any

import typer

from fedmest.interface import console
from fedmest.interface.cli.options import AsJson, Report, check_writable, flag, with_settings
from fedmest.interface.cli.parsing import parse_sizes


@with_settings()
def plan(
    *,
    sizes: Annotated[
        str, typer.Option("--sizes", metavar="N|N,N,...|FILE.csv", help="Rows of each site; one N with --sites.")
    ],
    features: Annotated[int, typer.Option("--features", metavar="N", help="Columns to explain with.")],
    sites: Annotated[int | None, flag("--sites", metavar="N", help="Number of sites, all of one size.")] = None,
    model: Annotated[
        str, typer.Option("--model", metavar="NAME", help="A regression with one predictor, such as logistic.")
    ] = "logistic",
    mu: Annotated[float, typer.Option("--mu", metavar="NUMBER", help="Privacy budget.")] = 2.0,
    mu_for: Annotated[
        float | None, flag("--mu-for", metavar="WIDTH", help="The mu that gives slopes a 95 % half-width of this.")
    ] = None,
    mu_for_mse: Annotated[
        float | None, flag("--mu-for-mse", metavar="MSE", help="The mu that gives this mean squared error.")
    ] = None,
    rounds: Annotated[int | None, flag("--rounds", metavar="N", help="Maximum number of rounds.")] = None,
    max_bytes: Annotated[int | None, flag("--bytes", metavar="N", help="Maximum traffic.")] = None,
    methods: Annotated[
        str | None, flag("--methods", metavar="ID,ID,...", help="Those to consider (default: all).")
    ] = None,
    bounded: Annotated[bool, flag("--bounded", help="Ranges of all columns will be declared.")] = False,
    settings: dict[str, Any],
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
    """Predict every method's error under a budget, before it is spent, and recommend one. Reads no rows."""
    from fedmest.runs import planning

    check_writable(report, "--report")
    chosen = [name for name in map(str.strip, methods.split(",")) if name] if methods is not None else None
    with console.progress_bar("planning"):
        found = planning.plan(
            parse_sizes(sizes), features, model, mu, sites=sites, mse=mu_for_mse, half_width=mu_for, rounds=rounds,
            bytes=max_bytes, methods=chosen, bounded=bounded, intercept=intercept, slopes=slopes,
            feature_sd=feature_sd, **settings,
        )  # fmt: skip
    if report is not None:
        from fedmest.interface.pages import plan_page

        report.write_text(plan_page(found), encoding="utf-8")
    if as_json:
        console.print_json(found.to_dict())
    else:
        console.show_plan(found)


def explore(
    port: Annotated[int, typer.Option("--port", metavar="N", help="On this machine (0: any free one).")] = 0,
    no_browser: Annotated[bool, flag("--no-browser", help="Print the address and open nothing.")] = False,
) -> None:
    """Serve a page for planning a study: sliders, curves, the method to choose. Reads no rows; local access only."""
    import webbrowser

    with console.progress_bar("getting ready"):  # the first time, that is to compile
        from fedmest.interface.explorer.server import Explorer

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
