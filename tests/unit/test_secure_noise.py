"""Noise at a real site: discrete, on a grid, from the operating system."""

import math

import numpy as np
import pytest
from scipy.stats import kstest, norm

from conftest import simulate

pytest.importorskip("opendp")

from fedmest.models import Clipping, model_named
from fedmest.privacy.discrete_noise import GRID_BITS, GridNoise, total_variation
from fedmest.privacy.noise import SeededNoise
from fedmest.queries import Descent, Gradient, QueryInputs, SiteData

SITE = np.array([0])


def noisy(values: np.ndarray, sd: float, mu: float = 1.0, rows: int = 100) -> np.ndarray:
    out = np.array(values, dtype=float)[None]
    GridNoise(np.array([[mu]]), rows).add(out, np.array([sd]), SITE)
    return out[0]


@pytest.mark.parametrize("sd", [1e-9, 0.37, 1.0, 1e9])
def test_noise_has_the_distribution_that_mu_speaks_of(sd: float) -> None:
    """Randomness is the operating system's: a false alarm once in a million runs."""
    sample = (noisy(np.full(5000, 3 * sd), sd) - 3 * sd) / sd
    assert kstest(sample, "norm").pvalue > 2.5e-7


def test_two_draws_differ_and_lie_on_the_grid() -> None:
    first, second = noisy(np.zeros(50), 1.0), noisy(np.zeros(50), 1.0)
    assert not (first == second).any()
    for value in (*first, *second):
        assert (value * 2.0**GRID_BITS).is_integer()


@pytest.mark.parametrize("s", [4.0, 5.7, 8.0, 16.0, 64.0])
def test_the_discrete_gaussian_is_as_close_to_a_rounded_normal_as_we_say(s: float) -> None:
    z = np.arange(-int(12 * s), int(12 * s) + 1)
    discrete = np.exp(-0.5 * (z / s) ** 2)
    discrete /= discrete.sum()
    rounded = norm.cdf((z + 0.5) / s) - norm.cdf((z - 0.5) / s)
    apart = 0.5 * np.abs(discrete - rounded).sum()
    assert 0 < apart < 1 / (20 * s**2)
    assert total_variation(3) == pytest.approx(3 / (20 * (2.0**GRID_BITS) ** 2))


def test_the_scale_covers_the_grid_and_the_rounding_of_sums(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neighbouring values, rounded, differ by at most scale * mu grid steps: what the drawn noise is for."""
    from fedmest.privacy import discrete_noise

    scales: list[float] = []
    draw = discrete_noise._gaussian
    monkeypatch.setattr(discrete_noise, "_gaussian", lambda scale: (scales.append(scale), draw(scale))[1])
    rng = np.random.default_rng(0)
    for _ in range(200):
        d, mu, sensitivity = int(rng.integers(1, 40)), float(rng.uniform(0.01, 9)), float(10 ** rng.uniform(-9, 9))
        sd = sensitivity / mu
        v = rng.standard_normal(d) * sensitivity * 10
        step = rng.standard_normal(d)
        w = v + step / np.linalg.norm(step) * sensitivity
        noisy(v, sd, mu)
        grid = 2.0 ** (math.floor(math.log2(sd)) - GRID_BITS)
        apart = np.linalg.norm(np.rint(v / grid) - np.rint(w / grid))
        assert apart <= scales[-1] * mu
        assert scales[-1] * grid <= sd * (1 + 1e-4 + math.sqrt(d) / mu / 2**GRID_BITS)
    noisy(np.zeros(3), 1.0, 1.0, rows=10**6)
    assert 1 + 2e12 * 2.0**-53 < scales[-1] / 2**GRID_BITS < 1.001  # n^2 rounding errors of half an ulp each


@pytest.mark.parametrize("bad", [0.0, -1.0, math.nan, math.inf, 1e-300])
def test_nothing_is_released_with_noise_of_no_size(bad: float) -> None:
    with pytest.raises(ValueError, match="secure noise"):
        noisy(np.zeros(2), bad)
    if bad != 1e-300:
        with pytest.raises(ValueError, match="secure noise"):
            GridNoise(np.array([[bad]]), 10)


def test_values_beyond_the_grid_are_held_to_its_ends() -> None:
    values = noisy(np.array([np.nan, np.inf, -np.inf, 1e300]), 1.0)
    assert np.isfinite(values).all() and abs(values[0]) < 40
    assert values[1] == pytest.approx(2.0 ** (52 - GRID_BITS)) == -values[2]


@pytest.mark.parametrize("name", ["linear", "logistic", "poisson", "multinomial"])
def test_local_steps_at_a_site_are_those_of_the_compiled_loops_but_for_the_noise(name: str) -> None:
    """A cost so high that the noise is nothing shows what both add it to."""
    case = simulate(name, 1, 60)
    model, y = model_named(name).encode_target(case.fed)
    none, one = np.zeros(len(case.fed.features)), np.ones(len(case.fed.features))
    data = SiteData(model, case.fed.rows(y, none, one, True))
    theta = np.full(model.shape(len(none) + 1), 0.1)
    ask = QueryInputs(
        theta, Clipping("consistent", 1.0), np.full(theta.shape, 0.01), drifts=np.full((1, *theta.shape), 0.02)
    )
    query = Descent(5, 0.3)
    mus = np.full((5, 1), 1e7)
    secure = query.answer(data, SITE, ask, mus, GridNoise(mus, int(case.fed.sizes[0])))
    seeded = query.answer(data, SITE, ask, mus, SeededNoise(case.fed.keys, 1, 0))
    np.testing.assert_allclose(secure, seeded, atol=1e-6)
    gradient = Gradient().answer(data, SITE, ask, mus[:1], GridNoise(mus[:1], int(case.fed.sizes[0])))
    exact = model.mean_scores(data.rows, SITE, theta, ask.clipping, ask.penalty).reshape(1, -1)
    np.testing.assert_allclose(gradient, exact, atol=1e-6)
