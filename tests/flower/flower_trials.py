"""Small federations on an in-process grid, and the same runs on this machine to compare them with."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from io import BytesIO
from typing import Any

import numpy as np
import torch
from flwr.app import ArrayRecord, Message, RecordDict

import coterie
from coterie.data.scenarios import find_scenario
from coterie.federation import Federation
from coterie.flower import InProcessGrid, client_app
from coterie.flower.server import run_on
from coterie.runs import Result

MODEL = "mlp:hidden=16"
TRAINING = {"model": MODEL, "seed": 5, "lr": 0.1, "epochs": 1}
QUICK = {"timeout": 0.25, "wait": 2.0, "poll": 0.02}
"""Waiting times for nodes in the same process."""


def digits(clients: int = 6, groups: int = 2, name: str = "digits-permuted") -> Federation:
    return find_scenario(name).build(clients=clients, groups=groups, samples=40, seed=3)


def grid_of(federation: Federation, ids: Iterable[str] | None = None, **options: Any) -> InProcessGrid:
    """One node for each client, which goes by its id."""
    configs = [{"client": client} for client in (federation.ids if ids is None else ids)]
    return InProcessGrid(client_app(MODEL, federation), node_configs=configs, **options)


def both(method: str, federation: Federation, rounds: int, **options: Any) -> tuple[Result, Result]:
    """The same run on this machine and over the grid."""
    given = TRAINING | {"method": method, "rounds": rounds} | options
    here = coterie.run(federation=federation, workers=1, **given)
    return here, run_on(grid_of(federation), given | QUICK)


def assert_same(here: Result, there: Result) -> None:
    assert there.clusters == here.clusters
    for ours, theirs in zip(here.models, there.models, strict=True):
        assert torch.allclose(ours, theirs, rtol=1e-4, atol=1e-6)
    assert [record.bytes for record in there.history] == [record.bytes for record in here.history]
    assert not [fault for record in there.history for fault in record.faults]


class SlowGrid(InProcessGrid):
    """A grid on which the replies of `slow` nodes do not arrive before they are let go."""

    slow: frozenset[int] = frozenset()

    def pull_messages(self, message_ids: Iterable[str]) -> list[Message]:
        sent = self._sent
        return super().pull_messages(
            [key for key in message_ids if key in sent and sent[key].metadata.dst_node_id not in self.slow]
        )


def tampering(node: int, change: Callable[[Message], Message | None], action: str = "coterie") -> Any:
    """A hook that changes the replies of one node to one kind of message."""

    def tamper(message: Message) -> Message | None:
        mine = message.metadata.src_node_id == node and message.metadata.message_type == f"query.{action}"
        return change(message) if mine else message

    return tamper


def array_bytes(record: ArrayRecord) -> int:
    """Bytes of the arrays' numbers, without NumPy's headers."""
    total = 0
    for array in record.values():
        file = BytesIO(array.data)
        assert np.lib.format.read_magic(file) == (1, 0)
        np.lib.format.read_array_header_1_0(file)
        total += len(array.data) - file.tell()
    return total


def record_bytes(content: RecordDict) -> int:
    """Bytes of the arrays, and eight for a number, and for a seed that something is drawn from."""
    numbers = [value for record in content.metric_records.values() for value in record.values()]
    seeds = [json.loads(str(record["drawn"])) for record in content.config_records.values() if "drawn" in record]
    total = sum(map(array_bytes, content.array_records.values()))
    total += 8 * sum(len(value) if isinstance(value, list) else 1 for value in numbers)
    return total + 8 * sum(map(len, seeds))


class CountingGrid(InProcessGrid):
    """A grid that adds up what really crosses it, but for the question who a node is."""

    down = up = 0

    def push_messages(self, messages: Iterable[Message]) -> list[str]:
        messages = list(messages)
        self.down += sum(record_bytes(message.content) for message in messages if self._counts(message))
        return super().push_messages(messages)

    def _answer(self, message: Message) -> Message | None:
        reply = super()._answer(message)
        if reply is not None and self._counts(message):
            self.up += record_bytes(reply.content)
        return reply

    def _counts(self, message: Message) -> bool:
        return message.metadata.message_type != "query.describe"
