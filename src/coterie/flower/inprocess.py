"""A Flower grid without a network: it calls a ClientApp in this process, for trying an app out and for tests.

Messages are delivered as copies, so that no node can reach into another's or the server's records. Nodes work one after
the other when messages are pushed.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any
from uuid import uuid4

from flwr.app import Context, Error, Message, Metadata, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid

from coterie.errors import ConfigError, CoterieError
from coterie.flower.exchange import CLIENT_APP_RAISED, MESSAGE_UNAVAILABLE

RUN = 1
"""The run's id."""
SUPERLINK = 1
"""The id of the server's end of the grid."""
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
"""What a ClientApp may raise and the server gets as an error; any other ends the trial with its traceback."""

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
        self._run: Any = None
        _allow_messages()
        for config in node_configs:
            self.join(config)

    def join(self, node_config: Mapping[str, Any]) -> int:
        """Add a node and return its id."""
        node = FIRST_NODE + self._joined
        self._joined += 1
        self.contexts[node] = Context(RUN, node, dict(node_config), RecordDict(), run_config=dict(self.run_config))
        return node

    def leave(self, node: int) -> None:
        """Take a node away, with all that it kept."""
        if node not in self.contexts:
            raise ConfigError(f"no node {node} on this grid: its nodes are {', '.join(map(str, self.contexts))}")
        del self.contexts[node]

    def set_run(self, run: Any) -> None:
        """Keep the run's details, which this grid has no use for."""
        self._run = run

    @property
    def run(self) -> Any:
        """The run's details, if it was given any."""
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
        """Let every node answer its message at once; the answers are kept for `pull_messages`."""
        keys = []
        for message in messages:
            key = str(uuid4())
            received = _delivered(message, key)
            self._sent[key] = received
            self._replies[key] = self._answer(received)
            keys.append(key)
        return keys

    def pull_messages(self, message_ids: Iterable[str]) -> list[Message]:
        """The replies that have come in to these messages; each is given once."""
        wanted = set(message_ids)
        found = []
        for key in [key for key in self._sent if key in wanted]:
            reply = self._replies[key]
            if reply is None and _expired(self._sent[key]):
                reply = _refusal(self._sent[key], "no reply within the time to live")
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

    def _answer(self, received: Message) -> Message | None:
        context = self.contexts.get(received.metadata.dst_node_id)
        if context is None:
            return _refusal(received, "unknown node")
        try:
            reply = self.client_app(received, context)
        except CLIENT_ERRORS as problem:
            reason = f"{type(problem).__name__}: {problem}"
            reply = Message(Error(CLIENT_APP_RAISED, reason), reply_to=received)
        reply = _delivered(reply, str(uuid4()))
        return reply if self.tamper is None else self.tamper(reply)


def _delivered(message: Message, message_id: str, source: int | None = None) -> Message:
    """The message as its receiver gets it: a copy that shares nothing with the sender's, with an id."""
    sent = message.metadata
    metadata = Metadata(
        run_id=RUN,
        message_id=message_id,
        src_node_id=sent.src_node_id if source is None else source,
        dst_node_id=sent.dst_node_id,
        reply_to_message_id=sent.reply_to_message_id,
        group_id=sent.group_id,
        created_at=sent.created_at,
        ttl=sent.ttl,
        message_type=sent.message_type,
    )
    parts: dict[str, Any] = {"metadata": metadata}
    if message.has_error():
        parts["error"] = message.error
    else:
        parts["content"] = copy.deepcopy(message.content)
    return Message(**parts)


def _refusal(received: Message, reason: str) -> Message:
    """An error reply from the SuperLink, which signs with its own id rather than with the node's."""
    reply = Message(Error(MESSAGE_UNAVAILABLE, reason), reply_to=received)
    return _delivered(reply, str(uuid4()), source=SUPERLINK)


def _expired(message: Message) -> bool:
    return time.time() > message.metadata.created_at + message.metadata.ttl


def _allow_messages() -> None:
    """Let this process make messages, which Flower allows in its own tasks only, and has no public way to ask for.

    A version without this class makes them anywhere.
    """
    try:
        from flwr.supercore.task_identity import TaskIdentity
    except ImportError:
        return
    if TaskIdentity._run_id is None:
        TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = RUN, SUPERLINK, 1
