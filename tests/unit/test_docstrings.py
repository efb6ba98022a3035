"""Everything public says in numpydoc sections what it takes and what it returns.

One rule: a summary line; a section Parameters that names every argument (of a dataclass, Parameters or Attributes that
name every field); and where something with arguments returns a value, a section Returns. What takes no arguments, a
property for example, is what its summary line says. An overriding method may inherit the text of the method that it
overrides, as `help` shows it.
"""

import inspect
import re
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from enum import Enum
from importlib import import_module
from typing import Any, get_type_hints

import pytest

import fedmest
from fedmest import methods, models, queries

ESTIMATORS = (
    "FederatedLinearRegression", "FederatedLogisticRegression", "FederatedPoissonRegressor", "FederatedRegressor",
)  # fmt: skip
EXTENSIONS = {
    "data.schema": ("TargetRule",),
    "interface.estimators": ("FederatedModel",),
    "inference.covariance": ("CovarianceEstimate",),
    "inference.population": ("Population",),
    "inference.prediction": ("Prediction", "predict"),
    "inference.routes": ("CovarianceRoute", "choose_route"),
    "inference.wald": ("WaldTest",),
    "methods.base": ("Method", "NoiseModel", "Runner"),
    "privacy.report": ("ReleaseRecord",),
    "queries.base": ("Query", "QueryInputs", "Release", "Role", "SiteData"),
    "queries.schedule": ("PublicContext", "Replies", "RoundRecord", "Schedule", "Step", "sequential_steps"),
    "runs.aggregate": ("Aggregator", "WeightedSum"),
    "runs.backend": ("Backend", "LocalBackend"),
    "runs.communication": ("Communication", "Round"),
    "runs.phases.base": ("Phase", "PhaseRunner", "PublicState", "PublicValue"),
    "runs.plan": ("Candidate",),
    "runs.planning_problem": ("Limits", "PlanningProblem", "choose"),
    "runs.result": ("PredictionResult",),
    "runs.runner": ("RoundInfo",),
    "runs.settings": ("NumberRule", "SettingInfo"),
    "runs.spec": ("PublicFacts", "RunSpec"),
    "server.coordinator": ("Transport",),
}
ARITHMETIC = ("privacy.gdp", "inference.rates")  # modules whose public names are all documented


def subjects() -> dict[str, Any]:
    """Public functions and classes, by where they are defined."""
    found = [getattr(fedmest, name) for name in (*fedmest.__all__, *ESTIMATORS)]
    found += [getattr(module, name) for module in (methods, models, queries) for name in module.__all__]
    found += [*methods.METHODS.values()]
    found += [getattr(import_module(f"fedmest.{place}"), name) for place, names in EXTENSIONS.items() for name in names]
    for place in ARITHMETIC:
        module = import_module(f"fedmest.{place}")
        found += [value for name, value in vars(module).items()
                  if getattr(value, "__module__", "") == module.__name__ and not name.startswith("_")]  # fmt: skip
    found = [value for value in found if inspect.isclass(value) or inspect.isfunction(value)]
    return {f"{value.__module__}.{value.__qualname__}".removeprefix("fedmest."): value for value in found}


SUBJECTS = subjects()


def members(kind: type) -> Iterator[tuple[str, Any]]:
    """Public methods and properties that a class gets from this package."""
    for name in dir(kind):
        if name.startswith("_"):
            continue
        home = next(base for base in kind.__mro__ if name in vars(base))
        value = inspect.getattr_static(kind, name)
        value = getattr(value, "__func__", value)  # of class and static methods
        described = inspect.isfunction(value) or isinstance(value, property) or hasattr(value, "attrname")
        if home.__module__.startswith("fedmest") and described:
            yield name, value


CALLABLES = {name: value for name, value in SUBJECTS.items() if inspect.isfunction(value)}
CLASSES = {name: value for name, value in SUBJECTS.items() if inspect.isclass(value)}
MEMBERS = {f"{name}.{member}": (kind, member, value) for name, kind in CLASSES.items()
           for member, value in members(kind)}  # fmt: skip


def sections(text: str) -> dict[str, str]:
    """The sections of a docstring, by title; what stands before the first is called Summary."""
    parts = re.split(r"^(\w[\w ]*)\n-{3,}$\n?", text, flags=re.MULTILINE)
    return {"Summary": parts[0], **dict(zip(parts[1::2], parts[2::2], strict=True))}


def named(section: str) -> set[str]:
    """Names that a section of parameters lists: lines without indentation, up to a colon."""
    lines = [line.partition(" : ")[0] for line in section.splitlines() if line and not line.startswith(" ")]
    return {name.strip().lstrip("*") for line in lines for name in line.split(",")}


def documented(value: Any) -> str:
    text = inspect.getdoc(value) or ""
    assert re.match(r"\S.*[.:]$", text.partition("\n")[0]), f"no summary line of its own: {text[:100]!r}"
    return text


def check_call(text: str, call: Any, name: str) -> None:
    signature = inspect.signature(call)
    arguments = {p.name for p in signature.parameters.values() if p.name not in ("self", "cls")}
    found = sections(text)
    assert arguments <= named(found.get("Parameters", "")), f"{name}: {sorted(arguments)} belong under Parameters"
    if arguments and signature.return_annotation not in (None, "None"):
        assert {"Returns", "Yields"} & set(found), f"{name} returns something: say what, under Returns"


@pytest.mark.parametrize("name", CALLABLES)
def test_a_function_has_parameters_and_returns(name: str) -> None:
    check_call(documented(CALLABLES[name]), CALLABLES[name], name)


@pytest.mark.parametrize("name", MEMBERS)
def test_a_method_has_parameters_and_returns(name: str) -> None:
    kind, member, value = MEMBERS[name]
    if inspect.isfunction(value):
        check_call(documented(getattr(kind, member)), value, name)
        return
    texts = [inspect.cleandoc(base.__doc__ or "") for base in kind.__mro__]
    if not any(member in named(sections(text).get("Attributes", "")) for text in texts):  # there a class may list it
        homes = [vars(base)[member] for base in kind.__mro__ if member in vars(base)]
        documented(next((home for home in homes if home.__doc__), value))


@pytest.mark.parametrize("name", CLASSES)
def test_a_class_names_its_fields_and_arguments(name: str) -> None:
    kind = CLASSES[name]
    assert "__doc__" in vars(kind) and kind.__doc__ and not kind.__doc__.startswith(f"{kind.__name__}(")
    found = sections(documented(kind))
    if issubclass(kind, (Enum, Exception)):
        return
    listed = named(found.get("Parameters", "")) | named(found.get("Attributes", ""))
    if is_dataclass(kind):
        expected = {f.name for f in fields(kind) if f.init and not f.name.startswith("_")}
    elif getattr(kind.__init__, "__module__", "").startswith("fedmest") and not getattr(kind, "_is_protocol", False):
        expected = set(inspect.signature(kind).parameters)
        expected -= {"settings"} | {f.name for f in fields(fedmest.Settings)} if "**settings" in kind.__doc__ else set()
    else:
        return
    assert expected <= listed, f"{name}: {sorted(expected - listed)} belong under Parameters or Attributes"


@pytest.mark.parametrize("name", fedmest.Settings.info())
def test_a_setting_reads_the_same_in_the_docstring_and_in_help_texts(name: str) -> None:
    text = sections(inspect.getdoc(fedmest.Settings) or "")["Parameters"]
    found = re.search(rf"^{name} : (.*)\n((?: .*\n?)+)", text, re.MULTILINE)
    info = fedmest.Settings.info()[name]
    assert found is not None and " ".join(found[2].split()) == info.doc
    assert all(f'"{choice}"' in found[1] for choice in info.choices)


@pytest.mark.parametrize("name", methods.METHODS)
def test_options_of_methods_have_types_that_are_checked(name: str) -> None:
    kind = methods.METHODS[name]
    hints = get_type_hints(kind)
    assert all(f.name in hints for f in fields(kind))  # type: ignore[arg-type]


def test_an_argument_without_a_word_is_found() -> None:
    def half(x: float, level: float) -> float:
        """Half of it.

        Parameters
        ----------
        x : float
            A number.

        Returns
        -------
        float
        """
        return x / 2

    with pytest.raises(AssertionError, match="level"):
        check_call(documented(half), half, "half")


EXAMPLES = (
    "runs.fit.fit", "runs.fit.compare", "runs.planning.plan", "auditing.game.audit",
    *(f"data.federation.Federation.{name}" for name in ("from_arrays", "from_frame")),
    *(f"runs.result.Result.{name}" for name in ("summary_frame", "conf_int", "predict", "get_prediction")),
    *(f"privacy.gdp.{name}" for name in ("compose", "gdp_delta", "gdp_epsilon", "gdp_mu", "third_party_mu")),
)  # fmt: skip


@pytest.mark.parametrize("name", EXAMPLES)
def test_what_users_call_has_an_example_that_doctest_runs(name: str) -> None:
    value = CALLABLES[name] if name in CALLABLES else MEMBERS[name][2]
    text = sections(inspect.getdoc(value) or "").get("Examples", "")
    assert ">>> " in text and "+SKIP" not in text
