"""The engine on this machine: the whole federation in this process or in worker processes, in fixed blocks."""

from __future__ import annotations

import math
import os
import warnings
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Literal

import torch
from torch import Tensor, nn

from coterie.engines.base import Fault
from coterie.engines.bfloat16 import require_bfloat16
from coterie.engines.devices import CPU, choose_device
from coterie.engines.feedforward import GRAM_BYTES, FeedforwardBench
from coterie.engines.loop import LoopBench
from coterie.engines.pool import WorkerPool
from coterie.engines.recognition import recognise, suits
from coterie.engines.workers import done, one_thread
from coterie.errors import ConfigError, RunError, did_you_mean
from coterie.federation import Federation
from coterie.losses import Loss, default_loss
from coterie.messages import Due, Order, Reply, Share, Worksite
from coterie.parameters import Layout
from coterie.privacy import Mask, MaskedBench
from coterie.workbench import Workbench

BLOCK_NUMBERS = 2**21
"""Numbers in the vectors of one block of replies: 8 MB in float32."""
BLOCK_CLIENTS = 1024
PARTS = 8
"""A run has at least so many blocks, unless they would be too small to compute many clients at once."""
BATCHED = 5
"""Clients that a batched bench should have in a block."""
SUMMED = 256
"""The most clients whose vectors are added up in one block."""
SUMS = 4
"""Sums that a block's place in the workers' shared memory has room for; more travel more slowly."""
BOARD_MODELS = 64
WORK_FOR_WORKERS = 2 * 10**10
"""Estimated multiplications from which `workers="auto"` uses more than this process."""

PRECISIONS = {"float32": torch.float32, "float64": torch.float64, "bf16": torch.float32}
Precision = Literal["float32", "float64", "bf16"]
Privacy = Literal["none", "permutation", "signed-permutation"]


def make_bench(
    module: nn.Module,
    loss: Loss,
    federation: Federation,
    precision: str,
    gram_bytes: int,
    device: torch.device = CPU,
) -> Workbench:
    """The fastest workbench for the module: batched for feed-forward networks, else the loop."""
    dtype = PRECISIONS[precision]
    plan = recognise(module, loss)
    if plan is not None and suits(plan, federation.clients[0].train):
        return FeedforwardBench(module, plan, dtype, gram_bytes=gram_bytes, device=device)
    if precision == "bf16" and device == CPU:
        require_bfloat16()
    return LoopBench(module, loss, dtype, bf16=precision == "bf16", device=device)


class LocalEngine:
    """Runs every client of a federation on this machine.

    `architecture` makes a freshly initialised module from a seed. `workers` is a number of single-threaded processes
    (1: this one; "auto": one for each core when there is enough work). `memory_bytes` bounds what is kept beside
    the data. Blocks depend on the orders and the model alone, so neither changes a result. `precision` "bf16"
    multiplies in bfloat16 where that pays; feed-forward networks stay in float32. With `privacy` the server sees
    only turned vectors; `secret` is what the clients share.

    `device` is where the clients compute: cpu, cuda, cuda:N, or auto, which is CUDA where torch sees it unless a
    number of workers asks for processes. On CUDA this process does all the work and, as the arithmetic there is
    another, results agree with the processor's up to rounding; models and replies stay in the processor's memory.
    """

    def __init__(
        self,
        federation: Federation,
        architecture: Callable[[int], nn.Module],
        *,
        loss: Loss | None = None,
        workers: int | Literal["auto"] = 1,
        memory_bytes: int | None = None,
        precision: str = "float32",
        privacy: Privacy = "none",
        secret: int = 0,
        device: str = "auto",
        bench: Workbench | None = None,
    ) -> None:
        if precision not in PRECISIONS:
            raise ConfigError(f"precision={precision!r}: {did_you_mean(str(precision), PRECISIONS)}")
        if workers != "auto" and (not isinstance(workers, int) or workers < 1):
            raise ConfigError(f"workers={workers!r}: expected a number from 1 up, or 'auto'")
        several = workers != "auto" and workers > 1
        self.device = choose_device("cpu" if several and device == "auto" else device)
        if several and self.device.type == "cuda":
            raise ConfigError(
                f"workers={workers} compute on the processor, not on device={device!r}: give one of the two"
            )
        self.federation = federation
        self.clients = federation.ids
        self.samples = {client.id: len(client.train) for client in federation}
        self.architecture = architecture
        self.dtype = PRECISIONS[precision]
        self.workers = 1 if self.device.type == "cuda" else workers
        self.memory_bytes = memory_bytes
        loss = loss or default_loss(federation.regression)
        grams = GRAM_BYTES if memory_bytes is None else min(GRAM_BYTES, memory_bytes // 2)
        module = architecture(0)
        plain: Callable[[int], Workbench] = (
            partial(make_bench, module, loss, federation, precision, device=self.device)
            if bench is None
            else lambda _: bench
        )
        self._grams = grams
        self.bench = plain(grams)
        self.batched = isinstance(self.bench, FeedforwardBench)
        if precision == "bf16" and not self.batched and self.device == CPU and require_bfloat16() == "emulated":
            warnings.warn(
                "precision='bf16' on a processor without bfloat16 instructions is slower than 'float32'", stacklevel=2
            )
        self.plain_layout: Layout = self.bench.layout
        self._mask: Mask | None = None
        self._make_bench = plain
        if privacy != "none":
            self._mask = mask = Mask.from_secret(secret, self.plain_layout, signed=privacy == "signed-permutation")
            self._make_bench = lambda budget: MaskedBench(plain(budget), mask)
            self.bench = MaskedBench(self.bench, mask)
        self.layout: Layout = self.bench.layout
        self.sites = {client.id: Worksite(client, {}) for client in federation}
        self._pool: WorkerPool | None = None
        self._faults: list[Fault] = []

    def run(self, orders: Sequence[Order]) -> Iterator[list[Reply]]:
        """Do the orders block by block; a reply that is not finite is left out and named in `faults`."""
        width = block_width(len(orders), self.layout.size, self.batched)
        blocks = [orders[start : start + width] for start in range(0, len(orders), width)]
        for share in self._done(blocks, None):
            yield share.replies

    def total(self, orders: Sequence[Order], bill: Sequence[Due]) -> Iterator[Share]:
        """Do the orders in blocks and add the vectors of each block up where they are made."""
        width = summed_width(len(orders), self.layout.size, self.batched)
        starts = range(0, len(orders), width)
        bills = [bill[start : start + width] for start in starts]
        return self._done([orders[start : start + width] for start in starts], bills)

    def _done(self, blocks: Sequence[Sequence[Order]], bills: Sequence[Sequence[Due]] | None) -> Iterator[Share]:
        """The blocks' replies, with their vectors or, where there are bills, with sums; only the sound ones."""
        pool = self._pool_for([order for block in blocks for order in block], len(blocks))
        work = pool.run(blocks, bills) if pool is not None else self._run_here(blocks, bills)
        # One thread for the caller too while it counts the replies: threads that wait for cores the workers use
        # slow both down many times over.
        with one_thread():
            diverged = sound = 0
            for share in work:
                kept = self._checked(share.replies)
                diverged, sound = diverged + len(share.replies) - len(kept), sound + len(kept)
                yield share._replace(replies=kept)
        if diverged and not sound:
            raise RunError(f"training diverged: no update of {diverged} clients is finite: lower the learning rate")

    def _run_here(self, blocks: Sequence[Sequence[Order]], bills: Sequence[Sequence[Due]] | None) -> Iterator[Share]:
        for i, block in enumerate(blocks):
            yield done(block, None if bills is None else bills[i], self.sites, self.bench)

    def _pool_for(self, orders: Sequence[Order], blocks: int) -> WorkerPool | None:
        """The workers, if these orders are for them; started when they are first needed."""
        count = self.workers
        if count == "auto":
            count = available_cores() if self._work(orders) >= WORK_FOR_WORKERS else 1
        if count == 1 or blocks == 0 or (self._pool is not None and self._pool.busy) or _in_sequence(orders):
            return None
        if self._pool is None:
            self._pool = self._start_pool(count)
        return self._pool

    def _start_pool(self, count: int) -> WorkerPool:
        vector = self.layout.size * self.dtype.itemsize
        width = block_width(10**9, self.layout.size, self.batched)
        block = width * vector
        slots = 2 * count + 1
        if self.memory_bytes is not None:
            slots = max(count, min(slots, self.memory_bytes // 4 // max(block, 1)))
        return WorkerPool(
            count,
            self.sites,
            partial(self._make_bench, self._grams // count),
            slots=slots,
            slot_bytes=max(block, SUMS * 2 * vector) + 2**20,
            board_bytes=BOARD_MODELS * vector + 2**20,
        )

    def _work(self, orders: Sequence[Order]) -> float:
        """Roughly how many multiplications the orders take."""
        total = 0
        for order in orders:
            n = self.samples[order.client]
            training = getattr(order.task, "training", None)
            if training is not None:
                n = training.batches(n) * (n if training.batch_size is None else min(n, training.batch_size))
            total += n
        # A weight of a convolution is used many times for a sample, one of a linear layer once.
        uses = 3 if self.batched else 30
        return float(total) * uses * self.layout.size

    def _checked(self, replies: list[Reply]) -> list[Reply]:
        sound = []
        for reply in replies:
            if math.isfinite(reply.values.get("norm", 0.0)):
                sound.append(reply)
            else:
                self._faults.append(Fault(reply.client, "its update is not finite: lower the learning rate"))
        return sound

    def initial_model(self, seed: int) -> Tensor:
        """Freshly initialised parameters `(d,)`."""
        plain = self.plain_layout.read(self.architecture(seed), self.dtype)
        return self._mask.hide(plain) if self._mask else plain

    def reveal(self, model: Tensor) -> Tensor:
        """The parameters `(d,)` as the clients use them."""
        return self._mask.reveal(model) if self._mask else model

    def faults(self) -> list[Fault]:
        """The clients left out since the last call."""
        faults, self._faults = self._faults, []
        return faults

    def client_states(self) -> dict[str, dict[str, Tensor]]:
        """What the clients keep to themselves."""
        return {client_id: dict(site.state) for client_id, site in self.sites.items() if site.state}

    def restore_client_states(self, states: dict[str, dict[str, Tensor]]) -> None:
        """Give the clients back what a checkpoint kept for them."""
        for client_id, site in self.sites.items():
            site.state.clear()
            site.state.update(states.get(client_id, {}))

    def close(self) -> None:
        """End the worker processes."""
        if self._pool is not None:
            self._pool.close()
            self._pool = None


def block_width(orders: int, size: int, batched: bool) -> int:
    """How many clients one block holds, from the number of orders and the model's size alone."""
    most = max(1, min(BLOCK_CLIENTS, BLOCK_NUMBERS // max(size, 1)))
    parts = PARTS if batched else 4 * PARTS
    return min(most, max(BATCHED if batched else 1, -(-orders // parts)))


def summed_width(orders: int, size: int, batched: bool) -> int:
    """How many clients one block of sums holds: more than of replies, since only the sums travel."""
    fewest = block_width(orders, size, batched)
    return max(fewest, min(SUMMED, -(-orders // (2 * PARTS))))


def available_cores() -> int:
    """The cores this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _in_sequence(orders: Sequence[Order]) -> bool:
    """Whether a client's later order may need the state its earlier one leaves, so that the order of work counts."""
    keeps = any(getattr(order.task, "private", ()) for order in orders)
    return keeps and len({order.client for order in orders}) < len(orders)
