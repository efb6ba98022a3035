"""What a notebook or a debugger prints of our objects: at most five lines, however many sites, columns and rounds."""

from typing import Any

import numpy as np
import pytest

import fedmest as fm
from fedmest.auditing.result import AuditResult
from fedmest.inference.covariance import CovarianceEstimate
from fedmest.models import model_named
from fedmest.runs.settings import Settings
from fedmest.runs.spec import PublicFacts, RunSpec

SITES, COLUMNS = 10_000, 300


@pytest.fixture(scope="module")
def objects() -> dict[str, Any]:
    rng = np.random.default_rng(0)
    names = [f"a_feature_with_a_long_name_{j}" for j in range(COLUMNS)]
    X = rng.uniform(-1, 1, (SITES, COLUMNS))
    federation = fm.Federation.from_arrays(
        X, (X[:, 0] > 0).astype(int), [f"hospital number {i}" for i in range(SITES)], features=names,
        bounds=dict.fromkeys(names, (-1, 1)), target_name="a target " * 40,
    )  # fmt: skip
    result = fm.fit(federation, method="fedsgd", K=3, seed=1)
    data = PublicFacts.of(federation)
    settings = Settings(clip_norm=1.5, clip_rule="norm", ridge=0.1, scaling="bounds", cov_type="none")
    found = AuditResult(
        "fedsgd", "negative-binomial(dispersion=0.5)", "certified", "server", "mean gradient " * 20, 1.0, 0.9, 1.0,
        0.99, 20_000, 12, 7, "two rows " * 40, True, "the clip norm " * 40,
    )  # fmt: skip
    return {
        "Federation": federation,
        "Result": result,
        "Comparison": fm.Comparison(dict.fromkeys(fm.METHODS, result)),
        "PrivacyReport": result.privacy,
        "private with no end": fm.fit(federation, method="np-fedavg", K=2, R=1).privacy,
        "Plan": fm.plan(data.sizes, COLUMNS, bounded=True),
        "AuditResult": found,
        "RunSpec": RunSpec.create(data, model_named("logistic"), "fedavg", 2.0, settings, {"K": 7, "R": 3}),
        "PublicFacts": data,
        "CovarianceEstimate": CovarianceEstimate(np.eye(COLUMNS), np.eye(COLUMNS), "robust"),
        "no covariance": result.covariance,
    }


NAMES = ("Federation", "Result", "Comparison", "PrivacyReport", "private with no end", "Plan", "AuditResult", "RunSpec",
         "PublicFacts", "CovarianceEstimate", "no covariance")  # fmt: skip


@pytest.mark.parametrize("name", NAMES)
def test_a_repr_has_five_lines_and_500_characters_at_most(objects: dict[str, Any], name: str) -> None:
    text = repr(objects[name])
    assert text.startswith(f"<{type(objects[name]).__name__}: ") and text.endswith(">")
    assert len(text.splitlines()) <= 5, text
    assert len(text) <= 500, text
    assert "array(" not in text


def test_every_object_is_looked_at(objects: dict[str, Any]) -> None:
    assert set(objects) == set(NAMES)


def test_a_small_federation_is_shown_whole() -> None:
    federation = fm.Federation.from_arrays([[1.0], [2.0]], [0, 1], ["b", "a"], features=["dose"])
    assert repr(federation) == (
        "<Federation: 2 rows at 2 sites\n sites: a, b\n features: dose\n target: y\n bounds: none declared>"
    )
