"""Offsets and weights of rows in the compiled loops."""

from dataclasses import replace

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from conftest import ALL_MODELS, glm, noise_of, pack, simulate
from fedmest.core.exceptions import InputError
from fedmest.data.packing import Rows
from fedmest.models import GLM, Clipping

SIZES = [1, 63, 64, 129]
SITES = np.arange(len(SIZES))
CLIPPING = Clipping("consistent", 0.5, 0.25)


def case(model: str) -> tuple[GLM, Rows, np.ndarray, np.ndarray]:
    data = simulate(model, len(SIZES), SIZES, d=4, seed=6)
    kind, rng = glm(model), np.random.default_rng(2)
    return kind, pack(data.design, data.y, SIZES), 0.4 * rng.standard_normal((kind.outputs, 4)), rng.random(sum(SIZES))


@pytest.mark.parametrize("model", ALL_MODELS)
def test_zero_offsets_and_unit_weights_change_no_bit(model: str) -> None:
    kind, rows, theta, _ = case(model)
    n, none = sum(SIZES), np.zeros_like(theta)
    same = replace(rows, offset=np.zeros(n), row_weight=np.ones(n))
    assert_array_equal(*(kind.mean_scores(r, SITES, theta, CLIPPING, none) for r in (rows, same)))
    assert_array_equal(*(kind.score_norms(r, theta, CLIPPING) for r in (rows, same)))
    assert_allclose(*(kind.mean_curvatures(r, SITES, theta, CLIPPING, none) for r in (rows, same)), rtol=1e-12)


@pytest.mark.parametrize("model", [name for name in ALL_MODELS if name != "multinomial"])
def test_an_offset_is_a_column_whose_coefficient_is_one(model: str) -> None:
    kind, rows, theta, offset = case(model)
    X = np.column_stack([rows.matrix(), offset])
    longer, with_one = pack(X, rows.y, SIZES), np.column_stack([theta, 1.0])
    shifted = replace(rows, offset=offset)
    free = Clipping()
    scores = kind.mean_scores(longer, SITES, with_one, free, np.zeros_like(with_one))
    assert_allclose(kind.mean_scores(shifted, SITES, theta, free, np.zeros_like(theta)), scores[:, :, :-1], atol=1e-12)
    matrices = kind.mean_curvatures(longer, SITES, with_one, free, np.zeros_like(with_one))
    found = kind.mean_curvatures(shifted, SITES, theta, free, np.zeros_like(theta))
    assert_allclose(found, matrices[:, :-1, :-1], atol=1e-12)


@pytest.mark.parametrize("model", ALL_MODELS)
def test_weights_multiply_scores_and_curvatures_and_means_stay_over_all_rows(model: str) -> None:
    kind, rows, theta, weight = case(model)
    n, none, free = sum(SIZES), np.zeros_like(theta), Clipping()
    alone = pack(rows.matrix(), rows.y, [1] * n)
    weighted = replace(rows, row_weight=weight)
    for loop in (kind.mean_scores, kind.mean_curvatures):
        each = loop(alone, np.arange(n), theta, free, none) * weight[:, None, None]
        parts = np.split(each, np.cumsum(SIZES)[:-1])
        assert_allclose(loop(weighted, SITES, theta, free, none), [part.mean(axis=0) for part in parts], atol=1e-12)


@pytest.mark.parametrize("rule", ["consistent", "norm"])
@pytest.mark.parametrize("model", ALL_MODELS)
@pytest.mark.parametrize("size", [1e-3, 1.0, 1e8, 1e100])
def test_weight_times_score_and_curvature_stay_within_their_bounds(model: str, rule: str, size: float) -> None:
    kind, rows, theta, weight = case(model)
    n, clipping = sum(SIZES), Clipping(rule, 0.5, 0.25)
    weight[::5], weight[1::5], weight[2::5] = 0.0, 1e-300, 1.0
    alone = replace(pack(size * rows.matrix(), rows.y, [1] * n), row_weight=weight, offset=np.linspace(-900, 900, n))
    scores = kind.mean_scores(alone, np.arange(n), theta, clipping, np.zeros_like(theta))
    assert (np.linalg.norm(scores, axis=(1, 2)) <= 0.5 * (1 + 1e-9)).all()
    assert (scores[::5] == 0).all()
    matrices = kind.mean_curvatures(alone, np.arange(n), theta, clipping, np.zeros_like(theta))
    assert (np.linalg.norm(matrices, axis=(1, 2)) <= 0.25 * (1 + 1e-9)).all()
    squares = kind.mean_score_squares(alone, np.arange(n), theta, clipping)
    assert_allclose(np.trace(squares, axis1=1, axis2=2), (scores**2).sum(axis=(1, 2)), rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("model", ALL_MODELS)
def test_local_steps_and_halves_keep_offsets_and_weights(model: str) -> None:
    kind, rows, theta, weight = case(model)
    none, zeros = np.zeros_like(theta), np.zeros(len(SIZES))
    weighted = replace(rows, row_weight=weight, offset=weight - 0.5)
    step = kind.local_descents(
        weighted, SITES, theta, 1, 0.3, CLIPPING, none, none, zeros, np.ones((1, 1)), noise_of(len(SIZES))
    )
    assert_allclose(step, theta - 0.3 * kind.mean_scores(weighted, SITES, theta, CLIPPING, none), atol=1e-13)
    first, second = weighted.halves(3, np.arange(len(SIZES), dtype=np.uint64))
    for part in (first, second):
        assert part.offset is not None and part.row_weight is not None
        assert_array_equal(part.offset, part.row_weight - 0.5)
    assert len(first.y) + len(second.y) == sum(SIZES)


@pytest.mark.parametrize("wrong", [-1e-9, 1.0 + 1e-9, np.nan, np.inf])
def test_weights_for_which_clipping_is_not_proved_are_refused(wrong: float) -> None:
    _, rows, _, weight = case("poisson")
    weight[3] = wrong
    with pytest.raises(InputError, match="between 0 and 1"):
        replace(rows, row_weight=weight)
