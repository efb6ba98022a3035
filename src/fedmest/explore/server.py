"""Serves the page and its answers to this machine alone. Needs nothing but Python; the page loads nothing else."""

import contextlib
import itertools
import json
import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.resources import files
from typing import Any
from urllib.parse import parse_qsl, urlsplit

from fedmest.errors import InputError, Stopped
from fedmest.explore.answers import answers
from fedmest.report.page import STYLE

HOST = "127.0.0.1"
FILES = {"/": ("page.html", "html"), "/page.js": ("page.js", "javascript"), "/page.css": ("page.css", "css")}
HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
                               "img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff", "Referrer-Policy": "no-referrer", "Cache-Control": "no-store",
}  # fmt: skip
MOST_PROCESSES = 4  # there are five or six methods, of which two take most of the time
FIRST = {"model": "logistic", "mu": "2", "sites": "100", "sizes": "400", "features": "5"}  # as the page opens


class Explorer(ThreadingHTTPServer):
    """Answers one question at a time, the methods side by side in a few processes."""

    daemon_threads = True

    def __init__(self, port: int = 0, processes: int | None = None) -> None:
        count = processes or min(os.cpu_count() or 1, MOST_PROCESSES)
        spawn = multiprocessing.get_context("spawn")
        self.pool = ProcessPoolExecutor(count, spawn, _leave_interrupts) if count > 1 else None
        self.turn = threading.Lock()
        try:
            super().__init__((HOST, port), Handler)
        except (OSError, OverflowError) as error:
            raise Stopped(f"port {port} cannot be had ({error}); choose another, or leave --port out", 1) from None

    @property
    def url(self) -> str:
        return f"http://{HOST}:{self.server_port}/"

    def answers(self, asked: dict[str, str]) -> Iterator[dict[str, Any]]:
        with self.turn:
            yield from answers(asked, self._run)

    def _run(self, work: Callable[[Any], Any], over: Sequence[Any], /) -> list[Any]:
        if self.pool is not None:
            try:
                return list(self.pool.map(work, over))
            except BrokenProcessPool:
                self.pool = None  # somebody killed a process; one can do without
        return list(map(work, over))

    def warm(self) -> None:
        """Load whatever compiles, so that the first move of a slider is as quick as the next."""
        for _ in range(2):
            list(self.answers(FIRST))

    def server_close(self) -> None:
        super().server_close()
        if self.pool is not None:
            self.pool.shutdown(cancel_futures=True)


def _leave_interrupts() -> None:
    """Ctrl-C is for the process that serves."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    server: Explorer

    def do_GET(self) -> None:
        if self.headers.get("Host") not in {f"{name}:{self.server.server_port}" for name in (HOST, "localhost")}:
            self._send(HTTPStatus.FORBIDDEN, "text/plain", b"this page answers to its own address alone")
            return  # another site's name may have been pointed here
        parts = urlsplit(self.path)
        if parts.path == "/plan":
            self._answer(dict(parse_qsl(parts.query, keep_blank_values=True)))
        elif parts.path in FILES:
            name, kind = FILES[parts.path]
            content = files(__package__).joinpath(name).read_text(encoding="utf-8")
            self._send(HTTPStatus.OK, f"text/{kind}", ((STYLE if kind == "css" else "") + content).encode())
        else:
            self._send(HTTPStatus.NOT_FOUND, "text/plain", b"there is no such page")

    def _answer(self, asked: dict[str, str]) -> None:
        """A line of JSON for the plan, and one for the curves when they are there."""
        lines = (json.dumps(part, allow_nan=False).encode() + b"\n" for part in self.server.answers(asked))
        try:
            first = next(lines)
        except InputError as error:
            self._send(HTTPStatus.BAD_REQUEST, "application/json", json.dumps({"error": str(error)}).encode())
            return
        self.close_connection = True  # which is how the browser knows that there is no more
        self._begin(HTTPStatus.OK, "application/x-ndjson", {"Connection": "close"})
        with contextlib.suppress(ConnectionError):  # the page was closed
            for line in itertools.chain([first], lines):
                self.wfile.write(line)

    def _send(self, status: HTTPStatus, kind: str, content: bytes) -> None:
        self._begin(status, kind, {"Content-Length": str(len(content))})
        self.wfile.write(content)

    def _begin(self, status: HTTPStatus, kind: str, more: dict[str, str]) -> None:
        self.send_response(status)
        for name, value in {**HEADERS, "Content-Type": f"{kind}; charset=utf-8", **more}.items():
            self.send_header(name, value)
        self.end_headers()

    def log_message(self, *_: Any) -> None:
        """Whoever planned what is nobody's business."""
