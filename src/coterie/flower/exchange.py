"""Sending messages over a Flower grid and getting the answers, or the reason why there is none."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from flwr.app import Error, Message, RecordDict
from flwr.serverapp import Grid
from google.protobuf.message import DecodeError  # type: ignore[import-untyped]

from coterie.tasks.wire import BadReply, in_words

UNREADABLE = (AssertionError, AttributeError, DecodeError, KeyError, IndexError, TypeError, ValueError)
"""What Flower raises when the bytes of a message make no message."""


CLIENT_APP_RAISED = 2
MESSAGE_UNAVAILABLE = 3
REPLY_UNAVAILABLE = 4
NODE_UNAVAILABLE = 5
"""The codes in Flower's error replies; they are part of its protocol, and it exports no names for them."""


class Answer(NamedTuple):
    """What came back: records, or a reason; `silent` when the node itself did not answer."""

    content: RecordDict | None = None
    reason: str = ""
    silent: bool = False

    def records(self) -> RecordDict:
        """The records; BadReply with the reason where there are none."""
        if self.content is None:
            raise BadReply(self.reason)
        return self.content


FIRST_LOOK = 0.02
"""Seconds until the first look for answers."""


class Exchange:
    """Sends messages and collects the answers, at most `timeout` seconds long.

    It looks soon after sending and after every answer, then ever more seldom, down to every `poll` seconds. Each look
    is a request: it asks for the answer that is due next and, every other time, for one of the others.
    """

    def __init__(self, grid: Grid, timeout: float, poll: float = 0.5) -> None:
        self.grid, self.timeout, self.poll = grid, timeout, poll
        self._made = 0

    def message(self, content: RecordDict, node: int, kind: str, group: object = "") -> Message:
        """A message to a node, which it must answer within `timeout` seconds."""
        # Flower names a message by its content: a number of its own keeps two equal ones apart.
        self._made += 1
        return Message(content, node, kind, ttl=self.timeout, group_id=f"{group}.{self._made}")

    def send(self, messages: Sequence[Message]) -> Iterator[Answer]:
        """Send all the messages at once and give the answers in their order."""
        keys = self.push(messages)
        sent = zip(keys, messages, strict=True)
        inbox = Inbox(self, {key: message.metadata.dst_node_id for key, message in sent if key})
        for key in keys:
            yield inbox.answer(key) if key else Answer(reason="the message could not be sent")

    def ask(self, question: RecordDict, nodes: Sequence[int], kind: str) -> dict[str, int]:
        """Send nodes a question, and go on; the nodes by the keys of the messages that could be sent."""
        keys = self.push([self.message(question, node, kind) for node in nodes])
        return {key: node for key, node in zip(keys, nodes, strict=True) if key}

    def push(self, messages: Sequence[Message]) -> list[str | None]:
        """Send the messages; their keys, with None for one that could not be sent."""
        if not messages:
            return []
        keys: list[str | None] = list(self.grid.push_messages(messages))
        return keys if len(keys) == len(messages) else [None] * len(messages)

    def pull(self, waiting: Mapping[str, int]) -> dict[str, Answer]:
        """The answers that have come in to these messages, by the nodes that they were sent to.

        Each is fetched by itself: an answer that Flower cannot read must not take others with it.
        """
        answers = {}
        for key, node in waiting.items():
            try:
                replies = list(self.grid.pull_messages([key]))
            except UNREADABLE as problem:
                answers[key] = Answer(reason=in_words(f"its answer cannot be read ({type(problem).__name__})"))
                continue
            for reply in replies[:1]:
                answers[key] = self._opened(reply, key, node)
        return answers

    def _opened(self, reply: Message, key: str, node: int) -> Answer:
        if reply.has_error():
            return self._failed(reply.error)
        if reply.metadata.reply_to_message_id != key:
            return Answer(reason="it answered another message")
        if reply.metadata.src_node_id != node:
            return Answer(reason="another node answered for it")
        if not reply.has_content():
            return Answer(reason="its answer is empty")
        return Answer(reply.content)

    def _failed(self, error: Error) -> Answer:
        if error.code == NODE_UNAVAILABLE:
            return Answer(reason="its node is gone", silent=True)
        if error.code in (MESSAGE_UNAVAILABLE, REPLY_UNAVAILABLE):
            return Answer(reason=f"it did not answer within {self.timeout:g} s", silent=True)
        return Answer(reason=in_words(f"it failed: {error.reason or f'error {error.code}'}"))


class Inbox:
    """The answers to messages that were sent at once: those that came, and those that are waited for."""

    def __init__(self, exchange: Exchange, waiting: dict[str, int]) -> None:
        self.exchange, self.waiting = exchange, waiting
        self.deadline = time.monotonic() + exchange.timeout
        self.answers: dict[str, Answer] = {}
        self._pause = FIRST_LOOK
        self._turn = 0

    def answer(self, key: str) -> Answer:
        """Wait for one answer, and look for the others meanwhile."""
        while key in self.waiting:
            looked = self._next(key)
            if self._look(looked):
                continue
            left = self.deadline - time.monotonic()
            if left > 0:
                time.sleep(min(self._pause, self.exchange.poll, left))
            elif looked == key:
                break
        late = Answer(reason=f"it did not answer within {self.exchange.timeout:g} s", silent=True)
        return self.answers.pop(key, late)

    def _next(self, due: str) -> str:
        """The message to look for now: the one that is due, every other time one of the others."""
        self._turn += 1
        others = [key for key in self.waiting if key != due]
        return due if self._turn % 2 or not others else others[self._turn // 2 % len(others)]

    def _look(self, key: str) -> bool:
        """Whether the answer to a message has come; pauses are short after one has, else they double."""
        found = self.exchange.pull({key: self.waiting[key]})
        self._pause = FIRST_LOOK if found else min(2 * self._pause, self.exchange.poll)
        self.answers |= found
        for done in found:
            del self.waiting[done]
        return bool(found)
