"""The engine on this machine: the whole federation in this process or in worker processes, in fixed blocks."""

from __future__ import annotations

import math
import os
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor, nn

from coterie.engines.base import Engine, Fault, Traffic
from coterie.engines.pool import WorkerPool
from coterie.engines.scheduler import BlockScheduler
from coterie.errors import ConfigError, RunError, did_you_mean
from coterie.federation import Federation, Split
from coterie.federation.changing import changed_clients
from coterie.metrics import MetricFunction
from coterie.parameters import Layout
from coterie.privacy import Mask, MaskedTrainer
from coterie.privacy.keys import Secret, make_key
from coterie.tasks.base import GRADIENT_COST, ClientContext, Reduction, Reply, ReplyBlock, Request, perform
from coterie.tasks.wire import not_finite, reply_bytes, same_form, task_bytes
from coterie.trainers.base import Trainer
from coterie.trainers.batched import GRAM_BYTES, BatchedTrainer
from coterie.trainers.choice import PRECISIONS, make_trainer
from coterie.trainers.devices import CPU, choose_device, require_bfloat16
from coterie.trainers.losses import Loss, default_loss
from coterie.trainers.threads import one_torch_thread

BLOCK_NUMBERS = 2**21
"""Numbers in the vectors of one block of replies: 8 MB in float32."""
BLOCK_CLIENTS = 1024
PARTS = 8
"""The least number of blocks of a run, unless they would be too small to compute many clients at once."""
BATCHED = 5
"""Clients that a batched trainer should have in a block."""
SUMMED = 256
"""The most clients whose vectors are added up in one block."""
SUMS = 4
"""Sums that a block's slot in the workers' shared memory has room for; more travel more slowly."""
BROADCAST_MODELS = 64
WORK_FOR_WORKERS = 4 * 10**9
"""Estimated multiplications from which `workers="auto"` uses more than this process: about a tenth of a second."""
WORK_FOR_BLOCK = 2 * 10**9
"""Estimated multiplications below which two blocks of a batched trainer are better done as one."""

Privacy = Literal["none", "permutation", "signed-permutation", "projection"]


class LocalEngine(Engine):
    """Runs every client of a federation on this machine.

    `architecture` makes a freshly initialised module from a seed. `workers` is a number of single-threaded processes
    (1: this one; "auto": one for each core when there is enough work). `memory_bytes` bounds what is kept beside
    the data. Blocks depend on the requests and the model alone, so neither changes a result. `precision` "bf16"
    multiplies in bfloat16 where that pays; feed-forward networks stay in float32. With `privacy` the server sees
    only permuted vectors; `secret` is what the clients share. `metrics` are the user's own, by name.

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
        secret: Secret = 0,
        device: str = "auto",
        metrics: Mapping[str, MetricFunction] | None = None,
    ) -> None:
        _check_precision(precision)
        self.device = _device_for(workers, device)
        self.federation = federation
        self.now = federation.at(1)
        self.clients = federation.ids
        self.samples = {client.id: len(client.train) for client in federation}
        self.architecture = architecture
        self.dtype = PRECISIONS[precision]
        self.workers = 1 if self.device.type == "cuda" else workers
        self.memory_bytes = memory_bytes
        loss = loss or default_loss(federation.regression)
        grams = min(GRAM_BYTES, GRAM_BYTES if memory_bytes is None else memory_bytes // 2)
        self._grams = grams
        self._trainer_parts = (loss, one_sample(federation), precision, self.device, make_key(secret), metrics or {})
        self.trainer = self._trainer_maker(None)(grams)
        self.batched = isinstance(self.trainer, BatchedTrainer)
        if precision == "bf16" and not self.batched and self.device == CPU:
            _warn_of_emulation()
        self.plain_layout: Layout = self.trainer.layout
        self._mask = _mask_for(privacy, secret, self.plain_layout)
        if self._mask is not None:
            self.trainer = MaskedTrainer(self.trainer, self._mask)
        self.layout: Layout = self.trainer.layout
        self.contexts = {client.id: ClientContext(client, {}) for client in federation}
        self.traffic = Traffic()
        self._pool: BlockScheduler[Any] | None = None
        self._faults: list[Fault] = []

    def _trainer_maker(self, mask: Mask | None) -> Callable[[int], Trainer]:
        """What makes a trainer from the bytes it may keep, here or elsewhere; it holds a model, the engine none."""
        return partial(portable_trainer, self.architecture(0), *self._trainer_parts, mask)

    def run(self, requests: Sequence[Request], reduce: Reduction | None = None) -> Iterator[ReplyBlock]:
        """Do the requests block by block; a reply that is not finite is left out and named in `faults`."""
        costs = [request.task.cost(self.contexts[request.client].client) for request in requests]
        work = self._work(costs)
        width = block_width(
            len(requests),
            self.layout.size,
            self.batched,
            summed=reduce is not None,
            vectors=reduce is not None or self._send_vectors(requests),
            work=work,
        )
        rows = [range(start, min(start + width, len(requests))) for start in range(0, len(requests), width)]
        blocks = [requests[part.start : part.stop] for part in rows]
        reductions = [None if reduce is None else reduce.at(part) for part in rows]
        self._count_requests(requests, costs)
        pool = self._pool_for(requests, work)
        done_blocks = self._performed(blocks, reductions) if pool is None else pool.run(blocks, reductions)
        # One thread for the caller too while it counts the replies: threads that wait for cores the workers use
        # slow both down many times over.
        with one_torch_thread():
            diverged = sound = 0
            waiting = iter(blocks)
            for done in done_blocks:
                block = next(waiting, [])  # the last may hold sums alone
                kept = self._checked(block, done.replies)
                diverged, sound = diverged + len(block) - len(kept), sound + len(kept)
                yield done._replace(replies=kept)
        if diverged and not sound and self._send_vectors(requests):
            raise RunError(f"training diverged: no update of {diverged} clients is finite: lower the learning rate")

    def _count_requests(self, requests: Sequence[Request], costs: Sequence[float]) -> None:
        """Count what goes to the clients, and the passes over their data that it takes."""
        self.traffic.down += self._bytes_down(requests)
        self.traffic.passes += sum(
            cost / (GRADIENT_COST * max(1, self.samples[client]))
            for cost, (client, _) in zip(costs, requests, strict=True)
        )
        self.traffic.exchanges += bool(requests)

    def _performed(
        self, blocks: Sequence[Sequence[Request]], reductions: Sequence[Reduction | None]
    ) -> Iterator[ReplyBlock]:
        """The blocks done in this process, each when it is asked for.

        Sums of blocks of one client each are added up here, and come in a last block: they are as long as the model,
        and making one for every client takes longer than many a model's step.
        """
        totals: dict[int, Tensor] = {}
        alone = all(len(block) == 1 for block in blocks)
        for block, own in zip(blocks, reductions, strict=True):
            if own is None or not alone:
                yield perform(block, self.contexts, self.trainer, own)
                continue
            done = perform(block, self.contexts, self.trainer, own._replace(into=totals))
            for group, total in done.sums.items():
                totals[group] = totals[group].add_(total) if group in totals else total
            yield done._replace(sums={})
        if totals:
            yield ReplyBlock([], totals)

    def _pool_for(self, requests: Sequence[Request], work: float) -> BlockScheduler[Any] | None:
        """The workers, if these requests are for them and they are free; started when they are first needed."""
        busy = self._pool is not None and self._pool.busy
        if not requests or busy or in_sequence(requests) or not self._worth_sending(requests, work):
            return None
        if self._pool is None:
            self._pool = self._start_pool()
        return self._pool

    def _worth_sending(self, requests: Sequence[Request], work: float) -> bool:
        """Whether workers do the requests sooner than this process."""
        return work >= WORK_FOR_WORKERS and available_cores() > 1 if self.workers == "auto" else self.workers > 1

    def _start_pool(self) -> BlockScheduler[Any]:
        count = available_cores() if self.workers == "auto" else self.workers
        vector = self.layout.size * self.dtype.itemsize
        return WorkerPool(
            count,
            self.contexts,
            partial(self._trainer_maker(self._mask), self._grams // count),
            slots=self._slots(count),
            slot_bytes=max(self._block_bytes(), SUMS * 2 * vector) + 2**20,
            broadcast_bytes=BROADCAST_MODELS * vector + 2**20,
        )

    def _block_bytes(self) -> int:
        """The vectors of the largest block of replies."""
        return block_width(10**9, self.layout.size, self.batched) * self.layout.size * self.dtype.itemsize

    def _slots(self, count: int) -> int:
        """How many blocks that many workers may have on their way, within the memory."""
        if self.memory_bytes is None:
            return 2 * count + 1
        return max(count, min(2 * count + 1, self.memory_bytes // 4 // max(self._block_bytes(), 1)))

    def _work(self, costs: Sequence[float]) -> float:
        """Roughly how many multiplications requests of such costs take."""
        # A weight of a convolution is used many times for a sample, one of a linear layer once.
        return sum(costs) * self.layout.size * (1 if self.batched else 10)

    def _send_vectors(self, requests: Sequence[Request]) -> bool:
        """Whether any reply holds a vector, as far as one task of each kind shows."""
        kinds = {type(request.task): request.task for request in requests}
        return any(task.schema(self.layout).vector is not None for task in kinds.values())

    def _bytes_down(self, requests: Sequence[Request]) -> int:
        """Bytes that reach the clients; a task that goes to many is looked at once, whatever its seeds."""
        total, size, before = 0, 0, None
        for _client, task in requests:
            if not same_form(task, before):
                size, before = task_bytes(task, self.layout), task
            total += size
        return total

    def _checked(self, requests: Sequence[Request], replies: list[Reply]) -> list[Reply]:
        """The finite replies; their bytes are counted, the others become faults."""
        sound = []
        schema = before = None
        for request, reply in zip(requests, replies, strict=True):
            if schema is None or not same_form(request.task, before):
                schema, before = request.task.schema(self.layout), request.task
            if not math.isfinite(reply.values.get("norm", 0.0)):
                self._faults.append(Fault(reply.client, "its update is not finite: lower the learning rate"))
            elif broken := not_finite(reply, schema):
                self._faults.append(Fault(reply.client, f"its {broken} are not finite: look at its data"))
            else:
                self.traffic.up += reply_bytes(reply, schema)
                sound.append(reply)
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

    def enter_round(self, t: int) -> list[str]:
        """Let the clients hold what they hold in round `t`; whose data is another than before."""
        before, now = self.now, self.federation.at(t)
        if now is before:
            return []
        self.close()  # workers hold the clients as they were when they began
        self.now = now
        self.samples = {client.id: len(client.train) for client in now}
        self.contexts = {client.id: ClientContext(client, self.contexts[client.id].state) for client in now}
        return [client.id for client in changed_clients(before, now)]

    def client_states(self) -> dict[str, dict[str, Tensor]]:
        """What the clients keep to themselves."""
        return {client: dict(context.state) for client, context in self.contexts.items() if context.state}

    def restore_client_states(self, states: dict[str, dict[str, Tensor]]) -> None:
        """Give the clients back what a checkpoint kept for them."""
        for client, context in self.contexts.items():
            context.state.clear()
            context.state.update(states.get(client, {}))

    def close(self) -> None:
        """End the worker processes."""
        if self._pool is not None:
            self._pool.close()
            self._pool = None


def portable_trainer(
    module: nn.Module,
    loss: Loss,
    sample: Split,
    precision: str,
    device: torch.device,
    key: bytes,
    metrics: Mapping[str, MetricFunction],
    mask: Mask | None,
    gram_bytes: int,
) -> Trainer:
    """The trainer for the module, from parts that can be sent to another process or machine."""
    trainer = make_trainer(module, loss, sample, precision, gram_bytes, device)
    trainer.key, trainer.metrics = key, metrics
    return trainer if mask is None else MaskedTrainer(trainer, mask)


def one_sample(federation: Federation) -> Split:
    """One sample, which shows what the data looks like and weighs nothing."""
    first = federation.clients[0].train
    # Copies, because a view would take all the memory that it looks at along.
    return Split(first.x[:1].clone(), first.y[:1].clone())


def block_width(
    requests: int,
    size: int,
    batched: bool,
    *,
    summed: bool = False,
    vectors: bool = True,
    work: float = math.inf,
) -> int:
    """How many clients one block holds, from the requests and the model alone, never from the number of workers.

    A block of sums, or of replies without vectors, holds more than one of vectors. Little work (in multiplications)
    makes few blocks where a trainer computes many clients at once, as all do in evaluation.
    """
    most = max(1, min(BLOCK_CLIENTS, BLOCK_NUMBERS // max(size, 1))) if vectors else BLOCK_CLIENTS
    parts = PARTS if batched else 4 * PARTS
    width = min(most, max(BATCHED if batched else 1, -(-requests // parts)))
    if summed:
        most = max(min(BLOCK_CLIENTS, BLOCK_NUMBERS // max(size, 1)), SUMMED)
        width = max(width, min(SUMMED, -(-requests // (2 * PARTS))))
    if (batched or not vectors) and work < parts * WORK_FOR_BLOCK:
        width = max(width, min(most, -(-requests // max(1, int(work // WORK_FOR_BLOCK)))))
    return width


def available_cores() -> int:
    """The cores this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def in_sequence(requests: Sequence[Request]) -> bool:
    """Whether a client's later request may need the state its earlier one leaves, so that the order of work counts."""
    keeps = any(request.task.keeps_state for request in requests)
    return keeps and len({request.client for request in requests}) < len(requests)


def _device_for(workers: int | Literal["auto"], device: str) -> torch.device:
    """Where to compute; ConfigError for a number of workers that there cannot be."""
    if workers != "auto" and (not isinstance(workers, int) or workers < 1):
        raise ConfigError(f"workers={workers!r}: expected a number from 1 up, or 'auto'")
    several = workers != "auto" and workers > 1
    chosen = choose_device("cpu" if several and device == "auto" else device)
    if several and chosen.type == "cuda":
        raise ConfigError(f"workers={workers} compute on the processor, not on device={device!r}: give one of the two")
    return chosen


def _check_precision(precision: str) -> None:
    if precision not in PRECISIONS:
        raise ConfigError(f"precision={precision!r}: {did_you_mean(str(precision), PRECISIONS)}")


def _mask_for(privacy: Privacy, secret: Secret, layout: Layout) -> Mask | None:
    """The clients' secret permutation, where the privacy is one."""
    if privacy not in ("permutation", "signed-permutation"):
        return None
    return Mask.from_secret(secret, layout, signed=privacy == "signed-permutation")


def _warn_of_emulation() -> None:
    if require_bfloat16() == "emulated":
        text = "precision='bf16' on a processor without bfloat16 instructions is slower than 'float32'"
        warnings.warn(text, stacklevel=3)
