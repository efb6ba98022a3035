"""The seams: what is added in one file or one field is picked up everywhere."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fedmest as fm
from conftest import simulate
from fedmest.methods.fedsgd import FedSGD
from fedmest.models import model_named
from fedmest.queries.histogram import SCORE_GRID
from fedmest.queries.schedule import Step
from fedmest.runs.aggregate import WeightedSum
from fedmest.runs.backend import LocalBackend
from fedmest.runs.phases import PHASES
from fedmest.runs.runner import Run
from fedmest.runs.spec import PublicFacts, RunSpec
from whitening import Whitening, WhiteningPhase

ROOT = Path(__file__).parents[2]


@pytest.fixture
def whitening() -> Iterator[None]:
    """The phase in its place: after the clip norm, before the method."""
    PHASES.insert(2, WhiteningPhase())
    try:
        yield
    finally:
        PHASES[:] = [phase for phase in PHASES if not isinstance(phase, WhiteningPhase)]


def correlated(m: int = 6, n: int = 300) -> fm.Federation:
    case = simulate("logistic", m, n, seed=5)
    X = case.X @ np.array([[1, 0.9, 0, 0], [0, 0.5, 0, 0], [0, 0, 1, 0.8], [0, 0, 0, 0.4]])
    return fm.Federation.from_arrays(X, case.y, case.sites)


@pytest.mark.parametrize("method", ["fedsgd", "fednewton", "fedirls", "scaffold"])
def test_a_phase_of_ones_own_is_planned_charged_and_carried_out(whitening: None, method: str) -> None:
    fed = correlated()
    result = fm.fit(fed, method=method, mu=200.0, seed=3)
    assert [name for name, _ in result.spec.schedule.phases] == [
        "scaling", "clip norm", "whitening", "estimation", "standard errors",
    ]  # fmt: skip
    assert result.privacy.mu == pytest.approx(200.0) and result.privacy.certified
    assert result.privacy.by_purpose["second moments of features"] == pytest.approx(0.05)
    assert isinstance(result.resolved["whitening"], Whitening)
    pooled = fm.fit(fed, method="np-pooled")
    if method in ("fednewton", "fedirls"):  # the others need more steps than they have by default
        np.testing.assert_allclose(result.coef_matrix, pooled.coef_matrix, atol=0.15)


def test_a_phase_speeds_up_gradient_descent_on_correlated_columns(whitening: None) -> None:
    """What it is for: with whitened columns FedSGD arrives, without it is still on its way."""
    fed = correlated()
    pooled = fm.fit(fed, method="np-pooled").coef_matrix
    errors = {}
    for present in (True, False):
        if not present:
            PHASES[:] = [phase for phase in PHASES if not isinstance(phase, WhiteningPhase)]
        found = fm.fit(fed, method="fedsgd", K=20, mu=200.0, seed=3).coef_matrix
        errors[present] = float(np.linalg.norm(found - pooled))
    assert errors[True] < 0.7 * errors[False], errors


def test_later_steps_use_what_a_phase_has_set_and_a_spec_goes_through_json(whitening: None) -> None:
    fed = correlated()
    spec = fm.fit(fed, method="fedsgd", K=3, seed=1).spec
    uses = [step.uses for step in spec.schedule.steps]
    assert all("whitening" not in used for used in uses[:4])
    assert all({"whitening", "clip_norm", "scaling"} <= used for used in uses[4:])
    again = RunSpec.from_json(spec.to_json())
    assert [step.uses for step in again.schedule.steps] == uses
    assert again.data.features == PublicFacts.of(fed).features


def test_vaults_take_part_in_a_phase_that_they_were_never_written_for(whitening: None, tmp_path: Path) -> None:
    """Real vaults check, pin and apply the new public value; the estimate is that of `fit` to the last bit."""
    pytest.importorskip("opendp")
    import vaults
    from fedmest.server.coordinator import Coordinator
    from fedmest.server.transports.memory import MemoryTransport

    frames = vaults.simulated()
    opened = vaults.open_vaults(vaults.write_sites(tmp_path / "sites", frames, simulation={"insecure": True}))
    try:
        proposal = vaults.study("logistic", "fedsgd", mu=5.0, seed=11, options={"K": 4})
        result = Coordinator(proposal, MemoryTransport(opened)).run(tmp_path / "run")
        pins = [name for vault in opened.values() for run in vault.runs.values() for name in run.pins]
    finally:
        for vault in opened.values():
            vault.close()
    assert "whitening 1" in pins
    frame = vaults.pooled(frames)[["site", *vaults.FEATURES, "ill"]]
    federation = fm.Federation.from_frame(frame, "ill", "site", bounds=vaults.BOUNDS)
    local = fm.fit(federation, method="fedsgd", mu=5.0, seed=11, K=4)
    np.testing.assert_allclose(result.coef_matrix, local.coef_matrix, rtol=1e-12)


def test_a_method_of_ones_own_needs_no_registry() -> None:
    @dataclass(frozen=True)
    class Short(FedSGD):
        K: int = 3
        id = "short-sgd"

    fed = correlated()
    result = fm.fit(fed, method=Short(eta=0.25), seed=2)
    assert (result.method, result.spec.options) == ("short-sgd", {"eta": 0.25})
    assert len(result.spec.schedule.of("estimation")) == 3
    same = fm.fit(fed, method=fm.methods.FedSGD(K=3, eta=0.25), seed=2)
    assert not np.array_equal(result.coef_matrix, same.coef_matrix)  # another method has other noise


def test_a_failed_round_can_be_asked_again_as_it_was_and_not_otherwise() -> None:
    """Its noise is drawn: at other parameters the difference of two replies would be free of noise."""

    class Fails(WeightedSum):
        failures = 1

        def combine(self, values: np.ndarray, step: Step) -> np.ndarray:
            if self.failures:
                self.failures -= 1
                raise ArithmeticError("once")
            return super().combine(values, step)

    fed = correlated()
    spec = RunSpec.create(PublicFacts.of(fed), model_named("logistic"), "fedsgd", 2.0, fm.Settings(scaling="none"))
    model, y = spec.model.encode_target(fed)
    run = Run(spec, LocalBackend(fed, model, y, True, 5), aggregator=Fails())
    step, start = spec.schedule.steps[0], run.start()
    with pytest.raises(ArithmeticError):
        run.ask(step, start, edges=SCORE_GRID[None])
    with pytest.raises(fm.ScheduleError, match="the same values only"):
        run.ask(step, start + 1, edges=SCORE_GRID[None])
    assert len(run.ask(step, start, edges=SCORE_GRID[None]).aggregate()) == len(SCORE_GRID) + 1


def test_a_public_value_may_not_change_how_many_rows_there_are(
    monkeypatch: pytest.MonkeyPatch, whitening: None
) -> None:
    assert Whitening.changes_rows
    monkeypatch.setattr(
        Whitening, "transform_rows", lambda self, rows: rows.halves(0, np.arange(6, dtype=np.uint64))[0]
    )
    with pytest.raises(fm.ScheduleError, match="how many rows"):
        fm.fit(correlated(), method="fedsgd", K=2, seed=1)


def lines_of(path: str) -> int:
    return sum(bool(line.strip()) for line in (ROOT / path).read_text(encoding="utf-8").splitlines())


@pytest.mark.parametrize(
    ("path", "most"), [("tests/whitening.py", 80), ("src/fedmest/runs/aggregate.py", 60),
                       ("src/fedmest/server/transports/memory.py", 25), ("src/fedmest/methods/fedstats.py", 60)]
)  # fmt: skip
def test_what_is_added_is_small(path: str, most: int) -> None:
    """The sizes that docs/architecture.md quotes."""
    assert lines_of(path) <= most


def test_a_setting_is_one_field(monkeypatch: pytest.MonkeyPatch) -> None:
    """Flags are made from fields: one that is added to `Settings` has a flag, a check and a place in the noise key."""
    from fedmest.interface.cli import options
    from fedmest.runs import settings

    @dataclass(frozen=True, kw_only=True)
    class More(settings.Settings):
        tempo: str = settings.setting("slow", "How fast.", choices=("slow", "fast"))

    monkeypatch.setattr(options, "Settings", More)
    monkeypatch.setattr(settings, "Settings", More)
    added: dict[str, Any] = {parameter.name: parameter for parameter in options.setting_parameters()}
    assert "tempo" in added
    assert settings.flag_of("tempo") == "--tempo"
    assert options.given_settings({"tempo": "fast"}) == {"tempo": "fast"}
    assert More(tempo="fast").noise_key(True) != More().noise_key(True)
    assert "choose one of slow, fast" in More.info()["tempo"].problem("tempo", "quick")
