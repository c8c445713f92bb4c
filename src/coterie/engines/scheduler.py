"""Blocks of requests that are done elsewhere and given back in order: what worker processes and Ray actors share."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from torch import Tensor

from coterie.errors import RunError
from coterie.tasks.base import ClientContext, Reduction, ReplyBlock, Request

ATTEMPTS = 3
"""How many workers may die on a block before the run is given up."""

Packed = TypeVar("Packed")


@dataclass
class BlockProgress(Generic[Packed]):
    """One run's progress: blocks still to hand out, packed replies that came back, and deaths by block."""

    blocks: Sequence[Sequence[Request]]
    reductions: Sequence[Reduction | None]
    """How the vectors of each block are to be added up; None: they are not."""
    waiting: list[int] = field(init=False)
    done: dict[int, Packed] = field(default_factory=dict)
    deaths: Counter[int] = field(default_factory=Counter)
    failed: dict[int, str] = field(default_factory=dict)
    """Blocks that ended with a Python error, to be done here, where the error can be seen, and what is known of it."""
    turn: int = 0

    def __post_init__(self) -> None:
        self.waiting = list(range(len(self.blocks)))

    def free(self, slots: int) -> list[int]:
        """The blocks that may be handed out, with at most `slots` between them and the next to be given back."""
        return [block for block in self.waiting if block < self.turn + slots]

    def take_back(self, lost: Sequence[int]) -> None:
        """Put a dead worker's blocks back in the queue."""
        self.waiting = sorted([*self.waiting, *lost])

    def blame(self, block: int, who: str) -> None:
        """Count a death on the block; too many of them end the run."""
        self.deaths[block] += 1
        if self.deaths[block] == ATTEMPTS:
            raise RunError(
                f"{ATTEMPTS} {who} on the block of client {self.blocks[block][0].client!r}: "
                "if memory ran out, use fewer workers"
            )


Now = TypeVar("Now", bound=BlockProgress[Any])


class BlockScheduler(ABC, Generic[Now]):
    """Workers that do blocks of requests; the clients' own states are kept here, in `contexts`."""

    contexts: Mapping[str, ClientContext]
    busy: bool = False
    """Whether a run is going on: there is one at a time."""

    def run(self, blocks: Sequence[Sequence[Request]], reductions: Sequence[Reduction | None]) -> Iterator[ReplyBlock]:
        """Do the blocks and give their replies, or sums, in order; one run at a time."""
        self.busy = True
        try:
            yield from self._in_order(self.begin(blocks, reductions))
        finally:
            self.give_up()
            self.busy = False

    def _in_order(self, now: Now) -> Iterator[ReplyBlock]:
        while now.turn < len(now.blocks):
            self.hand_out(now)
            if now.turn in now.failed:
                done = self.do_here(now)
            elif now.turn in now.done:
                done, states = self.unpack(now.done.pop(now.turn), now.turn)
                self._bring_up_to_date(states)
            else:
                self.collect(now)
                continue
            now.turn += 1
            self.hand_out(now)  # so that the workers have work while the caller looks at the replies
            yield done

    def message(self, now: Now, block: int) -> tuple[list[Request], dict[str, dict[str, Tensor]], Reduction | None]:
        """What a block takes to do: its requests, the states that its clients have, and its reduction."""
        requests = list(now.blocks[block])
        states = {request.client: dict(self.contexts[request.client].state) for request in requests}
        return requests, {client: state for client, state in states.items() if state}, now.reductions[block]

    def _bring_up_to_date(self, states: Mapping[str, Mapping[str, Tensor]]) -> None:
        for client, state in states.items():
            own = self.contexts[client].state
            own.clear()
            own.update({name: value.clone() for name, value in state.items()})

    @abstractmethod
    def begin(self, blocks: Sequence[Sequence[Request]], reductions: Sequence[Reduction | None]) -> Now:
        """Make the workers ready for a run."""

    @abstractmethod
    def give_up(self) -> None:
        """Take from the workers the blocks that they still have at the end of a run: it may have been given up."""

    @abstractmethod
    def close(self) -> None:
        """End the workers and give their memory back."""

    @abstractmethod
    def hand_out(self, now: Now) -> None:
        """Give idle workers a block, then every worker a second one."""

    @abstractmethod
    def collect(self, now: Now) -> None:
        """Wait for a reply or a death, and take in all there are."""

    @abstractmethod
    def do_here(self, now: Now) -> ReplyBlock:
        """Do the block whose turn it is in this process."""

    @abstractmethod
    def unpack(self, packed: Any, block: int) -> tuple[ReplyBlock, Mapping[str, Mapping[str, Tensor]]]:
        """The replies and sums of a block, in memory of their own, and its clients' new states."""
