"""Vaults of this machine behind their sockets, asked all at once; who is late is left out."""

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor, wait
from pathlib import Path

from fedmest.site.connection import call


class SocketTransport:
    """Hands requests to vault processes on this machine."""

    def __init__(self, sockets: Mapping[str, Path | str]) -> None:
        self.sockets = {name: str(path) for name, path in sockets.items()}
        self.pool = ThreadPoolExecutor(max_workers=4 * len(sockets))

    def discover(self, request: bytes, timeout: float) -> list[bytes]:
        return list(self.exchange(dict.fromkeys(self.sockets, request), timeout).values())

    def exchange(self, requests: dict[str, bytes], timeout: float) -> dict[str, bytes]:
        calls = {name: self.pool.submit(call, self.sockets[name], body, timeout) for name, body in requests.items()}
        wait(calls.values(), timeout=timeout)
        done = {name: call for name, call in calls.items() if call.done() and call.exception() is None}
        return {name: call.result() for name, call in done.items()}
