"""The engine contract: where the clients' work runs. A method never asks which engine it is on."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple, Protocol, runtime_checkable

from torch import Tensor

from coterie.messages import Due, Order, Reply, Share, added_up
from coterie.parameters import Layout


class Fault(NamedTuple):
    """A client that was left out of an exchange, and why."""

    client: str
    reason: str


class Engine(Protocol):
    """Runs orders. `clients` are the ids it can reach, `samples` their numbers of training samples."""

    clients: tuple[str, ...]
    samples: dict[str, int]
    layout: Layout
    """The vectors as the server sees them."""
    plain_layout: Layout
    """The vectors as the clients see them: the same, unless privacy hides the layers."""

    def run(self, orders: Sequence[Order]) -> Iterator[list[Reply]]:
        """Do the orders and give the replies in the same order, in blocks as they are ready.

        The vectors of a block are rows of one fresh tensor; a client that fails is missing, and `faults` says why.
        """
        ...

    def initial_model(self, seed: int) -> Tensor:
        """Freshly initialised parameters `(d,)`, a function of the seed alone."""
        ...

    def reveal(self, model: Tensor) -> Tensor:
        """The parameters `(d,)` as the clients use them; on a network, only what the server may know."""
        ...

    def faults(self) -> list[Fault]:
        """The clients left out since the last call."""
        ...

    def client_states(self) -> dict[str, dict[str, Tensor]]:
        """What the clients keep to themselves, for a checkpoint (empty where the clients keep it elsewhere)."""
        ...

    def restore_client_states(self, states: dict[str, dict[str, Tensor]]) -> None:
        """Give the clients back what a checkpoint kept for them."""
        ...

    def close(self) -> None:
        """Release processes and memory."""
        ...


@runtime_checkable
class SummingEngine(Protocol):
    """An engine that can add vectors up where they are made."""

    def total(self, orders: Sequence[Order], bill: Sequence[Due]) -> Iterator[Share]:
        """Do the orders and give, block by block, the replies without vectors and the vectors' weighted sums."""
        ...


def shares(engine: Engine, orders: Sequence[Order], bill: Sequence[Due]) -> Iterator[Share]:
    """The replies and the sums of their vectors, added up by the engine or, where it cannot, here."""
    if isinstance(engine, SummingEngine):
        yield from engine.total(orders, bill)
        return
    due = {order.client: what for order, what in zip(orders, bill, strict=True)}
    for replies in engine.run(orders):
        yield added_up(replies, [due[reply.client] for reply in replies])
