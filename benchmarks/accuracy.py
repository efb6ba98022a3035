"""Accuracy of private fits, as ratios of mean squared error to the pooled fit without privacy on the same data.

    python benchmarks/accuracy.py main       # all methods, certified beside the paper's calibration
    python benchmarks/accuracy.py clipping   # the two clipping rules as sites are added
    python benchmarks/accuracy.py clip-norm  # the private clip norm against fixed public ones
    python benchmarks/accuracy.py auto       # what a plan chooses from public facts
    python benchmarks/accuracy.py            # all four

Every ratio comes with its standard error (ratio estimator over repetitions). Features are simulated with unit scale
(standard deviation 1 or 0.5), which is public in all tables but that of plans, so `scaling="none"` there; everything
else about the rows is estimated privately. Plans are run as a user would, with private scales, too.
"""

import argparse

import numpy as np

import fedmest as fm
from fedmest.core.typing import FloatArray
from fedmest.models.simulate import TRUTH, simulate

MODELS = ("logistic", "poisson")
NOISES = 2


def errors(
    model: str, method: str, sizes: list[int], reps: int, scaling: str = "none", **settings: object
) -> FloatArray:
    """Squared error summed over coefficients, one value per repetition; the data of a repetition are always the same.

    Private fits are run NOISES times on the same data and averaged: their noise is one source of chance, the rows
    another, and only the rows are shared with the pooled fit.
    """
    out = np.zeros(reps)
    seeds = range(NOISES) if fm.METHODS[method].private else range(1)
    for r in range(reps):
        fed = simulate(model, sizes, [len(sizes), sizes[0], r])
        for k in seeds:
            result = fm.fit(fed, model, method, seed=1000 * r + k, scaling=scaling, **settings)  # type: ignore[arg-type]
            out[r] += np.sum((result.coef_matrix[0] - TRUTH) ** 2) / len(seeds)
    return out


def ratio(error: FloatArray, base: FloatArray) -> tuple[float, float]:
    """mean(error) / mean(base) and its standard error."""
    value = error.mean() / base.mean()
    return value, float(np.std(error - value * base, ddof=1) / np.sqrt(len(base)) / base.mean())


def main_table(reps: int) -> None:
    print(f"\nMSE over the pooled fit's MSE; m=100, n=400, d=5, mu=2, clip_norm=private, {reps} repetitions\n")
    print("| model | method | certified | paper calibration |\n|---|---|---|---|")
    sizes = [400] * 100
    for model in MODELS:
        base = errors(model, "np-pooled", sizes, reps)
        print(f"| {model} | np-pooled | MSE {base.mean():.3e} | |", flush=True)
        for method in ("fednewton", "fedirls", "fedhybrid", "fedsgd", "fedavg", "scaffold"):
            cells = []
            for calibration in ("certified", "paper"):
                if calibration == "paper" and not fm.METHODS[method].in_paper:
                    cells.append("")
                    continue
                value, se = ratio(errors(model, method, sizes, reps, mu=2.0, calibration=calibration), base)
                cells.append(f"{value:.3f} ± {se:.3f}")
            print(f"| {model} | {method} | {' | '.join(cells)} |", flush=True)


def auto_table(reps: int) -> None:
    print(f"\nPlans, MSE over the pooled fit's MSE; m=100, n=400, d=5, mu=2, nothing else set, {reps} repetitions\n")
    print("| model | the plan's choice | predicted | simulated |\n|---|---|---|---|")
    sizes = [400] * 100
    for model in MODELS:
        base = errors(model, "np-pooled", sizes, reps)
        plan = fm.plan(sizes, 4, model, 2.0)
        best = plan.best
        settings = {"mu": 2.0, "scaling": "auto", **best.settings}
        value, se = ratio(errors(model, best.method, sizes, reps, **settings), base)  # type: ignore[arg-type]
        choice = " ".join([best.method, *(f"{name}={value}" for name, value in best.settings.items())])
        expected = best.prediction.mse / plan.pooled
        print(f"| {model} | {choice} | {expected:.3f} | {value:.3f} ± {se:.3f} |", flush=True)


def clipping_table(reps: int) -> None:
    print(f"\nN * MSE of certified FedNewton (mu=2, n=400) as sites are added, {reps} repetitions; flat means 1/N\n")
    print("| model | clip_rule | m=50 | m=200 | m=800 |\n|---|---|---|---|---|")
    for model in MODELS:
        for label, method, settings in (
            ("(pooled, not private)", "np-pooled", {}),
            ("consistent", "fednewton", {"clip_rule": "consistent"}),
            ("norm", "fednewton", {"clip_rule": "norm"}),
        ):
            cells = []
            for m in (50, 200, 800):
                scaled = m * 400 * errors(model, method, [400] * m, reps, **settings)
                cells.append(f"{scaled.mean():.1f} ± {scaled.std(ddof=1) / np.sqrt(reps):.1f}")
            print(f"| {model} | {label} | {' | '.join(cells)} |", flush=True)


def clip_norm_table(reps: int) -> None:
    print(f"\nPrivate clip norm against fixed ones, MSE over pooled MSE; m=100, n=400, mu=2, {reps} repetitions\n")
    print("| model | method | clip_norm | ratio | over the best fixed one |\n|---|---|---|---|---|")
    grids = {"logistic": (1.0, 1.4, 1.7, 2.0, 2.5), "poisson": (2.0, 2.5, 3.0, 3.5, 4.5)}
    sizes = [400] * 100
    for model in MODELS:
        base = errors(model, "np-pooled", sizes, reps)
        for method in ("fednewton", "fedhybrid"):
            fixed = {b: errors(model, method, sizes, reps, clip_norm=b) for b in grids[model]}
            best = min(fixed.values(), key=lambda e: float(e.mean()))
            for label, error in {**fixed, "private": errors(model, method, sizes, reps)}.items():
                (value, se), (over, over_se) = ratio(error, base), ratio(error, best)
                print(f"| {model} | {method} | {label} | {value:.3f} ± {se:.3f} | {over:.3f} ± {over_se:.3f} |",
                      flush=True)  # fmt: skip


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("table", nargs="?", choices=("main", "auto", "clipping", "clip-norm", "all"), default="all")
    parser.add_argument("--reps", type=int, help="repetitions (default 100; 400 for plans, 40 for clipping)")
    args = parser.parse_args()
    if args.table in ("main", "all"):
        main_table(args.reps or 100)
    if args.table in ("auto", "all"):
        auto_table(args.reps or 400)
    if args.table in ("clipping", "all"):
        clipping_table(args.reps or 40)
    if args.table in ("clip-norm", "all"):
        clip_norm_table(args.reps or 100)
