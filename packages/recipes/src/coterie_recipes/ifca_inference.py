"""How IFCA's Table 1 is measured: on test machines that never trained, each with the model of its lowest loss."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor, nn

from coterie import Client, Federation, Split
from coterie.data import load_source, rotate
from coterie.engines import LocalEngine
from coterie.errors import ConfigError
from coterie.models import build
from coterie.randomness import numpy_generator
from coterie.runs import RunConfig
from coterie.tasks import Evaluate, Request

MODELS_AT_ONCE = 32


class Score(NamedTuple):
    """Mean accuracy over the test machines, and how many of them chose each model."""

    accuracy: float
    chosen: list[int]


def rotated_machines(source: str, groups: int, samples: int | None, seed: int, data_dir: Path | None) -> Federation:
    """The test set, rotated for each group and cut into machines of `samples` images (None: one machine per group).

    `groups` rotations of 10000 images give 10000·groups/samples machines. The images are in the part `test`; a
    federation needs training data too, so each machine has one image there that is never used.
    """
    pool = load_source(source, data_dir)
    size = samples or len(pool.y_test)
    each = len(pool.y_test) // size
    if not each:
        raise ConfigError(f"samples={size}: the test set of {source!r} has {len(pool.y_test)} images: ask for fewer")
    machines, digits = [], len(str(groups * each - 1))
    for group in range(groups):
        order = numpy_generator(seed, "test-machines", group).permutation(len(pool.y_test))
        for number in range(each):
            index = order[number * size : (number + 1) * size]
            x = rotate(pool.images(index, "test"), group * (4 // groups))
            y = pool.labels(index, "test")
            name = f"machine-{group * each + number:0{digits}}"
            machines.append(Client(name, Split(x[:1], y[:1]), Split(x[:0], y[:0]), Split(x, y), group))
    return Federation(machines, pool.classes, f"{source}-test")


def lowest_loss_score(models: Tensor, machines: Federation, config: RunConfig) -> Score:
    """The accuracy of every machine with the one of the models `(k, d)` that has its lowest loss."""
    accuracies, chosen = [], [0] * len(models)
    for losses, row in _evaluated(models, machines, machines.ids, config):
        best = int(losses.argmin())
        accuracies.append(float(row[best]))
        chosen[best] += 1
    return Score(sum(accuracies) / len(accuracies), chosen)


def own_group_accuracies(
    models: Sequence[Tensor], groups: Sequence[int], machines: Federation, config: RunConfig
) -> list[float]:
    """The accuracy of each local model on all test data of its own group; `machines` has one machine per group."""
    accuracies = [0.0] * len(models)
    for machine in machines:
        own = [i for i, group in enumerate(groups) if group == machine.group]
        for start in range(0, len(own), MODELS_AT_ONCE):
            part = own[start : start + MODELS_AT_ONCE]
            stacked = torch.stack([models[i] for i in part])
            for _, row in _evaluated(stacked, machines, [machine.id], config):
                for i, accuracy in zip(part, row.tolist(), strict=True):
                    accuracies[i] = accuracy
    return accuracies


def _evaluated(
    models: Tensor, machines: Federation, ids: Sequence[str], config: RunConfig
) -> list[tuple[Tensor, Tensor]]:
    """Losses and accuracies `(k,)` of the models on each named machine's test data."""

    def architecture(seed: int) -> nn.Module:
        return build(config.model or "mlp", machines.input_shape, machines.classes, seed)

    engine = LocalEngine(machines, architecture, workers=config.workers)
    try:
        replies = [
            reply for block in engine.run([Request(i, Evaluate(models)) for i in ids]) for reply in block.replies
        ]
    finally:
        engine.close()
    return [(torch.tensor(reply.values["loss"]), torch.tensor(reply.values["accuracy"])) for reply in replies]
