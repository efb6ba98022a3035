"""Files to data frames, and the schema: a TOML file that names target, site and features of a table."""

import re
import warnings
from dataclasses import dataclass, field
from pathlib import Path

import pandas as pd

from fedmest.core.exceptions import InputError
from fedmest.core.files import check_file, first_line, read_table, read_toml
from fedmest.core.typing import Bounds
from fedmest.data.validation import check_unique


@dataclass(frozen=True)
class Schema:
    """Columns and model of a fit, as a schema file names them; `bounds` are the declared ranges, low and high."""

    target: str | None = None
    site: str | None = None
    model: str | None = None
    features: tuple[str, ...] | None = None
    ignore: tuple[str, ...] = ()
    bounds: Bounds = field(default_factory=dict)


def read_schema(path: str | Path) -> Schema:
    """Read a schema: `target`, `site`, `model`, `features`, `ignore`, `[bounds] age = [0, 100]`; all optional."""
    return read_table(Schema, read_toml(path), f"schema {path}")


def read_frame(path: str | Path) -> pd.DataFrame:
    """Read a CSV (.csv, .tsv, also compressed: .csv.gz) or Parquet (.parquet, .pq) file.

    Raises
    ------
    InputError
        If the file is absent, empty, of another kind, or not readable as what its name says.
    """
    path = Path(path)
    check_file(path, "a CSV or Parquet file")
    suffixes = [s.lower() for s in path.suffixes]
    try:
        if suffixes and suffixes[-1] in {".parquet", ".pq"}:
            frame = pd.read_parquet(path)
        elif ".csv" in suffixes or ".tsv" in suffixes:
            frame = _read_text(path, "\t" if ".tsv" in suffixes else ",")
        else:
            raise InputError(f"{path}: the name must end in .csv, .tsv, .csv.gz or .parquet; rename it")
    except (InputError, MemoryError):
        raise
    except pd.errors.EmptyDataError:
        raise InputError(f"{path} is empty; it needs a header line and rows") from None
    except UnicodeDecodeError as error:
        byte = error.object[error.start]
        raise InputError(f"{path} is not UTF-8 text (byte 0x{byte:02x}); save it in UTF-8") from None
    except Exception as error:
        raise InputError(f"{path} cannot be read as {path.suffix}: {first_line(error)}") from None
    if len(frame) == 0:
        raise InputError(f"{path} has a header but no rows")
    return frame


def _read_text(path: Path, separator: str) -> pd.DataFrame:
    header = pd.read_csv(path, sep=separator, header=None, nrows=1, dtype=str).iloc[0].dropna().tolist()
    check_unique(header)
    if len(header) == 1 and (other := re.search(r"[;\t|,]", header[0])):
        raise InputError(f"{path}: columns seem to be separated by {other[0]!r}; save it with {separator!r}")
    with warnings.catch_warnings():
        # lines longer than the header would lose their last values with no more than a warning
        warnings.simplefilter("error", pd.errors.ParserWarning)
        try:
            return pd.read_csv(path, sep=separator, index_col=False, low_memory=False)
        except pd.errors.ParserWarning:
            raise InputError(f"{path}: the lines have more values than the header has names") from None
