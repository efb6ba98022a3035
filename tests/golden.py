"""Seeded numbers as they were, to the last bit: what is run, what is written down of a run, and how two are compared.

`python tests/golden.py write` writes golden.json anew. That is allowed only where numbers are meant to change (another
noise, another method, a bug that made numbers wrong), by a commit which says so and does nothing else; never to make
a test pass after code was moved or renamed. `python tests/golden.py write run cell` writes just these fields of all
cases, and refuses if any other differs: a run's id and a study's cell are digests of texts with names of settings in
them, so that a rename may change them while no number does.

Names of methods, models, settings and fields in golden.json are its own and stay; what the code calls these today
stands in the next two sections and nowhere else.
"""

import hashlib
import importlib.util
import json
import math
import re
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np

import fedmest as fm

FILE = Path(__file__).with_name("golden.json")
TOLERANCE = 1e-9  # where the tools are not those of the file

# -- what the code calls settings: ours on the left ------------------------------------------------------------------

SETTINGS = {
    "calibration": "calibration", "clip": "clip_rule", "bound": "clip_norm", "schedule": "budget_schedule",
    "scaling": "scaling", "weights": "aggregation_weights",
    "weight_constant": "weight_constant", "participation": "participation", "ridge": "ridge",
    "fit_intercept": "fit_intercept", "errors": "cov_type",
}  # fmt: skip
OPTIONS = {
    name: name
    for name in (
        "K", "R", "K1", "K2", "eta", "server_eta", "momentum", "average", "share1", "share_early", "share_curvature",
        "curvature", "steps", "send", "split", "tau1", "lambda_min", "cycles", "alpha", "lambda_ridge", "head_bound",
    )
}  # fmt: skip
VALUES: dict[tuple[str, Any], Any] = {  # values that are called otherwise, by our name of the setting
    ("errors", "model"): "nonrobust", ("errors", "sandwich"): "robust", ("errors", "sites"): "cluster",
}  # fmt: skip
METHODS = {
    name: name
    for name in (
        "fedsgd", "fedsgd-m", "fedavg", "fedhybrid", "fednewton", "fedirls", "scaffold", "fedstats", "fednewton-nn",
        "fednewton-iter", "np-pooled", "np-local", "np-fedavg", "np-scaffold",
    )
}  # fmt: skip
AUTO = "auto"
CALLS = {**SETTINGS, **OPTIONS}


def spelt(settings: dict[str, Any]) -> dict[str, Any]:
    """Settings as the code takes them."""
    return {CALLS[name]: VALUES.get((name, value), value) for name, value in settings.items()}


def ours(settings: dict[str, Any]) -> dict[str, Any]:
    """Settings of the code by our names."""
    names = {theirs: name for name, theirs in CALLS.items()}
    values = {(name, theirs): value for (name, value), theirs in VALUES.items()}
    return {names[key]: values.get((names[key], value), value) for key, value in sorted(settings.items())}


def our_method(method: str) -> str:
    return {theirs: name for name, theirs in METHODS.items()}[method]


# -- what the code calls everything else -----------------------------------------------------------------------------


def all_methods() -> set[str]:
    return set(fm.METHODS)


@contextmanager
def overheard(elsewhere: bool = False) -> Iterator[tuple[list[tuple[str, int]], list[np.ndarray]]]:
    """Texts that noise is keyed by with the words they gave, and the replies of sites, round by round."""
    from fedmest.runs import backend
    from fedmest.runs import fit as fitting
    from fedmest.server import coordinator

    place, engine = (coordinator, coordinator.RemoteBackend) if elsewhere else (fitting, backend.LocalBackend)
    words: list[tuple[str, int]] = []
    replies: list[np.ndarray] = []
    derive_seed, answer = place.derive_seed, engine.answer

    def keyed(seed: int | None, purpose: str = "") -> int:
        words.append((purpose, derive_seed(seed, purpose)))
        return words[-1][1]

    def answered(self: Any, *arguments: Any) -> Any:
        values, sites = answer(self, *arguments)
        replies.append(values.copy())
        return values, sites

    with mock.patch.object(place, "derive_seed", keyed), mock.patch.object(engine, "answer", answered):
        yield words, replies


def estimate_of(result: Any) -> dict[str, Any]:
    """All numbers of a result."""
    u, rounds, (*_, last) = result.covariance, result.communication.by_round, result.privacy.releases
    theta = result.coef_matrix if len(result.coef_matrix) > 1 else result.coef_matrix[0]
    resolved = result.resolved_values()
    traffic = np.array([[r.sites, r.floats_up, r.floats_down] for r in rounds])
    found = {
        "theta": numbers(theta) if theta.ndim == 1 else numbers(theta[:-1]),  # classes sum to zero
        "mu": numbers([result.privacy.mu, result.privacy.third_party_mu()]),
        "last": numbers([last.mu.max(), last.sd.max()]),
        "releases": digest(
            *(part for r in result.privacy.releases for part in (r.round, r.mu, len(r.sites), r.sensitivity, r.sd))
        ),
        "rounds": f"={len(rounds)} {traffic[:, 1].sum()} {traffic[:, 2].sum()} {digest(traffic)}",  # floats up, down
        "path": digest(theta, *result.history, *(pair for _, pair in sorted(resolved["scales"].items()))),
        "errors": "-" if u.reason else "none",  # with a reason, and without
    }
    if (bound := resolved["clip_norm"]) is not None:
        found["bound"] = numbers([bound])
    if not result.privacy.certified:
        found["gaps"] = True
    if result.site_params is not None:
        found["sites"] = digest(result.site_params)
    if u.total is None:
        return found
    route = {"nonrobust": "model", "robust": "sandwich", "cluster": "sites"}[u.cov_type]
    cov = [u.total[0, 0], u.total[-1, -1], u.total[0, -1], u.df]
    return {**found, "errors": route, "cov": numbers(cov), "cov_parts": digest(u.sampling, u.privacy)}


def network() -> Any:
    """A network of 16 inputs, 5 hidden units and 3 classes, on one thread."""
    import torch
    from torch import nn

    torch.set_num_threads(1)
    return fm.NetworkModel(nn.Sequential(nn.Linear(16, 5), nn.ReLU(), nn.Linear(5, 3)), (16,))


INSECURE = {"simulation": {"insecure": True}}  # vaults that take seeds


def vault_run(case: dict[str, Any], folder: Path) -> dict[str, Any]:
    import vaults
    from fedmest.server.coordinator import Coordinator
    from fedmest.server.transports.memory import MemoryTransport

    columns = {name: dict(column) for name, column in vaults.COLUMNS.items()}
    for name, ends in case.get("declared", {}).items():
        columns[name].update(ends)
    policy = {"columns": columns}
    generous = {"budget": {"lifetime": 1e6, "run": 100.0}, "allow": {"calibrations": ["certified", "paper"]}}
    paths = vaults.write_sites(folder, vaults.simulated(), **INSECURE, **generous, **policy)
    opened = vaults.open_vaults(paths)
    try:
        proposal = vaults.study(
            case["model"], METHODS.get(case["method"], case["method"]), case["mu"], seed=case["seed"], columns=columns,
            settings=spelt(case["settings"]), options=spelt(case["options"]),
        )  # fmt: skip
        with overheard(elsewhere=True) as (words, replies):
            result = Coordinator(proposal, MemoryTransport(opened)).run(folder / "run")
        charges = [
            [entry.round, [[charge.part, charge.mu] for charge in entry.charges]]
            for name in sorted(opened)
            for entry in opened[name].ledger.entries()
        ]
        spent = [opened[name].ledger.spent_mu() for name in sorted(opened)]
    finally:
        for vault in opened.values():
            vault.close()
    return {
        **key_of(words), **estimate_of(result), "replies": each([[values] for values in replies]),
        "run": result.network["run"], "charges": digest(json.dumps(charges)), "spent": numbers(spent),
    }  # fmt: skip


def key_of(words: list[tuple[str, int]]) -> dict[str, str]:
    """The text that keys the noise, and the word that it gives; the word of the public draws comes of that one."""
    (text, word), *others = words
    assert [purpose for purpose, _ in others] == ["public draws"]
    return {"key": f"={digest(text)[1:]} {word:016x}"}


def plan_of(case: dict[str, Any]) -> dict[str, Any]:
    advice = fm.plan(
        case["sizes"], features=case["features"], model=case["model"], mu=case["mu"], **spelt(case["settings"])
    )
    return {
        "choice": [our_method(advice.best.method), ours(advice.best.settings)],
        "pooled": numbers([advice.pooled, advice.lower_bound, advice.effective_rows]),
        "left_out": sorted(map(our_method, advice.left_out)),
        **{
            our_method(c.method): [
                numbers([c.prediction.mse, c.prediction.sampling, c.prediction.privacy, c.prediction.optimisation,
                         c.prediction.bias, c.regret, c.half_width]),
                ours(c.settings), c.rounds, c.bytes, c.has_intervals,
            ]
            for c in advice.candidates
        },
    }  # fmt: skip


def cell_of(case: dict[str, Any]) -> dict[str, Any]:
    from fedmest.studies import STUDIES
    from fedmest.studies.base import BOTH, OURS, POOLED
    from fedmest.studies.cells import Cell, Point, Sizes, run
    from fedmest.studies.sources.simulated import Simulated

    if "registered" in case:
        keys = [cell.key() for cell in STUDIES[case["registered"]].cells(2)]
        return {"cell": "=" + digest(*keys)[1:], "cells": len(keys)}
    point = Point(case["sites"], Sizes(*case["sizes"]), case["mu"], case["K"])
    cell = Cell("golden", Simulated.create(case["model"]), point, (POOLED, *BOTH, OURS), 0, 2)
    rows = run(cell)
    return {
        "errors": numbers([row.error for row in rows]), "detail": digest(*(row.detail for row in rows)),
        "faults": sum(bool(row.failure) for row in rows), "cell": "=" + digest(cell.key())[1:],
    }  # fmt: skip


def audit_of(case: dict[str, Any]) -> dict[str, Any]:
    found = fm.audit(
        METHODS[case["method"]], case["model"], case["mu"], calibration=case["calibration"], games=case["games"],
        seed=case["seed"], **spelt(case["options"]),
    )  # fmt: skip
    exact = math.nan if found.mu_exact is None else found.mu_exact
    return {
        "mu": numbers([found.mu_claimed, found.mu_lower, exact]), "games": found.games, "broken": found.refuted,
        "mistakes": [found.false_positives, found.false_negatives], "scores": digest(*found.scores),
    }  # fmt: skip


# -- how numbers are written down ------------------------------------------------------------------------------------
# "0x1.8p+1 ..." numbers, all bits; "~..." a digest of numbers; "=..." a digest or word that no tool may change


def numbers(values: Any) -> str:
    """Each as `float.hex`, less zeros at the end."""
    texts = (float(value).hex() for value in np.asarray(values, dtype=float).ravel())
    return " ".join(re.sub(r"\.?0+p", "p", text) for text in texts)


def digest(*parts: Any) -> str:
    """Of texts, or of the bytes of numbers and their shape."""
    found = hashlib.blake2b(digest_size=6)
    for part in parts:
        if isinstance(part, str):
            found.update(part.encode())
        else:
            array = np.ascontiguousarray(part, dtype="<f8")
            found.update(repr(array.shape).encode() + array.tobytes())
    return "~" + found.hexdigest()


def each(items: Sequence[Sequence[Any]]) -> str:
    """A digest of all, then two letters for each, so that the first one that differs can be found."""
    alone = [digest(*item) for item in items]
    return f"{digest(*alone)} {''.join(text[1:3] for text in alone)}"


# -- rows ------------------------------------------------------------------------------------------------------------

SIZES = {
    "mixed": [40] * 6,
    "plain": [40] * 6,
    "declared": [40] * 6,
    "many": [30] * 24,
    "unequal": [15, 110, 22, 60, 9, 45],
}


@cache
def rows(kind: str, model: str) -> fm.Federation:
    """Four columns. `plain` are standard normal; of the others the first is declared to lie between 0 and 10, the third
    is around 1000, give or take 250, and the response of a linear model is in hundreds. `declared`: so are all."""
    rng = np.random.default_rng(20_260_101)
    sizes = SIZES[kind]
    Z = rng.standard_normal((sum(sizes), 4))
    Z[:, 0] = rng.uniform(-1.7, 1.7, len(Z))
    spread = 0.5 if model == "poisson" else 1.0
    eta = 0.4 + spread * (0.6 * Z[:, 0] - 0.5 * Z[:, 1] + 0.3 * Z[:, 2] - 0.2 * Z[:, 3])
    plain = kind == "plain"
    if model == "linear":
        y = eta + rng.standard_normal(len(Z))
        y = y if plain else 300 + 60 * y
    elif model == "logistic":
        y = (rng.random(len(Z)) < 1 / (1 + np.exp(-eta))).astype(float)
    elif model == "poisson":
        y = rng.poisson(np.exp(eta)).astype(float)
    else:
        y = (np.outer(eta, [-1.0, 0.0, 1.0]) + rng.gumbel(size=(len(Z), 3))).argmax(axis=1).astype(float)
    X = spread * Z if plain else np.column_stack([5 + 2.9 * Z[:, 0], 2 * Z[:, 1], 1000 + 250 * Z[:, 2], Z[:, 3]])
    bounds: dict[str, tuple[float, float]] = {} if plain else {"x1": (0.0, 10.0)}
    if kind == "declared":
        bounds |= {"x2": (-9.0, 9.0), "x3": (-500.0, 2500.0), "x4": (-5.0, 5.0)}
        bounds |= {"y": (-300.0, 900.0)} if model == "linear" else {}
    sites = np.repeat([f"site {i}" for i in range(len(sizes))], sizes)
    return fm.Federation.from_arrays(X, y, sites, bounds=bounds)


@cache
def pictures() -> fm.Federation:
    """16 pixels between 0 and 1, three classes, six sites."""
    rng = np.random.default_rng(5)
    y = rng.integers(0, 3, 120)
    X = np.clip(rng.uniform(0, 0.6, (120, 16)) + 0.4 * (np.arange(16) % 3 == y[:, None]), 0, 1)
    return fm.Federation.from_arrays(X, y, np.arange(120) % 6)


# -- cases -----------------------------------------------------------------------------------------------------------

MODELS = ("linear", "logistic", "poisson", "multinomial")
SAMPLING = ("fedsgd", "fedsgd-m", "fedavg", "fedhybrid", "scaffold")  # can ask a share of the sites
IN_PAPER = ("fedsgd", "fedavg", "fedhybrid", "fednewton", "scaffold")
PRIVATE = (*SAMPLING, "fednewton", "fedirls", "fedstats")
FREE = ("np-pooled", "np-local", "np-fedavg", "np-scaffold")
NETWORKS = (*SAMPLING, "fednewton-nn", "fednewton-iter", "np-fedavg", "np-scaffold")

SHORT: dict[str, dict[str, Any]] = {  # so that fits are quick
    "fedsgd": {"K": 5}, "fedsgd-m": {"K": 7}, "fedavg": {"K": 4, "R": 2}, "fedhybrid": {"K1": 4, "K2": 3},
    "fednewton": {"K": 5}, "fedirls": {"R": 2}, "scaffold": {"K": 4, "R": 2},
    "fednewton-nn": {"K": 2, "R": 2}, "fednewton-iter": {"K": 2, "R": 1},
    "np-fedavg": {"K": 4, "R": 2}, "np-scaffold": {"K": 4, "R": 2},
}  # fmt: skip
SPELT: dict[str, list[dict[str, Any]]] = {  # options
    "fedsgd": [{"K": 3, "eta": 0.25}],
    "fedsgd-m": [{"K": 6, "momentum": 0.5, "average": 2}],
    "fedavg": [{"K": 3, "R": 3, "server_eta": 0.8}],
    "fedhybrid": [{"K1": 2, "K2": 3, "share1": 0.4}],
    "fednewton": [
        {"K": 4, "split": True}, {"K": 4, "send": "step"}, {"curvature": "features", "steps": 4},
        {"K": 3, "share1": 0.3, "share_curvature": 0.2, "lambda_min": 1e-3},
    ],
    "fedirls": [{"R": 3, "share_early": 0.3, "share_curvature": 0.2}],
    "scaffold": [{"K": 3, "R": 3, "server_eta": 0.8}],
    "fedstats": [{"lambda_min": 1e-3}],
}  # fmt: skip
# name, rows, mu, settings, methods, whether all steps are taken
TRIED: list[tuple[str, str, float, dict[str, Any], tuple[str, ...], bool]] = [
    ("default", "mixed", 2.0, {}, PRIVATE, True),
    ("paper", "plain", 2.0, {"calibration": "paper"}, IN_PAPER, True),
    ("paper, declared", "declared", 2.0, {"calibration": "paper", "bound": 1.5}, IN_PAPER, False),
    ("clip norm", "mixed", 2.0, {"clip": "norm"}, PRIVATE, False),
    ("bound", "mixed", 2.0, {"bound": 1.5}, PRIVATE, False),
    ("uniform", "mixed", 2.0, {"schedule": "uniform"}, PRIVATE, False),
    ("unscaled", "plain", 2.0, {"scaling": "none"}, PRIVATE, False),
    ("scaled by data", "mixed", 2.0, {"scaling": "data"}, PRIVATE, False),
    ("scaled by bounds", "declared", 2.0, {"scaling": "bounds"}, PRIVATE, False),
    ("optimal weights", "unequal", 2.0, {"weights": "optimal", "weight_constant": 2.0}, PRIVATE, False),
    ("unequal", "unequal", 2.0, {}, PRIVATE, False),
    ("half take part", "mixed", 2.0, {"participation": 0.5}, SAMPLING, False),
    ("half, paper", "plain", 2.0, {"participation": 0.5, "calibration": "paper"}, ("fedsgd", "fedavg"), False),
    ("ridge", "mixed", 2.0, {"ridge": 0.1}, PRIVATE, False),
    ("no intercept", "mixed", 2.0, {"fit_intercept": False}, PRIVATE, False),
    ("errors model", "mixed", 40.0, {"errors": "model"}, PRIVATE, True),
    ("errors sandwich", "mixed", 40.0, {"errors": "sandwich"}, PRIVATE, True),
    ("errors sites", "many", 40.0, {"errors": "sites"}, ("fedavg", "fednewton", "fedirls"), True),
    ("errors none", "mixed", 40.0, {"errors": "none"}, ("fednewton", "fedstats"), False),
    ("free", "mixed", math.inf, {}, PRIVATE, False),
    ("yardstick", "mixed", 2.0, {}, FREE, True),
    ("yardstick, ridge", "unequal", 2.0, {"ridge": 0.1, "fit_intercept": False}, FREE, False),
    ("yardstick, errors", "plain", 2.0, {"errors": "sandwich", "scaling": "none"}, ("np-pooled",), False),
]
NETWORKS_TRIED: list[tuple[str, float, dict[str, Any], tuple[str, ...]]] = [
    ("default", 3.0, {}, NETWORKS),
    ("paper", 3.0, {"calibration": "paper"}, ("fedsgd", "fedavg", "fednewton-nn", "fednewton-iter")),
    ("bound, geometric", 3.0, {"bound": 0.7, "schedule": "geometric"}, NETWORKS[:-2]),
    ("half take part", 3.0, {"participation": 0.5}, ("fedsgd", "scaffold", "fednewton-nn")),
    ("ridge", 3.0, {"ridge": 0.01}, ("fedhybrid", "fednewton-iter")),
    ("free", math.inf, {}, ("fedavg", "fednewton-nn")),
]


def takes(method: str, model: str) -> bool:
    return method != "fedstats" or model == "linear"


def fit_cases() -> Iterator[dict[str, Any]]:
    for method in (*PRIVATE, *FREE):
        for model in (model for model in MODELS if takes(method, model)):
            common = {"group": f"fit {method}", "model": model, "method": method, "seed": 7}
            for name, kind, mu, settings, methods, long in TRIED:
                if method in methods:
                    options = {} if long else SHORT.get(method, {})
                    yield {**common, "id": f"{method}, {model}, {name}", "rows": kind, "mu": mu, "settings": settings,
                           "options": options}  # fmt: skip
            for number, options in enumerate(SPELT.get(method, [])):
                yield {**common, "id": f"{method}, {model}, options {number}", "rows": "mixed", "mu": 2.0,
                       "settings": {}, "options": options}  # fmt: skip
    for model in MODELS:
        for name, kind, mu, settings in [
            ("default", "mixed", 2.0, {}), ("many", "many", 10.0, {}), ("unequal", "unequal", 5.0, {"errors": "none"}),
            ("sandwich", "declared", 20.0, {"errors": "sandwich"}),
        ]:  # fmt: skip
            yield {"group": "fit auto", "id": f"auto, {model}, {name}", "model": model, "method": AUTO, "rows": kind,
                   "mu": mu, "settings": settings, "options": {}, "seed": 7}  # fmt: skip
    for seed in (0, -3, 2**70 + 1):
        yield {"group": "fit auto", "id": f"seed {seed}", "model": "logistic", "method": "fedavg", "rows": "mixed",
               "mu": 1, "settings": {"bound": 2}, "options": SHORT["fedavg"], "seed": seed}  # fmt: skip


def network_cases() -> Iterator[dict[str, Any]]:
    for name, mu, settings, methods in NETWORKS_TRIED:
        for method in methods:
            yield {"group": "networks", "id": f"{method}, network, {name}", "method": method, "mu": mu, "seed": 7,
                   "settings": settings, "options": SHORT[method]}  # fmt: skip


DECLARED = {"dose": {"low": -20, "high": 30}, "cost": {"low": -500, "high": 700}}
VAULTS: list[tuple[str, str, dict[str, Any], dict[str, Any], dict[str, Any]]] = [
    # model, method, settings, options, columns that are declared
    ("logistic", "fednewton", {}, {"K": 3}, {}),
    ("linear", "fednewton", {"errors": "model"}, {"K": 3}, DECLARED),
    ("poisson", "fednewton", {}, {"K": 3, "split": True}, {}),
    ("logistic", "fedirls", {"errors": "sandwich"}, {"R": 2}, DECLARED),
    ("linear", "fedirls", {}, {}, {}),
    ("poisson", "fedsgd", {"clip": "norm", "bound": 2}, {"K": 3}, DECLARED),
    ("logistic", "fedsgd", {"participation": 0.5}, {"K": 4}, {}),
    ("logistic", "scaffold", {}, {"K": 2, "R": 2}, {}),
    ("linear", "scaffold", {"ridge": 0.1, "schedule": "uniform"}, {"K": 2, "R": 2}, DECLARED),
    ("poisson", "fedhybrid", {"weights": "optimal"}, {"K1": 2, "K2": 2}, {}),
    ("linear", "fedhybrid", {"fit_intercept": False}, {"K1": 2, "K2": 2}, DECLARED),
    ("linear", "fedstats", {}, {}, {}),
    ("linear", "fedstats", {"errors": "none"}, {}, DECLARED),
    ("multinomial", "fedavg", {}, {"K": 2, "R": 2}, {}),
    ("logistic", "fedavg", {"calibration": "paper", "bound": 2.0, "scaling": "none"}, {"K": 2, "R": 2}, {}),
    ("logistic", "auto", {}, {}, {}),
]


def vault_cases() -> Iterator[dict[str, Any]]:
    for number, (model, method, settings, options, declared) in enumerate(VAULTS):
        yield {"group": "vaults", "id": f"vaults {number}, {method}, {model}", "model": model, "method": method,
               "mu": 4.0, "seed": 11, "settings": settings, "options": options, "declared": declared}  # fmt: skip


OTHERS: list[dict[str, Any]] = [
    {"group": "plans", "id": "plan, logistic", "model": "logistic", "sizes": [60] * 30, "features": 3, "mu": 2.0},
    {"group": "plans", "id": "plan, linear", "model": "linear", "sizes": [60] * 30, "features": 3, "mu": 5.0},
    {"group": "plans", "id": "plan, poisson", "model": "poisson", "sizes": [60] * 30, "features": 3, "mu": 2.0},
    {"group": "plans", "id": "plan, unequal", "model": "logistic", "sizes": [20, 400, 90, 60, 800], "features": 3,
     "mu": 4.0, "settings": {"errors": "sandwich"}},
    {"group": "studies", "id": "cell, logistic", "model": "logistic", "sites": 20, "sizes": ("equal", 30), "mu": 2.0,
     "K": None},
    {"group": "studies", "id": "cell, poisson", "model": "poisson", "sites": 6, "sizes": ("uniform", 20, 90),
     "mu": 6.0, "K": 8},
    {"group": "studies", "id": "cell, lognormal", "model": "logistic", "sites": 8,
     "sizes": ("lognormal", 3.0, 0.8, 600, 12), "mu": 1.0, "K": 5},
    {"group": "studies", "id": "keys, logistic-equal", "registered": "logistic-equal"},
    {"group": "studies", "id": "keys, poisson-equal", "registered": "poisson-equal"},
    {"group": "audits", "id": "audit, fedsgd", "method": "fedsgd", "model": "logistic", "mu": 2.0, "games": 400,
     "calibration": "certified", "options": {"K": 4}, "seed": 1},
    {"group": "audits", "id": "audit, fednewton", "method": "fednewton", "model": "linear", "mu": 2.0, "games": 400,
     "calibration": "certified", "options": {"K": 3}, "seed": 2},
    {"group": "audits", "id": "audit, the paper's", "method": "fedavg", "model": "poisson", "mu": 2.0, "games": 400,
     "calibration": "paper", "options": {"K": 3, "R": 2}, "seed": 3},
]  # fmt: skip


CASES: list[dict[str, Any]] = [*fit_cases(), *network_cases(), *vault_cases(), *OTHERS]
GROUPS = tuple(dict.fromkeys(case["group"] for case in CASES))


# -- running and comparing -------------------------------------------------------------------------------------------


def compute(case: dict[str, Any]) -> dict[str, Any] | str:
    """What is written down of a case."""
    case = {"settings": {}, "options": {}, **case}
    group = case["group"]
    try:
        if group == "vaults":
            with tempfile.TemporaryDirectory(prefix="golden") as folder:
                return vault_run(case, Path(folder))
        others: dict[str, Callable[..., dict[str, Any]]] = {"plans": plan_of, "studies": cell_of, "audits": audit_of}
        if group in others:
            return others[group](case)
        federation = pictures() if group == "networks" else rows(case["rows"], case["model"])
        model = network() if group == "networks" else case["model"]
        with overheard() as (words, replies):
            result = fm.fit(federation, model, METHODS.get(case["method"], case["method"]), case["mu"],
                            seed=case["seed"], **spelt(case["settings"]), **spelt(case["options"]))  # fmt: skip
            found = {**key_of(words), **estimate_of(result), "replies": each([[values] for values in replies])}
            if case["method"] == AUTO:
                found["choice"] = our_method(result.method)
    except fm.InputError:
        return "InputError"
    if group == "networks":
        found["theta"] = " ".join([*found["theta"].split()[:4], float(np.linalg.norm(result.coef_matrix)).hex()])
    return found


def tools() -> dict[str, str]:
    """What bits depend on besides our code."""
    import llvmlite.binding
    import numba
    import scipy

    found = {"numpy": np.__version__, "numba": numba.__version__, "scipy": scipy.__version__,
             "processor": llvmlite.binding.get_host_cpu_name()}  # fmt: skip
    if importlib.util.find_spec("torch") is not None:
        import torch

        found["torch"] = torch.__version__
    return found


def other_tools(recorded: dict[str, str], group: str = "") -> list[str]:
    """Those which are not what they were, of those that a group depends on."""
    now = tools()
    names = [name for name in recorded if name != "torch" or group == "networks"]
    return [f"{name} {recorded[name]} then, {now.get(name)} now" for name in names if now.get(name) != recorded[name]]


def differences(case: str, old: Any, new: Any, exact: bool, field: str = "") -> list[str]:
    """A line for everything that is not as it was."""
    where = f"{case}: {field}" if field else case
    if isinstance(old, dict) and isinstance(new, dict):
        lines = [f"{where}: no {name!r} any more" for name in old if name not in new]
        lines += [f"{where}: {name!r} is new" for name in new if name not in old]
        for name in old:
            if name in new:
                lines += differences(case, old[name], new[name], exact, f"{field}.{name}" if field else name)
        return lines
    if isinstance(old, list) and isinstance(new, list) and len(old) == len(new):
        return [
            line for i, (a, b) in enumerate(zip(old, new, strict=True))
            for line in differences(case, a, b, exact, f"{field}[{i}]")
        ]  # fmt: skip
    if old == new:
        return []
    then, now = _values(old), _values(new)
    if then is None or now is None or len(then) != len(now):
        if not exact and str(old).startswith("~") and str(new).startswith("~"):
            return []
        return [f"{where}: was {_short(old)}, is {_short(new)}{_first_apart(old, new)}"]
    lines = []
    for i, (a, b) in enumerate(zip(then, now, strict=True)):
        apart = abs(a - b) / max(abs(a), abs(b), 1e-300) if math.isfinite(a) and math.isfinite(b) else math.inf
        if a.hex() != b.hex() and (exact or apart > TOLERANCE):
            lines.append(f"{where}[{i}]: was {a.hex()} = {a!r}, is {b.hex()} = {b!r}, relative difference {apart:.2g}")
    return lines


def _values(text: Any) -> list[float] | None:
    try:
        return [float.fromhex(word) for word in text.split()] if not text.startswith(("~", "=")) else None
    except (AttributeError, ValueError):
        return None


def _short(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value)
    return text if len(text) <= 160 else f"{text[:160]} ..."


def _first_apart(old: Any, new: Any) -> str:
    """Of digests of many things, which is the first to differ."""
    if not all(isinstance(text, str) and text.startswith("~") and " " in text for text in (old, new)):
        return ""
    then, now = old.split(" ")[1], new.split(" ")[1]
    if len(then) != len(now):
        return f" ({len(then) // 2} of them then, {len(now) // 2} now)"
    return next(
        (f" (from number {i // 2} on)" for i in range(0, len(then), 2) if then[i : i + 2] != now[i : i + 2]), ""
    )


@cache
def recorded() -> dict[str, Any]:
    return dict(json.loads(FILE.read_text(encoding="utf-8")))


def changes(group: str) -> list[str]:
    """All that is not as golden.json has it, in the cases of a group."""
    file = recorded()
    exact, old = not other_tools(file["tools"], group), file["cases"]
    lines = []
    for case in (case for case in CASES if case["group"] == group):
        name = case["id"]
        lines += differences(name, old[name], compute(case), exact) if name in old else [f"{name}: not in {FILE.name}"]
    return lines


def write(fields: Sequence[str] = ()) -> None:
    """All cases anew; with `fields`, these and no others."""
    found = {case["id"]: compute(case) for case in CASES}
    assert len(found) == len(CASES), "two cases have one name"
    if fields:
        before, strays = recorded()["cases"], []
        for name, case in found.items():
            kept = before.get(name)
            if isinstance(case, dict) and isinstance(kept, dict):
                kept = {**kept, **{key: value for key, value in case.items() if key in fields}}
            strays += differences(name, kept, case, exact=True)
        if strays:
            raise SystemExit("\n".join(["nothing was written, as more than these fields differ:", *strays[:50]]))
    lines = [f"{json.dumps(name)}: {json.dumps(case, separators=(',', ':'))}" for name, case in found.items()]
    text = f'{{"tools": {json.dumps(tools())},\n"cases": {{\n' + ",\n".join(lines) + "\n}}\n"
    FILE.write_text(text, encoding="utf-8")
    refused = sum(case == "InputError" for case in found.values())
    print(f"{FILE}: {len(found)} cases, {refused} of them refused; {len(text):,} characters")


if __name__ == "__main__":
    if sys.argv[1:2] != ["write"]:
        raise SystemExit(__doc__)
    import numba

    numba.set_num_threads(1)  # as in the tests
    write(sys.argv[2:])
