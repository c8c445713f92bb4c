"""Does a module of the user's own depend on nothing but its parameters, its inputs and torch's generator?

The same small job is done twice: a hidden state or NumPy's random numbers give two results, and then runs differ
from time to time and with the number of workers.
"""

from __future__ import annotations

import warnings

import torch
from torch import Tensor, nn

from coterie.errors import ConfigError, ModelError
from coterie.federation import Split
from coterie.trainers.base import Trainer, Training, TrainingJob

SAMPLES = 8
"""Samples of the job that is done twice."""
KNOWN = ("torch.nn.modules.", "coterie.models.")
"""Packages whose modules need no trial."""


def is_own(module: nn.Module) -> bool:
    """Whether any part of the module is of the user's own."""
    return not all(type(part).__module__.startswith(KNOWN) for part in module.modules())


def check_repeatable(trainer: Trainer, start: Tensor, data: Split) -> None:
    """Try a module of the user's own out on a few samples, in training and in evaluation.

    Args:
        trainer: trains it.
        start: a model `(d,)`.
        data: a client's samples.

    Raises:
        ConfigError: the module changes its inputs in place, and so would change the user's data.
    """
    trial = Split(data.x[:SAMPLES].clone(), data.y[:SAMPLES].clone())
    results = []
    try:
        for _ in range(2):
            given = Split(trial.x.clone(), trial.y.clone())
            trained = trainer.train([TrainingJob(given, start, 0)], Training(lr=0.01, steps=1, batch_size=None))
            losses, _ = trainer.evaluate([given], start[None])
            results.append((trained.vectors, losses))
            if not torch.equal(given.x, trial.x):
                raise ConfigError(
                    "the model changes its inputs in place, and so your data: let it work on a copy (x = x * 2, not "
                    "x.mul_(2))"
                )
    except ModelError:
        return  # training itself says it, with the client's name
    if not all(_same(a, b) for a, b in zip(*results, strict=True)):
        warnings.warn(
            "the model gives two results for the same job: it depends on more than its parameters and torch's "
            "generator (a hidden state, NumPy's random numbers?), so this run cannot be repeated exactly",
            stacklevel=2,
        )


def _same(a: Tensor | None, b: Tensor | None) -> bool:
    if a is None or b is None:
        return a is b
    return torch.equal(a, b) or torch.equal(a.nan_to_num(), b.nan_to_num())
