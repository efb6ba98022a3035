"""What a site allows, in a file that the site owns: `site.toml`. Nothing in it comes from a server."""

import math
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from fedmest.core.choices import CALIBRATIONS
from fedmest.core.exceptions import InputError
from fedmest.core.files import entry, positive, read_table, read_toml
from fedmest.core.typing import FloatArray
from fedmest.data.readers import read_frame
from fedmest.data.schema import Column, columns_entry
from fedmest.data.validation import MISSING
from fedmest.methods import METHODS
from fedmest.models import MODELS
from fedmest.site.ledger_entries import MIN_MU

MAX_NAME = 200  # characters of a site's name


def _models() -> list[str]:
    return [name for name, model in MODELS.items() if model().has_coefficients]


def _methods() -> list[str]:
    return [name for name, method in METHODS.items() if method.private]


def _name_problem(name: str) -> str | None:
    return None if name.strip() and len(name) <= MAX_NAME else f"a string of 1 to {MAX_NAME} characters"


def _budget_problem(mu: float) -> str | None:
    return positive(mu) or (None if mu > MIN_MU else f"above {MIN_MU:g}, below which no release can be charged")


def _rows_problem(rows: int) -> str | None:
    return None if rows >= 1 else "at least 1"


@dataclass(frozen=True)
class Policy:
    """A site's rules: who it is, where its rows are, which queries it allows, and its privacy budget.

    Parameters
    ----------
    name : str
        Name of the site, as studies list it.
    data, ledger, socket : Path
        The rows (CSV or Parquet), the ledger, and the vault's Unix socket.
    group : str, optional
        Group whose members may connect, beside the owner.
    log : Path, optional
        Log file, beside stderr.
    missing : str
        "drop" leaves out rows with gaps in declared columns, "error" refuses to start.
    lifetime_mu, run_mu : float
        Budget of the site for all time, and of one run (by default the same).
    models, methods, calibrations : tuple of str
        What a run may use.
    smallest_rows : int
        Fewest rows without gaps with which the site takes part.
    columns : dict
        The declared columns by name.
    insecure : bool
        A server may set the seed of the noise: for simulations on synthetic rows only.
    """

    name: str = entry(key="site.name", check=_name_problem)
    data: Path = entry(key="site.data")
    lifetime_mu: float = entry(key="budget.lifetime", check=_budget_problem)
    models: tuple[str, ...] = entry(key="allow.models", choices=_models)
    columns: dict[str, Column] = columns_entry()
    ledger: Path = entry(Path("ledger.sqlite"), key="site.ledger")
    socket: Path = entry(Path("vault.sock"), key="site.socket")
    group: str | None = entry(None, key="site.group")
    log: Path | None = entry(None, key="site.log")
    missing: str = entry("error", key="site.missing", choices=MISSING)
    run_mu: float = entry(math.inf, key="budget.run", check=_budget_problem)
    methods: tuple[str, ...] = entry(factory=lambda: tuple(_methods()), key="allow.methods", choices=_methods)
    calibrations: tuple[str, ...] = entry(("certified",), key="allow.calibrations", choices=CALIBRATIONS)
    smallest_rows: int = entry(1, key="allow.smallest_rows", check=_rows_problem)
    insecure: bool = entry(False, key="simulation.insecure")

    @staticmethod
    def read(path: str | Path) -> "Policy":
        """Read a policy from a TOML file; relative paths in it start from its folder.

        Raises
        ------
        InputError
            If the file cannot be read, or breaks a rule; the message names the key to fix.
        """
        path = Path(path)
        return read_table(Policy, read_toml(path), str(path), folder=path.parent)

    def __post_init__(self) -> None:
        if math.isinf(self.run_mu):
            object.__setattr__(self, "run_mu", self.lifetime_mu)
        if self.run_mu > self.lifetime_mu:
            raise InputError(f"[budget] run = {self.run_mu:g} exceeds lifetime = {self.lifetime_mu:g}")

    def load(self) -> dict[str, FloatArray]:
        """Every declared column as numbers, rows with gaps left out or refused; only the site sees what is wrong."""
        frame = read_frame(self.data)
        sources = [column.source for column in self.columns.values()]
        present = [source for source in dict.fromkeys(sources) if source in frame.columns]
        gaps = frame[present].isna()
        if gaps.to_numpy().any() and self.missing == "error":
            column = str(gaps.columns[int(np.flatnonzero(gaps.any().to_numpy())[0])])
            raise InputError(
                f"{self.data}: column {column!r} has {int(gaps[column].sum())} gaps; fill them in, or set "
                'missing = "drop" under [site]'
            )
        frame = frame[~gaps.any(axis=1)]
        if len(frame) < self.smallest_rows:
            raise InputError(
                f"{self.data} has {len(frame)} rows without gaps; [allow] smallest_rows = {self.smallest_rows}"
            )
        return {name: column.values(frame, str(self.data)) for name, column in self.columns.items()}
