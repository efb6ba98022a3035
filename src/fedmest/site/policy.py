"""What a site allows, in a file that the site owns: `site.toml`. Nothing in it comes from a server."""

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from fedmest import inputs
from fedmest.errors import InputError
from fedmest.methods import CALIBRATIONS, METHODS
from fedmest.models import MODELS
from fedmest.privacy.gdp import Array
from fedmest.schema import Column, columns_of

TABLES: dict[str, dict[str, type]] = {
    "site": {"name": str, "data": str, "ledger": str, "socket": str, "group": str, "log": str, "missing": str},
    "budget": {"lifetime": float, "run": float},
    "allow": {"models": list, "methods": list, "calibrations": list, "smallest_rows": int},
    "columns": {},
    "simulation": {"insecure": bool},
}


@dataclass(frozen=True)
class Policy:
    """A site: who it is, where its rows are, what may be asked of them, and how much may be spent."""

    name: str
    data: Path
    ledger: Path
    socket: Path
    group: str | None  # whose members may connect, beside the owner
    log: Path | None
    missing: str
    lifetime: float
    run: float
    models: tuple[str, ...]
    methods: tuple[str, ...]
    calibrations: tuple[str, ...]
    smallest_rows: int
    columns: dict[str, Column]
    insecure: bool  # seeds may be set from outside: for rehearsals with made-up rows only

    @staticmethod
    def read(path: str | Path) -> "Policy":
        """The policy in a TOML file, paths in it taken from where it stands; an InputError names the line to mend."""
        path = Path(path)
        tables = inputs.read_toml(path)
        _check_tables(tables, path)
        site, budget, allow = tables.get("site", {}), tables.get("budget", {}), tables.get("allow", {})
        for table, key in (("site", "name"), ("site", "data"), ("budget", "lifetime"), ("allow", "models")):
            if key not in tables.get(table, {}):
                raise InputError(f"{path}: [{table}] must say {key} = ...")
        place = path.parent
        policy = Policy(
            name=site["name"], data=place / site["data"], ledger=place / site.get("ledger", "ledger.sqlite"),
            socket=place / site.get("socket", "vault.sock"), group=site.get("group"),
            log=place / site["log"] if "log" in site else None, missing=site.get("missing", "error"),
            lifetime=float(budget["lifetime"]), run=float(budget.get("run", budget["lifetime"])),
            models=tuple(allow["models"]), methods=tuple(allow.get("methods", _certified())),
            calibrations=tuple(allow.get("calibrations", ["certified"])),
            smallest_rows=allow.get("smallest_rows", 1), columns=columns_of(tables.get("columns"), str(path)),
            insecure=tables.get("simulation", {}).get("insecure", False),
        )  # fmt: skip
        policy._check(path)
        return policy

    def _check(self, path: Path) -> None:
        if not self.name.strip() or len(self.name) > 200:
            raise InputError(f"{path}: [site] name must be a text of 1 to 200 characters")
        for key, value in (("lifetime", self.lifetime), ("run", self.run)):
            if not (math.isfinite(value) and value > 0):
                raise InputError(f"{path}: [budget] {key} = {value} must be a positive number (mu)")
        if self.run > self.lifetime:
            raise InputError(f"{path}: [budget] run = {self.run:g} exceeds lifetime = {self.lifetime:g}")
        for key, wanted, known in (
            ("models", self.models, [name for name, model in MODELS.items() if model().linear]),
            ("methods", self.methods, _certified()), ("calibrations", self.calibrations, CALIBRATIONS),
        ):  # fmt: skip
            for name in wanted:
                if name not in known:
                    hint = inputs.nearest(name, known, "there are")
                    raise InputError(f"{path}: [allow] {key}: {name!r} is none for a site; {hint}")
        if self.missing not in inputs.MISSING:
            raise InputError(f"{path}: [site] missing = {self.missing!r} must be one of {', '.join(inputs.MISSING)}")
        if self.smallest_rows < 1:
            raise InputError(f"{path}: [allow] smallest_rows must be at least 1")

    def load(self) -> dict[str, Array]:
        """Every declared column as numbers, rows with gaps left out or refused; only the site sees what is wrong."""
        frame = inputs.read_frame(self.data)
        sources = [column.source for column in self.columns.values()]
        present = [source for source in dict.fromkeys(sources) if source in frame.columns]
        gaps = frame[present].isna()
        if gaps.to_numpy().any() and self.missing == "error":
            column = str(gaps.columns[int(np.flatnonzero(gaps.any().to_numpy())[0])])
            raise InputError(
                f"{self.data}: column {column!r} has {int(gaps[column].sum())} gaps; fill them in, or say "
                'missing = "drop" under [site]'
            )
        frame = frame[~gaps.any(axis=1)]
        if len(frame) < self.smallest_rows:
            raise InputError(f"{self.data} has {len(frame)} rows without gaps; [allow] smallest_rows asks for more")
        return {name: column.values(frame, str(self.data)) for name, column in self.columns.items()}


def _certified() -> list[str]:
    return [name for name, method in METHODS.items() if method.private]


def _check_tables(tables: dict[str, Any], path: Path) -> None:
    for table, content in tables.items():
        if table not in TABLES:
            raise InputError(f"{path}: there is no table [{table}]; {inputs.nearest(table, TABLES, 'the tables are')}")
        if not isinstance(content, dict):
            raise InputError(f"{path}: {table} must be a table, written [{table}]")
        for key, value in content.items() if TABLES[table] else ():
            kind = TABLES[table].get(key)
            if kind is None:
                hint = inputs.nearest(key, TABLES[table], "there are")
                raise InputError(f"{path}: [{table}] has no setting {key!r}; {hint}")
            whole = kind is float and isinstance(value, int)
            texts = kind is not list or (isinstance(value, list) and all(isinstance(v, str) for v in value))
            if not (whole or isinstance(value, kind)) or (isinstance(value, bool) and kind is not bool) or not texts:
                what = {list: "a list of texts", str: "a text", bool: "true or false"}.get(kind, "a number")
                raise InputError(f"{path}: [{table}] {key} = {value!r} must be {what}")
