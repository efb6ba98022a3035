"""A real Flower network on loopback for the tests: SuperLink, one SuperNode a site, and nginx in front when asked for.

Every process is its own, as at real sites: TLS with a certificate authority made here, one key a site, one Flower
home a process, free ports. Leaving the block kills whatever was started, also after a failed test or Ctrl-C, and a
watchdog does it should the test process itself be killed.
"""

import contextlib
import functools
import importlib.util
import itertools
import json
import os
import random
import re
import shlex
import shutil
import signal
import socket
import ssl
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
import uuid
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:  # pytest imports this file for its doctests, also where Flower is not installed
    from flwr.supercore.control import ControlHttpClient

ConfigValue = bool | int | float | str
SCRIPTS = Path(sys.executable).parent
PATIENCE = 120.0  # seconds for anything that takes five on an idle machine
MARK = "FEDMEST_NETWORK"  # a variable that every process of a network inherits
NODE_TIMEOUT = 61.0  # after SIGKILL the SuperLink refuses a node's key until its heartbeat has lapsed
SHIPPED = Path(__file__).parents[1] / "src/fedmest/server/templates/project/server__nginx.conf"
# The shipped server, in a frame that keeps to one folder and is one process.
NGINX = """\
daemon off;
master_process off;
pid {folder}/nginx.pid;
error_log stderr notice;
events {{}}
http {{
    access_log {folder}/access.log;
    client_body_temp_path {folder}/body;
    proxy_temp_path {folder}/proxy;
    fastcgi_temp_path {folder}/unused;
    uwsgi_temp_path {folder}/unused;
    scgi_temp_path {folder}/unused;
{server}
}}
"""
ECHO_SERVER = """\
from flwr.app import ConfigRecord, Message, RecordDict
from flwr.serverapp import ServerApp

app = ServerApp()


@app.main()
def main(grid, context):
    for number in range(context.run_config["rounds"]):
        nodes = {node.node_id: node.name for node in grid.get_nodes()}
        ask = RecordDict({"ask": ConfigRecord({"number": number})})
        asked = [Message(ask, dst_node_id=node, message_type="query", group_id=str(number)) for node in sorted(nodes)]
        for reply in grid.send_and_receive(asked):
            site = nodes[reply.metadata.src_node_id]
            print("reply", number, site, reply.error if reply.has_error() else dict(reply.content["said"]), flush=True)
"""
ECHO_CLIENT = """\
from flwr.app import ConfigRecord, Message, RecordDict
from flwr.clientapp import ClientApp

app = ClientApp()


@app.query()
def answer(message, context):
    said = {"number": message.content["ask"]["number"], "site": context.node_config["site"]}
    return Message(RecordDict({"said": ConfigRecord(said)}), reply_to=message)
"""


def toml(settings: Mapping[str, ConfigValue]) -> str:
    """Run settings as TOML, whose strings and numbers are written as JSON's."""
    lines = (f"{json.dumps(name)} = {json.dumps(value, ensure_ascii=False)}" for name, value in settings.items())
    return "\n".join(lines) + "\n"


def write_app(folder: Path, client: str = ECHO_CLIENT, server: str = ECHO_SERVER, **config: ConfigValue) -> Path:
    """A Flower app of two files; `config` are the run settings it knows, with their defaults."""
    folder.mkdir(parents=True)
    (folder / "client.py").write_text(client)
    (folder / "server.py").write_text(server)
    project = f'[project]\nname = "{folder.name}"\nversion = "1.0.0"\ndescription = "test"\nlicense = "Apache-2.0"\n'
    parts = '[tool.flwr.app]\npublisher = "test"\n[tool.flwr.app.components]\n'
    parts += 'serverapp = "server:app"\nclientapp = "client:app"\n[tool.flwr.app.config]\n'
    (folder / "pyproject.toml").write_text(project + parts + toml({"rounds": 1, **config}))
    return folder


@functools.cache
def why_not_as(user: str) -> str | None:
    """Why processes of `user` cannot run this interpreter's packages here, or None if they can."""
    if os.geteuid() != 0:
        return "only root can start processes as another user"
    command = [*_as_user(user), sys.executable, "-c", "import flwr, fedmest"]
    tried = subprocess.run(command, capture_output=True, text=True)
    return None if tried.returncode == 0 else f"{user} cannot import the packages: {tried.stderr.strip()[-200:]}"


def _as_user(user: str | None, *paths: Path) -> list[str]:
    """A prefix that runs a command as `user`, with no group but the user's own.

    The interpreter, the packages and `paths` may lie below folders that the user cannot enter (/root, a private
    checkout). In a mount namespace of its own such a folder is covered by one that holds nothing but these paths, so
    that no permission of the machine has to change and nothing else comes into reach.
    """
    if user is None:
        return []
    package = importlib.util.find_spec("fedmest")
    assert package is not None and package.origin is not None
    hidden: dict[Path, list[Path]] = {}
    for path in (Path(sys.prefix), Path(sys.base_prefix), Path(package.origin).parents[1], *paths):
        path = path.resolve()
        if closed := next((up for up in reversed(path.parents) if not up.stat().st_mode & 0o001), None):
            hidden.setdefault(closed, []).append(path)
    lines = ["set -e"]
    for closed, shown in hidden.items():
        lines.append("mount -t tmpfs -o mode=755 view /mnt")
        for path in shown:
            place = shlex.quote(f"/mnt/{path.relative_to(closed)}")
            lines += [f"mkdir -p {place}", f"mount --bind {shlex.quote(str(path))} {place}"]
        lines.append(f"mount --rbind /mnt {shlex.quote(str(closed))}")
    view = ["unshare", "--mount", "sh", "-c", "\n".join([*lines, 'exec "$@"']), "sh"]
    return [*view, "setpriv", f"--reuid={user}", f"--regid={_group(user)}", "--clear-groups"]


def _group(user: str) -> str:
    return subprocess.run(["id", "-g", user], check=True, capture_output=True, text=True).stdout.strip()


_handed_out: set[int] = set()


def free_port() -> int:
    """A port that nobody listens on, below those that the system gives to outgoing connections: one of these could take
    it before the process that it is meant for does.
    """
    for port in random.SystemRandom().sample(range(15_000, 32_000), 1000):
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(("127.0.0.1", port))
            if port not in _handed_out:
                _handed_out.add(port)
                return port
    raise OSError("no free port between 15,000 and 32,000")


def wait_until(condition: Callable[[], object], what: str, timeout: float = PATIENCE) -> None:
    deadline = time.monotonic() + timeout
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError(f"{what}: not within {timeout:.0f} s")
        time.sleep(0.05)


@dataclass(frozen=True)
class CompletedRun:
    """What `flwr run --stream` left: its exit code says nothing of the run, `status` does."""

    exit: int
    log: str
    run_id: int
    status: str  # "completed", "failed" or "stopped"; "refused" if it never started
    details: str

    @property
    def ok(self) -> bool:
        return self.status == "completed"


@dataclass
class Run:
    """A run under way, so that a test can break something meanwhile."""

    network: "FlowerNetwork"
    process: subprocess.Popen[bytes]
    output: Path

    def log(self) -> str:
        return self.output.read_text(errors="replace")

    def wait_for(self, text: str, timeout: float = PATIENCE) -> None:
        wait_until(lambda: text in self.log() or self.process.poll() is not None, f"{text!r} in the run's log", timeout)
        assert text in self.log(), self.log()

    def wait(self, timeout: float = PATIENCE) -> CompletedRun:
        try:
            code = self.process.wait(timeout)
        except subprocess.TimeoutExpired:
            self.stop()
            self.process.kill()
            raise TimeoutError(f"the run took more than {timeout:.0f} s\n{self.log()}") from None
        if (run_id := self.run_id()) is None:
            return CompletedRun(code, self.log(), 0, "refused", "")
        from flwr.proto.control_pb2 import ListRunsRequest

        with self.network.control() as control:
            status = control.ListRuns(ListRunsRequest(run_id=run_id)).run_dict[run_id].status
        return CompletedRun(code, self.log(), run_id, status.sub_status or status.status, status.details)

    def run_id(self) -> int | None:
        found = re.search(r"started run (\d+)", self.log())
        return int(found[1]) if found else None

    def stop(self) -> None:
        from flwr.proto.control_pb2 import StopRunRequest

        if (run_id := self.run_id()) is not None:
            with self.network.control() as control:
                control.StopRun(StopRunRequest(run_id=run_id))


@dataclass
class FlowerNetwork:
    """`with FlowerNetwork(tmp_path, {"north": socket}) as network: network.run(app_dir, {"rounds": 2})`.

    `user` is whom the SuperNodes run as: their keys and homes are then outside `folder`, which that user may not be
    able to enter, and the folders of the sockets are shown to them (with their own permissions). `proxy` puts nginx
    between them and the SuperLink; with `database` the SuperLink survives a restart (and works twice as long on every
    call); `environment` is added to every process's.
    """

    folder: Path
    sites: Mapping[str, str | Path]
    user: str | None = None
    proxy: bool = False
    database: bool = False
    environment: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.folder = Path(self.folder)
        self.folder.mkdir(parents=True, exist_ok=True)
        self.site_root = self.folder
        if self.user is not None:
            self.site_root = Path(tempfile.mkdtemp(prefix="fedmest-sites-"))
            self.site_root.chmod(0o755)
        self.homes = {name: self.site_root / name for name in self.sites}
        self.ca = self.site_root / "ca.crt"
        self.certificate, self.key = self.folder / "server.crt", self.folder / "server.key"
        self.port = free_port()
        self.entrance = free_port() if self.proxy else self.port  # where SuperNodes connect
        self._mark = uuid.uuid4().hex
        self._watchdog: subprocess.Popen[bytes] | None = None
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._runs = itertools.count(1)

    def __enter__(self) -> Self:
        watchdog = [sys.executable, __file__, self._mark]
        self._watchdog = subprocess.Popen(watchdog, stdin=subprocess.PIPE, start_new_session=True)
        try:
            self.make_certificates()
            self.write_connection("tests", self.port)
            self.start_superlink()
            if self.proxy:
                self.start_proxy()
            for name in self.sites:
                self.make_key(name)
                self.register(name)
                self.start_node(name)
            for name in self.sites:
                self.wait_online(name)
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # keys and certificates -------------------------------------------------------------------------------------------

    def make_certificates(self, prefix: str = "") -> Path:
        """A certificate authority and a server certificate for loopback. Returns the authority's certificate."""
        ca, ca_key = self.site_root / f"{prefix}ca.crt", self.folder / f"{prefix}ca.key"
        curve = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-noenc", "-days", "30"]
        names = ["-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1", "-addext", "extendedKeyUsage=serverAuth"]
        usage = ["-addext", "basicConstraints=critical,CA:TRUE", "-addext", "keyUsage=critical,keyCertSign,cRLSign"]
        self._tool("openssl", "req", "-x509", *curve, "-subj", "/CN=test CA", *usage, "-keyout", ca_key, "-out", ca)
        if not prefix:
            server = ["-subj", "/CN=localhost", *names, "-addext", "basicConstraints=critical,CA:FALSE"]
            server += ["-CA", str(ca), "-CAkey", str(ca_key), "-keyout", str(self.key), "-out", str(self.certificate)]
            self._tool("openssl", "req", "-x509", *curve, *server)
        return ca

    def make_key(self, name: str) -> Path:
        """An SSH key for a site, in a folder that belongs to the user of its SuperNode."""
        home = self.homes.setdefault(name, self.site_root / name)
        home.mkdir(exist_ok=True)
        self._tool("ssh-keygen", "-q", "-t", "ecdsa", "-b", "384", "-N", "", "-C", name, "-f", home / "key")
        if self.user is not None:
            home.chmod(0o700)
            for path in (home, home / "key", home / "key.pub"):
                shutil.chown(path, self.user, int(_group(self.user)))
        return home / "key"

    def register(self, name: str) -> None:
        from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat, load_ssh_public_key
        from flwr.proto.control_pb2 import RegisterNodeRequest

        key = load_ssh_public_key((self.homes[name] / "key.pub").read_bytes())
        pem = key.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
        with self.control() as control:
            control.RegisterNode(RegisterNodeRequest(public_key=pem, name=name))

    def unregister(self, name: str) -> None:
        """Strike a site off the list; a node that was killed counts as online for a minute otherwise."""
        from flwr.proto.control_pb2 import ListNodesRequest, UnregisterNodeRequest

        with self.control() as control:
            for node in control.ListNodes(ListNodesRequest()).nodes_info:
                if node.name == name:
                    control.UnregisterNode(UnregisterNodeRequest(node_id=node.node_id))

    # processes -------------------------------------------------------------------------------------------------------

    def start_superlink(self) -> None:
        tls = ["--ssl-ca-certfile", self.ca, "--ssl-certfile", self.certificate, "--ssl-keyfile", self.key]
        options = ["--enable-supernode-auth", "--disable-runtime-dependency-installation"]
        database = ["--database", self.folder / "superlink.db"] if self.database else []
        self._start("superlink", ["flower-superlink", *tls, *options, *database, "--port", self.port])
        self._wait_for("superlink", self._healthy, "the SuperLink answers")

    def start_proxy(self) -> None:
        """The nginx configuration that `fedmest deploy init` writes, on a free port of loopback."""
        home = self.folder / "nginx"
        (home / "server").mkdir(parents=True, exist_ok=True)
        for path in (self.ca, self.certificate, self.key):
            shutil.copy(path, home / "server")
        server = SHIPPED.read_text().replace("@port@", str(self.port)).replace("@folder@", str(home))
        server = server.replace("listen 443 ssl", f"listen 127.0.0.1:{self.entrance} ssl")
        (home / "nginx.conf").write_text(NGINX.format(folder=home, server=server))
        self._start("nginx", ["nginx", "-c", home / "nginx.conf", "-p", home])
        self._wait_for("nginx", lambda: _listening(self.entrance), "nginx listens")

    def start_node(self, name: str, **changes: str | Path | None) -> None:
        """Start a site's SuperNode; `changes` replace or drop (None) options, as a wrong key or authority."""
        home = self.homes[name]
        options: dict[str, object] = {
            "root-certificates": self.ca,
            "auth-supernode-private-key": home / "key",
            "superlink": f"127.0.0.1:{self.entrance}",
            "port": free_port(),
            "node-config": f'site="{name}" socket="{self.sites.get(name, "")}"',
        }
        options |= {option.replace("_", "-"): value for option, value in changes.items()}
        given = [part for option, value in options.items() if value is not None for part in (f"--{option}", value)]
        self._start(name, ["flower-supernode", *given], home=home, user=self.user)

    def wait_ended(self, name: str, timeout: float = PATIENCE) -> int:
        """The exit code of a SuperNode that ends by itself, as one does that the SuperLink does not admit."""
        process = self._processes[name]
        wait_until(lambda: process.poll() is not None, f"{name} ends", timeout)
        self.kill_node(name)  # also what it started
        return process.returncode

    def wait_online(self, name: str, timeout: float = PATIENCE) -> None:
        self._wait_for(name, lambda: name in self.online(), f"SuperNode {name} is connected", timeout)

    def nodes(self) -> dict[str, str]:
        """Every registered node and its status; `flwr supernode list` does not show the names."""
        from flwr.proto.control_pb2 import ListNodesRequest

        with self.control() as control:
            return {node.name: node.status for node in control.ListNodes(ListNodesRequest()).nodes_info}

    def online(self) -> set[str]:
        return {name for name, status in self.nodes().items() if status == "online"}

    def kill_node(self, name: str, how: signal.Signals = signal.SIGKILL) -> None:
        """Kill a SuperNode and what it started; SIGTERM lets it say goodbye, so that it may return at once."""
        process = self._processes.pop(name)
        if how == signal.SIGTERM:
            process.terminate()
            process.wait(PATIENCE)
        _kill(_descendants(process.pid) | {process.pid})
        process.wait()

    def restart_node(self, name: str, timeout: float = PATIENCE + NODE_TIMEOUT) -> None:
        """Start a killed SuperNode again, as often as the SuperLink takes its key to be still in use."""
        deadline = time.monotonic() + timeout
        while True:
            self.start_node(name)
            with contextlib.suppress(ChildProcessError):
                return self.wait_online_again(name, deadline - time.monotonic())
            if time.monotonic() > deadline:
                raise TimeoutError(f"SuperNode {name} was not taken back\n{self.log(name)[-2000:]}")
            time.sleep(1)

    def wait_online_again(self, name: str, timeout: float) -> None:
        """The list of nodes may still call a killed node online, so its own log has to say that it was activated."""
        self._wait_for(name, lambda: "SuperNode ID" in self.log(name), f"SuperNode {name} is connected", timeout)

    def kill_superlink(self) -> None:
        process = self._processes.pop("superlink")
        _kill(_descendants(process.pid) | {process.pid})
        process.wait()

    def kill_serverapp(self) -> None:
        """Kill the server's process of every run under way."""
        children = _descendants(self._processes["superlink"].pid)
        apps = {pid for pid in children if b"flwr-serverapp" in _read(pid, "cmdline")}
        assert apps, "no ServerApp is running"
        _kill(apps)

    def log(self, name: str) -> str:
        """What a process printed last: "superlink", "nginx" or a site's name."""
        path = self.folder / f"{name}.log"
        return path.read_text(errors="replace") if path.exists() else ""

    # runs ------------------------------------------------------------------------------------------------------------

    def start(self, app: Path, config: Mapping[str, ConfigValue] | None = None, connection: str = "tests") -> Run:
        """Submit an app with `flwr run` and come back at once."""
        name = f"run{next(self._runs)}"
        settings = self.folder / f"{name}.toml"
        settings.write_text(toml(config or {}))
        command = ["flwr", "run", app, connection, "--stream", "--run-config", settings]
        return Run(self, self._start(name, command, home=self.folder / "cli"), self.folder / f"{name}.log")

    def run(
        self, app: Path, config: Mapping[str, ConfigValue] | None = None, timeout: float = 3 * PATIENCE
    ) -> CompletedRun:
        """Submit an app with `flwr run` and wait for its end."""
        return self.start(app, config).wait(timeout)

    def flwr(self, *command: str | Path, timeout: float = PATIENCE) -> subprocess.CompletedProcess[str]:
        """The `flwr` command as the engineer at the server has it."""
        environment = self._environment(self.folder / "cli")
        call = [str(SCRIPTS / "flwr"), *map(str, command)]
        return subprocess.run(call, env=environment, cwd=self.folder, capture_output=True, text=True, timeout=timeout)

    def write_connection(self, name: str, port: int) -> None:
        """Add a SuperLink address to the configuration of the `flwr` command."""
        home = self.folder / "cli"
        home.mkdir(exist_ok=True)
        with (home / "config.toml").open("a") as file:
            file.write(f'[superlink.{name}]\naddress = "127.0.0.1:{port}"\nroot-certificates = "{self.ca}"\n')

    @contextlib.contextmanager
    def control(self) -> Iterator["ControlHttpClient"]:
        """Flower's own client, because starting the `flwr` command takes seconds."""
        from flwr.supercore.control import ControlHttpClient

        client = ControlHttpClient.from_server_address(f"127.0.0.1:{self.port}", False, self.ca.read_bytes(), [])
        try:
            yield client
        finally:
            client.close()

    # plumbing --------------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """End every process of this network, whoever started it."""
        own = {process.pid for process in self._processes.values()}
        _kill(own.union(*map(_descendants, own)))
        for process in self._processes.values():
            process.wait()
        _kill_marked(self._mark)
        self._processes.clear()
        if self._watchdog is not None:
            self._watchdog.communicate()
        if self.user is not None:
            shutil.rmtree(self.site_root, ignore_errors=True)

    def survivors(self) -> set[int]:
        """Processes of this network that still run."""
        return _marked(self._mark)

    def _environment(self, home: Path) -> dict[str, str]:
        keep = {name: value for name, value in os.environ.items() if not name.lower().endswith("_proxy")}
        return keep | {
            "PATH": f"{SCRIPTS}:{os.environ.get('PATH', '/usr/bin:/bin')}",
            "FLWR_HOME": str(home),
            "HOME": str(home),
            "FLWR_TELEMETRY_ENABLED": "0",
            "FLWR_DISABLE_UPDATE_CHECK": "1",
            "FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.1",  # a second otherwise, in every round and at every start
            "PYTHONUNBUFFERED": "1",
            MARK: self._mark,
            **self.environment,
        }

    def _start(
        self, name: str, command: list[object], *, home: Path | None = None, user: str | None = None
    ) -> subprocess.Popen[bytes]:
        home = home or self.folder / f"{name}-home"
        home.mkdir(exist_ok=True)
        program = SCRIPTS / str(command[0])
        sockets = [Path(path).parent for path in self.sites.values() if Path(path).is_absolute()]
        prefix = _as_user(user, home, *filter(Path.exists, sockets))
        line = [*prefix, program if program.exists() else command[0], *command[1:]]
        with (self.folder / f"{name}.log").open("wb") as log:
            process = subprocess.Popen(
                [str(part) for part in line],
                env=self._environment(home),
                cwd=home,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self._processes[name] = process
        return process

    def _wait_for(self, name: str, ready: Callable[[], object], what: str, timeout: float = PATIENCE) -> None:
        """Wait until a process is ready; say at once, with its log, if it ended instead."""
        process = self._processes[name]

        def settled() -> bool:
            return process.poll() is not None or bool(ready())

        wait_until(settled, what, timeout)
        if process.poll() is not None:
            raise ChildProcessError(f"{name} ended with {process.returncode}\n{self.log(name)[-4000:]}")

    def _healthy(self) -> bool:
        return self.ask(self.port, "/health") == 200

    def ask(self, port: int, path: str, body: bytes | None = None) -> int:
        """The HTTP status of one request (POST if there is a body), 0 if nobody answers."""
        opener = urllib.request.build_opener(
            urllib.request.ProxyHandler({}),
            urllib.request.HTTPSHandler(context=ssl.create_default_context(cafile=str(self.ca))),
        )
        headers = {"Content-Type": "application/protobuf"}
        request = urllib.request.Request(f"https://127.0.0.1:{port}{path}", data=body, headers=headers)
        try:
            with opener.open(request, timeout=10) as answer:
                return int(answer.status)
        except urllib.error.HTTPError as error:
            return error.code
        except OSError:
            return 0

    def _tool(self, *command: str | Path) -> None:
        subprocess.run([str(part) for part in command], check=True, capture_output=True)


def _listening(port: int) -> bool:
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
        return True
    return False


def _all_pids() -> set[int]:
    return {int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit()} - {os.getpid()}


def _read(pid: int, name: str) -> bytes:
    try:
        return Path(f"/proc/{pid}/{name}").read_bytes()
    except OSError:  # it has ended, or belongs to somebody else
        return b""


def _descendants(pid: int) -> set[int]:
    """All processes below `pid`; Flower starts some in sessions of their own, so process groups do not find them."""
    states = {child: _read(child, "stat").rpartition(b")")[2].split() for child in _all_pids()}
    parents = {child: int(state[1]) for child, state in states.items() if state}
    found = {pid}
    while more := {child for child, parent in parents.items() if parent in found} - found:
        found |= more
    return found - {pid}


def _kill(pids: set[int]) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def _marked(mark: str) -> set[int]:
    line = f"{MARK}={mark}".encode()
    return {pid for pid in _all_pids() if line in _read(pid, "environ").split(b"\0")}


def _kill_marked(mark: str) -> None:
    while left := _marked(mark):
        _kill(left)
        time.sleep(0.02)


if __name__ == "__main__":  # the watchdog: its input ends with the test process, however that ends
    sys.stdin.read()
    _kill_marked(sys.argv[1])
