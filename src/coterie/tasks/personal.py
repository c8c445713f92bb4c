"""Ditto's side of a client: a model of its own, trained beside the one it was sent and pulled towards it."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from coterie.tasks.base import ClientContext
from coterie.trainers.base import Trainer, Training, TrainingJob


def train_personal_models(
    models: Sequence[Tensor],
    seeds: Sequence[int],
    contexts: Sequence[ClientContext],
    trainer: Trainer,
    training: Training,
) -> None:
    """Train every client's own model, v, whose proximal term pulls it to the model `(d,)` that the client was sent.

    The client keeps v in its state and sends nothing of it. A client without one begins with the model it was sent; a
    training that ends in numbers that are not finite leaves v as it was.
    """
    own = [context.state.get("private", model) for context, model in zip(contexts, models, strict=True)]
    jobs = [
        TrainingJob(context.client.train, start, seed, centre=model)
        for context, start, seed, model in zip(contexts, own, seeds, models, strict=True)
    ]
    updates = trainer.train(jobs, training).vectors
    assert updates is not None
    for context, start, update in zip(contexts, own, updates, strict=True):
        after = start + update
        if torch.isfinite(after).all():
            context.state["private"] = after
