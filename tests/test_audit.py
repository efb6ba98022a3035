"""The audit: what is certified stays below its claim, the paper's gaps are found, and so is every defect planted here.

A bound of 99 % confidence on a claim that holds exactly is above it in one audit of a hundred at most; seeds are fixed.
"""

import json
import math
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fedmest as fm
from conftest import one_line
from fedmest.auditing import NETWORK, Audit, cases
from fedmest.cli import main
from fedmest.engines import LocalEngine
from fedmest.federation import Index
from fedmest.methods import METHODS, Method, Setting, Step
from fedmest.methods.fedirls import FedIRLS
from fedmest.methods.fedsgd import FedSGD
from fedmest.models import Clipping
from fedmest.privacy.gdp import Array
from fedmest.privacy.noise import Noise
from fedmest.queries import Ask, Gradient, NewtonParts, Query, SiteData

CERTIFIED = sorted({(case.method, case.model) for case in cases(calibrations=["certified"]) if case.model != NETWORK})
DESCENT = ("fedsgd", "fedsgd-m", "fedavg", "fedhybrid", "scaffold")
QUICK = {"K": 4, "R": 2, "K1": 4, "K2": 4}
MU = 2.0


def options(method: str) -> dict[str, int]:
    return {k: v for k, v in QUICK.items() if k in METHODS[method].__dataclass_fields__}  # type: ignore[attr-defined]


# -- what is claimed -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(("method", "model"), CERTIFIED)
def test_no_attack_refutes_a_certified_claim(method: str, model: str) -> None:
    found = fm.audit(method, model, MU, games=2000, **options(method))
    assert found.mu_claimed == pytest.approx(MU, rel=1e-12)
    assert found.certified
    assert not found.broken
    assert found.mu_exact is None or found.mu_exact <= MU * (1 + 1e-9)


@pytest.mark.parametrize(("method", "model"), list(product(DESCENT, ("linear", "logistic", "poisson", "multinomial"))))
def test_the_noise_of_gradients_and_descent_is_not_wasted(method: str, model: str) -> None:
    """Mistakes of 3,000 games leave a bound of 0.9 mu for about 0.97 mu or more."""
    found = fm.audit(method, model, MU, games=6000, settings={"schedule": "uniform"}, **options(method))
    assert 0.88 * MU < found.mu_lower <= MU
    if method.startswith("fedsgd"):
        assert found.mu_exact is not None
        assert 0.98 * MU < found.mu_exact <= MU * (1 + 1e-9)


@pytest.mark.parametrize("method", ["fedsgd", "fednewton-nn"])
def test_no_attack_refutes_a_certified_claim_about_a_network(method: str) -> None:
    found = fm.audit(method, NETWORK, MU, games=300, **{**options(method), "K": 2})
    assert not found.broken
    assert found.mu_lower > 0.4 * MU


@pytest.mark.parametrize("method", ["fedsgd", "fedavg", "fedirls"])
def test_no_attack_on_the_published_estimate_refutes_what_third_parties_are_told(method: str) -> None:
    found = fm.audit(method, "logistic", MU, observer="public", games=400, **options(method))
    assert not found.broken
    assert found.mu_claimed <= MU
    if method == "fedsgd":  # averaging over five sites
        assert found.mu_claimed == pytest.approx(MU / math.sqrt(5), rel=1e-9)


# -- what the paper claims -----------------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["fedsgd", "fedavg", "fedhybrid", "scaffold"])
def test_the_papers_descent_holds_but_for_the_bound_that_it_reads_off_the_rows(method: str) -> None:
    leaking = fm.audit(method, "logistic", MU, calibration="paper", games=1000, **options(method))
    assert leaking.broken
    assert "clipping bound" in leaking.leak
    assert not leaking.certified
    told = fm.audit(method, "logistic", MU, calibration="paper", games=2000, settings={"bound": 1.0}, **options(method))
    assert not told.broken
    assert told.mu_lower > 0.8 * MU


@pytest.mark.parametrize("scene", ["a row that carries the curvature", "a steep row"])
def test_the_papers_newton_step_is_refuted(scene: str) -> None:
    """Once by a Hessian that one row keeps from being singular; once with all eigenvalues above tau_1 = 0.2 in both
    data sets, by a row of curvature 100.
    """
    found = fm.audit("fednewton", "logistic", MU, calibration="paper", games=4000, scene=scene, settings={"bound": 1.0})
    assert found.broken
    assert found.mu_lower > 1.1 * MU


@pytest.mark.parametrize("method", ["fednewton-nn", "fednewton-iter"])
def test_the_papers_newton_step_for_networks_is_refuted(method: str) -> None:
    """It clips the mean gradient, which one row can turn around."""
    small = {"K": 2, "R": 1, "cycles": 1}
    found = fm.audit(method, NETWORK, MU, calibration="paper", games=400, settings={"bound": 0.01}, **small)
    assert found.broken
    assert found.scene == "a row that turns the mean"


# -- planted defects -----------------------------------------------------------------------------------------


class Planted(FedSGD):
    """FedSGD with a query of ours in place of its own."""

    def query(self, number: int) -> Query:
        raise NotImplementedError

    def schedule(self, s: Setting) -> list[Step]:
        return [replace(step, query=self.query(k)) for k, step in enumerate(super().schedule(s))]


@dataclass(frozen=True)
class Cheaper(Gradient):
    """Draws the noise of a higher price than it states."""

    factor: float = 1.0

    def answer(self, data: SiteData, sites: Index, ask: Ask, mus: Array, noise: Noise) -> Array:
        return super().answer(data, sites, ask, mus * self.factor, noise)


class OneStepTooFew(Planted):
    def query(self, number: int) -> Query:
        return Cheaper(math.sqrt(self.K / (self.K - 1)))


class NoNoiseAtTheEnd(Planted):
    def query(self, number: int) -> Query:
        return Cheaper(math.inf) if number == self.K - 1 else Gradient()


class HalfTheSensitivity(Planted):
    class Half(Gradient):
        def sensitivity(self, n: Array, clipping: Clipping) -> Array:
            return super().sensitivity(n, clipping) / 2

    def query(self, number: int) -> Query:
        return self.Half()


class ClippedAfterAveraging(Planted):
    class Late(Gradient):
        def answer(self, data: SiteData, sites: Index, ask: Ask, mus: Array, noise: Noise) -> Array:
            means = data.model.mean_scores(data.rows, sites, ask.theta, Clipping("norm"), ask.penalty)
            means = means.reshape(len(sites), -1)
            means *= np.minimum(1.0, ask.clipping.bound / np.maximum(np.linalg.norm(means, axis=1), 1e-300))[:, None]
            noise.add(means, self.noise_sds(data.rows.sizes[sites].astype(float), ask.clipping, mus)[0], sites)
            return means

    def query(self, number: int) -> Query:
        return self.Late()


class BoundOfTheRows(Planted):
    class Own(Gradient):
        """Every site clips at its own median score, and draws its noise by that."""

        def answer(self, data: SiteData, sites: Index, ask: Ask, mus: Array, noise: Noise) -> Array:
            norms = data.model.score_norms(data.rows, ask.theta).reshape(-1, int(data.rows.sizes[0]))
            replies = []
            for site in sites:
                own = replace(ask, clipping=replace(ask.clipping, bound=float(np.quantile(norms[site], 0.9)) + 1e-3))
                replies.append(super().answer(data, np.array([site]), own, mus, noise)[0])
            return np.array(replies)

    def query(self, number: int) -> Query:
        return self.Own()


class OneNormalForAll(Planted):
    class Alike(Gradient):
        def answer(self, data: SiteData, sites: Index, ask: Ask, mus: Array, noise: Noise) -> Array:
            replies = super().answer(data, sites, ask, np.full_like(mus, math.inf), noise)
            alike = np.zeros((len(sites), 1))
            noise.add(alike, self.noise_sds(data.rows.sizes[sites].astype(float), ask.clipping, mus)[0], sites)
            return replies + alike

    def query(self, number: int) -> Query:
        return self.Alike()


class SometimesNoNoise(Planted):
    class Now(Gradient):
        def answer(self, data: SiteData, sites: Index, ask: Ask, mus: Array, noise: Noise) -> Array:
            replies = super().answer(data, sites, ask, mus, noise)
            bare = super().answer(data, sites, ask, np.full_like(mus, math.inf), noise)
            lucky = np.random.default_rng(len(sites)).random(len(sites)) < 0.01
            return np.where(lucky[:, None] & (len(sites) > 2), bare, replies)

    def query(self, number: int) -> Query:
        return self.Now()


class NoiseByTheRows(Planted):
    class Own(Gradient):
        """A site with a long row draws more noise than the others: more than enough, and yet it tells."""

        def answer(self, data: SiteData, sites: Index, ask: Ask, mus: Array, noise: Noise) -> Array:
            norms = data.model.score_norms(data.rows, ask.theta).reshape(-1, int(data.rows.sizes[0]))[sites]
            return super().answer(data, sites, ask, mus / (1 + norms.max(axis=1))[None], noise)

    def query(self, number: int) -> Query:
        return self.Own()


class CheapCurvature(FedIRLS):
    class Parts(NewtonParts):
        def answer(self, data: SiteData, sites: Index, ask: Ask, mus: Array, noise: Noise) -> Array:
            return super().answer(data, sites, ask, mus * np.array([[1.0], [2.0]]), noise)

    def schedule(self, s: Setting) -> list[Step]:
        return [replace(step, query=self.Parts()) for step in super().schedule(s)]


class OneStream(FedIRLS):
    class Parts(NewtonParts):
        def answer(self, data: SiteData, sites: Index, ask: Ask, mus: Array, noise: Noise) -> Array:
            class Same:
                def add(self, values: Array, sds: Array, sites: Index, release: int = 0) -> None:
                    noise.add(values, sds, sites)

            return super().answer(data, sites, ask, mus, Same())  # type: ignore[arg-type]

    def schedule(self, s: Setting) -> list[Step]:
        return [replace(step, query=self.Parts()) for step in super().schedule(s)]


class SameEveryRound(LocalEngine):
    def answer(self, number: int, step: Step, ask: Ask) -> tuple[Array, Index]:
        return super().answer(0, step, ask)


class DeafToTheSeed(LocalEngine):
    def rescale(self, scaling: object) -> None:
        self.seed = 7
        super().rescale(scaling)  # type: ignore[arg-type]


class SharedNoise(LocalEngine):
    """Every other site has the noise of the one before it."""

    def rescale(self, scaling: object) -> None:
        self.keys = self.keys.copy()
        self.keys[1::2] = self.keys[: len(self.keys) // 2 * 2 : 2]
        super().rescale(scaling)  # type: ignore[arg-type]


def planted(kind: type[Method], engine: type[LocalEngine] = LocalEngine, games: int = 20_000, **more: Any) -> Audit:
    own = {"K": 4} if issubclass(kind, FedSGD) else {}
    return fm.audit(kind, "logistic", MU, games=games, engine=engine, settings={"schedule": "uniform"}, **own, **more)


@pytest.mark.parametrize(
    ("kind", "engine"),
    [
        (OneStepTooFew, LocalEngine), (HalfTheSensitivity, LocalEngine), (FedSGD, SharedNoise),
        (NoNoiseAtTheEnd, LocalEngine), (ClippedAfterAveraging, LocalEngine), (BoundOfTheRows, LocalEngine),
        (OneNormalForAll, LocalEngine), (SometimesNoNoise, LocalEngine), (NoiseByTheRows, LocalEngine),
        (OneStream, LocalEngine), (FedSGD, SameEveryRound), (FedSGD, DeafToTheSeed),
    ],
)  # fmt: skip
def test_every_planted_defect_is_found(kind: type[Method], engine: type[LocalEngine]) -> None:
    found = planted(kind, engine, games=2000 if kind is BoundOfTheRows else 20_000)
    assert found.mu_claimed == pytest.approx(MU, rel=1e-12), "the accountant does not see the defect"
    assert found.broken


@pytest.mark.parametrize("kind", [FedSGD, FedIRLS])
def test_the_same_method_without_a_defect_is_not_accused(kind: type[Method]) -> None:
    assert not planted(kind).broken


def test_what_is_cheap_is_attacked_by_itself() -> None:
    """Half the noise on curvature drowns in the whole, and does not beside its own price."""
    assert planted(CheapCurvature, release="mean curvature").broken
    honest = planted(FedIRLS, release="mean curvature")
    assert not honest.broken
    assert 0.9 * honest.mu_claimed < (honest.mu_exact or 0.0) <= honest.mu_claimed * (1 + 1e-9)
    with pytest.raises(fm.InputError, match=r"choose one of .*mean gradient, mean curvature"):
        planted(FedIRLS, release="mean")


@pytest.mark.parametrize("whole", [False, True])
def test_halves_of_rows_are_told_apart(whole: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Noise for a whole site's rows where only half of them are read: twice too little."""
    if whole:
        monkeypatch.setattr("fedmest.queries.newton.half_size", lambda n, part: n)
        monkeypatch.setattr("fedmest.queries.descent.half_size", lambda n, part: n)
    found = fm.audit("fednewton", "logistic", MU, split=True, games=20_000)
    assert found.broken == whole


def test_the_release_for_standard_errors_is_attacked_too() -> None:
    found = fm.audit("fedsgd", "logistic", MU, K=2, games=4000, settings={"errors": "model"},
                     release="second moments of scores")  # fmt: skip
    assert not found.broken
    assert found.mu_exact is not None
    assert 0.4 * found.mu_claimed < found.mu_exact <= found.mu_claimed * (1 + 1e-9)


# -- how it is told ------------------------------------------------------------------------------------------


def test_the_same_seed_finds_the_same() -> None:
    first, again, other = (fm.audit("fedsgd", "logistic", MU, games=500, seed=s, K=2) for s in (1, 1, 2))
    assert first.as_dict() == again.as_dict()
    assert first.as_dict() != other.as_dict()
    false, true = first.roc()
    assert false[0] == true[0] == 0.0
    assert false[-1] == true[-1] == 1.0
    assert (np.diff(false) >= 0).all()
    assert (np.diff(true) >= 0).all()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"method": "np-pooled"}, "is not private"),
        ({"mu": math.inf}, "mu=inf"),
        ({"games": 3}, "games=3"),
        ({"confidence": 1.0}, "confidence=1.0"),
        ({"observer": "nobody"}, "choose one of server, public"),
        ({"scene": "a dark alley"}, "choose one of opposite scores"),
        ({"method": "fedstats", "model": "logistic"}, "works for linear models"),
        ({"K": 0}, "K=0"),
        ({"mu": 20.0}, "games cannot refute mu = 20"),
        ({"method": 3}, "give the id of a method"),
        ({"model": 3}, "give a name, or a model"),
        ({"model": "gamma"}, "there is no model"),
        ({"seed": -1}, "seed=-1"),
        ({"observer": "public", "release": "mean gradient"}, "sees no releases"),
        ({"settings": {"participation": 0.5}}, "cannot take 'participation'"),
        ({"settings": {"fit_intercept": True}}, "cannot take 'fit_intercept'"),
        ({"settings": {"errors": "sandwich"}}, "takes auto, model or none"),
    ],
)
def test_what_cannot_be_audited_is_said(arguments: dict[str, object], words: str) -> None:
    with pytest.raises(fm.InputError, match=words):
        fm.audit(**arguments)  # type: ignore[arg-type]


def test_the_table_tells_claim_and_finding_and_goes_on_where_it_was_stopped(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    kept, drawn = tmp_path / "audits.jsonl", tmp_path / "roc.png"
    call = ["audit", "fedsgd", "--model", "logistic", "--games", "200", "--option", "K=2", "--out", str(kept)]
    assert main([*call, "--json"]) == 0
    first = json.loads(capsys.readouterr().out)
    variants = [(entry["calibration"], entry["settings"], entry["verdict"]) for entry in first]
    assert variants == [
        ("certified", {}, "not refuted"), ("certified", {"schedule": "uniform"}, "not refuted"),
        ("paper", {}, "refuted"), ("paper", {"bound": 1.0}, "not refuted"),
    ]  # fmt: skip
    lines = kept.read_text().splitlines()
    assert len(lines) == 4
    kept.write_text("\n".join([*lines[:2], lines[2][:30], "[]"]) + "\n")  # the third was cut short
    assert main([*call, "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == first
    assert len(kept.read_text().splitlines()) == 6
    single = ["audit", "fedsgd", "--model", "logistic", "--calibration", "paper", "--bound", "1", "--games", "200"]
    assert main([*single, "--plot", str(drawn)]) == 0
    assert "not refuted" in capsys.readouterr().out
    assert drawn.read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["fedsgdd"], "there is no method 'fedsgdd'"),
        (["fedstats", "--model", "poisson"], "nothing to audit"),
        (["fedsgd", "--plot", "x.png"], "--plot is for one audit"),
        (["fedsgd", "--model", "gamma"], "there is no model 'gamma'"),
        (["fedsgd", "--out", "no/such/file.jsonl"], "there is no folder"),
        (["fedsgd", "--mu", "inf"], "without a budget there is nothing to audit"),
    ],
)
def test_a_fault_in_the_call_is_one_line(
    arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert words in one_line(capsys, main(["audit", *arguments]))


def test_a_refuted_certified_claim_ends_the_command_with_a_fault(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(METHODS, "fedsgd", HalfTheSensitivity)
    code = main(["audit", "fedsgd", "--model", "logistic", "--games", "2000", "--calibration", "certified"])
    assert code == 1
    assert "a certified claim is refuted: fedsgd (logistic)" in capsys.readouterr().err
