"""The engine contract: where the clients' work runs. A method never asks which engine it is on."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple, Protocol

from torch import Tensor

from coterie.parameters import Layout
from coterie.tasks.base import Reduction, ReplyBlock, Request


class Fault(NamedTuple):
    """A client that was left out of an exchange, and why."""

    client: str
    reason: str


@dataclass
class Traffic:
    """What clients were asked for since it was last drained; bytes as `tasks.wire` counts them."""

    down: int = 0
    up: int = 0
    passes: float = 0.0
    """Passes of one client over its training data, in units of training: a look without a gradient is a third of one.
    A network, whose clients' work is not seen, counts none."""
    exchanges: int = 0
    """How often clients were asked and answered, one after another."""

    def drain(self) -> tuple[int, int]:
        """The bytes sent down and up; counting starts again at zero."""
        counted = self.drain_all()
        return counted.down, counted.up

    def drain_all(self) -> Traffic:
        """All that was spent; counting starts again at zero."""
        counted = replace(self)
        self.down = self.up = self.exchanges = 0
        self.passes = 0.0
        return counted


@dataclass(frozen=True)
class Capabilities:
    """What the clients behind an engine can be asked, and what is seen of their answers."""

    remote: bool = False
    """Whether what clients send leaves their machines: on a network, not in a simulation."""
    secure: bool = False
    """Whether vectors are seen in sums only."""
    least_in_sum: int = 1
    """The fewest vectors that a sum may be of; 1 where sums are not secure."""
    halves: bool = True
    """Whether clients can be asked about halves of their data: not where they run an app that is not ours."""


class Engine(Protocol):
    """Runs requests. `clients` are the ids it can reach, `samples` their numbers of training samples.

    What has a value here, or does something, is what an engine that derives from this class has unless it says more.
    """

    clients: tuple[str, ...]
    samples: dict[str, int]
    traffic: Traffic
    layout: Layout
    """The vectors as the server sees them."""
    plain_layout: Layout
    """The vectors as the clients see them: the same, unless privacy hides the layers."""
    capabilities: Capabilities = Capabilities()

    def run(self, requests: Sequence[Request], reduce: Reduction | None = None) -> Iterator[ReplyBlock]:
        """Do the requests and give the replies in the same order, in blocks as they are ready.

        With `reduce` a block holds weighted sums in place of its replies' vectors, formed where the vectors are made if
        the engine can do that. A client that fails is missing, and `faults` says why.
        """
        ...

    def initial_model(self, seed: int) -> Tensor:
        """Freshly initialised parameters `(d,)`, a function of the seed alone."""
        ...

    def reveal(self, model: Tensor) -> Tensor:
        """The parameters `(d,)` as the clients use them; on a network, only what the server may know."""
        return model

    def faults(self) -> list[Fault]:
        """The clients left out since the last call."""
        ...

    def client_states(self) -> dict[str, dict[str, Tensor]]:
        """What the clients keep to themselves, for a checkpoint (empty where the clients keep it elsewhere)."""
        return {}

    def restore_client_states(self, states: dict[str, dict[str, Tensor]]) -> None:
        """Give the clients back what a checkpoint kept for them."""
        return

    def close(self) -> None:
        """Release processes and memory."""
        return
