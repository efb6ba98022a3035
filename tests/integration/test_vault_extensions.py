"""What one can add around vaults: a transport of one's own, and a rule by which replies become one vector."""

import base64
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("opendp")

import fedmest as fm
from conftest import coef, simulate
from fedmest.core.exceptions import InputError
from fedmest.models import model_named
from fedmest.queries.schedule import Step
from fedmest.runs.backend import LocalBackend
from fedmest.runs.messages import RoundReply, decode, encode
from fedmest.runs.phases import PHASES
from fedmest.runs.runner import Run
from fedmest.runs.settings import Settings
from fedmest.runs.spec import PublicFacts, RunSpec
from fedmest.server.coordinator import Coordinator, RemoteBackend
from fedmest.server.transports.memory import MemoryTransport
from fedmest.site.vault import Vault
from vault_cases import federation
from vaults import Answer, Meddle, Meddling, study

# -- transports ------------------------------------------------------------------------------------------------


class Mail:
    """Requests as letters: texts that somebody carries to a site's clerk and back."""

    def __init__(self, clerks: dict[str, Callable[[str], str]]) -> None:
        self.clerks = clerks

    def discover(self, request: bytes, timeout: float) -> list[bytes]:
        return list(self.exchange(dict.fromkeys(self.clerks, request), timeout).values())

    def exchange(self, requests: dict[str, bytes], timeout: float) -> dict[str, bytes]:
        letters = {name: base64.b64encode(body).decode() for name, body in requests.items()}
        return {name: base64.b64decode(self.clerks[name](letter)) for name, letter in letters.items()}


def clerk(vault: Vault, letters: list[str]) -> Callable[[str], str]:
    """Hands letters to a vault, and keeps a copy."""

    def answer(letter: str) -> str:
        letters.append(letter)
        return base64.b64encode(vault.handle(base64.b64decode(letter))).decode()

    return answer


def test_a_transport_is_a_class_with_two_methods(seeded: dict[str, Vault], folder: Path) -> None:
    letters: list[str] = []
    mail = Mail({name: clerk(vault, letters) for name, vault in seeded.items()})
    there = Coordinator(study("logistic", "fednewton", seed=3, options={"K": 3}), mail).run(folder / "run")
    here = fm.fit(federation("logistic"), "logistic", "fednewton", 2.0, seed=3, K=3)
    np.testing.assert_allclose(coef(there), coef(here), rtol=1e-12, atol=1e-12)
    assert there.privacy.certified and there.privacy.mu == pytest.approx(2.0)
    assert there.network is not None and there.network["incidents"] == []
    rounds = len(there.spec.schedule.steps)
    assert len(letters) == len(seeded) * (2 + rounds)  # who are you, do you agree, and one letter per round


# -- aggregation -----------------------------------------------------------------------------------------------


class MaskedSum:
    """The server sees replies behind masks that cancel in their weighted sum, and nothing else."""

    gives_site_values = False

    def combine(self, values: np.ndarray, step: Step) -> np.ndarray:
        masks = np.random.default_rng(0).normal(scale=1e3, size=values.shape)
        weighted = step.weights[:, None] * values + masks - np.roll(masks, 1, axis=0)
        return np.asarray(weighted.sum(axis=0))


class Median:
    """Numbers in the middle of the sites', so that one site cannot spoil them."""

    gives_site_values = True

    def combine(self, values: np.ndarray, step: Step) -> np.ndarray:
        return np.asarray(step.weights.sum() * np.median(values, axis=0))


def spec_for(data: fm.Federation, method: str = "fedsgd", mu: float = 5.0, **settings: Any) -> RunSpec:
    return RunSpec.create(PublicFacts.of(data), model_named("logistic"), method, mu, Settings(**settings))


def carried_out(run: Run) -> np.ndarray:
    for phase in PHASES:
        phase.run(run, run.spec.schedule.of(phase.name))
    return run.spec.to_original(run.estimate, run.state)


def local(spec: RunSpec, data: fm.Federation, seed64: int = 7) -> LocalBackend:
    model, y = spec.model.encode_target(data)
    return LocalBackend(data, model, y, spec.intercept, seed64)


def at_vaults(spec: RunSpec, vaults: dict[str, Vault], run_id: str, meddle: Meddle | None = None) -> RemoteBackend:
    transport = MemoryTransport(vaults) if meddle is None else Meddling(vaults, meddle)
    return RemoteBackend(spec, transport, run_id, 7, quorum=4, timeout=30.0)


def test_replies_behind_masks_give_the_estimate_of_plain_ones(seeded: dict[str, Vault]) -> None:
    """Noise at four vaults is that of the same seed here, so all three runs are one."""
    data = federation("logistic")
    spec = spec_for(data)
    plain = carried_out(Run(spec, local(spec, data)))
    masked = carried_out(Run(spec, local(spec, data), aggregator=MaskedSum()))
    np.testing.assert_allclose(masked, plain, rtol=1e-8, atol=1e-9)
    assert not np.array_equal(masked, plain)  # rounding: the masks were there
    apart = carried_out(Run(spec, at_vaults(spec, seeded, "1" * 16), aggregator=MaskedSum()))
    np.testing.assert_allclose(apart, masked, rtol=1e-8, atol=1e-9)


def test_a_rule_of_ones_own_decides_what_a_site_can_do_to_the_estimate(seeded: dict[str, Vault]) -> None:
    """A site sends gradients a thousand times too large: the sum goes with them, the median does not."""

    def spoil(name: str, request: bytes, answer: Answer) -> bytes | None:
        reply = decode(answer(request))
        if name == "b" and isinstance(reply, RoundReply) and reply.values["values"].size == spec.context.size:
            reply = replace(reply, values={"values": -1e3 * np.ones(spec.context.size)})
        return encode(reply)

    data = federation("logistic")
    spec = spec_for(data, mu=50.0, cov_type="none")
    exact = coef(fm.fit(data, "logistic", "np-pooled"))
    away = {}
    for number, rule in enumerate((None, Median())):
        for honest in (True, False):
            run_id = f"{2 + number}{int(honest)}" * 8
            backend = at_vaults(spec, seeded, run_id, None if honest else spoil)
            away[number, honest] = float(np.linalg.norm(carried_out(Run(spec, backend, aggregator=rule)) - exact))
    assert away[0, False] > 100 * away[0, True]
    assert away[1, False] < 2 * away[1, True] + 1


@pytest.mark.parametrize(
    ("method", "settings", "reason"),
    [("scaffold", {"cov_type": "none"}, "method 'scaffold' .* needs the replies of single sites"),
     ("fedirls", {"cov_type": "cluster"}, "cov_type='cluster' needs the replies of single sites")],
)  # fmt: skip
def test_what_needs_single_replies_is_refused_before_anything_is_spent(
    method: str, settings: dict[str, Any], reason: str
) -> None:
    data = simulate("logistic", 24, 30).fed
    spec = spec_for(data, method, **settings)

    class Nobody(LocalBackend):
        def answer(self, *given: Any) -> Any:
            raise AssertionError("a site was asked")

    model, y = spec.model.encode_target(data)
    with pytest.raises(InputError, match=reason):
        Run(spec, Nobody(data, model, y, spec.intercept, 7), aggregator=MaskedSum())
    assert np.isfinite(carried_out(Run(spec, local(spec, data)))).all()
