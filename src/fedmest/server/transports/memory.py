"""Vaults in this process: for tests, and to try a study before it is deployed."""

from collections.abc import Mapping
from typing import Protocol


class Handler(Protocol):
    """Whoever answers requests: a vault, or a stand-in."""

    def handle(self, body: bytes) -> bytes: ...


class MemoryTransport:
    """Hands requests to vaults that live in this process."""

    def __init__(self, vaults: Mapping[str, Handler]) -> None:
        self.vaults = dict(vaults)

    def discover(self, request: bytes, timeout: float) -> list[bytes]:
        return [vault.handle(request) for vault in self.vaults.values()]

    def exchange(self, requests: dict[str, bytes], timeout: float) -> dict[str, bytes]:
        return {name: self.vaults[name].handle(body) for name, body in requests.items() if name in self.vaults}
