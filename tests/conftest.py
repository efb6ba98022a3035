"""Simulated federations and packed rows shared by the tests, and the effort that hypothesis makes.

`HYPOTHESIS_PROFILE=full pytest tests/unit/test_certificate.py` searches with 2,000 examples a property.
"""

import os
import shutil
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numba
import numpy as np
import pytest
from hypothesis import HealthCheck, settings

import fedmest as fm
from browsing import CHROMIUM, chromium
from fedmest.data.packing import Rows, tile_rows
from fedmest.models import FAMILIES, GLM, model_named
from fedmest.privacy.noise import SeededNoise, site_keys
from fedmest.queries import Query

_QUIET = {"deadline": None, "suppress_health_check": list(HealthCheck)}
settings.register_profile("default", max_examples=100, derandomize=True, **_QUIET)
settings.register_profile("full", max_examples=2000, **_QUIET)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "default"))

# waking threads costs more than these small fits; test_contract.py compares one with two
numba.set_num_threads(1)

PROGRAM = [
    sys.executable,
    "-c",
    "import sys; from fedmest.interface.cli.main import main; sys.exit(main())",
]  # as a user starts it
BETA = (0.5, -0.5, 0.3, -0.3, 0.2)  # SPEC section 8; the first is the intercept
CLASSES = 3
ALL_MODELS = tuple(family.name for family in FAMILIES)


pytest_plugins = ["shared_fixtures"]
TESTS = Path(__file__).parent
MARKED = ("statistical", "process", "browser", "network")  # folders that the default run leaves out
SPREAD_OUT = ("unit", "statistical")  # folders whose tests share next to nothing: every process may take any of them


@pytest.hookimpl(tryfirst=True)  # before -m selects and xdist reads the groups
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """A folder is a marker. What shares a network, a browser or a vault stays in one process (`--dist loadgroup`)."""
    for item in items:
        if TESTS not in item.path.parents:
            continue
        folder = item.path.relative_to(TESTS).parts[0]
        if folder in MARKED:
            item.add_marker(folder)
        if folder not in SPREAD_OUT:
            item.add_marker(pytest.mark.xdist_group("browser" if folder == "browser" else item.path.stem))


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    if (path := shutil.which(CHROMIUM)) is None:
        pytest.skip("no chromium on this machine")
    with chromium(path) as started:
        yield started


@dataclass(frozen=True)
class Simulated:
    """A federation with the arrays it was made of; rows come site by site."""

    fed: fm.Federation
    X: np.ndarray
    y: np.ndarray
    sites: np.ndarray

    @property
    def design(self) -> np.ndarray:
        return np.column_stack([np.ones(len(self.y)), self.X])

    def by_site(self, intercept: bool = True) -> list[tuple[np.ndarray, np.ndarray]]:
        """(design, target) of each site, in the order of the federation."""
        design = self.design if intercept else self.X
        return [(design[self.sites == s], self.y[self.sites == s]) for s in range(self.fed.n_sites)]


def simulate(model: str, m: int, sizes: int | Sequence[int], d: int = 5, seed: int = 0) -> Simulated:
    """Rows as in SPEC section 8: d coefficients with the intercept, features N(0, sigma_c^2), sites in a
    row.
    """
    rng = np.random.default_rng(seed)
    n = np.broadcast_to(np.asarray(sizes), m)
    X = glm(model).family.plan.feature_sd * rng.standard_normal((int(n.sum()), d - 1))
    design = np.column_stack([np.ones(len(X)), X])
    beta = np.resize(BETA, d)
    kind = glm(model)
    coefficients = np.stack([np.roll(beta, k) for k in range(CLASSES)], axis=1) if kind.outputs > 1 else beta
    y = kind.simulate(design @ coefficients, rng)
    sites = np.repeat(np.arange(m), n)
    return Simulated(fm.Federation.from_arrays(X, y, sites), X, y, sites)


def pack(X: np.ndarray, y: np.ndarray, sizes: Sequence[int]) -> Rows:
    """Rows as the compiled loops read them, from a plain matrix, without the checks of `Federation`."""
    offsets = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
    columns = X.shape[1]
    packed = np.empty(X.size)
    for begin, end in pairwise(offsets):
        for first in range(begin, end, tile_rows(columns)):
            last = min(first + tile_rows(columns), end)
            packed[first * columns : last * columns] = X[first:last].T.ravel()
    return Rows.of(packed, offsets, columns, np.ascontiguousarray(y, dtype=float))


def glm(name: str, classes: int = CLASSES) -> GLM:
    """A model ready for packed rows (the multinomial one has to know its classes)."""
    model = model_named(name)
    assert isinstance(model, GLM)
    return model.with_classes(tuple(range(classes))) if model.family.multiclass else model


def coef(result: fm.Result) -> np.ndarray:
    """Coefficients: (d,), or (classes, d)."""
    return result.coef_matrix if len(result.coef_matrix) > 1 else result.coef_matrix[0]


def without_noise(query: Query) -> np.ndarray:
    """Costs that turn a query's noise off and leave its clipping on."""
    return np.full((len(query.releases()), 1), np.inf)


def noise_of(sites: int, seed: int = 0, number: int = 0) -> SeededNoise:
    return SeededNoise(site_keys(np.array([str(i) for i in range(sites)], dtype=object)), seed, number)


def mean(model: str, eta: np.ndarray) -> np.ndarray:
    """Expected response for predictors (n, outputs), plainly."""
    if model == "linear":
        return eta
    if model == "logistic":
        return 1 / (1 + np.exp(-eta))
    if model in ("poisson", "negative-binomial"):
        return np.exp(eta)
    e = np.exp(eta - eta.max(axis=1, keepdims=True))
    return e / e.sum(axis=1, keepdims=True)


def gradient(model: str, X: np.ndarray, y: np.ndarray, theta: np.ndarray) -> np.ndarray:
    """Mean unclipped score (outputs, d), plainly."""
    target = np.eye(CLASSES)[y.astype(int)] if model == "multinomial" else y[:, None]
    m = mean(model, X @ theta.T)
    return ((m - target) / (1 + m if model == "negative-binomial" else 1.0)).T @ X / max(len(y), 1)


def curvature(model: str, X: np.ndarray, theta: np.ndarray) -> np.ndarray:
    """Mean unclipped curvature (outputs d, outputs d), plainly."""
    p = mean(model, X @ theta.T)
    if model == "multinomial":
        blocks = np.einsum("ia,ab->iab", p, np.eye(CLASSES)) - np.einsum("ia,ib->iab", p, p)
        size = CLASSES * X.shape[1]
        return np.einsum("iab,ij,ik->ajbk", blocks, X, X).reshape(size, size) / len(X)
    weight = {"linear": np.ones_like(p), "logistic": p * (1 - p), "poisson": p, "negative-binomial": p / (1 + p)}[model]
    return (weight * X).T @ X / len(X)


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> list[np.ndarray]:
    """Collects what the sites send, an array (sites, floats) a round, while a test calls `fm.fit`."""
    from fedmest.runs.backend import LocalBackend

    replies: list[np.ndarray] = []
    answer = LocalBackend.answer

    def recording(self: LocalBackend, *arguments: object) -> tuple[np.ndarray, np.ndarray]:
        values, sites = answer(self, *arguments)  # type: ignore[arg-type]
        replies.append(values.copy())
        return values, sites

    monkeypatch.setattr(LocalBackend, "answer", recording)
    return replies


def one_line(capsys: pytest.CaptureFixture[str], code: int, expected: int = 2) -> str:
    """The only line that an error of the command line prints, after checking that there is nothing else."""
    out, err = capsys.readouterr()
    assert code == expected, err
    assert out == ""
    assert err.startswith("fedmest: ")
    assert err.count("\n") == 1, err
    assert "Traceback" not in err
    assert expected != 2 or "bug" not in err  # what is wrong with the input is never our bug
    return err
