"""Mixtures of models by EM: how likely each model is to have made a client's samples, and training by that.

FedEM (Marfoq et al. 2021) takes exp(−loss) for the likelihood of a sample under a model. FedRC (Guo et al. 2024)
divides it by how often the sample's label occurs among the samples of that model.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor

from coterie.errors import ConfigError
from coterie.federation import Client, Split
from coterie.parameters import Layout
from coterie.tasks import (
    Array,
    ClientContext,
    Number,
    Reply,
    ReplySchema,
    Task,
    outputs_by_client,
    tensor_key,
    updates_of,
)
from coterie.trainers import Trainer, Training, TrainingJob

SMALLEST = 1e-8
"""The least share of a label among a model's samples: one never seen there would make its samples infinitely likely."""


@dataclass(frozen=True)
class MixtureWeights(Task):
    """Report how much of the training data each of k models `(k, d)` accounts for: `weights`, which sum to one.

    They are those of `steps` steps of EM from equal weights, the models held fixed. `labels` as in `MixtureTraining`.
    """

    models: Tensor
    steps: int
    labels: Tensor | None = None

    def schema(self, layout: Layout) -> ReplySchema:
        return ReplySchema(None, {"weights": _shares(len(self.models))})

    def batch_key(self) -> Hashable:
        return MixtureWeights, tensor_key(self.models), self.steps, _key(self.labels)

    def cost(self, client: Client) -> float:
        return float(len(self.models) * len(client.train))

    def answers(self, tasks: Sequence[Self], contexts: Sequence[ClientContext], trainer: Trainer) -> list[Reply]:
        data = [context.client.train for context in contexts]
        replies = []
        for context, losses in zip(contexts, sample_losses_of(data, self.models, trainer), strict=True):
            split = context.client.train
            weights = torch.full((len(self.models),), 1 / len(self.models), dtype=torch.float64)
            for _ in range(self.steps):
                weights = responsibilities(losses + rarity(split.y, self.labels), weights).mean(0)
            replies.append(Reply(context.client.id, len(split), values={"weights": _as_sent(weights)}))
        return replies


@dataclass(frozen=True)
class MixtureTraining(Task):
    """One step of EM: the chance q that each of k models `(k, d)` made each sample, then training of each by it.

    `weights` `(k,)` are what the client has of each model so far. The reply's vector holds the k updates one after
    another, `(k · d,)`; its `weights` are the means of q, its `loss` that of the mixture before training. All models
    see the same batches. With `labels` `(k, classes)`, the share of each label among each model's samples, a sample's
    likelihood is divided by its label's share, and the client also reports `counts` `(k, classes)`: the sums of q by
    label.
    """

    models: Tensor
    weights: Tensor
    training: Training
    seed: int
    labels: Tensor | None = None

    def schema(self, layout: Layout) -> ReplySchema:
        k = len(self.models)
        values: dict[str, Number | Array] = {"loss": Number(), "weights": _shares(k)}
        if self.labels is not None:
            values["counts"] = Array((k, None), minimum=0)
        return ReplySchema(k * layout.size, values)

    def batch_key(self) -> Hashable:
        return MixtureTraining, tensor_key(self.models), self.training, _key(self.labels)

    def cost(self, client: Client) -> float:
        return len(self.models) * (super().cost(client) + len(client.train))

    def answers(self, tasks: Sequence[Self], contexts: Sequence[ClientContext], trainer: Trainer) -> list[Reply]:
        data = [context.client.train for context in contexts]
        shares, values = [], []
        for task, split, losses in zip(tasks, data, sample_losses_of(data, self.models, trainer), strict=True):
            weights = task.weights.double()
            q = responsibilities(losses + rarity(split.y, self.labels), weights)
            shares.append(q)
            values.append({"loss": mixture_loss(losses, weights), "weights": _as_sent(q.mean(0))})
            if self.labels is not None:
                values[-1]["counts"] = label_counts(split.y, q)
        jobs = [
            TrainingJob(split, model, task.seed, weights=q[:, m])
            for m, model in enumerate(self.models)
            for task, split, q in zip(tasks, data, shares, strict=True)
        ]
        by_model = updates_of(trainer, jobs, self.training).view(len(self.models), len(tasks), -1)
        by_client = by_model.transpose(0, 1).flatten(1)
        return [
            Reply(context.client.id, len(context.client.train), vector, own)
            for context, vector, own in zip(contexts, by_client, values, strict=True)
        ]


def _shares(k: int) -> Array:
    return Array((k,), minimum=0, maximum=1)


def _key(labels: Tensor | None) -> Hashable:
    return None if labels is None else tensor_key(labels)


def _as_sent(weights: Tensor) -> list[float]:
    """Weights as they are sent, in float32: the same numbers on every engine."""
    sent: list[float] = weights.float().tolist()
    return sent


def sample_losses_of(data: Sequence[Split], models: Tensor, trainer: Trainer) -> list[Tensor]:
    """The loss of each sample under each model, `(n, k)` float64 for every client; infinite where it is no number."""
    found = [torch.empty(0, len(models), dtype=torch.float64)] * len(data)

    def take(i: int, outputs: Tensor) -> None:
        found[i] = trainer.losses_of(outputs, data[i].y).t().double().nan_to_num(nan=torch.inf)

    outputs_by_client(data, models, trainer, take)
    return found


def responsibilities(losses: Tensor, weights: Tensor) -> Tensor:
    """The E-step: q_sm ∝ π_m exp(−loss_sm), `(n, k)`, rows that sum to one; equal where no model is possible at all."""
    q = torch.softmax(weights.log() - losses, dim=1)
    return q.nan_to_num(nan=1 / losses.shape[1])


def mixture_loss(losses: Tensor, weights: Tensor) -> float:
    """The mean over samples of −log Σ_m π_m exp(−loss_sm)."""
    return float(-torch.logsumexp(weights.log() - losses, dim=1).mean())


def rarity(targets: Tensor, labels: Tensor | None) -> Tensor:
    """log C(y, m) of every sample `(n, k)`, a mean over its labels where it has several; zero without `labels`."""
    if labels is None:
        return torch.zeros((), dtype=torch.float64)
    y = _checked(targets)
    known = torch.full((len(labels), max(labels.shape[1], int(y.max()) + 1)), SMALLEST, dtype=torch.float64)
    known[:, : labels.shape[1]] = labels.double().clamp_min(SMALLEST)
    return known.log()[:, y].mean(2).t()


def label_counts(targets: Tensor, q: Tensor) -> Tensor:
    """The sum of q over the samples of each label, `(k, classes)` float32; a sample of several labels is divided."""
    y = _checked(targets)
    hot = torch.nn.functional.one_hot(y).double().mean(1)  # (n, classes)
    return (q.t() @ hot).float()


def _checked(targets: Tensor) -> Tensor:
    """Labels as `(n, labels)`; ConfigError for real targets."""
    if targets.is_floating_point():
        raise ConfigError("labels are to be counted, and the targets are real numbers: use fedem in place of fedrc")
    return targets.reshape(len(targets), -1).long()
