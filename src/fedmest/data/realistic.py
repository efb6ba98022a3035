"""Tables that look like those of the field: columns of any scale, rare indicators, heavy tails, sites of all sizes.

Sixty tables to tune on and sixty to judge by, each a function of its number alone. Where a level of an indicator lacks
an outcome, so that a fit over all rows might not exist, rows and columns are drawn anew; the law of the outcomes (how
rare, how dispersed) stays as drawn, or rare outcomes would be left out.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from itertools import count
from typing import Any

import numpy as np
import pandas as pd
from scipy.optimize import brentq
from scipy.special import expit, softmax

from fedmest.core.exceptions import InputError
from fedmest.core.typing import Bounds, FloatArray, IntArray
from fedmest.data.federation import Federation

KINDS = ("tuning", "judging")
TABLES = 60  # of each kind
MODELS = ("linear", "logistic", "poisson", "multinomial")
ERRORS = ("normal", "t", "left-skewed", "skewed where a column is high", "laplace")
INDICATOR = "indicator"
COLUMNS = ("normal", "money", "year", "latitude", "count", "scale")
MIN_ONES = 30  # of every indicator
MIN_OUTCOMES = 3  # of every class, or counts above zero, at either level of an indicator
MAX_EFFECT = 2.0  # of an indicator, on the predictor
RARE_SD = 0.3  # effects of rare indicators are drawn as if they had this spread
SKEW = 0.8  # sd of the logarithm of log-normal errors


@dataclass(frozen=True, eq=False)
class RealisticTable:
    """A table with the regression that somebody wants of it.

    Attributes
    ----------
    frame : pandas.DataFrame
        All rows of all sites: target, site and columns.
    target, site : str
        Columns of the target and of the site labels; all others are features.
    model : str
        Model to fit.
    bounds : dict
        What somebody would declare who knows the field and not the rows: round and wide ranges that contain every row.
    description : str
        What the table is, in a line.
    facts : dict
        How the rows were drawn, by name; empty for rows that were not.
    """

    frame: pd.DataFrame = field(repr=False)
    target: str
    site: str
    model: str
    bounds: Bounds = field(repr=False)
    description: str
    facts: Mapping[str, Any] = field(default_factory=dict, repr=False)

    @property
    def open_bounds(self) -> Bounds:
        """The bounds of yes/no columns alone."""
        return {name: pair for name, pair in self.bounds.items() if tuple(pair) == (0, 1)}

    def federation(self, declared: bool = True) -> Federation:
        """Rows by site.

        Parameters
        ----------
        declared : bool, default True
            Whether all bounds are declared, or those of yes/no columns alone.

        Returns
        -------
        Federation
        """
        return Federation.from_frame(
            self.frame, self.target, self.site, bounds=self.bounds if declared else self.open_bounds
        )


def realistic_table(number: int, kind: str = "tuning") -> RealisticTable:
    """Draw a table as fields have them; the same number gives the same rows.

    2,000 to 50,000 rows at 3 to 150 sites of unequal size; 3 to 20 columns that share two factors and shift from site
    to site, two fifths of them indicators of 1 to 50 %, the others normal of any scale and offset, log-normal money,
    years near 2000, latitudes, small counts and five-point scales. Outcomes depend on 70 % of the columns and on the
    site, which the model does not know. Linear errors are normal, t, Laplace or skewed; classes may be rare, counts
    overdispersed.

    Parameters
    ----------
    number : int
        0 to 59. Models take turns: linear, logistic, poisson, multinomial.
    kind : {"tuning", "judging"}
        Tables to choose constants on, or tables to judge by what was chosen.

    Returns
    -------
    RealisticTable

    Raises
    ------
    InputError
        If there is no such table.

    Examples
    --------
    >>> table = realistic_table(1)
    >>> table.model, table.target, table.site
    ('logistic', 'y', 'site')
    >>> table.federation().n_rows == len(table.frame)
    True
    """
    if kind not in KINDS:
        raise InputError(f"kind={kind!r}: choose one of {', '.join(KINDS)}")
    if not 0 <= number < TABLES:
        raise InputError(f"there is no table {number}; numbers are 0 to {TABLES - 1}")
    model, key = MODELS[number % len(MODELS)], [2000, KINDS.index(kind), number]
    law = LAWS[model](np.random.default_rng(key))
    for attempt in count():
        if (table := _draw(model, law, np.random.default_rng([*key, attempt]))) is not None:
            return table
    raise AssertionError("unreachable")


def _draw(model: str, law: Mapping[str, Any], rng: np.random.Generator) -> RealisticTable | None:
    """A table whose outcomes follow the law, or None where a fit over all rows might not exist."""
    sites, shape = _site_of_each_row(rng)
    latent, kinds = _latent(sites, rng)
    columns, bounds, units = {}, {}, []
    for j, kind in enumerate(kinds):
        name = f"{kind}{1 + kinds[:j].count(kind)}"
        columns[name], bounds[name], unit = COLUMN_KINDS[kind](latent[:, j], rng)
        units.append(unit)
    rare = [values for kind, values in zip(kinds, columns.values(), strict=True) if kind == INDICATOR]
    spread, site_sd = rng.uniform(0.2, 1.1), rng.uniform(0.0, 0.4)
    n_sites = int(sites.max()) + 1

    def predictor() -> FloatArray:
        values = _effects(np.column_stack(units), kinds, spread, rng)
        return np.asarray(values + site_sd * rng.standard_normal(n_sites)[sites], dtype=float)

    target = OUTCOMES[model](law, predictor, np.column_stack(units), rng)
    if model != "linear" and not all(_told_apart(values, target, model) for values in rare):
        return None
    if model == "linear":
        bounds["y"] = _wide(target)
    labels = np.array([f"site {i + 1:03d}" for i in range(n_sites)])[sites]
    frame = pd.DataFrame({"y": target, "site": labels, **columns}).sample(frac=1, random_state=1, ignore_index=True)
    facts = {
        "rows": len(frame), "sites": n_sites, "size_shape": shape, "columns": len(kinds), "indicators": len(rare),
        "predictor_sd": spread, "site_sd": site_sd, **law,
    }  # fmt: skip
    texts = [f"{name} {value:.3g}" if isinstance(value, float) else f"{name} {value}" for name, value in facts.items()]
    return RealisticTable(frame, "y", "site", model, bounds, f"{model}: {', '.join(texts)}", facts)


def _site_of_each_row(rng: np.random.Generator) -> tuple[IntArray, float]:
    """Sites 0, 1, ... row by row, and the shape of the gamma law of their sizes; five rows are the least."""
    rows, sites = round(_log_uniform(2e3, 5e4, rng)), round(_log_uniform(3, 150, rng))
    shape = float(rng.choice([0.7, 2.0, 8.0]))
    weights = rng.gamma(shape, size=sites)
    ends = np.round(np.cumsum(weights) / weights.sum() * (rows - 5 * sites)).astype(np.int64)
    return np.repeat(np.arange(sites), 5 + np.diff(ends, prepend=0)), shape


def _latent(sites: IntArray, rng: np.random.Generator) -> tuple[FloatArray, list[str]]:
    """Standard normal columns with two common factors and shifts of sites, and the kind of each."""
    n, columns = len(sites), int(rng.integers(3, 21))
    loadings = rng.uniform(-0.7, 0.7, (2, columns))
    shifts = rng.uniform(0.0, 0.5, columns) * rng.standard_normal((sites.max() + 1, columns))
    own = np.sqrt(1 - (loadings**2).sum(axis=0)) * rng.standard_normal((n, columns))
    latent = _standard(rng.standard_normal((n, 2)) @ loadings + own + shifts[sites])
    indicators = round(0.4 * columns)
    kinds = [INDICATOR] * indicators + [str(kind) for kind in rng.choice(COLUMNS, columns - indicators)]
    return latent, [kinds[j] for j in rng.permutation(columns)]


def _effects(units: FloatArray, kinds: list[str], spread: float, rng: np.random.Generator) -> FloatArray:
    """A linear predictor with this spread; 70 % of the columns have an effect, at least one that is no indicator."""
    slopes = rng.standard_normal(len(kinds)) * (rng.random(len(kinds)) < 0.7)
    plain = kinds.index(next(kind for kind in kinds if kind != INDICATOR))
    slopes[plain] = slopes[plain] or 1.0
    slopes *= spread / np.std(units @ slopes)
    yes_no = np.array(kinds) == INDICATOR
    limits = np.where(yes_no, MAX_EFFECT / np.where(yes_no, np.ptp(units, axis=0), 1.0), np.inf)
    return np.asarray(units @ np.clip(slopes, -limits, limits))


# -- columns: values, declared bounds, and the values in the units of an effect ---------------------------------

Column = tuple[FloatArray, tuple[float, float], FloatArray]


def _indicator(z: FloatArray, rng: np.random.Generator) -> Column:
    share = max(_log_uniform(0.01, 0.5, rng), 1.1 * MIN_ONES / len(z))
    values = (z > np.quantile(z, 1 - share)).astype(float)
    return values, (0.0, 1.0), (values - values.mean()) / max(values.std(), RARE_SD)


def _normal(z: FloatArray, rng: np.random.Generator) -> Column:
    values = 10 ** rng.uniform(-3, 4) * (z + rng.choice([0.0, 3.0, 20.0]) * rng.standard_normal())
    return values, _wide(values), z


def _money(z: FloatArray, rng: np.random.Generator) -> Column:
    values = np.round(10 ** rng.uniform(2.5, 5) * np.exp(rng.uniform(0.4, 1.0) * z), 2)
    return values, (0.0, _round_above(1.5 * values.max())), z  # people with twice the income differ alike


def _year(z: FloatArray, rng: np.random.Generator) -> Column:
    values = np.round(rng.uniform(1990, 2010) + rng.uniform(2, 8) * z)
    return values, (10 * math.floor(values.min() / 10 - 1), 10 * math.ceil(values.max() / 10 + 1)), _standard(values)


def _latitude(z: FloatArray, rng: np.random.Generator) -> Column:
    spread = float(rng.choice([0.02, 0.5]))
    values = rng.uniform(-60, 60) + spread * z
    step = 0.1 if spread < 0.1 else 1.0  # a town's, and a region's
    return values, (step * math.floor(values.min() / step - 1), step * math.ceil(values.max() / step + 1)), z


def _count(z: FloatArray, rng: np.random.Generator) -> Column:
    values = rng.poisson(rng.uniform(0.3, 3.0) * np.exp(0.5 * z)).astype(float)
    return values, (0.0, _round_above(1.5 * values.max())), _standard(values)


def _scale(z: FloatArray, rng: np.random.Generator) -> Column:
    values = np.clip(np.round(rng.uniform(2, 4) + rng.uniform(0.7, 1.3) * z), 1, 5)
    return values, (1.0, 5.0), _standard(values)


COLUMN_KINDS: dict[str, Callable[[FloatArray, np.random.Generator], Column]] = {
    INDICATOR: _indicator, "normal": _normal, "money": _money, "year": _year, "latitude": _latitude, "count": _count,
    "scale": _scale,
}  # fmt: skip


# -- laws of outcomes, and outcomes ------------------------------------------------------------------------------

Law = Mapping[str, Any]
Predictor = Callable[[], FloatArray]


def _counts_law(rng: np.random.Generator) -> Law:
    """Mean and dispersion (variance over mean); far more than the mean of it leaves next to no count above zero."""
    dispersion = _log_uniform(1.0, 400.0, rng)
    return {"mean": _log_uniform(max(0.3, (dispersion - 1) / 20), 60, rng), "dispersion": dispersion}


def _classes_law(rng: np.random.Generator) -> Law:
    classes = int(rng.integers(3, 5))
    shares = 0.03 + (1 - 0.03 * classes) * rng.dirichlet(np.full(classes, 2.0))
    return {"shares": tuple(shares.round(3).tolist())}


LAWS: dict[str, Callable[[np.random.Generator], Law]] = {
    "linear": lambda rng: {"errors": str(rng.choice(ERRORS))},
    "logistic": lambda rng: {"prevalence": _log_uniform(0.02, 0.5, rng)},
    "poisson": _counts_law,
    "multinomial": _classes_law,
}


def _linear(law: Law, predictor: Predictor, units: FloatArray, rng: np.random.Generator) -> FloatArray:
    eta, n = predictor(), len(units)
    variance = math.expm1(SKEW**2) * math.exp(SKEW**2)
    skewed = (np.exp(SKEW * rng.standard_normal(n)) - math.exp(SKEW**2 / 2)) / math.sqrt(variance)
    high = units[:, rng.integers(units.shape[1])] > 0.5
    errors = {
        "normal": rng.standard_normal(n),
        "t": rng.standard_t(3, n) / math.sqrt(3),
        "left-skewed": -skewed,
        "skewed where a column is high": np.where(high, rng.choice([-1, 1]) * skewed, rng.standard_normal(n)),
        "laplace": rng.laplace(size=n) / math.sqrt(2),
    }[law["errors"]]
    offset = rng.choice([0.0, 3.0, 10.0]) * rng.standard_normal()
    return np.asarray(10 ** rng.uniform(-1, 4) * (offset + eta + errors))


def _logistic(law: Law, predictor: Predictor, units: FloatArray, rng: np.random.Generator) -> IntArray:
    eta = predictor()
    shift = brentq(lambda a: expit(a + eta).mean() - law["prevalence"], -30, 30)
    return (rng.random(len(eta)) < expit(shift + eta)).astype(np.int64)


def _poisson(law: Law, predictor: Predictor, units: FloatArray, rng: np.random.Generator) -> IntArray:
    means = np.exp(predictor())
    means *= law["mean"] / means.mean()
    shape = law["mean"] / max(law["dispersion"] - 1, 1e-6)  # of a gamma mixture of Poisson counts
    return rng.poisson(means * rng.gamma(shape, 1 / shape, len(means)))


def _multinomial(law: Law, predictor: Predictor, units: FloatArray, rng: np.random.Generator) -> Any:
    shares = np.array(law["shares"])
    eta = np.column_stack([np.zeros(len(units)), *(predictor() for _ in shares[1:])])
    for _ in range(50):  # intercepts that give the shares
        eta += np.log(shares / softmax(eta, axis=1).mean(axis=0))
    drawn = (softmax(eta, axis=1).cumsum(axis=1) < rng.random((len(eta), 1))).sum(axis=1)
    return np.array(list("abcd"))[np.minimum(drawn, len(shares) - 1)]


OUTCOMES: dict[str, Callable[[Law, Predictor, FloatArray, np.random.Generator], Any]] = {
    "linear": _linear, "logistic": _logistic, "poisson": _poisson, "multinomial": _multinomial,
}  # fmt: skip


def _told_apart(indicator: FloatArray, target: Any, model: str) -> bool:
    """Whether both levels of an indicator have some of every class, or of counts above zero."""
    outcomes = [target > 0] if model == "poisson" else [target == label for label in np.unique(target)]
    return all(np.sum(rows & (indicator == level)) >= MIN_OUTCOMES for rows in outcomes for level in (0, 1))


def _standard(values: FloatArray) -> FloatArray:
    return np.asarray((values - values.mean(axis=0)) / values.std(axis=0))


def _log_uniform(low: float, high: float, rng: np.random.Generator) -> float:
    return float(np.exp(rng.uniform(math.log(low), math.log(high))))


def _round_above(value: float) -> float:
    """The next of 1, 2, 5, 10, 20, 50 ... and so on."""
    unit = 10.0 ** math.floor(math.log10(value))
    return next(step * unit for step in (1, 2, 5, 10) if step * unit >= value)


def _wide(values: FloatArray) -> tuple[float, float]:
    """Round ends, at least a quarter of the range beyond every row."""
    low, high = float(values.min()), float(values.max())
    unit, margin = 10.0 ** math.floor(math.log10(high - low)), (high - low) / 4
    return unit * math.floor((low - margin) / unit), unit * math.ceil((high + margin) / unit)
