"""What a server proposes to its sites: `study.toml`. Model, method, budget, columns; all of it public."""

import hashlib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from fedmest.core.exceptions import InputError
from fedmest.core.files import entry, read_table, read_toml
from fedmest.core.typing import IntArray
from fedmest.data.schema import Column, DesignSpec, columns_entry
from fedmest.methods import method_named
from fedmest.models import model_named
from fedmest.runs.planning_problem import AUTO, choose
from fedmest.runs.settings import Settings
from fedmest.runs.spec import PublicFacts, RunSpec

TIMEOUT_RANGE_S = (1.0, 86_400.0)


def _distinct_problem(names: tuple[str, ...]) -> str | None:
    return None if len(set(names)) == len(names) else "a list of strings, each of them once"


def _features_problem(names: tuple[str, ...]) -> str | None:
    return _distinct_problem(names) if names else "a list of at least one column"  # none given: all but the target


def _quorum_problem(quorum: int) -> str | None:
    return None if quorum >= 1 else "at least 1"


def _timeout_problem(seconds: float) -> str | None:
    low, high = TIMEOUT_RANGE_S
    return None if low <= seconds <= high else f"between {low:g} and {high:g} seconds"


@dataclass(frozen=True)
class Proposal:
    """A study as its server proposes it.

    Parameters
    ----------
    model, method : str
    mu : float
        Budget of every site's rows.
    target : str
    columns : dict
        The declared columns by name.
    features : tuple of str
        Columns to explain with; by default all but the target.
    settings : Settings
    options : dict
        Of the method.
    sites : tuple of str
        To wait for; empty: whoever is there.
    quorum : int
        Sites that must answer in every round; by default all that are named.
    timeout : float
        Seconds that a round may take.
    seed : int, optional
        For simulations with sites that allow it.
    digest : str
        Of everything that was given.
    """

    model: str
    method: str
    mu: float
    target: str
    columns: dict[str, Column] = columns_entry()
    features: tuple[str, ...] = entry((), check=_features_problem)
    settings: dict[str, Any] = field(default_factory=dict)
    options: dict[str, Any] = field(default_factory=dict)
    sites: tuple[str, ...] = entry((), check=_distinct_problem)
    quorum: int = entry(0, check=_quorum_problem)  # 0: all that are named
    timeout: float = entry(120.0, check=_timeout_problem)
    seed: int | None = None
    digest: str = ""

    @staticmethod
    def read(path: str | Path) -> "Proposal":
        """The proposal in a TOML file; an InputError names the key to fix."""
        return Proposal.of(read_toml(path), str(path))

    @staticmethod
    def of(given: dict[str, Any], where: str) -> "Proposal":
        """The proposal in a mapping; `where` says where it stands, in messages."""
        digest = hashlib.sha256(repr(sorted(given.items())).encode()).hexdigest()
        return read_table(Proposal, given, where, digest=digest)

    def __post_init__(self) -> None:
        if not self.features:
            object.__setattr__(self, "features", tuple(name for name in self.columns if name != self.target))
        if not self.quorum and not self.sites:
            raise InputError("name the sites = [...] to wait for, or how many must answer (quorum)")
        if not self.quorum:
            object.__setattr__(self, "quorum", len(self.sites))
        if self.sites and self.quorum > len(self.sites):
            raise InputError(f"quorum = {self.quorum} exceeds the number of sites")
        if not (self.method == AUTO or method_named(self.method).private) or not np.isfinite(self.mu):
            raise InputError("sites answer private methods at a finite mu only")
        trial = self.sites or tuple(str(i) for i in range(self.quorum))
        self.spec(trial, np.full(len(trial), 2), 0)  # what cannot be agreed to is said now

    def spec(self, sites: tuple[str, ...], sizes: IntArray, public_seed: int) -> RunSpec:
        """The spec for sites in the order of their names."""
        model = model_named(self.model)
        design = DesignSpec.of(self.columns, self.features, self.target, model.target_rule, model.name)
        model = model.with_classes(design.classes)
        data = PublicFacts(np.array(sites, dtype=object), sizes, design.features, self.target, design.bounds)
        settings = Settings.from_mapping(self.settings, "[settings]")
        spec = choose(data, model, self.method, self.mu, settings, self.options, public_seed)
        if spec.settings.clip_norm == "paper" or spec.scaling == "data":
            raise InputError("sites give out no clip norm and no scales that are read off their rows without spending")
        spec.schedule  # noqa: B018 -- raises where no schedule can be written
        return spec
