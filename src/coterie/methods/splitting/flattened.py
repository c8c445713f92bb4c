"""A rule for clients that can only train and evaluate: split once the loss has stopped falling and the sides differ.

Where one model can fit all members, the loss keeps falling as a power of the rounds; where it cannot, it flattens.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import ClassVar, Literal

import numpy as np
from pydantic import PositiveFloat, PositiveInt

from coterie.methods.base import Event
from coterie.methods.server import Server
from coterie.methods.splitting.base import LeafRound, Look, SplitRule, split_rule
from coterie.methods.splitting.paper import compare_and_split, measured_noise
from coterie.snapshot import saved
from coterie.tasks import Noise, Task

LEAST_ROUNDS = 8
"""Rounds that a cluster must have had before its loss curve says anything."""
TOLERANCE = 0.05
"""An exponent that has grown by more than this is on the rise, as it is after a slow start."""


@saved
class Curve:
    """The losses of a cluster since it began, and the round in which its updates were last compared."""

    losses: tuple[float, ...] = ()
    considered: int = 0


@split_rule("flattened")
class FlattenedRule(SplitRule):
    """Split where the training loss has flattened and the sides differ by more than the clients' noise."""

    tasks: ClassVar[tuple[type[Task], ...]] = (Noise,)

    exponent: PositiveFloat = 0.3
    """A loss that falls slower than round^−exponent has flattened."""
    wait: PositiveInt = 20
    """Rounds before the first split of a cluster."""
    recheck: PositiveInt = 5
    """Rounds until a refused split is considered again."""
    min_size: PositiveInt = 1
    """Smallest cluster a split may make."""
    linkage: Literal["single", "complete"] = "single"
    """As in rule=paper."""

    def begin(self) -> Curve:
        return Curve()

    def consider(self, memory: Curve, seen: LeafRound, t: int, server: Server) -> Look:
        weights = [server.weight(reply.client, seen.weighting) for reply in seen.replies]
        losses = [float(reply.values["start_loss"]) for reply in seen.replies]
        memory = replace(memory, losses=(*memory.losses, float(np.average(losses, weights=weights))))
        refused_lately = memory.considered > 0 and t - memory.considered < self.recheck
        due = t - seen.leaf.born >= self.wait and len(seen.leaf.members) >= max(2, 2 * self.min_size)
        if refused_lately or not due or not has_flattened(memory.losses, self.exponent):
            return Look(memory)
        numbers = {
            "mean_norm": float(seen.total.mean()[: server.layout.trainable].norm()),
            "max_norm": seen.total.max_norm,
            "exponent": exponents(memory.losses)[0],
        }
        noise = measured_noise(seen, t, server)
        return compare_and_split(self, replace(memory, considered=t), seen, t, server, numbers, noise)

    def obstacles(self, server: Server) -> list[str]:
        found = []
        if server.rounds < self.wait:
            first = f"the first split comes after round {self.wait} at the earliest"
            found.append(f"CFL cannot split within {server.rounds} rounds: {first}")
        if len(server.clients) < 3:
            found.append(
                f"CFL cannot split {len(server.clients)} nodes: it needs 3 or more to tell a difference from noise"
            )
        return found

    def why_whole(self, memory: Curve, server: Server) -> Event:
        if impossible := self.obstacles(server):
            return Event("undecided", f"no split: {impossible[0]}", {"reason": "impossible"})
        if memory.considered:
            text = f"no split: when updates were last compared, in round {memory.considered}, sides differed by noise"
            return Event("whole", text, {"reason": "noise", "considered": memory.considered})
        text = f"no split: the training loss still falls after {server.rounds} rounds; give more rounds"
        return Event("undecided", text, {"reason": "still improving"})


def local_exponent(losses: Sequence[float], start: int, stop: int) -> float:
    """p in loss ∝ round^−p, by least squares over rounds start…stop (counted from 1, both included)."""
    rounds = np.arange(start, stop + 1)
    x = np.log(rounds)
    y = np.log(np.maximum(np.asarray(losses[start - 1 : stop], dtype=float), 1e-12))
    x = x - x.mean()
    return float(-(x @ y) / (x @ x))


def exponents(losses: Sequence[float]) -> tuple[float, float]:
    """The local exponent over the last half of a cluster's rounds, and over the quarter before it."""
    n = len(losses)
    return local_exponent(losses, max(1, n // 2), n), local_exponent(losses, max(1, n // 4), max(2, n // 2))


def has_flattened(losses: Sequence[float], threshold: float) -> bool:
    """Has the loss stopped falling? Its exponent is small and not on the rise, as it is after a slow start."""
    if len(losses) < LEAST_ROUNDS:
        return False
    now, before = exponents(losses)
    return now < threshold and now < before + TOLERANCE
