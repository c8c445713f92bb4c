"""A client's own fine-tuning of the model it was given, as a task."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from coterie.messages import NUMBER, Reply, Worksite
from coterie.parameters import Layout, span_size
from coterie.tasks import with_private
from coterie.workbench import Job, Training, Workbench


@dataclass(frozen=True)
class Personalise:
    """Train from `model` `(d,)` on the client's own data, keep the result, and report both models' test results.

    The values `loss` and `accuracy` are pairs: before and after. The client's own `private` layers, if it has any, are
    part of the model; its state does not change.
    """

    model: Tensor
    training: Training
    seed: int
    private: tuple[str, ...] = ()
    part: str = "test"

    def kind(self) -> tuple[Any, ...]:
        return (Personalise, self.training, self.private, self.part)

    def down(self, layout: Layout) -> int:
        return NUMBER * (layout.size - span_size(layout.select(self.private)))

    def perform(self, tasks: Sequence[Personalise], sites: Sequence[Worksite], bench: Workbench) -> list[Reply]:
        spans = bench.layout.select(self.private)
        starts = [with_private(task.model, spans, site.state) for task, site in zip(tasks, sites, strict=True)]
        jobs = [
            Job(site.client.train, start, task.seed) for task, site, start in zip(tasks, sites, starts, strict=True)
        ]
        updates, _ = bench.train(jobs, self.training)
        replies = []
        for site, start, update in zip(sites, starts, updates, strict=True):
            split = site.client.part(self.part)
            losses, accuracies = bench.evaluate([split], torch.stack([start, start + update]))
            values = {"loss": losses[0].tolist(), "accuracy": accuracies[0].tolist()}
            replies.append(Reply(site.client.id, len(split), values=values, up=NUMBER * 4))
        return replies
