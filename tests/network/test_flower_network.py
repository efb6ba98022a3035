"""The network around the sites: who gets in, what the proxy lets through, and whose rights a submitted app has.

Nothing here needs a vault: the apps are a few lines, written into a temporary folder.
"""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("flwr")

from flower_network import FlowerNetwork, why_not_as, write_app

NGINX_MISSING = shutil.which("nginx") is None
USER = "nobody"
needs_proxy = pytest.mark.skipif(NGINX_MISSING, reason="nginx is not installed (apt-get install nginx-light)")

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


# what a SuperNode with a registered key asks of a SuperLink
FLEET_CALLS = (
    "activate-node", "deactivate-node", "send-node-heartbeat", "pull-messages", "push-messages", "get-run", "get-fab",
    "push-object", "pull-object", "confirm-message-received",
)  # fmt: skip
FORBIDDEN = (403, 404)


@pytest.fixture(scope="module")
def network(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FlowerNetwork]:
    """Two sites behind nginx, their SuperNodes of another user, as far as this machine allows."""
    options = {"user": None if why_not_as(USER) else USER, "proxy": not NGINX_MISSING}
    with FlowerNetwork(tmp_path_factory.mktemp("flower"), {"north": "", "south": ""}, **options) as running:
        yield running


def test_every_site_answers_under_the_name_its_key_was_registered_with(network: FlowerNetwork) -> None:
    done = network.run(write_app(network.folder / "echo"), {"rounds": 2})
    assert done.ok, done.log
    for number in range(2):
        for site in network.sites:
            assert f"reply {number} {site} {{'number': {number}, 'site': '{site}'}}" in done.log


@pytest.mark.parametrize("lacks", ["a registered key", "a key of its own", "any key", "the authority"])
def test_a_stranger_is_turned_away_until_it_has_what_it_lacks(network: FlowerNetwork, lacks: str) -> None:
    """It ends without having been let in. With what it lacked it gets in, so nothing else had kept it out."""
    name = lacks.replace(" ", "-")
    changes: dict[str, Path | None] = {"auth_supernode_private_key": network.make_key(name)}
    if lacks == "any key":
        changes["auth_supernode_private_key"] = None
    if lacks == "a key of its own":
        changes["auth_supernode_private_key"] = network.homes["north"] / "key"
    if lacks == "the authority":  # the key is known, but the node trusts another certificate than the server's
        network.register(name)
        changes["root_certificates"] = network.make_certificates("other-")
    before = network.nodes()
    network.start_node(name, **changes)
    assert network.wait_ended(name) != 0
    assert network.nodes() == before  # not even as one that came and went
    assert network.online() == set(network.sites)

    if name not in before:
        network.register(name)
    network.start_node(name)
    network.wait_online(name)
    network.kill_node(name)
    network.unregister(name)
    assert network.online() == set(network.sites)


@needs_proxy
def test_nobody_submits_an_app_or_registers_a_key_through_the_proxy(network: FlowerNetwork) -> None:
    network.write_connection("outside", network.entrance)
    key = network.make_key("mallory").with_suffix(".pub")
    app = write_app(network.folder / "foreign")
    for command in (["run", app, "outside"], ["supernode", "register", key, "outside", "--name", "mallory"]):
        done = network.flwr(*command)
        assert done.returncode == 1
        assert "Client error '40" in done.stderr and "/v1/control/" in done.stderr, done
    assert "mallory" not in network.nodes()
    assert "foreign" not in network.flwr("list", "tests", "--format", "json").stdout


@needs_proxy
def test_the_proxy_lets_only_the_calls_of_supernodes_through(network: FlowerNetwork) -> None:
    assert network.ask(network.port, "/v1/control/list-runs", b"") == 200  # on loopback, where the server's engineer is
    refused = [
        "/health", "/docs", "/openapi.json", "/", "/v1/control/start-run", "/v1/control/list-runs",
        "/v1/control/register-node", "/v1/control/list-nodes", "/v1/control/stop-run", "/v1/control/stream-logs",
        "/v1/runtime/acquire-task", "/v1/runtime/responses", "/v1/fleet/register-node",
        "/v1/fleet/unregister-node", "/v1/fleet/pull-messages/", "/v1/fleet/../control/list-runs",
        "/v1/fleet/%2e%2e/control/list-runs", "/v1/%63ontrol/list-runs", "//v1/control/list-runs",
        "/v1/fleet/pull-messages/../../control/list-runs", "/v1/fleet/pull-messages%2f..%2f..%2fcontrol%2flist-runs",
        "/V1/CONTROL/list-runs", "/v1/fleet/pull-messages;/../../control/list-runs",
    ]  # fmt: skip
    for path in refused:
        assert network.ask(network.entrance, path) in FORBIDDEN, path
        assert network.ask(network.entrance, path, b"") in FORBIDDEN, path
    for call in FLEET_CALLS:  # these reach the SuperLink, which asks for a signature; the path is rebuilt on the way
        assert network.ask(network.entrance, f"/v1/fleet/{call}") in FORBIDDEN  # only POST
        assert network.ask(network.entrance, f"/v1/fleet/{call}", b"") == 401
        assert network.ask(network.entrance, f"/v1/control/list-runs/../../fleet/{call}", b"") == 401


def test_a_foreign_app_has_only_the_rights_of_the_supernodes_user(network: FlowerNetwork) -> None:
    if reason := why_not_as(USER):
        pytest.skip(reason)
    rows = network.site_root / "vault" / "rows.csv"  # beside the SuperNode's folder: only its mode keeps them apart
    rows.parent.mkdir(mode=0o700)
    rows.write_text("a patient's row\n")
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
