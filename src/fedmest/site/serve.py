"""`fedmest site serve`: a vault behind a Unix socket, until it is told to stop."""

import contextlib
import grp
import json
import logging
import os
import signal
import socket
import socketserver
import stat
import sys
import threading
import time
from pathlib import Path
from typing import Any

from fedmest.errors import InputError
from fedmest.site.policy import Policy
from fedmest.site.vault import Vault
from fedmest.site.wire import Malformed, pack, receive, send

PATIENCE = 60.0  # seconds that a caller may be silent
LONGEST_PATH = 100  # bytes of a socket's name; the system takes 107
MOST_CALLERS = 64  # at a time; each may hold a whole message in memory, and the ledger needs files, too


class _Handler(socketserver.BaseRequestHandler):
    """One caller; any number of requests."""

    def handle(self) -> None:
        self.request.settimeout(PATIENCE)
        server: Any = self.server
        with contextlib.suppress(OSError):
            try:
                while (body := receive(self.request)) is not None:
                    send(self.request, server.vault.answer(body))
            except Malformed as reason:
                send(self.request, pack({"site": server.vault.policy.name, "refused": str(reason)}))


class Listener(socketserver.ThreadingMixIn, socketserver.UnixStreamServer):
    """Listens for one vault. A socket that a killed one left over is replaced; nothing else is."""

    daemon_threads = True
    request_queue_size = 128

    def __init__(self, vault: Vault) -> None:
        self.vault = vault
        self.places = threading.BoundedSemaphore(MOST_CALLERS)
        self.listens = False
        path = vault.policy.socket
        if len(os.fsencode(path)) > LONGEST_PATH:
            raise InputError(f"the socket's name {path} is longer than {LONGEST_PATH} bytes; set a shorter one")
        with contextlib.suppress(FileNotFoundError):
            if not stat.S_ISSOCK(path.lstat().st_mode):
                raise InputError(f"{path} exists and is no socket; remove it or name another")
            with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
                if probe.connect_ex(str(path)) == 0:
                    raise InputError(f"{path} is another vault's, which listens there; name another socket")
            path.unlink()
        before = os.umask(0o177)
        try:
            super().__init__(str(path), _Handler)
        except OSError as error:
            raise InputError(f"the socket {path} cannot be made: {(error.strerror or str(error)).lower()}") from None
        finally:
            os.umask(before)
        self.listens = True
        if vault.policy.group is not None:
            try:
                os.chown(path, -1, grp.getgrnam(vault.policy.group).gr_gid)
            except (KeyError, PermissionError) as error:
                self.server_close()
                raise InputError(f"group {vault.policy.group!r} cannot be given the socket: {error}") from None
            path.chmod(0o660)

    def server_close(self) -> None:
        super().server_close()
        if self.listens:  # else what stands there is not ours
            self.vault.policy.socket.unlink(missing_ok=True)

    def process_request(self, request: Any, client_address: Any) -> None:
        """Hang up on callers beyond the most that there may be."""
        if not self.places.acquire(blocking=False):
            self.shutdown_request(request)
            return
        try:
            super().process_request(request, client_address)
        except RuntimeError:  # the system has no thread left
            self.places.release()
            self.shutdown_request(request)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self.places.release()


class Lines(logging.Formatter):
    """One JSON object a line."""

    def format(self, record: logging.LogRecord) -> str:
        facts = {"time": round(record.created, 3), "level": record.levelname.lower(), "event": record.getMessage()}
        facts |= getattr(record, "facts", {})
        if record.exc_info:
            facts["traceback"] = self.formatException(record.exc_info)
        return json.dumps(facts)


def keep_log(path: Path | None) -> None:
    """Log to a file, and always to stderr."""
    log = logging.getLogger("fedmest")
    log.setLevel(logging.INFO)
    log.propagate = False
    try:
        handlers: list[logging.Handler] = [logging.StreamHandler(sys.stderr)]
        handlers += [logging.FileHandler(path)] if path is not None else []
    except OSError as error:
        raise InputError(f"the log {path} cannot be written: {error.strerror}") from None
    for handler in handlers:
        handler.setFormatter(Lines())
    log.handlers = handlers


def serve(policy: Policy) -> None:
    """Answer until SIGTERM or Ctrl-C."""
    keep_log(policy.log)
    log = logging.getLogger("fedmest.vault")
    started = time.monotonic()
    if not policy.ledger.exists():  # a mistyped name or an absent disk must not pass for an unspent budget
        raise InputError(f"there is no ledger {policy.ledger}; a new site begins one with 'fedmest site init'")
    vault = Vault(policy, create=False)
    try:
        with Listener(vault) as listener:
            if threading.current_thread() is threading.main_thread():
                for number in (signal.SIGTERM, signal.SIGINT):
                    signal.signal(number, lambda *_: threading.Thread(target=listener.shutdown).start())
            log.info("serving", extra={"facts": {
                "site": policy.name, "socket": str(policy.socket), "rows": vault.rows, "insecure": policy.insecure,
                "spent": vault.ledger.spent(), "lifetime": policy.lifetime,
                "start_s": round(time.monotonic() - started, 2),
            }})  # fmt: skip
            listener.serve_forever(poll_interval=0.2)
        log.info("stopped", extra={"facts": {"site": policy.name}})
    finally:
        vault.close()
