"""The full-batch gradient of a client's training loss."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Self

from torch import Tensor

from coterie.parameters import Layout
from coterie.tasks.base import (
    ClientContext,
    Number,
    Reply,
    ReplySchema,
    Task,
    replies_to,
    tensor_key,
)
from coterie.trainers.base import Trained, Trainer


@dataclass(frozen=True)
class Gradient(Task):
    """Send the full-batch gradient of the client's training loss at `model`."""

    model: Tensor

    def schema(self, layout: Layout) -> ReplySchema:
        return ReplySchema(layout.size, {"loss": Number()}, private=buffer_spans(layout))

    def batch_key(self) -> Hashable:
        return Gradient, tensor_key(self.model)

    def answers(self, tasks: Sequence[Self], contexts: Sequence[ClientContext], trainer: Trainer) -> list[Reply]:
        gradients, losses = trainer.gradient([context.client.train for context in contexts], self.model)
        return replies_to(contexts, Trained.of(gradients, losses, trainer.layout))


def buffer_spans(layout: Layout) -> tuple[slice, ...]:
    """The places of the buffers, where a gradient is always zero."""
    return layout.complement((slice(0, layout.trainable),))
