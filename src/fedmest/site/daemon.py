"""`fedmest site serve`: a vault behind a Unix socket, until SIGTERM or Ctrl-C."""

import contextlib
import grp
import io
import json
import logging
import math
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

from fedmest.core.exceptions import InputError
from fedmest.core.files import open_private
from fedmest.runs.messages import Malformed, Refusal, encode
from fedmest.site.connection import receive, send
from fedmest.site.policy import Policy
from fedmest.site.vault import Vault

READ_TIMEOUT_S = 60.0  # that a client may be silent
POLL_INTERVAL_S = 0.2  # between looks at whether to stop
LOG_STEP_MS = 10  # of times in the log: finer ones could tell something of the rows
MAX_PATH_BYTES = 100  # of a socket's name; the system allows 107
MAX_CONNECTIONS = 64  # at a time; each may hold a whole message in memory, and the ledger needs file descriptors, too


class _Handler(socketserver.BaseRequestHandler):
    """One client; any number of requests."""

    def handle(self) -> None:
        self.request.settimeout(READ_TIMEOUT_S)
        server: Any = self.server
        with contextlib.suppress(OSError):
            try:
                while (body := receive(self.request)) is not None:
                    send(self.request, server.vault.handle(body))
            except Malformed as reason:
                send(self.request, encode(Refusal(server.vault.policy.name, str(reason))))


class Listener(socketserver.ThreadingMixIn, socketserver.UnixStreamServer):
    """Socket server of one vault. A socket that a killed vault left behind is replaced; no other file is."""

    daemon_threads = True
    request_queue_size = 128

    def __init__(self, vault: Vault) -> None:
        self.vault = vault
        self.slots = threading.BoundedSemaphore(MAX_CONNECTIONS)
        self.listening = False
        path = vault.policy.socket
        if len(os.fsencode(path)) > MAX_PATH_BYTES:
            raise InputError(f"the socket's name {path} is longer than {MAX_PATH_BYTES} bytes; set a shorter one")
        with contextlib.suppress(FileNotFoundError):
            if not stat.S_ISSOCK(path.lstat().st_mode):
                raise InputError(f"{path} exists and is not a socket; remove it or name another")
            with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
                if probe.connect_ex(str(path)) == 0:
                    raise InputError(f"{path} is in use by another vault; name another socket")
            path.unlink()
        before = os.umask(0o177)
        try:
            super().__init__(str(path), _Handler)
        except OSError as error:
            raise InputError(f"the socket {path} cannot be created: {(error.strerror or str(error)).lower()}") from None
        finally:
            os.umask(before)
        self.listening = True
        if vault.policy.group is not None:
            try:
                os.chown(path, -1, grp.getgrnam(vault.policy.group).gr_gid)
            except (KeyError, PermissionError) as error:
                self.server_close()
                raise InputError(
                    f"group {vault.policy.group!r} cannot be given access to the socket: {error}"
                ) from None
            path.chmod(0o660)

    def server_close(self) -> None:
        """Close the socket and remove its file."""
        super().server_close()
        if self.listening:  # else the file there is not ours
            self.vault.policy.socket.unlink(missing_ok=True)

    def process_request(self, request: Any, client_address: Any) -> None:
        """Serve a client, or hang up where all slots are taken."""
        if not self.slots.acquire(blocking=False):
            self.shutdown_request(request)
            return
        try:
            super().process_request(request, client_address)
        except RuntimeError:  # the system allows no more threads
            self.slots.release()
            self.shutdown_request(request)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        """Serve a client in its own thread and free its slot."""
        try:
            super().process_request_thread(request, client_address)
        finally:
            self.slots.release()


class JsonFormatter(logging.Formatter):
    """Log records as one JSON object per line; `extra={"facts": {...}}` adds keys.

    Times are coarse: the moment is rounded, and facts named `..._ms` are rounded up, to whole tens of milliseconds.
    """

    def format(self, record: logging.LogRecord) -> str:
        """One line of JSON."""
        moment = round(round(1e3 * record.created / LOG_STEP_MS) * LOG_STEP_MS / 1e3, 3)
        facts = {"time": moment, "level": record.levelname.lower(), "event": record.getMessage()}
        for key, value in getattr(record, "facts", {}).items():
            facts[key] = math.ceil(value / LOG_STEP_MS) * LOG_STEP_MS if key.endswith("_ms") else value
        if record.exc_info:
            facts["traceback"] = self.formatException(record.exc_info)
        return json.dumps(facts)


class _PrivateFileHandler(logging.FileHandler):
    """A log that only its owner may read, also one that was left readable for others."""

    def _open(self) -> io.TextIOWrapper:
        descriptor = open_private(Path(self.baseFilename), os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        return os.fdopen(descriptor, "a", encoding="utf-8")


def configure_logging(path: Path | None) -> None:
    """Log JSON lines to stderr, and to a file for its owner only if one is named."""
    log = logging.getLogger("fedmest")
    log.setLevel(logging.INFO)
    log.propagate = False
    try:
        handlers: list[logging.Handler] = [logging.StreamHandler(sys.stderr)]
        handlers += [_PrivateFileHandler(path)] if path is not None else []
    except OSError as error:
        raise InputError(f"the log {path} cannot be written: {error.strerror}") from None
    for handler in handlers:
        handler.setFormatter(JsonFormatter())
    log.handlers = handlers


def serve(policy: Policy) -> None:
    """Serve a site's vault until SIGTERM or Ctrl-C.

    Parameters
    ----------
    policy : Policy
        The site's rules.

    Raises
    ------
    InputError
        If the ledger is missing, or the data, log or socket cannot be used.
    LedgerError
        If the ledger is damaged or in use by another vault.
    """
    configure_logging(policy.log)
    log = logging.getLogger("fedmest.vault")
    started = time.monotonic()
    if not policy.ledger.exists():  # a mistyped name or a missing disk must not pass for an unspent budget
        raise InputError(f"there is no ledger {policy.ledger}; create it once with 'fedmest site init'")
    vault = Vault(policy, create=False)
    try:
        with Listener(vault) as listener:
            if threading.current_thread() is threading.main_thread():
                for number in (signal.SIGTERM, signal.SIGINT):
                    signal.signal(number, lambda *_: threading.Thread(target=listener.shutdown).start())
            log.info("serving", extra={"facts": {
                "site": policy.name, "socket": str(policy.socket), "rows": vault.rows, "insecure": policy.insecure,
                "spent_mu": vault.ledger.spent_mu(), "lifetime_mu": policy.lifetime_mu,
                "start_s": round(time.monotonic() - started, 2),
            }})  # fmt: skip
            listener.serve_forever(poll_interval=POLL_INTERVAL_S)
        log.info("stopped", extra={"facts": {"site": policy.name}})
    finally:
        vault.close()
