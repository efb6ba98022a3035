"""What passes between a server and a vault: typed messages, as a JSON head and arrays of doubles.

No pickles, nothing that runs. Equal messages make equal bytes, so that a request can be recognised when it comes
again. `decode` refuses whatever is not exactly a message: unknown, missing and oversized fields, other types, bytes
that are left over. It imports next to nothing, as the relay at a site starts a process for every message.
"""

import json
import math
import struct
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, ClassVar

import numpy as np

from fedmest.core.typing import FloatArray

MAX_BODY = 64 * 1024 * 1024  # bytes
MAX_HEAD = 4 * 1024 * 1024
MAX_SPEC_CHARACTERS = 1_000_000  # they go to the ledger before anyone spends
MAX_TEXT_CHARACTERS = 1_000  # of all other texts
MAX_DIMENSIONS = 3
LENGTH = struct.Struct(">Q")

Arrays = dict[str, FloatArray]


class Malformed(Exception):
    """Bytes that are no message."""


@dataclass(frozen=True)
class Message:
    """Base of all messages. Fields are texts, whole numbers, truth values, or one mapping of arrays."""

    kind: ClassVar[str]


@dataclass(frozen=True)
class Describe(Message):
    """Server to site: request for its description."""

    kind = "describe"


@dataclass(frozen=True)
class SiteDescription(Message):
    """Site to server: its name, its rows, and whether servers may set the seed of its noise."""

    site: str
    rows: int
    insecure: bool
    kind = "site description"


@dataclass(frozen=True)
class OpenRun(Message):
    """Server to site: take part in this run? `seed64` is the seed of simulated noise, or None."""

    run_id: str
    spec: str
    seed64: int | None
    kind = "open run"


@dataclass(frozen=True)
class RunOpened(Message):
    """Site to server: the spec is agreed to."""

    site: str
    run_id: str
    kind = "run opened"


@dataclass(frozen=True)
class RoundRequest(Message):
    """Server to site: one round. It carries the spec, so that a site may join, or come back, in any round.

    `values` holds exactly what the step uses: params, edges, drift, and the arrays of public values.
    """

    run_id: str
    spec: str
    seed64: int | None
    round: int
    query: str
    values: Arrays = field(repr=False)
    kind = "round request"


@dataclass(frozen=True)
class RoundReply(Message):
    """Site to server: what it released in a round, and the ledger's receipt."""

    site: str
    run_id: str
    round: int
    receipt: str
    values: Arrays = field(repr=False)
    kind = "round reply"


@dataclass(frozen=True)
class Refusal(Message):
    """Site to server: why a request is not answered."""

    site: str
    reason: str
    kind = "refusal"


KINDS: dict[str, type[Message]] = {
    m.kind: m for m in (Describe, SiteDescription, OpenRun, RunOpened, RoundRequest, RoundReply, Refusal)
}


def encode(message: Message) -> bytes:
    """A message as bytes."""
    content = {f.name: getattr(message, f.name) for f in fields(message)}
    arrays = content.pop("values", {})
    return pack({"kind": message.kind, **content}, arrays)


def decode(body: bytes) -> Message:
    """The message that bytes hold; Malformed where they hold none."""
    head, arrays = unpack(body)
    kind = KINDS.get(str(head.pop("kind", None)))
    if kind is None:
        raise Malformed(f"no such message; there are {', '.join(KINDS)}")
    types = {f.name: f.type for f in fields(kind)}
    takes_arrays = types.pop("values", None) is not None
    if odd := sorted(set(head) - set(types)) or (sorted(arrays) if not takes_arrays else []):
        raise Malformed(f"unknown field {odd[0]!r}")  # could be one that someone believes we heed
    for name, expected in types.items():
        if name not in head:
            raise Malformed(f"field {name!r} is missing")
        _check(name, head[name], expected)
    return kind(**head, **({"values": arrays} if takes_arrays else {}))


def _check(name: str, value: Any, expected: Any) -> None:
    allowed: dict[Any, tuple[type, ...]] = {
        str: (str,),
        int: (int,),
        bool: (bool,),
        int | None: (int, type(None)),
    }
    if type(value) not in allowed[expected]:
        raise Malformed(f"field {name!r} has the wrong type ({type(value).__name__})")
    if isinstance(value, str) and len(value) > (MAX_SPEC_CHARACTERS if name == "spec" else MAX_TEXT_CHARACTERS):
        raise Malformed(f"field {name!r} is too long ({len(value):,} characters)")
    if type(value) is int and not 0 <= value < 2**64:
        raise Malformed(f"field {name!r} must be a whole number of at most 64 bits")


# -- bytes ---------------------------------------------------------------------------------------------------


def pack(head: Mapping[str, Any], arrays: Mapping[str, FloatArray] | None = None) -> bytes:
    """A JSON head and arrays of doubles as bytes."""
    given = {name: np.asarray(array, dtype="<f8", order="C") for name, array in sorted((arrays or {}).items())}
    shapes = {name: list(array.shape) for name, array in given.items()}
    text = json.dumps({"head": head, "arrays": shapes}, sort_keys=True, allow_nan=False).encode()
    return b"".join([LENGTH.pack(len(text)), text, *(array.tobytes() for array in given.values())])


def unpack(body: bytes) -> tuple[dict[str, Any], Arrays]:
    """Head and arrays; Malformed where a length, a shape or a type is not what it must be."""
    try:
        (length,) = LENGTH.unpack_from(body)
        if length > MAX_HEAD:
            raise Malformed(f"a head of {length:,} bytes; the most is {MAX_HEAD:,}")
        outer = json.loads(body[LENGTH.size : LENGTH.size + length])
        head, shapes = outer["head"], outer["arrays"]
        if not isinstance(head, dict) or not isinstance(shapes, dict) or len(outer) != 2:
            raise Malformed("the head is no table")
        place = LENGTH.size + length
        arrays = {}
        for name, shape in sorted(shapes.items()):
            proper = isinstance(shape, list) and len(shape) <= MAX_DIMENSIONS
            if not proper or not all(type(n) is int and n >= 0 for n in shape):
                raise Malformed(f"array {name!r} has no proper shape")
            size = 8 * math.prod(shape)
            if place + size > len(body):
                raise Malformed(f"array {name!r} is cut short")
            flat = np.frombuffer(body, dtype="<f8", count=size // 8, offset=place)
            arrays[name] = flat.astype(float).reshape(shape)
            place += size
    except (struct.error, KeyError, TypeError, ValueError, RecursionError) as error:
        raise Malformed(f"not a message of ours ({type(error).__name__})") from None
    if place != len(body):
        raise Malformed("bytes are left over at the end")
    return head, arrays
