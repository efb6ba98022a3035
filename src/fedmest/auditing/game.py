"""The game of an audit: how the attacker learns to tell two data sets apart, and the bound on mu from its mistakes."""

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy import stats

from fedmest.auditing.attack import Attack
from fedmest.auditing.result import AuditResult
from fedmest.auditing.scenarios import COLUMNS, AuditTarget
from fedmest.core.exceptions import InputError
from fedmest.core.typing import FloatArray
from fedmest.methods import Method, method_named
from fedmest.models import Model, NetworkModel
from fedmest.runs.backend import LocalBackend
from fedmest.runs.execute import execute
from fedmest.runs.settings import Settings

OBSERVERS = ("server", "public")
OTHER_SITES, MORE_ROWS = 4, 30  # beside the one under attack, where only the published estimate is seen
THRESHOLDS = 400
CAUTION = 1 - 1e-8  # confidence in learning: thresholds far out in a tail must be worth it

Statistic = Callable[[FloatArray], FloatArray]


def audit(
    method: str | type[Method] = "fedsgd",
    model: str | Model = "logistic",
    mu: float = 1.0,
    *,
    calibration: str = "certified",
    observer: str = "server",
    games: int = 20_000,
    confidence: float = 0.99,
    scenario: str | None = None,
    release: str | None = None,
    seed: int = 0,
    backend: Callable[..., LocalBackend] = LocalBackend,
    settings: dict[str, Any] | None = None,
    **options: Any,
) -> AuditResult:
    """Attack what one site sends in a whole run, or what the server publishes, and bound mu from below.

    Parameters
    ----------
    method : str or type of Method, default "fedsgd"
        An id, or a class.
    model : str or Model, default "logistic"
        A name ("network" is a small one), or a network of four inputs.
    mu : float, default 1.0
        Budget of the run: the claim.
    calibration : {"certified", "paper"}
        As in `Settings`.
    observer : {"server", "public"}
        What the attacker sees: every reply of the site, or the published estimate alone. With "public" every game is a
        whole run.
    games : int, default 20000
        Games that are judged, half of them with either data set; as many again train the attacker.
    confidence : float, default 0.99
        Confidence of the lower bound.
    scenario : str, optional
        The attack; by default the most promising one.
    release : str, optional
        Attack one kind of release alone, such as "mean curvature", against its own cost; a release that costs little
        would not be noticed among all.
    seed : int, default 0
        Seed of the games.
    backend : callable
        Makes the backend that answers; for tests of backends.
    settings : dict, optional
        Settings of `fit`: clip_norm, clip_rule, budget_schedule, scaling, ridge, cov_type.
    **options
        Options of the method.

    Returns
    -------
    AuditResult

    Raises
    ------
    InputError
        If an argument is not possible, or so few games cannot refute the claim.

    Examples
    --------
    >>> found = audit("fedsgd", "logistic", mu=1.0, games=2000, K=5)
    >>> round(found.mu_claimed, 6), found.verdict, 0.5 < found.mu_lower < found.mu_exact < 1.000001
    (1.0, 'not refuted', True)
    """
    kind = _checked(method, model, observer, release, games, confidence, mu, seed, settings or {})
    target = AuditTarget(kind, model, float(mu), calibration, settings or {}, options, backend, release)
    scenarios = {s.name: s for s in target.scenarios()}
    if scenario is not None and scenario not in scenarios:
        raise InputError(f"there is no scenario {scenario!r}; choose one of {', '.join(scenarios)}")
    attack = max(
        (Attack(target, s) for name, s in scenarios.items() if scenario in (None, name)), key=lambda a: a.promise
    )
    ceiling = float(_lower(np.zeros(1), np.zeros(1), games // 2, confidence)[0])
    if ceiling <= attack.claim:
        raise InputError(
            f"{games:,} games cannot refute mu = {attack.claim:.3g}: even without a mistake they show "
            f"{ceiling:.3g}; play more, or attack a smaller claim"
        )
    if observer == "public":
        first, second, claim = _published(attack, games, seed)
        return _judge(attack, first, second, claim, games, confidence, observer, attack.leak)
    if attack.leak:
        return attack.verdict(attack.claim, math.inf, None, confidence, games, (0, 0), observer, attack.leak)
    transcripts = [attack.play(other, games, seed) for other in (False, True)]
    return _judge(
        attack,
        transcripts[0].features,
        transcripts[1].features,
        attack.claim,
        games,
        confidence,
        observer,
        attack.repeats(transcripts[0], transcripts[1]),
    )


def _checked(
    method: Any,
    model: Any,
    observer: str,
    release: str | None,
    games: Any,
    confidence: Any,
    mu: Any,
    seed: Any,
    settings: Any,
) -> type[Method]:
    """The method, or an InputError that says what is wrong with the call."""
    kind = method_named(method) if isinstance(method, str) else method
    if not (isinstance(kind, type) and issubclass(kind, Method) and hasattr(kind, "id")):
        raise InputError(f"method={method!r}: give the id of a method, or a class that is one")
    if not isinstance(model, (str, Model)):
        raise InputError(f"model={model!r}: give a name, or a model")
    if isinstance(model, NetworkModel) and math.prod(model.row_shape) != COLUMNS:
        raise InputError(f"an audit takes networks of {COLUMNS} inputs, not of {math.prod(model.row_shape)}")
    if not kind.private:
        raise InputError(f"method {kind.id!r} is not private; there is nothing to audit")
    if observer not in OBSERVERS:
        raise InputError(f"observer={observer!r}: choose one of {', '.join(OBSERVERS)}")
    if isinstance(games, bool) or not isinstance(games, (int, np.integer)) or games < 100:
        raise InputError(f"games={games!r} must be a whole number of at least 100")
    if not (isinstance(confidence, float) and 0.5 <= confidence < 1):
        raise InputError(f"confidence={confidence!r} must lie between 0.5 and 1")
    if not (isinstance(mu, (int, float, np.floating)) and 0 < mu < math.inf):
        raise InputError(f"mu={mu!r} must be a positive number; without a budget there is nothing to audit")
    if isinstance(seed, bool) or not isinstance(seed, (int, np.integer)) or seed < 0:
        raise InputError(f"seed={seed!r} must be a whole number of at least 0")
    known = {name: info for name, info in Settings.info().items() if info.audit}
    for name, value in settings.items():
        if name not in known:
            raise InputError(f"an audit cannot take {name!r}; of the settings of fit it takes {', '.join(known)}")
        if (allowed := known[name].audit_choices) and value not in allowed:
            raise InputError(f"{name}={value!r}: an audit takes {', '.join(allowed)}")
    if observer == "public" and release is not None:
        raise InputError("release= is for observer='server'; whoever sees the estimate alone sees no releases")
    return kind


def _published(attack: Attack, games: int, seed: int) -> tuple[FloatArray, FloatArray, float]:
    """Estimates of whole runs with either data set at one site of several, and what is claimed of them.

    Scales and clip norm are given: rows like these would make nonsense of them. Sites have more rows than where the
    server is the attacker: it will not hold theta in place, so noise must not move it far.
    """
    first, found = attack.scenario.rows(False, MORE_ROWS), []
    sites = np.repeat(np.arange(OTHER_SITES + 1), len(first[1]))
    for other in (False, True):
        rows = attack.scenario.rows(other, MORE_ROWS)
        X, y = (np.concatenate([a, *[b] * OTHER_SITES]) for a, b in zip(rows, first, strict=True))
        spec, backend = attack.target.run(X, y, sites, 0)
        settings = replace(spec.settings, clip_norm=attack.clip_norm, scaling="none")
        spec = replace(spec, settings=settings)
        seeds = np.random.default_rng([seed, int(other), 1]).integers(2**63, size=games)
        for seed64 in seeds:
            backend.reseed(int(seed64))
            result = execute(spec, backend)
            found.append(result.coef_matrix.ravel())
    values = np.array(found)
    return values[:games], values[games:], result.privacy.third_party_mu()


def _judge(
    attack: Attack,
    first: FloatArray,
    second: FloatArray,
    claim: float,
    games: int,
    confidence: float,
    observer: str,
    leak: str,
) -> AuditResult:
    """Learn from one half of the games how to tell, and count mistakes in the other."""
    half = len(first) // 2
    columns = (
        sum(message.directions.shape[1] for message in attack.messages) if observer == "server" else first.shape[1]
    )
    statistic, cut = _learn(first[:half], second[:half], columns, observer == "server")
    scores = statistic(first[half:]), statistic(second[half:])
    wrong = int((scores[0] > cut).sum()), int((scores[1] <= cut).sum())
    lower = float(_lower(np.array([wrong[0]]), np.array([wrong[1]]), len(scores[0]), confidence)[0])
    exact = attack.exact if observer == "server" else None
    return attack.verdict(claim, lower, exact, confidence, games, wrong, observer, leak, scores)


def _learn(first: FloatArray, second: FloatArray, columns: int, sides: bool) -> tuple[Statistic, float]:
    """The statistic and the threshold that did best.

    Of the first columns, `columns` hold the evidence, as many more that of the site beside. Tried are their sum,
    Fisher's discriminant with and without all other columns, and the likelihood ratio of independent normals.
    """
    most = 2 * columns if sides else columns
    candidates: list[Statistic] = [_fisher(first, second, most), _normals(first, second, most)]
    if sides:
        candidates += [
            lambda x: np.asarray(x[:, :columns].sum(axis=1)),
            _fisher(first, second, first.shape[1]),
        ]
    best: tuple[float, Statistic, float] = (-math.inf, candidates[0], 0.0)
    for statistic in candidates:
        scores = np.sort(statistic(first)), np.sort(statistic(second))
        cuts = np.quantile(np.concatenate(scores), np.linspace(0.001, 0.999, THRESHOLDS))
        positives = len(first) - np.searchsorted(scores[0], cuts, side="right")
        negatives = np.searchsorted(scores[1], cuts, side="right")
        bounds = _lower(positives, negatives, len(first), CAUTION)
        place = int(np.argmax(bounds))
        if bounds[place] > best[0]:
            best = (float(bounds[place]), statistic, float(cuts[place]))
    return best[1], best[2]


def _fisher(first: FloatArray, second: FloatArray, columns: int) -> Statistic:
    """The linear discriminant of the first columns."""
    first, second = first[:, :columns], second[:, :columns]
    centre, gap = first.mean(axis=0), second.mean(axis=0) - first.mean(axis=0)
    scale = np.sqrt((first.var(axis=0) + second.var(axis=0)) / 2)
    scale = np.maximum(scale, np.maximum(1e-9 * np.abs(gap), 1e-300))
    both = np.concatenate([(first - centre) / scale, (second - centre - gap) / scale])
    inner = both.T @ both / len(both) + 1e-10 * np.eye(columns)
    weights = np.linalg.solve(inner, gap / scale) / scale
    return lambda x: np.asarray((x[:, :columns] - centre) @ weights)


def _normals(first: FloatArray, second: FloatArray, columns: int) -> Statistic:
    """The log-likelihood ratio of normals that differ in mean and variance, column by column."""
    means = [world[:, :columns].mean(axis=0) for world in (first, second)]
    gap = np.abs(means[1] - means[0])
    sds = [np.maximum(w[:, :columns].std(axis=0), np.maximum(1e-9 * gap, 1e-300)) for w in (first, second)]

    def ratio(x: FloatArray) -> FloatArray:
        parts = [((x[:, :columns] - m) / s) ** 2 / 2 + np.log(s) for m, s in zip(means, sds, strict=True)]
        return np.asarray((parts[0] - parts[1]).sum(axis=1))

    return ratio


def _lower(positives: npt.NDArray[Any], negatives: npt.NDArray[Any], games: int, confidence: float) -> FloatArray:
    """The bound on mu from mistakes among `games` games with either data set, by Clopper and Pearson's intervals."""
    level = 1 - (1 - confidence) / 2
    above = [
        np.where(wrong < games, stats.beta.ppf(level, wrong + 1, np.maximum(games - wrong, 1)), 1.0)
        for wrong in (positives, negatives)
    ]
    return np.maximum(-(stats.norm.ppf(above[0]) + stats.norm.ppf(above[1])), 0.0)
