"""What passes between a server and a vault: a JSON head, then arrays of doubles. No pickles, nothing that runs.

Equal content makes equal bytes, so that a request can be recognised when it comes again.
"""

import json
import math
import socket
import struct
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from fedmest.privacy.gdp import Array

LARGEST_BODY = 64 * 1024 * 1024  # bytes
LARGEST_HEAD = 4 * 1024 * 1024
_LENGTH = struct.Struct(">Q")

Head = dict[str, Any]
Arrays = dict[str, "Array"]


class Malformed(Exception):
    """Bytes that are no message."""


def pack(head: Head, arrays: Arrays | None = None) -> bytes:
    given = {name: np.ascontiguousarray(array, dtype="<f8") for name, array in sorted((arrays or {}).items())}
    shapes = {name: list(array.shape) for name, array in given.items()}
    text = json.dumps({"head": head, "arrays": shapes}, sort_keys=True, allow_nan=False).encode()
    return b"".join([_LENGTH.pack(len(text)), text, *(array.tobytes() for array in given.values())])


def unpack(body: bytes) -> tuple[Head, Arrays]:
    """Head and arrays; Malformed where a length, a shape or a type is not what it must be."""
    try:
        (length,) = _LENGTH.unpack_from(body)
        if length > LARGEST_HEAD:
            raise Malformed(f"a head of {length:,} bytes; the most is {LARGEST_HEAD:,}")
        outer = json.loads(body[_LENGTH.size : _LENGTH.size + length])
        head, shapes = outer["head"], outer["arrays"]
        if not isinstance(head, dict) or not isinstance(shapes, dict) or len(outer) != 2:
            raise Malformed("the head is no table")
        place = _LENGTH.size + length
        arrays = {}
        for name, shape in sorted(shapes.items()):
            if not isinstance(shape, list) or len(shape) > 3 or not all(type(n) is int and n >= 0 for n in shape):
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


def send(connection: socket.socket, body: bytes) -> None:
    connection.sendall(_LENGTH.pack(len(body)) + body)


def receive(connection: socket.socket) -> bytes | None:
    """One message, or None where the other side has hung up between messages."""
    start = _exactly(connection, _LENGTH.size)
    if not start:
        return None
    (length,) = _LENGTH.unpack(start)
    if length > LARGEST_BODY:
        raise Malformed(f"a message of {length:,} bytes; the most is {LARGEST_BODY:,}")
    body = _exactly(connection, length)
    if len(body) < length:
        raise Malformed("the message ended early")
    return body


def _exactly(connection: socket.socket, count: int) -> bytes:
    """So many bytes; none where the other side hung up before the first."""
    parts, got = [], 0
    while got < count:
        part = connection.recv(min(count - got, 1 << 20))
        if not part:
            break
        parts.append(part)
        got += len(part)
    if 0 < got < count:
        raise Malformed("the message ended early")
    return b"".join(parts)


def call(path: str, body: bytes, timeout: float) -> bytes:
    """What the vault behind a socket answers; OSError where nobody listens or the time is over."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.settimeout(timeout)
        connection.connect(path)
        send(connection, body)
        reply = receive(connection)
    if reply is None:
        raise ConnectionError("the vault hung up without an answer")
    return reply
