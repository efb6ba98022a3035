"""Files: written whole or not at all, and tables of TOML or JSON that are checked against a dataclass.

`read_table` is the only checker of tables: a policy, a study, a schema and the messages' specifications declare their
keys as dataclass fields, and every error names the file, the key, the value and the way out in one line.
"""

import os
import stat
import tomllib
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import MISSING, Field, field, fields, is_dataclass
from difflib import get_close_matches
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, BinaryIO, Literal, TypeVar, Union, cast, get_args, get_origin, get_type_hints

from fedmest.core.exceptions import InputError

MAX_LISTED = 12  # names in a message; more are counted
MAX_SHOWN = 80  # characters of a value in a message

T = TypeVar("T")
Choices = Iterable[Any] | Callable[[], Iterable[Any]]
Check = Callable[[Any], str | None]
_Tree = dict[str, Any]  # keys of a table: a Field, or the keys of a table below it

_KINDS: dict[Any, tuple[str, str]] = {  # one, several
    bool: ("true or false", "true or false"),
    int: ("a whole number", "whole numbers"),
    float: ("a number", "numbers"),
    str: ("a string", "strings"),
    Path: ("a path (a string)", "paths"),
}


# -- files ---------------------------------------------------------------------------------------------------


def write_atomic(path: Path, write: Callable[[BinaryIO], object]) -> None:
    """Write all of a file or nothing, whenever the process ends; only its owner may read it.

    Parameters
    ----------
    path : Path
        The file; a file of this name is replaced.
    write : callable
        Called with the open binary file.
    """
    partial = path.with_suffix(".partial")
    partial.unlink(missing_ok=True)
    with os.fdopen(open_private(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL), "wb") as file:
        write(file)
        file.flush()
        os.fsync(file.fileno())
    partial.replace(path)
    sync_folder(path.parent)


def open_private(path: Path, flags: int) -> int:
    """Open a file that only its owner may read and write, whatever the umask; a terminal keeps its mode."""
    descriptor = os.open(path, flags, 0o600)
    found = os.fstat(descriptor).st_mode
    if stat.S_ISREG(found) and stat.S_IMODE(found) != 0o600:
        os.fchmod(descriptor, 0o600)
    return descriptor


def make_private_folder(folder: Path) -> None:
    """Create a folder, and those above it, for their owner only, whatever the umask; existing ones stay as they are."""
    missing = [place for place in (folder, *folder.parents) if not place.exists()]
    for place in reversed(missing):
        with suppress(FileExistsError):  # another process was faster
            place.mkdir(mode=0o700)
            place.chmod(0o700)


def sync_folder(folder: Path) -> None:
    """Put a folder's names on the disk: a renamed file could lose its new name with the power."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def read_toml(path: str | Path) -> dict[str, Any]:
    """Content of a TOML file.

    Raises
    ------
    InputError
        If there is no such file, or it cannot be read, or it is not TOML.
    """
    path = Path(path)
    check_file(path, "a TOML file")
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise InputError(f"{path} is not valid TOML: {first_line(error)}") from None
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror}") from None


def check_file(path: Path, wanted: str) -> None:
    """Raise an InputError where there is no file; `wanted` names the kind of file."""
    if path.is_dir():
        raise InputError(f"{path} is a folder; name {wanted}")
    if not path.exists():
        raise InputError(f"there is no file {path}")


def first_line(error: Exception) -> str:
    """First line of an exception's message, for messages of one line."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


def nearest(name: str, names: Iterable[Any], listed: str = "the columns are") -> str:
    """The way out of a mistyped name: the likely one, or the list.

    >>> nearest("modle", ["model", "method"])
    "did you mean 'model'?"
    >>> nearest("x", ["model", "method"], "the keys are")
    'the keys are model, method'
    """
    known = [str(n) for n in names]
    if close := get_close_matches(name, known, n=1):
        return f"did you mean {close[0]!r}?"
    return f"{listed} {_listed(known)}"


def _listed(names: list[str]) -> str:
    return ", ".join(names[:MAX_LISTED]) + (f" and {len(names) - MAX_LISTED} more" if len(names) > MAX_LISTED else "")


# -- tables --------------------------------------------------------------------------------------------------


def entry(
    default: Any = MISSING,
    *,
    factory: Callable[[], Any] | None = None,
    key: str | None = None,
    choices: Choices | None = None,
    check: Check | None = None,
    example: str = "",
    table_name: bool = False,
) -> Any:
    """Declare a dataclass field for `read_table`; fields without it work, too.

    Parameters
    ----------
    default : object, optional
        Value where the key is absent; without it and without `factory` the key is required.
    factory : callable, optional
        Makes that value.
    key : str, optional
        Key in the file, if it is not the field's name; dots lead through tables ("budget.run").
    choices : iterable or callable, optional
        Allowed values; of a list, allowed elements. A callable is evaluated when a table is read. Together with
        `check`, choices are for strings and `check` is for everything else: "auto", or a positive number.
    check : callable, optional
        Gets the value, where the key is present. Returns what the value must be ("a positive number") if it is wrong,
        or raises an InputError in its own words.
    example : str, optional
        Shown where the key is missing.
    table_name : bool
        The field is no key: it receives the name of its own table, "age" in [columns.age].
    """
    given = {"key": key, "choices": choices, "check": check, "example": example, "table_name": table_name}
    metadata = {name: value for name, value in given.items() if value}
    if factory is not None:
        return field(default_factory=factory, metadata=metadata)
    return field(metadata=metadata) if default is MISSING else field(default=default, metadata=metadata)


def positive(value: float) -> str | None:
    """Check of an `entry`: a finite number above 0."""
    return None if 0 < value < float("inf") else "a positive number"


def read_table(
    kind: type[T], table: object, where: str, *, folder: Path | None = None, section: str = "", **fixed: Any
) -> T:
    """Turn a mapping into a dataclass, checked by the types of its fields.

    Types may be str, int, float (takes whole numbers), bool, Path (a string), Literal, Any, other dataclasses (tables
    of their own), lists and tuples of these, dict[str, X], and unions of these with each other and None. True and false
    are no numbers.

    Parameters
    ----------
    kind : type
        A dataclass. An InputError raised by its `__post_init__` is prefixed with the place.
    table : mapping
        What a TOML or JSON file holds.
    where : str
        Name of the file, with which every message begins.
    folder : Path, optional
        Folder that relative paths start from, defaults included.
    section : str, optional
        Name of the table within the file, for messages.
    **fixed
        Values of fields that the file must not set.

    Returns
    -------
    object
        An instance of `kind`.

    Raises
    ------
    InputError
        If a key is unknown or missing, or a value has the wrong type or is not allowed.

    Examples
    --------
    >>> from dataclasses import dataclass
    >>> @dataclass(frozen=True)
    ... class Budget:
    ...     lifetime: float = entry(check=positive)
    ...     models: tuple[str, ...] = ("linear",)
    >>> read_table(Budget, {"lifetime": 4, "models": ["poisson"]}, "site.toml")
    Budget(lifetime=4.0, models=('poisson',))
    >>> read_table(Budget, {"lifetme": 4}, "site.toml")
    Traceback (most recent call last):
    fedmest.core.exceptions.InputError: site.toml has no key 'lifetme'; did you mean 'lifetime'?
    """
    return _TableReader(where, folder).read(kind, table, section, fixed)


class _Mismatch(Exception):
    """A value is not of the type that its field has."""


class _TableReader:
    def __init__(self, where: str, folder: Path | None) -> None:
        self.where = where
        self.folder = folder

    def read(self, kind: type[T], table: object, section: str, fixed: Mapping[str, Any]) -> T:
        if not isinstance(table, Mapping):
            above, _, key = section.rpartition(".")
            label = self._label(above, key, table) if section else self.where
            raise InputError(f"{label} must be a table" + (f", written [{section}]" if section else ""))
        hints, tree, values = get_type_hints(kind), cast(_Tree, {}), dict(fixed)
        for part in fields(cast(Any, kind)):
            if part.metadata.get("table_name"):
                values.setdefault(part.name, section.rpartition(".")[2])
            elif part.init and part.name not in fixed:
                *tables, key = (part.metadata.get("key") or part.name).split(".")
                branch = tree
                for name in tables:
                    branch = branch.setdefault(name, {})
                branch[key] = part
        self._walk(tree, table, section, hints, values)
        try:
            return kind(**values)
        except InputError as error:
            raise InputError(f"{self._place(section)}: {error}") from None

    def _walk(
        self, tree: _Tree, table: Mapping[str, Any], section: str, hints: dict[str, Any], values: dict[str, Any]
    ) -> None:
        for key, value in table.items():
            if key not in tree:
                what = f"table [{_below(section, key)}]" if isinstance(value, Mapping) else f"key {key!r}"
                raise InputError(f"{self._place(section)} has no {what}; {nearest(str(key), tree, 'the keys are')}")
        for key, part in tree.items():
            if isinstance(part, dict):
                inner = table.get(key, {})
                if not isinstance(inner, Mapping):
                    raise InputError(
                        f"{self._label(section, key, inner)} must be a table, written [{_below(section, key)}]"
                    )
                self._walk(part, inner, _below(section, key), hints, values)
            elif key in table:
                values[part.name] = self._field(part, hints[part.name], table[key], section, key)
            elif part.default is MISSING and part.default_factory is MISSING:
                raise InputError(self._absent(part, hints[part.name], section, key))
            elif isinstance(part.default, Path) and self.folder is not None:
                values[part.name] = self.folder / part.default

    def _absent(self, part: "Field[Any]", hint: Any, section: str, key: str) -> str:
        is_table = get_origin(hint) is dict or is_dataclass(hint)
        what = f"a table [{_below(section, key)}]" if is_table else f"{key} = ..., {_described(hint)}"
        example = part.metadata.get("example")
        return f"{self._place(section)} needs {what}" + (f", such as {example}" if example else "")

    def _field(self, part: "Field[Any]", hint: Any, given: Any, section: str, key: str) -> Any:
        try:
            value = self._converted(hint, given, _below(section, key))
        except _Mismatch:
            raise InputError(f"{self._label(section, key, given)} must be {_described(hint)}") from None
        choices, check = part.metadata.get("choices"), part.metadata.get("check")
        for item in value if isinstance(value, tuple | list) else (value,):
            if choices is not None and item is not None and (check is None or isinstance(item, str)):
                self._check_choice(item, choices, hint, self._label(section, key, item))
        if check is not None and value is not None and (choices is None or not isinstance(value, str)):
            try:
                problem = check(value)
            except InputError as error:
                raise InputError(f"{self._place(section)}: {error}") from None
            if problem:
                raise InputError(f"{self._label(section, key, given)} must be {problem}")
        return value

    def _check_choice(self, item: Any, choices: Choices, hint: Any, label: str) -> None:
        known = list(choices() if callable(choices) else choices)
        if item in known:
            return
        names = [str(name) for name in known]
        others = [kind for kind in get_args(hint) if kind in (int, float)]
        number = f" or {_described(others[-1])}" if others else ""
        close = get_close_matches(str(item), names, n=1)
        suggestion = f"; did you mean {close[0]!r}?" if close else ""
        raise InputError(f"{label} must be one of {_listed(names)}{number}{suggestion}")

    def _converted(self, hint: Any, value: Any, section: str) -> Any:
        """The value as the type has it; `section` is its place if it is a table."""
        origin, arguments = get_origin(hint), get_args(hint)
        if hint is Any:
            return value
        if origin in (Union, UnionType):
            return self._of_union(arguments, value, section)
        if origin is Literal and any(type(value) is type(choice) and value == choice for choice in arguments):
            return value
        if origin in (tuple, list) and isinstance(value, list | tuple):
            inner = list(arguments) if origin is tuple and Ellipsis not in arguments else [arguments[0]] * len(value)
            if len(inner) != len(value):
                raise _Mismatch
            items = (self._converted(kind, item, section) for kind, item in zip(inner, value, strict=True))
            return tuple(items) if origin is tuple else list(items)
        if origin is dict and isinstance(value, Mapping):
            return {str(key): self._item(arguments[1], key, item, section) for key, item in value.items()}
        if is_dataclass(hint) and isinstance(hint, type):
            return self.read(hint, value, section, {})
        if hint is NoneType and value is None:
            return None
        if isinstance(value, bool) != (hint is bool):
            raise _Mismatch
        if hint is float and isinstance(value, int | float):
            try:
                return float(value)
            except OverflowError:
                raise _Mismatch from None
        if hint is Path and isinstance(value, str):
            return Path(value) if self.folder is None else self.folder / value
        if hint in (bool, int, str) and isinstance(value, hint):
            return value
        raise _Mismatch

    def _of_union(self, members: tuple[Any, ...], value: Any, section: str) -> Any:
        exact = [kind for kind in members if kind is type(value)]  # 3 is an int of int | float, and no float
        for kind in (*exact, *members):
            if is_dataclass(kind) and not isinstance(value, Mapping):
                continue
            try:
                return self._converted(kind, value, section)
            except _Mismatch:
                continue
        raise _Mismatch

    def _item(self, kind: Any, key: str, value: Any, section: str) -> Any:
        try:
            return self._converted(kind, value, _below(section, key))
        except _Mismatch:
            raise InputError(f"{self._label(section, key, value)} must be {_described(kind)}") from None

    def _place(self, section: str) -> str:
        return f"{self.where}: [{section}]" if section else self.where

    def _label(self, section: str, key: str, value: Any) -> str:
        return f"{self._place(section)}{' ' if section else ': '}{key} = {_shown(value)}"


def _below(section: str, key: str) -> str:
    return f"{section}.{key}" if section else str(key)


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= MAX_SHOWN else f"{text[: MAX_SHOWN - 3]}..."


def _described(hint: Any, several: bool = False) -> str:
    """A type in words: "a list of strings"."""
    origin, arguments = get_origin(hint), get_args(hint)
    if origin in (Union, UnionType):
        return " or ".join(dict.fromkeys(_described(kind, several) for kind in arguments if kind is not NoneType))
    if origin is Literal:
        return "one of " + ", ".join(map(repr, arguments))
    if origin in (tuple, list):
        fixed = origin is tuple and Ellipsis not in arguments
        count = f"{len(arguments)} " if fixed else ""
        return f"{'lists' if several else 'a list'} of {count}{_described(arguments[0], several=True)}"
    if hint in _KINDS:
        return _KINDS[hint][several]
    return "tables" if several else "a table"
