"""Small federations on an in-process grid, and the same runs on this machine to compare them with."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from flwr.app import Message

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
    assert there.summary["bytes"] == here.summary["bytes"]
    assert not [fault for record in there.history for fault in record["faults"]]


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
