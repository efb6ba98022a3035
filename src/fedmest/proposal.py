"""What a server proposes to its sites: `study.toml`. Model, method, budget, columns; all of it public."""

import hashlib
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np

from fedmest import inputs
from fedmest.errors import InputError
from fedmest.federation import Index
from fedmest.methods import method_named
from fedmest.models import model_named
from fedmest.planner import AUTO, agree
from fedmest.schema import Column, Design, columns_of
from fedmest.terms import Roster, Terms, Wishes

KEYS: dict[str, type] = {
    "model": str, "method": str, "mu": float, "target": str, "features": list, "sites": list, "quorum": int,
    "timeout": float, "seed": int, "settings": dict, "options": dict, "columns": dict,
}  # fmt: skip
NEEDED = ("model", "method", "mu", "target", "columns")


@dataclass(frozen=True)
class Proposal:
    model: str
    method: str
    mu: float
    target: str
    features: tuple[str, ...]
    columns: dict[str, Column]
    wishes: Wishes
    options: dict[str, Any]
    sites: tuple[str, ...]  # to wait for; empty: whoever is there
    quorum: int  # sites that must answer in every round
    timeout: float  # seconds that a round may take
    seed: int | None  # for rehearsals with sites that allow it
    digest: str

    @staticmethod
    def read(path: str | Path) -> "Proposal":
        """The proposal in a TOML file; an InputError names the line to mend."""
        return Proposal.of(inputs.read_toml(path), str(path))

    @staticmethod
    def of(given: dict[str, Any], where: str) -> "Proposal":
        for key, value in given.items():
            if key not in KEYS:
                raise InputError(f"{where}: there is no setting {key!r}; {inputs.nearest(key, KEYS, 'there are')}")
            whole = KEYS[key] is float and isinstance(value, int) and not isinstance(value, bool)
            if not (whole or isinstance(value, KEYS[key])) or (isinstance(value, bool) and KEYS[key] is not bool):
                raise InputError(f"{where}: {key} = {value!r} must be of type {KEYS[key].__name__}")
        for key in NEEDED:
            if key not in given:
                raise InputError(f"{where} must say {key} = ...")
        settings = given.get("settings", {})
        known = [f.name for f in fields(Wishes)]
        for key in settings:
            if key not in known:
                raise InputError(f"{where}: [settings] has no {key!r}; {inputs.nearest(key, known, 'there are')}")
        columns = columns_of(given["columns"], where)
        features = given.get("features", [name for name in columns if name != given["target"]])
        sites = given.get("sites", [])
        for key, texts in (("features", features), ("sites", sites)):
            if not all(isinstance(text, str) for text in texts) or len(set(texts)) < len(texts):
                raise InputError(f"{where}: {key} must be a list of texts, each of them once")
        if "quorum" not in given and not sites:
            raise InputError(f"{where} must say which sites = [...] it waits for, or how many must answer (quorum)")
        quorum, timeout = given.get("quorum", len(sites)), float(given.get("timeout", 120.0))
        if quorum < 1 or (sites and quorum > len(sites)):
            raise InputError(f"{where}: quorum = {quorum} must lie between 1 and the number of sites")
        if not 1 <= timeout <= 86_400:
            raise InputError(f"{where}: timeout = {timeout:g} must lie between 1 and 86400 seconds")
        proposal = Proposal(
            given["model"], given["method"], float(given["mu"]), given["target"], tuple(features), columns,
            Wishes(**settings), given.get("options", {}), tuple(sites), quorum, timeout, given.get("seed"),
            hashlib.sha256(repr(sorted(given.items())).encode()).hexdigest(),
        )  # fmt: skip
        try:
            auto = proposal.method == AUTO
            if not (auto or method_named(proposal.method).private) or not np.isfinite(proposal.mu):
                raise InputError("sites answer private methods at a finite mu only")
            trial = sites or [str(i) for i in range(quorum)]
            proposal.terms(tuple(trial), np.full(len(trial), 2), 0)  # what cannot be agreed to is said now
        except InputError as fault:
            raise InputError(f"{where}: {fault}") from None
        return proposal

    def terms(self, sites: tuple[str, ...], sizes: Index, seed: int) -> Terms:
        """The terms for sites in the order of their names."""
        model = model_named(self.model)
        design = Design.of(self.columns, self.features, self.target, model)
        if design.classes:
            model.set_classes(design.classes)
        facts = Roster(np.array(sites, dtype=object), sizes, design.features, self.target, design.bounds)
        terms = agree(facts, model, self.method, self.mu, self.wishes, self.options, seed)
        if terms.wishes.bound == "paper" or terms.scaling == "data":
            raise InputError("sites give out no bound and no scales that are read off their rows without paying")
        terms.plan  # noqa: B018 -- raises where no schedule can be written
        return terms
