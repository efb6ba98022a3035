"""Parsers of arguments that are small languages of their own."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fedmest.core.exceptions import InputError


def number(text: str) -> Any:
    """A whole number, a number, true or false, or else the text itself: as a Python user would have it."""
    if text.lower() in ("true", "false"):
        return text.lower() == "true"
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text


def parse_bounds(texts: Sequence[str]) -> dict[str, tuple[float, float]]:
    """Ranges by column, from texts NAME=LOW:HIGH."""
    found: dict[str, tuple[float, float]] = {}
    for text in texts:
        name, _, pair = text.rpartition("=")
        low, _, high = pair.partition(":")
        try:
            limits = float(low), float(high)
        except ValueError:
            name = ""
        if not name:
            raise InputError(f"--bounds {text!r}: write COLUMN=LOW:HIGH, such as age=0:100")
        if name in found:
            raise InputError(f"--bounds names column {name!r} twice; once will do")
        found[name] = limits
    return found


def parse_options(texts: Sequence[str]) -> dict[str, Any]:
    """Options of a method, from texts NAME=VALUE."""
    found: dict[str, Any] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not (name and equals and value):
            raise InputError(f"--option {text!r}: write NAME=VALUE, such as K=50")
        if name in found:
            raise InputError(f"--option names {name!r} twice; once will do")
        found[name] = number(value)
    return found


def parse_beta(text: str | None) -> tuple[float, ...] | None:
    """Coefficients, from numbers with commas between them."""
    try:
        return None if text is None else tuple(float(part) for part in text.split(","))
    except ValueError:
        raise InputError(f"--beta {text!r}: write numbers with commas between them, such as 0.5,-0.5,0.3") from None


def listed_sizes(text: str) -> int | list[int] | None:
    """One number, or numbers with commas between them; None where the text is neither."""
    try:
        found = [int(part.replace("_", "")) for part in text.split(",")]
    except ValueError:
        return None
    return found if len(found) > 1 else found[0]


def parse_sizes(text: str) -> Any:
    """The same as `listed_sizes`, or a file with a column of sizes."""
    if (found := listed_sizes(text)) is not None:
        return found
    from fedmest.data.readers import read_frame

    if not Path(text).suffix:
        raise InputError(f"--sizes {text!r}: write a number, numbers with commas between them, or name a CSV file")
    frame = read_frame(text)
    numbers = frame.select_dtypes("number")
    named = [column for column in numbers if str(column).lower() in ("rows", "n", "size", "sizes")]
    chosen = named or list(numbers)
    if len(chosen) != 1:
        raise InputError(f"{text}: name the column of sizes 'rows'; the columns are {', '.join(map(str, frame))}")
    return numbers[chosen[0]].tolist()
