"""How a fit is done: the one list of settings.

Flags of the command line, TOML and JSON, checks, the noise key, reports and plans are loops over the fields of
`Settings`. A new setting is a field here.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import Field, dataclass, field, fields, replace
from numbers import Real
from typing import Any, Protocol

from fedmest.core.choices import (
    AGGREGATION_WEIGHTS,
    BUDGET_SCHEDULES,
    CALIBRATIONS,
    CLIP_RULES,
    COV_TYPES,
    SCALINGS,
)
from fedmest.core.exceptions import InputError
from fedmest.core.files import nearest


class ModelFacts(Protocol):
    """The facts of a model that settings depend on."""

    @property
    def name(self) -> str: ...
    @property
    def has_coefficients(self) -> bool: ...
    @property
    def clips(self) -> tuple[str, ...]: ...


@dataclass(frozen=True)
class NumberRule:
    """Numbers that a setting takes.

    Parameters
    ----------
    text : str
        The rule in words.
    holds : callable
        Whether a number is one of them.
    """

    text: str
    holds: Callable[[float], bool]


POSITIVE = NumberRule("a positive number", lambda x: math.isfinite(x) and x > 0)
NOT_NEGATIVE = NumberRule("a number of at least 0", lambda x: math.isfinite(x) and x >= 0)
SHARE = NumberRule("a number above 0 and at most 1", lambda x: 0 < x <= 1)


@dataclass(frozen=True)
class SettingInfo:
    """Facts about a setting beside its name, type and default.

    Parameters
    ----------
    doc : str
        One line, for help texts and the reference.
    choices : tuple of str
        Texts that it may be.
    number : NumberRule or None
        Numbers that it may be.
    flag : str
        Its flag on the command line, where that is not the name with dashes.
    audit : bool
        Whether an audit can take it.
    audit_choices : tuple of str
        Texts that an audit can take, where these are not all.
    keyed : bool
        Whether its default enters the noise key as well.
    plan_values : tuple of str
        Values that a plan may choose from.
    """

    doc: str
    choices: tuple[str, ...] = ()
    number: NumberRule | None = None
    flag: str = ""
    audit: bool = False
    audit_choices: tuple[str, ...] = ()
    keyed: bool = True
    plan_values: tuple[str, ...] = ()

    def problem(self, name: str, value: Any) -> str:
        """Problem of a value.

        Parameters
        ----------
        name : str
            Name of the setting.
        value : object
            Its value.

        Returns
        -------
        str
            What is wrong, and which values are possible; empty if nothing is.
        """
        if isinstance(value, str):
            if value in self.choices:
                return ""
        elif (self.number is not None and is_number(value) and self.number.holds(value)) or (
            not self.choices and self.number is None and isinstance(value, bool)
        ):
            return ""
        allowed = ", ".join(self.choices)
        if self.number is not None and allowed:
            return f"{name}={value!r}: choose {allowed}, or give {self.number.text}"
        if self.number is not None:
            return f"{name}={value!r} must be {self.number.text}"
        return f"{name}={value!r}: choose one of {allowed}" if allowed else f"{name}={value!r} must be True or False"


def setting(default: Any, doc: str, **info: Any) -> Any:
    """A field of `Settings` with what is known of it."""
    return field(default=default, metadata={"setting": SettingInfo(doc, **info)})


@dataclass(frozen=True, kw_only=True)
class Settings:
    """How a fit is done; None leaves a choice to the calibration and the model.

    Every field is a keyword argument of `fit`, `compare` and `plan`, a flag of the command line, a line under
    [settings] in study.toml, and a line in the report.

    Parameters
    ----------
    calibration : {"certified", "paper"}, default "certified"
        certified derives noise from proved sensitivities; paper reproduces the paper, gaps included.
    clip_rule : {"consistent", "norm"}, optional
        consistent keeps the estimating equation unbiased; norm is the paper's, and the only one for networks.
    clip_norm : {"private", "paper"} or float, optional
        Bound on a row's score: private estimates it with 1 % of mu^2, paper reads the data, or a number.
    budget_schedule : {"geometric", "uniform"}, optional
        Budget over the steps: geometric spends more on later ones; uniform is the paper's.
    scaling : {"auto", "bounds", "private", "data", "none"}, default "auto"
        Scales of columns: auto takes declared bounds and estimates the rest privately with 5 % of mu^2.
    aggregation_weights : {"size", "optimal"}, default "size"
        Weights of the sites' replies: by size, or the paper's optimal ones.
    weight_constant : float, default 1.0
        trace(Sigma) / d in the paper's optimal weights.
    participation : float, default 1.0
        Share of the sites that are asked in each round.
    ridge : float, default 0.0
        Penalty ridge/2 |slopes|^2 on the mean loss, in original units; of a network, on all parameters.
    fit_intercept : bool, default True
        Fit an intercept.
    cov_type : {"auto", "nonrobust", "robust", "cluster", "none"}, default "auto"
        Standard errors: auto takes what is free with the run; nonrobust trusts the model; robust is the sandwich;
        cluster is the spread of 20 sites or more; none.
    """

    calibration: str = setting(
        "certified",
        "certified derives noise from proved sensitivities; paper reproduces the paper, gaps included.",
        choices=CALIBRATIONS,
    )
    clip_rule: str | None = setting(
        None,
        "consistent keeps the estimating equation unbiased; norm is the paper's, and the only one for networks.",
        choices=CLIP_RULES,
        audit=True,
    )
    clip_norm: str | float | None = setting(
        None,
        "Bound on a row's score: private estimates it with 1 % of mu^2, paper reads the data, or a number.",
        choices=("private", "paper"),
        number=POSITIVE,
        audit=True,
    )
    budget_schedule: str | None = setting(
        None,
        "Budget over the steps: geometric spends more on later ones; uniform is the paper's.",
        choices=BUDGET_SCHEDULES,
        audit=True,
        plan_values=BUDGET_SCHEDULES,
    )
    scaling: str = setting(
        "auto",
        "Scales of columns: auto takes declared bounds and estimates the rest privately with 5 % of mu^2.",
        choices=SCALINGS,
        audit=True,
    )
    aggregation_weights: str = setting(
        "size",
        "Weights of the sites' replies: by size, or the paper's optimal ones.",
        choices=AGGREGATION_WEIGHTS,
        plan_values=AGGREGATION_WEIGHTS,
    )
    weight_constant: float = setting(1.0, "trace(Sigma) / d in the paper's optimal weights.", number=POSITIVE)
    participation: float = setting(1.0, "Share of the sites that are asked in each round.", number=SHARE)
    ridge: float = setting(
        0.0,
        "Penalty ridge/2 |slopes|^2 on the mean loss, in original units; of a network, on all parameters.",
        number=NOT_NEGATIVE,
        audit=True,
    )
    fit_intercept: bool = setting(True, "Fit an intercept.", flag="--no-intercept")
    cov_type: str = setting(
        "auto",
        "Standard errors: auto takes what is free with the run; nonrobust trusts the model; robust is the "
        "sandwich; cluster is the spread of 20 sites or more; none.",
        choices=COV_TYPES,
        keyed=False,
        audit=True,
        audit_choices=("auto", "nonrobust", "none"),
    )

    @classmethod
    def info(cls) -> dict[str, SettingInfo]:
        """Facts about every setting, by name."""
        return {f.name: _info(f) for f in fields(cls)}

    @classmethod
    def from_mapping(cls, table: Mapping[str, Any], where: str) -> "Settings":
        """Settings from keyword arguments, TOML or JSON.

        Parameters
        ----------
        table : mapping
            Values by name.
        where : str
            Where they come from, for messages.

        Returns
        -------
        Settings

        Raises
        ------
        InputError
            If there is no such setting.
        """
        known = [f.name for f in fields(cls)]
        for name in table:
            if name not in known:
                raise InputError(f"{where} has no {name!r}; {nearest(name, known, 'there are')}")
        return cls(**table)

    def resolve(self, model: ModelFacts) -> "Settings":
        """Settings without None, every value checked.

        Parameters
        ----------
        model : Model
            The model; decides defaults that are None.

        Returns
        -------
        Settings

        Raises
        ------
        InputError
            If a value is not possible.
        """
        paper = self.calibration == "paper"
        schedule = "uniform" if paper or not model.has_coefficients else "geometric"  # networks: damping is not known
        resolved = replace(
            self,
            clip_rule=self.clip_rule if self.clip_rule is not None else ("norm" if paper else model.clips[0]),
            clip_norm=self.clip_norm if self.clip_norm is not None else ("paper" if paper else "private"),
            budget_schedule=self.budget_schedule if self.budget_schedule is not None else schedule,
        )
        for name, info in self.info().items():
            if problem := info.problem(name, getattr(resolved, name)):
                raise InputError(problem)
        if resolved.clip_rule not in model.clips:
            rules = " or ".join(map(repr, model.clips))
            raise InputError(f"clip_rule={resolved.clip_rule!r}: the {model.name} model takes clip_rule={rules} only")
        return resolved

    def noise_key(self, intercept: bool) -> tuple[list[Any], list[Any]]:
        """Values that distinguish two fits, for the key of the noise.

        Names of settings are no part of it, so that they can change without changing noise.

        Parameters
        ----------
        intercept : bool
            Whether rows have a column of ones.

        Returns
        -------
        always : list
            Values that always count.
        where_set : list
            Values that count only where they differ from their defaults.
        """
        always: list[Any] = []
        where_set: list[Any] = []
        for f in fields(self):
            value = (
                intercept if f.name == "fit_intercept" else _KEY_TEXTS.get(getattr(self, f.name), getattr(self, f.name))
            )
            if _info(f).keyed:
                always.append(value)
            elif value != f.default:
                where_set.append(value)
        return always, where_set

    def changed(self, model: ModelFacts) -> dict[str, Any]:
        """Settings that differ from their resolved defaults.

        Parameters
        ----------
        model : Model
            The model; decides defaults that are None.

        Returns
        -------
        dict
        """
        usual = Settings().resolve(model)
        return {f.name: getattr(self, f.name) for f in fields(self) if getattr(self, f.name) != getattr(usual, f.name)}


def flag_of(name: str) -> str:
    """What the command line calls a setting."""
    return Settings.info()[name].flag or f"--{name.replace('_', '-')}"


_KEY_TEXTS = {"nonrobust": "model", "robust": "sandwich", "cluster": "sites"}  # as noise keys have always had them


def _info(f: "Field[Any]") -> SettingInfo:
    info = f.metadata["setting"]
    assert isinstance(info, SettingInfo)
    return info


def is_number(value: Any) -> bool:
    """Whether a value is a number, Python's or numpy's, and not a bool."""
    return isinstance(value, Real) and not isinstance(value, bool)
