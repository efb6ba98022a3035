"""Arguments that commands share."""

import functools
import inspect
import json
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
import typer.core
import typer.main

from fedmest.core.exceptions import InputError
from fedmest.interface.cli.parsing import number, parse_bounds
from fedmest.runs.settings import SettingInfo, Settings, flag_of

if TYPE_CHECKING:
    from fedmest.data.federation import Federation

FIRST = ("file", "target", "site", "model", "method", "methods", "mu")  # in the help; the others follow


class Argument(typer.core.TyperArgument):
    """An argument whose help is shown, once.

    typer 0.20 sets `help`, which the constructor of click 8.5 clears again; if it were restored, click would list the
    argument a second time in a section of its own.
    """

    def __init__(self, *, help: str | None = None, **more: Any) -> None:
        super().__init__(help=help, **more)
        self.help, self.text = None, help or ""

    def get_help_record(self, ctx: Any) -> tuple[str, str]:
        name, extra = super().get_help_record(ctx) or ("", "")
        return name, "  ".join(filter(None, (self.text, extra)))


typer.main.TyperArgument = Argument  # type: ignore[attr-defined]  # where typer makes arguments; it has no parameter for it


def flag(*names: str, help: str, metavar: str | None = None) -> Any:
    """An option whose help shows no default."""
    return typer.Option(*names, help=help, metavar=metavar, show_default=False)


AsJson = Annotated[bool, flag("--json", help="Print JSON and nothing else.")]
Report = Annotated[Path | None, flag("--report", metavar="FILE.html", help="Write a page for people, too.")]
Seed = Annotated[int | None, flag("--seed", metavar="N", help="Repeat the noise; for simulations only.")]


def check_writable(path: Path | None, argument: str = "--out") -> None:
    """Raise an InputError before the work starts if a file cannot be written after it."""
    if path is None:
        return
    folder = path.parent
    if path.is_dir():
        raise InputError(f"{argument} {path} is a folder; name a file")
    if not folder.is_dir():
        raise InputError(f"{argument} {path}: there is no folder {folder}; make it first")
    if not os.access(path if path.exists() else folder, os.W_OK):
        raise InputError(f"{argument} {path} is not writable; choose another place")


# -- settings of a fit: the one block that names them ------------------------------------------------------------


def setting_parameters() -> list[inspect.Parameter]:
    """The flags of `Settings`, one per field, by the field's name."""
    return [_setting_parameter(f.name, f.default, Settings.info()[f.name]) for f in fields(Settings)]


def _setting_parameter(name: str, default: Any, info: SettingInfo) -> inspect.Parameter:
    if isinstance(default, bool):  # the flag is for what it is not
        text = info.doc if not default else f"Do not {info.doc[:1].lower()}{info.doc[1:]}"
        return _parameter(name, bool, flag(flag_of(name), help=text), default=False)
    metavar = "|".join([*info.choices, *(["NUMBER"] if info.number is not None else [])])
    text = info.doc if default is None else f"{info.doc} Default: {default}."
    return _parameter(name, str | None, flag(flag_of(name), metavar=metavar, help=text))


def given_settings(values: Mapping[str, Any]) -> dict[str, Any]:
    """Settings from values of `setting_parameters`; what was not given is left out."""
    usual = {f.name: f.default for f in fields(Settings)}
    given = {name: value for name, value in values.items() if value not in (None, False)}
    return {name: (not usual[name]) if value is True else number(value) for name, value in given.items()}


def with_settings(*names: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Give a command with a parameter `settings` the flags of these settings (none named: of all) in its place."""

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        flags = {p.name: p for p in setting_parameters() if not names or p.name in names}

        @functools.wraps(command)
        def run(**values: Any) -> None:
            given = given_settings({name: values.pop(name) for name in flags})
            command(settings=given, **values)

        own = inspect.signature(command).parameters.values()
        _set_parameters(run, [q for p in own for q in (flags.values() if p.name == "settings" else (p,))])
        return run

    return decorate


def _set_parameters(command: Callable[..., None], parameters: Sequence[inspect.Parameter]) -> None:
    """Make typer see these parameters."""
    command.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
        [p.replace(kind=p.KEYWORD_ONLY) for p in parameters]
    )
    command.__annotations__ = {p.name: p.annotation for p in parameters}


def _parameter(name: str, kind: Any, info: Any, default: Any = None) -> inspect.Parameter:
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=Annotated[kind, info])


# -- what `fit` and `compare` share ------------------------------------------------------------------------------


@dataclass(frozen=True)
class FitOptions:
    """The arguments that `fit` and `compare` have in common, as given on the command line."""

    file: Annotated[Path, typer.Argument(metavar="FILE", show_default=False, help="A CSV or Parquet file.")]
    target: Annotated[str | None, flag("--target", metavar="COLUMN", help="What to explain.")] = None
    site: Annotated[str | None, flag("--site", metavar="COLUMN", help="Names the site of every row.")] = None
    model: Annotated[
        str | None, flag("--model", metavar="NAME", help="Such as logistic, or negative-binomial(dispersion=0.5).")
    ] = None
    feature: Annotated[
        list[str], flag("--feature", metavar="COLUMN", help="A column to use; repeatable (default: all).")
    ] = field(default_factory=list)
    ignore: Annotated[list[str], flag("--ignore", metavar="COLUMN", help="A column to leave out; repeatable.")] = field(
        default_factory=list
    )
    bounds: Annotated[
        list[str],
        flag("--bounds", metavar="COLUMN=LOW:HIGH", help="A column's public range; repeatable."),
    ] = field(default_factory=list)
    schema: Annotated[
        Path | None,
        flag("--schema", metavar="FILE.toml", help="The above, and bounds, in a file; flags win."),
    ] = None
    missing: Annotated[
        str | None, flag("--missing", metavar="RULE", help="Rows with gaps: error (default) or drop.")
    ] = None
    mu: Annotated[
        float, typer.Option("--mu", metavar="NUMBER", help="Privacy budget of every site's rows, or inf.")
    ] = 2.0
    settings: dict[str, Any] = field(default_factory=dict)  # on the command line, one flag each: `with_settings`
    seed: Seed = None
    option: Annotated[
        list[str],
        flag("--option", metavar="NAME=VALUE", help="An option of the method, such as K=50; repeatable."),
    ] = field(default_factory=list)
    as_json: AsJson = False
    out: Annotated[Path | None, flag("--out", metavar="FILE.json", help="Write the result as JSON to a file, too.")] = (
        None
    )
    report: Report = None

    def fit_arguments(self) -> dict[str, Any]:
        """Arguments of `fedmest.fit` beside federation, model, method and the method's options."""
        return {**self.settings, "mu": self.mu, "seed": self.seed}

    def load(self) -> tuple["Federation", str]:
        """The federation and the name of the model. Flags win over the schema."""
        from fedmest.data.federation import Federation
        from fedmest.data.readers import Schema, read_frame, read_schema
        from fedmest.models import model_named

        check_writable(self.out)
        check_writable(self.report, "--report")
        schema = read_schema(self.schema) if self.schema is not None else Schema()
        given = {"target": self.target, "site": self.site, "model": self.model}
        chosen = {key: value or getattr(schema, key) for key, value in given.items()}
        for key, value in chosen.items():
            if not value:
                raise InputError(f"no {key} is named; add --{key} or a line '{key} = ...' to a schema")
        model_named(chosen["model"])
        federation = Federation.from_frame(
            read_frame(self.file),
            chosen["target"],
            chosen["site"],
            features=self.feature or schema.features,
            ignore=self.ignore or schema.ignore,
            bounds={**schema.bounds, **parse_bounds(self.bounds)},
            missing=self.missing or "error",
        )
        return federation, chosen["model"]

    def write_outputs(self, content: dict[str, Any], show: Callable[[], None], page: Callable[[], str]) -> None:
        """Write the files that were asked for, then print JSON or what `show` prints."""
        text = json.dumps(content, indent=2, allow_nan=False)
        if self.out is not None:
            self.out.write_text(text + "\n", encoding="utf-8")
        if self.report is not None:
            self.report.write_text(page(), encoding="utf-8")
        if self.as_json:
            print(text)
        else:
            show()


def with_fit_options(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command `f(options, ...)` the flags of `FitOptions`, and with them of all settings, beside its own."""
    shared = inspect.signature(FitOptions).parameters
    own = dict(list(inspect.signature(command).parameters.items())[1:])

    @functools.wraps(command)
    def run(**values: Any) -> None:
        options = FitOptions(**{name: values[name] for name in shared})
        command(options, **{name: values[name] for name in own})

    factories = {f.name: f.default_factory() for f in fields(FitOptions) if callable(f.default_factory)}
    ordered = sorted([*shared.values(), *own.values()], key=lambda p: p.name not in FIRST)
    _set_parameters(run, [p.replace(default=factories.get(p.name, p.default)) for p in ordered])
    return with_settings()(run)
