"""Sending messages over a Flower grid and getting the answers, or the reason why there is none."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from flwr.app import Error, Message, RecordDict
from flwr.common.constant import ErrorCode
from flwr.serverapp import Grid
from google.protobuf.message import DecodeError  # type: ignore[import-untyped]

from coterie.tasks.wire import in_words

UNREADABLE = (AssertionError, AttributeError, DecodeError, KeyError, IndexError, TypeError, ValueError)
"""What Flower raises when the bytes of a message make no message."""


class Answer(NamedTuple):
    """What came back: records, or a reason; `silent` when the node itself did not answer."""

    content: RecordDict | None = None
    reason: str = ""
    silent: bool = False


FIRST_LOOK = 0.02
"""Seconds until the first look for answers."""


class Exchange:
    """Sends messages and collects the answers, at most `timeout` seconds long.

    It looks soon after sending and after every answer, then ever more seldom, down to every `poll` seconds. Each look
    is a request: it asks for the answer that is due next and, every other time, for one of the others.
    """

    def __init__(self, grid: Grid, timeout: float, poll: float = 0.5) -> None:
        self.grid, self.timeout, self.poll = grid, timeout, poll

    def send(self, messages: Sequence[Message]) -> Iterator[Answer]:
        """Send all the messages at once and give the answers in their order."""
        keys = self.push(messages)
        deadline = time.monotonic() + self.timeout
        waiting = {key: message for key, message in zip(keys, messages, strict=True) if key}
        answers: dict[str, Answer] = {}
        pause = FIRST_LOOK
        turn = 0
        for key in keys:
            if not key:
                yield Answer(reason="the message could not be sent")
                continue
            while key in waiting:
                turn += 1
                others = [other for other in waiting if other != key]
                looked = key if turn % 2 or not others else others[turn // 2 % len(others)]
                found = self.pull({looked: waiting[looked]})
                answers |= found
                pause = FIRST_LOOK if found else min(2 * pause, self.poll)
                for done in found:
                    del waiting[done]
                if key in waiting and not found:
                    left = deadline - time.monotonic()
                    if left > 0:
                        time.sleep(min(pause, self.poll, left))
                    elif looked == key:
                        break
            yield answers.pop(key, Answer(reason=f"it did not answer within {self.timeout:g} s", silent=True))

    def push(self, messages: Sequence[Message]) -> list[str | None]:
        """Send the messages; their keys, with None for one that could not be sent."""
        if not messages:
            return []
        keys: list[str | None] = list(self.grid.push_messages(messages))
        return keys if len(keys) == len(messages) else [None] * len(messages)

    def pull(self, waiting: Iterable[str] | dict[str, Message]) -> dict[str, Answer]:
        """The answers that have come in to these messages.

        Each is fetched by itself: an answer that Flower cannot read must not take others with it.
        """
        answers = {}
        for key in list(waiting):
            sent = waiting.get(key) if isinstance(waiting, dict) else None
            try:
                replies = list(self.grid.pull_messages([key]))
            except UNREADABLE as problem:
                answers[key] = Answer(reason=in_words(f"its answer cannot be read ({type(problem).__name__})"))
                continue
            for reply in replies[:1]:
                answers[key] = self._opened(reply, key, sent)
        return answers

    def _opened(self, reply: Message, key: str, sent: Message | None) -> Answer:
        if reply.has_error():
            return self._failed(reply.error)
        if reply.metadata.reply_to_message_id != key:
            return Answer(reason="it answered another message")
        if sent is not None and reply.metadata.src_node_id != sent.metadata.dst_node_id:
            return Answer(reason="another node answered for it")
        if not reply.has_content():
            return Answer(reason="its answer is empty")
        return Answer(reply.content)

    def _failed(self, error: Error) -> Answer:
        if error.code == ErrorCode.NODE_UNAVAILABLE:
            return Answer(reason="its node is gone", silent=True)
        if error.code in (ErrorCode.MESSAGE_UNAVAILABLE, ErrorCode.REPLY_MESSAGE_UNAVAILABLE):
            return Answer(reason=f"it did not answer within {self.timeout:g} s", silent=True)
        return Answer(reason=in_words(f"it failed: {error.reason or f'error {error.code}'}"))
