"""What passes between server and clients: a request with its task, a reply, and weighted sums of replies' vectors.

A task is a frozen dataclass. Its fields are what is sent to a client, its `schema` is what a sound reply holds. From
these two come the message on a network, the check of what comes back, and the bytes that are counted, so that a task
of another package works on every engine.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Hashable, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, NamedTuple, Self

import torch
from torch import Tensor

from coterie.errors import ModelError
from coterie.federation import Client
from coterie.parameters import Layout, span_size
from coterie.trainers.base import Reduction as Reduction
from coterie.trainers.base import SumNoise as SumNoise
from coterie.trainers.base import Trained, Trainer, Training, TrainingJob

GRADIENT_COST = 3.0
"""Passes through the network that a gradient takes: forward once, and backward about twice that."""
ClientState = MutableMapping[str, Tensor]
"""What a client keeps between rounds and never sends, such as private layers."""


class Sent(NamedTuple):
    """Says of a tensor field of a task that it need not be sent whole: `model: Annotated[Tensor, Sent(...)]`."""

    without: str = ""
    """The field that lists layers to leave out of a model `(d,)`: the client has its own."""
    once: str = ""
    """The field with spans (start, stop) of models `(k, d)` that are equal in all rows: they are sent once."""
    drawn: str = ""
    """The field with the seed of the initial model. Where it is not None, the client draws the model (with `without`:
    the layers that are left out) itself. Where it is None, everything is sent."""


class ClientContext(NamedTuple):
    """A client at work: its data and its own state."""

    client: Client
    state: ClientState


@dataclass(frozen=True)
class Number:
    """A number in a reply, and what it may be."""

    minimum: float = -math.inf
    maximum: float = math.inf
    finite: bool = True
    integer: bool = False


@dataclass(frozen=True)
class Array:
    """Numbers of a `shape` in a reply: a list where it has one dimension, a float32 tensor where it has more.

    A dimension that is None may have any length from 1. With `at_most` the first dimension may be shorter. NaN passes
    the limits where `finite` is False.
    """

    shape: tuple[int | None, ...]
    minimum: float = -math.inf
    maximum: float = math.inf
    finite: bool = True
    at_most: bool = False

    def fits(self, shape: tuple[int, ...]) -> bool:
        """Whether an array of this shape is as declared."""
        if len(shape) != len(self.shape):
            return False
        for i, (length, declared) in enumerate(zip(shape, self.shape, strict=True)):
            loose = declared is None or (self.at_most and i == 0)
            if not (1 <= length <= (declared or length) if loose else length == declared):
                return False
        return True


@dataclass(frozen=True)
class ReplySchema:
    """What a sound reply holds."""

    vector: int | None = None
    """Numbers in the reply's vector; None: it has no vector."""
    values: Mapping[str, Number | Array] = field(default_factory=dict)
    choices: int = 1
    """How many models there were to choose from; the reply's `group` is the one chosen."""
    part: str = "train"
    """The part of the client's data that the reply's `samples` counts."""
    private: tuple[slice, ...] = ()
    """Places of the vector that are always zero, and not sent: such as the layers the client keeps to itself."""
    wide: bool = False
    """Whether the vector's numbers may be of any size, such as counts: a secure sum then takes two words for each."""
    hides_norm: bool = False
    """Whether a secure sum sends the vector without its norm, from which its content could be guessed."""
    shown: bool = False
    """Whether the vector may be seen by itself even where sums are secure, because the user said so."""

    @property
    def shows_vector(self) -> bool:
        """Whether the reply holds numbers in its vector that are not private."""
        return self.vector is not None and span_size(self.private) < self.vector

    @property
    def only_numbers(self) -> bool:
        """Whether the reply holds single numbers, such as losses, and no arrays beside its vector."""
        return all(isinstance(value, Number) for value in self.values.values())


@dataclass(frozen=True)
class Reply:
    """What a client sends back: a vector (an update or a gradient) and a few values."""

    client: str
    samples: int
    vector: Tensor | None = None
    values: Mapping[str, Any] = field(default_factory=dict)
    """Numbers, lists of numbers, and tensors by name, as the task's schema says. The engine adds a vector's `norm`."""
    group: int = 0
    """Which of the offered models the vector belongs to."""

    @property
    def norm(self) -> float:
        """‖vector‖ over the trainable numbers."""
        return float(self.values["norm"])


class ReplyBlock(NamedTuple):
    """Replies, and the weighted sums `(d,)` of their vectors by group in float64, where sums were asked for.

    Replies whose vectors were added up come without them. A vector that is not finite is in no sum; its reply's norm
    shows it.
    """

    replies: list[Reply]
    sums: dict[int, Tensor]


class Task(ABC):
    """What a client is asked to do. Subclasses are frozen dataclasses of plain values, tensors and `Training`."""

    kinds: ClassVar[dict[str, type[Task]]] = {}
    """All tasks by name; a class is added when it is defined."""

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        cls.kinds[cls.kind()] = cls

    @classmethod
    def kind(cls) -> str:
        """The task's name on a network."""
        return f"{cls.__module__}.{cls.__qualname__}"

    @abstractmethod
    def schema(self, layout: Layout) -> ReplySchema:
        """What a sound reply holds, for models of this layout."""

    def cost(self, client: Client) -> float:
        """Roughly how many samples go through the network for this client; a gradient counts as two more."""
        training = getattr(self, "training", None)
        n = len(client.train)
        return GRADIENT_COST * (training.samples_seen(n) if isinstance(training, Training) else n)

    @property
    def keeps_state(self) -> bool:
        """Whether the task changes what a client keeps to itself: its own layers or model, or its optimiser's state."""
        training = getattr(self, "training", None)
        return self.keeps_own_model or (isinstance(training, Training) and training.keep_optimizer)

    @property
    def keeps_own_model(self) -> bool:
        """Whether the client keeps layers or a model of its own."""
        return bool(getattr(self, "private", ())) or getattr(self, "personal", None) is not None

    def answer(self, context: ClientContext, trainer: Trainer) -> Reply:
        """Do the task for one client. A task that can serve many clients at once overrides `answers` instead."""
        raise NotImplementedError(f"{type(self).__name__} defines neither answer nor answers")

    def answers(self, tasks: Sequence[Self], contexts: Sequence[ClientContext], trainer: Trainer) -> list[Reply]:
        """Do `tasks` (all with this one's batch key), one for each context."""
        return [task.answer(context, trainer) for task, context in zip(tasks, contexts, strict=True)]

    def batch_key(self) -> Hashable:
        """Tasks with equal keys are performed together."""
        return type(self)

    def perform(
        self,
        tasks: Sequence[Any],
        contexts: Sequence[ClientContext],
        trainer: Trainer,
        reduce: Reduction | None = None,
    ) -> ReplyBlock:
        """The answers; with `reduce` the vectors are added up instead of being returned one by one."""
        replies = self.answers(tasks, contexts, trainer)
        return reduced([with_norm(reply, trainer.layout) for reply in replies], reduce)


class Request(NamedTuple):
    """A task for one client."""

    client: str
    task: Task


def tensor_key(tensor: Tensor) -> Hashable:
    """Equal for views of the same numbers in memory, however often they were made, while the tensors live."""
    return tensor.data_ptr(), tensor.dtype, tensor.shape, tensor.stride()


def with_norm(reply: Reply, layout: Layout) -> Reply:
    """The reply with the norm of its vector; values that are there already stay."""
    if reply.vector is None or "norm" in reply.values:
        return reply
    whole_models = len(reply.vector) % layout.size == 0
    models = reply.vector.reshape(-1, layout.size) if whole_models else reply.vector[None]
    norm = float(torch.linalg.vector_norm(models[:, : layout.trainable]))
    return replace(reply, values={**reply.values, "norm": norm})


OPTIMIZER = "optimizer"
"""Where a client's state holds that of its optimiser."""


def train_clients(
    jobs: Sequence[TrainingJob], contexts: Sequence[ClientContext], trainer: Trainer, training: Training
) -> Trained:
    """Train every job, one for each context, and return the updates; clients keep their optimisers' states if asked."""
    if not (training.keep_optimizer and training.moments):
        return trainer.train(jobs, training)
    size = 1 + training.moments * trainer.layout.trainable
    memories = []
    for job, context in zip(jobs, contexts, strict=True):
        kept = context.state.get(OPTIMIZER)
        fits = kept is not None and len(kept) == size
        memories.append(kept.clone() if kept is not None and fits else job.start.new_zeros(size))
    trained = trainer.train([job._replace(memory=memory) for job, memory in zip(jobs, memories, strict=True)], training)
    for context, memory in zip(contexts, memories, strict=True):
        if torch.isfinite(memory).all():  # one that is not would spoil every later round
            context.state[OPTIMIZER] = memory
    return trained


def training_jobs(
    tasks: Sequence[Any], contexts: Sequence[ClientContext], starts: Sequence[Tensor]
) -> list[TrainingJob]:
    """Training of each client from its start, with its task's seed."""
    return [
        TrainingJob(context.client.train, start, task.seed)
        for task, context, start in zip(tasks, contexts, starts, strict=True)
    ]


def updates_of(trainer: Trainer, jobs: Sequence[TrainingJob], training: Training) -> Tensor:
    """The updates `(jobs, d)` of training every job."""
    vectors = trainer.train(jobs, training).vectors
    assert vectors is not None
    return vectors


def replies_to(
    contexts: Sequence[ClientContext],
    trained: Trained,
    choices: Sequence[int] | None = None,
    /,
    **values: Sequence[Any],
) -> list[Reply]:
    """A reply for each row of `trained`, with its loss and norm, and its vector unless they were added up."""
    vectors = [None] * len(contexts) if trained.vectors is None else trained.vectors
    groups = trained.groups if choices is None else choices
    columns = {"loss": trained.losses.tolist(), "norm": trained.norms.tolist(), **values}
    replies = []
    for i, (context, vector, group) in enumerate(zip(contexts, vectors, groups, strict=True)):
        own = {name: column[i] for name, column in columns.items()}
        replies.append(Reply(context.client.id, len(context.client.train), vector, own, group))
    return replies


def reduced(replies: list[Reply], reduce: Reduction | None) -> ReplyBlock:
    """The replies as they are or, with `reduce`, without their vectors and with the vectors' sums by group."""
    if reduce is None:
        return ReplyBlock(replies, {})
    sums: dict[int, Tensor] = {}
    light = []
    for reply, weight, group in zip(replies, reduce.weights, reduce.groups, strict=True):
        group = reply.group if group is None else group
        light.append(replace(reply, vector=None, group=group))
        if reply.vector is not None and math.isfinite(reply.norm):
            if group not in sums:
                sums[group] = torch.zeros(len(reply.vector), dtype=torch.float64)
            sums[group].add_(reply.vector, alpha=weight)
    return ReplyBlock(light, sums)


def perform(
    requests: Sequence[Request],
    contexts: Mapping[str, ClientContext],
    trainer: Trainer,
    reduce: Reduction | None = None,
) -> ReplyBlock:
    """Do all the requests, those with equal batch keys together; replies come in the order of the requests."""
    batches: dict[Hashable, list[int]] = {}
    for position, request in enumerate(requests):
        batches.setdefault(request.task.batch_key(), []).append(position)
    replies: dict[int, Reply] = {}
    sums: dict[int, Tensor] = {}
    for positions in batches.values():
        own = None if reduce is None else reduce.at(positions)
        block = _perform_batch([requests[p] for p in positions], contexts, trainer, own)
        replies |= dict(zip(positions, block.replies, strict=True))
        for group, total in block.sums.items():
            sums[group] = sums[group].add_(total) if group in sums else total
    return ReplyBlock([replies[position] for position in range(len(requests))], sums)


def _perform_batch(
    requests: Sequence[Request], contexts: Mapping[str, ClientContext], trainer: Trainer, reduce: Reduction | None
) -> ReplyBlock:
    """Do requests with equal batch keys; an error in a model names the client on whose data it happens."""
    tasks = [request.task for request in requests]
    own = [contexts[request.client] for request in requests]
    try:
        return tasks[0].perform(tasks, own, trainer, reduce)
    except ModelError as problem:
        raise _blamed(problem, tasks, own, trainer) from problem


def _blamed(
    problem: ModelError, tasks: Sequence[Task], contexts: Sequence[ClientContext], trainer: Trainer
) -> ModelError:
    """The error with the name of the client on whose data it happens: each is tried again, alone."""
    for task, context in zip(tasks, contexts, strict=True):
        try:
            task.perform([task], [context], trainer, None)
        except ModelError as again:
            return ModelError(f"client {context.client.id!r}: {again}")
    return problem
