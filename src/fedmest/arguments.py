"""What is given on the command line: the arguments that commands share, and the small languages of some of them."""

import functools
import inspect
import json
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fedmest.errors import InputError

if TYPE_CHECKING:
    from fedmest.federation import Federation

FIRST = ("file", "target", "site", "model", "method", "methods", "mu")  # in the help; the rest follow


def flag(*names: str, help: str, metavar: str | None = None) -> Any:
    return typer.Option(*names, help=help, metavar=metavar, show_default=False)


AsJson = Annotated[bool, flag("--json", help="Print JSON and nothing else.")]
Report = Annotated[Path | None, flag("--report", metavar="FILE.html", help="Write a page for people, too.")]
Seed = Annotated[int | None, flag("--seed", metavar="N", help="Repeat the noise; for rehearsals only.")]


@dataclass(frozen=True)
class Call:
    """The arguments that `fit` and `compare` have in common, as given on the command line."""

    file: Annotated[Path, typer.Argument(metavar="FILE", show_default=False, help="A CSV or Parquet file.")]
    target: Annotated[str | None, flag("--target", metavar="COLUMN", help="What to explain.")] = None
    site: Annotated[str | None, flag("--site", metavar="COLUMN", help="Whose row it is.")] = None
    model: Annotated[
        str | None, flag("--model", metavar="NAME", help="linear, logistic, poisson or multinomial.")
    ] = None
    feature: Annotated[
        list[str], flag("--feature", metavar="COLUMN", help="A column to use; repeatable (default: all).")
    ] = field(default_factory=list)
    ignore: Annotated[
        list[str], flag("--ignore", metavar="COLUMN", help="A column to leave out; repeatable.")
    ] = field(default_factory=list)
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
    calibration: Annotated[
        str | None, flag("--calibration", metavar="NAME", help="certified (default) or paper.")
    ] = None
    clip: Annotated[str | None, flag("--clip", metavar="RULE", help="consistent or norm.")] = None
    bound: Annotated[
        str | None, flag("--bound", metavar="RULE", help="Clipping bound: private, paper, or a number.")
    ] = None
    schedule: Annotated[
        str | None, flag("--schedule", metavar="RULE", help="Budget over the steps: geometric or uniform.")
    ] = None
    scaling: Annotated[
        str | None,
        flag("--scaling", metavar="RULE", help="auto (default), bounds, private, data or none."),
    ] = None
    weights: Annotated[str | None, flag("--weights", metavar="RULE", help="size or optimal.")] = None
    participation: Annotated[
        float | None, flag("--participation", metavar="SHARE", help="Share of the sites asked in a round.")
    ] = None
    ridge: Annotated[
        float | None, flag("--ridge", metavar="NUMBER", help="Penalty on squared slopes.")
    ] = None
    errors: Annotated[
        str | None,
        flag("--errors", metavar="ROUTE", help="Standard errors: auto (default), model, sandwich, sites or none."),
    ] = None
    no_intercept: Annotated[bool, flag("--no-intercept", help="Fit without an intercept.")] = False
    seed: Seed = None
    option: Annotated[
        list[str],
        flag("--option", metavar="NAME=VALUE", help="An option of the method, such as K=50; repeatable."),
    ] = field(default_factory=list)
    as_json: AsJson = False
    out: Annotated[
        Path | None, flag("--out", metavar="FILE.json", help="Write the result as JSON to a file, too.")
    ] = None
    report: Report = None

    def settings(self) -> dict[str, Any]:
        """Arguments of `fedmest.fit` that were given; its own defaults stand for the rest."""
        names = ("calibration", "clip", "schedule", "scaling", "weights", "participation", "ridge", "errors",
                 "seed")  # fmt: skip
        given = {name: getattr(self, name) for name in names if getattr(self, name) is not None}
        if self.bound is not None:
            given["bound"] = number(self.bound)
        return {**given, "mu": self.mu, "fit_intercept": not self.no_intercept}

    def load(self) -> tuple["Federation", str]:
        """The federation and the name of the model. Flags win over the schema."""
        from fedmest import inputs
        from fedmest.federation import Federation
        from fedmest.models import model_named

        check_writable(self.out)
        check_writable(self.report, "--report")
        schema = inputs.read_schema(self.schema) if self.schema is not None else {}
        given = {"target": self.target, "site": self.site, "model": self.model}
        chosen = {**schema, **{key: value for key, value in given.items() if value is not None}}
        for key in given:
            if key not in chosen:
                raise InputError(f"no {key} is named; add --{key} or a line '{key} = ...' to a schema")
        model_named(chosen["model"])
        federation = Federation.from_frame(
            inputs.read_frame(self.file), chosen["target"], chosen["site"],
            features=self.feature or schema.get("features"), ignore=self.ignore or schema.get("ignore", ()),
            bounds={**schema.get("bounds", {}), **parse_bounds(self.bounds)},
            missing=self.missing or "error",
        )  # fmt: skip
        return federation, chosen["model"]

    def give(self, content: dict[str, Any], show: Callable[[], None], page: Callable[[], str]) -> None:
        """Hand the result over: to the files, and to the screen in the form that was asked for."""
        text = json.dumps(content, indent=2, allow_nan=False)
        if self.out is not None:
            self.out.write_text(text + "\n", encoding="utf-8")
        if self.report is not None:
            self.report.write_text(page(), encoding="utf-8")
        if self.as_json:
            print(text)
        else:
            show()


def takes_call(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command `f(call, ...)` every argument of `Call` beside its own, written out once."""
    shared = inspect.signature(Call).parameters
    own = dict(list(inspect.signature(command).parameters.items())[1:])

    @functools.wraps(command)
    def run(**values: Any) -> None:
        command(Call(**{name: values[name] for name in shared}), **{name: values[name] for name in own})

    factories = {f.name: f.default_factory() for f in fields(Call) if callable(f.default_factory)}
    ordered = sorted([*shared.values(), *own.values()], key=lambda p: p.name not in FIRST)
    parameters = [p.replace(kind=p.KEYWORD_ONLY, default=factories.get(p.name, p.default)) for p in ordered]
    run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    run.__annotations__ = {p.name: p.annotation for p in parameters}
    return run


def number(text: str) -> Any:
    """A whole number, a number, true or false, or else the text itself: as a Python user would have it."""
    if text.lower() in ("true", "false"):
        return text.lower() == "true"
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text


def parse_bounds(texts: Sequence[str]) -> dict[str, tuple[float, float]]:
    found: dict[str, tuple[float, float]] = {}
    for text in texts:
        name, _, pair = text.rpartition("=")
        low, _, high = pair.partition(":")
        try:
            limits = float(low), float(high)
        except ValueError:
            name = ""
        if not name:
            raise InputError(f"--bounds {text!r}: write COLUMN=LOW:HIGH, such as age=0:100")
        if name in found:
            raise InputError(f"--bounds names column {name!r} twice; once will do")
        found[name] = limits
    return found


def parse_options(texts: Sequence[str]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not (name and equals and value):
            raise InputError(f"--option {text!r}: write NAME=VALUE, such as K=50")
        if name in found:
            raise InputError(f"--option names {name!r} twice; once will do")
        found[name] = number(value)
    return found


def check_writable(path: Path | None, argument: str = "--out") -> None:
    """Said before the work, not after it."""
    if path is None:
        return
    folder = path.parent
    if path.is_dir():
        raise InputError(f"{argument} {path} is a folder; name a file")
    if not folder.is_dir():
        raise InputError(f"{argument} {path}: there is no folder {folder}; make it first")
    if not os.access(path if path.exists() else folder, os.W_OK):
        raise InputError(f"{argument} {path} may not be written; choose another place")


def parse_beta(text: str | None) -> tuple[float, ...] | None:
    try:
        return None if text is None else tuple(float(part) for part in text.split(","))
    except ValueError:
        raise InputError(f"--beta {text!r}: write numbers with commas between them, such as 0.5,-0.5,0.3") from None


def listed_sizes(text: str) -> int | list[int] | None:
    """One number, or numbers with commas between them; None where the text is neither."""
    try:
        found = [int(part.replace("_", "")) for part in text.split(",")]
    except ValueError:
        return None
    return found if len(found) > 1 else found[0]


def parse_sizes(text: str) -> Any:
    """The same, or a file with a column of them."""
    if (found := listed_sizes(text)) is not None:
        return found
    from fedmest.inputs import read_frame

    if not Path(text).suffix:
        raise InputError(f"--sizes {text!r}: write a number, numbers with commas between them, or name a CSV file")
    frame = read_frame(text)
    numbers = frame.select_dtypes("number")
    named = [column for column in numbers if str(column).lower() in ("rows", "n", "size", "sizes")]
    chosen = named or list(numbers)
    if len(chosen) != 1:
        raise InputError(f"{text}: name the column of sizes 'rows'; the columns are {', '.join(map(str, frame))}")
    return numbers[chosen[0]].tolist()
