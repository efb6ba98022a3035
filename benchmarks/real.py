"""How far private fits of real and realistic tables are from the fit over all rows, and what they say about it.

    python benchmarks/real.py --problems twelve --mu 2 --seeds 20 --out twelve.jsonl
    python benchmarks/real.py --problems tuning,rwm --mu 1,2,4 --cases declared --method fedirls --out other.jsonl
    python benchmarks/real.py report twelve.jsonl

Problems are the twelve of `benchmarks/problems.py` and the tables of `fm.realistic_table`; each is fitted with all
bounds declared ("declared") and with those of yes/no columns alone ("open"). Noise is independent in every case: the
seed of a run follows from problem, case, mu and replicate. Every run is a line of the file; lines that are there are
not run again, so another version of the code needs another file.

z = (private - pooled) / s for each coefficient, intercept included, in original units; classes as differences to the
first. s is the standard error of the pooled fit: from the model, and HC0 for counts, whose variance is far from their
mean. Of a case's runs the report gives

    rmsz      root mean square of z; 1 means that privacy costs as much as sampling
    HC0       the same with HC0 standard errors for every model; "model" with the model's
    median    over runs of a run's own rmsz
    limit     rmsz if all of mu went to one clipped score at the pooled estimate, with the best metric and bound
    intervals share of runs that give intervals
    honest    share of coefficients with the pooled estimate within 1.96 claimed privacy sd
    warned, refused   shares of runs; a refused run has no estimate and is in no other column but this
    silent    largest rmsz of a run that does neither; "> 5" is the share of runs that are off by more, silently
    signs     share of coefficients beyond 3 s whose sign is right
"""

import argparse
import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

os.environ.setdefault("NUMBA_NUM_THREADS", "1")

import numpy as np
import pandas as pd
from joblib import Parallel, delayed

from problems import GROUPS, names
from yardstick import block

CASES = ("declared", "open")
BLOCK = 10  # runs between two lines of progress
FAR = 5.0  # pooled standard errors


def key(line: dict[str, Any]) -> str:
    fields = ("problem", "case", "mu", "method", "settings", "replicate")
    return json.dumps([line[field] for field in fields], sort_keys=True)


def measure(given: argparse.Namespace) -> None:
    settings, out = json.loads(given.settings), Path(given.out)
    done = {key(line) for line in read(out)} if out.exists() else set()
    tasks = []
    for name in names(given.problems):
        for case in given.cases.split(","):
            for mu in map(float, given.mu.split(",")):
                wanted = [
                    r for r in range(given.seeds)
                    if key({"problem": name, "case": case, "mu": mu, "method": given.method, "settings": settings,
                            "replicate": r}) not in done
                ]  # fmt: skip
                tasks += [
                    (name, case, mu, given.method, settings, wanted[i : i + BLOCK])
                    for i in range(0, len(wanted), BLOCK)
                ]
    with out.open("a") as file:
        found = Parallel(given.jobs, return_as="generator_unordered")(delayed(block)(*task) for task in tasks)
        for number, lines in enumerate(found, 1):
            file.writelines(json.dumps(line) + "\n" for line in lines)
            file.flush()
            if sys.stderr.isatty():
                print(f"\r{number} of {len(tasks)} blocks of runs ", end="", file=sys.stderr)


def read(path: Path) -> Iterator[dict[str, Any]]:
    for text in path.read_text().splitlines():
        yield json.loads(text)


def summary(lines: list[dict[str, Any]]) -> dict[str, float]:
    """The columns of the report for the runs of one case."""
    fitted = [line for line in lines if line["refused"] is None]
    kind = "hc0" if lines[0]["model"] == "poisson" else "model"
    zs = {k: np.array([line[f"z_{k}"] for line in fitted]) for k in ("model", "hc0")}
    own = np.sqrt(np.mean(zs[kind] ** 2, axis=1)) if fitted else np.array([])
    silent = [size for size, line in zip(own, fitted, strict=True) if not line["warnings"]]
    inside = [
        np.abs(line[f"z_{kind}"]) <= 1.96 * np.array(line["claimed"]) + 1e-12 for line in fitted if "claimed" in line
    ]
    signs = np.array([line["signs"] for line in fitted]).sum(axis=0) if fitted else (0, 0)

    def root_mean_square(values: np.ndarray) -> float:
        return float(np.sqrt(np.mean(values**2))) if values.size else np.nan

    return {
        "rmsz": root_mean_square(zs[kind]),
        "model": root_mean_square(zs["model"]),
        "HC0": root_mean_square(zs["hc0"]),
        "median": float(np.median(own)) if fitted else np.nan,
        "limit": lines[0][f"limit_{kind}"],
        "intervals": sum(line["intervals"] for line in fitted) / len(lines),
        "honest": float(np.mean(np.concatenate(inside))) if inside else np.nan,
        "warned": sum(bool(line["warnings"]) for line in fitted) / len(lines),
        "refused": 1 - len(fitted) / len(lines),
        "silent": max(silent, default=np.nan),
        "> 5": sum(size > FAR for size in silent) / len(lines),
        "signs": signs[0] / signs[1] if signs[1] else np.nan,
        "rounds": float(np.median([line["rounds"] for line in fitted])) if fitted else np.nan,
        "seconds": float(np.median([line["seconds"] for line in lines])),
        "runs": len(lines),
    }


SHARES = ("intervals", "honest", "warned", "refused", "> 5", "signs")
RATIOS = ("rmsz", "model", "HC0", "median", "limit")


def report(path: Path) -> None:
    groups: dict[tuple[str, float], dict[tuple[str, str, str], list[dict[str, Any]]]] = {}
    for line in read(path):
        label = " ".join([line["method"], *(f"{k}={v}" for k, v in line["settings"].items())])
        cases = groups.setdefault((label, line["mu"]), {})
        cases.setdefault((line["problem"], line["case"], line["model"]), []).append(line)
    for (label, mu), cases in sorted(groups.items()):
        order = sorted(cases, key=lambda case: (GROUPS["all"].index(case[0]), CASES.index(case[1])))
        frame = pd.DataFrame({case: summary(cases[case]) for case in order}).T
        print(f"\nmethod {label}, mu = {mu:g}\n")
        print("| problem | case | " + " | ".join(frame.columns) + " |\n" + "|---" * (2 + len(frame.columns)) + "|")
        for (name, case, _), values in frame.iterrows():
            print(f"| {name} | {case} | {shown(values)} |")
        totals = [("all", [True] * len(frame))]
        totals += [(case, [row[1] == case for row in frame.index]) for case in CASES]
        models = sorted({row[2] for row in frame.index})
        totals += [(model, [row[2] == model for row in frame.index]) for model in models]
        for title, chosen in totals:
            if any(chosen):
                print(f"| **{title}** | | {shown(overall(frame[chosen]))} |")


def overall(frame: pd.DataFrame) -> pd.Series:
    """Geometric means of sizes, plain means of shares, the worst silent run."""
    values = frame.mean()
    for column in RATIOS:
        values[column] = np.exp(np.log(frame[column]).mean())
    values["silent"], values["runs"] = frame["silent"].max(), frame["runs"].sum()
    return values


def shown(values: pd.Series) -> str:
    cells = []
    for column, value in values.items():
        if np.isnan(value):
            cells.append("-")
        elif column in SHARES:
            cells.append(f"{100 * value:.{1 if column == '> 5' else 0}f} %")
        else:
            whole = column in ("runs", "rounds") or value >= 100
            cells.append(f"{value:.0f}" if whole else f"{value:.3g}")
    return " | ".join(cells)


def main() -> None:
    if sys.argv[1:2] == ["report"]:
        for path in sys.argv[2:]:
            report(Path(path))
        return
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--problems", default="twelve", help="twelve, tuning, judging, all, or names; commas between")
    parser.add_argument("--cases", default=",".join(CASES))
    parser.add_argument("--mu", default="2", help="one, or several with commas between")
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--method", default="default", help="an id, auto, or default: as fm.fit without an argument")
    parser.add_argument("--settings", default="{}", help="other arguments of fm.fit, as JSON")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--out", required=True)
    given = parser.parse_args()
    measure(given)
    report(Path(given.out))


if __name__ == "__main__":
    main()
