"""The certificate: no row contributes more than its bound, and no swapped row moves a release further than
it states.

Rows, targets and thetas are drawn to break it: zeros, subnormals, values whose squares under- or overflow,
heavy tails, linear predictors that overflow to infinity or to infinity minus infinity. Queries are asked
with noise off and clipping on. All comparisons allow a relative 1e-9 for rounding.
"""

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from scipy import stats

from conftest import ALL_MODELS, glm, noise_of, pack, without_noise
from fedmest.auditing import UnitNoise, small_network
from fedmest.models import GLM, Clipping, NetworkModel
from fedmest.models.negative_binomial import NEGATIVE_BINOMIAL
from fedmest.models.negative_binomial import cut_moments as nb_cut_moments
from fedmest.models.poisson import NORMAL, cut_moments
from fedmest.privacy.noise import SeededNoise
from fedmest.queries import (
    Descent,
    Gradient,
    Histogram,
    LastLayerParts,
    Moments,
    NewtonParts,
    Query,
    QueryInputs,
    ScoreMoments,
    SiteData,
)
from fedmest.queries.histogram import SCORE_GRID

SLACK = 1 + 1e-9
SPECIAL = [0.0, -0.0, 5e-324, 1e-310, 1.5e-162, 1e-155, 1e-30, 1e-8, 0.5, 1.0, 1e8, 1e30, 1e100]
HUGE_THETA = [0.0, 5e-324, 1e-30, 0.1, 1.0, 30.0, 1e6, 1e50, 1e300]

signs = st.sampled_from([-1.0, 1.0])
values = st.one_of(
    st.builds(lambda v, s: v * s, st.sampled_from(SPECIAL), signs),
    st.floats(-10, 10),
    st.floats(-1e30, 1e30),
)
theta_values = st.one_of(
    st.builds(lambda v, s: v * s, st.sampled_from(HUGE_THETA), signs),
    st.floats(-5, 5),
    st.floats(-1e50, 1e50),
)
bounds = st.one_of(st.floats(2.0**-12, 2.0**12), st.sampled_from([1.0, 0.5, 1e-6, 1e6]))


def targets(model: GLM, classes: int) -> st.SearchStrategy[float]:
    """Every value that the model's check lets through."""
    rule = model.target_rule
    if rule.max_classes:
        return st.integers(0, min(classes, rule.max_classes) - 1).map(float)
    if rule.whole:
        return st.one_of(st.integers(0, 20), st.sampled_from([0, 100, 5000, 10**9, 10**18])).map(float)
    any_ = st.one_of(values, st.sampled_from([1e300, -1.7e308]))
    return any_.map(abs) if rule.low >= 0 else any_


class Case:
    """A model, the rows of one site with one row to swap in, a theta and a clipping."""

    def __init__(self, draw: Any, models: tuple[str, ...], thetas: st.SearchStrategy[float], most: int) -> None:
        self.name = draw(st.sampled_from(models))
        classes = draw(st.integers(2, 5))
        self.model: GLM = glm(self.name, classes)
        self.d = draw(st.sampled_from([1, 2, 3, 5, 8, 9]))
        drawn = draw(st.integers(2, 5))  # rows written out by hypothesis, the last one to be swapped in
        X = np.array(draw(st.lists(st.lists(values, min_size=self.d, max_size=self.d), min_size=drawn, max_size=drawn)))
        y = np.array(draw(st.lists(targets(self.model, classes), min_size=drawn, max_size=drawn)))
        more = draw(st.sampled_from([0, 1, 3, 60, 63, 64, 127]) if most > 5 else st.just(0))
        rng = np.random.default_rng(draw(st.integers(0, 2**32)))
        tail = rng.standard_t(1.0, (more, self.d)) * 10.0 ** rng.integers(-3, 4, (more, 1))
        if draw(st.booleans()):  # with an intercept
            X[:, 0], tail[:, :1] = 1.0, 1.0
        eta = np.clip(rng.standard_t(1.0, (more, classes) if self.model.outputs > 1 else more), -20, 20)
        end = self.model.simulate(eta, rng)
        keep = draw(st.integers(1, drawn - 1))
        self.X, self.y = np.vstack([X[:keep], tail]), np.concatenate([y[:keep], end]).astype(float)
        self.new_x, self.new_y = X[-1], y[-1]
        self.swapped = draw(st.integers(0, len(self.y) - 1))
        shape = (self.model.outputs, self.d)
        flat = draw(st.lists(thetas, min_size=self.d, max_size=self.d))
        self.theta = (
            np.broadcast_to(flat, shape) * np.linspace(1, -1, shape[0])[:, None]
            if shape[0] > 1
            else (np.array(flat)[None])
        )
        self.theta = np.ascontiguousarray(self.theta)
        self.clipping = Clipping(draw(st.sampled_from(["consistent", "norm"])), draw(bounds), draw(bounds))
        self.split_seed = draw(st.integers(0, 9))

    @property
    def n(self) -> int:
        return len(self.y)

    def sites(self, X: np.ndarray, y: np.ndarray, alone: bool = False) -> SiteData:
        """The rows as one site, or each as a site of its own."""
        return SiteData(self.model, pack(X, y, [1] * len(y) if alone else [len(y)]), self.split_seed)

    def answer(self, query: Query, data: SiteData, edges: np.ndarray | None = None) -> np.ndarray:
        count = len(data.rows.sizes)
        ask = QueryInputs(self.theta, self.clipping, np.zeros_like(self.theta), edges=edges)
        return query.answer(data, np.arange(count), ask, without_noise(query), noise_of(count))

    def both(self, query: Query, edges: np.ndarray | None = None) -> tuple[np.ndarray, np.ndarray]:
        """The replies before and after the swap."""
        X, y = self.X.copy(), self.y.copy()
        X[self.swapped], y[self.swapped] = self.new_x, self.new_y
        before = self.answer(query, self.sites(self.X, self.y), edges)[0]
        return before, self.answer(query, self.sites(X, y), edges)[0]

    def stated(self, query: Query) -> np.ndarray:
        return query.sensitivity(np.array([float(self.n)]), self.clipping)[:, 0]

    def __repr__(self) -> str:
        old = f"{self.X[self.swapped].tolist()}, {self.y[self.swapped]}"
        new = f"{self.new_x.tolist()}, {self.new_y}"
        facts = f"{self.name}, {self.clipping}, n={self.n}, theta={self.theta.tolist()}"
        return f"Case({facts}, swap {self.swapped}: {old} by {new})"


@st.composite
def cases(
    draw: Any,
    models: tuple[str, ...] = ALL_MODELS,
    thetas: st.SearchStrategy[float] = theta_values,
    most: int = 130,
) -> Case:
    return Case(draw, models, thetas, most)


# -- one row ---------------------------------------------------------------------------------------


@given(cases())
def test_no_row_contributes_a_score_longer_than_the_bound(case: Case) -> None:
    X, y = np.vstack([case.X, case.new_x]), np.append(case.y, case.new_y)
    scores = case.answer(Gradient(), case.sites(X, y, alone=True))
    assert np.isfinite(scores).all()
    assert (np.linalg.norm(scores, axis=1) <= case.clipping.bound * SLACK).all()
    norms = case.model.score_norms(pack(X, y, [len(y)]), case.theta, case.clipping)  # whole tiles at once
    assert (norms <= case.clipping.bound * SLACK).all()


@given(cases())
def test_no_row_contributes_a_curvature_beyond_its_bound_nor_a_negative_one(case: Case) -> None:
    """Positive semidefinite as well: the factor sqrt(2) instead of 2 in the sensitivity rests on it."""
    X, y = np.vstack([case.X, case.new_x]), np.append(case.y, case.new_y)
    data = case.sites(X, y, alone=True)
    matrices = case.model.mean_curvatures(
        data.rows, np.arange(len(y)), case.theta, case.clipping, np.zeros_like(case.theta)
    )
    assert np.isfinite(matrices).all()
    assert (np.linalg.norm(matrices, axis=(1, 2)) <= case.clipping.curvature * SLACK).all()
    assert (np.linalg.eigvalsh(matrices)[:, 0] >= -1e-9 * case.clipping.curvature).all()


# -- one swapped row -------------------------------------------------------------------------------


@given(cases())
def test_a_swapped_row_moves_the_mean_gradient_at_most_by_the_stated_sensitivity(case: Case) -> None:
    before, after = case.both(Gradient())
    assert np.linalg.norm(after - before) <= case.stated(Gradient())[0] * SLACK


@given(cases(), st.booleans())
def test_a_swapped_row_moves_each_newton_part_at_most_by_its_stated_sensitivity(case: Case, split: bool) -> None:
    """With split=True a row is in one half: only one of the two parts moves, and each half has its own n."""
    query = NewtonParts(split)
    before, after = case.both(query)
    size = case.theta.size
    moves = np.array([np.linalg.norm((after - before)[:size]), np.linalg.norm((after - before)[size:])])
    assert np.isfinite(moves).all()
    assert (moves <= case.stated(query) * SLACK).all()
    if split:
        assert moves.min() == 0.0


@given(cases())
def test_a_swapped_row_moves_curvature_and_score_squares_at_most_by_their_stated_sensitivities(case: Case) -> None:
    before, after = case.both(ScoreMoments())
    moves = np.linalg.norm((after - before).reshape(2, -1), axis=1)
    assert np.isfinite(moves).all()
    assert (moves <= case.stated(ScoreMoments()) * SLACK).all()


small_thetas = st.one_of(st.sampled_from([0.0, 5e-324, 1e-30, 1.0]), st.floats(-100, 100))


@given(cases(thetas=small_thetas), st.sampled_from(["all", "first", "second"]), st.floats(1e-3, 10))
def test_a_swapped_row_moves_one_local_step_at_most_by_the_stated_sensitivity(
    case: Case, part: str, eta: float
) -> None:
    """theta itself is rounded to its own last place, so where eta B/n is far below theta that rounding is
    added.
    """
    query = Descent(1, eta, part)
    before, after = case.both(query)
    rounding = 2 * math.sqrt(case.theta.size) * np.spacing(np.abs(np.stack([before, after])).max())
    assert np.linalg.norm(after - before) <= case.stated(query)[0] * SLACK + rounding


@given(cases(), st.integers(2, 5))
def test_k_local_steps_are_k_single_steps_each_with_noise_of_its_own(case: Case, steps: int) -> None:
    """So what is proved of one step, from any theta, holds for each step given the theta that the noise led
    to.
    """

    class Later(SeededNoise):
        """The noise of local step k, for a query of one step."""

        k = 0

        def stream(self, release: int = 0) -> np.uint64:
            return super().stream(release + self.k)

    data = case.sites(case.X, case.y)
    case.theta = np.clip(case.theta, -1e3, 1e3)
    clipping, none, where = case.clipping, np.zeros_like(case.theta), np.array([0])
    costs = np.linspace(0.5, 2.0, steps)[:, None]
    noise = noise_of(1, 7, 3)
    at_once = Descent(steps, 0.3).answer(data, where, QueryInputs(case.theta, clipping, none), costs, noise)
    theta = case.theta
    for k in range(steps):
        own = Later(noise.keys, noise.seed64, noise.round)
        object.__setattr__(own, "k", k)
        reply = Descent(1, 0.3).answer(data, where, QueryInputs(theta, clipping, none), costs[k : k + 1], own)
        assert not np.array_equal(reply, Descent(1, 0.3).answer(
            data, where, QueryInputs(theta, clipping, none), np.full((1, 1), np.inf), own))  # fmt: skip
        theta = reply.reshape(theta.shape)
    np.testing.assert_array_equal(at_once[0], theta.ravel())


@given(cases(), st.sampled_from(["scores", "records"]))
def test_a_swapped_row_moves_a_histogram_of_norms_at_most_by_the_stated_sensitivity(case: Case, of: str) -> None:
    query = Histogram(of)
    before, after = case.both(query, SCORE_GRID[None])
    assert before.sum() == after.sum() == case.n
    assert np.linalg.norm(after - before) <= case.stated(query)[0] * SLACK


@given(cases(), st.booleans())
def test_a_swapped_row_moves_histograms_of_columns_at_most_by_the_stated_sensitivity(case: Case, all_: bool) -> None:
    """Edges among the special values: what lies on an edge is counted once."""
    columns = tuple(range(case.d + 1)) if all_ else (case.d,)
    query = Histogram("columns", columns)
    edges = np.tile(np.sort([*SPECIAL[2:], *(-v for v in SPECIAL)]), (len(columns), 1))
    before, after = case.both(query, edges)
    assert before.sum() == after.sum() == case.n * len(columns)
    assert np.linalg.norm(after - before) <= case.stated(query)[0] * SLACK


@given(cases(models=("linear",)))
def test_a_swapped_row_moves_the_moments_at_most_by_the_stated_sensitivity(case: Case) -> None:
    before, after = case.both(Moments())
    assert np.isfinite(after).all()
    assert np.linalg.norm(after - before) <= case.stated(Moments())[0] * SLACK


@given(cases())
def test_a_swapped_row_moves_the_moments_of_features_at_most_by_the_stated_sensitivity(case: Case) -> None:
    before, after = case.both(Moments("features"))
    assert np.isfinite(after).all()
    assert np.linalg.norm(after - before) <= case.stated(Moments("features"))[0] * SLACK


@given(
    st.lists(st.lists(values, min_size=4, max_size=4), min_size=2, max_size=6),
    st.lists(st.integers(0, 1), min_size=6, max_size=6), st.integers(0, 2**32),
    st.sampled_from([0.0, 1e-40, 1e-3, 1.0, 30.0, 1e6]), bounds, st.sampled_from(["gradient", "head"]),
)  # fmt: skip
def test_a_swapped_row_moves_what_is_asked_of_a_network_at_most_by_the_stated_sensitivity(
    rows: list[list[float]], labels: list[int], seed: int, size: float, bound: float, what: str
) -> None:
    """The last row takes the place of the first. A row alone keeps within the bound, too."""
    pytest.importorskip("torch")
    model, X, y = small_network(), np.array(rows), np.array(labels[: len(rows)], dtype=float)
    model = model.with_classes((0, 1))
    query: Query = Gradient() if what == "gradient" else LastLayerParts(3.0)
    clipping = Clipping("norm", bound)

    def reply(X: np.ndarray, y: np.ndarray) -> np.ndarray:
        packed = pack(np.column_stack([np.ones(len(y)), X]), y, [len(y)])
        start = model.start(5, 0)
        theta = size * np.random.default_rng(seed).standard_normal(start.shape)
        ask = QueryInputs(theta, clipping, np.zeros_like(theta))
        costs = np.full((len(query.releases()), 1), 1.0)
        return query.answer(SiteData(model, packed), np.array([0]), ask, costs, UnitNoise(0.0))[0]

    n = len(y) - 1
    others = np.arange(1, n)
    before = reply(X[:-1], y[:-1])
    after = reply(np.vstack([X[-1:], X[others]]), np.concatenate([y[-1:], y[others]]))
    stated = query.sensitivity(np.array([float(n)]), clipping)[:, 0]
    cuts = [len(before)] if what == "gradient" else [2 * 4, len(before)]
    for move, limit in zip(np.split(after - before, cuts[:-1]), stated, strict=True):
        assert np.isfinite(move).all()
        assert np.linalg.norm(move) <= limit * SLACK
    alone = reply(X[:1], y[:1])[: cuts[0]]
    assert np.linalg.norm(alone) <= bound * SLACK


@given(
    st.sampled_from(["linear", "hidden", "convolution"]),
    st.one_of(st.sampled_from([19.0, 19.2]), st.floats(-30.0, 38.0)),
    st.one_of(st.sampled_from([43.75, 52.2, 54.0]), st.floats(0.0, 100.0)),
    st.sampled_from([1e-25, 0.0, 1e-18, 1e-3, 1.0, 1e18]), st.sampled_from([1e-9, 1e-4, 1 / 16, 1.0, 100.0]),
    st.integers(0, 2**32), st.integers(0, 4), st.sampled_from(["gradient", "head"]),
)  # fmt: skip
@example("linear", 19.2, 52.2, 0.0, 1e-4, 0, 0, "gradient")
@example("linear", 19.2, 52.2, 0.0, 1e-4, 0, 0, "head")
def test_a_long_row_with_a_tiny_gradient_moves_a_network_at_most_by_the_stated_sensitivity(
    kind: str, power: float, gap: float, size: float, bound: float, seed: int, label: int, what: str
) -> None:
    """Rows of 1e19 and chances of 1e-23, whose squares are zero in single precision; and everything around them."""
    nn = pytest.importorskip("torch").nn
    layers = {
        "linear": lambda: (nn.Linear(4, 5),),
        "hidden": lambda: (nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 5)),
        "convolution": lambda: (nn.Conv2d(1, 3, 2), nn.ReLU(), nn.Flatten(), nn.Linear(3, 5)),
    }[kind]()
    model = NetworkModel(nn.Sequential(*layers), (1, 2, 2) if kind == "convolution" else (4,))
    model = model.with_classes(tuple(range(5)))
    query: Query = Gradient() if what == "gradient" else LastLayerParts(3.0)
    rng, clipping, n = np.random.default_rng(seed), Clipping("norm", bound), 3
    theta = size * rng.standard_normal((1, model.network.size))
    theta[0, -5] += gap  # the first class is ahead by so much
    row = 10.0**power / 2 * rng.choice([-1.0, 1.0], 4)

    def reply(rows: list[np.ndarray]) -> np.ndarray:
        packed = pack(np.column_stack([np.ones(len(rows)), rows]), np.full(len(rows), float(label)), [len(rows)])
        ask, costs = QueryInputs(theta, clipping, np.zeros_like(theta)), np.ones((len(query.releases()), 1))
        return query.answer(SiteData(model, packed), np.array([0]), ask, costs, UnitNoise(0.0))[0]

    cut = model.network.size if what == "gradient" else model.head[0] * model.head[1]
    others = [np.zeros(4)] * (n - 1)
    move = reply([row, *others]) - reply([-row, *others])
    stated = query.sensitivity(np.array([float(n)]), clipping)[:, 0]
    assert np.isfinite(move).all()
    assert np.linalg.norm(move[:cut]) <= stated[0] * SLACK
    assert np.linalg.norm(move[cut:]) <= stated[-1] * SLACK
    assert np.linalg.norm(reply([row])[:cut]) <= bound * SLACK


@pytest.mark.parametrize("consistent", [True, False])
@pytest.mark.parametrize("model", ALL_MODELS)
def test_each_row_of_a_tile_has_its_own_limit_also_where_that_of_others_is_infinite(
    model: str, consistent: bool
) -> None:
    """A limit is bound / |x|, infinite of a short row under a very large bound: nobody else's business."""
    kind = glm(model)
    family, params = kind.family, np.array([0.7] * len(kind.family.params))
    eta = np.random.default_rng(1).standard_normal((kind.outputs, 6))
    y, limits = np.array([0.0, 1.0, 1.0, 0.0, 1.0, 0.0]), np.array([np.inf, 0.2, 1e300, np.inf, 0.01, 0.5])
    for order in (np.arange(6), np.arange(6)[::-1], np.roll(np.arange(6), 2)):
        together = np.ascontiguousarray(eta[:, order])
        family.residual(together, y[order], limits[order], consistent, params)
        for place, row in enumerate(order):
            alone = eta[:, [row]].copy()
            family.residual(alone, y[[row]], limits[[row]], consistent, params)
            np.testing.assert_array_equal(together[:, place], alone[:, 0])
            assert np.linalg.norm(alone) <= limits[row] * SLACK


@pytest.mark.parametrize("rule", ["consistent", "norm"])
@pytest.mark.parametrize("model", ALL_MODELS)
def test_rows_of_zero_under_a_bound_without_measure_leave_replies_finite(model: str, rule: str) -> None:
    kind = glm(model)
    X = np.vstack([np.ones((2, 2)), np.zeros((1, 2))])
    theta, where = np.full((kind.outputs, 2), 0.3), np.array([0])
    for order in ([0, 1, 2], [2, 1, 0]):
        rows, clipping, none = pack(X[order], np.ones(3), [3]), Clipping(rule, 1e200), np.zeros_like(theta)
        assert np.isfinite(kind.mean_scores(rows, where, theta, clipping, none)).all()
        assert np.isfinite(kind.mean_curvatures(rows, where, theta, clipping, none)).all()


def test_targets_that_overflow_when_scaled_keep_the_moments_finite() -> None:
    """A scaled target may be infinite; shrunk to length R it must not become infinity times zero."""
    data = SiteData(glm("linear"), pack(np.ones((3, 2)), np.array([np.inf, -np.inf, 1.0]), [3]))
    ask = QueryInputs(np.zeros((1, 2)), Clipping(bound=2.0), np.zeros((1, 2)))
    reply = Moments().answer(data, np.array([0]), ask, without_noise(Moments()), noise_of(1))
    assert np.linalg.norm(reply) <= 4.0 * SLACK


@pytest.mark.parametrize("query", [Gradient(), Descent(1, 0.3), Moments(), Histogram("records"), NewtonParts()])
def test_stated_sensitivities_are_reached_so_they_are_not_larger_than_need_be(query: Query) -> None:
    """Opposite scores for the gradient; orthogonal rows for matrices; different bins for the histogram."""
    kind, n = glm("linear"), 3
    X = np.array([[1.0, 0.0], [0.0, 0.0], [0.0, 0.0]])
    far, near = np.array([1e6, 0.0, 0.0]), np.array([0.01, 0.0, 0.0])
    clipping = Clipping("norm", 0.5, 0.25)
    ask = QueryInputs(np.zeros((1, 2)), clipping, np.zeros((1, 2)), edges=np.array([[2.0]]))

    def reply(X: np.ndarray, y: np.ndarray) -> np.ndarray:
        data = SiteData(kind, pack(X, y, [n]))
        return query.answer(data, np.array([0]), ask, without_noise(query), noise_of(1))[0]

    stated = query.sensitivity(np.array([float(n)]), clipping)[:, 0]
    if isinstance(query, (Moments, NewtonParts)):
        move = reply(X, near) - reply(X[:, ::-1], near)
        move, stated = (move[2:], stated[1:]) if isinstance(query, NewtonParts) else (move, stated)
    elif isinstance(query, Histogram):
        move = reply(X, far) - reply(X, near)
    else:
        move = reply(X, far) - reply(X, -far)
    assert np.linalg.norm(move) == pytest.approx(stated[0], rel=1e-3)
    assert np.linalg.norm(move) <= stated[0] * SLACK


# -- known attacks, one by one ---------------------------------------------------------------------


@pytest.mark.parametrize("rule", ["consistent", "norm"])
@pytest.mark.parametrize("model", ALL_MODELS)
@pytest.mark.parametrize("size", [0.0, 5e-324, 1.5e-162, 1.6e-162, 1e-155, 1e-19, 1e100])
def test_rows_whose_squared_length_under_or_overflows_stay_within_the_bound(model: str, rule: str, size: float) -> None:
    kind = glm(model)
    X = np.full((70, 2), size)
    y = np.full(70, 1e300 if model == "linear" else 1.0)
    theta = np.full((kind.outputs, 2), 0.3)
    scores = kind.mean_scores(pack(X, y, [1] * 70), np.arange(70), theta, Clipping(rule, 0.5), np.zeros_like(theta))
    assert (np.linalg.norm(scores.reshape(70, -1), axis=1) <= 0.5 * SLACK).all()


@pytest.mark.parametrize("rule", ["consistent", "norm"])
@pytest.mark.parametrize("model", ALL_MODELS)
@pytest.mark.parametrize("width", [1, 3, 64, 70])
def test_predictors_that_overflow_to_infinity_or_to_nan_stay_within_the_bound(
    model: str, rule: str, width: int
) -> None:
    """A NaN in a reply would tell that such a row is there, noise or no noise.

    Eight columns: four products that overflow one way, then four that overflow the other way.
    """
    kind = glm(model)
    signs = np.array([[1.0] * 8, [1.0] * 4 + [-1.0] * 4, [-1.0] * 4 + [1.0] * 4])
    X = 1e30 * signs[np.arange(width) % 3]
    theta = 1e300 * np.array([[1.0] * 4 + [-1.0] * 4, [1.0] * 8, [-1.0] * 4 + [1.0] * 4])[: kind.outputs]
    rows = pack(X, np.zeros(width), [width])
    clipping = Clipping(rule, 0.5, 0.25)
    none = np.zeros_like(theta)
    score = kind.mean_scores(rows, np.array([0]), theta, clipping, none)
    matrix = kind.mean_curvatures(rows, np.array([0]), theta, clipping, none)
    assert np.linalg.norm(score) <= 0.5 * SLACK
    assert np.linalg.norm(matrix) <= 0.25 * SLACK
    assert (kind.score_norms(rows, theta, clipping) <= 0.5 * SLACK).all()


@pytest.mark.parametrize("rule", ["consistent", "norm"])
@pytest.mark.parametrize("model", ALL_MODELS)
@pytest.mark.parametrize("predictor", [-650.0, -400.0, -200.0, -36.7, 36.7, 200.0, 400.0, 650.0])
@pytest.mark.parametrize("size", [1e8, 1e40, 1e100])
def test_curvatures_so_small_that_their_squares_underflow_stay_within_the_bound_on_long_rows(
    model: str, rule: str, predictor: float, size: float
) -> None:
    """p (1 - p) = 1e-174 at a predictor of 400; times |x|^2 = 1e200 it is far beyond any bound."""
    kind = glm(model)
    X = np.array([[size, 1.0], [size, -1.0], [1.0, size]])
    theta = np.array([[0.0, predictor], [0.0, -predictor / 3], [0.0, 0.0]])[: kind.outputs]
    rows = pack(X, np.zeros(3), [1, 1, 1])
    clipping = Clipping(rule, 0.5, 0.25)
    matrices = kind.mean_curvatures(rows, np.arange(3), theta, clipping, np.zeros_like(theta))
    assert (np.linalg.norm(matrices, axis=(1, 2)) <= 0.25 * SLACK).all()
    assert (np.linalg.eigvalsh(matrices)[:, 0] >= -1e-12).all()


def test_sites_of_one_row_have_an_empty_second_half_and_a_finite_sensitivity() -> None:
    kind = glm("logistic")
    data = SiteData(kind, pack(np.ones((3, 2)), np.array([1.0, 0.0, 1.0]), [1, 2]))
    assert data.part("first").sizes.tolist() == [1, 1]
    assert data.part("second").sizes.tolist() == [0, 1]
    query = NewtonParts(split=True)
    clipping = Clipping("consistent", 0.5, 0.25)
    stated = query.sensitivity(np.array([1.0, 2.0]), clipping)
    np.testing.assert_allclose(stated[0], [1.0, 1.0])
    np.testing.assert_allclose(stated[1], [math.sqrt(2) / 4] * 2)
    reply = query.answer(
        data, np.arange(2), QueryInputs(np.zeros((1, 2)), clipping, np.zeros((1, 2))), without_noise(query), noise_of(2)
    )
    assert (reply[0, :2] == 0).all()


def test_halves_have_the_sizes_that_the_sensitivity_divides_by() -> None:
    from fedmest.queries.base import half_size

    sizes = np.array([1, 2, 3, 4, 63, 64, 65, 1000])
    rng = np.random.default_rng(0)
    total = int(sizes.sum())
    X = np.arange(total, dtype=float)[:, None]
    rows = pack(X, rng.random(total), list(sizes))
    first, second = rows.halves(5, np.arange(len(sizes), dtype=np.uint64))
    np.testing.assert_array_equal(np.maximum(first.sizes, 1), half_size(sizes.astype(float), "first"))
    np.testing.assert_array_equal(np.maximum(second.sizes, 1), half_size(sizes.astype(float), "second"))
    for i in range(len(sizes)):  # the halves are a partition of the site's own rows
        mine = [part.matrix()[part.offsets[i] : part.offsets[i + 1], 0] for part in (first, second)]
        np.testing.assert_array_equal(np.sort(np.concatenate(mine)), X[rows.offsets[i] : rows.offsets[i + 1], 0])


# -- consistency -----------------------------------------------------------------------------------


def expected_score(kind: GLM, x: np.ndarray, theta: np.ndarray, ys: np.ndarray, weights: np.ndarray, B: float) -> Any:
    """sum_y weight(y) clipped score(x, y), and the mean length of the scores to compare it with."""
    X = np.tile(x, (len(ys), 1))
    scores = kind.mean_scores(
        pack(X, ys, [1] * len(ys)), np.arange(len(ys)), theta, Clipping("consistent", B), np.zeros_like(theta)
    ).reshape(len(ys), -1)
    return np.linalg.norm(weights @ scores), weights @ np.linalg.norm(scores, axis=1)


ordinary = st.floats(-4, 4)
ROUNDING = 1e-15  # of residuals p - 1 where p is 1 to the last places


@given(
    st.lists(ordinary, min_size=3, max_size=3),
    st.lists(ordinary, min_size=3, max_size=3),
    st.floats(0.02, 10),
)
def test_clipped_scores_of_the_logistic_model_keep_mean_zero(x: list[float], t: list[float], B: float) -> None:
    x_, theta = np.array([1.0, *x[1:]]), np.array([t])
    p = 1 / (1 + math.exp(-float(theta[0] @ x_)))
    mean, length = expected_score(glm("logistic"), x_, theta, np.array([0.0, 1.0]), np.array([1 - p, p]), B)
    assert mean <= 1e-8 * length + ROUNDING * np.linalg.norm(x_)


@given(
    st.lists(ordinary, min_size=3, max_size=3),
    st.lists(ordinary, min_size=12, max_size=12),
    st.floats(0.02, 10),
)
def test_clipped_scores_of_the_multinomial_model_keep_mean_zero(x: list[float], t: list[float], B: float) -> None:
    x_, theta = np.array([1.0, *x[1:]]), np.array(t).reshape(4, 3)
    e = np.exp(theta @ x_ - (theta @ x_).max())
    mean, length = expected_score(glm("multinomial", 4), x_, theta, np.arange(4.0), e / e.sum(), B)
    assert mean <= 1e-8 * length + ROUNDING * np.linalg.norm(x_)


@given(
    st.lists(ordinary, min_size=3, max_size=3),
    st.lists(ordinary, min_size=3, max_size=3),
    st.floats(0.02, 10),
)
def test_clipped_scores_of_the_linear_model_keep_mean_zero(x: list[float], t: list[float], B: float) -> None:
    """Gauss-Hermite nodes and weights are symmetric, as the errors are: the integral is zero to rounding."""
    x_, theta = np.array([1.0, *x[1:]]), np.array([t])
    nodes, weights = np.polynomial.hermite_e.hermegauss(40)
    mean, length = expected_score(glm("linear"), x_, theta, float(theta[0] @ x_) + nodes, weights, B)
    assert mean <= 1e-8 * length + ROUNDING * np.linalg.norm(x_)


@given(st.lists(ordinary, min_size=2, max_size=2), st.floats(-8, math.log(NORMAL) - 0.01), st.floats(0.02, 300))
def test_clipped_scores_of_the_poisson_model_keep_mean_zero(x: list[float], log_mean: float, B: float) -> None:
    x_ = np.array([1.0, *x])
    theta = np.array([[log_mean - x[0] * 0.2 + x[1] * 0.1, 0.2, -0.1]])
    rate = math.exp(float(theta[0] @ x_))
    ys = np.arange(0, int(rate + 40 * math.sqrt(rate) + 60), dtype=float)
    mean, length = expected_score(glm("poisson"), x_, theta, ys, stats.poisson.pmf(ys, rate), B)
    assert mean <= 1e-8 * length + ROUNDING * np.linalg.norm(x_)


@pytest.mark.parametrize("rate", [1e-9, 1e-3, 0.1, 0.5, 1.0, 2.5, 3.0, 17.3, 49.99, 50.01, 180.0, 1000.5, 4095.0])
def test_the_closed_forms_of_the_cut_poisson_moments_equal_direct_sums(rate: float) -> None:
    """Over a grid of cuts, integer and not, from far below one count to far beyond all."""
    ys = np.arange(0, int(rate + 45 * math.sqrt(rate) + 80), dtype=float)
    f = stats.poisson.pmf(ys, rate)
    for c in [0.01, 0.1, 0.3, 0.5, 1.0, 1.7, 2.0, 5.0, 12.5, 49.0, 300.0, 5000.0, 1e9, 1e20, 1e150]:
        cut = np.clip(rate - ys, -c, c)
        first, second = cut_moments(rate, math.exp(-rate), c)
        scale = f @ np.abs(cut)
        assert first == pytest.approx(f @ cut, abs=1e-9 * scale + 1e-16), c
        assert second == pytest.approx(f @ ((rate - ys) * cut), rel=1e-7, abs=1e-16), c


@pytest.mark.parametrize("rate", [4096.5, 10_000.25, 1e6 + 0.5])
@pytest.mark.parametrize("share", [0.1, 0.5, 1.0, 3.0])
def test_above_the_switch_the_normal_formula_is_as_exact_as_its_comment_says(rate: float, share: float) -> None:
    """Cuts of a tenth of a standard deviation and more: 1e-4 of the clipped score's own spread."""
    c = share * math.sqrt(rate)
    ys = np.arange(max(0, int(rate - 40 * math.sqrt(rate))), int(rate + 40 * math.sqrt(rate)), dtype=float)
    f = stats.poisson.pmf(ys, rate)
    cut = np.clip(rate - ys, -c, c)
    first, second = cut_moments(rate, math.exp(-rate), c)
    assert first == pytest.approx(f @ cut, abs=1e-4 * math.sqrt(f @ cut**2))
    assert second == pytest.approx(f @ ((rate - ys) * cut), rel=1e-3)


def _counts(mean: float, alpha: float) -> tuple[np.ndarray, np.ndarray]:
    """All counts that matter, and their probabilities."""
    r = 1 / alpha
    ys = np.arange(stats.nbinom.ppf(1 - 1e-14, r, r / (r + mean)) + 50)
    return ys, stats.nbinom.pmf(ys, r, r / (r + mean))


@given(
    st.lists(ordinary, min_size=2, max_size=2), st.floats(-5, 8), st.floats(0.02, 100),
    st.sampled_from([0.01, 0.5, 1.0, 4.0]),
)  # fmt: skip
def test_clipped_scores_of_the_negative_binomial_model_keep_mean_zero(
    x: list[float], log_mean: float, B: float, alpha: float
) -> None:
    x_ = np.array([1.0, *x])
    theta = np.array([[log_mean - x[0] * 0.2 + x[1] * 0.1, 0.2, -0.1]])
    ys, chances = _counts(math.exp(float(theta[0] @ x_)), alpha)
    kind = GLM.create(NEGATIVE_BINOMIAL, dispersion=alpha)
    mean, length = expected_score(kind, x_, theta, ys, chances, B)
    assert mean <= 1e-8 * length + ROUNDING * np.linalg.norm(x_)


@pytest.mark.parametrize("alpha", [0.01, 0.3, 1.0, 2.5, 30.0])
@pytest.mark.parametrize("rate", [1e-3, 0.1, 0.5, 1.0, 3.0, 17.3, 49.99, 50.01, 180.0, 1000.5, 9000.0])
def test_the_closed_forms_of_the_cut_negative_binomial_moments_equal_direct_sums(rate: float, alpha: float) -> None:
    ys, f = _counts(rate, alpha)
    s = 1 + alpha * rate
    for c in [0.01, 0.1, 0.3, 0.5, 1.0, 1.7, 2.0, 5.0, 12.5, 49.0, 300.0, 5000.0, 1e9, 1e20, 1e150]:
        cut = np.clip(rate - ys, -c, c)
        first, second = nb_cut_moments(rate, alpha, c / s)
        assert first * s == pytest.approx(f @ cut, abs=1e-7 * (f @ np.abs(cut)) + 1e-15), c
        assert second * s * s == pytest.approx(f @ ((rate - ys) * cut), rel=1e-6), c


@pytest.mark.parametrize("mean", [1.5e6, 1e9, 1e300])
@pytest.mark.parametrize("alpha", [0.001, 0.5, 10.0])
def test_large_negative_binomial_means_have_the_moments_of_the_gamma_limit(mean: float, alpha: float) -> None:
    ratio = stats.gamma(1 / alpha, scale=alpha)
    u = ratio.ppf((np.arange(200_000) + 0.5) / 200_000)
    for cut in (0.05, 0.3, 2.0):  # in units of the mean
        first, second = nb_cut_moments(mean, alpha, cut / (1 / mean + alpha))
        z = np.clip(1 - u, -cut, cut)
        assert first * (1 / mean + alpha) == pytest.approx(z.mean(), abs=2e-4 * np.abs(z).mean())
        assert second * (1 / mean + alpha) ** 2 == pytest.approx((z * (1 - u)).mean(), rel=2e-3)


@pytest.mark.parametrize("model", ALL_MODELS)
def test_consistent_curvature_is_the_mean_derivative_of_the_clipped_score(model: str) -> None:
    """d/dtheta E_theta0[score(theta)] at theta0, by central differences over the exact sum over responses.

    The linear model's clipped score is differentiated between its kinks, so it is checked through its
    expectation under standard normal errors: 2 Phi(B/|x|) - 1 of the rows are not cut.
    """
    kind = glm(model)
    rng = np.random.default_rng(3)
    x = np.array([1.0, 0.7, -1.2])
    theta = rng.standard_normal((kind.outputs, 3)) * 0.3
    B, h = 0.6, 1e-5
    if model == "linear":
        ys = float(theta[0] @ x) + stats.norm.ppf((np.arange(20_000) + 0.5) / 20_000)
        weights = np.full(20_000, 1 / 20_000)
        h = 1e-2
    elif model == "poisson":
        ys = np.arange(80.0)
        weights = stats.poisson.pmf(ys, math.exp(float(theta[0] @ x)))
    elif model == "negative-binomial":
        ys = np.arange(400.0)
        weights = stats.nbinom.pmf(ys, 1.0, 1 / (1 + math.exp(float(theta[0] @ x))))
    else:
        e = np.exp(theta @ x) if model == "multinomial" else np.exp([0.0, float(theta[0] @ x)])
        ys, weights = np.arange(float(len(e))), e / e.sum()
    rows = pack(np.tile(x, (len(ys), 1)), ys, [1] * len(ys))
    clipping, none, where = Clipping("consistent", B), np.zeros_like(theta), np.arange(len(ys))

    def mean_score(at: np.ndarray) -> np.ndarray:
        return weights @ kind.mean_scores(rows, where, at, clipping, none).reshape(len(ys), -1)

    slopes = []
    for j in range(theta.size):
        step = np.zeros(theta.size)
        step[j] = h
        step = step.reshape(theta.shape)
        slopes.append((mean_score(theta + step) - mean_score(theta - step)) / (2 * h))
    curvatures = kind.mean_curvatures(rows, where, theta, clipping, none)
    found = np.einsum("i,ijk->jk", weights, curvatures)
    np.testing.assert_allclose(found, np.stack(slopes), atol=2e-4 if model == "linear" else 1e-7)
