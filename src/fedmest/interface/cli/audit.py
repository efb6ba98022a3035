"""The command that attacks our own releases."""

from pathlib import Path
from typing import Annotated, Any

import typer

from fedmest.core.exceptions import InputError, Stopped
from fedmest.interface import console
from fedmest.interface.cli.options import AsJson, Report, check_writable, flag, with_settings
from fedmest.interface.cli.parsing import parse_options
from fedmest.runs.settings import Settings


@with_settings(*(name for name, info in Settings.info().items() if info.audit))
def audit(
    *,
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
    settings: dict[str, Any],
    scenario: Annotated[
        str | None, flag("--scenario", metavar="NAME", help="The attack (default: the most promising).")
    ] = None,
    release: Annotated[
        str | None, flag("--release", metavar="NAME", help="One kind of release alone, such as 'mean curvature'.")
    ] = None,
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
    """Attack our own releases: compare what a distinguishing game finds with what is claimed. Reads no data.

    Exit code 1 if a certified claim is refuted.
    """
    from fedmest import auditing
    from fedmest.core.choices import CALIBRATIONS
    from fedmest.runs.fit import options_by_method

    calibrations = CALIBRATIONS if calibration is None else (calibration,)
    todo = list(auditing.cases(methods or (), model or (), calibrations, settings))
    if not todo:
        raise InputError(
            "there is nothing to audit: none of these private methods supports such a model and calibration"
        )
    if plot is not None and len(todo) > 1:
        raise InputError(f"--plot is for one audit, not for {len(todo)}; name a method, --model and --calibration")
    for argument, path in (("--out", out), ("--plot", plot), ("--report", report)):
        check_writable(path, argument)
    options = options_by_method(sorted({case.method for case in todo}), parse_options(option or []))
    with console.progress_bar("audits") as progress:
        entries, found = auditing.audit_all(
            todo, options, out, fresh=plot is not None, progress=progress, mu=mu, games=games, observer=observer,
            confidence=confidence, scenario=scenario, release=release, seed=seed,
        )  # fmt: skip
    if plot is not None and found is not None:
        from fedmest.interface.figures import draw_roc

        draw_roc(found, plot)
    if report is not None:
        from fedmest.interface.pages import audit_page

        report.write_text(audit_page(entries, found if len(entries) == 1 else None), encoding="utf-8")
    if as_json:
        console.print_json(entries)
    else:
        console.show_audits(entries)
    if refuted := [entry for entry in entries if entry["verdict"] == "refuted" and entry["certified"]]:
        named = ", ".join(f"{entry['method']} ({entry['model']})" for entry in refuted)
        raise Stopped(f"a certified claim is refuted: {named}", 1)
