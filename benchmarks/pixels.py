"""Regressions on MNIST's pixels, the first fold of the study: what the ridge does, and what a fit costs.

    python benchmarks/pixels.py ridge    # odd or even, median AUC over sites
    python benchmarks/pixels.py fits     # seconds on one thread, rounds, floats per site; both models

FEDMEST_DATA names the folder that holds mnist/.
"""

import argparse
import time

import numba
import numpy as np
from threadpoolctl import threadpool_limits

import fedmest as fm
from fedmest.studies.definitions.pixels import PRIVATE, STUDIES

BASELINES = [(name, {}) for name in ("np-pooled", "np-local", "np-fedavg", "np-scaffold")]


def ridge_table() -> None:
    (study, _), (point,) = STUDIES, STUDIES[0].points
    held_out, federation = study.source._split(point, 0)
    columns = {
        "NP-Pooled": ("np-pooled", {}),
        "NP-LocalFit": ("np-local", {}),
        "FedNewton, paper's, mu = 2": ("fednewton", {"calibration": "paper", "mu": 2.0}),
        "FedNewton, paper's, mu = 6": ("fednewton", {"calibration": "paper", "mu": 6.0}),
        "FedNewton, certified, mu = 2": ("fednewton", {"mu": 2.0}),
    }
    print("| ridge | " + " | ".join(columns) + " |\n|" + "---|" * (1 + len(columns)))
    for ridge in (1e-4, 1e-3, 1e-2, 1e-1):
        cells = []
        for method, settings in columns.values():
            result = fm.fit(federation, "logistic", method, scaling="none", ridge=ridge, seed=1, **settings)
            cells.append(f"{np.median(study.source._scores(result, held_out)):.3f}")
        print(f"| {ridge:g} | " + " | ".join(cells) + " |", flush=True)


def fits_table() -> None:
    print("| model | method | calibration | seconds | rounds | floats per site | median score |")
    print("|---" * 7 + "|")
    for study in STUDIES:
        source, (point,) = study.source, study.points
        held_out, federation = source._split(point, 0)
        private = [(m, {"mu": 2.0, "calibration": c}) for c in ("paper", "certified") for m in PRIVATE]
        by_rows = [("fednewton", {"mu": 2.0, "curvature": "rows"})] if source.model == "logistic" else []
        for method, settings in (*BASELINES, *private, *by_rows):
            start = time.perf_counter()
            result = fm.fit(federation, source.model, method, scaling="none", ridge=source.ridge, seed=1, **settings)
            seconds = time.perf_counter() - start
            score = np.median(source._scores(result, held_out))
            up = result.communication.floats_up // point.m
            kind = "" if not settings else settings.get("calibration", "certified, curvature of the rows")
            print(f"| {source.model} | {method} | {kind} | {seconds:.1f} | {result.communication.rounds} | {up:,} | "
                  f"{score:.3f} |", flush=True)  # fmt: skip


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", choices=("ridge", "fits"))
    numba.set_num_threads(1)
    with threadpool_limits(1):
        ridge_table() if parser.parse_args().what == "ridge" else fits_table()
