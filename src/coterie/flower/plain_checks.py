"""CFL's checks on nodes that run an app of their own: which of them answer, and what they say."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from flwr.app import ConfigRecord, RecordDict

from coterie.engines.base import Fault, Traffic
from coterie.flower.app_checks import ABLE, ACTION
from coterie.flower.exchange import Answer, Exchange
from coterie.flower.wire import Packer, layout_mark, open_reply
from coterie.parameters import Layout
from coterie.tasks.base import Number, Reply, ReplySchema, Request, with_norm
from coterie.tasks.wire import BadReply, reply_bytes, task_bytes

NOT_ADDED = f"with name '{ACTION}'"
"""How Flower's error ends where an app has no such function."""


class Checks:
    """Sends the tasks of checks to nodes, and reads what comes back as the tasks' schemas say."""

    def __init__(self, exchange: Exchange, layout: Layout, traffic: Traffic) -> None:
        self.exchange, self.layout, self.traffic = exchange, layout, traffic

    def unable(self, clients: Sequence[str]) -> dict[str, str] | None:
        """The clients that cannot answer checks, and why; None if no client has answered at all.

        One that is silent may answer later, and is not among them.
        """
        schema = ReplySchema(values={ABLE: Number()})
        empty = RecordDict({"task": ConfigRecord({"layout": layout_mark(self.layout)})})
        answers = self._sent(clients, [empty] * len(clients))
        reasons = {}
        for client, answer in zip(clients, answers, strict=True):
            try:
                self._read(answer, schema)
            except BadReply as problem:
                reason = str(problem)
                if not answer.silent:
                    reasons[client] = "its app has no answer_checks" if NOT_ADDED in reason else reason
        return None if all(answer.silent for answer in answers) else reasons

    def ask(
        self, requests: Sequence[Request], samples: Mapping[str, int], config: ConfigRecord
    ) -> tuple[list[Reply], list[Fault]]:
        """The sound replies in the order of the requests, and those left out; `config` is what the app trains by."""
        packer = Packer({"layout": layout_mark(self.layout)}, self.layout)
        contents = []
        for request in requests:
            content = packer.pack(request.task)
            content["config"] = config
            contents.append(content)
            self.traffic.down += task_bytes(request.task, self.layout)
        replies, faults = [], []
        answers = self._sent([request.client for request in requests], contents)
        for (client, task), answer in zip(requests, answers, strict=True):
            try:
                reply = self._read(answer, task.schema(self.layout))
            except BadReply as problem:
                faults.append(Fault(client, str(problem)))
                continue
            replies.append(with_norm(replace(reply, client=client, samples=samples[client]), self.layout))
        return replies, faults

    def _sent(self, clients: Sequence[str], contents: Sequence[RecordDict]) -> list[Answer]:
        pairs = zip(clients, contents, strict=True)
        messages = [self.exchange.message(content, int(client), f"query.{ACTION}") for client, content in pairs]
        return list(self.exchange.send(messages))

    def _read(self, answer: Answer, schema: ReplySchema) -> Reply:
        """The reply; BadReply with the reason where there is none."""
        reply = open_reply(answer.records(), schema)
        self.traffic.up += reply_bytes(reply, schema)
        return reply
