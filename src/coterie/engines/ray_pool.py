"""Ray actors that do blocks of requests, each with shards of the federation at hand.

Any actor can do any block: the clients' own state travels with the request and comes back with the reply, and a shard
that an actor lacks is fetched. A block is computed the same way wherever that is, so neither the number of actors nor
the death of one changes a result.
"""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from coterie.engines.buffers import Bytes, GrowingBuffer, deserialise, serialise
from coterie.engines.ray_worker import BlockRequest, RayWorker, cut, serialise_shard
from coterie.engines.scheduler import ATTEMPTS, BlockProgress, BlockScheduler
from coterie.errors import RunError
from coterie.tasks.base import ClientContext, Reduction, ReplyBlock, Request, perform, tensor_key
from coterie.trainers.base import Trainer

START_SECONDS = 300.0
"""How long to wait for a first actor when the cluster has no free processor."""


@dataclass
class _Actor:
    handle: Any
    ping: Any
    """The reference to its answer that it is there; None once the answer has come."""
    held: frozenset[int]
    """The shards it keeps, or is to keep: its share of all."""
    blocks: dict[Any, int] = field(default_factory=dict)
    """The blocks it has, by the references to their replies, in the order they were sent."""
    started: bool = False
    """Whether it has ever answered, so that it can be given blocks."""
    answered: int = 0
    """The last run in which it did."""


PackedReplies = tuple[bytes, Bytes]
"""A block's replies as they come from an actor."""


@dataclass
class _RayRun(BlockProgress[PackedReplies]):
    """A run's progress, and what its messages need."""

    needs: list[frozenset[int]] = field(kw_only=True)
    """The shards each block's clients are in."""
    broadcast: GrowingBuffer = field(kw_only=True)
    broadcast_ref: Any = field(kw_only=True)


class ActorPool(BlockScheduler[_RayRun]):
    """`count` actors of a running Ray over the same clients; at most `slots` blocks are on their way at once.

    `make_trainer` must travel, so it may hold no data; `trainer` does here what no actor could do. Shards hold
    `shard_bytes` each, and an actor keeps `kept_bytes` of them.
    """

    def __init__(
        self,
        ray: Any,
        count: int,
        contexts: Mapping[str, ClientContext],
        make_trainer: Callable[[], Trainer],
        trainer: Trainer,
        *,
        slots: int,
        shard_bytes: int,
        kept_bytes: int,
    ) -> None:
        self.ray = ray
        self.contexts = contexts
        self.trainer = trainer
        self.slots = slots
        self.runs = 0
        shards = cut((context.client for context in contexts.values()), shard_bytes)
        self._shard_of = {client.id: number for number, shard in enumerate(shards) for client in shard}
        self._shards = [ray.put(serialise_shard(shard)) for shard in shards]
        self._deaths_at_start = 0
        self._kind = ray.remote(num_cpus=1, max_restarts=0)(RayWorker)
        self._make_trainer = ray.put(make_trainer)
        self._kept_bytes = kept_bytes
        self._actors = [self._start(position, count) for position in range(count)]

    def _start(self, position: int, count: int) -> _Actor:
        handle = self._kind.remote(self._make_trainer, self._kept_bytes)
        total = len(self._shards)
        share = frozenset(range(position * total // count, (position + 1) * total // count))
        return _Actor(handle, handle.pid.remote(), share)

    def begin(self, blocks: Sequence[Sequence[Request]], reductions: Sequence[Reduction | None]) -> _RayRun:
        broadcast = _broadcast(blocks)
        needs = [frozenset(self._shard_of[request.client] for request in block) for block in blocks]
        now = _RayRun(
            blocks, reductions, needs=needs, broadcast=broadcast, broadcast_ref=self.ray.put(broadcast.seal())
        )
        self.runs += 1
        self._deaths_at_start = 0
        self._ping()
        return now

    def give_up(self) -> None:
        for actor in self._actors:
            actor.blocks.clear()  # they come to their end, and their replies are not asked for

    def _ping(self) -> None:
        """Ask all actors whether they are there, so that no block is blamed for one that had died before.

        The answers are not waited for: blocks go to those that were there last.
        """
        for actor in self._actors:
            if actor.ping is None:
                actor.ping = actor.handle.pid.remote()

    def hand_out(self, now: _RayRun) -> None:
        for depth in (0, 1):
            for actor in self._actors:
                if not actor.started or len(actor.blocks) != depth:
                    continue
                free = now.free(self.slots)
                if not free:
                    return
                # the block for which it lacks the least
                block = min(free, key=lambda b: (len(now.needs[b] - actor.held), b))
                now.waiting.remove(block)
                actor.blocks[actor.handle.do.remote(self._block_request(now, block), now.broadcast_ref)] = block

    def _block_request(self, now: _RayRun, block: int) -> BlockRequest:
        data, memory = serialise(self.message(now, block), now.broadcast)
        return BlockRequest(self.runs, data, memory, {number: self._shards[number] for number in now.needs[block]})

    def collect(self, now: _RayRun) -> None:
        ready = self._wait()
        for position, actor in enumerate(self._actors):
            try:
                self._hear(now, actor, ready)
            except _deadly(self.ray) as problem:
                self._replace(now, position, problem)

    def _wait(self) -> set[Any]:
        """The references whose answers are there, as soon as there is one."""
        at_work = [ref for actor in self._actors for ref in actor.blocks]
        awaited = at_work + [actor.ping for actor in self._actors if actor.ping is not None]
        alone = not at_work and not any(actor.started for actor in self._actors)
        ready, _ = self.ray.wait(awaited, timeout=START_SECONDS if alone else None)
        if not ready:
            raise RunError(
                f"no actor has started on Ray in {START_SECONDS:.0f} seconds: free a processor of the cluster"
            )
        return set(self.ray.wait(awaited, num_returns=len(awaited), timeout=0)[0])

    def _hear(self, now: _RayRun, actor: _Actor, ready: set[Any]) -> None:
        """Take what an actor has answered."""
        if actor.ping in ready:
            self.ray.get(actor.ping)
            if not actor.started:
                self._deaths_at_start = 0
            actor.ping, actor.started, actor.answered = None, True, self.runs
        for ref, block in list(actor.blocks.items()):
            if ref in ready:
                self._take(now, actor, ref, block)

    def _take(self, now: _RayRun, actor: _Actor, ref: Any, block: int) -> None:
        try:
            data, memory, held = self.ray.get(ref)
        except self.ray.exceptions.RayTaskError as problem:
            now.failed[block] = _last_line(problem)
        else:
            now.done[block] = (data, memory)
            actor.held = frozenset(held)
        del actor.blocks[ref]

    def _replace(self, now: _RayRun, position: int, problem: Exception) -> None:
        """Put a new actor in a dead one's place and its blocks back; the first of them may be what it died of.

        It is not where the actor never answered in this run: an answer comes before the first block is begun.
        """
        dead = self._actors[position]
        lost = list(dead.blocks.values())
        answered = dead.answered == self.runs or self._answers(dead.ping)
        now.take_back(lost)
        _end(self.ray, dead)
        if not dead.started:
            self._deaths_at_start += 1
            if self._deaths_at_start == ATTEMPTS:
                raise RunError(f"{ATTEMPTS} Ray actors died at their start, the last of: {_last_line(problem)}")
        elif lost and answered:
            now.blame(lost[0], "Ray actors died")
        self._actors[position] = self._start(position, len(self._actors))
        self._ping()  # a machine may be gone, and with it others that have not been noticed yet

    def _answers(self, ping: Any) -> bool:
        try:
            self.ray.get(ping)
        except _deadly(self.ray):
            return False
        return True

    def do_here(self, now: _RayRun) -> ReplyBlock:
        block = now.blocks[now.turn]
        done = perform(block, self.contexts, self.trainer, now.reductions[now.turn])
        warnings.warn(
            f"a Ray actor failed on the block of client {block[0].client!r} ({now.failed[now.turn]}): done here",
            stacklevel=2,
        )
        return done

    def unpack(self, packed: PackedReplies, block: int) -> tuple[ReplyBlock, Mapping[str, Mapping[str, Tensor]]]:
        done, states = deserialise(*packed)
        return done, states

    def close(self) -> None:
        if self.ray.is_initialized():
            for actor in self._actors:
                _end(self.ray, actor)
        self._actors, self._shards = [], []


def _broadcast(blocks: Sequence[Sequence[Request]]) -> GrowingBuffer:
    """The tensors, such as models, that requests of more than one block name: sent to an actor once per run."""
    seen: dict[Hashable, Tensor] = {}
    blocks_with: Counter[Hashable] = Counter()
    for block in blocks:
        found = {tensor_key(value): value for request in block for value in _tensors(request)}
        seen |= found
        blocks_with.update(found.keys())
    buffer = GrowingBuffer()
    for key, tensor in seen.items():
        if blocks_with[key] > 1:
            buffer.place(tensor)
    return buffer


def _tensors(request: Request) -> list[Tensor]:
    return [value for value in vars(request.task).values() if isinstance(value, Tensor)]


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
