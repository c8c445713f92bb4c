"""Ray actors that do blocks of orders, each with shards of the federation at hand.

Any actor can do any block: the clients' own state travels with the order and comes back with the reply, and a shard
that an actor lacks is fetched. A block is computed the same way wherever that is, so neither the number of actors nor
the death of one changes a result.
"""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from coterie.engines.crates import Bytes, Crate, boxed, unboxed
from coterie.engines.hands import Errand, Hand
from coterie.engines.pool import ATTEMPTS
from coterie.engines.shards import boxed_shard, cut
from coterie.engines.workers import done
from coterie.errors import RunError
from coterie.tasks import Due, Order, Share, Worksite
from coterie.workbench import Workbench

START_SECONDS = 300.0
"""How long to wait for a first actor when the cluster has no free processor."""


@dataclass
class _Actor:
    handle: Any
    ping: Any
    """The reference to its answer that it is there; None once the answer has come, so that it can be given blocks."""
    held: frozenset[int]
    """The shards it keeps, or is to keep: its share of all."""
    blocks: dict[Any, int] = field(default_factory=dict)
    """The blocks it has, by the references to their replies, in the order they were sent."""
    started: bool = False


@dataclass
class _Round:
    """One run's progress: blocks still to hand out, packed replies that came back, and deaths by block."""

    blocks: Sequence[Sequence[Order]]
    bills: Sequence[Sequence[Due]] | None
    needs: list[frozenset[int]]
    """The shards each block's clients are in."""
    board: Crate
    board_ref: Any
    waiting: list[int]
    done: dict[int, tuple[bytes, Bytes]] = field(default_factory=dict)
    deaths: Counter[int] = field(default_factory=Counter)
    failed: dict[int, str] = field(default_factory=dict)
    """Blocks that ended with a Python error, to be done here, where the error can be seen."""
    turn: int = 0

    def bill(self, block: int) -> list[Due] | None:
        return None if self.bills is None else list(self.bills[block])


class ActorPool:
    """`count` actors of a running Ray over the same clients; at most `slots` blocks are on their way at once.

    `make_bench` must travel, so it may hold no data; `bench` does here what no actor could do. Shards hold
    `shard_bytes` each, and an actor keeps `kept_bytes` of them.
    """

    def __init__(
        self,
        ray: Any,
        count: int,
        sites: Mapping[str, Worksite],
        make_bench: Callable[[], Workbench],
        bench: Workbench,
        *,
        slots: int,
        shard_bytes: int,
        kept_bytes: int,
    ) -> None:
        self.ray = ray
        self.sites = sites
        self.bench = bench
        self.slots = slots
        self.busy = False
        self.runs = 0
        shards = cut((site.client for site in sites.values()), shard_bytes)
        self._shard_of = {client.id: number for number, shard in enumerate(shards) for client in shard}
        self._shards = [ray.put(boxed_shard(shard)) for shard in shards]
        self._deaths_at_start = 0
        self._kind = ray.remote(num_cpus=1, max_restarts=0)(Hand)
        self._make_bench = ray.put(make_bench)
        self._kept_bytes = kept_bytes
        self._actors = [self._start(position, count) for position in range(count)]

    def _start(self, position: int, count: int) -> _Actor:
        handle = self._kind.remote(self._make_bench, self._kept_bytes)
        total = len(self._shards)
        share = frozenset(range(position * total // count, (position + 1) * total // count))
        return _Actor(handle, handle.pid.remote(), share)

    def run(self, blocks: Sequence[Sequence[Order]], bills: Sequence[Sequence[Due]] | None = None) -> Iterator[Share]:
        """Do the blocks and give their replies, or sums, in order; one run at a time."""
        board = _board(blocks)
        needs = [frozenset(self._shard_of[order.client] for order in block) for block in blocks]
        now = _Round(blocks, bills, needs, board, self.ray.put(board.seal()), list(range(len(blocks))))
        self.busy = True
        self.runs += 1
        self._deaths_at_start = 0
        self._ping()
        try:
            while now.turn < len(blocks):
                self._hand_out(now)
                if now.turn in now.failed:
                    share = self._do_here(now)
                elif now.turn in now.done:
                    share = self._open(now.done.pop(now.turn))
                else:
                    self._collect(now)
                    continue
                now.turn += 1
                self._hand_out(now)  # so that the actors have work while the caller looks at the replies
                yield share
        finally:
            # The blocks of a run that was given up come to their end, and nobody asks for their replies.
            for actor in self._actors:
                actor.blocks.clear()
            self.busy = False

    def _ping(self) -> None:
        """Ask all actors whether they are there, so that no block is given to one that died unseen."""
        for actor in self._actors:
            if actor.ping is None:
                actor.ping = actor.handle.pid.remote()

    def _hand_out(self, now: _Round) -> None:
        """Give idle actors a block, then every actor a second one: that for which it lacks the least."""
        for depth in (0, 1):
            for actor in self._actors:
                if actor.ping is not None or len(actor.blocks) != depth:
                    continue
                free = [block for block in now.waiting if block < now.turn + self.slots]
                if not free:
                    return
                block = min(free, key=lambda b: (len(now.needs[b] - actor.held), b))
                now.waiting.remove(block)
                actor.blocks[actor.handle.do.remote(self._errand(now, block), now.board_ref)] = block

    def _errand(self, now: _Round, block: int) -> Errand:
        orders = now.blocks[block]
        states = {order.client: dict(self.sites[order.client].state) for order in orders}
        states = {client: state for client, state in states.items() if state}
        data, memory = boxed((list(orders), states, now.bill(block)), now.board)
        return Errand(self.runs, data, memory, {number: self._shards[number] for number in now.needs[block]})

    def _collect(self, now: _Round) -> None:
        """Wait for a reply, a start or a death, and take in all there are."""
        at_work = [ref for actor in self._actors for ref in actor.blocks]
        awaited = at_work + [actor.ping for actor in self._actors if actor.ping is not None]
        alone = not at_work and not any(actor.started for actor in self._actors)
        ready, _ = self.ray.wait(awaited, timeout=START_SECONDS if alone else None)
        if not ready:
            raise RunError(
                f"no actor has started on Ray in {START_SECONDS:.0f} seconds: free a processor of the cluster"
            )
        ready = set(self.ray.wait(awaited, num_returns=len(awaited), timeout=0)[0])
        for position, actor in enumerate(self._actors):
            try:
                for ref, block in list(actor.blocks.items()):
                    if ref in ready:
                        self._take(now, actor, ref, block)
                if actor.ping in ready:
                    self.ray.get(actor.ping)
                    if not actor.started:
                        self._deaths_at_start = 0
                    actor.ping, actor.started = None, True
            except _deadly(self.ray) as problem:
                self._replace(now, position, problem)

    def _take(self, now: _Round, actor: _Actor, ref: Any, block: int) -> None:
        try:
            data, memory, held = self.ray.get(ref)
        except self.ray.exceptions.RayTaskError as problem:
            now.failed[block] = _last_line(problem)
        else:
            now.done[block] = (data, memory)
            actor.held = frozenset(held)
        del actor.blocks[ref]

    def _replace(self, now: _Round, position: int, problem: Exception) -> None:
        """Put a new actor in a dead one's place and its blocks back; the first of them may be what it died of."""
        dead = self._actors[position]
        lost = list(dead.blocks.values())
        now.waiting = sorted(now.waiting + lost)
        _end(self.ray, dead)
        if not dead.started:
            self._deaths_at_start += 1
            if self._deaths_at_start == ATTEMPTS:
                raise RunError(f"{ATTEMPTS} Ray actors died at their start, the last of: {_last_line(problem)}")
        elif lost:
            now.deaths[lost[0]] += 1
            if now.deaths[lost[0]] == ATTEMPTS:
                raise RunError(
                    f"{ATTEMPTS} Ray actors died on the block of client {now.blocks[lost[0]][0].client!r}: "
                    "if memory ran out, use fewer workers"
                )
        self._actors[position] = self._start(position, len(self._actors))
        self._ping()  # a machine may be gone, and with it others that nobody has heard of yet

    def _do_here(self, now: _Round) -> Share:
        block = now.blocks[now.turn]
        share = done(block, now.bill(now.turn), self.sites, self.bench)
        warnings.warn(
            f"a Ray actor failed on the block of client {block[0].client!r} ({now.failed[now.turn]}): done here",
            stacklevel=2,
        )
        return share

    def _open(self, reply: tuple[bytes, Bytes]) -> Share:
        """The replies and sums of a block, in memory of their own; the clients' states are brought up to date."""
        share, states = unboxed(*reply)
        for client, state in states.items():
            own = self.sites[client].state
            own.clear()
            own.update({name: value.clone() for name, value in state.items()})
        result: Share = share
        return result

    def close(self) -> None:
        """End the actors and give the object store's memory back."""
        if self.ray.is_initialized():
            for actor in self._actors:
                _end(self.ray, actor)
        self._actors, self._shards = [], []


def _board(blocks: Sequence[Sequence[Order]]) -> Crate:
    """The tensors, such as models, that orders of more than one block name: they are sent to an actor once a run."""
    seen: dict[int, Tensor] = {}
    blocks_with: Counter[int] = Counter()
    for block in blocks:
        found = {id(value): value for order in block for value in _fields(order) if torch.is_tensor(value)}
        seen |= found
        blocks_with.update(found.keys())
    board = Crate()
    for key, tensor in seen.items():
        if blocks_with[key] > 1:
            board.place(tensor)
    return board


def _fields(order: Order) -> Iterable[Any]:
    return getattr(order.task, "__dict__", {}).values()


def _deadly(ray: Any) -> tuple[type[Exception], ...]:
    """What Ray raises when an actor, its machine, or a reply that lay there is gone."""
    gone = ray.exceptions
    return (
        gone.RayActorError,
        gone.ActorUnschedulableError,
        gone.WorkerCrashedError,
        gone.NodeDiedError,
        gone.ObjectLostError,
        gone.OutOfMemoryError,
    )


def _last_line(problem: Exception) -> str:
    """The line of Ray's long messages that says what happened."""
    lines = [line.strip() for line in str(problem).splitlines() if line.strip()]
    return lines[-1] if lines else type(problem).__name__


def _end(ray: Any, actor: _Actor) -> None:
    ray.kill(actor.handle)
    actor.blocks.clear()
