"""CFL's own rule (Sattler, Müller, Samek 2020): split a cluster at a stationary point where its clients still pull."""

from __future__ import annotations

import math
import statistics
from dataclasses import replace
from typing import ClassVar, Literal

import numpy as np
import torch
from pydantic import NonNegativeFloat, PositiveFloat, PositiveInt

from coterie.clustering import Bipartition, bipartition, cosine_matrix, gamma_criterion
from coterie.clustering.sketch import sketch
from coterie.errors import RunError
from coterie.methods.base import Event, Matrix
from coterie.methods.server import Server, apply_update
from coterie.methods.splitting.base import LeafRound, Look, SplitDecision, SplitRule, split_rule
from coterie.methods.tree import Branch, Node
from coterie.snapshot import saved
from coterie.tasks import Noise, Request, Task

EPSILON2_MULTIPLE = 4.0
"""ε2 = "auto" is this multiple of ε1 (the paper recommends 1 to 10)."""
TENTH = 0.1
"""The paper's recommendation for ε1, of the largest mean norm."""
MOST_IN_MATRIX = 1000
"""Members of a cluster whose similarities are kept for the report."""
Auto = Literal["auto"]


@saved
class Seen:
    """What the rule remembers of a cluster."""

    largest: float = 0.0
    """The largest norm of a mean update so far."""
    considered: int = 0
    """The round in which its updates were last compared."""
    longest: float = 0.0
    """The largest norm of a client's update in its last round."""


@split_rule("paper")
class PaperRule(SplitRule):
    """Algorithm 3, lines 3 to 6: the mean update has died down, some client's has not, and the sides differ."""

    tasks: ClassVar[tuple[type[Task], ...]] = (Noise,)

    eps1: PositiveFloat | Literal["auto", "cancelled"] = "auto"
    """ε1: the norm of the mean update must be below it; "auto" is a tenth of the largest that the cluster has had, the
    paper's rule of thumb; "cancelled" a tenth of the largest norm of a client's update in the same round: no mean need
    tend to zero, the updates need only cancel."""
    eps2: PositiveFloat | Auto = "auto"
    """ε2: the norm of some client's update must be above it; "auto" is four times ε1."""
    gamma_max: NonNegativeFloat | Auto = "auto"
    """γ_max: sqrt((1 − α_cross_max)/2) must be above it; "auto" measures the clients' noise."""
    linkage: Literal["single", "complete"] = "single"
    """Bipartition: single linkage is the optimum (Algorithm 1); complete is steadier under heavy noise."""
    wait: PositiveInt = 1
    """Rounds before the first split of a cluster."""
    recheck: PositiveInt = 1
    """Rounds until a refused split is considered again."""
    min_size: PositiveInt = 1
    """Smallest cluster a split may make."""

    def begin(self) -> Seen:
        return Seen()

    def consider(self, memory: Seen, seen: LeafRound, t: int, server: Server) -> Look:
        mean_norm = float(seen.total.mean()[: server.layout.trainable].norm())
        memory = replace(memory, largest=max(memory.largest, mean_norm), longest=seen.total.max_norm)
        limits = self.thresholds(memory)
        at_rest = mean_norm < limits["eps1"] and seen.total.max_norm > limits["eps2"]  # eq. 30 and 31
        if not at_rest or not self._is_due(memory, seen.leaf, t):
            return Look(memory)
        numbers = {"mean_norm": mean_norm, "max_norm": seen.total.max_norm}
        gamma = measured_noise(seen, t, server) if self.gamma_max == "auto" else float(self.gamma_max)
        return compare_and_split(self, replace(memory, considered=t), seen, t, server, numbers, gamma)

    def _is_due(self, memory: Seen, leaf: Node, t: int) -> bool:
        refused_lately = memory.considered > 0 and t - memory.considered < self.recheck
        return len(leaf.members) >= max(2, 2 * self.min_size) and t - leaf.born >= self.wait and not refused_lately

    def thresholds(self, memory: Seen) -> dict[str, float]:
        known = {"auto": TENTH * memory.largest, "cancelled": TENTH * memory.longest}
        eps1 = known[self.eps1] if isinstance(self.eps1, str) else float(self.eps1)
        return {"eps1": eps1, "eps2": EPSILON2_MULTIPLE * eps1 if self.eps2 == "auto" else float(self.eps2)}

    def obstacles(self, server: Server) -> list[str]:
        if server.rounds < self.wait:
            return [f"CFL cannot split within {server.rounds} rounds: rule=paper(wait={self.wait}) waits longer"]
        return []

    def why_whole(self, memory: Seen, server: Server) -> Event:
        if memory.considered:
            text = f"no split: when updates were last compared, in round {memory.considered}, γ_max was not exceeded"
            return Event("whole", text, {"reason": "noise", "considered": memory.considered})
        text = "no split: the mean update never fell below ε1 while a client's stayed above ε2; give more rounds"
        return Event("undecided", text, {"reason": "still improving"})


def compare_and_split(
    rule: PaperRule, memory: Seen, seen: LeafRound, t: int, server: Server, numbers: dict[str, float], gamma: float
) -> Look:
    """Compare the members' vectors, and split if the two sides differ by more than γ (Algorithm 3, lines 3 to 8)."""
    leaf = seen.leaf
    rows = seen.compared.of_members(leaf.members, leaf.model, t, server, seen.replies)
    members = tuple(client for client in leaf.members if client in rows)
    if len(members) < 2:
        return Look(memory)
    vectors = torch.stack([rows[client] for client in members])
    similarities = cosine_matrix(vectors)
    try:
        sides = bipartition(similarities, rule.linkage)  # Algorithm 1
    except ValueError as problem:
        raise RunError(f"cluster {leaf.id}: its updates cannot be compared ({problem})") from problem
    separation = gamma_criterion(sides.alpha_cross_max)  # eq. 36
    if min(len(sides.first), len(sides.second)) < rule.min_size or separation <= gamma:
        return Look(memory)
    evidence = numbers | {"alpha_cross_max": sides.alpha_cross_max, "separation": separation, "noise": gamma}
    branches = branches_of(seen, members, vectors, sides, t, server)
    reason = f"separation {separation:.2f}, noise level {gamma:.2f}"
    matrices = []
    if len(members) <= MOST_IN_MATRIX:
        meaning = "cosine similarity of the clients' updates" if leaf.id == 0 else f"the same within cluster {leaf.id}"
        matrices = [Matrix(f"similarity-{leaf.id}", members, similarities.astype(np.float32), meaning, similar=True)]
    return Look(memory, SplitDecision(branches, leaf.model, evidence, reason), matrices)


def branches_of(
    seen: LeafRound, members: tuple[str, ...], vectors: torch.Tensor, sides: Bipartition, t: int, server: Server
) -> tuple[Branch, ...]:
    """The children: both begin at the stationary model, with this round's updates averaged in each (lines 7 and 8).

    Members that gave no vector go to the larger side.
    """
    aside = tuple(client for client in seen.leaf.members if client not in members)
    larger = max((sides.first, sides.second), key=len)
    branches = []
    for side in (sides.first, sides.second):
        own = tuple(members[i] for i in side)
        step = _mean_step(seen, own, t, server)
        model = apply_update(seen.leaf.model, step)
        branches.append(Branch(own + (aside if side is larger else ()), model, sketch(vectors[torch.from_numpy(side)])))
    return tuple(branches)


def _mean_step(seen: LeafRound, members: tuple[str, ...], t: int, server: Server) -> torch.Tensor:
    """The mean of this round's updates of some members; where single updates are not seen, they are summed again."""
    own = [reply for reply in seen.replies if reply.client in members]
    if seen.compared.kind == "projection":
        requests = server.training_requests([reply.client for reply in own], seen.leaf.model, t)
        return server.exchange(requests, weighting=seen.weighting).sums[0].mean()
    return server.summed(own, seen.weighting).mean()


def measured_noise(seen: LeafRound, t: int, server: Server) -> float:
    """γ̂, the median of the noise in the updates of the members that know it; infinite when none can."""
    model, how = seen.leaf.model, seen.compared.training(t, server)
    requests = [Request(c, Noise(model, how, server.seed_of(t, c, "noise"))) for c in seen.leaf.members]
    known = [noise for reply in server.ask(requests) if math.isfinite(noise := reply.values["noise"])]
    return float(statistics.median(known)) if known else math.inf
