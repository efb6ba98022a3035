"""Messages over a local socket: a length, then that many bytes."""

import socket

from fedmest.runs.messages import LENGTH, MAX_BODY, Malformed


def send(connection: socket.socket, body: bytes) -> None:
    """Send one message: its length, then its bytes."""
    connection.sendall(LENGTH.pack(len(body)) + body)


def receive(connection: socket.socket) -> bytes | None:
    """One message, or None where the other side has hung up between messages."""
    start = _exactly(connection, LENGTH.size)
    if not start:
        return None
    (length,) = LENGTH.unpack(start)
    if length > MAX_BODY:
        raise Malformed(f"a message of {length:,} bytes; the most is {MAX_BODY:,}")
    body = _exactly(connection, length)
    if len(body) < length:
        raise Malformed("the message ended early")
    return body


def _exactly(connection: socket.socket, count: int) -> bytes:
    """That many bytes; none where the other side hung up before the first."""
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
