"""What per-row clipping of the paper's networks costs, as ratios within one run.

    python benchmarks/network.py            # both networks
    python benchmarks/network.py mnist

Clipped sums of row gradients (480 rows of MNIST's shape, 400 of CIFAR-10's) against: a plain forward and backward pass
over all rows at once; the same with our chunks and memory layout; Opacus, which stores every row's gradient;
`torch.func.vmap` of `grad`. Minima over repeats; contenders take turns so that a busy machine hurts them alike. Memory
(Linux only) is a contender's peak in a process of its own, over that process's peak before it.
"""

import argparse
import math
import re
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn
from torch.func import functional_call, grad, vmap

from fedmest.models.grad_sample import GradSampleNetwork, cifar_net, mnist_net

try:
    from opacus import GradSampleModule
except ImportError:
    GradSampleModule = None

NETS = {"mnist": (mnist_net, (1, 28, 28), 480), "cifar": (cifar_net, (3, 32, 32), 400)}
BOUND = 1.0
TARGETS = {
    "plain": "at most 1.0", "plain, tuned alike": "at most 1.4", "vmap": "at most 0.33", "opacus": "at most 0.25",
    "clipped": "memory under 400",
}  # fmt: skip


def contenders(name: str) -> dict[str, Callable[[], np.ndarray]]:
    """Each returns the flat sum: of clipped row gradients, or of plain ones."""
    build, shape, rows = NETS[name]
    rng = np.random.default_rng(0)
    x = rng.standard_normal((rows, *shape)).astype(np.float32)
    y = rng.integers(0, 10, rows)
    net = GradSampleNetwork(build(), shape)
    theta = net.initial(0)
    images, labels = torch.from_numpy(x), torch.from_numpy(y)

    def module() -> nn.Sequential:
        other = GradSampleNetwork(build(), shape)
        other.set(theta)
        return other.layers

    plain_module, functional = module(), module()
    weights = {k: v.detach() for k, v in functional.named_parameters()}

    def plain() -> np.ndarray:
        plain_module.zero_grad()
        F.cross_entropy(plain_module(images), labels, reduction="sum").backward()
        return flat([p.grad for p in plain_module.parameters()])

    def row_loss(values: dict[str, torch.Tensor], image: torch.Tensor, label: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(functional_call(functional, values, image[None]), label[None])

    def by_vmap() -> np.ndarray:
        return clip_and_sum(list(vmap(grad(row_loss), in_dims=(None, 0, 0))(weights, images, labels).values()))

    found: dict[str, Callable[[], np.ndarray]] = {
        "clipped": lambda: net.clipped_sum(x, y, theta, BOUND)[0],
        "plain": plain,
        "plain, tuned alike": lambda: net.gradient(x, y, theta),
        "vmap": by_vmap,
    }
    if GradSampleModule is not None:
        sampled = GradSampleModule(module(), loss_reduction="sum")

        def by_opacus() -> np.ndarray:
            sampled.zero_grad()
            F.cross_entropy(sampled(images), labels, reduction="sum").backward()
            return clip_and_sum([p.grad_sample for p in sampled.parameters()])

        found["opacus"] = by_opacus
    return found


def clip_and_sum(grads: list[torch.Tensor]) -> np.ndarray:
    """From stored row gradients, one tensor (rows, ...) a parameter."""
    norms = torch.stack([g.flatten(1).norm(dim=1) for g in grads]).norm(dim=0)
    factors = (BOUND / norms).clamp(max=1.0)
    return flat([factors @ g.flatten(1) for g in grads])


def flat(pieces: list[torch.Tensor]) -> np.ndarray:
    return torch.cat([p.detach().reshape(-1) for p in pieces]).numpy()


def added_memory(name: str, contender: str) -> float:
    """Peak of one call, in MB, over the process as it stood before."""
    command = [sys.executable, __file__, name, "--memory-worker", contender]
    return float(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def peak() -> float:
    """Of this process, in MB. (`getrusage` would count what the parent held when it started this one.)"""
    return int(re.findall(r"VmHWM:\s*(\d+) kB", Path("/proc/self/status").read_text())[0]) / 2**10


def table(name: str, repeats: int) -> None:
    runs = contenders(name)
    sums = {k: run() for k, run in runs.items()}
    for a, b in (("clipped", "vmap"), ("clipped", "opacus"), ("plain, tuned alike", "plain")):
        if b in sums and not np.linalg.norm(sums[a] - sums[b]) < 1e-3 * np.linalg.norm(sums[b]):
            raise SystemExit(f"{a} and {b} do not agree")
    best = dict.fromkeys(runs, math.inf)
    for _ in range(repeats):
        for k, run in runs.items():
            start = time.perf_counter()
            run()
            best[k] = min(best[k], time.perf_counter() - start)
    rows, size = NETS[name][2], len(sums["clipped"])
    print(f"\n{name}: {rows} rows, {size:,} parameters, {torch.get_num_threads()} threads, torch {torch.__version__}\n")
    print("| | ms | clipped / this | target | added memory, MB |\n|---|---|---|---|---|")
    for k in runs:
        ratio = "" if k == "clipped" else f"{best['clipped'] / best[k]:.2f}"
        memory = added_memory(name, k)
        print(f"| {k} | {1e3 * best[k]:.0f} | {ratio} | {TARGETS.get(k, '')} | {memory:.0f} |", flush=True)
    if GradSampleModule is None:
        print("\nopacus is not installed: left out")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("net", nargs="?", choices=(*NETS, "all"), default="all")
    parser.add_argument("--repeats", type=int, default=12)
    parser.add_argument("--memory-worker", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.memory_worker:
        job = contenders(args.net)[args.memory_worker]
        before = peak()
        job()
        print(peak() - before)
        sys.exit()
    for each in NETS if args.net == "all" else (args.net,):
        table(each, args.repeats)
