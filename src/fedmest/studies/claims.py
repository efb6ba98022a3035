"""The paper's claims about its experiments, C1 to C12, judged from stored numbers.

Each claim is written as demands: contrasts of log(error), slopes and log ratios, that should lie below a limit. An
error is a squared distance in simulations (means are compared), and one minus a score on images (C9, C10: medians over
sites; C11, C12: means over runs). Some carry the claim (one a method, averaged over the grid); the others watch single
curves and points. In a study a claim

- fails where a demand is broken beyond chance,
- holds where all that carry it are met beyond chance and none is broken,
- is unclear else.

Beyond chance means 95 % confidence for all demands of the claim in the study together (Bonferroni). Where a fit broke
down, no claim holds.
"""

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from itertools import accumulate, pairwise

import numpy as np

from fedmest.methods import METHODS
from fedmest.studies.base import CALIBRATIONS, PAPER_METHODS, POOLED, Study
from fedmest.studies.cells import Estimator, Point
from fedmest.studies.summary import Contrast, ErrorTable, Place, power, ratio, slope

CONFIDENCE = 0.95
FLAT = -0.05  # a slope or log ratio above this changes nothing: doubling m takes less than 3.4 % off the error
AS_GOOD = math.log(1.05)  # "at least as good" allows five per cent, which chance could hide
STEADY = math.log(2.0)  # "stays flat" allows a factor of two over the whole range

CLAIMS = {
    "C1": "MSE falls with the number of sites",
    "C2": "MSE falls with the rows of a site",
    "C3": "FedHybrid is at least as good as FedSGD",
    "C4": "FedNewton is better than FedAvg",
    "C5": "With about 400 rows per site FedNewton is best and FedAvg worst",
    "C6": "At mu = 2 MSE is U-shaped in K, and lies above mu = 6 for K > 100",
    "C7": "With the total fixed FedAvg rises fastest with m and the others stay flat",
    "C8": "All of these hold for Poisson regression",
    "C9": "MNIST, odd or even: FedNewton has the best median AUC of the private methods, NP-LocalFit the worst of all",
    "C10": "MNIST, ten digits: the same of the median accuracy",
    "C11": "CNNs: accuracy grows with n; FedAvg and FedNewton-Iter lead at small n, FedSGD at the largest on CIFAR-10",
    "C12": "CNNs: accuracy falls as the same rows are spread over more sites",
}
ON_IMAGES = ("C9", "C10", "C11", "C12")


@dataclass(frozen=True)
class Demand:
    """A contrast that should lie below `limit`, and above `breach` breaks the claim.

    Where it does not carry the claim it can break it, and nothing else. `suspect` is the place whose error is to blame.
    """

    contrast: Contrast
    suspect: Place
    limit: float = 0.0
    breach: float = 0.0
    carries: bool = True
    rival: str | None = None  # the method that it is compared with


@dataclass(frozen=True)
class Finding:
    """A claim in one study under one calibration."""

    claim: str
    study: str
    calibration: str
    verdict: str
    demands: tuple[Demand, ...]
    broken: tuple[Demand, ...]

    def evidence(self) -> str:
        """The contrasts that carry the claim, then those that break it, worst first."""
        parts, last = [], ""
        for demand in (d for d in self.demands if d.carries):
            about = demand.contrast.label.partition(", ")[0]
            parts.append(_describe(demand).removeprefix(f"{about}, ") if about == last else _describe(demand))
            last = about
        others = [d for d in self.broken if not d.carries]
        watched = sum(not d.carries for d in self.demands)
        if others:
            parts.append(f"against it {len(others)} of {watched}: " + "; ".join(_describe(d) for d in others[:2]))
        return "; ".join(parts)


def _describe(demand: Demand) -> str:
    c = demand.contrast
    if math.isnan(c.value):
        return f"{c.label}: fits broke down"
    if math.isinf(c.se):
        number = f"{c.value:+.2f}" if c.label.startswith("slope") else f"× {_digits(math.exp(c.value))}"
        return f"{c.label} {number} (one run)"
    if c.label.startswith("slope"):
        return f"{c.label} {c.value:+.2f} ± {c.se:.2f}"
    per_cent = 100 * math.expm1(min(c.se, 5))
    return f"{c.label} × {_digits(math.exp(c.value))} (± {per_cent:.{0 if per_cent >= 1 else 1}f} %)"


def _digits(x: float) -> str:
    """Number as a short text.

    Examples
    --------
    >>> [_digits(x) for x in (1.054, 0.0234, 62.29, 4.04e7, 5.4e-5)]
    ['1.05', '0.023', '62', '4e7', '5e-5']
    """
    if 0.1 <= x < 10:
        return f"{x:.2f}"
    return f"{x:.2g}" if 0.001 <= x < 100 else power(x)


def judge(claim: str, errors: ErrorTable, calibration: str) -> Finding:
    """One claim in one study."""
    demands = tuple(_DEMANDS[claim](errors, partial(Estimator, calibration=calibration)))
    broken = []
    met = errors.finite(calibration)
    for carries in (True, False):
        group = [d for d in demands if d.carries is carries]
        confidence = 1 - (1 - CONFIDENCE) / max(len(group), 1)  # half of it to each group, and only one side counts
        for demand in group:
            low, high = demand.contrast.limits(confidence)
            if low > demand.breach:
                broken.append(demand)
            met &= not carries or high < demand.limit
    broken.sort(key=lambda d: -d.contrast.value)
    verdict = "fails" if broken else "holds" if met else "unclear"
    return Finding(claim, errors.study.id, calibration, verdict, demands, tuple(broken))


def judge_all(studies: Mapping[str, ErrorTable]) -> list[Finding]:
    """Every claim in every study that bears on it and has been computed."""
    return [
        judge(claim, errors, calibration)
        for claim in CLAIMS
        for errors in studies.values()
        if errors and claim in errors.study.claims
        for calibration in CALIBRATIONS
    ]


def by_id(studies: Iterable[Study]) -> dict[str, str]:
    """The claims to report on: those of the images studied, and all about simulations as soon as there is one."""
    own = {claim for study in studies for claim in study.claims}
    simulated = set(CLAIMS) - set(ON_IMAGES)
    return {c: text for c, text in CLAIMS.items() if c in own or (c in simulated and own & simulated)}


def overall(findings: Iterable[Finding], claim: str, calibration: str) -> str:
    """The verdict over those of a claim's studies that were run; C8 is about all Poisson ones, no other is."""
    verdicts = [
        f.verdict
        for f in findings
        if f.calibration == calibration and claim in (f.claim, "C8")
        if f.study.startswith("poisson") == (claim == "C8")
    ]
    if not verdicts:
        return "not run"
    return next((v for v in ("fails", "unclear") if v in verdicts), "holds")


# -- the demands of each claim ----------------------------------------------------------------------------------

Make = Callable[..., Estimator]  # of a method, under the calibration that is judged


def _title(method: str) -> str:
    return METHODS[method].display_name


def _curves(errors: ErrorTable, along: str) -> dict[str, list[Point]]:
    """Points by what stays the same on a curve: the sizes where m varies along it, m where the sizes do."""
    found: dict[str, list[Point]] = {}
    for point in errors.study.points:
        found.setdefault(point.sizes.label if along == "m" else f"{point.m}", []).append(point)
    return found


def _methods(errors: ErrorTable) -> list[str]:
    """The paper's own methods in a study."""
    return [method for method in errors.study.methods if METHODS[method].in_paper]


def _falls(errors: ErrorTable, make: Make, along: str) -> list[Demand]:
    demands = []
    curves = _curves(errors, along)
    for method in _methods(errors):
        total: dict[Place, float] = {}
        for name, points in curves.items():
            places = [(point, make(method)) for point in points]
            weights = slope(places, [point.m if along == "m" else point.sizes.mean for point in points])
            label = f"{_title(method)}, {'n' if along == 'm' else 'm'} = {name}"
            single = errors.contrast(f"slope in {along}, {label}", weights)
            demands.append(Demand(single, places[-1], carries=False))
            total |= {place: weight / len(curves) for place, weight in weights.items()}
        mean = errors.contrast(f"slope in {along}, {_title(method)}", total)
        demands.append(Demand(mean, places[-1], breach=FLAT))
    return demands


def _better(errors: ErrorTable, make: Make, first: str, second: str, limit: float = 0.0) -> list[Demand]:
    """`first` has the smaller error: on average over the grid, and nowhere the larger one."""
    points = errors.study.points
    pairs = {point: ((point, make(first)), (point, make(second))) for point in points}
    label = f"{_title(first)} / {_title(second)}"
    mean = errors.contrast(label, ratio([a for a, _ in pairs.values()], [b for _, b in pairs.values()]))
    singles = [
        Demand(
            errors.contrast(f"{label} at m = {point.m}, n = {point.sizes.label}", ratio([a], [b])),
            a,
            carries=False,
            rival=second,
        )
        for point, (a, b) in pairs.items()
    ]
    worst = max(singles, key=lambda d: d.contrast.value)
    return [Demand(mean, worst.suspect, limit, rival=second), *singles]


def _best_and_worst(errors: ErrorTable, make: Make) -> list[Demand]:
    best = [d for other in ("fedsgd", "fedhybrid", "fedavg") for d in _better(errors, make, "fednewton", other)]
    return [*best, *(d for other in ("fedsgd", "fedhybrid") for d in _better(errors, make, other, "fedavg"))]


def _u_shape(errors: ErrorTable, make: Make) -> list[Demand]:
    at = {(point.mu, point.K): point for point in errors.study.points}
    low, high = sorted({mu for mu, _ in at})[:2]
    steps = sorted({K for _, K in at if K is not None})
    demands = []
    for method in PAPER_METHODS:
        arm = make(method)
        best = min((at[low, K] for K in steps[1:-1]), key=lambda point: errors.mse(point, arm)[0])
        for end in (steps[0], steps[-1]):
            label = f"{_title(method)}, K = {best.K} / K = {end}"
            contrast = errors.contrast(label, ratio([(best, arm)], [(at[low, end], arm)]))
            demands.append(Demand(contrast, (at[low, end], arm), breach=FLAT))
        late = [K for K in steps if K > 100]
        label = f"{_title(method)}, mu = {high:g} / mu = {low:g} at K > 100"
        weights = ratio([(at[high, K], arm) for K in late], [(at[low, K], arm) for K in late])
        demands.append(Demand(errors.contrast(label, weights), (at[low, late[-1]], arm), breach=FLAT))
    return demands


def _spread(errors: ErrorTable, make: Make) -> list[Demand]:
    demands = []
    curves = _curves(errors, "m").values()
    for method in PAPER_METHODS:
        if method == "fedavg":
            continue
        faster: dict[Place, float] = {}
        for points in curves:
            for arm, sign in ((make(method), 1), (make("fedavg"), -1)):
                weights = slope([(point, arm) for point in points], [point.m for point in points])
                faster |= {place: sign * weight / len(curves) for place, weight in weights.items()}
        last = (next(iter(curves))[-1], make(method))
        demands.append(Demand(errors.contrast(f"slope in m, {_title(method)} less FedAvg", faster), last))
        first = [(points[0], make(method)) for points in curves]
        final = [(points[-1], make(method)) for points in curves]
        label = f"{_title(method)}, m = {final[0][0].m} / m = {first[0][0].m}"
        demands.append(Demand(errors.contrast(label, ratio(final, first)), last, limit=STEADY, breach=STEADY))
    return demands


def _newton_leads(errors: ErrorTable, make: Make) -> list[Demand]:
    """FedNewton ahead of the other private methods at every budget, and everyone ahead of sites alone.

    The closest of each carry the claim.
    """
    (point,) = errors.study.points
    arms = [e for e in errors.study.estimators if e in (make(e.method, mu=e.mu), Estimator(e.method))]
    alone = (point, Estimator("np-local"))
    groups: dict[str, list[Demand]] = {}
    for arm in arms:
        if arm != alone[1]:
            contrast = errors.contrast(f"{_with_budget(arm)} / NP-LocalFit", ratio([(point, arm)], [alone]))
            groups.setdefault("alone", []).append(Demand(contrast, alone, carries=False))
        if METHODS[arm.method].private and arm.method != "fednewton":
            newton = (point, replace(arm, method="fednewton"))
            contrast = errors.contrast(f"FedNewton / {_with_budget(arm)}", ratio([newton], [(point, arm)]))
            groups.setdefault(f"{arm.mu}", []).append(Demand(contrast, newton, carries=False))
    for group in groups.values():
        group.sort(key=lambda d: -math.inf if math.isnan(d.contrast.value) else -d.contrast.value)
        group[0] = replace(group[0], carries=True)
    return [demand for group in groups.values() for demand in group]


def _with_budget(arm: Estimator) -> str:
    return _title(arm.method) + (f" at mu = {arm.mu:g}" if arm.mu is not None else "")


def _grows_and_leads(errors: ErrorTable, make: Make) -> list[Demand]:
    ends = {"small": min(errors.study.points, key=Point.rows), "large": max(errors.study.points, key=Point.rows)}
    local = ("fedavg", "fednewton-iter")
    pairs = [("small", first, second) for first in local for second in ("fedsgd", "fedhybrid")]
    if errors.study.id.endswith("cifar10"):
        pairs += [("large", "fedsgd", second) for second in ("fedhybrid", *local)]
    leads = []
    for end, first, second in pairs:
        above, below = (ends[end], make(first)), (ends[end], make(second))
        label = f"{_title(first)} / {_title(second)} at n = {ends[end].sizes.label}"
        leads.append(Demand(errors.contrast(label, ratio([above], [below])), above))
    return [*_falls(errors, make, "n"), *leads]


def _worse_with_sites(errors: ErrorTable, make: Make) -> list[Demand]:
    demands = []
    for method in _methods(errors):
        places = [(point, make(method)) for point in errors.study.points]
        weights = slope(places, [1.0 / point.m for point, _ in places])
        demands.append(Demand(errors.contrast(f"slope in 1/m, {_title(method)}", weights), places[-1], breach=FLAT))
    return demands


_DEMANDS: dict[str, Callable[[ErrorTable, Make], list[Demand]]] = {
    "C1": partial(_falls, along="m"),
    "C2": partial(_falls, along="n"),
    "C3": partial(_better, first="fedhybrid", second="fedsgd", limit=AS_GOOD),
    "C4": partial(_better, first="fednewton", second="fedavg"),
    "C5": _best_and_worst,
    "C6": _u_shape,
    "C7": _spread,
    "C9": _newton_leads,
    "C10": _newton_leads,
    "C11": _grows_and_leads,
    "C12": _worse_with_sites,
}


# -- why a claim fails ------------------------------------------------------------------------------------------

RARE = 3.0  # a mean that many times its median is that of rare draws
CAUSES = ("sampling", "the algorithm itself", "clipping", "noise")


def anatomy(errors: ErrorTable, point: Point, method: str, calibration: str) -> dict[str, float]:
    """The typical error of a method by cause: each is what it adds when it comes on top of those before it.

    Medians, for the means of some methods are those of single draws.
    """
    from fedmest.studies.definitions.anatomy import STAGES

    stages = [POOLED, *(Estimator(method, calibration, mu) for mu in STAGES)]
    ladder = [float(np.median(errors.at(point, stage))) for stage in stages]
    return dict(zip(CAUSES, [ladder[0], *(b - a for a, b in pairwise(ladder))], strict=True))


def reason(finding: Finding, isolated: ErrorTable) -> str:
    """What lies behind a failure, for each method that fails, where it is worst, from the runs that isolate causes."""
    causes = []
    for method in dict.fromkeys(d.suspect[1].method for d in finding.broken):
        demand = next(d for d in finding.broken if d.suspect[1].method == method)
        point, arm = demand.suspect
        near = min(isolated.study.points, key=partial(_distance, point))
        where = f"{near.m} sites of {near.sizes.label} rows" + (f", K = {near.K}" if near.K else "")
        parts = anatomy(isolated, near, method, arm.calibration)
        if not all(map(math.isfinite, parts.values())):
            causes.append(f"{_title(method)} at {where}: fits broke down")
            continue
        if demand.rival:
            behind = _stages(parts, anatomy(isolated, near, demand.rival, arm.calibration))
            text = f"{_title(method)} / {_title(demand.rival)}, medians at {where}: {behind}"
        else:
            largest = sorted(parts, key=lambda cause: -parts[cause])[:2]
            shares = (f"{100 * parts[cause] / math.fsum(parts.values()):.0f} % {cause}" for cause in largest)
            text = f"{_title(method)}'s median error at {where}: {', '.join(shares)}"
        causes.append(text + _tail(isolated, near, arm))
    return "; ".join(causes)


def _stages(parts: Mapping[str, float], rival: Mapping[str, float]) -> str:
    """The ratio of two methods as causes are added: it shows which of them sets the two apart."""
    ratios = [a / b for a, b in zip(accumulate(parts.values()), accumulate(rival.values()), strict=True)][1:]
    without, clipped, full = (f"× {_digits(value)}" for value in ratios)
    return f"{without} without noise and clipping, {clipped} with clipping, {full} with both"


def _tail(errors: ErrorTable, point: Point, arm: Estimator) -> str:
    """Where means are those of rare draws: by how much, and whether they come without noise and clipping, too."""
    with_noise, without = (
        float(np.mean(found) / np.median(found))
        for found in (errors.at(point, replace(arm, mu=mu)) for mu in (None, math.inf))
    )
    if max(with_noise, without) < RARE:
        return ""
    return (
        f"; rare draws: {_title(arm.method)}'s mean there is {_digits(with_noise)} times its median, "
        f"{_digits(without)} times without noise and clipping"
    )


def _distance(a: Point, b: Point) -> float:
    """How far two points of the grids lie apart; the same law of sizes and the same sort of point come first."""
    size_a, size_b = (p.rows() / p.m for p in (a, b))
    strange = 10 * ((a.K is None) != (b.K is None)) + (a.sizes.law != b.sizes.law)
    steps = abs(math.log((a.K or 1) / (b.K or 1)))
    return strange + abs(math.log(size_a / size_b)) + abs(math.log(a.m / b.m)) + steps
