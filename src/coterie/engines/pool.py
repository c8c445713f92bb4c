"""Single-threaded worker processes, one block of requests at a time each.

Any worker can do any block: the client's own state travels with the request and comes back with the reply. A block is
computed the same way wherever it runs, so neither the number of workers nor the death of one changes a result.
"""

from __future__ import annotations

import multiprocessing
import time
import warnings
import weakref
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path

from torch import Tensor

from coterie.engines.buffers import SharedMemory, TensorBuffer, pack, unpack
from coterie.engines.scheduler import BlockProgress, BlockScheduler
from coterie.engines.spawning import pack_inheritance, start_method
from coterie.engines.worker import NUMBER_BYTES, work
from coterie.tasks.base import ClientContext, Reduction, ReplyBlock, Request, perform
from coterie.trainers.base import Trainer

AHEAD_BYTES = 2**15
"""Largest message that may lie in a pipe while the worker is busy: a larger one could block both ends."""
LOOK_SECONDS = 5.0
"""Time between two looks at whether a busy worker was stopped; one that is stopped at two in a row is replaced."""


@dataclass
class _Worker:
    process: BaseProcess
    connection: Connection
    blocks: list[int] = field(default_factory=list)
    """The blocks it has, in the order they were sent."""
    stopped: bool = False
    """Whether it was found stopped (by a signal, as with kill -STOP) at the last look."""


@dataclass
class _PoolRun(BlockProgress[bytes]):
    """A run's progress, and what its messages need."""

    broadcast: TensorBuffer = field(kw_only=True)
    """Tensors that more than one block needs, written once."""
    packed: dict[int, bytes] = field(default_factory=dict)
    """Messages too long to be sent ahead, kept until a worker is idle."""


class WorkerPool(BlockScheduler[_PoolRun]):
    """Worker processes over the same clients. `slots` blocks may be on their way at once, `slot_bytes` large each."""

    def __init__(
        self,
        count: int,
        contexts: Mapping[str, ClientContext],
        make_trainer: Callable[[], Trainer],
        *,
        slots: int,
        slot_bytes: int,
        broadcast_bytes: int,
    ) -> None:
        self.contexts = contexts
        self.make_trainer = make_trainer
        self.slots = slots
        self.slot_bytes = -(-slot_bytes // 4096) * 4096
        self.broadcast_bytes = broadcast_bytes
        self._trainer: Trainer | None = None
        self._memory = SharedMemory(self.slots * self.slot_bytes + broadcast_bytes)
        method = start_method()
        self._context = multiprocessing.get_context(method)
        self._inherited = pack_inheritance(contexts, make_trainer) if method == "spawn" else (contexts, make_trainer)
        self._looked = time.monotonic()
        self._workers = [self._start() for _ in range(count)]
        # Workers end with the pool even when it is not closed.
        self._finalizer = weakref.finalize(self, _stop, self._workers, self._memory)

    @property
    def pids(self) -> list[int]:
        """Process ids of the workers."""
        return [worker.process.pid for worker in self._workers if worker.process.pid is not None]

    def _start(self) -> _Worker:
        ours, theirs = self._context.Pipe()
        process = self._context.Process(  # type: ignore[attr-defined]
            target=work,
            args=(
                theirs,
                self._inherited,
                self._memory.path,
                self.slots,
                self.slot_bytes,
                self.broadcast_bytes,
            ),
            daemon=True,
            name="coterie-worker",
        )
        with warnings.catch_warnings():
            # Python warns of forks beside threads; the workers never touch torch's idle ones.
            warnings.simplefilter("ignore", DeprecationWarning)
            process.start()
        theirs.close()
        return _Worker(process, ours)

    def begin(self, blocks: Sequence[Sequence[Request]], reductions: Sequence[Reduction | None]) -> _PoolRun:
        for position, worker in enumerate(self._workers):
            if not worker.process.is_alive():
                _end(worker)
                self._workers[position] = self._start()
        broadcast = TensorBuffer(self._memory.bytes[self.slots * self.slot_bytes :])
        return _PoolRun(blocks, reductions, broadcast=broadcast)

    def give_up(self) -> None:
        for worker in self._workers:
            if worker.blocks:  # it would still write to their slots
                _end(worker)

    def _slot(self, block: int) -> Tensor:
        start = (block % self.slots) * self.slot_bytes
        return self._memory.bytes[start : start + self.slot_bytes]

    def hand_out(self, now: _PoolRun) -> None:
        for depth in (0, 1):
            for position, worker in enumerate(self._workers):
                if len(worker.blocks) != depth:
                    continue
                free = now.free(self.slots)
                if not free:
                    return
                # The same block goes to the same worker round after round, where its Gram matrices are kept.
                block = next((b for b in free if b % len(self._workers) == position), free[0])
                message = now.packed.get(block) or self._message(now, block)
                if depth and len(message) > AHEAD_BYTES:
                    now.packed[block] = message
                    continue
                now.packed.pop(block, None)
                now.waiting.remove(block)
                worker.blocks.append(block)
                with suppress(BrokenPipeError, ConnectionResetError):  # dead: `collect` will see it
                    worker.connection.send_bytes(message)

    def _message(self, now: _PoolRun, block: int) -> bytes:
        number = (block % self.slots).to_bytes(NUMBER_BYTES, "little")
        return number + pack(self.message(now, block), TensorBuffer(self._slot(block)), now.broadcast)

    def collect(self, now: _PoolRun) -> None:
        waited: list[Connection | int] = [worker.connection for worker in self._workers]
        waited += [worker.process.sentinel for worker in self._workers]
        ready = set(wait(waited, LOOK_SECONDS))
        self._end_stopped()
        for position, worker in enumerate(self._workers):
            if not ready.intersection((worker.connection, worker.process.sentinel)):
                continue
            try:
                while worker.connection.poll():
                    data = worker.connection.recv_bytes()
                    now.done[worker.blocks.pop(0)] = data
                dead = worker.process.sentinel in ready
            except (EOFError, OSError):
                dead = True
            if dead:
                lost = worker.blocks
                _end(worker)
                self._workers[position] = self._start()
                if worker.stopped:
                    now.take_back(lost)  # no fault of theirs
                else:
                    self._take_back(now, lost, worker.process.exitcode or 0)

    def _end_stopped(self) -> None:
        """End workers that have been stopped for some time: `collect` then replaces them as it does dead ones."""
        if time.monotonic() - self._looked < LOOK_SECONDS:
            return
        self._looked = time.monotonic()
        for worker in self._workers:
            stopped = bool(worker.blocks) and _is_stopped(worker.process.pid)
            if stopped and worker.stopped:
                warnings.warn(f"worker {worker.process.pid} was stopped: another takes its place", stacklevel=2)
                worker.process.kill()
            worker.stopped = stopped

    def _take_back(self, now: _PoolRun, lost: list[int], code: int) -> None:
        """Put a dead worker's blocks back in the queue; the first of them may be what it died of."""
        now.take_back(lost)
        if lost and code > 0:
            now.failed[lost[0]] = f"exit code {code}"
            now.waiting.remove(lost[0])
        elif lost:
            now.blame(lost[0], f"workers died (last by signal {-code})")

    def do_here(self, now: _PoolRun) -> ReplyBlock:
        if self._trainer is None:
            self._trainer = self.make_trainer()
        return perform(now.blocks[now.turn], self.contexts, self._trainer, now.reductions[now.turn])

    def unpack(self, packed: bytes, block: int) -> tuple[ReplyBlock, Mapping[str, Mapping[str, Tensor]]]:
        used = int.from_bytes(packed[:NUMBER_BYTES], "little")
        done, states = unpack(packed[NUMBER_BYTES:], self._slot(block)[:used].clone())
        return done, states

    def close(self) -> None:
        self._finalizer()


def _stop(workers: list[_Worker], memory: SharedMemory) -> None:
    for worker in workers:
        with suppress(OSError):
            worker.connection.send_bytes(b"")
    for worker in workers:
        if not worker.blocks:
            worker.process.join(2)
        _end(worker)
    workers.clear()
    memory.close()


def _is_stopped(pid: int | None) -> bool:
    """Whether the system has the process stopped; False where that is not known."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"
    except (OSError, IndexError):
        return False


def _end(worker: _Worker) -> None:
    worker.process.kill()
    worker.process.join()
    worker.connection.close()
    worker.blocks = []
