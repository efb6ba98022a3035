"""Are predictions right, and is the plan's choice a good one? Simulated errors over a grid, beside what was predicted.

    python benchmarks/planning.py simulate [--out planning.jsonl] [--workers 2]   # resumes; about two core-hours
    python benchmarks/planning.py report [--out planning.jsonl]                   # prints the tables

The grid: logistic and Poisson; 20, 100, 1000 sites; 50, 300, 2000 rows per site; mu 0.5, 2, 6; d = 5. On every data set
run NP-Pooled, the methods at the certified defaults, the paper's four at their defaults under both calibrations, and
what `fm.plan` chooses from sizes, columns and mu alone. Repetitions: 60 up to 30,000 rows, 40 up to 300,000, 8 beyond.

Predictions assume the rows as they are drawn. The plan does not: it assumes features of unit spread and slopes of its
own, while Poisson features here have a spread of 0.5.
"""

import argparse
import json
import math
import os
from collections.abc import Iterator
from pathlib import Path

os.environ.setdefault("NUMBA_NUM_THREADS", "1")

import numpy as np
from joblib import Parallel, delayed

import fedmest as fm
from fedmest.inference.population import Population
from fedmest.models import model_named
from fedmest.models.simulate import TRUTH, simulate, usual_feature_sd
from fedmest.runs.settings import Settings
from fedmest.runs.spec import PublicFacts, RunSpec

Point = tuple[str, int, int, float]
GRID: list[Point] = [
    (model, m, n, mu)
    for n in (50, 300, 2000)
    for m in (20, 100, 1000)
    for mu in (0.5, 2.0, 6.0)
    for model in ("logistic", "poisson")
]
PAPER = ("fedsgd", "fedavg", "fedhybrid", "fednewton")
LABELS = ("np-pooled", *PAPER, "fedirls", *(f"{method} (paper)" for method in PAPER), "auto")


def repetitions(point: Point) -> int:
    rows = point[1] * point[2]
    return 60 if rows <= 30_000 else 40 if rows <= 300_000 else 8


def run(point: Point, label: str) -> dict[str, object]:
    """Squared errors of one estimator at one point of the grid."""
    model, m, n, mu = point
    method, settings = label, {}
    if label.endswith("(paper)"):
        method, settings = label.split()[0], {"calibration": "paper"}
    if label == "auto":
        best = fm.plan([n] * m, 4, model, mu, scaling="none").best
        method, settings = best.method, best.settings
    errors = []
    for r in range(repetitions(point)):
        fed = simulate(model, [n] * m, seed=[11, m, n, r])
        try:
            theta = fm.fit(fed, model, method, mu, scaling="none", seed=r, **settings).coef_matrix[0]
            errors.append(float(np.sum((theta - TRUTH) ** 2)))
        except (fm.InputError, fm.ConvergenceError):  # steps that run away
            errors.append(math.inf)
    return {"setting": point, "label": label, "errors": errors, "method": method, "settings": settings}


def stored(path: Path) -> Iterator[dict[str, object]]:
    if path.exists():
        yield from (json.loads(line) for line in path.read_text().splitlines())


def simulate_all(path: Path, workers: int) -> None:
    done = {(tuple(entry["setting"]), entry["label"]) for entry in stored(path)}  # type: ignore[arg-type]
    jobs = [(s, label) for s in sorted(GRID, key=lambda s: s[1] * s[2]) for label in LABELS if (s, label) not in done]
    with path.open("a") as file:
        for entry in Parallel(workers, return_as="generator_unordered")(delayed(run)(*job) for job in jobs):
            file.write(json.dumps(entry) + "\n")
            file.flush()


def predicted(point: Point, method: str) -> float:
    model, m, n, mu = point
    kind = model_named(model)
    population = Population(kind, 5, float(TRUTH[0]), float(np.linalg.norm(TRUTH[1:])), usual_feature_sd(model))
    facts = PublicFacts(
        np.array([str(i) for i in range(m)], dtype=object), np.full(m, n), ("a", "b", "c", "d"), "y", {}
    )
    return RunSpec.create(facts, kind, method, mu, Settings(scaling="none"), {}).predict(population).mse


def report(path: Path) -> None:
    found: dict[Point, dict[str, dict[str, object]]] = {}
    for entry in stored(path):
        found.setdefault(tuple(entry["setting"]), {})[str(entry["label"])] = entry  # type: ignore[arg-type]
    whole = {s: found[s] for s in GRID if s in found and len(found[s]) == len(LABELS)}
    print(f"{len(whole)} of {len(GRID)} settings. Simulated MSE, and predicted over simulated in brackets.\n")
    shown = (*PAPER, "fedirls")
    print("| model | m | n | mu | pooled | " + " | ".join(shown) + " | the plan's choice | over the best |")
    print("|---" * (7 + len(shown)) + "|")
    ratios, choices = {method: [] for method in shown}, []
    for point, entries in whole.items():
        mse = {label: float(np.mean(e["errors"])) for label, e in entries.items()}  # type: ignore[arg-type]
        cells = []
        for method in shown:
            ratio = predicted(point, method) / mse[method]
            ratios[method].append(ratio)
            cells.append(f"{mse[method]:.2e} ({ratio:.2f})" + ("" if 1 / 1.5 <= ratio <= 1.5 else " **miss**"))
        choices.append(mse["auto"] / min(mse[method] for method in shown))
        auto = entries["auto"]
        chosen = " ".join([str(auto["method"]), *(f"{k}={v}" for k, v in auto["settings"].items())])  # type: ignore[attr-defined]
        print(f"| {point[0]} | {point[1]} | {point[2]} | {point[3]:g} | {mse['np-pooled']:.2e} | "
              + " | ".join(cells) + f" | {chosen}: {mse['auto']:.2e} | {choices[-1]:.2f} |")  # fmt: skip
    four = np.concatenate([ratios[method] for method in PAPER])
    print(f"\nPredicted within a factor 1.5: {100 * within(four):.1f} % of {len(four)} (the paper's four methods)"
          + "".join(f", {method} {100 * within(np.array(ratios[method])):.0f} %" for method in shown))  # fmt: skip
    good = 100 * np.mean(np.array(choices) <= 1.2)
    print(f"The plan's choice within 1.2 times the best method at its defaults: {good:.1f} % of {len(choices)}; median "
          f"{np.median(choices):.2f}, largest {max(choices):.2f}\n")  # fmt: skip
    print("| estimator | geometric mean of MSE over that of auto |\n|---|---|")
    base = np.array([np.mean(e["auto"]["errors"]) for e in whole.values()])  # type: ignore[arg-type]
    for label in LABELS:
        others = np.array([np.mean(e[label]["errors"]) for e in whole.values()])  # type: ignore[arg-type]
        finite = np.isfinite(others)
        lost = f" (without {int((~finite).sum())} settings in which it ran away)" if not finite.all() else ""
        print(f"| {label} | {np.exp(np.mean(np.log(others[finite] / base[finite]))):.2f}{lost} |")


def within(ratio: np.ndarray) -> float:
    return float(np.mean((ratio >= 1 / 1.5) & (ratio <= 1.5)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("simulate", "report"))
    parser.add_argument("--out", type=Path, default=Path("planning.jsonl"))
    parser.add_argument("--workers", type=int, default=2)
    given = parser.parse_args()
    if given.what == "simulate":
        simulate_all(given.out, given.workers)
    else:
        report(given.out)


if __name__ == "__main__":
    main()
