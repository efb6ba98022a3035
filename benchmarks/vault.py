"""What a vault costs: queries per second, milliseconds per release, memory, and whether anything is lost.

    python benchmarks/vault.py              # all three tables
    python benchmarks/vault.py load         # 10,000 queries at one vault process, from 8 relays at once
    python benchmarks/vault.py ledgers      # 1,000 vaults with their ledgers in one process, 20 queries each
    python benchmarks/vault.py noise        # secure noise by the number of numbers

A query is one round of FedSGD: the mean clipped gradient of a logistic regression with five features. Every relay
opens a connection for each message, as Flower's do. Nothing is lost when every reply that was heard is an entry of the
ledger, and there are no others. The ledger syncs to the disk before a reply leaves; `--folder /dev/shm` shows what is
left without a disk.
"""

import argparse
import json
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import numpy as np
import pandas as pd

from fedmest.privacy.discrete_noise import GridNoise, prepare
from fedmest.runs.messages import RoundReply, RoundRequest, decode, encode, unpack
from fedmest.site.connection import call as ask
from fedmest.site.ledger import Ledger, LedgerReader
from fedmest.site.policy import Policy
from fedmest.site.vault import Vault

FEATURES = 5
RELAYS = 8
ROUNDS = 1250  # of a run
COUNTS = (6, 785, 7_850, 421_642)  # d=5; MNIST pixels of one class, of ten; the paper's network
PROGRAM = [sys.executable, "-c", "import sys; from fedmest.interface.cli.main import main; sys.exit(main())"]
POLICY = """\
[site]
name = "a"
data = "{data}"
[budget]
lifetime = 1e4
run = 10
[allow]
models = ["logistic"]
[columns.y]
low = 0
high = 1
whole = true
"""


def write_rows(path: Path, rows: int) -> None:
    rng = np.random.default_rng(0)
    frame = pd.DataFrame(rng.uniform(-1, 1, (rows, FEATURES)), columns=[f"x{j}" for j in range(FEATURES)])
    frame.assign(y=rng.integers(0, 2, rows)).to_csv(path, index=False)


def write_site(folder: Path, data: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "site.toml"
    columns = "".join(f"[columns.x{j}]\nlow = -1\nhigh = 1\n" for j in range(FEATURES))
    path.write_text(POLICY.format(data=data) + columns, encoding="utf-8")
    Ledger(folder / "ledger.sqlite").close()
    return path


def request(rows: int, number: int) -> bytes:
    """Round `number % ROUNDS` of run `number // ROUNDS`."""
    spec = {
        "model": "logistic", "classes": [], "method": "fedsgd", "mu": 1.0, "settings": {"clip_norm": 1.0},
        "options": {"K": ROUNDS}, "public_seed": 0, "sites": ["a"], "sizes": [rows], "target": "y",
        "features": [f"x{j}" for j in range(FEATURES)], "bounds": {f"x{j}": [-1.0, 1.0] for j in range(FEATURES)},
    }  # fmt: skip
    values = {"params": np.full((1, FEATURES + 1), 0.01)}
    run_id = f"{number // ROUNDS:08x}"
    return encode(RoundRequest(run_id, json.dumps(spec), None, number % ROUNDS, "gradient", values))


def resident(pid: int | str = "self") -> float:
    """Megabytes."""
    fields = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
    return int(fields["VmRSS"].split()[0]) / 1024


def load(folder: Path, queries: int) -> None:
    """One vault process, many relays."""
    rows = 400
    write_rows(folder / "rows.csv", rows)
    path = write_site(folder / "load", folder / "rows.csv")
    log, address = folder / "load" / "log", str(folder / "load" / "vault.sock")
    with log.open("w") as stderr:
        vault = subprocess.Popen([*PROGRAM, "site", "serve", str(path)], stderr=stderr)
    while not Path(address).exists():
        time.sleep(0.05)
    ask(address, request(rows, 0), 60)
    before, heard, lock = resident(vault.pid), {}, threading.Lock()
    relays = min(RELAYS, queries)

    def relay(first: int) -> None:
        for number in range(first * queries // relays, (first + 1) * queries // relays):
            started = time.perf_counter()
            reply = decode(ask(address, request(rows, number), 600))
            assert isinstance(reply, RoundReply), reply
            with lock:
                heard[reply.run_id, reply.round] = reply.values["values"], time.perf_counter() - started

    threads = [threading.Thread(target=relay, args=[first]) for first in range(relays)]
    started = time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    seconds, after = time.perf_counter() - started, resident(vault.pid)
    vault.send_signal(signal.SIGTERM)
    vault.wait()
    with LedgerReader(folder / "load" / "ledger.sqlite") as records:
        entries = {(entry.run, entry.round): unpack(entry.reply)[1]["values"] for entry in records.entries()}
    same = heard.keys() == entries.keys() and all((heard[k][0] == entries[k]).all() for k in heard)
    events = [json.loads(line) for line in log.read_text().splitlines()]
    released = [event for event in events if event["event"] == "released"]
    compute, ledger = (np.median([event[key] for event in released]) for key in ("compute_ms", "ledger_ms"))
    noise = 1e3 * _noise_seconds(FEATURES + 1, 200)
    waits = 1e3 * np.array([wait for _, wait in heard.values()])
    print(f"\n{queries:,} queries at one vault process ({rows} rows) from {relays} relays at once\n")
    print("| queries/s | ms of a release: rows | secure noise | ledger | ms that a relay waits: median | 99 % | "
          "MB at the start | MB at the end | heard = ledger |\n|" + "---|" * 9)  # fmt: skip
    print(f"| {queries / seconds:.0f} | {compute - noise:.2f} | {noise:.2f} | {ledger:.2f} | {np.median(waits):.1f} | "
          f"{np.quantile(waits, 0.99):.1f} | {before:.0f} | {after:.0f} | "
          f"{f'yes, {len(entries):,}' if same else f'NO: {len(heard):,}, {len(entries):,}'} |")  # fmt: skip


def ledgers(folder: Path, vaults: int, queries: int = 20) -> None:
    """Many vaults, each with its own ledger, in this process."""
    rows = 100
    write_rows(folder / "few.csv", rows)
    first = Vault(Policy.read(write_site(folder / "ledgers" / "warm", folder / "few.csv")))
    first.handle(request(rows, 0))
    before, started = resident(), time.perf_counter()
    opened = [Vault(Policy.read(write_site(folder / "ledgers" / f"{i}", folder / "few.csv"))) for i in range(vaults)]
    begun, idle = time.perf_counter() - started, resident()
    bodies = [request(rows, number) for number in range(queries)]
    started = time.perf_counter()
    replies = [[vault.handle(body) for vault in opened] for body in bodies]
    seconds, busy = time.perf_counter() - started, resident()
    heard = sum(isinstance(decode(reply), RoundReply) for turn in replies for reply in turn)
    kept = sum(len(list(vault.ledger.entries())) for vault in opened)
    same = f"yes, {kept:,}" if heard == kept == vaults * queries else f"NO: {heard:,}, {kept:,}"
    for vault in (first, *opened):
        vault.close()
    print(f"\n{vaults:,} vaults with their ledgers in one process ({rows} rows each), {queries} queries each\n")
    print("| queries/s | ms to open one | MB per vault, idle | MB per vault, after its queries | replies = entries |\n|"
          + "---|" * 5)  # fmt: skip
    print(f"| {vaults * queries / seconds:.0f} | {1e3 * begun / vaults:.1f} | {(idle - before) / vaults:.3f} | "
          f"{(busy - before) / vaults:.3f} | {same} |")  # fmt: skip


def noise() -> None:
    print("\nSecure noise by the number of numbers\n\n| numbers | ms | us per number |\n|---|---|---|")
    for count in COUNTS:
        seconds = _noise_seconds(count, 200 if count < 1000 else 3)
        print(f"| {count:,} | {1e3 * seconds:.2f} | {1e6 * seconds / count:.1f} |")


def _noise_seconds(count: int, repeats: int) -> float:
    """The median."""
    source, site, sds = GridNoise(np.array([[1.0]]), 400), np.array([0]), np.array([0.01])
    times = []
    for _ in range(repeats):
        values = np.zeros((1, count))
        started = time.perf_counter()
        source.add(values, sds, site)
        times.append(time.perf_counter() - started)
    return float(np.median(times))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", nargs="*", choices=["load", "ledgers", "noise", []], help="default: all")
    parser.add_argument("--folder", help="where the ledgers are (default: the system's folder for temporary files)")
    parser.add_argument("--queries", type=int, default=10_000)
    parser.add_argument("--vaults", type=int, default=1_000)
    call = parser.parse_args()
    prepare()
    with tempfile.TemporaryDirectory(dir=call.folder) as name:
        if not call.what or "load" in call.what:
            load(Path(name), call.queries)
        if not call.what or "ledgers" in call.what:
            ledgers(Path(name), call.vaults)
        if not call.what or "noise" in call.what:
            noise()


if __name__ == "__main__":
    main()
