"""Sites for the tests of vault and server: made-up rows, policies, a meddling transport, and real vault processes.

Run as a program this file is a nursery: it imports fedmest once and forks a process for every command line that it
reads, so that a vault which is killed and started again fifty times costs fifty forks and not fifty imports. The
processes are as real as any: `fedmest site serve`, with a socket, a ledger, and nothing shared but the code.
"""

import ctypes
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np
import pandas as pd

from conftest import coef
from fedmest.runs.messages import (
    Describe,
    Message,
    Refusal,
    RoundReply,
    RunOpened,
    SiteDescription,
    decode,
    encode,
)
from fedmest.server.proposal import Proposal
from fedmest.server.transports.memory import MemoryTransport
from fedmest.server.transports.socket import SocketTransport
from fedmest.site.connection import call
from fedmest.site.ledger import Ledger
from fedmest.site.policy import Policy
from fedmest.site.vault import Vault

SIZES = {"a": 60, "b": 75, "c": 90, "d": 101}
TARGETS = {
    "linear": "cost", "logistic": "ill", "poisson": "visits", "multinomial": "kind", "negative-binomial": "visits"
}  # fmt: skip
FEATURES = ("age", "dose", "sex")
LEVELS = ("high", "low", "middle")
BOUNDS = {"age": (0.0, 100.0)}
COLUMNS = {
    "age": {"low": 0, "high": 100},
    "dose": {},  # no range: its scale must be estimated privately
    "sex": {"levels": ["f", "m"]},
    "ill": {"low": 0, "high": 1, "whole": True},
    "visits": {"low": 0, "whole": True},
    "cost": {},
    "kind": {"levels": list(LEVELS)},
}
PATIENCE = 60.0  # seconds for anything that takes one on an idle machine


# -- rows and policies -----------------------------------------------------------------------------------------


def simulated(sizes: Mapping[str, int] = SIZES, seed: int = 0) -> dict[str, pd.DataFrame]:
    """Rows of sites, with a target for every model."""
    rng = np.random.default_rng(seed)
    frames = {}
    for name, n in sizes.items():
        frame = pd.DataFrame(
            {"age": rng.uniform(20, 80, n), "dose": rng.normal(3, 2, n), "sex": rng.choice(["f", "m"], n)}
        )
        eta = (frame["age"] - 50) / 25 + 0.3 * (frame["dose"] - 3) - 0.2 * (frame["sex"] == "m")
        frame["ill"] = (rng.uniform(size=n) < 1 / (1 + np.exp(-eta))).astype(int)
        frame["visits"] = rng.poisson(np.exp(0.5 * eta))
        frame["cost"] = 100 + 20 * eta + rng.normal(0, 15, n)
        frame["kind"] = np.array(LEVELS)[np.digitize(eta + rng.logistic(size=n), [-0.5, 0.5])]
        frames[name] = frame
    return frames


def pooled(frames: Mapping[str, pd.DataFrame]) -> pd.DataFrame:
    return pd.concat([frame.assign(site=name) for name, frame in frames.items()], ignore_index=True)


def toml(tables: Mapping[str, Any]) -> str:
    """Tables as TOML; JSON spells texts, numbers, booleans and lists as TOML does."""
    lines = [f"{key} = {json.dumps(value)}" for key, value in tables.items() if not isinstance(value, Mapping)]
    for name, table in tables.items():
        if isinstance(table, Mapping):
            own = {key: value for key, value in table.items() if not isinstance(value, Mapping)}
            lines += [f"[{name}]", *(f"{key} = {json.dumps(value)}" for key, value in own.items())]
            for key, value in table.items():
                if isinstance(value, Mapping):
                    lines += [f"[{name}.{json.dumps(key)}]", *(f"{k} = {json.dumps(v)}" for k, v in value.items())]
    return "\n".join(lines) + "\n"


def policy_tables(name: str, **changed: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """A generous policy; the tables that are given are laid over it."""
    tables: dict[str, dict[str, Any]] = {
        "site": {"name": name, "data": "rows.csv", "ledger": "ledger.sqlite", "socket": "s"},
        "budget": {"lifetime": 50.0, "run": 10.0},
        "allow": {"models": list(TARGETS)},
        "columns": dict(COLUMNS),
    }
    for table, content in changed.items():
        tables[table] = {**tables.get(table, {}), **content}
    return tables


def write_site(folder: Path, name: str, frame: pd.DataFrame, **changed: Mapping[str, Any]) -> Path:
    """A folder with rows, policy and, as after `fedmest site init`, a ledger; the policy's path."""
    folder.mkdir(parents=True, exist_ok=True)
    frame.to_csv(folder / "rows.csv", index=False)
    path = folder / "site.toml"
    path.write_text(toml(policy_tables(name, **changed)), encoding="utf-8")
    Ledger(folder / "ledger.sqlite").close()
    return path


def write_sites(folder: Path, frames: Mapping[str, pd.DataFrame], **changed: Mapping[str, Any]) -> dict[str, Path]:
    return {name: write_site(folder / name, name, frame, **changed) for name, frame in frames.items()}


def open_vaults(paths: Mapping[str, Path]) -> dict[str, Vault]:
    return {name: Vault(Policy.read(path)) for name, path in paths.items()}


def study(model: str = "logistic", method: str = "fedsgd", mu: float = 2.0, **given: Any) -> Proposal:
    """A proposal for the simulated rows; `given` is as in study.toml."""
    proposed = {
        "model": model, "method": method, "mu": mu, "target": TARGETS[model], "features": list(FEATURES),
        "columns": dict(COLUMNS), "quorum": 1, "timeout": 30.0, "sites": list(SIZES),
    }  # fmt: skip
    return Proposal.of({k: v for k, v in {**proposed, **given}.items() if v is not None}, "study.toml")


# -- a transport that meddles ------------------------------------------------------------------------------------

Answer = Callable[[bytes], bytes]
Meddle = Callable[[str, bytes, Answer], bytes | None]


class Meddling(MemoryTransport):
    """Vaults in this process; `meddle` stands between them and the server, and may lose or forge what passes."""

    def __init__(self, vaults: Mapping[str, Vault], meddle: Meddle) -> None:
        super().__init__(vaults)
        self.meddle = meddle

    def exchange(self, requests: dict[str, bytes], timeout: float) -> dict[str, bytes]:
        there = {name: body for name, body in requests.items() if name in self.vaults}
        replies = {name: self.meddle(name, body, self.vaults[name].handle) for name, body in there.items()}
        return {name: reply for name, reply in replies.items() if reply is not None}


# -- processes -------------------------------------------------------------------------------------------------


class Process:
    """A child of the nursery."""

    def __init__(self, nursery: "Nursery", pid: int, log: Path) -> None:
        self.nursery, self.pid, self.log = nursery, pid, log
        self.code: int | None = None

    def send(self, number: int) -> None:
        with suppress(ProcessLookupError):
            os.kill(self.pid, number)

    def wait(self) -> int:
        """The exit code; minus the signal's number where one ended it."""
        if self.code is None:
            self.code = int(self.nursery.ask({"wait": self.pid}))
        return self.code

    def kill(self) -> None:
        if self.code is None:
            self.send(signal.SIGKILL)
            self.wait()

    @property
    def ended(self) -> bool:
        """Whether there is nothing left of it but its exit code."""
        stat = Path(f"/proc/{self.pid}/stat")
        return self.code is not None or not stat.exists() or stat.read_text().rpartition(")")[2].split()[0] == "Z"

    @property
    def output(self) -> str:
        return self.log.read_text(encoding="utf-8")


class Nursery:
    """Starts processes of fedmest quickly. They all end with it, and it ends with the test process."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.number = folder, 0
        environment = {**os.environ, "NUMBA_NUM_THREADS": "1", "NUMBA_THREADING_LAYER": "workqueue"}
        self.program = subprocess.Popen(
            [sys.executable, __file__], stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.program.stdin.close()  # type: ignore[union-attr]
        self.program.wait(PATIENCE)
        self.program.stdout.close()  # type: ignore[union-attr]

    def ask(self, order: dict[str, Any]) -> str:
        assert self.program.stdin is not None and self.program.stdout is not None
        self.program.stdin.write(json.dumps(order).encode() + b"\n")
        self.program.stdin.flush()
        answer = self.program.stdout.readline().decode()
        assert answer, "the nursery has died"
        return answer

    def start(self, *argv: object) -> Process:
        """`fedmest ARGV` as a process of its own; `study FOLDER SOCKETS` runs a proposal (see `_run_study`)."""
        self.number += 1
        log = self.folder / f"{self.number}.log"
        pid = int(self.ask({"argv": [str(word) for word in argv], "log": str(log)}))
        return Process(self, pid, log)

    def serve(self, policy: Path) -> Process:
        """A vault that listens."""
        process = self.start("site", "serve", policy)
        await_vault(policy.parent / "s", process)
        return process


def await_vault(path: Path, process: Process) -> None:
    until = time.monotonic() + PATIENCE
    while time.monotonic() < until and not process.ended:
        with suppress(OSError):
            call(str(path), encode(Describe()), PATIENCE)
            return
        time.sleep(0.002)
    raise AssertionError(f"no vault at {path}: {process.output}")


def save_proposal(folder: Path, given: Mapping[str, Any]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "given.json").write_text(json.dumps(dict(given)), encoding="utf-8")


def _run_study(folder: Path, sockets: Iterable[str]) -> int:
    """A server: runs the proposal in FOLDER/given.json at vaults NAME=SOCKET and writes FOLDER/params.json."""
    from fedmest.server.coordinator import Coordinator

    given = json.loads((folder / "given.json").read_text(encoding="utf-8"))
    transport = SocketTransport(dict(pair.split("=", 1) for pair in sockets))
    result = Coordinator(study(**given), transport).run(folder / "run")
    (folder / "params.json").write_text(json.dumps(coef(result).tolist()), encoding="utf-8")
    return 0


def _child(argv: list[str], log: str) -> int:
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG: end with the nursery
    os.setsid()
    null, file = os.open(os.devnull, os.O_RDONLY), os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    for number, descriptor in ((0, null), (1, file), (2, file)):
        os.dup2(descriptor, number)
    if argv[0] == "study":
        return _run_study(Path(argv[1]), argv[2:])
    from fedmest.interface.cli.main import main

    return main(argv)


def _nursery() -> None:
    from fedmest.interface.cli.main import main
    from fedmest.privacy import discrete_noise
    from fedmest.server.coordinator import Coordinator
    from fedmest.site.daemon import serve

    assert main and Coordinator and serve
    discrete_noise.prepare()
    for line in sys.stdin:
        order = json.loads(line)
        if "wait" in order:
            status = os.waitstatus_to_exitcode(os.waitpid(order["wait"], 0)[1])
            print(status, flush=True)
            continue
        pid = os.fork()
        if pid == 0:
            code = 70
            try:
                code = _child(**order)
            except BaseException:
                import traceback

                traceback.print_exc()
            finally:
                sys.stdout.flush()
                sys.stderr.flush()
                os._exit(code)
        print(pid, flush=True)


# -- messages --------------------------------------------------------------------------------------------------


def raw(head: Any, arrays: Mapping[str, Any] | None = None) -> bytes:
    """Bytes as anyone can write them, also with what is no message, or no number, in the head."""
    given = {name: np.asarray(array, dtype="<f8", order="C") for name, array in sorted((arrays or {}).items())}
    shapes = {name: list(array.shape) for name, array in given.items()}
    text = json.dumps({"head": head, "arrays": shapes}, sort_keys=True).encode()
    return len(text).to_bytes(8, "big") + text + b"".join(array.tobytes() for array in given.values())


def read(reply: bytes) -> Message:
    """What a site replied; it must be a message of a kind that sites send."""
    message = decode(reply)
    assert isinstance(message, (SiteDescription, RunOpened, RoundReply, Refusal)), message
    if isinstance(message, RoundReply):
        assert set(message.values) == {"values"} and np.isfinite(message.values["values"]).all()
    return message


def answered(reply: bytes | None) -> RoundReply:
    """The reply to a round, which must not be a refusal."""
    assert reply is not None
    message = read(reply)
    assert isinstance(message, RoundReply), message
    return message


def values_of(reply: bytes | None) -> np.ndarray:
    """The numbers in the reply to a round."""
    return answered(reply).values["values"]


def refusal(reply: bytes | None) -> str:
    """The reason in a reply that must be a refusal."""
    assert reply is not None
    message = read(reply)
    assert isinstance(message, Refusal), message
    return message.reason


def is_refused(reply: bytes) -> bool:
    return isinstance(read(reply), Refusal)


if __name__ == "__main__":
    _nursery()
