"""The studies' speed as a ratio within one run, and what one choice that the paper leaves open does to its FedNewton.

    python benchmarks/studies.py cell    # cells of studies against the same cells in plain NumPy, site by site
    python benchmarks/studies.py tau1    # the paper's FedNewton by what it assumes of the Hessian

The NumPy version is what the paper's pages lead to: a list of sites and a Python loop over them, no loop over rows. It
takes the shortcuts that a careful author would find: the bound B is read once for all methods; a row's gradient is its
residual times x, so clipping cuts residuals at B/|x|, and no per-row gradients are formed (a step that forms them takes
two to four times as long). Rows are the same, draw for draw; noise, and the halves of FedNewton, each draws by itself.
"""

import argparse
import math
import time
from collections.abc import Callable
from dataclasses import replace
from unittest.mock import patch

import numpy as np
from scipy.special import expit
from threadpoolctl import threadpool_limits

import fedmest as fm
from fedmest.core.typing import FloatArray
from fedmest.data.packing import Rows
from fedmest.models.simulate import TRUTH, simulate
from fedmest.privacy.noise import Keys
from fedmest.studies import cells
from fedmest.studies.base import PAPER_METHODS, POOLED
from fedmest.studies.cells import Cell, Estimator, Point, Sizes
from fedmest.studies.sources.simulated import Simulated

# -- the paper's methods in plain NumPy ---------------------------------------------------------------------------

Mean = Callable[[FloatArray], FloatArray]
Site = tuple[FloatArray, FloatArray]  # design matrix with its column of ones, responses
Clipped = tuple[FloatArray, FloatArray, FloatArray]  # the same, and the largest residual of each row

MEANS: dict[str, Mean] = {"logistic": expit, "poisson": np.exp}
VARIANCES: dict[str, Mean] = {"logistic": lambda p: p * (1 - p), "poisson": lambda mean: mean}
ETA, TAU1 = 0.5, 0.2
TAUS = (0.2, 0.5, 1.0, 2.0)


def simulated_sites(cell: Cell, repetition: int) -> list[Site]:
    """The rows that `cells.run` draws for a repetition, split by site."""
    source, point = cell.source, cell.point
    seed = cells.study_seed(source, replace(point, mu=0.0, K=None))
    sizes = point.sizes.draw(point.m, np.random.default_rng([seed, repetition, 0]))
    rng = np.random.default_rng([seed, repetition, 1])
    theta = np.array(source.theta)
    total = int(sizes.sum())
    X = np.column_stack([np.ones(total), source.feature_sd * rng.standard_normal((total, len(theta) - 1))])
    mean = MEANS[source.model](X @ theta)
    y = (rng.random(total) < mean).astype(float) if source.model == "logistic" else rng.poisson(mean).astype(float)
    ends = np.cumsum(sizes)[:-1]
    return list(zip(np.split(X, ends), np.split(y, ends), strict=True))


def paper_bound(mean: Mean, sites: list[Site]) -> float:
    """The largest over sites of the 90 % quantile of row gradient norms at zero."""
    at_zero = mean(np.zeros(1))
    return float(max(np.quantile(np.abs(at_zero - y) * np.linalg.norm(X, axis=1), 0.9) for X, y in sites))


def clipped(sites: list[Site], bound: float) -> list[Clipped]:
    return [(X, y, bound / np.linalg.norm(X, axis=1)) for X, y in sites]


def gradient(mean: Mean, site: Clipped, theta: FloatArray) -> FloatArray:
    X, y, limit = site
    return np.clip(mean(X @ theta) - y, -limit, limit) @ X / len(y)


def server_descent(
    mean: Mean,
    sites: list[Clipped],
    weights: FloatArray,
    theta: FloatArray,
    steps: int,
    sds: FloatArray,
    rng: np.random.Generator,
) -> FloatArray:
    """Each step: every site sends its noisy gradient, the server moves along their average."""
    for _ in range(steps):
        total = np.zeros_like(theta)
        for site, weight, sd in zip(sites, weights, sds, strict=True):
            total += weight * (gradient(mean, site, theta) + sd * rng.standard_normal(len(theta)))
        theta = theta - ETA * total
    return theta


def local_descent(
    mean: Mean,
    sites: list[Clipped],
    weights: FloatArray,
    theta: FloatArray,
    steps: int,
    sds: FloatArray,
    rng: np.random.Generator,
) -> FloatArray:
    """Every site takes its noisy steps from the common theta, the server averages where they end."""
    average = np.zeros_like(theta)
    for site, weight, sd in zip(sites, weights, sds, strict=True):
        own = theta
        for _ in range(steps):
            own = own - ETA * gradient(mean, site, own) + sd * rng.standard_normal(len(theta))
        average += weight * own
    return average


def newton_round(
    mean: Mean,
    variance: Mean,
    halves: tuple[list[Clipped], list[Clipped]],
    weights: FloatArray,
    theta: FloatArray,
    sds: FloatArray,
    rng: np.random.Generator,
) -> FloatArray:
    """theta - H(X1)^-1 g(X2) with noise on the quotient, averaged."""
    average = np.zeros_like(theta)
    for first, second, weight, sd in zip(*halves, weights, sds, strict=True):
        X = first[0]
        hessian = (variance(mean(X @ theta))[:, None] * X).T @ X / len(X)
        step = np.linalg.solve(hessian, gradient(mean, second, theta))
        average += weight * (theta - step + sd * rng.standard_normal(len(theta)))
    return average


def pooled(mean: Mean, variance: Mean, sites: list[Site]) -> FloatArray:
    """The maximum-likelihood estimate over all rows by Newton's method."""
    X, y = np.concatenate([X for X, _ in sites]), np.concatenate([y for _, y in sites])
    theta = np.zeros(X.shape[1])
    for _ in range(100):
        fitted = mean(X @ theta)
        step = np.linalg.solve((variance(fitted)[:, None] * X).T @ X, X.T @ (fitted - y))
        theta = theta - step
        if np.abs(step).max() < 1e-10:
            return theta
    raise RuntimeError("the pooled fit did not converge")


def split(sites: list[Site], rng: np.random.Generator) -> tuple[list[Site], list[Site]]:
    """Each site's rows in two random halves."""
    orders = [rng.permutation(len(y)) for _, y in sites]
    first = [(X[k[: (len(k) + 1) // 2]], y[k[: (len(k) + 1) // 2]]) for (X, y), k in zip(sites, orders, strict=True)]
    second = [(X[k[(len(k) + 1) // 2 :]], y[k[(len(k) + 1) // 2 :]]) for (X, y), k in zip(sites, orders, strict=True)]
    return first, second


def estimates(
    model: str, sites: list[Site], mu: float, rng: np.random.Generator,
    halves: tuple[list[Site], list[Site]] | None = None,
) -> dict[str, FloatArray]:  # fmt: skip
    """Theta by each of the paper's methods under its own calibration, and the pooled fit."""
    mean, variance = MEANS[model], VARIANCES[model]
    n = np.array([len(y) for _, y in sites], dtype=float)
    weights = n / n.sum()
    B = paper_bound(mean, sites)
    zero = np.zeros(sites[0][0].shape[1])
    rows = clipped(sites, B)
    unit = 2 * B / (mu * n)

    sgd = server_descent(mean, rows, weights, zero, 50, unit * math.sqrt(50), rng)

    hybrid = local_descent(mean, rows, weights, zero, 30, unit * ETA * math.sqrt(2 * 30), rng)
    hybrid = server_descent(mean, rows, weights, hybrid, 20, unit * math.sqrt(2 * 20), rng)

    avg = zero
    for _ in range(2):
        avg = local_descent(mean, rows, weights, avg, 50, unit * ETA * math.sqrt(2 * 50), rng)

    one, two = halves or split(sites, rng)
    parts = clipped(one, B), clipped(two, B)
    newton = local_descent(mean, parts[0], weights, zero, 50, 2 * unit * ETA * math.sqrt(2 * 50), rng)
    newton = newton_round(mean, variance, parts, weights, newton, unit * 4 * math.sqrt(2) / TAU1, rng)

    return {
        "np-pooled": pooled(mean, variance, sites), "fedsgd": sgd, "fedhybrid": hybrid, "fedavg": avg,
        "fednewton": newton,
    }  # fmt: skip


# -- the two side by side -----------------------------------------------------------------------------------------

ESTIMATORS = (POOLED, *(Estimator(method, "paper") for method in PAPER_METHODS))
METHODS = tuple(estimator.method for estimator in ESTIMATORS)
CELLS = tuple(
    (study, Simulated.create(model), Point(m, Sizes("equal", n)))
    for study, m, n in (("equal", 60, 30), ("compare", 100, 400))
    for model in ("logistic", "poisson")
)
QUIET = 1e12  # a budget so large that what noise it leaves is rounding; infinity would turn clipping off as well
AGREE = 1e-6

Thetas = dict[str, FloatArray]  # of each method, (repetitions, d)


def by_product(cell: Cell) -> Thetas:
    rows = cells.run(cell)
    failures = [f"{row.estimator}: {row.failure}" for row in rows if row.failure]
    if failures:
        raise RuntimeError(f"fits broke down: {failures}")
    return {e.method: np.array([row.detail for row in rows if row.estimator == e.label]) for e in cell.estimators}


def by_numpy(cell: Cell) -> Thetas:
    fits = []
    for r in range(cell.first, cell.last):
        sites = simulated_sites(cell, r)
        fits.append(estimates(cell.source.model, sites, cell.point.mu, np.random.default_rng([cell.point.m, r])))
    return {method: np.array([fit[method] for fit in fits]) for method in METHODS}


def difference_without_noise(cell: Cell) -> dict[str, float]:
    """Largest difference of a coefficient between the two in one repetition, without noise and with the same halves."""
    quiet = replace(cell, point=replace(cell.point, mu=QUIET), last=cell.first + 1)
    seen: list[tuple[Rows, Rows]] = []
    halves = Rows.halves

    def noted(rows: Rows, seed: int, keys: Keys) -> tuple[Rows, Rows]:
        seen.append(halves(rows, seed, keys))
        return seen[-1]

    with patch.object(Rows, "halves", noted):
        ours = by_product(quiet)
    (parts,) = seen
    first, second = (
        list(zip(np.split(p.matrix(), p.offsets[1:-1]), np.split(p.y, p.offsets[1:-1]), strict=True)) for p in parts
    )
    theirs = estimates(
        cell.source.model, simulated_sites(quiet, quiet.first), QUIET, np.random.default_rng(0), (first, second)
    )
    return {method: float(np.abs(ours[method][0] - theirs[method]).max()) for method in METHODS}


def timed(run: Callable[[Cell], Thetas], cell: Cell) -> tuple[float, Thetas]:
    start = time.perf_counter()
    thetas = run(cell)
    return time.perf_counter() - start, thetas


def z_score(gap: FloatArray) -> float:
    """Mean over standard error."""
    return float(gap.mean()) * math.sqrt(len(gap)) / float(gap.std(ddof=1))


def agreement_row(source: Simulated, ours: FloatArray, theirs: FloatArray, gap: float) -> str:
    """The errors of both; rows are shared, so the comparison is repetition by repetition."""
    a, b = (np.sum((theta - source.theta) ** 2, axis=1) for theta in (ours, theirs))
    same = np.allclose(ours, theirs, rtol=0, atol=1e-8)
    z = "the same | " if same else f"{z_score(a - b):+.1f} | {z_score(np.log(a / b)):+.1f}"
    return f"{a.mean():.3e} | {b.mean():.3e} | {z} | {gap:.0e} |"


def cell_tables(rounds: int, reps: int) -> None:
    """Every round computes new repetitions, by both, in turns; ratios are per round, MSEs over all rounds."""
    print(f"""
The paper's four methods under its calibration and the pooled fit, d = 5: NumPy's time over the product's, one thread
each, compiled and warmed up before; median and range of {rounds} rounds of {reps} repetitions

| study | model | m, n | product, ms per repetition | NumPy, ms per repetition | ratio | range |
|---|---|---|---|---|---|---|""")
    agreement = []
    contenders = (("product", by_product), ("numpy", by_numpy))
    for study, source, point in CELLS:
        label = f"{study} | {source.model} | {point.m}, {point.sizes.label}"
        cell = Cell(f"{source.model}-{study}", source, point, ESTIMATORS, 0, reps)
        gaps = difference_without_noise(cell)
        if max(gaps.values()) > AGREE:
            raise SystemExit(f"{label}: the two do not compute the same, so their times say nothing: {gaps}")
        for _, run in contenders:
            run(replace(cell, last=1))
        times: dict[str, list[float]] = {"product": [], "numpy": []}
        thetas: dict[str, list[Thetas]] = {"product": [], "numpy": []}
        for k in range(rounds):
            for name, run in contenders if k % 2 == 0 else contenders[::-1]:
                seconds, fits = timed(run, replace(cell, first=k * reps, last=(k + 1) * reps))
                times[name].append(1e3 * seconds / reps)
                thetas[name].append(fits)
        ratios = np.array(times["numpy"]) / np.array(times["product"])
        print(f"| {label} | {np.median(times['product']):.1f} | {np.median(times['numpy']):.1f} "
              f"| {np.median(ratios):.1f} | {ratios.min():.1f} to {ratios.max():.1f} |", flush=True)  # fmt: skip
        for method in METHODS:
            ours, theirs = (np.concatenate([fit[method] for fit in thetas[name]]) for name, _ in contenders)
            agreement.append(f"| {label} | {method} | {agreement_row(source, ours, theirs, gaps[method])}")
    print(f"""
Whether they compute the same: squared errors over {rounds * reps} repetitions, z of the difference of their means and
of their mean logarithms (less swayed by outliers); last, the largest difference of a coefficient with noise removed
(mu = {QUIET:g})

| study | model | m, n | method | product, MSE | NumPy, MSE | z | z, logarithms | without noise |
|---|---|---|---|---|---|---|---|---|""")
    print("\n".join(agreement))


# -- tau_1 --------------------------------------------------------------------------------------------------------


def tau1_table(reps: int) -> None:
    """The noise of the paper's Newton step is proportional to 1 / tau_1, for which it gives no value."""
    print(f"""
MSE over the pooled fit's under the paper's calibration, 100 sites of 400 rows, mu = 2, {reps} repetitions. The step's
noise assumes that every Hessian has eigenvalues of at least tau_1; the third column has the smallest eigenvalue of the
expected Hessian at the truth, above which the assumption is wrong even on average

| model | tau_1 | smallest eigenvalue | FedNewton | FedAvg |
|---|---|---|---|---|""")
    for model in ("logistic", "poisson"):
        errors: dict[str, list[float]] = {}
        smallest = []
        for r in range(reps):
            rows = simulate(model, [400] * 100, [400, r])
            X = rows.design()
            weight = VARIANCES[model](MEANS[model](X @ TRUTH))
            smallest.append(np.linalg.eigvalsh((X * weight[:, None]).T @ X / len(X))[0])
            runs = {"pooled": ("np-pooled", {}), "fedavg": ("fedavg", {"calibration": "paper"})}
            runs |= {f"{t:g}": ("fednewton", {"calibration": "paper", "tau1": t}) for t in TAUS}
            for name, (method, settings) in runs.items():
                theta = fm.fit(rows, model, method, scaling="none", seed=r, **settings).coef_matrix[0]
                errors.setdefault(name, []).append(float(np.sum((theta - TRUTH) ** 2)))
        base = np.mean(errors["pooled"])
        for t in TAUS:
            ratios = [f"{np.mean(errors[name]) / base:.1f}" for name in (f"{t:g}", "fedavg")]
            print(f"| {model} | {t:g} | {np.mean(smallest):.2f} | {ratios[0]} | {ratios[1]} |", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("table", nargs="?", choices=("cell", "tau1", "all"), default="all")
    parser.add_argument("--rounds", type=int, default=5, help="rounds of each cell")
    parser.add_argument("--reps", type=int, default=10, help="repetitions of a cell in a round")
    args = parser.parse_args()
    if args.table in ("cell", "all"):
        with threadpool_limits(1):
            cell_tables(args.rounds, args.reps)
    if args.table in ("tau1", "all"):
        tau1_table(args.rounds * args.reps)
