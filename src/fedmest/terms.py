"""What is agreed before a row is read: model, method, budget, columns, sites and their sizes. All of it is public.

Server and sites write the schedule from the same terms, each for itself. So a site knows what it will be asked, in
which round and at what price, without being told.
"""

import json
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from fedmest import scaling as scales
from fedmest.errors import InputError
from fedmest.federation import Bounds, Index
from fedmest.inference import FEWEST_SITES, MOST_PARAMETERS, ROUTES
from fedmest.methods import CALIBRATIONS, WEIGHTS, Method, Setting, Step, method_named
from fedmest.models import CLIPS, Clipping, Model, model_named
from fedmest.privacy.budget import SCHEDULES, split
from fedmest.privacy.gdp import Array
from fedmest.privacy.noise import LOCAL_STEPS
from fedmest.privacy.statement import paid
from fedmest.queries import Ask, Descent, Moments, NewtonParts, Spread
from fedmest.queries.histogram import SCORE_GRID, Histogram, quantile

BOUND_SHARE = 0.01  # of mu^2 (mu / 10), for the histogram that chooses B
ERROR_SHARE = 0.05  # of mu^2, where standard errors are bought
ON_PAPER = {
    "model", "classes", "method", "mu", "wishes", "options", "seed", "sites", "sizes", "features", "target", "bounds",
}  # fmt: skip
MOST_STEPS = LOCAL_STEPS // 2  # of either kind; far beyond LOCAL_STEPS two releases would share their noise


class Facts(Protocol):
    """What is public about rows: a federation has it, and a roster."""

    @property
    def sites(self) -> npt.NDArray[np.object_]: ...
    @property
    def sizes(self) -> Index: ...
    @property
    def features(self) -> tuple[str, ...]: ...
    @property
    def target_name(self) -> str: ...
    @property
    def bounds(self) -> Bounds: ...


@dataclass(frozen=True)
class Roster:
    """The public facts about rows that are elsewhere. Sites in the order of their names."""

    sites: npt.NDArray[np.object_]
    sizes: Index
    features: tuple[str, ...]
    target_name: str
    bounds: Bounds


@dataclass(frozen=True)
class Wishes:
    """How a fit is to be done, as users say it; None leaves a choice to the calibration and the model."""

    calibration: str = "certified"
    clip: str | None = None
    bound: str | float | None = None
    schedule: str | None = None
    scaling: str = "auto"
    weights: str = "size"
    weight_constant: float = 1.0
    participation: float = 1.0
    ridge: float = 0.0
    fit_intercept: bool = True
    errors: str = "auto"  # how standard errors are come by, see `Terms.errors`

    def settled(self, model: Model) -> "Wishes":
        """No None left."""
        paper = self.calibration == "paper"
        schedule = "uniform" if paper or not model.linear else "geometric"  # who knows how a network forgets noise
        return replace(
            self,
            clip=self.clip if self.clip is not None else ("norm" if paper else model.clips[0]),
            bound=self.bound if self.bound is not None else ("paper" if paper else "private"),
            schedule=self.schedule if self.schedule is not None else schedule,
        )


@dataclass(frozen=True)
class Plan:
    """The whole schedule: rounds that buy scales, the round that buys the bound, the method's own, standard errors."""

    columns_to_scale: tuple[int, ...]
    scaling_steps: list[Step]
    bound_steps: list[Step]
    method_steps: list[Step]
    error_steps: list[Step]

    @property
    def steps(self) -> list[Step]:
        return [*self.scaling_steps, *self.bound_steps, *self.method_steps, *self.error_steps]


@dataclass(frozen=True)
class Errors:
    """How standard errors are come by: the route, whether a round is bought for them, or why there are none."""

    route: str
    bought: bool = False
    why: str = ""
    for_sale: bool = False  # none come free, but errors="model" would buy them


@dataclass(frozen=True)
class Terms:
    """One fit, up to its noise."""

    facts: Facts
    model: Model  # knows its classes
    method: Method
    mu: float
    wishes: Wishes  # settled
    options: dict[str, Any] = field(default_factory=dict)
    seed: int = 0  # of public draws

    @staticmethod
    def agree(
        facts: Facts, model: Model, method: str | type[Method], mu: float, wishes: Wishes, options: dict[str, Any],
        seed: int = 0,
    ) -> "Terms":  # fmt: skip
        """Checked terms, or an InputError that says what cannot be agreed to."""
        kind = method_named(method) if isinstance(method, str) else method
        settled = wishes.settled(model)
        if not kind.private:
            mu = math.inf
        _check_choices(settled)
        _check_numbers(settled, mu)
        _check_fit(kind, model, settled)
        return Terms(facts, model, kind.with_options(options, settled.calibration), mu, settled, options, seed)

    @property
    def intercept(self) -> bool:
        return self.wishes.fit_intercept or not self.model.linear  # networks have biases; the column costs nothing

    @property
    def name(self) -> str:
        """A text that fits share only if model, method, columns and all settings agree; 2 and 2.0 are one number."""
        facts, w = self.facts, self.wishes
        settings = (
            self.model.identity, self.method.id, facts.target_name, facts.features, sorted(facts.bounds.items()),
            self.mu, w.calibration, w.clip, w.bound, w.schedule, w.scaling, w.weights, w.weight_constant,
            w.participation, w.ridge, self.intercept, *sorted(self.options),
            *(self.options[k] for k in sorted(self.options)), *([w.errors] if w.errors != "auto" else []),
        )  # fmt: skip
        return repr([float(value) if _is_number(value) else value for value in settings])

    @cached_property
    def setting(self) -> Setting:
        w = self.wishes
        return Setting(
            self.model, self.facts.sizes, len(self.facts.features) + self.intercept, float(self.mu), w.calibration,
            str(w.clip), str(w.schedule), w.weights, w.weight_constant, w.participation, self.seed,
        )  # fmt: skip

    @cached_property
    def scaling(self) -> str:
        """Which scaling "auto" stands for; an InputError where the wish cannot be met."""
        wish, model, facts = self.wishes.scaling, self.model, self.facts
        if not model.linear:
            if wish in ("auto", "none"):
                return "none"
            raise InputError(
                f"scaling={wish!r}: the {model.name} model takes features as they are; bring pixels to a common range "
                "such as 0 to 1 beforehand, and leave scaling at 'auto'"
            )
        open_columns = scales.unbounded_columns(facts.features, facts.target_name, facts.bounds, model.scales_target)
        if wish == "bounds" and open_columns:
            name = facts.target_name if open_columns[0] == 0 else facts.features[open_columns[0] - 1]
            raise InputError(
                f"scaling='bounds', but column {name!r} has no declared bounds; declare them ({name}=low:high) or use "
                "scaling='private'"
            )
        if wish != "auto":
            return "data" if wish == "private" and math.isinf(self.mu) else wish
        if not open_columns:
            return "bounds"
        if math.isinf(self.mu):
            return "data"
        if self.setting.paper:
            return "bounds" if facts.bounds else "none"
        return "private"

    @cached_property
    def errors(self) -> Errors:
        """What "auto" stands for: whatever comes free with the run. An InputError where a wish cannot be met."""
        wish, s = self.wishes.errors, self.setting
        if wish == "none":
            return Errors("none", why="no standard errors: none were asked for (errors='none')")
        steps = self.method.schedule(s)
        fault, last = self._no_errors(steps), steps[-1].query
        curved, free = isinstance(last, NewtonParts | Moments), math.isinf(s.mu)
        ready = isinstance(last, Moments) or (curved and self.model.dispersion_known)
        many = len(s.sizes) >= FEWEST_SITES and isinstance(last, NewtonParts | Descent)
        if fault is None and wish == "auto":
            if ready or free:
                return Errors("model", bought=not ready)
            if many:
                return Errors("sites")
            fault = (
                "it does not release what they need; errors='model' or errors='sandwich' buys that with "
                f"{100 * ERROR_SHARE:.0f} % of mu^2"
            )
            return Errors("none", why=f"no standard errors for method {self.method.id!r}: {fault}", for_sale=True)
        if fault is None and wish == "sites" and not many:
            fault = f"it takes {FEWEST_SITES} sites or more that send estimates, or gradients with curvature"
        if fault is None and wish == "sandwich":
            return Errors("sites") if many else Errors("sandwich", bought=True)
        if fault is None:
            return Errors(wish, bought=wish == "model" and not ready)
        if wish != "auto":
            raise InputError(f"errors={wish!r} with method {self.method.id!r}: {fault}")
        return Errors("none", why=f"no standard errors for method {self.method.id!r}: {fault}")

    def _no_errors(self, steps: list[Step]) -> str | None:
        """Why there is no interval by any route, if so."""
        if not self.model.linear:
            return "networks have none"
        if (size := math.prod(self.setting.shape)) > MOST_PARAMETERS:
            return f"{size:,} parameters are too many for a covariance; at most {MOST_PARAMETERS}"
        if self.setting.participation < 1:
            return "they are worked out for runs in which every site takes part"
        if self.setting.paper and math.isfinite(self.mu):
            return "the paper's clipping has a bias that intervals would miss; use calibration='certified'"
        return self.method.untraced(steps)

    @cached_property
    def plan(self) -> Plan:
        """Split the budget and write the schedule, from public facts alone."""
        s, facts, left = self.setting, self.facts, 1.0
        everyone = replace(s, participation=1.0)
        columns: tuple[int, ...] = ()
        scaling_steps: list[Step] = []
        bound_steps: list[Step] = []
        if math.isfinite(s.mu):
            if self.scaling == "private":
                columns = scales.unbounded_columns(
                    facts.features, facts.target_name, facts.bounds, self.model.scales_target
                )
                if columns:
                    price = s.mu * math.sqrt(scales.SHARE)
                    scaling_steps = scales.schedule(everyone, columns, s.columns > len(facts.features), price)
                    left -= scales.SHARE
            if self.wishes.bound == "private":
                queries = [Histogram(self.method.bounds)]
                bound_steps = scales.histogram_steps(everyone, queries, s.mu * math.sqrt(BOUND_SHARE))
                left -= BOUND_SHARE
        error_steps: list[Step] = []
        if self.errors.bought:
            prices = split(s.mu * math.sqrt(ERROR_SHARE), [1.0, 1.0])
            error_steps = [Step(Spread(), prices[:, None], s.everyone, s.weights())]
            left -= ERROR_SHARE
        own = replace(s, mu=s.mu * math.sqrt(left))
        plan = Plan(columns, scaling_steps, bound_steps, self.method.schedule(own), error_steps)
        longest = max(len(step.mus) for step in plan.steps)
        if math.isfinite(s.mu) and max(len(plan.steps), longest) > MOST_STEPS:
            raise InputError(f"a private run takes at most {MOST_STEPS} rounds and {MOST_STEPS} local steps a round")
        return plan

    def check_spending(self) -> None:
        """No schedule may announce more than was agreed, whoever wrote its method."""
        if math.isinf(self.mu):
            return
        releases = (
            (release.part, step.mus[k], step.sites)
            for step in self.plan.steps for k, release in enumerate(step.query.releases())
        )  # fmt: skip
        spent = math.sqrt(float(paid(releases, len(self.facts.sizes)).max()))
        if not spent <= self.mu * (1 + 1e-9):
            raise RuntimeError(
                f"method {self.method.id!r} announces releases that cost mu = {spent:.4g}, more than the {self.mu:.4g} "
                "of this run; its schedule must keep within the mu of the setting"
            )

    @cached_property
    def floats(self) -> int:
        """Numbers that the whole run sends, in both directions."""
        plan, zero = self.plan, np.zeros(self.setting.shape)
        grids = [scales.SIGNED_GRID.size, scales.FINE_BINS + 1][: len(plan.scaling_steps)]
        grids += [SCORE_GRID.size] * len(plan.bound_steps)
        floats, last, size = 0, None, 0
        for number, step in enumerate(plan.steps):
            if step.query is not last or number <= len(grids):  # most rounds are like the one before
                groups = len(plan.columns_to_scale) if number < len(plan.scaling_steps) else 1
                edges = np.empty((groups, grids[number])) if number < len(grids) else None
                ask = Ask(zero, Clipping(), zero, edges=edges)
                last, size = step.query, step.query.reply_size(ask, self.setting.columns) + ask.floats_down
            floats += len(step.sites) * size
        return floats

    def penalty(self, scaling: scales.Scaling) -> Array:
        """The ridge, meant for original units, on the scaled parameter; none on the intercept."""
        penalty = np.full(self.setting.shape, float(self.wishes.ridge))
        if self.model.linear:
            penalty[:, int(self.intercept) :] /= scaling.scale**2
            penalty[:, : int(self.intercept)] = 0.0
        return penalty

    def bought_bound(self, counts: Array | None) -> float:
        """The bound from a histogram of score norms at the start, or a guess where noise leaves nothing of it.

        Where the model may be wrong (errors="sandwich"), what it gives back for cut scores may be, too: cut fewer.
        """
        if counts is None:
            return self.model.guessed_bound(self.setting.columns)
        level = self.method.bound_quantile or self.model.bound_quantile
        stretch = self.model.stretch if self.wishes.errors == "sandwich" else 1.0
        return stretch * quantile(counts, SCORE_GRID, level)

    def clipping(self, bound: float) -> Clipping:
        """How rows are clipped once the bound is known."""
        columns = self.setting.columns
        reach = math.inf if self.setting.paper else self.model.reach(columns)
        curvature = self.model.curvature_bound(bound, columns, trusted=self.wishes.errors != "sandwich")
        return Clipping(str(self.wishes.clip), bound, curvature, reach)

    # -- on paper ---------------------------------------------------------------------------------------------

    def as_json(self) -> str:
        """Everything that another machine needs to write the same schedule; of models only regressions."""
        facts = self.facts
        return json.dumps(
            {
                "model": self.model.name, "classes": list(self.model.classes), "method": self.method.id, "mu": self.mu,
                "wishes": asdict(self.wishes), "options": self.options, "seed": self.seed,
                "sites": list(facts.sites), "sizes": facts.sizes.tolist(), "features": list(facts.features),
                "target": facts.target_name, "bounds": {name: list(pair) for name, pair in facts.bounds.items()},
            },
            sort_keys=True, allow_nan=False,
        )  # fmt: skip

    @staticmethod
    def from_json(text: str) -> "Terms":
        """Terms that someone else wrote, checked as if we had; an InputError where they make no sense."""
        try:
            given = json.loads(text, parse_constant=_no_number)
            if odd := sorted(set(given) - ON_PAPER):  # could be one that someone believes we heed
                raise InputError(f"the terms cannot be read: there is no {odd[0]!r}")
            model = model_named(given["model"])
            model.set_classes(tuple(given["classes"]))
            names = np.array(_texts(given["sites"]), dtype=object)
            sizes = np.array([_whole(n) for n in given["sizes"]], dtype=np.int64)
            bounds = {str(name): (float(low), float(high)) for name, (low, high) in given["bounds"].items()}
            facts = Roster(names, sizes, tuple(_texts(given["features"])), str(given["target"]), bounds)
            wishes, options, seed = Wishes(**given["wishes"]), dict(given["options"]), _whole(given["seed"])
            if not len(names) == len(sizes) > 0 or len(set(names)) < len(names):
                raise ValueError("one size a site, and one name")
            return Terms.agree(facts, model, str(given["method"]), given["mu"], wishes, options, seed)
        except InputError:
            raise
        except (KeyError, TypeError, ValueError, AttributeError, OverflowError, RecursionError) as error:
            raise InputError(f"the terms cannot be read: {type(error).__name__}: {error}") from None


def _texts(values: Sequence[Any]) -> list[str]:
    if not isinstance(values, list) or not all(isinstance(value, str) for value in values):
        raise ValueError("a list of texts is needed")
    return values


def _no_number(text: str) -> None:
    raise ValueError(f"{text} is no number")


def _whole(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise ValueError(f"{value!r} must be a whole number")
    return value


_CHOICES = {
    "calibration": CALIBRATIONS, "clip": CLIPS, "schedule": SCHEDULES, "scaling": scales.SCALINGS, "weights": WEIGHTS,
    "errors": ROUTES,
}  # fmt: skip


def _check_choices(w: Wishes) -> None:
    for name, choices in _CHOICES.items():
        if (value := getattr(w, name)) not in choices:
            raise InputError(f"{name}={value!r}: choose one of {', '.join(choices)}")


def _check_numbers(w: Wishes, mu: float) -> None:
    if isinstance(w.bound, str):
        if w.bound not in ("private", "paper"):
            raise InputError(f"bound={w.bound!r}: choose private, paper, or give a positive number")
        if w.bound == "paper" and w.calibration == "certified" and not (_is_number(mu) and mu == math.inf):
            raise InputError("bound='paper' reads the data without paying; it goes with calibration='paper' only")
    elif not _is_number(w.bound) or not (math.isfinite(w.bound) and w.bound > 0):  # type: ignore[arg-type,operator]
        raise InputError(f"bound={w.bound!r} must be a positive number")
    if not _is_number(mu) or math.isnan(mu) or mu <= 0:
        raise InputError(f"mu={mu!r} must be a positive number (inf for a fit without privacy)")
    if not _is_number(w.ridge) or not (math.isfinite(w.ridge) and w.ridge >= 0):
        raise InputError(f"ridge={w.ridge!r} must be a number of at least 0")
    if not _is_number(w.weight_constant) or not (math.isfinite(w.weight_constant) and w.weight_constant > 0):
        raise InputError(f"weight_constant={w.weight_constant!r} must be a positive number")
    if not _is_number(w.participation) or not 0 < w.participation <= 1:
        raise InputError(f"participation={w.participation!r} must lie above 0 and at most at 1")


def _check_fit(kind: type[Method], model: Model, w: Wishes) -> None:
    if not isinstance(w.fit_intercept, bool):
        raise InputError(f"fit_intercept={w.fit_intercept!r} must be True or False")
    if w.participation < 1 and not kind.samples_sites:
        raise InputError(f"method {kind.id!r} needs every site in every round; leave participation at 1")
    if w.calibration == "paper" and not kind.in_paper:
        raise InputError(f"method {kind.id!r} is not in the paper; leave calibration at 'certified'")
    if not kind.takes(model):
        models = f"{', '.join(kind.models)} models" if kind.models else "regressions"
        raise InputError(f"method {kind.id!r} works for {models}, not for {model.name}")
    if w.clip not in model.clips:
        clips = " or ".join(map(repr, model.clips))
        raise InputError(f"clip={w.clip!r}: the {model.name} model takes clip={clips} only")


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float, np.number)) and not isinstance(value, bool)
