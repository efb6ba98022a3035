"""The network around the sites: who gets in, what the proxy lets through, and whose rights a submitted app has.

Nothing here needs a vault: the apps are a few lines, written into a temporary folder.
"""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("flwr")

from flower_network import FLEET_CALLS, FlowerNetwork, wait_until, why_not_as, write_app

NGINX_MISSING = shutil.which("nginx") is None
USER = "nobody"
WHY_NOT = why_not_as(USER)
needs_proxy = pytest.mark.skipif(NGINX_MISSING, reason="nginx is not installed (apt-get install nginx-light)")
needs_user = pytest.mark.skipif(WHY_NOT is not None, reason=str(WHY_NOT))

# tells who it is and what it can read; every attempt is an answer, so that a test sees which ones succeeded
CURIOUS = """\
import os
from flwr.app import ConfigRecord, Message, RecordDict
from flwr.clientapp import ClientApp

app = ClientApp()


def attempt(action):
    try:
        return str(action())
    except OSError as error:
        return type(error).__name__


@app.query()
def answer(message, context):
    said = {
        "user": str(os.getresuid() + os.getresgid() + tuple(os.getgroups())),
        "rows": attempt(lambda: open(context.run_config["rows"]).read()),
        "list": attempt(lambda: os.listdir(os.path.dirname(context.run_config["rows"]))),
        "become root": attempt(lambda: os.setuid(0)),
        "parent": attempt(lambda: open(f"/proc/{os.getppid()}/environ").read()),
    }
    return Message(RecordDict({"said": ConfigRecord(said)}), reply_to=message)
"""


@pytest.fixture(scope="module")
def network(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FlowerNetwork]:
    """Two sites behind nginx, their SuperNodes of another user, as far as this machine allows."""
    options = {"user": None if WHY_NOT else USER, "proxy": not NGINX_MISSING}
    with FlowerNetwork(tmp_path_factory.mktemp("flower"), {"north": "", "south": ""}, **options) as running:
        yield running


def test_every_site_answers_under_the_name_its_key_was_registered_with(network: FlowerNetwork) -> None:
    done = network.run(write_app(network.folder / "echo"), {"rounds": 2})
    assert done.ok, done.log
    for number in range(2):
        for site in network.sites:
            assert f"reply {number} {site} {{'number': {number}, 'site': '{site}'}}" in done.log


@pytest.mark.parametrize("lacks", ["a registered key", "any key", "the authority"])
def test_a_stranger_is_turned_away(network: FlowerNetwork, lacks: str) -> None:
    name = lacks.replace(" ", "-")
    key = network.make_key(name)
    changes: dict[str, Path | None] = {"auth_supernode_private_key": key}
    if lacks == "any key":
        changes["auth_supernode_private_key"] = None
    if lacks == "the authority":  # the key is known, but the node trusts another certificate than the server's
        network.register(name)
        changes["root_certificates"] = network.make_certificates("other-")
    network.start_node(name, **changes)
    stranger = network.processes.pop(name)
    wait_until(lambda: stranger.poll() is not None, f"the node without {lacks} gives up")
    said = network.log(name)
    assert stranger.returncode != 0
    assert "Failed to initialize the connection to the SuperLink" in said, said
    assert "SuperNode ID" not in said
    assert ("certificate verify failed" in said) == (lacks == "the authority")
    assert network.online() == set(network.sites)


@needs_proxy
@pytest.mark.parametrize(
    "command", ["run", "supernode register", "supernode list", "list", "stop", "log"], ids=lambda name: name.replace(" ", "-")
)
def test_the_flwr_command_is_refused_through_the_proxy(network: FlowerNetwork, command: str) -> None:
    connection = f"outside-{command.replace(' ', '-')}"
    network.write_connection(connection, network.entrance)
    given: dict[str, list[str | Path]] = {"stop": ["1"], "log": ["1"]}
    if command == "run":
        given["run"] = [write_app(network.folder / "foreign")]
    if command == "supernode register":
        given[command] = [network.make_key("mallory").with_suffix(".pub")]
    done = network.flwr(*command.split(), *given.get(command, []), connection)
    assert done.returncode == 1
    assert "403 Forbidden" in done.stderr, done
    assert network.online() == set(network.sites)


@needs_proxy
def test_the_proxy_lets_only_the_calls_of_supernodes_through(network: FlowerNetwork) -> None:
    assert network.ask(network.port, "/v1/control/list-runs", b"") == 200  # on loopback, where the server's engineer is
    refused = [
        "/health", "/docs", "/openapi.json", "/", "/v1/control/start-run", "/v1/control/list-runs",
        "/v1/control/register-node", "/v1/runtime/acquire-task", "/v1/runtime/responses", "/v1/fleet/register-node",
        "/v1/fleet/unregister-node", "/v1/fleet/pull-messages/", "/v1/fleet/../control/list-runs",
        "/v1/fleet/%2e%2e/control/list-runs", "/v1/%63ontrol/list-runs", "//v1/control/list-runs",
        "/v1/fleet/pull-messages/../../control/list-runs", "/v1/fleet/pull-messages%2f..%2f..%2fcontrol%2flist-runs",
        "/V1/CONTROL/list-runs", "/v1/fleet/pull-messages;/../../control/list-runs",
    ]  # fmt: skip
    got = {path: (network.ask(network.entrance, path), network.ask(network.entrance, path, b"")) for path in refused}
    assert got == dict.fromkeys(refused, (403, 403))
    for call in FLEET_CALLS:  # these reach the SuperLink, which asks for a signature
        assert network.ask(network.entrance, f"/v1/fleet/{call}") == 403  # only POST
        assert network.ask(network.entrance, f"/v1/fleet/{call}", b"") == 401
        assert network.ask(network.entrance, f"/v1/control/list-runs/../../fleet/{call}", b"") == 401  # rewritten, not passed on


@needs_user
def test_a_foreign_app_has_only_the_rights_of_the_supernodes_user(network: FlowerNetwork, tmp_path: Path) -> None:
    rows = tmp_path / "private" / "rows.csv"
    rows.parent.mkdir()
    rows.write_text("a patient's row\n")
    rows.parent.chmod(0o700)
    done = network.run(write_app(network.folder / "curious", CURIOUS, rows=""), {"rows": str(rows)})
    assert done.ok, done.log
    replies = [line for line in done.log.splitlines() if line.startswith("reply")]
    assert len(replies) == len(network.sites)
    for reply in replies:
        assert "'user': '(65534, 65534, 65534, 65534, 65534, 65534)'" in reply
        for attempt in ("rows", "list", "become root", "parent"):
            assert f"'{attempt}': 'PermissionError'" in reply
    assert "patient" not in done.log


def test_a_failing_test_leaves_no_process_behind(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError), FlowerNetwork(tmp_path, {}) as network:
        assert network.survivors()
        _ = 1 / 0
    assert not network.survivors()
