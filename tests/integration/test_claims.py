"""The paper's claims, judged on made-up tables whose truth is known."""

import math
import re
from dataclasses import replace
from itertools import product

import numpy as np
import pytest
from scipy import stats

from fedmest.studies import STUDIES, claims
from fedmest.studies.base import BOTH, CALIBRATIONS, PAPER_METHODS, POOLED, Study
from fedmest.studies.cells import Estimator, Point
from fedmest.studies.claims import judge
from fedmest.studies.definitions.anatomy import STAGES
from fedmest.studies.summary import Place, ratio, slope
from study_cases import Mse, broken_at, by_method, corner, made_up, rate, verdict

EQUAL, COMPARE, STEPS = (STUDIES[f"logistic-{name}"] for name in ("equal", "compare", "iterations"))
SPREAD = STUDIES["logistic-fixed-total"]


@pytest.mark.parametrize("claim", ["C1", "C2"])
@pytest.mark.parametrize("calibration", CALIBRATIONS)
def test_an_error_that_falls_with_sites_and_rows_holds_and_one_that_rises_fails(claim: str, calibration: str) -> None:
    def rising(point: Point, estimator: Estimator) -> float:
        turned = estimator.calibration == calibration and estimator.method == "fedavg"
        return rate(point, estimator) ** (-1 if turned else 1)

    assert verdict(claim, made_up(EQUAL, rate), calibration) == "holds"
    found = judge(claim, made_up(EQUAL, rising), calibration)
    assert found.verdict == "fails"
    assert {d.suspect[1] for d in found.broken} == {Estimator("fedavg", calibration)}
    other = next(c for c in CALIBRATIONS if c != calibration)
    assert verdict(claim, made_up(EQUAL, rising), other) == "holds"


@pytest.mark.parametrize("claim", ["C1", "C2"])
def test_one_curve_that_rises_is_enough_to_fail(claim: str) -> None:
    def one_rises(point: Point, estimator: Estimator) -> float:
        on_it = (point.sizes.a if claim == "C1" else point.m) == 50
        return rate(point, estimator) ** (-0.5 if on_it and estimator.method == "fedsgd" else 1)

    found = judge(claim, made_up(EQUAL, one_rises), "certified")
    assert found.verdict == "fails"
    assert not any(d.carries for d in found.broken)


@pytest.mark.parametrize("claim", ["C1", "C2"])
def test_a_flat_error_fails_where_it_is_measured_well_and_is_unclear_where_it_is_not(claim: str) -> None:
    """Five repetitions with a standard deviation of 100 %: about one such table in five fails; the seed is fixed."""

    def flat(point: Point, estimator: Estimator) -> float:
        return 1.0

    assert verdict(claim, made_up(EQUAL, flat, spread=0.1)) == "fails"
    assert verdict(claim, made_up(EQUAL, flat, reps=5, spread=1.0, seed=5)) == "unclear"
    assert verdict(claim, made_up(EQUAL, rate, reps=2, spread=2.0)) != "holds"


@pytest.mark.parametrize(
    ("claim", "study", "means", "expected"),
    [
        ("C3", EQUAL, (2, 1, 1, 1), "holds"), ("C3", EQUAL, (1, 1.2, 1, 1), "fails"),
        ("C4", EQUAL, (1, 1, 2, 1), "holds"), ("C4", EQUAL, (1, 1, 1, 2), "fails"),
        ("C5", COMPARE, (2, 2, 3, 1), "holds"), ("C5", COMPARE, (1, 2, 3, 2), "fails"),
        ("C5", COMPARE, (2, 4, 3, 1), "fails"),
    ],
)  # fmt: skip
def test_orders_of_methods_are_seen(claim: str, study: Study, means: tuple[float, ...], expected: str) -> None:
    for calibration in CALIBRATIONS:
        assert verdict(claim, made_up(study, by_method(*means)), calibration) == expected


@pytest.mark.parametrize(("claim", "study"), [("C3", EQUAL), ("C4", EQUAL), ("C5", COMPARE)], ids=["C3", "C4", "C5"])
def test_methods_that_are_alike_are_unclear_after_a_few_repetitions(claim: str, study: Study) -> None:
    """About nine tables in ten are unclear, the others fail by chance; the seed is fixed."""
    assert verdict(claim, made_up(study, by_method(1, 1, 1, 1), reps=5, seed=1)) == "unclear"


def test_the_better_method_has_to_be_better_at_every_point() -> None:
    def mostly(point: Point, estimator: Estimator) -> float:
        worse_here = point == EQUAL.points[7]
        return {"fednewton": 3.0 if worse_here else 1.0}.get(estimator.method, 2.0)

    found = judge("C4", made_up(EQUAL, mostly), "paper")
    assert found.verdict == "fails"
    assert [d.suspect for d in found.broken] == [(EQUAL.points[7], Estimator("fednewton", "paper"))]
    assert f"m = {EQUAL.points[7].m}" in found.evidence()


def test_the_u_shape_is_seen_and_told_from_a_fall_and_from_curves_that_do_not_cross() -> None:
    def bathtub(point: Point, estimator: Estimator) -> float:
        return 1 / point.K + point.K / (200 * point.mu**2)  # type: ignore[operator]

    def falling(point: Point, estimator: Estimator) -> float:
        return 1 / point.K + 1e-3 / point.mu  # type: ignore[operator]

    def rising(point: Point, estimator: Estimator) -> float:
        return point.K / point.mu  # type: ignore[operator, return-value]

    def crossed(point: Point, estimator: Estimator) -> float:
        return bathtub(replace(point, mu=2.0), estimator) * (1 if point.mu == 2 else 1.5)

    assert verdict("C6", made_up(STEPS, bathtub)) == "holds"
    for wrong in (falling, rising, crossed):
        assert verdict("C6", made_up(STEPS, wrong)) == "fails"


def test_with_a_fixed_total_fedavg_has_to_rise_fastest_and_the_others_to_stay_flat() -> None:
    def powers(avg: float, others: float) -> Mse:
        return lambda point, estimator: point.m ** (avg if estimator.method == "fedavg" else others)

    assert verdict("C7", made_up(SPREAD, powers(1.0, 0.1))) == "holds"
    assert verdict("C7", made_up(SPREAD, powers(2.0, 0.8))) == "fails"  # fastest, but the others are not flat
    assert verdict("C7", made_up(SPREAD, powers(0.0, 0.1))) == "fails"  # flat, but others are faster
    assert verdict("C7", made_up(SPREAD, powers(0.3, 0.3), reps=3, spread=1.0)) == "unclear"


def test_a_slope_is_the_least_squares_line_and_its_error_that_of_the_bootstrap() -> None:
    """2,000 resamplings know a standard error within 1.6 %; six such are allowed. Fixed seeds."""
    errors = made_up(EQUAL, rate, reps=200, spread=0.5)
    arm = Estimator("fedsgd", "paper")
    points = [p for p in EQUAL.points if p.sizes.a == 70]
    found = errors.contrast("slope", slope([(p, arm) for p in points], [p.m for p in points]))
    samples = np.array([errors.at(p, arm) for p in points])
    x = np.log([p.m for p in points])
    assert found.value == pytest.approx(np.polyfit(x, np.log(samples.mean(axis=1)), 1)[0])
    assert abs(found.value + 1) < 5 * found.se
    again = np.random.default_rng(1).integers(200, size=(2000, 200))
    slopes = np.polyfit(x, np.log(samples[:, again].mean(axis=2)), 1)[0]
    assert found.se == pytest.approx(slopes.std(), rel=0.1)
    low, high = found.limits(0.9)
    assert (high - low) / 2 == pytest.approx(stats.t.ppf(0.95, 199) * found.se)


def test_as_good_is_enough_to_be_at_least_as_good_and_not_to_be_better() -> None:
    def alike(errors: dict[Place, np.ndarray]) -> None:
        for point, arm in product(EQUAL.points, BOTH):
            errors[point, arm][:] = errors[point, BOTH[0]]

    errors = made_up(EQUAL, rate, edit=alike)
    assert (verdict("C3", errors), verdict("C4", errors)) == ("holds", "unclear")


def test_what_two_methods_have_in_common_cancels_in_their_ratio() -> None:
    point, first, second = EQUAL.points[0], Estimator("fedavg"), Estimator("fednewton")

    def a_little_worse(errors: dict[Place, np.ndarray]) -> None:
        for p in EQUAL.points:
            errors[p, second][:] = 1.02 * errors[p, first]

    errors = made_up(EQUAL, rate, reps=10, spread=2.0, edit=a_little_worse)
    found = errors.contrast("", ratio([(point, second)], [(point, first)]))
    assert found.value == pytest.approx(math.log(1.02))
    assert found.se < 1e-12
    assert verdict("C4", errors, "certified") == "fails"


@pytest.mark.parametrize(
    ("claim", "study"),
    [("C1", EQUAL), ("C2", EQUAL), ("C3", EQUAL), ("C4", EQUAL), ("C5", COMPARE), ("C6", STEPS), ("C7", SPREAD)],
    ids=lambda value: getattr(value, "id", value),
)
def test_a_fit_that_broke_down_never_lets_a_claim_hold(claim: str, study: Study) -> None:
    def meets_all(point: Point, estimator: Estimator) -> float:
        order = by_method(2, 1.8, 3, 1)(point, estimator)
        shape = 1 / point.K + point.K / (200 * point.mu**2) if point.K else rate(point, estimator)
        if study is SPREAD:
            shape = point.m if estimator.method == "fedavg" else 1.0
        return order * shape

    assert verdict(claim, made_up(study, meets_all)) == "holds"
    where = study.points[6]  # the last K at mu = 2, where steps vary
    concerned = {"C3": ("fedsgd", "fedhybrid"), "C4": ("fedavg", "fednewton")}.get(claim, PAPER_METHODS)
    for method in PAPER_METHODS:
        errors = made_up(study, meets_all, edit=broken_at(where, Estimator(method, "paper")))
        found = judge(claim, errors, "paper")
        assert found.verdict == "unclear"
        assert ("broke down" in found.evidence()) == (method in concerned)
        assert verdict(claim, errors, "certified") == "holds"
        frame = errors.frame()
        assert frame["broke_down"].sum() == np.isinf(frame["mean"]).sum() == 1


def test_equal_methods_are_seldom_told_apart() -> None:
    """Two methods with the same mean at four points: C4 fails by chance in at most 5 % of tables, 2.5 % by the demand
    that carries it and 2.5 % by those that watch single points, and holds in 2.5 %. More than 37 or 22 of 400 would
    come once in 7,000 and 4,000 times; the seeds are fixed.
    """
    small = replace(corner(), estimators=(Estimator("fedavg"), Estimator("fednewton")))
    found = [judge("C4", made_up(small, lambda *_: 1.0, seed=seed), "certified") for seed in range(400)]
    assert sum(f.verdict == "fails" for f in found) <= 37
    assert 1 < sum(any(d.carries for d in f.broken) for f in found) <= 22
    assert 1 < sum(any(not d.carries for d in f.broken) for f in found) <= 22
    assert 1 < sum(f.verdict == "holds" for f in found) <= 22


@pytest.mark.parametrize(
    ("ladder", "cause"),
    [((1, 1.1, 1.2, 10), "noise"), ((1, 1.1, 9, 10), "clipping"), ((1, 9, 9.5, 10), "the algorithm itself"),
     ((8, 9, 9.5, 10), "sampling")],
)  # fmt: skip
def test_the_reason_names_the_largest_part_of_the_error_where_the_claim_fails(
    ladder: tuple[float, ...], cause: str
) -> None:
    def staged(point: Point, estimator: Estimator) -> float:
        return ladder[0 if estimator == POOLED else 1 + STAGES.index(estimator.mu)]

    def rising(point: Point, estimator: Estimator) -> float:
        if estimator.method == "fedavg":
            return point.m ** (2.0 if point.sizes.a == 110 else 1.0)
        return rate(point, estimator)

    study = STUDIES["logistic-anatomy"]
    isolated = made_up(study, staged, reps=25, spread=0.01)
    parts = claims.anatomy(isolated, study.points[0], "fedavg", "paper")
    assert max(parts, key=lambda name: parts[name]) == cause
    assert list(parts.values()) == pytest.approx(np.diff((0, *ladder)), abs=0.1)
    text = claims.reason(judge("C1", made_up(EQUAL, rising), "paper"), isolated)
    assert text.startswith("FedAvg's")
    assert "60 sites of 110 rows" in text
    assert re.findall(r"(\d+) % ([a-z ]+)", text)[0][1] == cause
    assert "FedSGD" not in text
    assert "rare" not in text
    where = next(p for p in study.points if (p.m, p.sizes.a) == (60, 110))
    isolated = made_up(study, staged, reps=25, spread=0.01, edit=broken_at(where, Estimator("fedavg", "paper"), 1e5))
    assert "rare draws" in claims.reason(judge("C1", made_up(EQUAL, rising), "paper"), isolated)


def test_the_reason_of_a_comparison_is_the_ratio_as_causes_are_added() -> None:
    def staged(point: Point, estimator: Estimator) -> float:
        ladder = (1, 6, 9) if estimator.method == "fednewton" else (2, 3, 3)
        return 1.0 if estimator == POOLED else ladder[STAGES.index(estimator.mu)]

    isolated = made_up(STUDIES["logistic-anatomy"], staged, reps=25, spread=0.001)
    text = claims.reason(judge("C4", made_up(EQUAL, by_method(1, 1, 1, 3)), "certified"), isolated)
    assert text.startswith("FedNewton / FedAvg")
    assert [float(x) for x in re.findall(r"× (\S+)", text)] == pytest.approx([0.5, 2, 3], abs=0.02)


def test_a_claim_is_judged_over_all_its_studies_and_the_last_over_poisson() -> None:
    def finding(claim: str, study: str, verdict: str) -> claims.Finding:
        return claims.Finding(claim, study, "paper", verdict, (), ())

    mixed = [finding("C1", "logistic-equal", "holds"), finding("C1", "logistic-random", "unclear")]
    assert claims.overall(mixed, "C1", "paper") == "unclear"
    assert claims.overall([*mixed, finding("C1", "logistic-compare", "fails")], "C1", "paper") == "fails"
    assert claims.overall(mixed[:1], "C1", "paper") == "holds"
    assert claims.overall(mixed, "C1", "certified") == claims.overall(mixed, "C8", "paper") == "not run"
    poisson = [finding("C1", "poisson-equal", "holds"), finding("C4", "poisson-equal", "fails")]
    assert claims.overall([*mixed, *poisson], "C8", "paper") == "fails"
    assert claims.overall([*mixed, *poisson], "C1", "paper") == "unclear"
