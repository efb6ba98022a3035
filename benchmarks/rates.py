"""Do simulated errors follow the paper's rates? Slopes of log MSE beside those of its bounds over the same points.

    NUMBA_NUM_THREADS=1 nice -n 5 python benchmarks/rates.py              # all sweeps
    NUMBA_NUM_THREADS=1 nice -n 5 python benchmarks/rates.py --reps 8     # a quick look

Logistic model of the studies (d = 5), certified calibration, `scaling="none"`. Each sweep varies one quantity where one
source of error should rule: sampling (mu = 100), or privacy: mu of a few hundredths and sites of thousands of rows, so
that noise is most of the error and yet a site's own noise does not drown what it fits.

Bounds are those of `fedmest.inference.rates`, with constants from the model as far as they can be had:
- Sigma = H (logistic), H the expected Hessian at the truth, tau1 its least eigenvalue, from 400,000 drawn rows;
- tau2 = 1 / (2 eta), the least for which the theorem on FedSGD allows our eta;
- B: the 0.97 quantile of score norms at zero, about what fits estimate privately. They are given it as a public
  clip norm, since the histogram for it often fails with so small a mu; it does not grow with N as the theorems' B does.
  C_B = 2 B / sqrt(L): noise is proportional to 2 B, whose 2 the theorems lose. FedNewton has 4 sqrt(2) B / tau1 for B;
- FedAvg's C: bias and sampling error stand in the bound as they do in truth without privacy, that is, as the squared
  first-order bias of a local fit (Cox and Snell 1968) and trace(H^-1) / N;
- all others are one. FedIRLS, which the paper does not have, stands beside FedNewton's bound.
The lower bound has C1 = d / trace(H^-1), with which it is the efficient fit's error without privacy, and C2 = 1. The
slope given for it is that of the term which stands for the sweep's error.

Standard errors come from a bootstrap over repetitions. A slope fits if it is within two standard errors and 0.1 of its
bound's; the 0.1 is for logarithms, and for the error that should not rule and still is there.
"""

import argparse
import math
import time
from dataclasses import dataclass, replace

import numpy as np

import fedmest as fm
from fedmest.core.typing import FloatArray
from fedmest.inference import rates
from fedmest.models.simulate import TRUTH, simulate

ETA = 1.0
OPTIONS: dict[str, dict[str, float]] = {  # steps enough that what is left of the way does not show: (1 - eta tau1)^80
    "fedsgd": {"K": 40, "eta": ETA},
    "fedhybrid": {"K1": 20, "K2": 20, "eta": ETA},
    "fedavg": {"K": 30, "R": 2, "eta": ETA},
    "fednewton": {"eta": ETA},
    "fedirls": {},
}
NEWTON_STEPS = 15  # what FedNewton takes at this eta: three time constants
ROOM = 0.1
REPS = {"sampling": 40, "privacy": 60}
DRAWS = 2000  # of the bootstrap

Point = tuple[int, int, float]  # sites, rows of each, mu


@dataclass(frozen=True)
class Sweep:
    error: str
    varies: str
    points: tuple[Point, ...]

    @property
    def x(self) -> FloatArray:
        number = {"n": 1, "m": 0, "μ": 2}[self.varies[0]]
        return np.log([point[number] for point in self.points])


SWEEPS = (
    Sweep("sampling", "n; m = 20", tuple((20, n, 100.0) for n in (100, 300, 900, 2700))),
    Sweep("sampling", "m; n = 50", tuple((m, 50, 100.0) for m in (160, 480, 1440))),
    Sweep("sampling", "m; N = 20,000", tuple((m, 20_000 // m, 100.0) for m in (25, 50, 100, 200, 400))),
    Sweep("sampling", "μ; m = 20, n = 400", tuple((20, 400, mu) for mu in (25.0, 50.0, 100.0, 200.0))),
    Sweep("privacy", "n; m = 8", tuple((8, n, 0.025) for n in (8000, 16_000, 32_000))),
    Sweep("privacy", "m; n = 16,000", tuple((m, 16_000, 0.02) for m in (2, 4, 8, 16))),
    Sweep("privacy", "m; N = 128,000", tuple((m, 128_000 // m, 0.02) for m in (2, 4, 8, 16))),
    Sweep("privacy", "μ; m = 8, n = 16,000", tuple((8, 16_000, mu) for mu in (0.0125, 0.02, 0.03))),
)


def errors(sweep: Sweep, reps: int, clip_norm: float) -> dict[str, FloatArray]:
    """Squared error summed over coefficients: repetitions by points; all methods see the same rows."""
    out = {method: np.zeros((reps, len(sweep.points))) for method in OPTIONS}
    for r in range(reps):
        for k, (m, n, mu) in enumerate(sweep.points):
            fed = simulate("logistic", [n] * m, [m, n, r])
            for method, options in OPTIONS.items():
                result = fm.fit(fed, "logistic", method, mu, clip_norm=clip_norm, scaling="none", seed=r, **options)  # type: ignore[arg-type]
                out[method][r, k] = np.sum((result.coef_matrix[0] - TRUTH) ** 2)
    return out


@dataclass(frozen=True)
class Facts:
    """What the model itself says about the constants."""

    trace: float  # of H, which is Sigma
    inverse_trace: float
    tau1: float
    B: float
    bias: float  # n times the norm of a local fit's first-order bias

    @staticmethod
    def draw(rows: int = 400_000) -> "Facts":
        X = np.column_stack([np.ones(rows), np.random.default_rng(0).standard_normal((rows, len(TRUTH) - 1))])
        p = 1 / (1 + np.exp(-X @ TRUTH))
        w = p * (1 - p)
        H = (X * w[:, None]).T @ X / rows
        inverse = np.linalg.inv(H)
        leverage = np.einsum("ij,jk,ik->i", X, inverse, X)
        bias = inverse @ (X.T @ (w * leverage * (p - 0.5))) / rows
        norms = np.linalg.norm(X, axis=1) / 2
        return Facts(
            float(np.trace(H)), float(np.trace(inverse)), float(np.linalg.eigvalsh(H)[0]),
            float(np.quantile(norms, 0.97)), float(np.linalg.norm(bias)),
        )  # fmt: skip

    def upper(self, method: str, point: Point) -> float:
        (m, n, mu), d = point, len(TRUTH)
        sizes, C_B = [n] * m, 2 * self.B / math.sqrt(max(d, math.log(m * n)))
        c = rates.Constants(self.tau1, 1 / (2 * ETA), self.trace / d, C_B)
        if method == "fedsgd":
            return rates.fedsgd(sizes, d, mu, c)
        if method == "fedhybrid":
            return rates.fedhybrid(sizes, d, mu, c)
        if method == "fedavg":
            slack = 16 * self.trace / self.tau1**2 / self.inverse_trace
            c = replace(c, C=slack * (self.bias / self.trace) ** 2)
            return rates.fedavg(sizes, d, mu, OPTIONS[method]["K"], int(OPTIONS[method]["R"]), c)
        return rates.fednewton(sizes, d, mu, replace(c, C_B=4 * math.sqrt(2) / self.tau1 * C_B))


def slope(x: FloatArray, values: FloatArray) -> FloatArray:
    """Of log values on x by least squares, along the last axis."""
    centred = x - x.mean()
    return np.log(values) @ centred / (centred @ centred)


def report(sweep: Sweep, reps: int, facts: Facts, rng: np.random.Generator) -> None:
    d, C1 = len(TRUTH), len(TRUTH) / facts.inverse_trace
    lower = np.array([rates.lower_bound([n] * m, d, mu, C1) for m, n, mu in sweep.points])
    C1, C2 = (C1, 1e9) if sweep.error == "sampling" else (1e9, 1.0)  # so that the other term is never the smaller
    term = np.array([rates.lower_bound([n] * m, d, mu, C1, C2) for m, n, mu in sweep.points])
    draws = rng.integers(reps, size=(DRAWS, reps))
    for method, error in errors(sweep, reps, facts.B).items():
        mse, resampled = error.mean(axis=0), error[draws].mean(axis=1)
        found, se = float(slope(sweep.x, mse)), float(slope(sweep.x, resampled).std())
        expected = float(slope(sweep.x, np.array([facts.upper(method, point) for point in sweep.points])))
        ratios = mse / lower
        least = int(np.argmin(ratios))
        ratio, ratio_se = ratios[least], float(resampled[:, least].std() / lower[least])
        off = found - expected
        verdict = "fits" if abs(off) <= 2 * se + ROOM else f"does not fit: off by {off:+.2f}"
        if method == "fednewton":
            beyond = [m for m, n, mu in sweep.points if m > rates.fednewton_most_sites([n] * m, d, mu, NEWTON_STEPS)]
            verdict += f" (theorem silent at m = {', '.join(map(str, beyond))})" if beyond else ""
        verdict += "" if ratio + 2 * ratio_se >= 1 else "; BELOW the lower bound"
        print(
            f"| {sweep.error} | {sweep.varies} | {method} | {mse[0]:.1e} to {mse[-1]:.1e} | {found:+.2f} ± {se:.2f} "
            f"| {expected:+.2f} | {float(slope(sweep.x, term)):+.2f} | {ratio:.3g} ± {ratio_se:.2g} | {verdict} |",
            flush=True,
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--reps", type=int, help="repetitions (default: 40 for sampling, 60 for privacy)")
    args = parser.parse_args()
    began = time.perf_counter(), time.process_time()
    facts = Facts.draw()
    print(
        f"tau1 {facts.tau1:.3f}, trace(Sigma) {facts.trace:.3f}, trace(H^-1) {facts.inverse_trace:.1f}, "
        f"B {facts.B:.2f}, n |bias| of a local fit {facts.bias:.2f}\n"
    )
    print("| error | varies | method | MSE, first to last point | slope | bound's slope | lower bound's slope "
          "| least MSE / lower bound | verdict |\n|---|---|---|---|---|---|---|---|---|")  # fmt: skip
    rng = np.random.default_rng(1)
    for sweep in SWEEPS:
        report(sweep, args.reps or REPS[sweep.error], facts, rng)
    wall, core = (time.perf_counter() - began[0]) / 60, (time.process_time() - began[1]) / 60
    print(f"\n{wall:.1f} minutes, {core:.1f} of a core")


if __name__ == "__main__":
    main()
