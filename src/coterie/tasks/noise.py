"""How noisy a client's update is, from training on two halves of its data."""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor

from coterie.federation import Split
from coterie.parameters import Layout
from coterie.randomness import derive, torch_generator
from coterie.tasks.base import ClientContext, Number, Reply, ReplySchema, Task, updates_of
from coterie.trainers.base import Trainer, Training, TrainingJob


@dataclass(frozen=True)
class Noise(Task):
    """Report how noisy an update from `model` is: γ̂ = ‖Δa − Δb‖ / ‖Δa + Δb‖ over two halves of the data.

    A single sample has no halves, and a client that does not move shows nothing: their noise is infinite.
    """

    model: Tensor
    training: Training
    seed: int

    def schema(self, layout: Layout) -> ReplySchema:
        return ReplySchema(None, {"noise": Number(minimum=0, finite=False)})

    def batch_key(self) -> Hashable:
        return Noise, self.training

    def answers(self, tasks: Sequence[Self], contexts: Sequence[ClientContext], trainer: Trainer) -> list[Reply]:
        jobs = []
        for task, context in zip(tasks, contexts, strict=True):
            data = context.client.train
            order = torch.randperm(len(data), generator=torch_generator(task.seed, "halves"))
            for half, index in enumerate((order, order) if len(data) == 1 else order.chunk(2)):
                split = Split(data.x[index], data.y[index])
                jobs.append(TrainingJob(split, task.model, derive(task.seed, "half", half)))
        updates = updates_of(trainer, jobs, self.training)[:, : trainer.layout.trainable]
        a, b = updates[0::2], updates[1::2]
        total, difference = torch.linalg.vector_norm(a + b, dim=1), torch.linalg.vector_norm(a - b, dim=1)
        noise = torch.where(total > 0, difference / total, math.inf).tolist()
        sizes = [len(context.client.train) for context in contexts]
        return [
            Reply(context.client.id, n, values={"noise": value if n > 1 else math.inf})
            for context, n, value in zip(contexts, sizes, noise, strict=True)
        ]
