"""Time the same FedAvg job on fedmest, Flower and pfl, side by side on one machine.

The job is logistic regression by federated averaging without clipping or noise: 100 sites of 400 rows,
50 parameters (49 standard normal features and an intercept), 10 local full-batch gradient steps of size
0.5 a round, averaged with weights proportional to the site sizes, started at zero.

Each system runs in its own process. fedmest uses the interpreter that runs this script. Flower and pfl
cannot share its dependencies, so each gets a virtual environment of its own, which is built with pip on the
first run (about 0.5 GB for Flower, 1 GB and more for pfl: pip takes the CPU or the CUDA build of torch
according to your own pip configuration) and kept for the next one.

What is timed is a whole run of R rounds from zero, for a small and a large R, in a process that has already
made one short run. Seconds a round are the slope between the two minima, so the cost of starting a process,
compiling or starting Ray is left out for every system. All three read the same data file and hold its
rows in memory; each may use every CPU in the way its own documentation offers:

* fedmest: `fedmest.fit`, in double precision.
* Flower: its simulation engine with the Ray backend, one client actor a CPU, its own FedAvg strategy,
  federated evaluation switched off, a closed-form NumPy gradient in double precision.
* pfl: its simulated backend and FederatedAveraging with a PyTorch model, one process a CPU under torchrun,
  evaluation only in the first round (which the slope leaves out), single precision, as pfl is built for.

Theta is compared with a plain NumPy loop, which is also timed, as a yardstick. The comparison is made at both
numbers of rounds: after the large one FedAvg has nearly settled, and a round too few would hardly show.

    python benchmarks/peers.py
    python benchmarks/peers.py --rounds 5 25 --repeats 5 --json peers.json
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import importlib
import importlib.metadata
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

SITES, ROWS, FEATURES = 100, 400, 49
STEPS, ETA = 10, 0.5
MAX_PROCESSES = 16

# What pip installs into each peer's environment, one call a line, in this order.
PACKAGES: dict[str, tuple[str, ...]] = {
    "flower": ("flwr[simulation]==1.41.0",),
    "pfl": ("torch==2.13.0", "pfl==0.6.0"),
}
DISTRIBUTION = {"fedmest": "fedmest", "flower": "flwr", "pfl": "pfl"}
TOLERANCE = {"fedmest": 1e-6, "flower": 1e-6, "pfl": 1e-4}
SYSTEMS = tuple(TOLERANCE)

Fit = Callable[[int], np.ndarray]


class PeerError(Exception):
    """A system could not be installed or run; the text is for the user."""


@dataclass
class Timing:
    """The times of one system: seconds of each repeat at the two numbers of rounds, and theta at both."""

    version: str
    short: list[float]
    long: list[float]
    thetas: list[list[float]]

    def per_round(self, rounds: Sequence[int]) -> float:
        """Seconds a round: the slope between the fastest short and the fastest long run."""
        return (min(self.long) - min(self.short)) / (rounds[1] - rounds[0])


# ---------------------------------------------------------------------------------------------------------
# The job
# ---------------------------------------------------------------------------------------------------------


def make_data(path: Path, seed: int = 20) -> None:
    """Draw the job's rows and save them: features (sites, rows, 49) and labels 0 or 1 (sites, rows)."""
    rng = np.random.default_rng(seed)
    features = rng.standard_normal((SITES, ROWS, FEATURES))
    beta = rng.standard_normal(FEATURES) / 7.0
    chance = sigmoid(features @ beta - 0.25)
    labels = (rng.random((SITES, ROWS)) < chance).astype(float)
    np.savez(path, features=features, labels=labels)


@functools.lru_cache(maxsize=1)
def load_blocks(path: str) -> list[tuple[np.ndarray, np.ndarray]]:
    """Read the job once a process: for each site its design, ones in the first column, and its labels."""
    with np.load(path) as data:
        features, labels = data["features"], data["labels"]
    ones = np.ones((features.shape[1], 1))
    return [(np.hstack([ones, x]), y) for x, y in zip(features, labels, strict=True)]


def sigmoid(z: np.ndarray) -> np.ndarray:
    """The logistic function, without overflow."""
    return 0.5 * (1.0 + np.tanh(0.5 * z))


def local_steps(theta: np.ndarray, x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """One site's round: full-batch gradient steps on its mean logistic loss."""
    theta = theta.copy()
    for _ in range(STEPS):
        theta -= ETA * (x.T @ (sigmoid(x @ theta) - y)) / len(y)
    return theta


def numpy_fit(rounds: int, blocks: list[tuple[np.ndarray, np.ndarray]]) -> np.ndarray:
    """The reference: FedAvg as a plain loop over rounds and sites."""
    weights = np.array([len(y) for _, y in blocks], dtype=float)
    weights /= weights.sum()
    theta = np.zeros(FEATURES + 1)
    for _ in range(rounds):
        theta = weights @ np.stack([local_steps(theta, x, y) for x, y in blocks])
    return theta


def measure(fit: Fit, rounds: Sequence[int], repeats: int, version: str) -> Timing:
    """Time whole runs of `fit` at both numbers of rounds, in turn, after one run to warm up."""
    fit(2)
    timing = Timing(version, [], [], [])
    for _ in range(repeats):
        timing.thetas = []
        for count, seconds in zip(rounds, (timing.short, timing.long), strict=True):
            start = time.perf_counter()
            theta = fit(count)
            seconds.append(time.perf_counter() - start)
            timing.thetas.append(theta.tolist())
    return timing


def processes() -> int:
    """How many processes a peer may start: one a CPU that this process may use."""
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return min(usable, MAX_PROCESSES)


# ---------------------------------------------------------------------------------------------------------
# The workers: each runs in its own environment, imports its library and returns the times
# ---------------------------------------------------------------------------------------------------------


def fedmest_worker(data: str, rounds: Sequence[int], repeats: int, version: str) -> Timing:
    """Whole `fedmest.fit` calls on a federation in memory."""
    import fedmest as fm

    blocks = load_blocks(data)
    features = np.vstack([x[:, 1:] for x, _ in blocks])
    labels = np.concatenate([y for _, y in blocks])
    sites = np.repeat(np.arange(len(blocks)), [len(y) for _, y in blocks])
    fed = fm.Federation.from_arrays(features, labels, sites)

    def fit(count: int) -> np.ndarray:
        result = fm.fit(
            fed,
            model="logistic",
            method="fedavg",
            mu=float("inf"),
            K=STEPS,
            R=count,
            eta=ETA,
            scaling="none",
            seed=1,
        )
        return np.asarray(result.coef_matrix[0])

    return measure(fit, rounds, repeats, version)


def flower_train(message: Any, context: Any) -> Any:
    """A Flower client's round: local steps on the rows of its partition, kept in the actor's memory."""
    from flwr.app import ArrayRecord, Message, MetricRecord, RecordDict

    x, y = load_blocks(str(message.content["config"]["data"]))[int(context.node_config["partition-id"])]
    theta = local_steps(message.content["arrays"].to_numpy_ndarrays()[0], x, y)
    reply = RecordDict({"arrays": ArrayRecord([theta]), "metrics": MetricRecord({"num-examples": len(y)})})
    return Message(content=reply, reply_to=message)


def flower_worker(data: str, rounds: Sequence[int], repeats: int, version: str) -> Timing:
    """Flower's FedAvg strategy, started again and again inside one simulation, so that Ray starts once."""
    import logging

    from flwr.app import ArrayRecord, ConfigRecord
    from flwr.clientapp import ClientApp
    from flwr.serverapp import ServerApp
    from flwr.serverapp.strategy import FedAvg
    from flwr.simulation import run_simulation

    logging.getLogger("flwr").setLevel(logging.WARNING)
    done: list[Timing] = []
    client, server = ClientApp(), ServerApp()
    # Taken from an imported module and not from __main__, the function travels to the actors by name: sent
    # by value with every message, it would leave nothing in their memory from one round to the next.
    client.train()(importlib.import_module(Path(__file__).stem).flower_train)

    @server.main()
    def serve(grid: Any, context: Any) -> None:
        def fit(count: int) -> np.ndarray:
            strategy = FedAvg(fraction_evaluate=0.0, min_train_nodes=SITES, min_available_nodes=SITES)
            start = ArrayRecord([np.zeros(FEATURES + 1)])
            config = ConfigRecord({"data": data})
            result = strategy.start(grid, start, num_rounds=count, train_config=config)
            return result.arrays.to_numpy_ndarrays()[0]

        done.append(measure(fit, rounds, repeats, version))

    run_simulation(
        server,
        client,
        num_supernodes=SITES,
        backend_config={
            "init_args": {"num_cpus": processes(), "log_to_driver": False},
            "client_resources": {"num_cpus": 1, "num_gpus": 0.0},
        },
    )
    return done[0]


def pfl_worker(data: str, rounds: Sequence[int], repeats: int, version: str) -> Timing | None:
    """pfl's simulated backend; under torchrun each process trains its share of the sites.

    Only the first process returns the times, the others return None.
    """
    import torch
    from pfl.aggregate.simulate import SimulatedBackend
    from pfl.aggregate.weighting import WeightByDatapoints
    from pfl.algorithm.base import NNAlgorithmParams
    from pfl.algorithm.federated_averaging import FederatedAveraging
    from pfl.data.federated_dataset import FederatedDataset
    from pfl.data.pytorch import PyTorchTensorDataset
    from pfl.data.sampling import get_user_sampler
    from pfl.hyperparam import NNTrainHyperParams
    from pfl.metrics import Weighted
    from pfl.model.pytorch import PyTorchModel

    class Logistic(torch.nn.Module):
        """Logistic regression with the two methods that pfl asks of a module."""

        def __init__(self) -> None:
            super().__init__()
            self.theta = torch.nn.Parameter(torch.zeros(FEATURES + 1))

        def loss(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            return torch.nn.functional.binary_cross_entropy_with_logits(x @ self.theta, y)

        def metrics(self, x: torch.Tensor, y: torch.Tensor) -> dict[str, Weighted]:
            with torch.no_grad():
                return {"loss": Weighted.from_unweighted(self.loss(x, y).item())}

    users = [
        PyTorchTensorDataset((torch.tensor(x, dtype=torch.float32), torch.tensor(y, dtype=torch.float32)))
        for x, y in load_blocks(data)
    ]
    np.random.seed(1)  # noqa: NPY002  (pfl asks for it: every process must draw the same cohorts)
    everyone = FederatedDataset(users.__getitem__, get_user_sampler("minimize_reuse", range(len(users))))
    backend = SimulatedBackend(everyone, everyone, postprocessors=[WeightByDatapoints()])
    local = NNTrainHyperParams(local_batch_size=None, local_num_epochs=STEPS, local_learning_rate=ETA)

    def fit(count: int) -> np.ndarray:
        module = Logistic()
        model = PyTorchModel(module, torch.optim.SGD, torch.optim.SGD(module.parameters(), lr=1.0))
        plan = NNAlgorithmParams(
            central_num_iterations=count,
            evaluation_frequency=count + 1,
            train_cohort_size=len(users),
            val_cohort_size=None,
        )
        FederatedAveraging().run(plan, backend, model, local, send_metrics_to_platform=False)
        return module.theta.detach().numpy().astype(float)

    timing = measure(fit, rounds, repeats, version)
    if torch.distributed.is_initialized():  # left open, the group may abort a process that ends
        torch.distributed.barrier()
        torch.distributed.destroy_process_group()
    return timing if int(os.environ.get("RANK", "0")) == 0 else None


WORKERS: dict[str, Callable[[str, Sequence[int], int, str], Timing | None]] = {
    "fedmest": fedmest_worker,
    "flower": flower_worker,
    "pfl": pfl_worker,
}


def work(system: str, data: str, rounds: Sequence[int], repeats: int) -> int:
    """Run one worker and print its times as one line of JSON; whatever the library prints goes to stderr."""
    version = importlib.metadata.version(DISTRIBUTION[system])
    with contextlib.redirect_stdout(sys.stderr):
        timing = WORKERS[system](data, rounds, repeats, version)
    if timing is not None:
        print(json.dumps(asdict(timing)), flush=True)
    return 0


# ---------------------------------------------------------------------------------------------------------
# Environments and processes
# ---------------------------------------------------------------------------------------------------------


def reason(text: str) -> str:
    """Why a program failed: the last line of its output that names an error, or else the last line."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    errors = [line for line in lines if re.search(r"(Error|ERROR|Exception): \S", line)]
    return (errors or lines or ["no message"])[-1]


def environment_python(folder: Path) -> Path:
    """The interpreter of a virtual environment."""
    return folder / ("Scripts/python.exe" if os.name == "nt" else "bin/python")


def ensure_environment(system: str, root: Path) -> Path:
    """Return the interpreter of a peer's environment, building it when it is missing, partial or outdated."""
    folder = root / system
    marker = folder / "fedmest-peers.txt"
    wanted = "\n".join(PACKAGES[system])
    python = environment_python(folder)
    if python.exists() and marker.exists() and marker.read_text() == wanted:
        return python
    print(f"installing {', '.join(PACKAGES[system])} into {folder} ...", file=sys.stderr, flush=True)
    root.mkdir(parents=True, exist_ok=True)
    commands = [[sys.executable, "-m", "venv", "--clear", str(folder)]]
    commands += [[str(python), "-m", "pip", "install", "--retries", "1", spec] for spec in PACKAGES[system]]
    for command in commands:
        made = subprocess.run(command, capture_output=True, text=True, check=False)
        if made.returncode != 0:
            shutil.rmtree(folder, ignore_errors=True)
            why = reason(made.stderr or made.stdout)
            raise PeerError(f"cannot install {command[-1]} (is the network reachable?): {why}")
    marker.write_text(wanted)
    return python


def worker_command(system: str, python: Path, scratch: Path) -> list[str]:
    """How a worker is started: pfl under torchrun, as its documentation says for more than one process."""
    command = [str(python)]
    if system == "pfl" and processes() > 1:
        command += ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={processes()}"]
        command += [f"--log-dir={scratch}"]
    return [*command, str(Path(__file__).resolve()), "--worker", system]


def run_system(system: str, python: Path, data: Path, rounds: Sequence[int], repeats: int) -> Timing:
    """Run one system's worker in its environment and read the times that it prints."""
    print(f"timing {system} ...", file=sys.stderr, flush=True)
    quiet = {
        "FLWR_TELEMETRY_ENABLED": "0",
        "FLWR_DISABLE_UPDATE_CHECK": "1",
        "FLWR_HOME": str(data.parent / "flwr"),
        "RAY_USAGE_STATS_ENABLED": "0",
    }
    command = worker_command(system, python, data.parent)
    command += ["--data", str(data), "--rounds", *map(str, rounds), "--repeats", str(repeats)]
    ran = subprocess.run(command, capture_output=True, text=True, check=False, env={**os.environ, **quiet})
    answers = [line for line in ran.stdout.splitlines() if line.startswith('{"version"')]
    if ran.returncode != 0 or not answers:
        raise PeerError(f"{system} failed: {reason(ran.stderr)}")
    return Timing(**json.loads(answers[-1]))


# ---------------------------------------------------------------------------------------------------------
# The report
# ---------------------------------------------------------------------------------------------------------


def compare(timings: dict[str, Timing], rounds: Sequence[int], reference: Timing) -> list[dict[str, Any]]:
    """One row a system: seconds a round, ratio to fedmest, distance to the NumPy loop and the verdict."""
    base = timings["fedmest"].per_round(rounds) if "fedmest" in timings else None
    rows = []
    for system, timing in [*timings.items(), ("numpy loop", reference)]:
        seconds = timing.per_round(rounds)
        gap = float(np.max(np.abs(np.subtract(timing.thetas, reference.thetas))))
        tolerance = TOLERANCE.get(system, 0.0)
        rows.append(
            {
                "system": system,
                "version": timing.version,
                "seconds_per_round": seconds,
                "ratio_to_fedmest": seconds / base if base else None,
                "seconds_whole_run": min(timing.long),
                "max_difference": gap,
                "tolerance": tolerance,
                "agrees": gap <= tolerance,
            }
        )
    return rows


def table(rows: list[dict[str, Any]], rounds: Sequence[int]) -> str:
    """The rows as plain text."""
    whole = f"{rounds[1]} rounds, s"
    head = f"{'system':<12}{'version':<12}{'s/round':>10}{'ratio':>9}{whole:>16}"
    lines = [f"{head}   theta against the NumPy loop"]
    for row in rows:
        ratio = "-" if row["ratio_to_fedmest"] is None else f"{row['ratio_to_fedmest']:.1f}"
        if row["system"] == "numpy loop":
            verdict = "reference"
        else:
            verdict = "agrees" if row["agrees"] else "DISAGREES"
            verdict += f": {row['max_difference']:.1e} (limit {row['tolerance']:.0e}"
            verdict += ", single precision)" if row["system"] == "pfl" else ")"
        lines.append(
            f"{row['system']:<12}{row['version']:<12}{row['seconds_per_round']:>10.5f}{ratio:>9}"
            f"{row['seconds_whole_run']:>16.3f}   {verdict}"
        )
    return "\n".join(lines)


def arguments() -> argparse.ArgumentParser:
    """The command line."""
    parser = argparse.ArgumentParser(description="Time one FedAvg job on fedmest, Flower and pfl.")
    parser.add_argument(
        "--rounds",
        nargs=2,
        type=int,
        default=[5, 25],
        metavar=("R1", "R2"),
        help="rounds of the short and of the long runs (default 5 25)",
    )
    parser.add_argument("--repeats", type=int, default=5, help="runs at each number of rounds (default 5)")
    parser.add_argument("--systems", nargs="+", choices=SYSTEMS, default=list(SYSTEMS), help="default: all")
    cache = Path.home() / ".cache" / "fedmest-peers"
    parser.add_argument("--envs", type=Path, default=cache, metavar="DIR", help="the peers' environments")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the numbers here")
    parser.add_argument("--worker", choices=SYSTEMS, help=argparse.SUPPRESS)
    parser.add_argument("--data", help=argparse.SUPPRESS)
    return parser


def benchmark(args: argparse.Namespace) -> int:
    """Build what is missing, time every system in turn, print the table; 1 when a theta disagrees."""
    envs = args.envs.expanduser().resolve()
    pythons = {"fedmest": Path(sys.executable)}
    pythons |= {system: ensure_environment(system, envs) for system in args.systems if system in PACKAGES}
    with tempfile.TemporaryDirectory(prefix="fedmest-peers-") as folder:
        data = Path(folder) / "job.npz"
        make_data(data)
        blocks = load_blocks(str(data))
        timings = {s: run_system(s, pythons[s], data, args.rounds, args.repeats) for s in args.systems}
    reference = measure(lambda count: numpy_fit(count, blocks), args.rounds, args.repeats, np.__version__)
    rows = compare(timings, args.rounds, reference)
    print(
        f"logistic FedAvg, {SITES} sites x {ROWS} rows, {FEATURES + 1} parameters, {STEPS} local steps\n"
        f"{processes()} CPUs, Python {platform.python_version()}; s/round is the slope between runs of "
        f"{args.rounds[0]} and {args.rounds[1]} rounds, each the minimum of {args.repeats}\n"
    )
    print(table(rows, args.rounds))
    if args.json:
        report = {
            "job": {"sites": SITES, "rows": ROWS, "parameters": FEATURES + 1, "steps": STEPS, "eta": ETA},
            "rounds": args.rounds,
            "repeats": args.repeats,
            "cpus": processes(),
            "python": platform.python_version(),
            "results": rows,
            "runs": {name: {"short": t.short, "long": t.long} for name, t in timings.items()},
        }
        args.json.write_text(json.dumps(report, indent=2) + "\n")
    return 0 if all(row["agrees"] for row in rows) else 1


def main() -> int:
    """Run the benchmark, or, when started by it, one worker."""
    parser = arguments()
    args = parser.parse_args()
    if args.rounds[0] < 1 or args.rounds[1] <= args.rounds[0] or args.repeats < 1:
        parser.error("need 1 <= R1 < R2 and at least one repeat")
    if args.worker:
        return work(args.worker, args.data, args.rounds, args.repeats)
    try:
        return benchmark(args)
    except PeerError as problem:
        print(f"peers: {problem}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
