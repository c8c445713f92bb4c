"""FedCUAU's two measures, for any method: one model on all clients' test data, and models that clients fine-tuned."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from torch import Tensor

from coterie.engines.base import Engine
from coterie.methods import Assignment
from coterie.randomness import derive
from coterie.runs.records import Spread
from coterie.tasks import Evaluate, Personalise, Request
from coterie.trainers.base import Training

EPOCHS = 5
"""Local passes of personalisation in the paper."""


@dataclass(frozen=True)
class PersonalScore:
    """A client's test results with the model it was given, before and after its own fine-tuning."""

    client: str
    cluster: int
    samples: int
    loss: tuple[float, float]
    accuracy: tuple[float, float]


def personalised(
    assignment: Assignment, engine: Engine, training: Training, seed: int, *, epochs: int = EPOCHS
) -> list[PersonalScore]:
    """Every client fine-tunes its model for `epochs` on all layers; `training` gives step size and batches."""
    how = replace(training, epochs=epochs, steps=None, proximal=0.0, layers=())
    requests, cluster_of = [], {}
    for served in assignment.served():
        task = Personalise(served.model, how, derive(seed, "personalise", served.client), assignment.private)
        requests.append(Request(served.client, task))
        cluster_of[served.client] = served.cluster
    scores = {}
    for block in engine.run(requests):
        for reply in block.replies:
            loss, accuracy = reply.values["loss"], reply.values["accuracy"]
            scores[reply.client] = PersonalScore(
                reply.client, cluster_of[reply.client], reply.samples, (loss[0], loss[1]), (accuracy[0], accuracy[1])
            )
    return [scores[client] for client in engine.clients if client in scores]


def personalised_accuracy(scores: Sequence[PersonalScore], clients: Sequence[str] | None = None) -> float | None:
    """Mean accuracy after fine-tuning, over all clients or those named."""
    return Spread.of([score.accuracy[1] for score in scores if clients is None or score.client in clients]).mean


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
