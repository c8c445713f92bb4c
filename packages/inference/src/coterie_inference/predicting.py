"""A finished run's models at work: choose one, predict, and measure it on new data."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn

from coterie.errors import ConfigError, users_code
from coterie.metrics import ALWAYS, METRICS, compute
from coterie.parameters import span_size
from coterie.runs.records import model_file
from coterie.runs.target_scaling import TargetScaling
from coterie.trainers.losses import (
    Loss,
    binary_loss,
    class_logits,
    correct,
    default_loss,
    predicted_labels,
    sample_losses,
)
from coterie_inference.samples import ModelShape, read_samples

if TYPE_CHECKING:
    from coterie.runs import Result

AT_ONCE = 1024
"""Samples that go through a model together; it bounds memory."""


def shape_of(result: Result) -> ModelShape:
    """What the run's model takes and answers."""
    if not result.shape:
        raise ConfigError("what the model takes is not known here: load the run from its folder, coterie.load(folder)")
    return ModelShape.of(result.shape, result.table)


def _cluster_vector(result: Result, cluster: int | None) -> Tensor:
    """The parameters `(d,)` of a cluster's model; without a cluster, of the only model there is."""
    ids = result.summary.cluster_ids
    if cluster is None:
        if len(ids) > 1 or len(result.files) > 1:
            raise ConfigError(f"the run has models for clusters {_listed(ids)}: say which by client=… or cluster=…")
        cluster = ids[0]
    members = dict(zip(ids, result.clusters, strict=True)).get(cluster, [])
    alone = result.record_of(members[0]) if len(members) == 1 else None
    if alone is not None and (alone.private or not alone.mixture):
        return result.vector_of(alone.client)
    whole = span_size(result.layout.select(result.private_layers)) == result.layout.size  # beside a client's own model
    if any(row.private for row in result.clients) and not whole:
        raise ConfigError(
            f"the clients of cluster {cluster} keep layers of their own, so it has no whole model: give client=…"
        )
    if model_file(cluster) not in result.files:
        known = f"there is one of {_listed(ids)}" if result.files else "it kept no models"
        raise ConfigError(f"the run has no model of cluster {cluster}: {known}")
    return result.files[model_file(cluster)]


def _listed(ids: Sequence[int], most: int = 12) -> str:
    return ", ".join(map(str, ids[:most])) + (", …" if len(ids) > most else "")


def module_for(result: Result, client: str | None = None, cluster: int | None = None) -> nn.Module:
    """A client's model or a cluster's, in evaluation mode; without either, the only model there is."""
    if client is not None and cluster is not None:
        raise ConfigError(f"client={client!r} and cluster={cluster!r}: give one of the two")
    if client is not None:
        return result.model_of(client)
    return result.module_with(_cluster_vector(result, cluster))


def outputs_of(module: nn.Module, x: Tensor) -> Tensor:
    """What a module says of samples `(n, …)`: `(n, …, outputs)`."""
    with torch.no_grad(), users_code("the model"):
        return torch.cat([module(part) for part in x.split(AT_ONCE)])


def predict(
    result: Result, inputs: Any, client: str | None = None, cluster: int | None = None, *, probabilities: bool = False
) -> np.ndarray:
    """Class labels `(n,)`, probabilities `(n, classes)`, or numbers; see `Result.predict`."""
    shape = shape_of(result)
    x = read_samples(inputs, shape).x
    outputs = outputs_of(module_for(result, client, cluster), x)
    if not shape.classes:
        if probabilities:
            raise ConfigError("probabilities=True goes with classes, and this run is a regression: leave it out")
        return np.asarray((outputs[:, 0] if outputs.ndim == 2 and outputs.shape[1] == 1 else outputs).numpy())
    loss = loss_of(result, outputs, shape)
    if probabilities:
        return np.asarray(torch.softmax(class_logits(outputs, loss), -1).numpy())
    return shape.named(predicted_labels(outputs, loss))


def evaluate(
    result: Result,
    data: Any,
    client: str | None = None,
    cluster: int | None = None,
    *,
    metrics: Any = None,
) -> dict[str, float]:
    """Loss, accuracy and further metrics of a model on labelled data; see `Result.evaluate`."""
    shape = shape_of(result)
    x, y = read_samples(data, shape, labelled=True)
    assert y is not None
    outputs = outputs_of(module_for(result, client, cluster), x)
    loss = loss_of(result, outputs, shape)
    scaling = TargetScaling.of(result.table)
    with users_code("the loss"):
        value = float(loss(scaling.to_standard(outputs), scaling.to_standard(y)))
    found = {"loss": value * scaling.loss_unit(loss)}
    if shape.classes:
        found["accuracy"] = float(correct(outputs, y, loss))
    if metrics is None:  # those of the run; functions of one's own are given again
        metrics = [name for name in result.summary.metrics if name in METRICS and name not in ALWAYS]
    return found | compute(metrics, outputs, y) if metrics else found


def loss_of(result: Result, outputs: Tensor, shape: ModelShape) -> Loss:
    """The run's loss; where it is not known, the one that goes with the targets and with such outputs."""
    own: Loss | None = result.placing.loss if result.placing else None
    one_logit = shape.classes == 2 and (outputs.ndim == 1 or outputs.shape[-1] == 1)
    return own or (binary_loss if one_logit else default_loss(not shape.classes))


def losses_of(result: Result, outputs: Tensor, y: Tensor, shape: ModelShape) -> Tensor:
    """The loss of every sample `(n,)`."""
    loss, scaling = loss_of(result, outputs, shape), TargetScaling.of(result.table)
    with users_code("the loss"):
        found = sample_losses(loss, scaling.to_standard(outputs)[None], scaling.to_standard(y))[0]
    return found * scaling.loss_unit(loss)
