"""Our docstrings as Markdown: lines that begin with an argument become a list, and examples a block of code."""

import re
from collections.abc import Collection
from typing import Any

from griffe import Class, Extension, Function, Object

ARGUMENT = re.compile(r"((?:\w+, )*\w+)(: |=)")  # "model: a name ...", "rounds, bytes: limits", 'clip="norm" is ...'


class Docstrings(Extension):
    def on_object(self, *, obj: Object, **_: Any) -> None:
        if obj.docstring is None:
            return
        taken = obj.members.get("__init__") if isinstance(obj, Class) else obj
        names = {p.name for p in taken.parameters} if isinstance(taken, Function) else set()
        obj.docstring.value = as_markdown(obj.docstring.value, names)


def as_markdown(text: str, arguments: Collection[str]) -> str:
    prose, marker, example = text.partition("\n>>> ")
    lines: list[str] = []
    listing = False
    for line in prose.splitlines():
        found = ARGUMENT.match(line)
        if found is not None and set(found[1].split(", ")) <= set(arguments):
            names = ", ".join(f"`{name}`" for name in found[1].split(", "))
            first, _, rest = line.partition(" ")
            lines += [] if listing else [""]
            lines.append(f"- {names}: {line[found.end() :]}" if found[2] == ": " else f"- `{first}` {rest}")
            listing = True
        elif listing and line[:1].isupper() and lines[-1].endswith("."):
            lines += ["", line]
            listing = False
        else:
            lines.append(f"  {line}" if listing else line)
    if marker:
        lines += ["", "```pycon", f">>> {example.rstrip()}", "```"]
    return "\n".join(lines)
