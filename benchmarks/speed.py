"""Speed as ratios within one run: the product's own code against raw products, NumPy loops, fewer threads, fewer sites.

    python benchmarks/speed.py step      # one local step of all sites against two matrix products over the same rows
    python benchmarks/speed.py round     # a FedSGD round over 10,000 small sites against a NumPy loop
    python benchmarks/speed.py threads   # two threads against one
    python benchmarks/speed.py growth    # time and peak memory from a thousand to a million sites
    python benchmarks/speed.py           # all four

Minima over repeats; contenders take turns so that a busy machine hurts them alike.
"""

import argparse
import json
import resource
import subprocess
import sys
import time
from collections.abc import Callable

import numba as nb
import numpy as np
from threadpoolctl import threadpool_limits

import fedmest as fm
from fedmest.core.typing import FloatArray
from fedmest.models import Clipping, model_named
from fedmest.privacy.noise import SeededNoise
from fedmest.queries import Descent, Gradient, QueryInputs, SiteData


def minima(contenders: dict[str, Callable[[], object]], repeats: int) -> dict[str, float]:
    """Fastest time of each, in seconds, after a warm-up, taking turns."""
    best = dict.fromkeys(contenders, np.inf)
    for name in contenders:
        contenders[name]()
    for _ in range(repeats):
        for name, run in contenders.items():
            start = time.perf_counter()
            run()
            best[name] = min(best[name], time.perf_counter() - start)
    return best


@nb.njit(parallel=True, fastmath=True)
def products_by_blas(X, sites, theta, steps, out):  # type: ignore[no-untyped-def]
    """Two matrix-vector products a step, row-major, BLAS, sites in parallel, all steps of a site in a row."""
    n = X.shape[0] // sites
    for s in nb.prange(sites):
        block = X[s * n : (s + 1) * n]
        t = theta.copy()
        for _ in range(steps):
            t -= 1e-9 * np.dot(np.dot(block, t), block)
        out[s] = t


@nb.njit(parallel=True, fastmath=True)
def products_by_rows(X, sites, theta, steps, out):  # type: ignore[no-untyped-def]
    """The same in plain compiled loops over row-major data."""
    n, d = X.shape[0] // sites, X.shape[1]
    for s in nb.prange(sites):
        block = X[s * n : (s + 1) * n]
        t = theta.copy()
        e = np.empty(n)
        g = np.empty(d)
        for _ in range(steps):
            for i in range(n):
                total = 0.0
                row = block[i]
                for j in range(d):
                    total += row[j] * t[j]
                e[i] = total
            g[:] = 0.0
            for i in range(n):
                row = block[i]
                factor = e[i]
                for j in range(d):
                    g[j] += factor * row[j]
            for j in range(d):
                t[j] -= 1e-9 * g[j]
        out[s] = t


@nb.njit(parallel=True, fastmath=True)
def products_feature_major(F, sites, theta, steps, out):  # type: ignore[no-untyped-def]
    """The same on feature-major data, the layout that the product uses: the strictest reference."""
    d, n = F.shape[1], F.shape[2]
    for s in nb.prange(sites):
        block = F[s]
        t = theta.copy()
        e = np.empty(n)
        for _ in range(steps):
            e[:] = 0.0
            for j in range(d):
                x = block[j]
                factor = t[j]
                for i in range(n):
                    e[i] += factor * x[i]
            for j in range(d):
                x = block[j]
                total = 0.0
                for i in range(n):
                    total += x[i] * e[i]
                t[j] -= 1e-9 * total
        out[s] = t


@nb.njit(parallel=True, fastmath=True)
def matrix_products(X, sites, theta, steps, out):  # type: ignore[no-untyped-def]
    """Two matrix products per step for several outputs (theta is d x classes)."""
    n = X.shape[0] // sites
    for s in nb.prange(sites):
        block = X[s * n : (s + 1) * n]
        t = theta.copy()
        for _ in range(steps):
            t -= 1e-9 * np.dot(block.T, np.dot(block, t))
        out[s] = t


def descent_job(model: str, m: int, n: int, d: int, classes: int = 1) -> tuple[FloatArray, Callable[[int], object]]:
    """Design matrix (with intercept) and a function that runs `steps` local steps of all sites, clipped and noised."""
    rng = np.random.default_rng(0)
    X = rng.standard_normal((m * n, d - 1)) / np.sqrt(d)
    y = {
        "logistic": lambda: rng.integers(0, 2, m * n),
        "poisson": lambda: rng.poisson(np.exp(0.5 + X @ rng.standard_normal(d - 1))),
        "multinomial": lambda: rng.integers(0, classes, m * n),
    }[model]()
    fed = fm.Federation.from_arrays(X, y, np.repeat(np.arange(m), n))
    glm, y = model_named(model).encode_target(fed)
    rows = fed.rows(y, np.zeros(d - 1), np.ones(d - 1), True)
    data = SiteData(glm, rows)
    theta = np.zeros((glm.outputs, d))
    bound = float(np.quantile(glm.score_norms(rows, theta), 0.9))
    ask = QueryInputs(theta, Clipping("consistent", bound), np.zeros_like(theta))
    noise = SeededNoise(fed.keys, 1, 0)
    everyone = np.arange(m)

    def run(steps: int) -> object:
        mus = np.full((steps, 1), 2.0 / np.sqrt(steps))
        return Descent(steps, 0.5).answer(data, everyone, ask, mus, noise)

    return rows.matrix(), run


def step_table(repeats: int) -> None:
    print("\nOne local step of all sites, clipping and noise included, over two matrix products on the same rows\n")
    print("| model | m, n, d | step, µs | / BLAS, rows | / compiled loops, rows | / compiled, feature-major |")
    print("|---|---|---|---|---|---|")
    for model, m, n, d, steps in (
        ("logistic", 100, 400, 10, 50),
        ("logistic", 100, 400, 50, 50),
        ("logistic", 80, 875, 785, 5),
        ("poisson", 100, 400, 50, 50),
    ):
        X, run = descent_job(model, m, n, d)
        F = np.ascontiguousarray(X.reshape(m, n, d).transpose(0, 2, 1))
        theta, out = np.full(d, 0.01), np.empty((m, d))
        times = minima(
            {
                "ours": lambda: run(steps),  # noqa: B023 (called before the loop moves on)
                "blas": lambda: products_by_blas(X, m, theta, steps, out),  # noqa: B023
                "rows": lambda: products_by_rows(X, m, theta, steps, out),  # noqa: B023
                "feature": lambda: products_feature_major(F, m, theta, steps, out),  # noqa: B023
            },
            repeats,
        )
        ratios = " | ".join(f"{times['ours'] / times[k]:.2f}" for k in ("blas", "rows", "feature"))
        print(f"| {model} | {m}, {n}, {d} | {1e6 * times['ours'] / steps:.0f} | {ratios} |", flush=True)
    m, n, d, classes, steps = 80, 875, 785, 10, 2
    X, run = descent_job("multinomial", m, n, d, classes)
    theta, out = np.full((d, classes), 0.01), np.empty((m, d, classes))
    times = minima(
        {"ours": lambda: run(steps), "blas": lambda: matrix_products(X, m, theta, steps, out)}, max(3, repeats // 3)
    )
    print(f"| multinomial, 10 classes | {m}, {n}, {d} | {1e6 * times['ours'] / steps:.0f} "
          f"| {times['ours'] / times['blas']:.2f} | | |")  # fmt: skip


def round_table(repeats: int) -> None:
    m, n, d = 10_000, 20, 20
    rng = np.random.default_rng(0)
    X = rng.standard_normal((m * n, d - 1))
    fed = fm.Federation.from_arrays(X, rng.integers(0, 2, m * n), np.repeat(np.arange(m), n))
    glm, y = model_named("logistic").encode_target(fed)
    data = SiteData(glm, fed.rows(y, np.zeros(d - 1), np.ones(d - 1), True))
    theta = np.full((1, d), 0.1)
    ask = QueryInputs(theta, Clipping("consistent", 2.0), np.zeros_like(theta))
    noise = SeededNoise(fed.keys, 1, 0)
    A, y = data.rows.matrix(), data.rows.y
    offsets = data.rows.offsets

    def numpy_loop() -> FloatArray:
        out = np.empty((m, d))
        generator = np.random.default_rng(1)
        for s in range(m):
            x, t = A[offsets[s] : offsets[s + 1]], y[offsets[s] : offsets[s + 1]]
            p = 1 / (1 + np.exp(-(x @ theta[0])))
            norms = np.sqrt(np.einsum("ij,ij->i", x, x))
            weight = np.minimum(1.0, 2.0 / (norms * np.maximum(p, 1 - p)))
            out[s] = (weight * (p - t)) @ x / len(t) + generator.normal(0.0, 4.0 / (0.5 * len(t)), d)
        return out

    everyone, mus = np.arange(m), np.full((1, 1), 0.5)
    times = minima({"ours": lambda: Gradient().answer(data, everyone, ask, mus, noise), "numpy": numpy_loop}, repeats)
    print(f"\nA FedSGD round, {m:,} sites of {n} rows, d={d}: ours {1e3 * times['ours']:.2f} ms, NumPy loop over sites "
          f"{1e3 * times['numpy']:.0f} ms, {times['numpy'] / times['ours']:.0f} times faster")  # fmt: skip


def threads_table(repeats: int) -> None:
    _, run = descent_job("logistic", 100, 400, 50)

    def with_threads(k: int) -> Callable[[], object]:
        def job() -> object:
            nb.set_num_threads(k)
            return run(50)

        return job

    times = minima({"1": with_threads(1), "2": with_threads(2)}, repeats)
    nb.set_num_threads(nb.config.NUMBA_NUM_THREADS)
    print(f"\nK=50 local steps, m=100, n=400, d=50: two threads {times['1'] / times['2']:.2f} times faster than one")


def growth_worker(m: int) -> None:
    """One whole private FedSGD fit on m sites of 20 rows; prints time and peak memory as JSON."""
    d, rng = 20, np.random.default_rng(0)
    X = rng.standard_normal((m * 20, d - 1))
    y = (rng.random(m * 20) < 1 / (1 + np.exp(-X[:, 0]))).astype(float)
    fm.fit(fm.Federation.from_arrays(X[:2000], y[:2000], np.arange(2000) // 20), "logistic", "fedsgd", scaling="none")
    start = time.perf_counter()
    fed = fm.Federation.from_arrays(X, y, np.repeat(np.arange(m), 20))
    packed = time.perf_counter()
    fm.fit(fed, "logistic", "fedsgd", mu=2.0, K=20, scaling="none", seed=1)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    print(json.dumps({"pack": packed - start, "fit": time.perf_counter() - packed, "peak": peak}))


def growth_table(largest: int) -> None:
    print("\nPrivate FedSGD (K=20, clip norm estimated privately), sites of 20 rows, d=20\n")
    print("| sites | packing, s | fit, s | peak memory, GB |\n|---|---|---|---|")
    sites = [m for m in (10**3, 10**4, 10**5, 10**6) if m <= largest]
    totals = []
    for m in sites:
        runs = [
            json.loads(subprocess.run([sys.executable, __file__, "--growth-worker", str(m)], check=True,
                                      capture_output=True, text=True).stdout)
            for _ in range(3 if m < 10**6 else 1)
        ]  # fmt: skip
        best = min(runs, key=lambda r: r["pack"] + r["fit"])
        totals.append(best["pack"] + best["fit"])
        print(f"| {m:,} | {best['pack']:.3f} | {best['fit']:.3f} | {best['peak']:.2f} |", flush=True)
    slopes = np.diff(np.log(totals)) / np.diff(np.log(sites))
    fitted = np.polyfit(np.log(sites), np.log(totals), 1)[0]
    print(f"\nfitted exponent of time {fitted:.3f}; between neighbours " + ", ".join(f"{s:.2f}" for s in slopes))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("table", nargs="?", choices=("step", "round", "threads", "growth", "all"), default="all")
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--largest", type=int, default=10**6, help="most sites in the growth table")
    parser.add_argument("--growth-worker", type=int, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.growth_worker:
        growth_worker(args.growth_worker)
        sys.exit()
    with threadpool_limits(1, user_api="blas"):
        if args.table in ("step", "all"):
            step_table(args.repeats)
        if args.table in ("round", "all"):
            round_table(args.repeats)
        if args.table in ("threads", "all"):
            threads_table(args.repeats)
    if args.table in ("growth", "all"):
        growth_table(args.largest)
