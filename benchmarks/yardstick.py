"""Private fits beside the fit over all rows: what the processes of `benchmarks/real.py` import."""

import hashlib
import json
import time
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from scipy.special import expit, softmax

import fedmest as fm
from problems import problem

BOUNDS = 1 - np.append(np.geomspace(0.9, 1e-4, 80), 0)  # quantiles of scores
KEPT = 0.5  # of their mean square, at least: the Newton step of scores cut shorter is short for want of curvature
remembered = lru_cache(maxsize=4)  # runs come problem by problem


@dataclass(frozen=True)
class Pooled:
    """The fit over all rows: coefficients (classes as differences to the first), standard errors, and scores."""

    estimate: np.ndarray
    model_se: np.ndarray
    hc0_se: np.ndarray
    contrasts: np.ndarray  # from the coefficients of a result to these
    root: np.ndarray  # H^-1/2 in original units, H a row's mean curvature: from white scores to coefficients
    white: np.ndarray  # scores of the rows in this metric
    sizes: np.ndarray

    def se(self, model: str) -> np.ndarray:
        return self.hc0_se if model == "poisson" else self.model_se

    def limit(self, mu: float, se: np.ndarray) -> float:
        """rmsz of one score, clipped at the best bound, averaged over sites by size."""
        lengths = np.linalg.norm(self.white, axis=1)
        noise = 2 / mu * np.sqrt(len(self.sizes)) / self.sizes.sum()  # sd per unit of bound
        found = []
        for bound in np.quantile(lengths, BOUNDS):
            factors = np.minimum(1, bound / lengths)
            if np.mean(factors * lengths**2) < KEPT * np.mean(lengths**2):
                continue
            bias = np.mean(factors[:, None] * self.white, axis=0)
            errors = (bound * noise) ** 2 * np.sum(self.root**2, axis=1) + (self.root @ bias) ** 2
            found.append(np.mean(errors / se**2))
        return float(np.sqrt(min(found)))


def scores(model: str, X: np.ndarray, y: np.ndarray, theta: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Scores of the rows, and the sum of their curvatures, at theta (predictors, d)."""
    eta = X @ theta.T
    if model == "multinomial":
        p = softmax(np.column_stack([np.zeros(len(X)), eta]), axis=1)[:, 1:]
        residuals = p - (y[:, None] == np.arange(1, p.shape[1] + 1))
        weights = np.einsum("ia,ab->iab", p, np.eye(p.shape[1])) - np.einsum("ia,ib->iab", p, p)
    else:
        mean, weight = {
            "linear": lambda e: (e, np.ones_like(e)),
            "logistic": lambda e: (expit(e), expit(e) * expit(-e)),
            "poisson": lambda e: (np.exp(e), np.exp(e)),
        }[model](eta[:, 0])
        residuals, weights = (mean - y)[:, None], weight[:, None, None]
        if model == "linear":
            variance = np.sum(residuals**2) / (len(X) - X.shape[1])
            residuals, weights = residuals / variance, weights / variance
    rows = np.einsum("ia,ij->iaj", residuals, X).reshape(len(X), -1)
    k, d = residuals.shape[1], X.shape[1]
    curvature = np.empty((k, d, k, d))
    for a in range(k):
        for b in range(k):
            curvature[a, :, b, :] = (X * weights[:, a, b, None]).T @ X
    return rows, curvature.reshape(k * d, k * d)


@remembered
def pooled(name: str) -> Pooled:
    given = problem(name)
    federation = given.federation()
    result = fm.fit(federation, given.model, "np-pooled")
    y = result.model.encode_target(federation)[1]
    X = federation.design()
    outputs, d = result.coef_matrix.shape
    contrasts = np.eye(outputs * d)
    if outputs > 1:
        contrasts = np.kron(np.column_stack([-np.ones(outputs - 1), np.eye(outputs - 1)]), np.eye(d))
    estimate = contrasts @ result.coef_matrix.ravel()
    # in standardised columns, where the curvature is well conditioned: X = Z M', so theta_x = M^-T theta_z
    centre, scale = X[:, 1:].mean(axis=0), X[:, 1:].std(axis=0)
    Z = np.column_stack([X[:, 0], (X[:, 1:] - centre) / scale])
    back = np.diag([1.0, *(1 / scale)])
    back[0, 1:] = -centre / scale
    forth = np.linalg.inv(back)
    k = len(estimate) // d
    rows, H = scores(given.model, Z, y, estimate.reshape(k, d) @ forth.T)
    to_original = np.kron(np.eye(k), back)
    inverse = np.linalg.inv(H)
    assert np.abs(np.linalg.cholesky(inverse).T @ rows.sum(axis=0)).max() < 1e-4, f"{name}: the pooled fit is not done"
    hc0 = inverse @ (rows.T @ rows) @ inverse
    values, vectors = np.linalg.eigh(H / len(X))
    root = vectors / np.sqrt(values) @ vectors.T
    return Pooled(
        estimate, *(np.sqrt(np.diag(to_original @ cov @ to_original.T)) for cov in (inverse, hc0)),
        contrasts, to_original @ root, rows @ root, federation.sizes,
    )  # fmt: skip


@remembered
def federation(name: str, case: str) -> fm.Federation:
    return problem(name).federation(declared=case == "declared")


@remembered
def limits(name: str, mu: float) -> dict[str, float]:
    found = pooled(name)
    return {"limit_model": found.limit(mu, found.model_se), "limit_hc0": found.limit(mu, found.hc0_se)}


def run(name: str, case: str, mu: float, method: str, settings: dict[str, Any], replicate: int) -> dict[str, Any]:
    """One fit, as a line of the file."""
    given, yardstick = problem(name), pooled(name)
    text = json.dumps([name, case, mu, replicate])
    seed = int.from_bytes(hashlib.blake2b(text.encode(), digest_size=7).digest())
    line: dict[str, Any] = {
        "problem": name, "case": case, "mu": mu, "method": method, "settings": settings, "replicate": replicate,
        "model": given.model, **limits(name, mu), "refused": None, "warnings": [],
    }  # fmt: skip
    rows, chosen = federation(name, case), {} if method == "default" else {"method": method}
    start = time.perf_counter()
    try:
        result = fm.fit(rows, given.model, mu=mu, seed=seed, **chosen, **settings)
    except fm.FedmestError as error:
        return {**line, "refused": str(error), "seconds": round(time.perf_counter() - start, 4)}
    line["seconds"] = round(time.perf_counter() - start, 4)
    private, se = yardstick.contrasts @ result.coef_matrix.ravel(), yardstick.se(given.model)
    off = private - yardstick.estimate
    strong = np.abs(yardstick.estimate) > 3 * se
    line |= {
        "warnings": [str(warning) for warning in getattr(result, "warnings", ())],
        "rounds": result.communication.rounds,
        "fitted": result.method,
        "z_model": rounded(off / yardstick.model_se),
        "z_hc0": rounded(off / yardstick.hc0_se),
        "signs": [int(np.sum((private * yardstick.estimate > 0) & strong)), int(strong.sum())],
        "intervals": result.covariance.total is not None,
    }
    if line["intervals"] and not result.covariance.includes_privacy:
        privacy = yardstick.contrasts @ result.covariance.privacy @ yardstick.contrasts.T
        line["claimed"] = rounded(np.sqrt(np.diag(privacy)) / se)
    return line


def rounded(values: np.ndarray) -> list[float]:
    return [float(f"{value:.4g}") for value in values]


def block(name: str, case: str, mu: float, method: str, settings: dict[str, Any], replicates: list[int]) -> list[Any]:
    return [run(name, case, mu, method, settings, replicate) for replicate in replicates]
