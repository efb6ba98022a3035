"""Studies on images: regressions on pixels and networks, on scikit-learn's digits instead of MNIST."""

import json
import math
import warnings
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import fedmest as fm
from fedmest.data.datasets import load
from fedmest.interface import figures
from fedmest.interface.study_output import reproduce
from fedmest.studies import STUDIES, claims
from fedmest.studies.base import CALIBRATIONS, POOLED, Study
from fedmest.studies.cells import Cell, Estimator, Point, Sizes, run
from fedmest.studies.reproduce import ReproductionJob
from fedmest.studies.sources.images import FOLDS, NetworkTraining, PixelRegression, area_under_curve
from fedmest.studies.summary import ErrorTable, ratio

POINT = Point(4, Sizes("uniform", 1, 100, total=1797, least=300))
PIXELS = {model: PixelRegression("digits", model, ridge=1e-2) for model in ("logistic", "multinomial")}


# -- regressions on pixels -------------------------------------------------------------------------------------


def test_the_area_under_the_curve_is_scikit_learns() -> None:
    from sklearn.metrics import roc_auc_score

    rng = np.random.default_rng(0)
    scores, positive = rng.integers(0, 20, 300) / 3, rng.integers(0, 2, 300)  # with ties
    assert area_under_curve(scores, positive) == pytest.approx(roc_auc_score(positive, scores), abs=1e-12)


def test_folds_leave_every_image_out_once_and_stay_within_their_sites() -> None:
    source = PIXELS["multinomial"]
    splits = [source._split(POINT, r) for r in range(2 * FOLDS)]
    for partition in (splits[:FOLDS], splits[FOLDS:]):
        images = np.concatenate([held_out.X for held_out, _ in partition])
        whole = load("digits").pixels / 255.0
        assert (np.sort(images.sum(axis=1)) == np.sort(whole.sum(axis=1))).all()
        sizes = np.sum([np.diff(held_out.offsets) for held_out, _ in partition], axis=0)
        for held_out, federation in partition:
            assert (np.diff(held_out.offsets) + federation.sizes == sizes).all()
            assert np.ptp(np.diff(held_out.offsets) - sizes / FOLDS) < 2
        assert sizes.min() >= 300
    assert (np.diff(splits[0][0].offsets) != np.diff(splits[FOLDS][0].offsets)).any()  # another partition


@pytest.mark.parametrize("model", PIXELS)
def test_scores_are_those_of_each_sites_own_fold(model: str) -> None:
    source = PIXELS[model]
    cell = Cell("s", source, POINT, (POOLED, Estimator("np-local"), Estimator("fedsgd", mu=6.0)), 3, 4)
    rows = run(cell)
    assert [row.estimator for row in rows] == ["np-pooled", "np-local", "fedsgd/certified/mu=6"]
    held_out, federation = source._split(POINT, 3)
    result = fm.fit(federation, model, "np-pooled", scaling="none", ridge=1e-2)
    local = fm.fit(federation, model, "np-local", scaling="none", ridge=1e-2)
    assert local.site_params is not None
    for row, theta in ((rows[0], result.coef_matrix), (rows[1], local.site_params[2])):
        X, y = held_out.of_site(2)
        eta = X @ theta[:, 1:].T + theta[:, 0]
        score = area_under_curve(eta[:, 0], y) if model == "logistic" else np.mean(eta.argmax(axis=1) == y)
        assert row.detail[2] == pytest.approx(score, abs=1e-12)
        assert row.error == pytest.approx(1 - np.median(row.detail))
    assert rows == run(cell)


def test_errors_of_sites_are_averaged_over_folds_and_a_broken_fit_is_infinite() -> None:
    detail = [[0.1 * f, 0.5] for f in range(FOLDS)] + [[1.0, 1.0]]
    table = pd.DataFrame({"repetition": range(FOLDS + 1), "detail": map(json.dumps, detail)})
    assert PIXELS["logistic"].errors(table) == pytest.approx([0.8, 0.5, 0.0, 0.0])
    table.loc[1, "detail"] = "[]"
    assert PIXELS["logistic"].errors(table)[:2].tolist() == [math.inf, math.inf]


def boxes(medians: dict[str, float], sites: int = 240) -> ErrorTable:
    """The study of odd digits with these median errors; 0.1 where none is given."""
    study, rng, lines = STUDIES["mnist-binary"], np.random.default_rng(0), []
    common = rng.standard_normal(sites)  # sites are easy or hard for all
    for estimator in study.estimators:
        middle = medians.get(estimator.label, medians.get(estimator.method, 0.1))
        error = middle * np.exp(0.2 * common + 0.02 * rng.standard_normal(sites))
        lines.append((estimator.label, json.dumps((1 - error).tolist())))
    table = pd.DataFrame(lines, columns=["estimator", "detail"])
    (point,) = study.points
    return ErrorTable(
        study, table.assign(study=study.id, m=point.m, n=point.sizes.label, mu=point.mu, K=-1, repetition=0)
    )


def test_the_verdict_on_boxes_compares_medians_site_by_site() -> None:
    def verdict(**medians: float) -> str:
        return claims.judge("C9", boxes({k.replace("_", "-"): v for k, v in medians.items()}), "certified").verdict

    assert verdict(fednewton=0.09, np_local=0.12) == "holds"
    assert verdict(fednewton=0.097, np_local=0.103) == "holds"  # three per cent, where sites differ by twenty
    assert verdict(fednewton=0.1, np_local=0.12) == "unclear"
    assert verdict(fednewton=0.11, np_local=0.12) == "fails"
    assert verdict(fednewton=0.09, np_local=0.095) == "fails"
    one_budget = {"fednewton": 0.09, "fednewton/certified/mu=2": 0.13, "np-local": 0.2}
    assert claims.judge("C9", boxes(one_budget), "certified").verdict == "fails"
    assert claims.judge("C9", boxes(one_budget), "paper").verdict == "holds"


def test_where_a_fit_broke_down_no_claim_holds() -> None:
    errors = boxes({"fednewton": 0.09, "np-local": 0.12})
    (point,) = errors.study.points
    assert claims.judge("C9", errors, "certified").verdict == "holds"
    errors.at(point, Estimator("scaffold", "certified", 2.0))[3] = math.inf
    assert claims.judge("C9", errors, "certified").verdict == "unclear"
    assert claims.judge("C9", errors, "paper").verdict == "holds"


def test_the_standard_error_of_a_ratio_of_medians_is_that_of_resampled_sites() -> None:
    errors = boxes({"fednewton": 0.08})
    (point,) = errors.study.points
    a, b = (point, Estimator("fednewton", "certified", 2.0)), (point, Estimator("fedavg", "certified", 2.0))
    contrast = errors.contrast("", ratio([a], [b]))
    rng, found = np.random.default_rng(1), []
    for _ in range(2000):
        chosen = rng.integers(0, 240, 240)
        found.append(math.log(np.median(errors.at(*a)[chosen]) / np.median(errors.at(*b)[chosen])))
    assert contrast.value == pytest.approx(math.log(0.8), abs=0.02)
    assert contrast.se == pytest.approx(np.std(found), rel=0.5)


def test_boxes_are_drawn_and_say_which_lie_below_the_axis(tmp_path: Path) -> None:
    errors = boxes({"fednewton/paper/mu=2": 0.8, "fedavg": 0.07})
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        png, svg = figures.draw(errors, tmp_path)
    text = svg.read_text(encoding="utf-8")
    for words in ("NP-LocalFit", "DP-SCAFFOLD", "μ = 6", "AUC of a site", "0.2"):
        assert words in text
    assert png.stat().st_size > 10_000


def test_a_study_of_pixels_runs_from_the_command_to_its_page(tmp_path: Path) -> None:
    study = replace(STUDIES["mnist-binary"], source=PIXELS["logistic"], points=(POINT,))
    outcome = reproduce(ReproductionJob((study,), 2, {}), tmp_path, workers=1)
    assert [(f.claim, f.calibration) for f in outcome.findings] == [("C9", c) for c in CALIBRATIONS]
    summary = pd.read_csv(tmp_path / "summary.csv")
    assert set(summary["repetitions"]) == {POINT.m}
    assert (summary["median"] < 0.3).all()
    page = (tmp_path / "index.html").read_text(encoding="utf-8")
    assert "C9" in page and "C1." not in page and "a ridge" not in page
    assert "the same ridge of 0.01" in page


def test_data_that_are_missing_are_named_before_there_is_a_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FEDMEST_DATA", str(tmp_path / "nowhere"))
    with pytest.raises(fm.InputError, match="fedmest data fetch mnist"):
        reproduce(ReproductionJob.create(["mnist-binary"]), tmp_path / "out", workers=1)
    assert not (tmp_path / "out").exists()


# -- networks --------------------------------------------------------------------------------------------------


def networks(study: str, error: dict[str, float], slope: float, reps: int = 4, noise: float = 0.01) -> ErrorTable:
    """A study of networks: errors by method at the first point, falling with `slope` along the grid."""
    own, rng, lines = STUDIES[study], np.random.default_rng(0), []
    for place, point in enumerate(own.points):
        for estimator in own.estimators:
            for r in range(reps):
                value = error.get(estimator.method, 0.5) * math.exp(-slope * place + noise * rng.standard_normal())
                lines.append((point.m, point.sizes.label, point.mu, estimator.label, r, value))
    table = pd.DataFrame(lines, columns=["m", "n", "mu", "estimator", "repetition", "error"])
    return ErrorTable(own, table.assign(study=own.id, K=-1, detail="[]"))


def test_claims_about_networks_follow_the_accuracies() -> None:
    leading = {"fedavg": 0.3, "fednewton-iter": 0.31}

    def verdict(claim: str, errors: ErrorTable) -> str:
        return claims.judge(claim, errors, "paper").verdict

    assert verdict("C11", networks("cnn-samples-mnist", leading, 0.2)) == "holds"
    assert verdict("C11", networks("cnn-samples-mnist", {"fedsgd": 0.3}, 0.2)) == "fails"
    assert verdict("C11", networks("cnn-samples-mnist", leading, -0.2)) == "fails"
    assert verdict("C11", networks("cnn-samples-cifar10", leading, 0.2)) == "fails"  # FedSGD does not lead at the end
    assert verdict("C12", networks("cnn-clients-mnist", {}, -0.2)) == "holds"
    assert verdict("C12", networks("cnn-clients-mnist", {}, 0.2)) == "fails"
    assert verdict("C12", networks("cnn-clients-mnist", {}, -0.2, reps=1)) == "unclear"


def test_accuracies_of_networks_are_drawn(tmp_path: Path) -> None:
    _, svg = figures.draw(networks("cnn-samples-cifar10", {}, 0.2), tmp_path)
    text = svg.read_text(encoding="utf-8")
    for words in ("FedNewton-Iter", "certified", "test accuracy", "rows of a site"):
        assert words in text


@pytest.mark.parametrize("name", ["mnist", "cifar10"])
def test_networks_are_trained_as_the_paper_says(name: str) -> None:
    samples, clients = STUDIES[f"cnn-samples-{name}"], STUDIES[f"cnn-clients-{name}"]
    source = samples.source
    assert isinstance(source, NetworkTraining)
    assert source == clients.source
    stated = {"mnist": (10, 10, 0.01, 1.0, 1.0), "cifar10": (10, 30, 0.005, 0.75, 0.75)}[name]
    assert (source.rounds, source.steps, source.eta, source.server_eta, source.clip_norm) == stated
    assert source.participation == 0.1
    assert {p.mu for p in (*samples.points, *clients.points)} == {2.0}
    assert [p.sizes.a for p in samples.points][-1] == (600 if name == "mnist" else 500)
    assert [p.m for p in clients.points] == [100, 200, 300, 500, 800, 1000]
    total = stated[0] * stated[1]
    assert source.options("fedsgd")["K"] == total
    assert sum(source.options("fedhybrid")[k] for k in ("K1", "K2")) == total
    for method in ("fedavg", "fednewton-iter"):
        options = source.options(method)
        assert options["R"] * options["K"] * options.get("cycles", 1) == total
    assert all(len(cell.estimators) == 1 for cell in samples.cells(1))
    model, ours = source.settings("fedsgd-m", clients.points[0])
    assert ours["K"] * ours["participation"] == pytest.approx(3.0)
    assert isinstance(model, fm.NetworkModel) and model.network.size < 0.2 * fm.MODELS[source.model]().network.size


@pytest.mark.slow
def test_a_network_is_trained_on_mnist_and_scored_on_its_test_images() -> None:
    """Two rounds with two sites: accuracies are those of a network that has begun to learn. Needs the data."""
    pytest.importorskip("torch")
    source = NetworkTraining("mnist", "mnist-cnn", 2, 2, eta=0.1, server_eta=1.0, clip_norm=1.0)
    try:
        source.check()
    except fm.InputError as missing:
        pytest.skip(str(missing))
    study = replace(STUDIES["cnn-samples-mnist"], source=source, points=(Point(20, Sizes("equal", 100)),))
    rows = [row for cell in study.cells(1) for row in run(cell)]
    assert len(rows) == 9
    assert all(0.02 < row.detail[-1] < 0.9 and row.error == 1 - row.detail[-1] for row in rows)


def test_every_study_on_images_says_what_it_needs() -> None:
    for study in STUDIES.values():
        assert isinstance(study, Study)
        assert study.source.describe()
        assert all(cell.cost() > 0 for cell in study.at("quick").cells(1))
