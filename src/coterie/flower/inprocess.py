"""A Flower grid without a network: it calls a ClientApp in this process, for trying an app out and for tests.

Messages are written out and read again as on the wire, so that no node can reach into another's or the server's
records. Nodes work one after the other when messages are pushed.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any
from uuid import uuid4

from flwr.app import Context, Error, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.common.constant import SUPERLINK_NODE_ID, ErrorCode
from flwr.common.serde import message_from_proto, message_to_proto
from flwr.serverapp import Grid
from flwr.supercore.run import Run
from flwr.supercore.task_identity import TaskIdentity

from coterie.errors import ConfigError, CoterieError

FIRST_NODE = 1001
"""The first node's id; the others count up from it."""
CLIENT_ERRORS = (
    ArithmeticError,
    AttributeError,
    CoterieError,
    LookupError,
    OSError,
    RuntimeError,
    TypeError,
    ValueError,
)
"""What a ClientApp may raise and the server is told of; anything stranger ends the trial with its traceback."""

Tamper = Callable[[Message], Message | None]


class InProcessGrid(Grid):
    """A grid of `nodes` nodes that all run one ClientApp here, node i with `node_configs[i]`.

    Without `node_configs` a node gets what Flower's simulation gives it: `partition-id` and `num-partitions`.
    `tamper` sees every reply before the server does and returns the one to deliver, or None for one that gets lost;
    a lost one is answered by an error from the SuperLink when the message's time to live is over. Nodes can `join` and
    `leave` at any time.
    """

    def __init__(
        self,
        client_app: ClientApp,
        nodes: int | None = None,
        node_configs: Sequence[Mapping[str, Any]] | None = None,
        *,
        run_config: Mapping[str, Any] | None = None,
        tamper: Tamper | None = None,
    ) -> None:
        if node_configs is None:
            if nodes is None:
                raise ConfigError("InProcessGrid needs a number of nodes or their node_configs: give nodes=4")
            node_configs = [{"partition-id": i, "num-partitions": nodes} for i in range(nodes)]
        elif nodes is not None and nodes != len(node_configs):
            raise ConfigError(f"nodes={nodes}, but there are {len(node_configs)} node_configs: give one per node")
        self.client_app = client_app
        self.run_config = dict(run_config or {})
        self.tamper = tamper
        self.contexts: dict[int, Context] = {}
        self._joined = 0
        self._replies: dict[str, Message | None] = {}
        self._sent: dict[str, Message] = {}
        self._run = Run.create_empty(1)
        _identify(self._run.run_id)
        for config in node_configs:
            self.join(config)

    def join(self, node_config: Mapping[str, Any]) -> int:
        """Add a node and return its id."""
        node = FIRST_NODE + self._joined
        self._joined += 1
        self.contexts[node] = Context(
            self._run.run_id, node, dict(node_config), RecordDict(), run_config=dict(self.run_config)
        )
        return node

    def leave(self, node: int) -> None:
        """Take a node away, with all that it kept."""
        if node not in self.contexts:
            raise ConfigError(f"no node {node} on this grid: its nodes are {', '.join(map(str, self.contexts))}")
        del self.contexts[node]

    def set_run(self, run: Run) -> None:
        """Take the run's details; this grid has use for its id alone."""
        self._run = run

    @property
    def run(self) -> Run:
        """The run's details."""
        return self._run

    def create_message(
        self, content: RecordDict, message_type: str, dst_node_id: int, group_id: str, ttl: float | None = None
    ) -> Message:
        """A new message (Flower's older way to make one)."""
        return Message(content, dst_node_id, message_type, ttl=ttl, group_id=group_id)

    def get_node_ids(self) -> list[int]:
        """The ids of the nodes that are here now."""
        return list(self.contexts)

    def push_messages(self, messages: Iterable[Message]) -> list[str]:
        """Let every node answer its message at once; the answers wait to be pulled."""
        ids = []
        for message in messages:
            message.metadata.__dict__["_message_id"] = key = str(uuid4())
            self._sent[key] = message
            self._replies[key] = self._answer(message)
            ids.append(key)
        return ids

    def pull_messages(self, message_ids: Iterable[str]) -> list[Message]:
        """The replies that have come in to these messages; each is given once."""
        found, wanted = [], set(message_ids)
        for key in [key for key in self._sent if key in wanted]:
            reply = self._replies[key]
            if reply is None and _expired(self._sent[key]):
                reply = _refusal(self._sent[key], ErrorCode.MESSAGE_UNAVAILABLE, "no reply within the time to live")
            if reply is not None:
                found.append(reply)
                del self._sent[key], self._replies[key]
        return found

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> list[Message]:
        """Push the messages and wait for the replies, at most `timeout` seconds for those that got lost."""
        waiting = set(self.push_messages(messages))
        deadline = None if timeout is None else time.monotonic() + timeout
        replies: list[Message] = []
        while waiting:
            new = self.pull_messages(waiting)
            replies += new
            waiting -= {reply.metadata.reply_to_message_id for reply in new}
            if not waiting or (deadline is not None and time.monotonic() >= deadline):
                break
            time.sleep(0.01)
        return replies

    def _answer(self, message: Message) -> Message | None:
        context = self.contexts.get(message.metadata.dst_node_id)
        if context is None:
            return _refusal(message, ErrorCode.MESSAGE_UNAVAILABLE, "unknown node")
        received = _over_the_wire(message)
        try:
            reply = self.client_app(received, context)
        except CLIENT_ERRORS as problem:
            reason = f"{type(problem).__name__}: {problem}"
            reply = Message(Error(ErrorCode.CLIENT_APP_RAISED_EXCEPTION, reason), reply_to=received)
        reply.metadata.__dict__["_message_id"] = str(uuid4())
        reply = _over_the_wire(reply)
        return reply if self.tamper is None else self.tamper(reply)


def _over_the_wire(message: Message) -> Message:
    """The message as its receiver reads it: a copy that shares nothing with the sender's."""
    return message_from_proto(message_to_proto(message))


def _refusal(message: Message, code: int, reason: str) -> Message:
    """An error reply from the SuperLink, which signs with its own id rather than with the node's."""
    reply = Message(Error(code, reason), reply_to=message)
    reply.metadata.__dict__["_src_node_id"] = SUPERLINK_NODE_ID
    reply.metadata.__dict__["_message_id"] = str(uuid4())
    return reply


def _expired(message: Message) -> bool:
    return time.time() > message.metadata.created_at + message.metadata.ttl


def _identify(run_id: int) -> None:
    """Let this process make messages, as Flower does for a process it has started itself; one of those stays as is.

    flwr has no public way to say so.
    """
    if TaskIdentity._run_id is None:
        TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = run_id, SUPERLINK_NODE_ID, 1
