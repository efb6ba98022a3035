"""`fit` and `compare`: from a federation to results. The order of a run is written here, once."""

import hashlib
import math
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from copy import copy
from dataclasses import dataclass, fields, replace
from functools import partial
from inspect import signature
from pathlib import Path
from typing import Any

import numpy as np

from fedmest import scaling as scales
from fedmest.checkpoint import Checkpoint
from fedmest.engines import LocalEngine
from fedmest.errors import InputError
from fedmest.federation import Federation
from fedmest.methods import CALIBRATIONS, WEIGHTS, Method, Record, Server, Setting, Step, method_named
from fedmest.models import CLIPS, Clipping, Model, model_named
from fedmest.privacy.budget import SCHEDULES
from fedmest.privacy.gdp import Array
from fedmest.privacy.noise import LOCAL_STEPS, seed_word
from fedmest.privacy.statement import PrivacyReport, ReleaseRecord, account
from fedmest.queries.histogram import SCORE_GRID, Histogram, main_body, quantile
from fedmest.result import Communication, Result

BOUND_SHARE = 0.01  # of mu^2 (mu / 10), for the histogram that chooses B
MOST_STEPS = LOCAL_STEPS // 2  # of either kind; far beyond LOCAL_STEPS two releases would share their noise
LARGEST_FEATURE = 1e100


@dataclass(frozen=True)
class _Plan:
    """All that is decided before a row is read."""

    method: Method
    setting: Setting
    columns_to_scale: tuple[int, ...]
    scaling_steps: list[Step]
    bound_steps: list[Step]
    method_steps: list[Step]

    @property
    def steps(self) -> list[Step]:
        return [*self.scaling_steps, *self.bound_steps, *self.method_steps]


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
    seed: int | None = None,
    progress: Callable[[int, int], None] | None = None,
    watch: Callable[[int, int, Array], None] | None = None,
    checkpoint: str | Path | None = None,
    **options: Any,
) -> Result:
    """Fit a model over all sites; every site's rows are protected by mu-Gaussian differential privacy.

    model: a name, or a model of your own, such as NetworkModel(layers, shape). Networks take features as they are.
    calibration="certified" derives all noise from proved sensitivities; "paper" reproduces the paper, gaps included.
    clip: "consistent" keeps the estimating equation unbiased, "norm" is the paper's, and the only one for networks.
    bound: "private" buys B with 1 % of mu^2, a number is used as it is, "paper" reads it off the data.
    schedule: "geometric" spends more on later steps, "uniform" is the paper's, and the default for networks.
    scaling: "auto" uses declared bounds and buys the rest privately (the paper's calibration leaves the rest alone;
    without privacy it is read off the data).
    weights: "size", or the paper's "optimal" with `weight_constant` for trace(Sigma) / d.
    participation: the share of sites asked in each round.
    ridge: a penalty ridge/2 |slopes|^2 on the mean loss, in original units; of a network, on all parameters.
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
    kind = method_named(method)
    if not kind.private:
        mu = math.inf
    paper = calibration == "paper"
    clip = clip if clip is not None else ("norm" if paper else chosen.clips[0])
    if schedule is None:  # nothing is known of how a network forgets the noise of early steps
        schedule = "uniform" if paper or not chosen.linear else "geometric"
    bound = bound if bound is not None else ("paper" if paper else "private")
    _check_choices(calibration=calibration, clip=clip, schedule=schedule, scaling=scaling, weights=weights)
    _check_numbers(bound, mu, ridge, weight_constant, participation, calibration)
    _check_fit(kind, chosen, calibration, clip, participation, fit_intercept)
    y = chosen.target(federation)
    if not max(federation.packed.max(), -federation.packed.min()) < LARGEST_FEATURE:  # images: no copy of them all
        raise InputError(f"a feature exceeds {LARGEST_FEATURE:g} in size; scale the column down")
    intercept = fit_intercept or not chosen.linear  # networks have biases of their own; the column costs nothing
    name = _name_of_fit(
        chosen.identity, method, federation.target_name, federation.features, sorted(federation.bounds.items()), mu,
        calibration, clip, bound, schedule, scaling, weights, weight_constant, participation, ridge, intercept,
        *sorted(options), *(options[k] for k in sorted(options)),
    )  # fmt: skip
    word = seed_word(seed, name)
    saved = None
    if checkpoint is not None:
        rows = hashlib.blake2b(federation.packed.data, digest_size=16)  # other rows must not meet the same noise
        rows.update(y.data)
        facts = [name, seed, federation.sites.tolist(), federation.sizes.tolist(), rows.hexdigest(), chosen.tools]
        saved = Checkpoint(checkpoint, repr(facts), word)
        word = saved.word
    with saved or nullcontext():
        setting = Setting(
            chosen, federation.sizes, len(federation.features) + intercept, float(mu), calibration, clip, schedule,
            weights, weight_constant, participation, seed_word(word, "public draws"),  # the word itself keys the noise
        )  # fmt: skip
        mode = _scaling_mode(scaling, federation, chosen, setting)
        plan = _plan(kind.with_options(options, calibration), setting, federation, mode, bound)
        engine = LocalEngine(federation, chosen, y, intercept, word)
        server = Server(
            setting, plan.steps, engine.answer, Clipping(clip), np.zeros(setting.shape), on_round=progress,
            checkpoint=saved,
        )  # fmt: skip

        # 1. scales, 2. the bound, 3. the method; all along one schedule
        caveats: list[str] = []
        scaling_used = _scale(server, plan, engine, mode, caveats)
        engine.rescale(scaling_used)
        server.penalty[:] = ridge
        original = partial(scaling_used.to_original, intercept=intercept) if chosen.linear else np.asarray
        if chosen.linear:
            server.penalty[:, int(intercept) :] /= scaling_used.scale**2  # the ridge is meant for original units
            server.penalty[:, : int(intercept)] = 0.0
        if watch is not None:
            server.on_theta = lambda theta: watch(len(server.records), len(server.schedule), original(theta))
        server.clipping = _clipping(server, plan, engine, bound, caveats)
        theta = plan.method.run(server, plan.method_steps)
        if not np.isfinite(theta).all():
            raise InputError("the estimate is not finite: the steps are too long; lower eta, or scale the features")
        if chosen.outputs > 1:
            theta = theta - theta.mean(axis=0)

        fit_intercept = intercept and chosen.linear
        names = (("intercept",) if fit_intercept else ()) + federation.features
        settings = {
            "method_title": kind.title, "calibration": calibration, "clip": clip, "schedule": schedule, "scaling": mode,
            "bound": server.clipping.bound if math.isfinite(server.clipping.bound) else None, "weights": weights,
            "participation": participation, "ridge": ridge, "seed": seed, "n_rows": federation.n_rows,
            "n_sites": federation.n_sites, "options": dict(vars(plan.method)),
            "scales": {
                name: [float(c), float(s)]
                for name, c, s in zip(federation.features, scaling_used.centre, scaling_used.scale, strict=True)
                if chosen.linear
            },
        }  # fmt: skip
        return Result(
            original(theta), names, chosen, method, _report(server, caveats, seed), _communication(server),
            tuple(original(t) for t in server.history), settings, fit_intercept,
            None if server.site_thetas is None else original(server.site_thetas),
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
    known = {name: {f.name for f in fields(method_named(name))} for name in methods}  # type: ignore[arg-type]
    for option in options:
        if not any(option in names for names in known.values()):
            have = ", ".join(sorted(set().union(*known.values()))) or "none"
            raise InputError(f"none of these methods has an option {option!r}; their options: {have}")
    return {name: {k: v for k, v in options.items() if k in known[name]} for name in methods}


_CHOICES = {
    "calibration": CALIBRATIONS, "clip": CLIPS, "schedule": SCHEDULES, "scaling": scales.SCALINGS, "weights": WEIGHTS,
}  # fmt: skip


def _check_choices(**given: str) -> None:
    for name, value in given.items():
        if value not in _CHOICES[name]:
            raise InputError(f"{name}={value!r}: choose one of {', '.join(_CHOICES[name])}")


def _check_numbers(
    bound: str | float, mu: float, ridge: float, weight_constant: float, participation: float, calibration: str
) -> None:
    if isinstance(bound, str):
        if bound not in ("private", "paper"):
            raise InputError(f"bound={bound!r}: choose private, paper, or give a positive number")
        if bound == "paper" and calibration == "certified" and math.isfinite(mu):
            raise InputError("bound='paper' reads the data without paying; it goes with calibration='paper' only")
    elif not _is_number(bound) or not (math.isfinite(bound) and bound > 0):
        raise InputError(f"bound={bound!r} must be a positive number")
    if not _is_number(mu) or math.isnan(mu) or mu <= 0:
        raise InputError(f"mu={mu!r} must be a positive number (inf for a fit without privacy)")
    if not _is_number(ridge) or not (math.isfinite(ridge) and ridge >= 0):
        raise InputError(f"ridge={ridge!r} must be a number of at least 0")
    if not _is_number(weight_constant) or not (math.isfinite(weight_constant) and weight_constant > 0):
        raise InputError(f"weight_constant={weight_constant!r} must be a positive number")
    if not _is_number(participation) or not 0 < participation <= 1:
        raise InputError(f"participation={participation!r} must lie above 0 and at most at 1")


def _check_fit(
    kind: type[Method], model: Model, calibration: str, clip: str, participation: float, fit_intercept: bool
) -> None:
    if not isinstance(fit_intercept, bool):
        raise InputError(f"fit_intercept={fit_intercept!r} must be True or False")
    if participation < 1 and not kind.samples_sites:
        raise InputError(f"method {kind.id!r} needs every site in every round; leave participation at 1")
    if calibration == "paper" and not kind.in_paper:
        raise InputError(f"method {kind.id!r} is not in the paper; leave calibration at 'certified'")
    if not kind.takes(model):
        models = f"{', '.join(kind.models)} models" if kind.models else "regressions"
        raise InputError(f"method {kind.id!r} works for {models}, not for {model.name}")
    if clip not in model.clips:
        raise InputError(f"clip={clip!r}: the {model.name} model takes clip={' or '.join(map(repr, model.clips))} only")


def _name_of_fit(*settings: Any) -> str:
    """A text that fits share only if model, method, columns and all settings agree; 2 and 2.0 are one number."""
    return repr([float(value) if _is_number(value) else value for value in settings])


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float, np.number)) and not isinstance(value, bool)


def _scaling_mode(scaling: str, federation: Federation, model: Model, s: Setting) -> str:
    """Which scaling "auto" stands for, and whether the wish can be met."""
    if not model.linear:
        if scaling in ("auto", "none"):
            return "none"
        raise InputError(
            f"scaling={scaling!r}: the {model.name} model takes features as they are; bring pixels to a common range "
            "such as 0 to 1 beforehand, and leave scaling at 'auto'"
        )
    open_columns = scales.unbounded_columns(federation, model.scales_target)
    if scaling == "bounds" and open_columns:
        name = federation.target_name if open_columns[0] == 0 else federation.features[open_columns[0] - 1]
        raise InputError(
            f"scaling='bounds', but column {name!r} has no declared bounds; declare them ({name}=low:high) or use "
            "scaling='private'"
        )
    if scaling != "auto":
        return "data" if scaling == "private" and math.isinf(s.mu) else scaling
    if not open_columns:
        return "bounds"
    if math.isinf(s.mu):
        return "data"
    if s.paper:
        return "bounds" if federation.bounds else "none"
    return "private"


def _plan(method: Method, s: Setting, federation: Federation, mode: str, bound: str | float) -> _Plan:
    """Split the budget and write the schedule, from public facts alone."""
    everyone = replace(s, participation=1.0)
    left = 1.0
    columns: tuple[int, ...] = ()
    scaling_steps: list[Step] = []
    bound_steps: list[Step] = []
    if math.isfinite(s.mu):
        if mode == "private":
            columns = scales.unbounded_columns(federation, s.model.scales_target)
            if columns:
                scaling_steps = scales.schedule(
                    everyone, columns, s.columns > len(federation.features), s.mu * math.sqrt(scales.SHARE)
                )
                left -= scales.SHARE
        if bound == "private":
            bound_steps = scales.histogram_steps(everyone, [Histogram(method.bounds)], s.mu * math.sqrt(BOUND_SHARE))
            left -= BOUND_SHARE
    own = replace(s, mu=s.mu * math.sqrt(left))
    plan = _Plan(method, s, columns, scaling_steps, bound_steps, method.schedule(own))
    longest = max(len(step.mus) for step in plan.steps)
    if math.isfinite(s.mu) and max(len(plan.steps), longest) > MOST_STEPS:
        raise InputError(f"a private run takes at most {MOST_STEPS} rounds and {MOST_STEPS} local steps a round")
    return plan


def _scale(server: Server, plan: _Plan, engine: LocalEngine, mode: str, caveats: list[str]) -> scales.Scaling:
    federation, scales_target = engine.federation, engine.model.scales_target
    if mode == "none":
        return scales.Scaling.none(len(federation.features))
    if mode == "data":
        if math.isfinite(server.setting.mu):
            caveats.append("Feature scales (means, standard deviations) were read off the data without paying for it.")
        return scales.from_data(federation, engine.y, engine.intercept, scales_target)
    start = scales.from_bounds(federation, engine.intercept, scales_target)
    if not plan.scaling_steps:
        return start
    return scales.buy(server, plan.scaling_steps, start, plan.columns_to_scale, engine.intercept)


def _clipping(
    server: Server, plan: _Plan, engine: LocalEngine, bound: str | float, caveats: list[str]
) -> Clipping:
    rule = server.setting.clip
    if math.isinf(server.setting.mu):
        return Clipping(rule)
    if bound == "paper":
        caveats.append("The clipping bound was read off the data (the paper's rule) without paying for it.")
        size = engine.paper_bound(server.start())
    elif bound == "private":
        size = _private_bound(server, plan)
    else:
        size = float(bound)
    columns = server.setting.columns
    reach = math.inf if server.setting.paper else engine.model.reach(columns)
    return Clipping(rule, size, engine.model.curvature_bound(size, columns), reach)


def _private_bound(server: Server, plan: _Plan) -> float:
    """The quantile of the noisy histogram; where the budget is too small to see the rows, a guess."""
    noisy = server.ask(plan.bound_steps[0], server.start(), edges=SCORE_GRID[None]).combined()
    counts = main_body(noisy, float(np.linalg.norm(server.records[-1].sds[0])), float(server.sizes.sum()))
    if counts is None:
        return server.setting.model.guessed_bound(server.setting.columns)
    return quantile(counts, SCORE_GRID, plan.method.bound_quantile or server.setting.model.bound_quantile)


def _measure(record: Record, release: int) -> tuple[Array, Array]:
    return record.sensitivities[release], record.sds[release]


def _report(server: Server, caveats: list[str], seed: int | None) -> PrivacyReport:
    """Walk the rounds that were carried out. There is no other description of the run."""
    releases: list[ReleaseRecord] = []
    gaps: list[str] = list(caveats)
    for number, record in enumerate(server.records):
        step = record.step
        gaps += [gap for gap in step.query.gaps if gap not in gaps]
        for k, release in enumerate(step.query.releases()):
            measure = partial(_measure, record, k)
            releases.append(
                ReleaseRecord(number, step.query.name, release.what, release.part, step.mus[k], step.sites,
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
    if private:
        gaps.append(
            "The noise of this run is a rehearsal: floating-point numbers from "
            + ("a recorded seed, which whoever knows it can take off again." if seed is not None
               else "a pseudo-random generator on the analyst's machine, not drawn at the sites.")
        )  # fmt: skip
    return PrivacyReport(total, tuple(releases), tuple(gaps), certified, by_purpose=purposes)


def _communication(server: Server) -> Communication:
    up = sum(r.floats_up * len(r.step.sites) for r in server.records)
    down = sum(r.floats_down * len(r.step.sites) for r in server.records)
    return Communication(len(server.records), up, down)

