"""`fit` and `compare`: from a federation to results. The order of a run is written here, once."""

import hashlib
import math
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from copy import copy
from dataclasses import fields, replace
from functools import partial
from inspect import signature
from pathlib import Path
from typing import Any

import numpy as np

from fedmest import scaling as scales
from fedmest.checkpoint import Checkpoint
from fedmest.engines import Engine, LocalEngine
from fedmest.errors import InputError
from fedmest.federation import Federation
from fedmest.inference import Uncertainty, assess
from fedmest.inputs import LARGEST_FEATURE
from fedmest.methods import Record, Server, method_named
from fedmest.models import Clipping, Model, model_named
from fedmest.planner import AUTO, agree
from fedmest.privacy.gdp import Array
from fedmest.privacy.noise import seed_word
from fedmest.privacy.statement import PrivacyReport, ReleaseRecord, account
from fedmest.queries.histogram import SCORE_GRID, main_body
from fedmest.result import Communication, Result, Round
from fedmest.terms import Terms, Wishes


def fit(
    federation: Federation,
    model: str | Model = "logistic",
    method: str = "fednewton",
    mu: float = 2.0,
    *,
    calibration: str = "certified",
    clip: str | None = None,
    bound: str | float | None = None,
    schedule: str | None = None,
    scaling: str = "auto",
    weights: str = "size",
    weight_constant: float = 1.0,
    participation: float = 1.0,
    ridge: float = 0.0,
    fit_intercept: bool = True,
    errors: str = "auto",
    seed: int | None = None,
    progress: Callable[[int, int], None] | None = None,
    watch: Callable[[int, int, Array], None] | None = None,
    checkpoint: str | Path | None = None,
    **options: Any,
) -> Result:
    """Fit a model over all sites; every site's rows are protected by mu-Gaussian differential privacy.

    model: a name, or a model of your own, such as NetworkModel(layers, shape). Networks take features as they are.
    method: an id, or "auto": the one that a plan from public facts expects to do best (see `plan`).
    calibration="certified" derives all noise from proved sensitivities; "paper" reproduces the paper, gaps included.
    clip: "consistent" keeps the estimating equation unbiased, "norm" is the paper's, and the only one for networks.
    bound: "private" buys B with 1 % of mu^2, a number is used as it is, "paper" reads it off the data.
    schedule: "geometric" spends more on later steps, "uniform" is the paper's, and the default for networks.
    scaling: "auto" uses declared bounds and buys the rest privately (the paper's calibration leaves the rest alone;
    without privacy it is read off the data).
    weights: "size", or the paper's "optimal" with `weight_constant` for trace(Sigma) / d.
    participation: the share of sites asked in each round.
    ridge: a penalty ridge/2 |slopes|^2 on the mean loss, in original units; of a network, on all parameters.
    errors: standard errors. "auto" takes what comes free with the run; "model" trusts the model; "sandwich" holds where
    the model is wrong; "sites" reads them off the spread of 20 sites or more; "none". Where the run does not release
    what they need, "model" and "sandwich" buy it with 5 % of mu^2, and method="auto" may choose to.
    seed: the same call with the same seed gives the same estimate; without one noise differs from run to run.
    progress: called with (rounds done, rounds in all); watch: with these and the estimate so far, where there is one.
    checkpoint: a folder. The same call with the same folder goes on where a stopped run ended.
    Options of the method (K, R, eta ...) go by name. mu=inf turns clipping and noise off.

    >>> rng = np.random.default_rng(0)
    >>> X, sites = rng.standard_normal((400, 2)), np.repeat(["a", "b"], 200)
    >>> fed = Federation.from_arrays(X, (X[:, 0] > 0).astype(int), sites)
    >>> result = fit(fed, model="logistic", method="fedsgd", mu=2.0, scaling="none", seed=1)
    >>> result.theta.shape, round(result.privacy.mu, 6)
    ((3,), 2.0)
    """
    chosen = model_named(model) if isinstance(model, str) else copy(model)  # learns the classes; not the caller's own
    wishes = Wishes(
        calibration, clip, bound, schedule, scaling, weights, weight_constant, participation, ridge, fit_intercept,
        errors,
    )  # fmt: skip
    terms = agree(federation, chosen, method, mu, wishes, options)
    y = chosen.target(federation)
    if not max(federation.packed.max(), -federation.packed.min()) < LARGEST_FEATURE:  # images: no copy of them all
        raise InputError(f"a feature exceeds {LARGEST_FEATURE:g} in size; scale the column down")
    word = seed_word(seed, terms.name)
    saved = None
    if checkpoint is not None:
        rows = hashlib.blake2b(federation.packed.data, digest_size=16)  # other rows must not meet the same noise
        rows.update(y.data)
        facts = [terms.name, seed, federation.sites.tolist(), federation.sizes.tolist(), rows.hexdigest(), chosen.tools]
        saved = Checkpoint(checkpoint, repr(facts), word)
        word = saved.word
    terms = replace(terms, seed=seed_word(word, "public draws"))  # the word itself keys the noise
    with saved or nullcontext():
        engine = LocalEngine(federation, chosen, y, terms.intercept, word, recorded=seed is not None)
        return carry_out(terms, engine, seed=seed, progress=progress, watch=watch, checkpoint=saved)


def carry_out(
    terms: Terms,
    engine: Engine,
    *,
    seed: int | None = None,
    progress: Callable[[int, int], None] | None = None,
    watch: Callable[[int, int, Array], None] | None = None,
    checkpoint: Checkpoint | None = None,
) -> Result:
    """Scales, then the bound, then the method, all along one schedule; whoever the engine asks."""
    terms.check_spending()
    plan, setting, model, wishes = terms.plan, terms.setting, terms.model, terms.wishes
    server = Server(
        setting, plan.steps, engine.answer, Clipping(setting.clip), np.zeros(setting.shape), on_round=progress,
        checkpoint=checkpoint,
    )  # fmt: skip
    caveats: list[str] = []
    scaling = _scale(server, terms, engine, caveats)
    engine.rescale(scaling)
    server.penalty[:] = terms.penalty(scaling)
    original = partial(scaling.to_original, intercept=terms.intercept) if model.linear else np.asarray
    if watch is not None:
        server.on_theta = lambda theta: watch(len(server.records), len(server.schedule), original(theta))
    server.clipping = _clipping(server, terms, engine, caveats)
    theta = terms.method.run(server, plan.method_steps)
    if not np.isfinite(theta).all():
        raise InputError("the estimate is not finite: the steps are too long; lower eta, or scale the features")
    uncertainty = _uncertainty(server, terms, theta)
    if model.outputs > 1:
        theta = theta - theta.mean(axis=0)

    facts = terms.facts
    has_intercept = terms.intercept and model.linear
    settings = {
        "method_title": terms.method.title, "calibration": wishes.calibration, "clip": wishes.clip,
        "schedule": wishes.schedule, "scaling": terms.scaling,
        "bound": server.clipping.bound if math.isfinite(server.clipping.bound) else None, "weights": wishes.weights,
        "participation": wishes.participation, "ridge": wishes.ridge, "seed": seed, "n_rows": int(facts.sizes.sum()),
        "n_sites": len(facts.sizes), "options": dict(vars(terms.method)),
        "scales": {
            name: [float(c), float(s)]
            for name, c, s in zip(facts.features, scaling.centre, scaling.scale, strict=True)
            if model.linear
        },
    }  # fmt: skip
    return Result(
        original(theta), (("intercept",) if has_intercept else ()) + facts.features, model, terms.method.id,
        privacy_report(server, caveats, engine.noise_caveat), _communication(server),
        tuple(original(t) for t in server.history), settings, has_intercept,
        None if server.site_thetas is None else original(server.site_thetas),
        uncertainty.carried(_to_original(scaling, terms)),
        dict(zip(map(str, facts.sites), facts.sizes.tolist(), strict=True)),
    )  # fmt: skip


def compare(
    federation: Federation,
    model: str | Model = "logistic",
    methods: Sequence[str] = ("np-pooled", "fedsgd", "fedavg", "fedhybrid", "fednewton"),
    mu: float = 2.0,
    **settings: Any,
) -> dict[str, Result]:
    """The same data by several methods, each with the whole budget to itself, and a folder for its checkpoint.

    Options of methods (K, R, eta ...) go to the methods that have them.
    """
    if not methods:
        raise InputError("compare needs at least one method")
    common = {name: value for name, value in settings.items() if name in _FIT_SETTINGS}
    options = {name: value for name, value in settings.items() if name not in _FIT_SETTINGS}
    own = options_by_method(methods, options)
    folder = common.pop("checkpoint", None)
    for name in methods if folder is not None else ():
        own[name]["checkpoint"] = Path(folder) / name
    return {name: fit(federation, model, name, mu, **common, **own[name]) for name in methods}


_FIT_SETTINGS = frozenset(name for name, p in signature(fit).parameters.items() if p.kind is p.KEYWORD_ONLY)


def options_by_method(methods: Sequence[str], options: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Each method's share of the options; one that no method has is a fault."""
    known = {name: set() if name == AUTO else {f.name for f in fields(method_named(name))} for name in methods}  # type: ignore[arg-type]
    for option in options:
        if not any(option in names for names in known.values()):
            have = ", ".join(sorted(set().union(*known.values()))) or "none"
            raise InputError(f"none of these methods has an option {option!r}; their options: {have}")
    return {name: {k: v for k, v in options.items() if k in known[name]} for name in methods}


def _scale(server: Server, terms: Terms, engine: Engine, caveats: list[str]) -> scales.Scaling:
    facts, plan, with_target = terms.facts, terms.plan, terms.model.scales_target
    if terms.scaling == "none":
        return scales.Scaling.none(len(facts.features))
    if terms.scaling == "data":
        if math.isfinite(terms.mu):
            caveats.append("Feature scales (means, standard deviations) were read off the data without paying for it.")
        return engine.scaling_of_rows()
    start = scales.from_bounds(facts.features, facts.target_name, facts.bounds, terms.intercept, with_target)
    if not plan.scaling_steps:
        return start
    return scales.buy(server, plan.scaling_steps, start, plan.columns_to_scale, terms.intercept)


def _clipping(server: Server, terms: Terms, engine: Engine, caveats: list[str]) -> Clipping:
    wish = terms.wishes.bound
    if math.isinf(terms.mu):
        return Clipping(server.setting.clip)
    if wish == "paper":
        caveats.append("The clipping bound was read off the data (the paper's rule) without paying for it.")
        return terms.clipping(engine.paper_bound(server.start()))
    return terms.clipping(_private_bound(server, terms) if wish == "private" else float(wish or 0))


def _private_bound(server: Server, terms: Terms) -> float:
    """The quantile of the noisy histogram; where the budget is too small to see the rows, a guess."""
    noisy = server.ask(terms.plan.bound_steps[0], server.start(), edges=SCORE_GRID[None]).combined()
    counts = main_body(noisy, server.last_noise(0), float(server.sizes.sum()))
    return terms.bought_bound(counts)


def _uncertainty(server: Server, terms: Terms, theta: Array) -> Uncertainty:
    """Asks for the round that was bought for standard errors, if one was, and puts the pieces together."""
    last, released = server.last, None
    assert last is not None
    for step in terms.plan.error_steps:
        if math.isinf(terms.mu):  # a fit without noise may end early
            server.schedule = [*server.schedule[: len(server.records)], step]
        released = server.ask(step, theta)
    return assess(server, terms, theta, last, released)


def _to_original(scaling: scales.Scaling, terms: Terms) -> Array:
    """The matrix that carries coefficients on the fit's scale (flat) to the original one, but for a constant."""
    outputs, columns = terms.setting.shape
    if not terms.model.linear:
        return np.zeros((0, 0))
    zero = scaling.to_original(np.zeros((1, columns)), terms.intercept)
    moved = scaling.to_original(np.eye(columns), terms.intercept) - zero
    return np.asarray(np.kron(np.eye(outputs), moved.T))


def _measure(record: Record, release: int) -> tuple[Array, Array]:
    return record.sensitivities[release], record.sds[release]


def privacy_report(server: Server, caveats: list[str], noise_caveat: str) -> PrivacyReport:
    """Walk the rounds that were carried out. There is no other description of the run."""
    releases: list[ReleaseRecord] = []
    gaps: list[str] = list(caveats)
    for number, record in enumerate(server.records):
        step, asked = record.step, record.asked
        gaps += [gap for gap in step.query.gaps if gap not in gaps]
        for k, release in enumerate(step.query.releases()):
            measure = partial(_measure, record, k)
            releases.append(
                ReleaseRecord(number, step.query.name, release.what, release.part, asked.mus[k], asked.sites,
                              step.weights, step.query.linear, measure)
            )  # fmt: skip
    total, purposes = account(tuple(releases), len(server.setting.sizes))
    private = math.isfinite(total)
    certified = private and not gaps and server.setting.calibration == "certified"
    if private and server.setting.paper and server.setting.participation < 1:
        gaps.append(
            "Noise was drawn as if every site took part in every round, as in the paper; mu counts the rounds that a "
            "site did answer."
        )
    if private and noise_caveat:
        gaps.append(noise_caveat)
    return PrivacyReport(total, tuple(releases), tuple(gaps), certified, by_purpose=purposes)


def _communication(server: Server) -> Communication:
    rounds = []
    for r in server.records:
        count = len(r.step.sites)
        rounds.append(Round(r.step.query.name, count, r.floats_up * count, r.floats_down * count))
    return Communication(tuple(rounds))
