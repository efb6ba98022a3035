"""Networks behind the same methods, queries and accountant as regressions. Tiny networks on 8 x 8 digits."""

import json
import math
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="networks need torch, an optional extra")

from torch import nn  # noqa: E402

import fedmest as fm  # noqa: E402
from conftest import coef, noise_of, pack, without_noise  # noqa: E402
from fedmest.methods import METHODS  # noqa: E402
from fedmest.models import MODELS, Clipping, NetworkModel, model_named  # noqa: E402
from fedmest.models.grad_sample import GradSampleNetwork  # noqa: E402
from fedmest.queries import Descent, Gradient, LastLayerParts, PaperFisherStep, Query, QueryInputs, SiteData  # noqa: E402
from fedmest.runs.runner import RoundInfo  # noqa: E402

MU, B = 3.0, 1.3
QUICK = {"K": 2, "R": 2, "K1": 2, "K2": 2, "eta": 0.2}
PARAMETERS = 16 * 5 + 5 + 5 * 3 + 3


@cache
def digits(sites: int = 6, rows: int = 120) -> fm.Federation:
    """The classes 0, 1, 2 of scikit-learn's digits, 4 x 4 pixels by averaging."""
    from sklearn.datasets import load_digits

    X, y = load_digits(return_X_y=True)
    X, y = X[y < 3][:rows].reshape(-1, 4, 2, 4, 2).mean(axis=(2, 4)) / 16.0, y[y < 3][:rows]
    return fm.Federation.from_arrays(X.reshape(rows, 16), y, np.arange(rows) % sites, degenerate="keep")


def small() -> NetworkModel:
    return NetworkModel(nn.Sequential(nn.Linear(16, 5), nn.ReLU(), nn.Linear(5, 3)), (16,))


def convolutions() -> NetworkModel:
    layers = nn.Sequential(
        nn.Conv2d(1, 3, 3, padding=1), nn.MaxPool2d(2), nn.ReLU(), nn.Flatten(), nn.Linear(12, 4), nn.ReLU(),
        nn.Linear(4, 3),
    )  # fmt: skip
    return NetworkModel(layers, (1, 4, 4))


class FromZero(NetworkModel):
    def start(self, columns: int, seed: int) -> np.ndarray:
        return np.zeros(self.shape(columns))


def one_layer() -> NetworkModel:
    """Multinomial regression in torch."""
    return FromZero(nn.Sequential(nn.Linear(16, 3)), (16,))


def as_multinomial(theta: np.ndarray) -> np.ndarray:
    """One layer's parameters as coefficients: intercept first, classes summing to zero."""
    coefficients = np.column_stack([theta[48:], theta[:48].reshape(3, 16)])
    return coefficients - coefficients.mean(axis=0)


def fit(method: str = "fedavg", model: NetworkModel | None = None, mu: float = MU, **settings: Any) -> fm.Result:
    options = {k: v for k, v in QUICK.items() if k in METHODS[method].__dataclass_fields__}  # type: ignore[attr-defined]
    return fm.fit(settings.pop("fed", digits()), model or small(), method, mu, **{"seed": 1, **options, **settings})


def collecting() -> tuple[Callable[[RoundInfo], None], list[RoundInfo]]:
    """A callback, and where it puts the estimates."""
    estimates: list[RoundInfo] = []
    return lambda info: estimates.append(info) if info.params is not None else None, estimates


def sds(result: fm.Result, query: str) -> np.ndarray:
    return np.stack([r.sd for r in result.privacy.releases if r.query == query])


NETWORK_METHODS = [name for name, method in METHODS.items() if method.networks]


# -- the same methods ------------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["fedsgd", "fedavg", "fedhybrid", "scaffold"])
def test_a_network_of_one_layer_is_multinomial_regression(method: str) -> None:
    known = METHODS[method].__dataclass_fields__  # type: ignore[attr-defined]
    steps = {k: v for k, v in {"K": 8, "K1": 6, "K2": 5}.items() if k in known}
    common: dict[str, Any] = {"mu": math.inf, "scaling": "none", "seed": 1, **steps}
    regression = fm.fit(digits(), "multinomial", method, **common)
    network = fm.fit(digits(), one_layer(), method, **common)
    np.testing.assert_allclose(as_multinomial(coef(network)), coef(regression), atol=2e-5)
    rule = {
        "clip_norm": 0.5,
        "clip_rule": "norm",
        "eta": 0.1,
        "budget_schedule": "uniform",
    }  # so the steps of neither are shortened
    clipped = {**common, "mu": 1e7, **rule}
    regression = fm.fit(digits(), "multinomial", method, **clipped)
    network = fm.fit(digits(), one_layer(), method, **clipped)
    np.testing.assert_allclose(as_multinomial(coef(network)), coef(regression), atol=3e-3)  # clipped a touch lower
    assert network.communication == regression.communication
    for ours, theirs in zip(network.privacy.releases, regression.privacy.releases, strict=True):
        np.testing.assert_array_equal(ours.sd, theirs.sd)


@pytest.mark.parametrize("method", NETWORK_METHODS)
def test_every_method_for_networks_keeps_the_contract(method: str) -> None:
    result = fit(method)
    assert coef(result).shape == (PARAMETERS,) and np.isfinite(coef(result)).all()
    np.testing.assert_array_equal(coef(result), coef(fit(method)))
    if METHODS[method].private:
        assert result.privacy.certified and result.privacy.mu == pytest.approx(MU)
        assert (coef(fit(method, seed=2)) != coef(result)).all()
        without = fit(method, mu=math.inf, clip_norm=1e-6)
        assert math.isinf(without.privacy.mu) and all((r.sd == 0).all() for r in without.privacy.releases)
    probabilities = result.predict(digits().design()[:7, 1:])
    assert probabilities.shape == (7, 3)
    np.testing.assert_allclose(probabilities.sum(axis=1), 1.0, rtol=1e-6)
    assert result.loglike(digits()) < 0
    plain = json.loads(json.dumps(result.to_dict(), allow_nan=False))
    assert plain["parameters"] == PARAMETERS and "coefficients" not in plain and len(json.dumps(plain)) < 5000
    assert f"{PARAMETERS} parameters for 3 classes" in result.summary()


@pytest.mark.parametrize("method", [m for m in NETWORK_METHODS if METHODS[m].private and METHODS[m].in_paper])
def test_the_papers_calibration_carries_its_gaps(method: str) -> None:
    result = fit(method, convolutions(), calibration="paper")
    assert not result.privacy.certified and result.privacy.mu == pytest.approx(MU)
    assert any("read off the data" in caveat for caveat in result.privacy.caveats)
    newton = method.startswith("fednewton")
    assert any("One row can turn the mean gradient around" in caveat for caveat in result.privacy.caveats) == newton


@pytest.mark.parametrize("method", [name for name in NETWORK_METHODS if METHODS[name].private])
@pytest.mark.parametrize("share", [0.1, 0.35])
def test_sampled_sites_take_turns_and_spend_on_their_own_rounds_alone(method: str, share: float) -> None:
    result = fit(method, fed=digits(20), participation=share, clip_norm=1.0, budget_schedule="uniform")
    squares, turns = np.zeros(20), np.zeros(20, dtype=int)
    for release in result.privacy.releases:
        squares[release.sites] += release.mu**2
    for sites in {r.round: r.sites for r in result.privacy.releases}.values():
        turns[sites] += 1
    assert turns.max() - turns.min() <= 1
    np.testing.assert_allclose(np.sqrt(squares[turns > 0]), MU, rtol=1e-12)


def test_ten_rounds_at_a_tenth_give_every_site_one_turn_with_its_whole_budget() -> None:
    result = fit(fed=digits(20), participation=0.1, clip_norm=1.0, R=10, budget_schedule="uniform")
    sites = np.concatenate([r.sites for r in result.privacy.releases if r.what == "local step 1"])
    assert sorted(sites.tolist()) == list(range(20))
    np.testing.assert_allclose(sds(result, "descent"), 2 * 0.2 * math.sqrt(2) / (MU * 6), rtol=1e-12)


def test_momentum_goes_on_in_the_directions_of_earlier_rounds() -> None:
    zero, none = one_layer(), {"mu": math.inf, "eta": 0.1}
    steps = [t[0] for t in fit("fedsgd-m", zero, **none, K=3, momentum=0.5, average=1).history]
    plain = coef(fit("fedsgd", zero, **none, K=1))
    np.testing.assert_allclose(steps[0], plain, rtol=1e-12)
    first, second = steps[0], steps[1] - steps[0]
    gradient = coef(fit("fedsgd", zero, **none, K=2)) - plain  # the same second gradient, without the push
    np.testing.assert_allclose(second, gradient + 0.5 * first, rtol=1e-9, atol=1e-12)


def test_budgets_of_networks_are_spread_evenly_unless_asked_otherwise() -> None:
    even = fit("fedsgd", clip_norm=1.0)
    assert np.ptp([r.mu.max() for r in even.privacy.releases]) < 1e-12
    assert even.spec.settings.budget_schedule == "uniform"
    assert (
        np.ptp(
            [r.mu.max() for r in fit("fedsgd", clip_norm=1.0, budget_schedule="geometric", eta=2.0).privacy.releases]
        )
        > 0
    )


def test_the_server_can_go_part_of_the_way_and_average_its_last_iterates() -> None:
    zero, none = one_layer(), {"mu": math.inf}
    whole, half = (coef(fit("fedavg", zero, **none, R=1, server_eta=e)) for e in (1.0, 0.5))
    np.testing.assert_allclose(half, whole / 2, rtol=1e-12)
    last = fit("fedsgd", zero, **none, K=5)
    mean = fit("fedsgd-m", zero, **none, K=5, momentum=1e-300, average=3)
    np.testing.assert_allclose(coef(mean), np.mean([t[0] for t in last.history[-3:]], axis=0), rtol=1e-12)
    np.testing.assert_array_equal(coef(mean), mean.history[-1][0])


# -- privacy of clipped means ----------------------------------------------------------------------


def site_data(model: NetworkModel, X: np.ndarray, y: np.ndarray) -> SiteData:
    return SiteData(model, pack(np.column_stack([np.ones(len(y)), X]), y, [len(y)]))


def released(
    query: Query, model: NetworkModel, X: np.ndarray, y: np.ndarray, theta: np.ndarray, b: float
) -> np.ndarray:
    ask = QueryInputs(theta, Clipping("norm", b), np.zeros_like(theta))
    # a huge budget instead of none, which would turn clipping off as well
    mus = np.full((len(query.releases()), 1), 1e12) if isinstance(query, LastLayerParts) else without_noise(query)
    return query.answer(site_data(model, X, y), np.array([0]), ask, mus, noise_of(1))[0]


@pytest.mark.parametrize("build", [small, convolutions])
@pytest.mark.parametrize("rows", [1, 7, 100, 161])
def test_replacing_any_row_moves_what_is_released_by_no_more_than_stated(build: Any, rows: int) -> None:
    """At bounds that clip every row, so that the worst case is reached; single precision must not exceed it."""
    rng = np.random.default_rng(rows)
    model, n = build(), np.array([float(rows)])
    theta = model.start(17, 3) * 2
    X, y = rng.random((rows, 16)), rng.integers(0, 3, rows).astype(float)
    strange = [rng.random(16) * 1e3, np.full(16, 1e38), np.full(16, 1e60), -np.full(16, 1e20), np.zeros(16)]
    longest = 0.0
    for b in (1e-3, 0.05, 30.0):
        for query in (Gradient(), Descent(1, 0.7), LastLayerParts(2.0)):
            before = released(query, model, X, y, theta, b)
            limits = query.sensitivity(n, Clipping("norm", b))[:, 0]
            cut = 18 if build is small else 15
            parts = [slice(0, cut), slice(cut, None)] if isinstance(query, LastLayerParts) else [slice(None)]
            for row in strange:
                for label in range(3):
                    X2, y2 = X.copy(), y.copy()
                    X2[rows // 2], y2[rows // 2] = row, label
                    after = released(query, model, X2, y2, theta, b)
                    assert np.isfinite(after).all()
                    for part, limit in zip(parts, limits, strict=True):
                        moved = float(np.linalg.norm(after[part] - before[part]))
                        assert moved <= limit * (1 + 1e-9) + 1e-9
                        longest = max(longest, moved / limit)
    assert longest > 0.5  # the stated distance is not idle


def test_a_row_that_overflows_leaves_the_others_as_they_are_to_the_last_bit() -> None:
    model = convolutions()
    rng = np.random.default_rng(0)
    X, y, theta = rng.random((90, 16)), rng.integers(0, 3, 90).astype(float), model.start(17, 3)
    X2 = X.copy()
    X2[3] = 1e60
    G, G2 = (model.row_scores(site_data(model, x, y).rows, 0, theta) for x in (X, X2))
    assert not G2[3].any() and G[3].any()
    np.testing.assert_array_equal(np.delete(G2, 3, axis=0), np.delete(G, 3, axis=0))


def test_each_release_of_the_last_layer_has_its_own_index_and_noise() -> None:
    """At real sites the index chooses the mu that the grid's noise is made for."""
    seen: list[tuple[int, int, float]] = []

    class Recording:
        def add(self, values: np.ndarray, sds: np.ndarray, sites: np.ndarray, release: int = 0) -> None:
            seen.append((release, values.shape[1], float(sds[0])))

        def add_step(self, values: np.ndarray, sd: float, site: int, step: int) -> None:
            raise AssertionError("no local steps here")

    model, query = small(), LastLayerParts(2.0)
    theta, clipping = model.start(17, 3), Clipping("norm", 0.5)
    data = site_data(model, np.ones((4, 16)), np.zeros(4))
    costs = np.array([[3.0], [0.25]])
    query.answer(data, np.array([0]), QueryInputs(theta, clipping, np.zeros_like(theta)), costs, Recording())
    stated = query.noise_sds(np.array([4.0]), clipping, costs)[:, 0]
    assert seen == [(0, 18, stated[0]), (1, 21, stated[1])]


def test_a_row_whose_logits_overflow_has_no_gradient_at_the_last_layer() -> None:
    model = small()
    theta = np.ones((1, PARAMETERS))
    theta[0, -18:-8] = 1e300  # some weights of the last layer: infinite logits, whose softmax is not a number
    X = np.zeros((3, 16))
    X[1] = 1e20
    reply = released(LastLayerParts(2.0), model, X, np.zeros(3), theta, 0.5)
    assert np.isfinite(reply).all()
    assert np.linalg.norm(reply[:18]) <= 0.5


def test_networks_refuse_to_run_where_denormals_are_flushed() -> None:
    if not torch.set_flush_denormal(True):
        pytest.skip("this processor cannot flush denormals")
    try:
        with pytest.raises(fm.InputError, match="denormal numbers are flushed to zero"):
            fit("fedsgd")
    finally:
        torch.set_flush_denormal(False)


def test_local_steps_draw_the_noise_of_the_compiled_loops() -> None:
    """A bound near zero leaves noise alone, which is the same for a network and a regression of the same size."""
    keys, steps = noise_of(2, seed=9, number=4), 3
    rows = pack(np.ones((4, 2)), np.zeros(4), [2, 2])
    thetas, none = np.zeros((1, 2)), np.zeros((1, 2))
    common = (steps, 0.5, Clipping("norm", 1e-12), none, none, np.array([1.0, 2.0]), np.array([[1.0], [0.5], [2.0]]))
    ours = model_named("logistic").local_descents(rows, np.array([0, 1]), thetas, *common, keys)
    total = np.zeros((2, 2))
    for site in range(2):
        for k, factor in enumerate((1.0, 0.5, 2.0)):
            keys.add_step(total[site], (1.0, 2.0)[site] * factor, site, k)
    np.testing.assert_allclose(ours[:, 0], total, atol=1e-10)


# -- FedNewton-NN and FedNewton-Iter ---------------------------------------------------------------


def test_row_gradients_add_up_and_have_the_order_of_theta() -> None:
    rng = np.random.default_rng(0)
    for model in (small(), convolutions()):
        net = GradSampleNetwork(model.network.layers, model.row_shape, double=True)
        x, y, theta = rng.random((9, *model.row_shape)), rng.integers(0, 3, 9), net.initial(1)
        rows = net.row_gradients(x, y, theta)
        np.testing.assert_allclose(rows.sum(axis=0), net.gradient(x, y, theta), atol=1e-12)
        np.testing.assert_allclose(np.linalg.norm(rows, axis=1), net.clipped_sum(x, y, theta, 1.0)[1], rtol=1e-9)


@pytest.mark.parametrize(("method", "cycles"), [("fednewton-nn", 1), ("fednewton-iter", 2)])
def test_noise_of_the_paper(method: str, cycles: int) -> None:
    result = fit(method, calibration="paper", clip_norm=B, K=3, R=4, tau1=0.5, fed=digits(4))
    n = 30.0
    steps = 2 * B * 0.2 * math.sqrt(2 * cycles * 4 * 3) / (MU * n)
    np.testing.assert_allclose(sds(result, "descent"), np.full((cycles * 12, 4), steps), rtol=1e-12)
    newton = 2 * (2 * math.sqrt(2) * B / 0.5) * math.sqrt(cycles) / (MU * n)
    np.testing.assert_allclose(sds(result, "fisher step (paper)"), np.full((cycles, 4), newton), rtol=1e-12)
    assert result.communication.rounds == cycles * 5


@pytest.mark.parametrize("head", [True, False])
def test_the_papers_step_solves_its_own_equation(head: bool) -> None:
    rng = np.random.default_rng(1)
    model, b, alpha, ridge = small(), 0.05, 0.7, 0.3
    X, y, theta = rng.random((20, 16)), rng.integers(0, 3, 20).astype(float), small().start(17, 2)
    G = model.row_scores(site_data(model, X, y).rows, 0, theta).astype(float)
    start = theta[0]
    if head:
        order = np.column_stack([np.arange(15, 18), np.arange(15).reshape(3, 5)]).ravel() + PARAMETERS - 18
        G, start = G[:, order], start[order]
    g = G.mean(axis=0)
    assert np.linalg.norm(g) > b
    direction = np.linalg.solve(G.T @ G / 20 + ridge * np.eye(len(start)), g * b / np.linalg.norm(g))
    found = released(PaperFisherStep(head, alpha, ridge, 1.0), model, X, y, theta, b)
    np.testing.assert_allclose(found, start - alpha * direction, atol=1e-6)


@pytest.mark.parametrize("calibration", ["certified", "paper"])
@pytest.mark.parametrize("method", ["fednewton-nn", "fednewton-iter"])
def test_a_newton_step_moves_the_last_layer_only_or_all_of_theta(method: str, calibration: str) -> None:
    callback, estimates = collecting()
    fit(method, calibration=calibration, R=2, cycles=2, callback=callback)
    seen = [estimate.params[0] for estimate in estimates]  # type: ignore[index]
    assert len(seen) == 6
    for before, after in ((seen[1], seen[2]), (seen[4], seen[5])):
        assert (before[-18:] != after[-18:]).all()
        body_stays = method == "fednewton-iter" or calibration == "certified"
        assert (before[:-18] == after[:-18]).all() == body_stays
    assert (seen[2] != seen[3]).all()


def test_a_certified_newton_step_lowers_the_loss_without_noise() -> None:
    callback, estimates = collecting()
    result = fit("fednewton-nn", mu=math.inf, alpha=1.0, lambda_ridge=1e-3, callback=callback)
    before, after = (replace(result, coef_matrix=info.params).loglike(digits()) for info in estimates[-2:])
    assert after > before + 1.0


# -- callbacks, stopping, going on -----------------------------------------------------------------


def test_a_callback_gets_every_round_and_every_estimate_on_the_original_scale() -> None:
    seen: list[RoundInfo] = []
    fed = digits()
    keep = fm.Federation.from_arrays(fed.design()[:, 6:8] * 9, fed.target, np.repeat(range(6), 20))
    result = fm.fit(keep, "multinomial", "fedsgd", K=4, seed=1, callback=seen.append)
    rounds = result.communication.rounds
    done = [info for info in seen if info.params is None]
    assert [(info.round, info.rounds) for info in done] == [(k + 1, rounds) for k in range(rounds)]
    assert [info.query for info in done] == [r.query for r in result.communication.by_round]
    phases = [phase for phase, steps in result.spec.schedule.phases for _ in steps]
    assert [info.phase for info in done] == phases
    estimates = [info for info in seen if info.params is not None]
    assert [(info.round, info.phase) for info in estimates] == [(rounds - 3 + k, "estimation") for k in range(4)]
    for info, kept in zip(estimates, result.history, strict=True):
        np.testing.assert_array_equal(info.params, kept)
    np.testing.assert_allclose(estimates[-1].params, result.coef_matrix, rtol=1e-12)


def test_of_large_networks_only_the_last_iterate_is_kept() -> None:
    model = NetworkModel(nn.Sequential(nn.Linear(16, 600), nn.ReLU(), nn.Linear(600, 3)), (16,))
    result = fit(model=model)
    assert model.network.size > 10_000
    assert len(result.history) == 1 and (result.history[0] == result.coef_matrix).all()


def stop_after(rounds: int) -> Callable[[RoundInfo], None]:
    def stop(info: RoundInfo) -> None:
        if info.round == rounds:
            raise InterruptedError

    return stop


SCRIPT = """
import os, signal, sys
sys.path[:0] = {here!r}
from test_neural_methods import fit
def stop(info):
    if info.round == 3:
        os.kill(os.getpid(), signal.SIGKILL)
fit("fedavg", R=4, checkpoint={folder!r}, callback=stop)
"""


def test_a_killed_run_goes_on_to_the_same_result(tmp_path: Path) -> None:
    script = SCRIPT.format(here=[str(folder) for folder in Path(__file__).parents[:2]], folder=str(tmp_path))
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == -signal.SIGKILL
    assert len(list(tmp_path.glob("round-*.npz"))) == 3
    np.testing.assert_array_equal(coef(fit(R=4, checkpoint=tmp_path)), coef(fit(R=4)))


@pytest.mark.parametrize("seed", [1, None])
@pytest.mark.parametrize("method", ["fedsgd", "fedhybrid", "scaffold", "fednewton-nn", "fednewton-iter"])
def test_a_stopped_run_goes_on_with_the_noise_that_it_began_with(method: str, seed: int | None, tmp_path: Path) -> None:
    common: dict[str, Any] = {"seed": seed, "participation": 0.4}
    with pytest.raises(InterruptedError):
        fit(method, checkpoint=tmp_path, callback=stop_after(2), **common)
    (tmp_path / "round-00002.npz").unlink()  # as if the run had ended before it was written
    kept = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    resumed = fit(method, checkpoint=tmp_path, **common)
    assert all((tmp_path / name).read_bytes() == content for name, content in kept.items())
    if seed is not None:
        np.testing.assert_array_equal(coef(resumed), coef(fit(method, **common)))
    again = fit(method, checkpoint=tmp_path, **common)  # a finished run is read back
    np.testing.assert_array_equal(coef(again), coef(resumed))
    assert again.communication == resumed.communication
    assert again.privacy.statement() == resumed.privacy.statement()


@pytest.mark.parametrize("method", ["fedhybrid", "scaffold"])
def test_a_resumed_run_asks_no_site_twice(method: str, tmp_path: Path, sent: list[np.ndarray]) -> None:
    fit(method, checkpoint=tmp_path)
    count = len(sent)
    fit(method, checkpoint=tmp_path)
    assert len(sent) == count > 0


def test_a_checkpoint_of_another_fit_is_refused(tmp_path: Path) -> None:
    fit(checkpoint=tmp_path, seed=None)
    for changed in ({"seed": 1}, {"mu": 2.0}, {"K": 3}, {"fed": digits(5)}, {"model": convolutions()}):
        with pytest.raises(fm.InputError, match="belongs to another fit"):
            fit(**{"checkpoint": tmp_path, "seed": None, **changed})  # type: ignore[arg-type]


def test_a_checkpoint_is_refused_for_other_rows_and_compare_has_one_a_method(tmp_path: Path) -> None:
    """The same noise on two sets of rows would show their difference."""
    rng = np.random.default_rng(0)
    X, y, sites = rng.standard_normal((60, 3)), rng.integers(0, 2, 60), np.repeat([1, 2], 30)
    call = {"methods": ["fedsgd", "fedavg"], "scaling": "none", "checkpoint": tmp_path}
    first = fm.compare(fm.Federation.from_arrays(X, y, sites), "logistic", **call)
    again = fm.compare(fm.Federation.from_arrays(X, y, sites), "logistic", **call)
    assert all((coef(first[name]) == coef(again[name])).all() for name in first)
    X[7, 1] += 1e-9
    with pytest.raises(fm.InputError, match="belongs to another fit"):
        fm.compare(fm.Federation.from_arrays(X, y, sites), "logistic", **call)


def test_two_runs_cannot_share_a_checkpoint_and_a_failed_one_lets_go(tmp_path: Path) -> None:
    from fedmest.runs.checkpoint import Checkpoint

    with Checkpoint(tmp_path, "a fit", 1), pytest.raises(fm.InputError, match="in use by another run"):
        Checkpoint(tmp_path, "a fit", 2)
    with Checkpoint(tmp_path, "a fit", 2) as again:
        assert again.seed64 == 1

    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fit(checkpoint=tmp_path / "b", seed=None, callback=stop)
    fit(checkpoint=tmp_path / "b", seed=None)


# -- what the public parts of a run give away ---------------------------------------------------------


def test_the_start_and_who_takes_part_are_drawn_from_another_seed_than_the_noise(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A generator may keep half of its seed; who finds that of the public start must not hold half of the noise's."""
    from fedmest.runs.backend import LocalBackend
    from fedmest.runs.runner import Run

    seeds: dict[str, int] = {}
    answer, start = LocalBackend.answer, Run.start

    def answering(self: LocalBackend, *rest: object) -> tuple[np.ndarray, np.ndarray]:
        seeds["noise"] = self.seed64
        return answer(self, *rest)  # type: ignore[arg-type]

    def starting(self: Run) -> np.ndarray:
        seeds["public"] = self.context.seed
        return start(self)

    monkeypatch.setattr(LocalBackend, "answer", answering)
    monkeypatch.setattr(Run, "start", starting)
    fit()
    half = 0xFFFFFFFF
    assert seeds["noise"] & half != seeds["public"] & half and seeds["noise"] >> 32 != seeds["public"] >> 32


def test_a_callers_layers_are_left_alone_and_a_held_head_is_refused() -> None:
    layers = nn.Sequential(nn.Linear(16, 5), nn.ReLU(), nn.Linear(5, 3))
    before = layers[0].weight.detach().clone()
    model = NetworkModel(layers, (16,), frozen_layers=(2,))
    fit("fedsgd", model)
    assert torch.equal(before, layers[0].weight)
    with pytest.raises(fm.InputError, match="the last layer is frozen"):
        fit("fednewton-iter", model)


def test_products_are_computed_in_full_precision_whatever_the_process_is_set_to(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    exact = coef(fit())
    torch.set_float32_matmul_precision("medium")
    try:
        assert (coef(fit()) == exact).all()
        assert torch.get_float32_matmul_precision() == "medium"
    finally:
        torch.set_float32_matmul_precision("highest")
    monkeypatch.setenv("ONEDNN_DEFAULT_FPMATH_MODE", "BF16")
    with pytest.raises(fm.InputError, match="ONEDNN_DEFAULT_FPMATH_MODE"):
        fit()


# -- errors ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"scaling": "bounds"}, "takes features as they are"),
        ({"clip_rule": "consistent"}, "takes clip_rule='norm' only"),
        ({"model": NetworkModel(nn.Sequential(nn.Linear(9, 3)), (9,))}, "rows of 9 = 9 numbers; the data have 16"),
        ({"model": NetworkModel(nn.Sequential(nn.Linear(16, 2)), (16,))}, "3 distinct values.* at most 2"),
        ({"method": "fednewton-iter", "model": NetworkModel(nn.Sequential(nn.Linear(16, 3), nn.Tanh()), (16,))},
         "must end in a linear layer"),
        ({"method": "fednewton-nn", "tau1": 0.1}, "no meaning under calibration='certified'"),
        ({"method": "fednewton-nn", "calibration": "paper", "head_bound": 1.0}, "no meaning under calibration='paper'"),
        ({"server_eta": 0.0}, "must be a positive number"),
    ],
)  # fmt: skip
def test_errors_are_one_line(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(fm.InputError, match=message) as error:
        fit(**settings)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("method", [name for name, kind in METHODS.items() if not kind.networks])
def test_methods_for_regressions_refuse_networks(method: str) -> None:
    with pytest.raises(fm.InputError, match=f"method {method!r} works for .*, not for network"):
        fm.fit(digits(), small(), method)


@pytest.mark.parametrize("method", ["fednewton-nn", "fednewton-iter"])
def test_methods_for_networks_refuse_regressions(method: str) -> None:
    with pytest.raises(fm.InputError, match="works for network models, not for multinomial"):
        fm.fit(digits(), "multinomial", method)


def test_the_papers_networks_go_by_name() -> None:
    assert {"mnist-cnn", "cifar-cnn"} < set(MODELS)
    assert model_named("mnist-cnn").shape(785) == (1, 421_642)
    with pytest.raises(fm.InputError, match=r"1 x 28 x 28 = 784 numbers; the data have 16"):
        fm.fit(digits(), "mnist-cnn", "fedsgd")
    rng = np.random.default_rng(0)
    fed = fm.Federation.from_arrays(rng.random((12, 784)), np.arange(12) % 10, np.arange(12) % 3)
    result = fm.fit(fed, "mnist-cnn", "fedavg", K=1, R=1, eta=0.01, clip_norm=1.0, participation=0.4, seed=1)
    assert coef(result).size == 421_642 and result.model.classes == tuple(range(10))


def test_labels_of_any_kind_are_numbered_in_their_order() -> None:
    fed = digits()
    named = replace(fed, target=np.array(["c", "a", "b"])[fed.target])
    assert fit(fed=named).model.classes == ("a", "b", "c")
    model = small()
    fit(fed=named, model=model)
    assert model.classes == ()  # the caller's own model stays as it was
