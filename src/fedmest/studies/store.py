"""Results on disk: one SQLite file that grows cell by cell, each in a transaction of its own.

A process killed at any moment leaves whole cells only. What a number depends on beside its cell's settings (our
code, and the libraries that draw and sum) is stored once per file, and a file written by others is refused.
"""

import ast
import hashlib
import json
import math
import sqlite3
from collections.abc import Iterable, Mapping
from functools import cache
from importlib.metadata import version
from pathlib import Path

import pandas as pd

import fedmest
from fedmest.core.exceptions import InputError
from fedmest.studies.cells import Cell, FitRecord

FILE = "results.sqlite"
LIBRARIES = ("numpy", "numba", "scipy")
ROOTS = ("studies.cells", "studies.sources.*")  # modules that compute cells; what they import counts, too
DISPLAY = "interface"  # results know how to show themselves (`Result.to_html`); nothing in there computes a number

TABLES = """
CREATE TABLE IF NOT EXISTS written_by (name TEXT PRIMARY KEY, value TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS cells (
    id INTEGER PRIMARY KEY, study TEXT NOT NULL, settings TEXT NOT NULL UNIQUE, seconds REAL NOT NULL
);
CREATE TABLE IF NOT EXISTS results (
    cell INTEGER NOT NULL REFERENCES cells (id), estimator TEXT NOT NULL, repetition INTEGER NOT NULL,
    error REAL, detail TEXT NOT NULL, failure TEXT NOT NULL, PRIMARY KEY (cell, estimator, repetition)
) WITHOUT ROWID;
"""


def provenance() -> dict[str, str]:
    """What numbers depend on beside the settings of their cell: our code and the libraries that draw and sum."""
    return {"fedmest code": code_digest(), **{name: version(name) for name in LIBRARIES}}


def code_digest(package: Path = Path(fedmest.__file__).parent) -> str:
    """Digest of all modules that computing a cell can reach. Comments, layout and docstrings do not count."""
    texts = (code for _, code in sorted(import_closure(package).items()))
    return hashlib.sha256("".join(texts).encode()).hexdigest()[:16]


def import_closure(package: Path) -> dict[Path, str]:
    """The code of every module that those of ROOTS import, directly or not; imports inside functions count."""
    waiting = [file for root in ROOTS for file in package.glob(root.replace(".", "/") + ".py")]
    found: dict[Path, str] = {}
    while waiting:
        file = waiting.pop()
        if file in found:
            continue
        found[file], names = _parsed(file.read_text(encoding="utf-8"))
        for parts in (name.split(".")[1:] for name in names):
            place = package.joinpath(*parts)
            if parts[:1] != [DISPLAY]:
                waiting += [file for file in (place.with_suffix(".py"), place / "__init__.py") if file.exists()]
    return found


@cache
def _parsed(text: str) -> tuple[str, tuple[str, ...]]:
    """The code of a module, normalized, and what it imports of this package: modules, or names in these."""
    tree, names = ast.parse(text), []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            if node.level:
                raise ValueError("a relative import, which the digest of the code does not follow")
            names += [f"{node.module}", *(f"{node.module}.{alias.name}" for alias in node.names)]
    return ast.dump(_WithoutTexts().visit(tree)), tuple(n for n in names if n.startswith(f"{fedmest.__name__}."))


class _WithoutTexts(ast.NodeTransformer):
    """Takes docstrings, and other statements that are just a text, out of a tree."""

    def visit_Expr(self, node: ast.Expr) -> ast.Expr | None:
        return None if isinstance(node.value, ast.Constant) and isinstance(node.value.value, str) else node


class Store:
    """The results in a folder. One that was written by other code or libraries is refused with an InputError."""

    def __init__(self, folder: Path, made_by: Mapping[str, str] | None = None) -> None:
        self.path = folder / FILE
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self.db = sqlite3.connect(self.path, isolation_level=None, timeout=30)
            self.db.executescript(TABLES)
            self._check(dict(made_by or provenance()))
        except InputError:
            self.db.close()
            raise
        except OSError as error:
            raise InputError(f"--out {folder}: {error.strerror}; choose another folder") from error
        except sqlite3.Error as error:
            raise InputError(f"{self.path} cannot be used as a store ({error}); choose another --out") from error

    def _check(self, now: dict[str, str]) -> None:
        self.db.execute("BEGIN IMMEDIATE")
        before = dict(self.db.execute("SELECT name, value FROM written_by"))
        if not before:
            self.db.executemany("INSERT INTO written_by VALUES (?, ?)", sorted(now.items()))
        self.db.execute("COMMIT")
        changed = [name for name in now if before and before.get(name) != now[name]]
        if changed:
            name = changed[0]
            raise InputError(
                f"{self.path} was written with {name} {before.get(name, 'unknown')}, and this is {now[name]}: numbers "
                "of the two are not mixed; choose another --out, or delete the file to start again"
            )

    def __enter__(self) -> "Store":
        return self

    def __exit__(self, *exception: object) -> None:
        self.db.close()

    def missing(self, cells: Iterable[Cell]) -> list[Cell]:
        """Cells that are not stored yet."""
        have = {key for (key,) in self.db.execute("SELECT settings FROM cells")}
        return [cell for cell in cells if cell.key() not in have]

    def others(self, cells: Iterable[Cell]) -> int:
        """Stored cells of the same studies under other settings, except for more or fewer repetitions.

        They are kept, and left out of tables and figures.
        """
        wanted = list(cells)
        known, studies = {_but_for_repetitions(cell.key()) for cell in wanted}, {cell.study for cell in wanted}
        stored = self.db.execute("SELECT study, settings FROM cells")
        return sum(_but_for_repetitions(key) not in known for study, key in stored if study in studies)

    def add(self, cell: Cell, fits: Iterable[FitRecord], seconds: float) -> None:
        self.db.execute("BEGIN IMMEDIATE")
        try:
            cursor = self.db.execute(
                "INSERT OR IGNORE INTO cells (study, settings, seconds) VALUES (?, ?, ?)",
                (cell.study, cell.key(), seconds),
            )
            if cursor.rowcount:  # else another run on the same folder was faster, with the same numbers
                lines = [
                    (cursor.lastrowid, r.estimator, r.repetition, r.error, json.dumps(r.detail), r.failure)
                    for r in fits
                ]
                self.db.executemany("INSERT INTO results VALUES (?, ?, ?, ?, ?, ?)", lines)
            self.db.execute("COMMIT")
        except BaseException:
            if self.db.in_transaction:  # Ctrl-C may come when the commit is done
                self.db.execute("ROLLBACK")
            raise

    def seconds(self, cells: Iterable[Cell]) -> float:
        """Seconds that those of these cells took that are stored."""
        took = dict(self.db.execute("SELECT settings, seconds FROM cells"))
        return math.fsum(took.get(cell.key(), 0.0) for cell in cells)

    def table(self, cells: Iterable[Cell]) -> pd.DataFrame:
        """One row per fit, in the order of the cells and of their estimators, whatever order they were stored in."""
        ids = dict(self.db.execute("SELECT settings, id FROM cells"))
        lines = []
        for order, cell in enumerate(cells):
            point = cell.point
            facts = cell.study, point.m, point.sizes.label, point.mu, -1 if point.K is None else point.K
            places = enumerate(estimator.label for estimator in cell.estimators)
            key = cell.key()
            lines += [(ids[key], order, place, *facts, label) for place, label in places if key in ids]
        wanted = pd.DataFrame(lines, columns=["cell", "order", "place", "study", "m", "n", "mu", "K", "estimator"])
        found = pd.read_sql_query("SELECT cell, estimator, repetition, error, detail, failure FROM results", self.db)
        whole = wanted.merge(found, on=["cell", "estimator"]).sort_values(["order", "place", "repetition"])
        return whole.drop(columns=["cell", "order", "place"]).reset_index(drop=True)


def _but_for_repetitions(key: str) -> str:
    return json.dumps({**json.loads(key), "first": 0, "last": 0})
