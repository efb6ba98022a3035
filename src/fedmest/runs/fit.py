"""`fit` and `compare`: from a federation to results."""

import hashlib
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

from fedmest.core.exceptions import InputError
from fedmest.core.files import nearest
from fedmest.data.federation import Federation
from fedmest.data.validation import MAX_FEATURE
from fedmest.methods import Method, method_named
from fedmest.models import Model, model_named
from fedmest.privacy.noise import derive_seed
from fedmest.runs.backend import LocalBackend
from fedmest.runs.checkpoint import Checkpoint
from fedmest.runs.comparison import Comparison
from fedmest.runs.execute import execute
from fedmest.runs.planning_problem import AUTO, choose
from fedmest.runs.result import Result
from fedmest.runs.runner import Callback
from fedmest.runs.settings import Settings, flag_of
from fedmest.runs.spec import PublicFacts

SETTINGS = frozenset(f.name for f in fields(Settings))


def fit(
    federation: Federation,
    model: str | Model = "logistic",
    method: str | Method | type[Method] = "fednewton",
    mu: float = 2.0,
    *,
    seed: int | None = None,
    checkpoint: str | Path | None = None,
    callback: Callback | None = None,
    **settings: Any,
) -> Result:
    """Fit a model over all sites; every site's rows are protected by mu-Gaussian differential privacy.

    Parameters
    ----------
    federation : Federation
        The rows, by site.
    model : str or Model, default "logistic"
        A name, or a model such as ``NetworkModel(layers, shape)``. Networks take features as they are.
    method : str or Method, default "fednewton"
        An id, a method with its options such as ``FedIRLS(R=4)``, or "auto": the method that `plan` recommends for
        these sites and columns.
    mu : float, default 2.0
        Privacy budget of every site's rows; ``inf`` turns clipping and noise off.
    seed : int, optional
        The same call with the same seed gives the same estimate; without one noise differs from run to run.
    checkpoint : path, optional
        A folder. The same call with the same folder continues a run that was stopped.
    callback : callable, optional
        Called with a `RoundInfo` after every round, and after every new estimate.
    **settings
        Fields of `Settings` (``calibration``, ``clip_norm``, ``cov_type`` ...), and options of a method that is given
        by its id (``K``, ``R``, ``eta`` ...).

    Returns
    -------
    Result

    Raises
    ------
    InputError
        If an argument or the rows cannot be used; the message names the argument, column, site or value.
    ConvergenceError
        If the estimate is not finite.

    Examples
    --------
    >>> import numpy as np
    >>> rng = np.random.default_rng(0)
    >>> X, sites = rng.standard_normal((400, 2)), np.repeat(["a", "b"], 200)
    >>> fed = Federation.from_arrays(X, (X[:, 0] > 0).astype(int), sites)
    >>> result = fit(fed, model="logistic", method="fedsgd", mu=2.0, scaling="none", seed=1)
    >>> result.params.index.tolist(), round(result.privacy.mu, 6)
    (['intercept', 'x1', 'x2'], 2.0)
    """
    chosen, y = (model_named(model) if isinstance(model, str) else model).encode_target(federation)
    named, options = split_settings(settings)
    if isinstance(method, Method):
        if options:
            raise InputError(f"options {', '.join(options)} go into the method: {type(method).__name__}(...)")
        options, method = _given_options(method), type(method)  # registered, or one's own
    elif isinstance(method, str) and method != AUTO:
        options_by_method([method], options)  # a misspelt setting is not for the method to refuse
    spec = choose(PublicFacts.of(federation), chosen, method, mu, Settings(**named), options)
    if not max(federation.packed.max(), -federation.packed.min()) < MAX_FEATURE:  # images: no copy of them all
        raise InputError(f"a feature exceeds {MAX_FEATURE:g} in size; scale the column down")
    seed64 = derive_seed(seed, spec.noise_key)
    saved = None
    if checkpoint is not None:
        rows = hashlib.blake2b(federation.packed.data, digest_size=16)  # other rows must not meet the same noise
        rows.update(y.data)
        sites, sizes = federation.sites.tolist(), federation.sizes.tolist()
        saved = Checkpoint(
            checkpoint, repr([spec.noise_key, seed, sites, sizes, rows.hexdigest(), chosen.tools]), seed64
        )
        seed64 = saved.seed64
    spec = replace(spec, public_seed=derive_seed(seed64, "public draws"))  # seed64 itself keys the noise
    with saved or nullcontext():
        backend = LocalBackend(federation, chosen, y, spec.intercept, seed64, recorded=seed is not None)
        return execute(spec, backend, seed=seed, callback=callback, checkpoint=saved)


def compare(
    federation: Federation,
    model: str | Model = "logistic",
    methods: Sequence[str] = ("np-pooled", "fedsgd", "fedavg", "fedhybrid", "fednewton"),
    mu: float = 2.0,
    *,
    checkpoint: str | Path | None = None,
    **settings: Any,
) -> Comparison:
    """Fit the same data by several methods, each with the whole budget to itself.

    Parameters
    ----------
    federation : Federation
        The rows, by site.
    model : str or Model, default "logistic"
        A name, or a model.
    methods : sequence of str
        Ids of methods.
    mu : float, default 2.0
        Privacy budget of each fit.
    checkpoint : path, optional
        A folder that gets one folder per method.
    **settings
        As in `fit`; options of methods (``K``, ``R``, ``eta`` ...) go to the methods that have them.

    Returns
    -------
    Comparison

    Raises
    ------
    InputError
        If no method is named, or none has one of the options.

    Examples
    --------
    >>> import numpy as np
    >>> rng = np.random.default_rng(0)
    >>> X, sites = rng.standard_normal((400, 2)), np.repeat(["a", "b"], 200)
    >>> fed = Federation.from_arrays(X, (X[:, 0] > 0).astype(int), sites)
    >>> found = compare(fed, methods=("fedsgd", "fednewton"), scaling="none", seed=1)
    >>> found.summary_frame().columns.tolist()
    ['fedsgd', 'fednewton']
    """
    if not methods:
        raise InputError("compare needs at least one method")
    common = {name: value for name, value in settings.items() if name in SETTINGS or name in ("seed", "callback")}
    own = options_by_method(methods, {name: value for name, value in settings.items() if name not in common})
    folders = {name: None if checkpoint is None else Path(checkpoint) / name for name in methods}
    return Comparison(
        {name: fit(federation, model, name, mu, checkpoint=folders[name], **common, **own[name]) for name in methods}
    )


def split_settings(given: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Settings of the fit, and options of the method."""
    settings = {name: value for name, value in given.items() if name in SETTINGS}
    return settings, {name: value for name, value in given.items() if name not in SETTINGS}


def options_by_method(methods: Sequence[str], options: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Each method's share of the options; an InputError for one that no method has."""
    known = {name: set() if name == AUTO else {f.name for f in fields(method_named(name))} for name in methods}  # type: ignore[arg-type]
    for option in options:
        if not any(option in names for names in known.values()):
            if option in SETTINGS:  # from the command line; `fit` takes settings out first
                raise InputError(f"{option!r} is a setting and no option of a method; write {flag_of(option)}")
            every = [*sorted(set().union(*known.values())), *sorted(SETTINGS)]
            raise InputError(f"there is no setting or option {option!r}; {nearest(option, every, 'there are')}")
    return {name: {k: v for k, v in options.items() if k in known[name]} for name in methods}


def _given_options(method: Method) -> dict[str, Any]:
    """Options of an instance that are not the defaults of its class."""
    given = {f.name: getattr(method, f.name) for f in fields(method)}  # type: ignore[arg-type]
    usual = vars(type(method)())
    return {name: value for name, value in given.items() if value != usual[name]}
