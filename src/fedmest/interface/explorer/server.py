"""Serves the page and its answers to this machine only. Needs nothing but Python; the page loads nothing else."""

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

from fedmest.core.exceptions import InputError, Stopped
from fedmest.interface.explorer.answers import answers
from fedmest.interface.html import STYLE

HOST = "127.0.0.1"
FILES = {"/": ("page.html", "html"), "/page.js": ("page.js", "javascript"), "/page.css": ("page.css", "css")}
HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    "img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
}
MAX_PROCESSES = 4  # there are five or six methods, of which two take most of the time
INITIAL = {"model": "logistic", "mu": "2", "sites": "100", "sizes": "400", "features": "5"}  # as the page opens


class Explorer(ThreadingHTTPServer):
    """Answers one request at a time, the methods in parallel in a few processes."""

    daemon_threads = True

    def __init__(self, port: int = 0, processes: int | None = None) -> None:
        count = processes or min(os.cpu_count() or 1, MAX_PROCESSES)
        spawn = multiprocessing.get_context("spawn")
        self.pool = ProcessPoolExecutor(count, spawn, _leave_interrupts) if count > 1 else None
        self.lock = threading.Lock()
        try:
            super().__init__((HOST, port), Handler)
        except (OSError, OverflowError) as error:
            raise Stopped(f"port {port} cannot be had ({error}); choose another, or leave --port out", 1) from None

    @property
    def url(self) -> str:
        return f"http://{HOST}:{self.server_port}/"

    def answers(self, asked: dict[str, str]) -> Iterator[dict[str, Any]]:
        with self.lock:
            yield from answers(asked, self._run)

    def _run(self, work: Callable[[Any], Any], over: Sequence[Any], /) -> list[Any]:
        if self.pool is not None:
            try:
                return list(self.pool.map(work, over))
            except BrokenProcessPool:
                self.pool = None  # a process was killed; go on without a pool
        return list(map(work, over))

    def warm(self) -> None:
        """Load whatever compiles, so that the first move of a slider is as quick as the next."""
        for _ in range(2):
            list(self.answers(INITIAL))

    def server_close(self) -> None:
        super().server_close()
        if self.pool is not None:
            self.pool.shutdown(cancel_futures=True)


def _leave_interrupts() -> None:
    """Ctrl-C is for the process that serves."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)


class Handler(BaseHTTPRequestHandler):
    """The page, its files, and /plan."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    server: Explorer

    def do_GET(self) -> None:
        own = {f"{name}:{self.server.server_port}" for name in (HOST, "localhost")}
        if self.headers.get_all("Host", []) not in [[name] for name in own]:
            self._send(HTTPStatus.FORBIDDEN, "text/plain", b"this page answers only at its own address")
            return  # DNS rebinding: another name may point here
        if "Transfer-Encoding" in self.headers or self.headers.get_all("Content-Length", ["0"]) != ["0"]:
            self._send(HTTPStatus.BAD_REQUEST, "text/plain", b"a GET has no body here")
            return  # which would be read as the next request
        parts = urlsplit(self.path)
        if parts.path == "/plan" and not self._from_own_page(own):
            self._send(HTTPStatus.FORBIDDEN, "text/plain", b"this page answers only itself")
        elif parts.path == "/plan":
            self._answer(dict(parse_qsl(parts.query, keep_blank_values=True)))
        elif parts.path in FILES:
            name, kind = FILES[parts.path]
            content = files(__package__).joinpath(name).read_text(encoding="utf-8")
            self._send(HTTPStatus.OK, f"text/{kind}", ((STYLE if kind == "css" else "") + content).encode())
        else:
            self._send(HTTPStatus.NOT_FOUND, "text/plain", b"there is no such page")

    def _from_own_page(self, own: set[str]) -> bool:
        """Whether no other site's page asks: browsers say where a request comes from, and pages cannot change that."""
        origins = self.headers.get_all("Origin", [])
        sites = self.headers.get_all("Sec-Fetch-Site", [])
        return all(origin in {f"http://{name}" for name in own} for origin in origins) and all(
            site in ("same-origin", "none") for site in sites
        )

    def _answer(self, asked: dict[str, str]) -> None:
        """One line of JSON for the plan, and one for the curves when they are ready."""
        lines = (json.dumps(part, allow_nan=False).encode() + b"\n" for part in self.server.answers(asked))
        try:
            first = next(lines)
        except InputError as error:
            self._send(HTTPStatus.BAD_REQUEST, "application/json", json.dumps({"error": str(error)}).encode())
            return
        except Exception as error:  # the page shows it, where it would see a connection break off
            words = f"this is a bug ({type(error).__name__}: {error}); please report it"
            self._send(HTTPStatus.INTERNAL_SERVER_ERROR, "application/json", json.dumps({"error": words}).encode())
            return
        self.close_connection = True  # tells the browser that there is no more
        self._begin(HTTPStatus.OK, "application/x-ndjson", {"Connection": "close"})
        with contextlib.suppress(ConnectionError):  # the page was closed
            for line in itertools.chain([first], lines):
                self.wfile.write(line)

    def _send(self, status: HTTPStatus, kind: str, content: bytes) -> None:
        """A whole reply; a refusal closes the connection, whatever else was sent on it."""
        closing = {} if status == HTTPStatus.OK else {"Connection": "close"}
        self._begin(status, kind, {"Content-Length": str(len(content)), **closing})
        self.wfile.write(content)

    def _begin(self, status: HTTPStatus, kind: str, more: dict[str, str]) -> None:
        self.send_response(status)
        for name, value in {**HEADERS, "Content-Type": f"{kind}; charset=utf-8", **more}.items():
            self.send_header(name, value)
        self.end_headers()

    def log_message(self, *_: Any) -> None:
        """Log nothing: what is planned is private."""
