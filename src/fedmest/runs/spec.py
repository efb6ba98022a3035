"""What server and sites agree on before a row is read: model, method, budget, columns, sites and their sizes.

All of it is public. Server and sites write the schedule from the same spec, each for itself, so a site knows in
advance what it will be asked, in which round and at what cost. A spec is one thing: whatever follows from it alone is
a property of it, computed once.
"""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property, lru_cache
from typing import Any

import numpy as np

from fedmest.core.exceptions import InputError, ScheduleError
from fedmest.core.text import listed, shorten
from fedmest.core.typing import Bounds, FloatArray, IntArray, Names
from fedmest.data.federation import Federation
from fedmest.inference.population import Population
from fedmest.inference.prediction import Prediction, predict
from fedmest.inference.routes import MAX_PARAMETERS, CovarianceRoute, choose_route
from fedmest.methods import Method, method_named
from fedmest.models import Clipping, Model, model_from_json
from fedmest.privacy import accountant
from fedmest.privacy.noise import LOCAL_STEPS
from fedmest.queries.schedule import PublicContext, Schedule, Step
from fedmest.runs.phases import PHASES, PublicState
from fedmest.runs.phases.clip_norm import expected_clipping
from fedmest.runs.phases.estimation import EstimationPhase
from fedmest.runs.phases.scaling import Scaling, open_columns
from fedmest.runs.settings import Settings, is_number

MAX_STEPS = LOCAL_STEPS // 2  # of either kind; far beyond LOCAL_STEPS two releases would share their noise
JSON_KEYS = frozenset(
    ("model", "params", "classes", "method", "mu", "settings", "options", "public_seed", "sites", "sizes", "features",
     "target", "bounds")
)  # fmt: skip


@dataclass(frozen=True)
class PublicFacts:
    """Public facts about the rows.

    Parameters
    ----------
    sites : array of str
        Site names, sorted.
    sizes : IntArray
        Rows of each site.
    features : tuple of str
        Names of the features.
    target_name : str
        Name of the target.
    bounds : dict
        Declared ranges (low, high) of columns by name.
    """

    sites: Names
    sizes: IntArray
    features: tuple[str, ...]
    target_name: str
    bounds: Bounds

    def __repr__(self) -> str:
        rows = f"{int(self.sizes.sum()):,} rows at {len(self.sizes):,} sites"
        return f"<PublicFacts: {rows}\n features: {listed(self.features)}\n target: {shorten(self.target_name)}>"

    @staticmethod
    def of(federation: Federation) -> "PublicFacts":
        """Public facts of a federation.

        Parameters
        ----------
        federation : Federation
            The rows.

        Returns
        -------
        PublicFacts
        """
        return PublicFacts(
            federation.sites, federation.sizes, federation.features, federation.target_name, federation.bounds
        )


@dataclass(frozen=True)
class RunSpec:
    """Everything that determines one fit but its noise.

    Parameters
    ----------
    data : PublicFacts
        Sites, sizes and columns.
    model : Model
        The model; knows its classes.
    method : Method
        The method with its options.
    mu : float
        Privacy budget of every site's rows; infinite without privacy.
    settings : Settings
        Resolved settings.
    options : dict
        Options of the method that were given by name.
    public_seed : int
        Seed of public draws; the noise has another.
    """

    data: PublicFacts
    model: Model
    method: Method
    mu: float
    settings: Settings
    options: dict[str, Any] = field(default_factory=dict)
    public_seed: int = 0

    def __repr__(self) -> str:
        data, given = self.data, {**self.settings.changed(self.model), **self.options}
        settings = [f"{name}={value!r}" for name, value in given.items()]
        return (
            f"<RunSpec: {shorten(self.model.label)}, {self.method.id}, mu = {self.mu:g}\n"
            f" {int(data.sizes.sum()):,} rows at {len(data.sizes):,} sites\n"
            f" features: {listed(data.features)}\n"
            f" target: {shorten(data.target_name)}\n"
            f" settings: {listed(settings) or 'defaults'}>"
        )

    @staticmethod
    def create(
        data: PublicFacts,
        model: Model,
        method: str | type[Method],
        mu: float,
        settings: Settings,
        options: Mapping[str, Any] | None = None,
        public_seed: int = 0,
    ) -> "RunSpec":
        """Make a checked spec.

        Parameters
        ----------
        data : PublicFacts
            Sites, sizes and columns.
        model : Model
            The model; knows its classes.
        method : str or type of Method
            Id or class of a method.
        mu : float
            Privacy budget of every site's rows; infinite without privacy.
        settings : Settings
            How the fit is done.
        options : mapping, optional
            Options of the method by name.
        public_seed : int, default 0
            Seed of public draws.

        Returns
        -------
        RunSpec

        Raises
        ------
        InputError
            If an argument, or a combination of them, is not possible.
        """
        kind = method_named(method) if isinstance(method, str) else method
        resolved = settings.resolve(model)
        if not kind.private:
            mu = math.inf
        if not is_number(mu) or math.isnan(mu) or mu <= 0:
            raise InputError(f"mu={mu!r} must be a positive number (inf for a fit without privacy)")
        if resolved.clip_norm == "paper" and resolved.calibration == "certified" and math.isfinite(mu):
            raise InputError(
                "clip_norm='paper' reads the data without spending on it; it goes with calibration='paper' only"
            )
        _check_method(kind, model, resolved)
        given = dict(options or {})
        return RunSpec(data, model, kind.with_options(given, resolved.calibration), mu, resolved, given, public_seed)

    # -- what follows from it ---------------------------------------------------------------------------------

    @property
    def intercept(self) -> bool:
        """Whether rows have a column of ones; networks have biases, and ignore it."""
        return self.settings.fit_intercept or not self.model.has_coefficients

    @property
    def noise_key(self) -> str:
        """Text that two fits share only if model, method, columns, settings and options agree; 2 and 2.0 are equal.

        An option that is given at its default counts as not given.
        """
        always, where_set = self.settings.noise_key(self.intercept)
        usual = vars(self.method.with_options({}, self.settings.calibration))
        names = sorted(name for name, value in self.options.items() if value != usual[name])
        values = [
            self.model.identity, self.method.id, self.data.target_name, self.data.features,
            sorted(self.data.bounds.items()), self.mu, *always, *names, *(self.options[name] for name in names),
            *where_set,
        ]  # fmt: skip
        return repr([float(value) if is_number(value) else value for value in values])

    @cached_property
    def context(self) -> PublicContext:
        """Public facts that schedules depend on."""
        s = self.settings
        return PublicContext(
            self.model, self.data.sizes, len(self.data.features) + self.intercept, float(self.mu), s.calibration,
            str(s.clip_rule), str(s.budget_schedule), s.aggregation_weights, s.weight_constant, s.participation,
            self.public_seed,
        )  # fmt: skip

    @cached_property
    def scaling(self) -> str:
        """The scaling that is used; raises an InputError if the requested one is not possible."""
        wanted, model, data = self.settings.scaling, self.model, self.data
        if not model.has_coefficients:
            if wanted in ("auto", "none"):
                return "none"
            raise InputError(
                f"scaling={wanted!r}: the {model.name} model takes features as they are; bring pixels to a common "
                "range such as 0 to 1 beforehand, and leave scaling at 'auto'"
            )
        columns = open_columns(self)
        if wanted == "bounds" and columns:
            name = data.target_name if columns[0] == 0 else data.features[columns[0] - 1]
            raise InputError(
                f"scaling='bounds', but column {name!r} has no declared bounds; declare them ({name}=low:high) or use "
                "scaling='private'"
            )
        if wanted != "auto":
            return "data" if wanted == "private" and math.isinf(self.mu) else wanted
        if not columns:
            return "bounds"
        if math.isinf(self.mu):
            return "data"
        if self.context.paper:
            return "bounds" if data.bounds else "none"
        return "private"

    @cached_property
    def route(self) -> CovarianceRoute:
        """How standard errors are computed; raises an InputError if the requested type is not possible."""
        steps = self.method.schedule(self.context) if self.settings.cov_type != "none" else []
        return choose_route(
            self.settings.cov_type, steps[-1].query.roles if steps else (), method=self.method.id,
            dispersion_known=self.model.dispersion_known, n_sites=len(self.data.sizes), private=math.isfinite(self.mu),
            gap=self._covariance_gap(steps) if steps else None,
        )  # fmt: skip

    def _covariance_gap(self, steps: Sequence[Step]) -> str | None:
        """Why there is no interval by any route, if so."""
        if not self.model.has_coefficients:
            return "networks have none"
        if (size := self.context.size) > MAX_PARAMETERS:
            return f"{size:,} parameters are too many for a covariance; at most {MAX_PARAMETERS}"
        if self.context.participation < 1:
            return "they are worked out for runs in which every site takes part"
        if self.context.paper and math.isfinite(self.mu):
            return "the paper's clipping has a bias that intervals would miss; use calibration='certified'"
        return self.method.noise_model_gap(steps)

    @cached_property
    def schedule(self) -> Schedule:
        """Steps of all phases with their shares of the budget, from public facts alone."""
        shares = [phase.share(self) for phase in PHASES]
        left = 1.0
        for share in shares:
            left -= share or 0.0
        plans = []
        known: set[str] = set()  # public values that earlier steps have set
        for phase, share in zip(PHASES, shares, strict=True):
            own = self.mu * math.sqrt(left if share is None else share)
            steps = phase.plan(self, own) if share is None or share > 0 else ()
            plans.append((phase.name, _using(steps, known)))
        schedule = Schedule(tuple(plans))
        longest = max(len(step.mus) for step in schedule.steps)
        if math.isfinite(self.mu) and max(len(schedule.steps), longest) > MAX_STEPS:
            raise InputError(f"a private run takes at most {MAX_STEPS} rounds and {MAX_STEPS} local steps per round")
        return schedule

    def check_budget(self) -> None:
        """Check that the schedule costs no more than the budget, whatever the method announces.

        Raises
        ------
        ScheduleError
            If it costs more at some site.
        """
        if math.isinf(self.mu):
            return
        releases = (
            (release.part, step.mus[k], step.sites)
            for step in self.schedule.steps for k, release in enumerate(step.query.releases())
        )  # fmt: skip
        spent = math.sqrt(float(accountant.spent(releases, len(self.data.sizes)).max()))
        if not spent <= self.mu * (1 + 1e-9):
            raise ScheduleError(
                f"method {self.method.id!r} announces releases that cost mu = {spent:.4g}, more than the {self.mu:.4g} "
                "of this run; its schedule must keep within the mu of the context"
            )

    @cached_property
    def floats(self) -> int:
        """Numbers that the whole run sends, in both directions."""
        sizes: dict[tuple[int, bool], int] = {}
        total = 0
        for step in self.schedule.steps:
            key = id(step.query), "drift" in step.uses  # most rounds are like the one before
            if key not in sizes:
                sizes[key] = step.floats_up(self.context) + step.floats_down(self.context)
            total += len(step.sites) * sizes[key]
        return total

    # -- public values ----------------------------------------------------------------------------------------

    def initial_state(self) -> PublicState:
        """Public values before the first round, which follow from the spec alone."""
        values = [phase.initial(self) for phase in PHASES]
        return PublicState({value.name: value for value in values if value is not None})

    def penalty(self, scaling: Scaling) -> FloatArray:
        """Ridge on the scaled coefficients that amounts to the one in original units; none on the intercept.

        Parameters
        ----------
        scaling : Scaling
            Scales of the columns.

        Returns
        -------
        FloatArray
        """
        penalty = np.full(self.context.shape, float(self.settings.ridge))
        if self.model.has_coefficients:
            penalty[:, int(self.intercept) :] /= scaling.scale**2
            penalty[:, : int(self.intercept)] = 0.0
        return penalty

    def clipping(self, clip_norm: float) -> Clipping:
        """Clipping at a clip norm.

        Parameters
        ----------
        clip_norm : float
            Bound on a row's score.

        Returns
        -------
        Clipping
        """
        rule, columns = self.context.clip_rule, self.context.columns
        if math.isinf(clip_norm):
            return Clipping(rule)
        max_step_norm = math.inf if self.context.paper else self.model.max_step_norm(columns)
        trusted = self.settings.cov_type != "robust"
        return Clipping(rule, clip_norm, self.model.curvature_clip_norm(clip_norm, columns, trusted), max_step_norm)

    def to_original(self, params: FloatArray, state: PublicState) -> FloatArray:
        """Parameters on the original scale.

        Parameters
        ----------
        params : FloatArray
            Parameters on the scale of the fit.
        state : PublicState
            Public values of the run.

        Returns
        -------
        FloatArray
        """
        if not self.model.has_coefficients:
            return np.asarray(params)
        return state.to_original(params, self.intercept)

    def to_original_matrix(self, state: PublicState) -> FloatArray:
        """Matrix that takes flat coefficients to the original scale, up to a constant.

        Parameters
        ----------
        state : PublicState
            Public values of the run.

        Returns
        -------
        FloatArray
        """
        outputs, columns = self.context.shape
        if not self.model.has_coefficients:
            return np.zeros((0, 0))
        zero = self.to_original(np.zeros((1, columns)), state)
        moved = self.to_original(np.eye(columns), state) - zero
        return np.asarray(np.kron(np.eye(outputs), moved.T))

    # -- what to expect of it ---------------------------------------------------------------------------------

    def predict(self, population: Population) -> Prediction:
        """Expected error of a fit by this spec.

        Parameters
        ----------
        population : Population
            What is assumed of the rows.

        Returns
        -------
        Prediction
        """
        steps = self.schedule.of(EstimationPhase.name)
        return predict(self.method, steps, self.context, population, expected_clipping(self, population))

    def expected_bias(self) -> float | None:
        """Expected squared bias as a share of the variance, from public facts alone; None where it is not known."""
        return _expected_bias(_Keyed(self.noise_key, self.data.sizes.tobytes(), self))

    # -- on paper ---------------------------------------------------------------------------------------------

    def to_json(self) -> str:
        """The spec as JSON, from which another machine writes the same schedule; for regressions only."""
        data = self.data
        return json.dumps(
            {
                **self.model.to_json(), "method": self.method.id, "mu": self.mu,
                "settings": asdict(self.settings), "options": self.options, "public_seed": self.public_seed,
                "sites": list(data.sites), "sizes": data.sizes.tolist(), "features": list(data.features),
                "target": data.target_name, "bounds": {name: list(pair) for name, pair in data.bounds.items()},
            },
            sort_keys=True, allow_nan=False,
        )  # fmt: skip

    @staticmethod
    def from_json(text: str) -> "RunSpec":
        """Spec from JSON, checked like any other.

        Parameters
        ----------
        text : str
            As `to_json` wrote it.

        Returns
        -------
        RunSpec

        Raises
        ------
        InputError
            If it cannot be read, or is not possible.
        """
        try:
            given = json.loads(text, parse_constant=_no_number)
            if odd := sorted(set(given) - JSON_KEYS):  # could be one that someone believes we heed
                raise InputError(f"the spec cannot be read: there is no {odd[0]!r}")
            model = model_from_json(given)
            names = np.array(_texts(given["sites"]), dtype=object)
            sizes = np.array([_whole(n) for n in given["sizes"]], dtype=np.int64)
            bounds = {str(name): (float(low), float(high)) for name, (low, high) in given["bounds"].items()}
            data = PublicFacts(names, sizes, tuple(_texts(given["features"])), str(given["target"]), bounds)
            settings = Settings.from_mapping(given["settings"], "the spec's settings")
            options, seed = dict(given["options"]), _whole(given["public_seed"])
            if not len(names) == len(sizes) > 0 or len(set(names)) < len(names):
                raise ValueError("one size per site, and one name")
            return RunSpec.create(data, model, str(given["method"]), given["mu"], settings, options, seed)
        except InputError:
            raise
        except (KeyError, TypeError, ValueError, AttributeError, OverflowError, RecursionError) as error:
            raise InputError(f"the spec cannot be read: {type(error).__name__}: {error}") from None


def _using(steps: Sequence[Step], known: set[str]) -> tuple[Step, ...]:
    """Steps that use the public values known by then; `known` grows with what they set."""
    made: dict[tuple[int, frozenset[str]], Step] = {}
    found = []
    for step in steps:
        key = id(step), frozenset(known)
        if key not in made:
            made[key] = replace(step, uses=step.uses | known) if known else step
        found.append(made[key])
        if step.sets is not None:
            known.add(step.sets)
    return tuple(found)


@dataclass(frozen=True)
class _Keyed:
    """A spec as the key of a cache: by its noise key and sizes, which is all that predictions depend on."""

    noise_key: str
    sizes: bytes
    spec: RunSpec = field(compare=False)


@lru_cache(maxsize=64)
def _expected_bias(keyed: _Keyed) -> float | None:
    spec = keyed.spec
    try:
        expected = spec.predict(Population.typical(spec.model, spec.context.columns))
    except InputError:
        return None
    return expected.missed / (expected.sampling + expected.privacy)


def _check_method(kind: type[Method], model: Model, settings: Settings) -> None:
    if settings.participation < 1 and not kind.supports_client_sampling:
        raise InputError(f"method {kind.id!r} needs every site in every round; leave participation at 1")
    if settings.calibration == "paper" and not kind.in_paper:
        raise InputError(f"method {kind.id!r} is not in the paper; leave calibration at 'certified'")
    if not kind.supports(model):
        models = f"{', '.join(kind.models)} models" if kind.models else "regressions"
        raise InputError(f"method {kind.id!r} works for {models}, not for {model.name}")


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
