"""FedCUAU's two measures, for any method: one model on all clients' test data, and models that clients fine-tuned."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from torch import Tensor

from coterie.engines.base import Engine
from coterie.methods import Assignment
from coterie.randomness import derive
from coterie.runs.records import Spread
from coterie.tasks import Evaluate, Personalise, Reply, Request
from coterie.trainers.base import Training

EPOCHS = 5
"""Local passes of personalisation in the paper."""


def personalised(
    assignment: Assignment, engine: Engine, training: Training, seed: int, *, epochs: int = EPOCHS
) -> list[Reply]:
    """Every client fine-tunes its model for `epochs` on all layers; `training` gives step size and batches.

    The replies' values `loss` and `accuracy` are pairs, before and after, on test data.
    """
    how = replace(training, epochs=epochs, steps=None, proximal=0.0, layers=())
    requests = [
        Request(
            served.client,
            Personalise(served.model, how, derive(seed, "personalise", served.client), assignment.private),
        )
        for served in assignment.served()
    ]
    replies = {reply.client: reply for block in engine.run(requests) for reply in block.replies}
    return [replies[client] for client in engine.clients if client in replies]


def personalised_accuracy(replies: Sequence[Reply], clients: Sequence[str] | None = None) -> float | None:
    """Mean accuracy after fine-tuning, over all clients or those named."""
    after = [r.values["accuracy"][1] for r in replies if clients is None or r.client in clients]
    return Spread.of(after).mean


def global_accuracy(model: Tensor, engine: Engine) -> float:
    """Accuracy of one model `(d,)` on the union of all clients' test data: FedCUAU's initial accuracy, given C1's.

    NaN where no client has test data.
    """
    task = Evaluate(model[None])
    replies = [
        reply for block in engine.run([Request(client, task) for client in engine.clients]) for reply in block.replies
    ]
    known = [(reply.values["accuracy"][0], reply.samples) for reply in replies if reply.samples]
    if not known:
        return float("nan")
    values, weights = zip(*known, strict=True)
    return float(np.average(values, weights=weights))
