"""FedSoft's two tasks for a client: how much of its data each centre fits best, and training of its own model."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Annotated, Self

import torch
from torch import Tensor

from coterie.federation import Client, Split
from coterie.parameters import Layout
from coterie.tasks import Array, ClientContext, Number, Reply, ReplySchema, Sent, Task, replies_to, tensor_key
from coterie.trainers import Trainer, Training, TrainingJob
from coterie_field.mixture_tasks import sample_losses_of


@dataclass(frozen=True)
class ImportanceWeights(Task):
    """Report for each of k models `(k, d)` the share of training samples that have their lowest loss under it.

    A model that fits no sample best counts as `smoothing`; the `weights` are made to sum to one.
    """

    models: Tensor
    smoothing: float

    def schema(self, layout: Layout) -> ReplySchema:
        return ReplySchema(None, {"weights": Array((len(self.models),), minimum=0, maximum=1)})

    def batch_key(self) -> Hashable:
        return ImportanceWeights, tensor_key(self.models), self.smoothing

    def cost(self, client: Client) -> float:
        return float(len(self.models) * len(client.train))

    def answers(self, tasks: Sequence[Self], contexts: Sequence[ClientContext], trainer: Trainer) -> list[Reply]:
        data = [context.client.train for context in contexts]
        losses = sample_losses_of(data, self.models, trainer)
        return [
            Reply(context.client.id, len(split), values={"weights": importance(rows, self.smoothing)})
            for context, split, rows in zip(contexts, data, losses, strict=True)
        ]


@dataclass(frozen=True)
class SoftTraining(Task):
    """Train the client's own model near the mean Σ_s u_s c_s of `centres` `(k, d)`, and keep it.

    `weights` `(k,)` are the u_s; without them the client first finds its own, as in `ImportanceWeights`. The proximal
    term of `training` draws to that mean: λ/2 Σ_s u_s ‖w − c_s‖² has its gradient. A client without a model of its own
    starts from `start`, which it draws from the seed `init`. The reply's vector is the new model minus the mean.
    """

    start: Annotated[Tensor, Sent(drawn="init")]
    centres: Tensor
    weights: Tensor | None
    smoothing: float
    training: Training
    seed: int
    init: int | None = None

    @property
    def keeps_state(self) -> bool:
        """The client keeps its own model."""
        return True

    def schema(self, layout: Layout) -> ReplySchema:
        weights = Array((len(self.centres),), minimum=0, maximum=1)
        return ReplySchema(layout.size, {"loss": Number(), "weights": weights})

    def batch_key(self) -> Hashable:
        together = tensor_key(self.centres) if self.weights is None else None
        return SoftTraining, together, self.smoothing, self.training

    def cost(self, client: Client) -> float:
        return super().cost(client) + len(self.centres) * len(client.train)

    def answers(self, tasks: Sequence[Self], contexts: Sequence[ClientContext], trainer: Trainer) -> list[Reply]:
        data = [context.client.train for context in contexts]
        weights = self._importance(tasks, data, trainer)
        means = [mean_centre(task.centres, own) for task, own in zip(tasks, weights, strict=True)]
        jobs = [
            TrainingJob(split, context.state.get("private", task.start), task.seed, centre=mean)
            for task, context, split, mean in zip(tasks, contexts, data, means, strict=True)
        ]
        trained = trainer.train(jobs, self.training)
        assert trained.vectors is not None
        for row, job, context, mean in zip(trained.vectors, jobs, contexts, means, strict=True):
            own = job.start + row
            if torch.isfinite(own).all():
                context.state["private"] = own
            torch.sub(own, mean, out=row)
        norms = torch.linalg.vector_norm(trained.vectors[:, : trainer.layout.trainable], dim=1)
        return replies_to(contexts, trained._replace(norms=norms), weights=weights)

    def _importance(self, tasks: Sequence[Self], data: Sequence[Split], trainer: Trainer) -> list[list[float]]:
        """The weights of each client: those that its task gives, or those that it finds."""
        if self.weights is None:
            losses = sample_losses_of(data, self.centres, trainer)
            return [importance(rows, self.smoothing) for rows in losses]
        return [task.weights.tolist() for task in tasks if task.weights is not None]


def importance(losses: Tensor, smoothing: float) -> list[float]:
    """u_s ∝ max(share of the samples with their lowest loss `(n, k)` at s, smoothing), float32; ties to the first."""
    n, k = losses.shape
    shares = torch.bincount(losses.argmin(1), minlength=k).double() / max(n, 1)
    shares = shares.clamp_min(smoothing)
    weights: list[float] = (shares / shares.sum()).float().tolist()
    return weights


def mean_centre(centres: Tensor, weights: Sequence[float]) -> Tensor:
    """Σ_s u_s c_s `(d,)`, in float64 and rounded once: the same on every machine."""
    shares = torch.tensor(weights, dtype=torch.float64)
    return ((shares / shares.sum()) @ centres.double()).to(centres.dtype)
