"""False answers to what decides about clusters: losses in IFCA's start, half-updates and losses in CFL's checks."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from coterie.randomness import torch_generator
from coterie.tasks import Choose, Evaluate, HalfUpdates, HeldOut, Reply, Request, Train

WORST, BEST = 1e3, 0.0
"""Losses that are claimed."""
LONG = 3.0
"""Times the length of its own half-update."""


class Claims:
    """Answers of a hostile client in place of the true ones; some remember what passed before."""

    def false(self, request: Request, reply: Reply, alone: bool) -> Reply:
        """The reply that is sent; `alone`: no other client was asked at the same time."""
        raise NotImplementedError


class FallingLoss(Claims):
    """Training that goes ever better: the k-th loss that is claimed is 1/k."""

    def __init__(self) -> None:
        self.trained = 0

    def false(self, request: Request, reply: Reply, alone: bool) -> Reply:
        """Claim the next loss for training, and answer the rest truly."""
        if not isinstance(request.task, Train | Choose) or "loss" not in reply.values:
            return reply
        self.trained += 1
        return _with(reply, loss=1 / self.trained)


class Seeding(Claims):
    """Every model but those that hostile clients seeded is claimed to be useless, so that IFCA takes theirs."""

    def __init__(self) -> None:
        self.seeded: list[Tensor] = []

    def false(self, request: Request, reply: Reply, alone: bool) -> Reply:
        """Remember what was trained alone, and claim losses by that."""
        task = request.task
        if isinstance(task, Train) and alone and reply.vector is not None:
            self.seeded.append(task.model + reply.vector)
        if isinstance(task, Evaluate) and task.part == "train":
            return _with(reply, loss=[BEST if self._ours(model) else WORST for model in task.models])
        return reply

    def _ours(self, model: Tensor) -> bool:
        return any(torch.allclose(model, own, atol=1e-6) for own in self.seeded)


class Veto(Claims):
    """A half-update in a random direction, and one model for all is claimed to be best."""

    def false(self, request: Request, reply: Reply, alone: bool) -> Reply:
        """Answer CFL's checks falsely."""
        if isinstance(request.task, HalfUpdates) and reply.vector is not None:
            generator = torch_generator(request.task.seed, "veto")
            drawn = torch.randn(len(reply.vector), generator=generator, dtype=reply.vector.dtype)
            return replace(reply, vector=LONG * drawn * float(reply.vector.norm() / drawn.norm()))
        return _held_out(request, reply, BEST, WORST)


class ForcedSplit(Claims):
    """Half-updates turned around, and every split is claimed to help."""

    def false(self, request: Request, reply: Reply, alone: bool) -> Reply:
        """Answer CFL's checks falsely."""
        if isinstance(request.task, HalfUpdates) and reply.vector is not None:
            return replace(reply, vector=-LONG * reply.vector)
        return _held_out(request, reply, WORST, BEST)


def _held_out(request: Request, reply: Reply, joint: float, others: float) -> Reply:
    """False losses of the first model and of the others, with certainty."""
    if not isinstance(request.task, HeldOut):
        return reply
    count = request.task.models.shape[1]
    scales = len(reply.values["loss"]) // count
    loss = ([joint] + [others] * (count - 1)) * scales
    return _with(reply, loss=loss, within=[0.0] * (count - 1))


def _with(reply: Reply, **values: object) -> Reply:
    return replace(reply, values={**reply.values, **values})
