"""The paper's experiments as they are run, stored and resumed."""

import math
import signal
import sqlite3
import time
import zlib
from contextlib import closing
from dataclasses import replace
from itertools import product
from pathlib import Path
from threading import Thread

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from conftest import one_line
from fedmest.core.exceptions import InputError
from fedmest.interface import study_page as page
from fedmest.interface.cli.main import main
from fedmest.interface.study_output import reproduce
from fedmest.models.simulate import simulate
from fedmest.studies import STUDIES, claims, studies_named
from fedmest.studies.base import BOTH, OURS, PAPER_MODELS, POOLED
from fedmest.studies.cells import Cell, DataSource, Estimator, FitRecord, Point, Sizes, run, study_seed
from fedmest.studies.claims import CLAIMS
from fedmest.studies.reproduce import ReproductionJob
from fedmest.studies.runner import Done, complete
from fedmest.studies.sources.simulated import Simulated
from fedmest.studies.store import FILE, Store, provenance
from study_cases import CALL, SIMULATIONS, corner, numbers

# -- the same numbers, however they come about ---------------------------------------------------------------------


def test_a_run_that_stopped_between_cells_goes_on_to_the_same_bytes(alone: Path, tmp_path: Path) -> None:
    """Also where the cells that are there came in another order."""
    study = corner()
    with Store(tmp_path) as store:
        complete(study.cells(2)[:0:-2], store, workers=1)
    said: list[Done] = []
    reproduce(ReproductionJob((study,), 2, {}), tmp_path, workers=1, progress=said.append)
    assert [done.cells for done in said] == [2, 3, 4]
    assert said[-1].work == pytest.approx(said[-1].of_work)
    assert numbers(tmp_path) == numbers(alone)


def test_a_cell_is_stored_once_and_an_error_on_the_way_leaves_nothing(tmp_path: Path) -> None:
    cell = corner().cells(2)[0]
    with Store(tmp_path) as store:
        with pytest.raises(ZeroDivisionError):
            store.add(cell, (FitRecord("np-pooled", i, 1 / (1 - i)) for i in range(2)), 1.0)
        assert store.missing([cell]) == [cell]
        store.add(cell, [FitRecord("np-pooled", 0, math.inf, failure="why")], 1.0)
        store.add(cell, [FitRecord("np-pooled", 0, 2.0)], 5.0)  # a second run on the folder, and slower
        table = store.table([cell])
        assert store.seconds([cell]) == 1.0
    assert table[["error", "failure"]].to_numpy().tolist() == [[math.inf, "why"]]


def test_an_interrupt_while_a_cell_is_committed_stays_an_interrupt(tmp_path: Path) -> None:
    """A reader holds the commit up until the signal has come."""
    cell = corner().cells(2)[0]
    with Store(tmp_path) as store, closing(sqlite3.connect(tmp_path / FILE, check_same_thread=False)) as reader:
        reader.execute("BEGIN")
        reader.execute("SELECT count(*) FROM cells").fetchall()

        def interrupt() -> None:
            with closing(sqlite3.connect(tmp_path / FILE, timeout=0)) as newcomer:
                while reads(newcomer):  # a commit that waits for readers admits no new ones
                    time.sleep(0.001)
            signal.raise_signal(signal.SIGINT)  # received, by the time this returns; Python acts in the main thread
            reader.rollback()

        waiting = Thread(target=interrupt, daemon=True)
        waiting.start()
        with pytest.raises(KeyboardInterrupt):
            store.add(cell, [FitRecord("np-pooled", 0, 1.0)], 1.0)
        waiting.join()
        assert store.missing([cell]) == []


def reads(connection: sqlite3.Connection) -> bool:
    try:
        connection.execute("SELECT count(*) FROM cells").fetchall()
    except sqlite3.OperationalError as error:
        assert error.sqlite_errorcode == sqlite3.SQLITE_BUSY
        return False
    return True


def test_a_longer_run_computes_the_new_cells_only_and_keeps_the_numbers(tmp_path: Path) -> None:
    study = corner(m=(20,))
    said: list[Done] = []
    with Store(tmp_path) as store:
        complete(study.cells(10), store, workers=1)
        short, took = store.table(study.cells(10)), store.seconds(study.cells(10))
        complete(study.cells(20), store, workers=1, progress=said.append)
        long = store.table(study.cells(20))
        assert store.table(study.cells(10)).equals(short)
        assert store.seconds(study.cells(10)) == took
    assert [done.cells for done in said] == [2, 3, 4]
    assert len(long) == 2 * len(short)
    assert long[long["repetition"] < 10].reset_index(drop=True).equals(short)
    assert not set(long.loc[long["repetition"] >= 10, "error"]) & set(short["error"])


# -- what the numbers of a cell depend on --------------------------------------------------------------------------


def errors_of(point: Point, *estimators: Estimator, study: str = "s", source: DataSource | None = None) -> list[float]:
    return [row.error for row in run(Cell(study, source or Simulated.create("logistic"), point, estimators, 0, 2))]


def test_points_that_differ_in_budget_or_steps_see_the_same_rows_and_others_do_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seeds: list[tuple[int, ...]] = []

    def noting(model: str, sizes: np.ndarray, seed: list[int], *more: object) -> object:
        seeds.append(tuple(seed))
        return simulate(model, sizes, seed, *more)  # type: ignore[arg-type]

    monkeypatch.setattr("fedmest.studies.sources.simulated.simulate", noting)
    point = Point(4, Sizes("uniform", 20, 40))
    pooled = errors_of(point, POOLED)
    assert len(set(pooled)) == 2
    for same in (replace(point, mu=6.0), replace(point, mu=math.inf), replace(point, K=7)):
        assert errors_of(same, POOLED) == pooled
    assert errors_of(point, POOLED, study="another") == pooled
    assert len(set(seeds)) == 2
    others = (replace(point, m=5), replace(point, sizes=Sizes("uniform", 20, 41)))
    assert all(not set(errors_of(other, POOLED)) & set(pooled) for other in others)
    of = Simulated.create
    for source in (of("logistic", feature_sd=2.0), of("logistic", (0.0, 0.0)), of("poisson")):
        assert not set(errors_of(point, POOLED, source=source)) & set(pooled)
    assert len(set(seeds)) == 2 * (1 + len(others) + 3)  # and no row in common


def test_noise_is_drawn_anew_for_every_point_study_and_repetition_and_not_by_company() -> None:
    point, arm = Point(3, Sizes("equal", 30), mu=1.0), Estimator("fedsgd")
    seen = errors_of(point, arm)
    assert errors_of(point, POOLED, arm)[1::2] == seen
    for other in (errors_of(point, arm, study="another"), errors_of(replace(point, mu=2.0), arm), seen[::-1]):
        assert other[0] != seen[0]


def test_an_estimators_own_budget_stands_instead_of_the_points() -> None:
    point = Point(3, Sizes("equal", 30), mu=0.1)
    free = errors_of(point, Estimator("fedsgd", "certified", mu=math.inf))
    assert free == errors_of(replace(point, mu=math.inf), Estimator("fedsgd"))
    assert free[0] < errors_of(point, Estimator("fedsgd"))[0]


def test_a_fit_that_breaks_down_is_stored_as_infinite_with_the_reason() -> None:
    """Two rows and five coefficients: the pooled fit has no solution."""
    (row,) = run(Cell("s", Simulated.create("logistic"), Point(1, Sizes("equal", 2, least=2)), (POOLED,), 0, 1))
    assert row.error == math.inf
    assert row.failure


def test_rows_and_noise_are_seeded_by_texts_that_no_rename_changes() -> None:
    """Change one, and all numbers of `docs/studies` and `docs/real-data` change."""
    sizes, point = Sizes("uniform", 10, 90.0, total=700), Point(3, Sizes("equal", 30), K=5)
    network = STUDIES["cnn-samples-mnist"].source
    assert sizes.key() == "Sizes(law='uniform', a=10, b=90.0, total=700, least=10)"
    assert point.key() == "Point(m=3, sizes=Sizes(law='equal', a=30, b=0.0, total=None, least=10), mu=2.0, K=5)"
    assert Simulated("poisson", (0.5, -1.0), 0.5).key() == (
        "Design(model='poisson', theta=(0.5, -1.0), feature_sd=0.5)"
    )
    assert STUDIES["mnist-binary"].source.key() == "PixelRegression(data='mnist', model='logistic', ridge=0.01)"
    assert network.key() == (
        "NetworkTraining(data='mnist', model='mnist-cnn', rounds=10, steps=10, eta=0.01, server_eta=1.0, bound=1.0, "
        "participation=0.1)"
    )
    assert study_seed("s", network, point) == zlib.crc32(f"('s', {network.key()}, {point.key()})".encode())


@given(
    law=st.sampled_from(["equal", "uniform", "lognormal"]), m=st.integers(1, 60), seed=st.integers(0, 2**32),
    spare=st.integers(0, 5000), least=st.integers(1, 30), low=st.integers(1, 50), width=st.integers(0, 50),
)  # fmt: skip
def test_sizes_add_up_keep_their_minimum_and_follow_their_law(
    law: str, m: int, seed: int, spare: int, least: int, low: int, width: int
) -> None:
    a, b = (low / 10, width / 25) if law == "lognormal" else (low, low + width)
    raw, scaled = Sizes(law, a, b, least=least), Sizes(law, a, b, total=m * least + spare, least=least)  # type: ignore[arg-type]
    drawn, shared = (sizes.draw(m, np.random.default_rng(seed)) for sizes in (raw, scaled))
    assert drawn.dtype == shared.dtype == np.int64
    assert len(drawn) == len(shared) == m
    assert min(drawn.min(), shared.min()) >= least
    assert shared.sum() == m * least + spare
    assert scaled.draw(m, np.random.default_rng(seed)).tolist() == shared.tolist()
    if law == "equal":
        assert set(drawn) == {max(low, least)}
        assert np.ptp(shared) <= 1
    elif law == "uniform":
        assert drawn.max() <= max(low + width, least)
    # above the minimum rows are shared in proportion to what was drawn, up to one
    rng = np.random.default_rng(seed)
    weight = {"equal": lambda: np.ones(m), "uniform": lambda: rng.integers(low, low + width + 1, m)}.get(
        law, lambda: rng.lognormal(a, b, m)
    )()
    assert np.abs(shared - least - spare * weight / weight.sum()).max() < 1 + 1e-9
    assert (np.diff(shared[np.argsort(weight, kind="stable")])[np.diff(np.sort(weight)) > 0] >= 0).all()


def test_sizes_have_the_mean_and_the_limits_they_say() -> None:
    """False alarm: 4.9 standard errors, one in a million, three times; the seed is fixed."""
    for sizes in (Sizes("equal", 40), Sizes("uniform", 10, 90), Sizes("lognormal", 5.5, 1)):
        drawn = sizes.draw(20_000, np.random.default_rng(7))
        assert abs(drawn.mean() - sizes.mean) <= 4.9 * drawn.std() / math.sqrt(len(drawn))
    assert set(Sizes("uniform", 10, 13).draw(200, np.random.default_rng(7))) == {10, 11, 12, 13}


def test_too_few_rows_for_the_sites_are_an_error() -> None:
    with pytest.raises(InputError, match="29 rows do not give 3 sites 10 each"):
        Sizes("equal", 1, total=29).draw(3, np.random.default_rng(0))


# -- stores that do not fit ----------------------------------------------------------------------------------------


def test_a_store_of_other_code_or_libraries_is_refused_by_name(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    now = provenance()
    assert set(now) == {"fedmest code", "numpy", "numba", "scipy"}
    for name in now:
        folder = tmp_path / name
        with Store(folder, made_by={**now, name: "0.0.1"}) as store:
            store.add(corner().cells(2)[0], [FitRecord("np-pooled", 0, 1.0)], 1.0)
        before = (folder / FILE).read_bytes()
        line = one_line(capsys, main([*CALL, "--out", str(folder)]))
        assert f"{name} 0.0.1" in line
        assert now[name] in line
        assert "--out" in line
        assert (folder / FILE).read_bytes() == before
    with Store(tmp_path / "numpy", made_by={**now, "numpy": "0.0.1"}) as store:  # its own writer may go on
        assert len(store.missing(corner().cells(2))) == 3


@pytest.mark.parametrize("options", [{"mu": 1.0}, {"theta": (0.1, 0.2, 0.3)}, {"feature_sd": 0.7}], ids=str)
def test_cells_of_other_options_are_left_out_and_counted(options: dict[str, object], tmp_path: Path) -> None:
    other = corner(m=(20, 30), n=(30, 50)).changed(**options)  # type: ignore[arg-type]
    study = corner()
    with Store(tmp_path) as store:
        for cell in other.cells(2):
            store.add(cell, [FitRecord(e.label, r, 99.0) for e in cell.estimators for r in range(2)], 1e6)
        assert store.missing(study.cells(2)) == study.cells(2)
        assert store.others(study.cells(2)) == len(other.cells(2)) == 4
        for cell in study.cells(2):
            store.add(cell, [FitRecord(e.label, r, 1.0) for e in cell.estimators for r in range(2)], 1.0)
        assert store.table(study.cells(2))["error"].eq(1.0).all()
        assert store.table(other.cells(2))["error"].eq(99.0).all()
        assert store.others(STUDIES["poisson-equal"].cells(2)) == 0


def test_a_run_beside_other_options_gives_the_bytes_of_a_run_by_itself(alone: Path, tmp_path: Path) -> None:
    study = corner()
    with Store(tmp_path) as store:
        complete(study.changed(mu=1.0).cells(2)[:1], store, workers=1)
    outcome = reproduce(ReproductionJob((study,), 2, {}), tmp_path, workers=1)
    assert (outcome.cells, outcome.left_out) == (4, 1)
    assert numbers(tmp_path) == numbers(alone)


def test_options_change_the_source_and_a_budget_that_varies_stays() -> None:
    job = ReproductionJob.create(["poisson-equal", "logistic-iterations"], mu=1.5, theta=(0.1, 0.2), feature_sd=0.25)
    for study in job.studies:
        assert study.source == Simulated(study.source.model, (0.1, 0.2), 0.25)
    assert {p.mu for p in job.studies[0].points} == {1.5}
    assert {p.mu for p in job.studies[1].points} == {2.0, 6.0, math.inf}
    assert [study.id for study in job.all_studies()] == list(STUDIES)
    assert {s.source.feature_sd for s in job.all_studies() if isinstance(s.source, Simulated)} == {0.25}


def test_all_simulations_are_run_unless_studies_are_named_by_how_their_ids_begin() -> None:
    assert [study.id for study in ReproductionJob.create().studies] == SIMULATIONS
    assert [s.id for s in ReproductionJob.create(["mnist", "cnn-samples"]).studies] == [
        "mnist-binary", "mnist-multiclass", "cnn-samples-mnist", "cnn-samples-cifar10",
    ]  # fmt: skip
    with pytest.raises(InputError, match="no study 'cnn-sam'"):
        ReproductionJob.create(["cnn-sam"])


def test_a_study_of_hours_is_run_at_the_quick_scale_only_under_its_full_id() -> None:
    def ids(name: str, scale: str) -> list[str]:
        return [study.id for study in ReproductionJob.create([name], scale).studies]

    assert ids("cnn-clients", "quick") == ["cnn-clients-mnist"]
    assert ids("cnn-clients-cifar10", "quick") == ["cnn-clients-cifar10"]
    assert ids("cnn-clients", "paper") == ["cnn-clients-mnist", "cnn-clients-cifar10"]
    assert (
        sum(cell.cost() for cell in ReproductionJob.create(["cnn-samples", "cnn-clients"]).cells()) < 2 * 4 * 3600
    )  # two cores
    assert "unless its full id is given" in STUDIES["cnn-clients-cifar10"].note


def test_a_scale_has_its_own_points_and_repetitions_and_paper_builds_on_quick() -> None:
    quick, paper = (
        ReproductionJob.create(["cnn-samples-mnist", "mnist-binary"], scale) for scale in ("quick", "paper")
    )
    assert [[p.sizes.a for p in study.points] for study in quick.studies] == [[50, 400], [1]]
    assert [quick.repetitions_of(study) for study in quick.studies] == [1, 5]
    assert [paper.repetitions_of(study) for study in paper.studies] == [5, 15]
    assert {cell.key() for cell in quick.cells()} < {cell.key() for cell in paper.cells()}
    assert page.command_line(quick, ["mnist"]) == "fedmest reproduce mnist --scale quick"
    assert page.command_line(ReproductionJob.create(["mnist"], reps=3), ["a", "b"]) == "fedmest reproduce a b --reps 3"


def test_a_file_that_is_no_store_and_a_folder_that_cannot_be_made_are_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / FILE).write_text("no database, but long enough to be looked at. " * 50)
    assert str(tmp_path / FILE) in one_line(capsys, main([*CALL, "--out", str(tmp_path)]))
    for place in (tmp_path / FILE, tmp_path / FILE / "below"):
        assert str(place) in one_line(capsys, main([*CALL, "--out", str(place)]))


# -- the registered studies ----------------------------------------------------------------------------------------

M = (20, 30, 40, 50, 60)
GRIDS = {
    "equal": {(m, Sizes("equal", n), 2.0, None) for m in M for n in (30, 50, 70, 90, 110)},
    "random": {
        (m, Sizes("uniform", *limits), 2.0, None)
        for m in M
        for limits in ((10, 90), (20, 80), (30, 70), (60, 160), (80, 140), (100, 120))
    },
    "compare": {
        (m, sizes, 2.0, None)
        for m in (60, 80, 100, 120, 140)
        for sizes in (Sizes("equal", 400), Sizes("uniform", 100, 700), Sizes("lognormal", 5.5, 1))
    },
    "iterations": {
        (40, Sizes("equal", 70), mu, K) for mu in (2.0, 6.0, math.inf) for K in (5, 10, 20, 50, 100, 200, 400)
    },
}


def test_the_ten_studies_of_the_paper_are_there_with_its_grids() -> None:
    kinds = (*GRIDS, "fixed-total")
    assert {f"{model}-{kind}" for model in PAPER_MODELS for kind in (*kinds, "anatomy")} == set(SIMULATIONS)
    for model, (kind, grid) in product(PAPER_MODELS, GRIDS.items()):
        points = STUDIES[f"{model}-{kind}"].points
        assert {(p.m, p.sizes, p.mu, p.K) for p in points} == grid
        assert len(points) == len(grid)
    for model in PAPER_MODELS:
        points = STUDIES[f"{model}-fixed-total"].points
        assert {(p.sizes.law, p.sizes.total, p.mu) for p in points} == {
            (law, 20_000, 2.0) for law in ("equal", "uniform", "lognormal")
        }
        assert all(len({p.m for p in points if p.sizes.law == law}) >= 4 for law in ("equal", "uniform", "lognormal"))


@pytest.mark.parametrize("name", SIMULATIONS)
def test_a_registered_study_is_complete(name: str) -> None:
    study = STUDIES[name]
    assert studies_named(name)[0] is study
    assert study.id == name
    assert name.startswith(study.source.model)
    assert study.source.theta == (0.5, -0.5, 0.3, -0.3, 0.2)
    assert study.source.feature_sd == (1.0 if study.source.model == "logistic" else 0.5)
    assert set(study.claims) <= set(CLAIMS) - {"C8"}
    assert POOLED in study.estimators
    assert set(BOTH) <= set(study.estimators)
    assert len({e.label for e in study.estimators}) == len(study.estimators)
    cells = study.cells(25)
    assert len({cell.key() for cell in cells}) == len(cells) == 3 * len(study.points)
    assert study.cells(20) == [cell for cell in cells if cell.last <= 20]
    assert sorted(r for c in cells if c.point == study.points[0] for r in range(c.first, c.last)) == list(range(25))
    assert all(cell.cost() > 0 for cell in cells)
    assert cells[0].cost() == pytest.approx(2 * cells[2].cost())


def test_every_claim_is_borne_on_by_both_models() -> None:
    for claim, model in product([c for c in CLAIMS if c not in ("C8", *claims.ON_IMAGES)], PAPER_MODELS):
        assert any(claim in STUDIES[name].claims for name in SIMULATIONS if name.startswith(model))
    assert all(OURS in STUDIES[f"{m}-{kind}"].estimators for m in PAPER_MODELS for kind in ("compare", "fixed-total"))
