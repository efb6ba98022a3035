"""What the tests of vaults ask and are asked: rows, specs, and messages of servers honest and hostile."""

import json
import math
import socket
from dataclasses import fields
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("opendp")

import fedmest as fm
import vaults
from fedmest.runs.messages import Malformed, OpenRun, RoundReply, RoundRequest, encode
from fedmest.runs.spec import RunSpec
from fedmest.site import connection
from fedmest.site.ledger import LedgerReader
from fedmest.site.vault import Vault
from vaults import raw, read, values_of

INSECURE = {"simulation": {"insecure": True}}
FRAMES = vaults.simulated()


def federation(model: str) -> fm.Federation:
    wanted = ["site", *vaults.FEATURES, vaults.TARGETS[model]]
    return fm.Federation.from_frame(vaults.pooled(FRAMES)[wanted], vaults.TARGETS[model], "site", bounds=vaults.BOUNDS)


def sockets(paths: dict[str, Path]) -> dict[str, Path]:
    return {name: path.parent / "s" for name, path in paths.items()}


# -- one vault, asked round after round ----------------------------------------------------------------------


class Asker:
    """Asks one vault for gradients of one feature, round after round, run after run, and keeps what it heard."""

    def __init__(self, rows: int, rounds: int = 100) -> None:
        self.spec = spec_of(features=["age"], options={"K": rounds}, settings={"clip_norm": 1.0}, rows=rows)
        self.rounds = rounds
        self.heard: dict[tuple[str, int], bytes] = {}

    def body(self, number: int) -> bytes:
        run_id, params = f"{number // self.rounds:08x}", np.full((1, 2), 1e-3 * number)
        return encode(RoundRequest(run_id, self.spec, None, number % self.rounds, "gradient", {"params": params}))

    def ask(self, path: Path, number: int) -> bytes | None:
        """The reply, checked against what was heard before for this round; None where there is nobody to ask."""
        try:
            reply = connection.call(str(path), self.body(number), vaults.PATIENCE)
        except (OSError, Malformed):
            return None
        message = read(reply)
        if isinstance(message, RoundReply):
            place = message.run_id, message.round
            assert self.heard.setdefault(place, reply) == reply, f"two replies for {place}"
        return reply


def spec_of(
    *, features: list[str], options: dict[str, Any], mu: Any = 1.0, settings: Any = None,
    method: str = "fedsgd", model: str = "logistic", rows: int = 60, site: str = "a", **changed: Any,
) -> str:  # fmt: skip
    """A spec for one site as a server writes it, without the checks of an honest one."""
    bounds = {name: list(vaults.BOUNDS[name]) for name in features if name in vaults.BOUNDS}
    bounds |= {name: [0.0, 1.0] for name in features if "=" in name}
    content = {
        "model": model, "classes": list(vaults.LEVELS) if model == "multinomial" else [], "method": method, "mu": mu,
        "settings": {} if settings is None else settings, "options": options, "public_seed": 0, "sites": [site],
        "sizes": [rows], "features": features,
        "target": vaults.TARGETS.get(str(model), "ill"), "bounds": bounds,
    }  # fmt: skip
    return json.dumps({**content, **changed})


def number_of_entries(policy: Path) -> int:
    with LedgerReader(policy.parent / "ledger.sqlite") as records:
        return len(records)


# -- messages, honest and hostile ----------------------------------------------------------------------------

RUN, FRESH, NEW = "a" * 32, "b" * 32, "f" * 32  # four rounds spent, opened, unknown
LISTED = ["age", "dose", "sex=m"]
SCALES = {"centre": np.array([50.0, 3.0, 0.5]), "scale": np.array([25.0, 2.0, 0.5])}
ALLOWED = {"allow": {"models": ["linear", "logistic", "multinomial", "negative-binomial"]}}
HONEST = {"features": LISTED, "options": {"K": 3}, "mu": 2.0}
NAN, INF, DEEP = math.nan, math.inf, 50_000


def proposed(**changed: Any) -> str:
    return spec_of(**{**HONEST, **changed})  # type: ignore[arg-type]


@lru_cache(maxsize=512)
def agreed(spec: str) -> RunSpec:
    return RunSpec.from_json(spec)


def honest(number: int, *, spec: str | None = None, run_id: str = RUN, seed64: int | None = None) -> RoundRequest:
    """What an honest server asks in a round: exactly what the step uses."""
    text = proposed() if spec is None else spec
    known, step = agreed(text), agreed(text).schedule.steps[number]
    features = len(known.data.features)
    values: dict[str, Any] = {"params": np.full(known.context.shape, 0.1)}
    if "edges" in step.uses:
        values["edges"] = step.query.sample_edges()
    if "drift" in step.uses:
        values["drift"] = np.zeros(known.context.shape)
    if "scaling" in step.uses:
        plain = {"centre": np.zeros(features), "scale": np.ones(features)}
        values |= {**(SCALES if features == 3 else plain), "target_scale": np.array([0.0, 1.0])}
    if "clip_norm" in step.uses:
        values["clip_norm"] = norm(1.5)
    return RoundRequest(run_id, text, seed64, number, step.query.name, values)


def altered(message: Any, *, without: tuple[str, ...] = (), **changed: Any) -> bytes:
    """A message as bytes, but for what is given or left out: arrays among its values, all else in its head."""
    content = {f.name: getattr(message, f.name) for f in fields(message)}
    arrays = content.pop("values", {})
    everything = {"kind": message.kind, **content, **arrays, **changed}
    everything = {name: value for name, value in everything.items() if name not in without}
    arrays = {name: value for name, value in everything.items() if isinstance(value, np.ndarray)}
    return raw({name: value for name, value in everything.items() if name not in arrays}, arrays)


def opening(run_id: Any = NEW, **changed: Any) -> bytes:
    """An honest request to open a run, by a spec that is changed."""
    return altered(OpenRun(run_id, proposed(**changed), None))


def opening_with(spec: Any, **changed: Any) -> bytes:
    """A request to open a run by any spec, which may be no text."""
    return altered(OpenRun(NEW, "", None), spec=spec, **changed)


def asking(number: Any, *, spec: str | None = None, without: tuple[str, ...] = (), **changed: Any) -> bytes:
    """What an honest server asks in a round of RUN, but for the fields and values that are given or left out."""
    known = number if type(number) is int and 0 <= number < 6 else 4
    return altered(honest(known, spec=spec), without=without, **{"round": number, **changed})


def norm(value: float) -> np.ndarray:
    """A clip norm as it is sent."""
    return np.array([value])


def one(value: float, place: int = 0, base: Any = None) -> np.ndarray:
    """An array with one number that does not belong."""
    array = np.array(np.full((1, 4), 0.1) if base is None else base, dtype=float)
    array.flat[place] = value
    return array


PLAIN = {"clip_norm": 1.0, "scaling": "none"}  # runs that estimate neither scales nor a clip norm
GIVEN: dict[str, Any] = {"run_id": "c" * 32, "spec": proposed(settings=PLAIN)}
DESCENT: dict[str, Any] = {
    "run_id": "d" * 32, "spec": proposed(method="fedavg", options={"K": 2, "R": 2}, settings=PLAIN)
}  # fmt: skip
DRIFTING: dict[str, Any] = {
    "run_id": "0" * 32, "spec": proposed(method="scaffold", options={"K": 2, "R": 2}, settings=PLAIN)
}  # fmt: skip
EDGES: list[Any] = [honest(number).values["edges"] for number in range(3)]  # two rounds of scales, one of clip norms

MANY = [f"s{i:05d}" for i in range(9_999)]


def call(folder: Path, body: bytes) -> bytes:
    return connection.call(str(folder / "s"), body, vaults.PATIENCE)


def connected(folder: Path) -> socket.socket:
    opened = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    opened.settimeout(vaults.PATIENCE)
    opened.connect(str(folder / "s"))
    return opened


def released(vault: Vault, run_id: str, kind: str = "gradient", **changed: Any) -> np.ndarray:
    """What one round of a run releases, without scales and a clip norm to estimate."""
    first = {**(GIVEN if kind == "gradient" else DESCENT), "run_id": run_id, **changed}
    return values_of(vault.handle(asking(0, **first)))


def tables(**changed: dict[str, Any]) -> dict[str, Any]:
    return vaults.policy_tables("a", **changed)
