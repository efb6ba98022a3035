"""Rows in a file, and a command line that fits them."""

from pathlib import Path

import numpy as np
import pandas as pd

BOUNDS = ["--bounds", "age=0:100", "--bounds", "bmi=10:60"]


def write_rows(folder: Path) -> Path:
    rng = np.random.default_rng(4)
    n = 300
    frame = pd.DataFrame(
        {
            "hospital": rng.choice(["north", "south", "west"], n),
            "age": rng.uniform(20, 80, n).round(1),
            "bmi": rng.normal(26, 3, n).round(1),
            "ill": rng.integers(0, 2, n),
        }
    )
    path = folder / "rows.csv"
    frame.to_csv(path, index=False)
    return path


def arguments(rows: Path, *more: str, command: str = "fit") -> list[str]:
    named = ["--target", "ill", "--site", "hospital", "--model", "logistic"]
    return [command, str(rows), *named, *BOUNDS, "--seed", "3", *more]
