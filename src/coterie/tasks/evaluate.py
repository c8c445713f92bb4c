"""Loss and accuracy of given models on a client's own data."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from coterie.federation import Client
from coterie.parameters import Layout
from coterie.tasks.base import Array, ClientContext, Reduction, Reply, ReplyBlock, ReplySchema, Task, tensor_key
from coterie.tasks.train import with_private
from coterie.trainers.base import Trainer


@dataclass(frozen=True)
class Evaluate(Task):
    """Report the mean loss and accuracy of each of k models `(k, d)` on one part of the client's data."""

    models: Tensor
    part: str = "test"
    private: tuple[str, ...] = ()

    def schema(self, layout: Layout) -> ReplySchema:
        return ReplySchema(None, scores_schema(len(self.models)), part=self.part)

    def batch_key(self) -> Hashable:
        return Evaluate, self.part, self.private, tensor_key(self.models)

    def cost(self, client: Client) -> float:
        return float(len(self.models) * len(client.part(self.part)))

    def perform(
        self,
        tasks: Sequence[Evaluate],
        contexts: Sequence[ClientContext],
        trainer: Trainer,
        reduce: Reduction | None = None,
    ) -> ReplyBlock:
        data = [context.client.part(self.part) for context in contexts]
        spans = trainer.layout.select(self.private)
        if spans:
            # Every client has models of its own, so nothing is shared.
            rows = [
                trainer.evaluate([split], torch.stack([with_private(m, spans, context.state) for m in self.models]))
                for split, context in zip(data, contexts, strict=True)
            ]
            losses, accuracies = (torch.cat(column) for column in zip(*rows, strict=True))
        else:
            losses, accuracies = trainer.evaluate(data, self.models)
        replies = [
            Reply(context.client.id, len(split), values={"loss": loss, "accuracy": accuracy})
            for context, split, loss, accuracy in zip(contexts, data, losses.tolist(), accuracies.tolist(), strict=True)
        ]
        return ReplyBlock(replies, {})


def scores_schema(k: int) -> dict[str, Array]:
    """The losses and accuracies of k models; NaN where the client has no such data."""
    return {"loss": Array((k,), finite=False), "accuracy": Array((k,), minimum=0, maximum=1, finite=False)}
