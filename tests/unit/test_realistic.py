"""Realistic tables: the same number gives the same rows, and what is said of them holds."""

import numpy as np
import pytest
from scipy import stats

import fedmest as fm
from fedmest.data.realistic import KINDS, MIN_ONES, MODELS, TABLES

EIGHT = [(number, kind) for kind in KINDS for number in range(4)]  # each model twice
COUNTS = range(2, TABLES, len(MODELS))


def features(table: fm.RealisticTable) -> list[str]:
    return [name for name in table.frame.columns if name not in (table.target, table.site)]


def test_the_same_number_gives_the_same_table_and_another_gives_another() -> None:
    first, again = fm.realistic_table(5), fm.realistic_table(5)
    assert first.frame.equals(again.frame)
    assert first.bounds == again.bounds
    assert first.description == again.description
    assert len(first.frame) != len(fm.realistic_table(9).frame)


def test_tables_to_judge_by_are_not_those_to_tune_on() -> None:
    tuning, judging = ({len(fm.realistic_table(n, kind).frame) for n in range(0, TABLES, 5)} for kind in KINDS)
    assert len(tuning) == len(judging) == TABLES // 5
    assert not tuning & judging


@pytest.mark.parametrize(("number", "kind"), EIGHT)
def test_what_the_description_says_holds(number: int, kind: str) -> None:
    table = fm.realistic_table(number, kind)
    facts, frame = table.facts, table.frame
    yes_no = [name for name in features(table) if set(frame[name].unique()) == {0, 1}]
    assert table.description.startswith(table.model)
    assert f"rows {len(frame)}, sites {frame['site'].nunique()}," in table.description
    assert 2000 <= len(frame) <= 50_000
    assert 3 <= frame["site"].nunique() <= 150
    assert 3 <= len(features(table)) == facts["columns"] <= 20
    assert facts["indicators"] == sum(name.startswith("indicator") for name in yes_no) == round(0.4 * facts["columns"])
    assert min(frame[name].sum() for name in yes_no) >= MIN_ONES


@pytest.mark.parametrize(("number", "kind"), EIGHT)
def test_bounds_are_round_and_contain_every_row(number: int, kind: str) -> None:
    table = fm.realistic_table(number, kind)
    assert set(table.bounds) == {*features(table), *(["y"] if table.model == "linear" else [])}
    for name, (low, high) in table.bounds.items():
        assert low <= table.frame[name].min()
        assert high >= table.frame[name].max()
        assert float(f"{high - low:.2g}") == pytest.approx(high - low)
    assert table.federation().bounds == table.bounds
    assert set(table.federation(declared=False).bounds) == {name for name in table.bounds if "indicator" in name}


@pytest.mark.parametrize(("number", "kind"), EIGHT)
def test_outcomes_follow_the_law_that_the_table_states(number: int, kind: str) -> None:
    table = fm.realistic_table(number, kind)
    y, facts, n = table.frame["y"], table.facts, len(table.frame)
    if table.model == "logistic":
        assert abs(y.mean() - facts["prevalence"]) < 4 * np.sqrt(facts["prevalence"] / n)
    if table.model == "poisson":
        assert abs(y.mean() - facts["mean"]) < 4 * y.std() / np.sqrt(n)
    if table.model == "multinomial":
        shares = y.value_counts(normalize=True).sort_index()
        assert shares.to_numpy() == pytest.approx(facts["shares"], abs=4 * np.sqrt(0.25 / n))


def test_counts_vary_around_the_model_as_much_as_is_said() -> None:
    """Pearson's statistic of the pooled fit beside the dispersion, in the middle of fifteen tables."""
    ratios = []
    for number in COUNTS:
        table = fm.realistic_table(number)
        fed = table.federation()
        means = fm.fit(fed, "poisson", "np-pooled").predict(fed.design()[:, 1:])
        ratios.append(np.mean((fed.target - means) ** 2 / means) / table.facts["dispersion"])
    assert 0.8 < np.median(ratios) < 1.5  # sites differ, too, and income acts by its logarithm


def test_left_skewed_errors_are_skewed_to_the_left() -> None:
    tables = (fm.realistic_table(number) for number in range(0, TABLES, len(MODELS)))
    skews: dict[str, list[float]] = {}
    for table in tables:
        fed = table.federation()
        residuals = fed.target - fm.fit(fed, "linear", "np-pooled").predict(fed.design()[:, 1:])
        skews.setdefault(table.facts["errors"], []).append(float(stats.skew(residuals)))
    assert max(skews["left-skewed"]) < -1
    assert max(map(abs, skews["normal"])) < 0.2
    assert len(skews) == 5


def test_a_table_that_does_not_exist_is_refused() -> None:
    with pytest.raises(fm.InputError, match="there is no table 60; numbers are 0 to 59"):
        fm.realistic_table(60)
    with pytest.raises(fm.InputError, match="choose one of tuning, judging"):
        fm.realistic_table(1, "training")
