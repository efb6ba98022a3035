"""What a round costs on a real Flower network, and what that makes of methods with few and with many rounds.

    python benchmarks/flower.py load       16 SuperNodes, ten rounds
    python benchmarks/flower.py methods    three sites, each method at its defaults: rounds, seconds, error

Every process is real: SuperLink, SuperNodes, vaults. Needs the extra `site`.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pandas as pd

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))
import fedmest as fm
from conftest import simulate
from fedmest.server.project import RESULT
from fedmest.site.ledger import Ledger, LedgerReader
from flower_network import FlowerNetwork, wait_until

APP = Path(__file__).parent.parent / "src/fedmest/server/templates/project/app__pyproject.toml"
SERVE = [
    sys.executable,
    "-c",
    "import sys; from fedmest.interface.cli.main import main; sys.exit(main())",
    "site",
    "serve",
]
CALM = {"FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "1"}  # Flower's default; many sites share these two cores
FEATURES = [f"x{j}" for j in range(1, 6)]
COLUMNS = {**{x: {"low": -6.0, "high": 6.0} for x in FEATURES}, "y": {"low": 0.0, "high": 1.0, "whole": True}}


@contextmanager
def sites(count: int, rows: int) -> Iterator[tuple[Path, FlowerNetwork, fm.Federation]]:
    """Simulated logistic rows at `count` vaults, and a network between them."""
    made = simulate("logistic", count, rows, d=6, seed=1)
    design = np.clip(made.fed.design()[:, 1:], -6, 6)
    names = np.repeat([f"s{i:02d}" for i in range(count)], rows)
    frame = pd.DataFrame(design, columns=FEATURES).assign(y=made.fed.target, site=names)
    vaults = []
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        declared = "\n".join(
            f"[columns.{c}]\n" + "\n".join(f"{k} = {json.dumps(v)}" for k, v in facts.items())
            for c, facts in COLUMNS.items()
        )
        for name, part in frame.groupby("site"):
            home = folder / str(name)
            home.mkdir()
            part.drop(columns="site").to_csv(home / "rows.csv", index=False)
            (home / "site.toml").write_text(
                f'[site]\nname = "{name}"\ndata = "rows.csv"\n[budget]\nlifetime = 50.0\nrun = 2.0\n'
                f'[allow]\nmodels = ["logistic"]\n{declared}\n'
            )
            Ledger(home / "ledger.sqlite").close()
            with (home / "vault.log").open("wb") as log:
                vaults.append(subprocess.Popen([*SERVE, str(home / "site.toml")], stdout=log, stderr=log))
        sockets = {str(name): folder / str(name) / "vault.sock" for name in frame["site"].unique()}
        try:
            for name, path in sockets.items():
                wait_until(path.exists, f"vault {name}")
            with FlowerNetwork(folder / "flower", sockets, environment=CALM) as network:
                (folder / "app").mkdir()
                (folder / "app" / "pyproject.toml").write_text(APP.read_text())
                bounds = dict.fromkeys(FEATURES, (-6.0, 6.0))
                yield folder, network, fm.Federation.from_frame(frame, "y", "site", bounds=bounds)
        finally:
            for vault in vaults:
                vault.kill()
                vault.wait()


def run(folder: Path, network: FlowerNetwork, count: int, method: str, **options: int) -> dict:
    study = {
        "model": "logistic", "method": method, "mu": 2.0, "target": "y", "features": FEATURES, "quorum": count,
        "timeout": 300, "columns": COLUMNS, "options": options,
    }  # fmt: skip
    place = folder / f"run-{method}-{time.time_ns()}"
    started = time.monotonic()
    done = network.run(folder / "app", {"study": json.dumps(study), "folder": str(place)}, timeout=3600)
    if not (place / RESULT).exists():
        raise SystemExit(f"{done.log}\n{done.status} {done.details}\n{network.log('superlink')[-5000:]}")
    return {**json.loads((place / RESULT).read_text()), "seconds": time.monotonic() - started}


def resident(pid: int) -> float:
    """MB."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20


def load(count: int = 16) -> None:
    with sites(count, 200) as (folder, network, _):
        result = run(folder, network, count, "fedsgd", K=9)
        rounds = result["network"]["rounds"]
        seconds = [r["seconds"] for r in rounds]
        entries = 0
        for name in network.sites:
            with LedgerReader(folder / name / "ledger.sqlite") as records:
                entries += sum(1 for _ in records.entries())
        logs = [json.loads(line) for name in network.sites for line in (folder / name / "vault.log").open()]
        released = [line for line in logs if line["event"] == "released"]
        compute, ledger = (np.array([line[k] for line in released]) for k in ("compute_ms", "ledger_ms"))
        answered = sum(r["answered"] for r in rounds)
        nodes = [network._processes[name].pid for name in network.sites]
        print(f"\n{count} SuperNodes, {len(rounds)} rounds\n\n| | |\n|---|---|")
        span = f"{np.median(seconds):.1f} ({min(seconds):.1f}, {max(seconds):.1f})"
        print(f"| seconds per round, median (least, most) | {span} |")
        print(f"| whole run, with start and two rounds of greetings, seconds | {result['seconds']:.0f} |")
        print(f"| replies used, ledger entries | {answered}, {entries} |")
        print(f"| query and secure noise at a site, ms, median | {np.median(compute):.2f} |")
        print(f"| ledger, ms, median | {np.median(ledger):.2f} |")
        share = (np.median(compute) + np.median(ledger)) / 1e3 / np.median(seconds)
        print(f"| both, of a round | {100 * share:.2f} % |")
        print(f"| SuperNode, MB per site | {np.mean([resident(pid) for pid in nodes]):.0f} |")


def methods(count: int = 3) -> None:
    with sites(count, 2000) as (folder, network, federation):
        pooled = fm.fit(federation, "logistic", "np-pooled").coef_matrix[0]
        print(f"\n{count} sites of 2,000 rows, mu = 2\n")
        print("| method | rounds | seconds | seconds per round | distance from the pooled fit |\n|---|---|---|---|---|")
        for method in ("fednewton", "fedavg", "fedhybrid", "fedsgd"):
            result = run(folder, network, count, method)
            own = [r["seconds"] for r in result["network"]["rounds"]]
            away = float(np.linalg.norm(np.array(list(result["coefficients"].values())) - pooled))
            seconds = f"{result['seconds']:.0f} | {np.median(own):.1f}"
            print(f"| {method} | {len(own)} | {seconds} | {away:.3f} |", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", choices=["load", "methods"])
    {"load": load, "methods": methods}[parser.parse_args().what]()
