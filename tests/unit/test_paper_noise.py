"""calibration="paper": every noise scale equals the table of SPEC section 2, by formula and as sent.

Empirical tests: at least 40,000 independent normals enter each estimate of a standard deviation, whose
relative error is then 1/sqrt(80,000) = 0.35 %; being off by more than 2 % is an event of 5.6 standard
errors: false-alarm rate 2e-8 a test. Seeds are fixed.
"""

import math
from typing import Any

import numpy as np
import pytest

import fedmest as fm
from conftest import simulate

MU, B, ETA = 1.7, 1.3, 0.4
SIZES = (20, 100, 250, 2)
SITES = 10_000
ROW = np.array([0.8, -0.5, 0.3])


def paper_fit(method: str, **options: Any) -> fm.Result:
    case = simulate("logistic", len(SIZES), SIZES, seed=2)
    return fm.fit(case.fed, "logistic", method, MU, calibration="paper", clip_norm=B, scaling="none", seed=1, **options)


def sds(result: fm.Result, query: str) -> np.ndarray:
    """(releases, sites) of all releases of one kind of query."""
    return np.stack([r.sd for r in result.privacy.releases if r.query == query])


def assert_all(found: np.ndarray, count: int, formula: np.ndarray) -> None:
    assert len(found) == count
    np.testing.assert_allclose(found, np.tile(formula, (count, 1)), rtol=1e-12)


N = np.array(SIZES, dtype=float)


def test_fedsgd_noise_is_2_B_sqrt_K_over_mu_n() -> None:
    assert_all(sds(paper_fit("fedsgd", K=30), "gradient"), 30, 2 * B * math.sqrt(30) / (MU * N))


@pytest.mark.parametrize("method", ["fedavg", "scaffold"])
def test_fedavg_and_scaffold_noise_is_2_B_eta_sqrt_RK_over_mu_n_a_local_step(method: str) -> None:
    found = sds(paper_fit(method, K=12, R=3, eta=ETA), "descent")
    assert_all(found, 36, 2 * B * ETA * math.sqrt(3 * 12) / (MU * N))


def test_fedhybrid_noise_is_that_of_the_table_in_both_stages() -> None:
    result = paper_fit("fedhybrid", K1=9, K2=7, eta=ETA)
    assert_all(sds(result, "descent"), 9, 2 * B * ETA * math.sqrt(2 * 9) / (MU * N))
    assert_all(sds(result, "gradient"), 7, 2 * B * math.sqrt(2 * 7) / (MU * N))


def test_fednewton_noise_is_that_of_the_table_in_both_rounds() -> None:
    """Sites with an even number of rows; with an odd number the first half has (n+1)/2 rows, not n/2."""
    result = paper_fit("fednewton", K=11, eta=ETA, tau1=0.3)
    assert_all(sds(result, "descent"), 11, 4 * B * ETA * math.sqrt(2 * 11) / (MU * N))
    b_new = 4 * math.sqrt(2) * B / 0.3
    assert_all(sds(result, "newton step (paper)"), 1, 2 * b_new / (MU * N))


def test_client_sampling_is_noised_as_if_every_site_took_part_in_every_round() -> None:
    case = simulate("logistic", 20, 30, seed=2)
    result = fm.fit(case.fed, "logistic", "fedavg", MU, calibration="paper", clip_norm=B, scaling="none", seed=1,
                    participation=0.1, K=4, R=10, eta=ETA)  # fmt: skip
    found = sds(result, "descent")
    np.testing.assert_allclose(found, 2 * B * ETA * math.sqrt(10 * 4) / (MU * 30), rtol=1e-12)
    assert any("as if every site took part in every round" in caveat for caveat in result.privacy.caveats)


def test_the_papers_defaults_are_those_of_its_text() -> None:
    """K=50, eta=0.5; FedHybrid K1=30, K2=20; FedAvg K=50, R=2; FedNewton K=50."""
    wanted = {
        "fedsgd": {"K": 50, "eta": 0.5},
        "fedavg": {"K": 50, "R": 2, "eta": 0.5},
        "fedhybrid": {"K1": 30, "K2": 20, "eta": 0.5},
        "fednewton": {"K": 50, "eta": 0.5},
    }
    for method, options in wanted.items():
        used = vars(paper_fit(method).spec.method)
        assert {name: used[name] for name in options} == options, method


def test_the_papers_bound_is_the_largest_local_90_percent_quantile_of_gradient_norms_at_zero() -> None:
    """At zero a logistic score is (1/2 - y) x, of norm |x|/2."""
    case = simulate("logistic", 4, (20, 100, 250, 3), seed=2)
    result = fm.fit(case.fed, "logistic", "fedsgd", MU, calibration="paper", K=1, seed=1)
    norms = [np.linalg.norm(X, axis=1) / 2 for X, _ in case.by_site()]
    wanted = max(np.quantile(local, 0.9) for local in norms)
    assert result.resolved_values()["clip_norm"] == pytest.approx(wanted, rel=1e-12)
    assert any("read off the data" in caveat for caveat in result.privacy.caveats)


# -- as sent ---------------------------------------------------------------------------------------


def identical_sites(model: str, n: int, y: float) -> fm.Federation:
    """10,000 sites whose n rows are all the same row, and one site that keeps the columns from being
    constant.
    """
    rng = np.random.default_rng(0)
    X = np.vstack([np.tile(ROW, (SITES * n, 1)), rng.standard_normal((n, 3))])
    target = np.concatenate([np.full(SITES * n, y), np.arange(n) % 2])
    names = np.array([f"s{i:05d}" for i in range(SITES + 1)])
    return fm.Federation.from_arrays(X, target, np.repeat(names, n))


def sample_sd(replies: np.ndarray) -> float:
    """Over identical sites and the four coordinates, which have different means and the same noise."""
    values = replies[:SITES]
    assert values.size >= 40_000
    return float(np.sqrt(((values - values.mean(axis=0)) ** 2).sum() / (values.size - values.shape[1])))


def run(fed: fm.Federation, method: str, model: str = "logistic", **options: Any) -> None:
    settings = {"mu": MU, "clip_norm": B, "seed": 5, **options}
    fm.fit(fed, model, method, calibration="paper", scaling="none", **settings)


def test_fedsgd_sites_send_gradients_with_the_noise_of_the_table(sent: list[np.ndarray]) -> None:
    run(identical_sites("logistic", 6, 1.0), "fedsgd", K=3)
    for replies in sent:
        assert sample_sd(replies) == pytest.approx(2 * B * math.sqrt(3) / (MU * 6), rel=0.02)


@pytest.mark.parametrize("method", ["fedavg", "scaffold"])
def test_one_local_step_carries_the_noise_of_the_table(method: str, sent: list[np.ndarray]) -> None:
    """K=1, so that a site sends theta after a single noisy step.

    SCAFFOLD's variate is c_i = -reply_i/eta after round 1, so round 2 takes off eta (c - c_i), the site's
    own noise of round 1 up to a shift that all sites share: added again here, fresh noise is left.
    """
    run(identical_sites("logistic", 6, 1.0), method, K=1, R=2, eta=ETA)
    wanted = 2 * B * ETA * math.sqrt(2) / (MU * 6)
    assert sample_sd(sent[0]) == pytest.approx(wanted, rel=0.02)
    second = sent[1] + sent[0] if method == "scaffold" else sent[1]
    assert sample_sd(second) == pytest.approx(wanted, rel=0.02)


def test_two_local_steps_carry_the_noise_of_the_table_propagated(sent: list[np.ndarray]) -> None:
    """Linear model, nothing clipped: reply = M (t + s Z1) + const + s Z2 with M = I - eta x x', s the
    table's sd.

    Its covariance is s^2 (I + M^2). Whitened by that, the replies are standard normals. mu = 200 keeps
    every residual below B/|x|.
    """
    run(identical_sites("linear", 6, 1.0), "fedavg", model="linear", mu=200.0, clip_norm=8.0, K=2, R=1, eta=ETA)
    s = 2 * 8.0 * ETA * math.sqrt(2) / (200.0 * 6)
    x = np.concatenate([[1.0], ROW])
    M = np.eye(4) - ETA * np.outer(x, x)
    root = np.linalg.cholesky(s**2 * (np.eye(4) + M @ M))
    white = np.linalg.solve(root, sent[0].T).T
    assert sample_sd(white) == pytest.approx(1.0, rel=0.02)
    assert abs(np.cov(white[:SITES].T) - np.eye(4)).max() < 6 / math.sqrt(SITES) * math.sqrt(2)


def test_fedhybrid_sites_send_the_noise_of_the_table_in_both_stages(sent: list[np.ndarray]) -> None:
    run(identical_sites("logistic", 6, 1.0), "fedhybrid", K1=1, K2=2, eta=ETA)
    assert sample_sd(sent[0]) == pytest.approx(2 * B * ETA * math.sqrt(2) / (MU * 6), rel=0.02)
    for replies in sent[1:]:
        assert sample_sd(replies) == pytest.approx(2 * B * math.sqrt(2 * 2) / (MU * 6), rel=0.02)


def test_fednewton_sites_send_the_noise_of_the_table_in_both_rounds(sent: list[np.ndarray]) -> None:
    """Halves of identical rows are identical, so all spread between sites is noise."""
    run(identical_sites("logistic", 6, 1.0), "fednewton", K=1, eta=ETA, tau1=0.3)
    assert sample_sd(sent[0]) == pytest.approx(4 * B * ETA * math.sqrt(2) / (MU * 6), rel=0.02)
    assert sample_sd(sent[1]) == pytest.approx(2 * (4 * math.sqrt(2) * B / 0.3) / (MU * 6), rel=0.02)


def test_certified_newton_parts_carry_the_noise_that_their_record_says(sent: list[np.ndarray]) -> None:
    """Gradient and curvature triangle (off-diagonals times sqrt 2) each with the sd of its release."""
    fed = identical_sites("logistic", 6, 1.0)
    result = fm.fit(fed, "logistic", "fednewton", MU, clip_norm=B, scaling="none", seed=5, K=1)
    gradient, curvature = [r.sd[0] for r in result.privacy.releases if r.query == "newton parts"]
    assert sample_sd(sent[1][:, :4]) == pytest.approx(gradient, rel=0.02)
    assert sample_sd(sent[1][:, 4:]) == pytest.approx(curvature, rel=0.02)
