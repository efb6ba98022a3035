"""The server's side of a study on a Flower network; `fedmest deploy init` writes a project that names its app.

Flower's strategies train and evaluate in turns. A study asks what its schedule says, each round something else, so it
drives the grid itself.
"""

import json
import logging
import queue
import sys
import threading
import time
from pathlib import Path
from typing import Any

from flwr.app import ConfigRecord, Context, Message, MessageType, RecordDict
from flwr.serverapp import Grid, ServerApp

from fedmest.core.exceptions import InputError, QuorumError
from fedmest.core.files import read_toml
from fedmest.runs.messages import Malformed, decode
from fedmest.server.coordinator import Coordinator
from fedmest.server.project import ERROR, PAGE, RESULT
from fedmest.server.proposal import Proposal
from fedmest.site.daemon import JsonFormatter

THREADS = 4  # that fetch replies; each asks the SuperLink again and again, so that many would be its undoing
LOOK_AGAIN = 0.5, 2.0  # seconds, at first and after a while

log = logging.getLogger("fedmest.server")

server_app = ServerApp()


class FlowerTransport:
    """Requests and replies as Flower messages. A site goes by the name that its key was registered under."""

    def __init__(self, grid: Grid) -> None:
        self.grid = grid
        self.number = 0

    def discover(self, request: bytes, timeout: float) -> list[bytes]:
        nodes = self._nodes()
        found = []
        for name, body in self._send(dict.fromkeys(nodes.values(), request), timeout, nodes).items():
            try:
                claimed = getattr(decode(body), "site", None)
            except Malformed:
                continue
            if claimed == name:
                found.append(body)
            else:
                log.warning("incident", extra={"facts": {"site": name, "what": f"its vault is named {claimed!r}"}})
        return found

    def exchange(self, requests: dict[str, bytes], timeout: float) -> dict[str, bytes]:
        nodes = self._nodes()
        there = {nodes[name]: body for name, body in requests.items() if name in nodes}
        return self._send(there, timeout, nodes)

    def _nodes(self) -> dict[str, int]:
        """Sites that are connected now."""
        return {str(node.name): int(node.node_id) for node in self.grid.get_nodes() if node.name}

    def _send(self, bodies: dict[int, bytes], timeout: float, nodes: dict[str, int]) -> dict[str, bytes]:
        """Replies by site, of those that came in time.

        Flower's own `send_and_receive` looks for replies every three seconds, and a site that announces one and then
        dies would hold it up for three minutes. So replies are fetched here, by a few threads: who is stuck holds up
        those of his thread.
        """
        self.number += 1
        names = {node: name for name, node in nodes.items()}
        messages = [
            Message(
                content=RecordDict({"fedmest": ConfigRecord({"body": body})}),
                dst_node_id=node,
                message_type=MessageType.TRAIN,
                group_id=str(self.number),
            )
            for node, body in bodies.items()
        ]
        asked = dict(zip(self.grid.push_messages(messages), (names[node] for node in bodies), strict=True))
        until = time.monotonic() + timeout
        arrived: queue.Queue[Message] = queue.Queue()
        for first in range(min(THREADS, len(asked))):
            mine = set(list(asked)[first::THREADS])
            threading.Thread(target=self._fetch, args=(mine, until, arrived), daemon=True).start()
        replies: dict[str, bytes] = {}
        waiting = set(asked)
        while waiting:
            try:
                message = arrived.get(timeout=max(until - time.monotonic(), 0.01))
            except queue.Empty:
                break
            waiting.discard(message.metadata.reply_to_message_id)
            if not message.has_error():
                body = message.content.get("fedmest", {}).get("body", b"")
                replies[asked[message.metadata.reply_to_message_id]] = body if isinstance(body, bytes) else b""
        return replies

    def _fetch(self, waiting: set[str], until: float, arrived: "queue.Queue[Message]") -> None:
        pause, longest = LOOK_AGAIN
        while waiting and time.monotonic() < until:
            try:
                found = list(self.grid.pull_messages(waiting))
            except Exception as error:  # the network may come back before the time is over
                log.warning("incident", extra={"facts": {"site": "the network", "what": f"failed: {error}"}})
                found = []
            for message in found:
                waiting.discard(message.metadata.reply_to_message_id)
                arrived.put(message)
            if waiting:
                time.sleep(pause)
                pause = min(1.2 * pause, longest)


@server_app.main()
def serve(grid: Grid, context: Context) -> None:
    """Run the study of the run configuration; the result, or what went wrong, is written to its folder."""
    logger = logging.getLogger("fedmest")
    handler = logging.StreamHandler(sys.stdout)
    handler.setFormatter(JsonFormatter())
    logger.handlers, logger.propagate = [handler], False
    logger.setLevel(logging.INFO)
    folder = Path(str(context.run_config["folder"]))
    folder.mkdir(parents=True, exist_ok=True)
    (folder / ERROR).unlink(missing_ok=True)
    try:
        proposal = Proposal.of(*_study(str(context.run_config["study"])))
        result = Coordinator(proposal, FlowerTransport(grid)).run(folder)
    except (InputError, QuorumError) as error:
        (folder / ERROR).write_text(f"{error}\n", encoding="utf-8")
        log.error("stopped", extra={"facts": {"why": str(error)}})
        raise RuntimeError(str(error)) from None  # so that Flower calls the run failed, at once
    (folder / PAGE).write_text(result.to_html(), encoding="utf-8")
    content = {**result.to_dict(), "summary": result.summary()}
    (folder / RESULT).write_text(json.dumps(content, indent=2, allow_nan=False) + "\n", encoding="utf-8")


def _study(text: str) -> tuple[dict[str, Any], str]:
    """A study as JSON, or the name of a TOML file at the server, and how to speak of it."""
    if text.lstrip().startswith("{"):
        return json.loads(text), "the study"
    return read_toml(text), text
