"""The game: who plays it, how the attacker learns to tell the data sets apart, and what its mistakes say of mu."""

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy import stats

from fedmest.auditing.attack import Attack
from fedmest.auditing.found import Audit
from fedmest.auditing.scenes import COLUMNS, Stage
from fedmest.engines import LocalEngine
from fedmest.errors import InputError
from fedmest.fitting import carry_out
from fedmest.methods import Method, method_named
from fedmest.models import Model, NetworkModel
from fedmest.privacy.gdp import Array
from fedmest.scaling import Scaling

OBSERVERS = ("server", "public")
SETTINGS = ("bound", "clip", "schedule", "scaling", "ridge", "errors")  # of `fit`, that an audit can take
OTHER_SITES, MORE_ROWS = 4, 30  # beside the one under attack, where only the published estimate is seen
THRESHOLDS = 400
CAUTION = 1 - 1e-8  # confidence in learning: thresholds far out in a tail must earn their place

Statistic = Callable[[Array], Array]


def audit(
    method: str | type[Method] = "fedsgd",
    model: str | Model = "logistic",
    mu: float = 1.0,
    *,
    calibration: str = "certified",
    observer: str = "server",
    games: int = 20_000,
    confidence: float = 0.99,
    scene: str | None = None,
    release: str | None = None,
    seed: int = 0,
    engine: Callable[..., LocalEngine] = LocalEngine,
    settings: dict[str, Any] | None = None,
    **options: Any,
) -> Audit:
    """Attack what one site sends in a whole run, or (observer="public") what the server publishes.

    method: an id, or a class of your own. model: a name ("network" is a small one), or a network of four inputs.
    games: how many are judged, half of them with either data set; as many again teach the attacker. Where only the
    estimate is seen, every game is a whole run.
    scene: the attack to mount; by default the one that promises most. release: attack one kind of release alone, such
    as "mean curvature", beside its own price; what is cheap would drown in the whole.
    settings: of `fit` (bound, clip, schedule, scaling, ridge, errors). Options of the method go by name.

    >>> found = audit("fedsgd", "logistic", mu=1.0, games=2000, K=5)
    >>> round(found.mu_claimed, 6), found.verdict, 0.5 < found.mu_lower < found.mu_exact < 1.000001
    (1.0, 'not refuted', True)
    """
    kind = _checked(method, model, observer, release, games, confidence, mu, seed, settings or {})
    stage = Stage(kind, model, float(mu), calibration, settings or {}, options, engine, release)
    scenes = {s.name: s for s in stage.scenes()}
    if scene is not None and scene not in scenes:
        raise InputError(f"there is no scene {scene!r}; choose one of {', '.join(scenes)}")
    attack = max(
        (Attack(stage, s) for name, s in scenes.items() if scene in (None, name)), key=lambda a: a.promise
    )
    ceiling = float(_lower(np.zeros(1), np.zeros(1), games // 2, confidence)[0])
    if ceiling <= attack.claim:
        raise InputError(f"{games:,} games cannot refute mu = {attack.claim:.3g}: even without a mistake they show "
                         f"{ceiling:.3g}; play more, or attack a smaller claim")  # fmt: skip
    if observer == "public":
        first, second, claim = _published(attack, games, seed)
        return _judge(attack, first, second, claim, games, confidence, observer, attack.leak)
    if attack.leak:
        return attack.verdict(attack.claim, math.inf, None, confidence, games, (0, 0), observer, attack.leak)
    worlds = [attack.play(other, games, seed) for other in (False, True)]
    return _judge(
        attack, worlds[0].features, worlds[1].features, attack.claim, games, confidence, observer,
        attack.repeats(worlds[0], worlds[1]),
    )  # fmt: skip


def _checked(
    method: Any, model: Any, observer: str, release: str | None, games: Any, confidence: Any, mu: Any, seed: Any,
    settings: Any,
) -> type[Method]:  # fmt: skip
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
    for name in settings:
        if name not in SETTINGS:
            raise InputError(f"an audit cannot take {name!r}; of the settings of fit it takes {', '.join(SETTINGS)}")
    if observer == "public" and release is not None:
        raise InputError("release= is for observer='server'; whoever sees the estimate alone sees no releases")
    if settings.get("errors", "auto") not in ("auto", "model", "none"):
        raise InputError(f"errors={settings['errors']!r}: an audit takes auto, model or none")
    return kind


def _published(attack: Attack, games: int, seed: int) -> tuple[Array, Array, float]:
    """Estimates of whole runs with either data set at one site of several, and what is claimed of them.

    Scales and bound are told: rows like these would make nonsense of them. Sites have more rows than where the server
    is the attacker: it will not hold theta in place, so noise must not move it far.
    """
    first, found = attack.scene.rows(False, MORE_ROWS), []
    sites = np.repeat(np.arange(OTHER_SITES + 1), len(first[1]))
    for other in (False, True):
        rows = attack.scene.rows(other, MORE_ROWS)
        X, y = (np.concatenate([a, *[b] * OTHER_SITES]) for a, b in zip(rows, first, strict=True))
        terms, engine = attack.stage.run(X, y, sites, 0)
        terms = replace(terms, wishes=replace(terms.wishes, bound=attack.clipping.bound, scaling="none"))
        words = np.random.default_rng([seed, int(other), 1]).integers(2**63, size=games)
        for word in words:
            engine.seed = int(word)
            engine.rescale(Scaling.none(COLUMNS))
            result = carry_out(terms, engine)
            found.append(result.theta.ravel())
    values = np.array(found)
    return values[:games], values[games:], result.privacy.third_party


def _judge(
    attack: Attack, first: Array, second: Array, claim: float, games: int, confidence: float, observer: str, leak: str
) -> Audit:
    """Learn from one half of the games how to tell, and count mistakes in the other."""
    half = len(first) // 2
    told = sum(message.directions.shape[1] for message in attack.messages) if observer == "server" else first.shape[1]
    statistic, cut = _learn(first[:half], second[:half], told, observer == "server")
    scores = statistic(first[half:]), statistic(second[half:])
    wrong = int((scores[0] > cut).sum()), int((scores[1] <= cut).sum())
    lower = float(_lower(np.array([wrong[0]]), np.array([wrong[1]]), len(scores[0]), confidence)[0])
    exact = attack.exact if observer == "server" else None
    return attack.verdict(claim, lower, exact, confidence, games, wrong, observer, leak, scores)


def _learn(first: Array, second: Array, told: int, sides: bool) -> tuple[Statistic, float]:
    """The statistic and the threshold that did best.

    Of the first columns, `told` hold the evidence, as many more that of the site beside. Tried are their sum, Fisher's
    discriminant with and without all other columns, and the likelihood ratio of independent normals.
    """
    most = 2 * told if sides else told
    tries: list[Statistic] = [_fisher(first, second, most), _normals(first, second, most)]
    if sides:
        tries += [lambda x: np.asarray(x[:, :told].sum(axis=1)), _fisher(first, second, first.shape[1])]
    best: tuple[float, Statistic, float] = (-math.inf, tries[0], 0.0)
    for statistic in tries:
        scores = np.sort(statistic(first)), np.sort(statistic(second))
        cuts = np.quantile(np.concatenate(scores), np.linspace(0.001, 0.999, THRESHOLDS))
        positives = len(first) - np.searchsorted(scores[0], cuts, side="right")
        negatives = np.searchsorted(scores[1], cuts, side="right")
        bounds = _lower(positives, negatives, len(first), CAUTION)
        place = int(np.argmax(bounds))
        if bounds[place] > best[0]:
            best = (float(bounds[place]), statistic, float(cuts[place]))
    return best[1], best[2]


def _fisher(first: Array, second: Array, columns: int) -> Statistic:
    """The linear discriminant of the first columns."""
    first, second = first[:, :columns], second[:, :columns]
    centre, gap = first.mean(axis=0), second.mean(axis=0) - first.mean(axis=0)
    scale = np.sqrt((first.var(axis=0) + second.var(axis=0)) / 2)
    scale = np.maximum(scale, np.maximum(1e-9 * np.abs(gap), 1e-300))
    both = np.concatenate([(first - centre) / scale, (second - centre - gap) / scale])
    inner = both.T @ both / len(both) + 1e-10 * np.eye(columns)
    weights = np.linalg.solve(inner, gap / scale) / scale
    return lambda x: np.asarray((x[:, :columns] - centre) @ weights)


def _normals(first: Array, second: Array, columns: int) -> Statistic:
    """The log-likelihood ratio of normals that differ in mean and variance, column by column."""
    means = [world[:, :columns].mean(axis=0) for world in (first, second)]
    gap = np.abs(means[1] - means[0])
    sds = [np.maximum(w[:, :columns].std(axis=0), np.maximum(1e-9 * gap, 1e-300)) for w in (first, second)]

    def ratio(x: Array) -> Array:
        parts = [((x[:, :columns] - m) / s) ** 2 / 2 + np.log(s) for m, s in zip(means, sds, strict=True)]
        return np.asarray((parts[0] - parts[1]).sum(axis=1))

    return ratio


def _lower(positives: npt.NDArray[Any], negatives: npt.NDArray[Any], games: int, confidence: float) -> Array:
    """The bound on mu from mistakes among so many games with either data set, by Clopper and Pearson's intervals."""
    level = 1 - (1 - confidence) / 2
    above = [
        np.where(wrong < games, stats.beta.ppf(level, wrong + 1, np.maximum(games - wrong, 1)), 1.0)
        for wrong in (positives, negatives)
    ]
    return np.maximum(-(stats.norm.ppf(above[0]) + stats.norm.ppf(above[1])), 0.0)
