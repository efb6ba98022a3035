"""Coverage of nominal 95 % intervals, and their width against the interval of the pooled fit without privacy.

    python benchmarks/intervals.py [--runs 500] [--workers 2] [--method auto] [--rows KIND] [--mu MU]

100 sites, 40,000 rows, d = 5. Sizes are equal or lognormal (log-sd 0.8). In the overdispersed cells counts are negative
binomial with variance lambda + lambda^2 / 2, the model fitted is Poisson, and cov_type="robust"; the pooled fit beside
it has robust errors, too. The method is what `fm.plan` chooses for the cell, once, from public facts. Coverage is of
all five coefficients in all runs; its standard error is over runs. "worst" is the coefficient farthest from 95 %.
"""

import argparse
import os
from itertools import pairwise

os.environ.setdefault("NUMBA_NUM_THREADS", "1")

import numpy as np
from joblib import Parallel, delayed

import fedmest as fm
from fedmest.data.federation import Federation
from fedmest.models.simulate import TRUTH, simulate, usual_feature_sd

SITES, ROWS = 100, 40_000
CELLS = [
    (kind, sizes, mu)
    for kind in ("logistic", "poisson", "overdispersed")
    for sizes in ("equal", "lognormal")
    for mu in (1.0, 2.0, np.inf)
]


def site_sizes(kind: str) -> list[int]:
    if kind == "equal":
        return [ROWS // SITES] * SITES
    draws = np.random.default_rng(5).lognormal(0.0, 0.8, SITES)
    return [int(n) for n in np.maximum(np.round(ROWS * draws / draws.sum()), 20)]


def rows(kind: str, sizes: list[int], seed: list[int]) -> Federation:
    if kind != "overdispersed":
        return simulate(kind, sizes, seed)
    rng = np.random.default_rng(seed)
    X = usual_feature_sd("poisson") * rng.standard_normal((sum(sizes), len(TRUTH) - 1))
    means = np.exp(TRUTH[0] + X @ TRUTH[1:])
    y = rng.poisson(means * rng.gamma(2.0, 0.5, len(means))).astype(float)
    return Federation.from_arrays(X, y, np.repeat(np.arange(len(sizes)), sizes))


def runs(cell: tuple[str, str, float], method: str, settings: dict[str, object], first: int, last: int) -> np.ndarray:
    """Covered or not (runs, d), the two widths summed (runs, 2), and whether there was an interval."""
    kind, shape, mu = cell
    model = "logistic" if kind == "logistic" else "poisson"
    cov_type = "robust" if kind == "overdispersed" else "auto"
    sizes = site_sizes(shape)
    out = np.full((last - first, len(TRUTH) + 2), np.nan)
    for r in range(first, last):
        fed = rows(kind, sizes, [77, CELLS.index(cell) // 3, r])
        pooled = fm.fit(fed, model, "np-pooled", scaling="none", cov_type=cov_type)
        result = fm.fit(fed, model, method, mu, scaling="none", seed=r, **{"cov_type": cov_type, **settings})  # type: ignore[arg-type]
        if result.covariance.total is None:
            continue
        interval = result.conf_int().to_numpy()
        out[r - first, : len(TRUTH)] = (interval[:, 0] <= TRUTH) & (interval[:, 1] >= TRUTH)
        out[r - first, -2:] = np.ptp(interval, axis=1).sum(), np.ptp(pooled.conf_int().to_numpy(), axis=1).sum()
    return out


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=500)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--method", default="auto")
    parser.add_argument("--rows", choices=("logistic", "poisson", "overdispersed"))
    parser.add_argument("--mu", type=float)
    given = parser.parse_args()
    cells = [cell for cell in CELLS if given.rows in (None, cell[0]) and given.mu in (None, cell[2])]
    print("| rows | sizes | mu | method | coverage % | worst % | width / pooled | without interval |")
    print("|---|---|---|---|---|---|---|---|", flush=True)
    inside = 0
    with Parallel(given.workers) as pool:
        for cell in cells:
            kind, shape, mu = cell
            model = "logistic" if kind == "logistic" else "poisson"
            method, settings = given.method, {}
            if method == "auto":
                cov_type = "robust" if kind == "overdispersed" else "auto"
                best = fm.plan(site_sizes(shape), 4, model, mu, scaling="none", cov_type=cov_type).best
                method, settings = best.method, best.settings
            edges = np.linspace(0, given.runs, 4 * given.workers + 1).astype(int)
            found = np.concatenate(pool(delayed(runs)(cell, method, settings, a, b) for a, b in pairwise(edges)))
            kept = found[~np.isnan(found[:, 0])]
            covered, widths = 100 * kept[:, : len(TRUTH)], kept[:, -2:]
            by_run, by_coefficient = covered.mean(axis=1), covered.mean(axis=0)
            worst = by_coefficient[np.argmax(np.abs(by_coefficient - 95))]
            inside += 93 <= by_run.mean() <= 97
            name = f"{method} {settings}" if settings else method
            print(
                f"| {kind} | {shape} | {mu:g} | {name} | {by_run.mean():.1f} ± {by_run.std() / len(kept) ** 0.5:.1f} | "
                f"{worst:.1f} | {widths[:, 0].mean() / widths[:, 1].mean():.3f} | {len(found) - len(kept)} |",
                flush=True,
            )
    print(f"\n{inside} of {len(cells)} cells between 93 and 97 %, {given.runs} runs each")


if __name__ == "__main__":
    main()
