"""Texts for people: names from elsewhere with their control characters written out, and short forms for reprs."""

import re
from collections.abc import Collection

# what moves a cursor, changes a terminal or turns the direction of reading; and halves of characters
_CONTROL = re.compile("[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")


def printable(text: str, keep: str = "") -> str:
    r"""Text with its control characters written out, for a terminal or a page.

    Names of columns, levels and sites come from files and over the network: whatever shows one passes it through here.

    Parameters
    ----------
    text : str
        Any text.
    keep : str, default ""
        Control characters that stay, such as the line breaks of a text of several lines.

    Returns
    -------
    str

    Examples
    --------
    >>> print(printable("age\x1b[2J"), printable("one\ntwo", keep="\n"), sep="\n")
    age\x1b[2J
    one
    two
    """
    return _CONTROL.sub(lambda found: found[0] if found[0] in keep else _written_out(ord(found[0])), text)


def _written_out(code: int) -> str:
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}"


def shorten(text: str, width: int = 80) -> str:
    """Text, printable and cut to a width."""
    text = printable(text)
    return text if len(text) <= width else text[: width - 4].rstrip(" ,") + " ..."


def listed(names: Collection[str], width: int = 80) -> str:
    """Names with commas between them; where there is no room for all, the first and how many there are.

    Examples
    --------
    >>> listed(["age", "dose"]), listed([f"x{j}" for j in range(300)], 22)
    ('age, dose', 'x0, x1, x2 ... (300)')
    """
    if len(text := printable(", ".join(names))) <= width:
        return text
    end = f" ... ({len(names):,})"
    start = text[: width - len(end)]
    return (start.rpartition(",")[0] or start) + end
