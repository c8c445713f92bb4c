"""Split a cluster where all parts are surely better served by steps of their own, on data held out from them.

Every member trains on two halves of its data. Sides are found on one half and their mean steps are tried on the other,
beside the step of all members, which each client may correct by an output offset fitted on the half not judged: what
that explains, label proportions above all, is no reason to split. Several candidates, one judge (`coterie.benefit`).
After a split the cluster trains on beside its parts for a while, and takes their place again unless they serve better.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Annotated, ClassVar

import numpy as np
import torch
from pydantic import Field, PositiveInt
from torch import Tensor

from coterie.benefit import FIRST_LOOK, Benefit, level_of_look
from coterie.clustering.sketch import sketch
from coterie.methods.base import Event
from coterie.methods.compared import Compared, ComparedHalves
from coterie.methods.server import Server, apply_update
from coterie.methods.splitting.base import LeafRound, Look, SplitDecision, SplitRule, Watched, split_rule
from coterie.methods.splitting.candidates import (
    Candidate,
    Looks,
    Sides,
    candidates,
    known_of,
    pooled,
    reproduces,
    smallest_side,
)
from coterie.methods.splitting.judging import Steps, chosen_by_members, judged, served
from coterie.methods.tree import Branch, Node
from coterie.randomness import numpy_generator
from coterie.tasks import HeldOut, Task

MOST_COMPARED = 2000
"""Members that are compared in one look; of more, so many are drawn. Where all go is for each of them to choose."""
MOST_NUMBERS = 2**30
"""Numbers in all half-updates of a look: four gigabytes. Fewer members are drawn where models are larger."""


@split_rule("benefit")
class BenefitRule(SplitRule):
    """Split where held-out data says that both sides are surely better served apart."""

    needs_updates: ClassVar[bool] = False
    tasks: ClassVar[tuple[type[Task], ...]] = (HeldOut,)
    watches: ClassVar[bool] = True

    level: Annotated[float, Field(gt=0, lt=1)] = 0.05
    """Probability that a cluster of one distribution is ever split, over all looks of the run."""
    min_size: PositiveInt = 1
    """Smallest cluster a split may make."""

    def begin(self) -> Looks:
        return Looks()

    def inherited(self, memory: Looks, members: Sequence[str]) -> Looks:
        return replace(known_of(memory, members), due=1, joint=None, watched=0, kept=math.inf)

    def newcomer(self, client: str, model: Tensor, t: int, server: Server, compared: Compared) -> Tensor:
        found = compared.of_halves([client], model, t, server)
        return found.vectors.mean(0)[0] if found.clients else compared.of_newcomer(client, model, t, server)

    def consider(self, memory: Looks, seen: LeafRound, t: int, server: Server) -> Look:
        age = t - seen.leaf.born
        there = {reply.client for reply in seen.replies}
        asked = self.asked([client for client in seen.leaf.members if client in there], t, seen.leaf.id, server)
        if age < memory.due or len(asked) < max(2, 2 * self.min_size):
            return Look(memory)
        halves = seen.compared.of_halves(asked, seen.after, t, server)
        memory = replace(
            memory,
            weighting=seen.weighting,
            count=memory.count + 1,
            due=2 * age,
            gain=math.nan,
            error=math.nan,
            p_value=math.nan,
        )
        if len(halves.clients) < max(2, 2 * self.min_size):
            return Look(memory)
        memory, proposed = self.propose(memory, halves)
        least = max(self.min_size, server.least_in_sum)
        found = [one for one in proposed if smallest_side(one) >= least]
        if halves.updates is None:
            found = found[:1]  # only one candidate's sums can be opened
        if not found:
            return Look(memory)
        steps = Steps(halves, found, seen, t, server)
        results = judged(found, steps, halves, seen.after, server)
        spent = level_of_look(self.level, memory.count) / len(found)
        # Of sure candidates the one of fewest parts: whether to split these further is asked again.
        best, result = max(results, key=lambda pair: (pair[1].p_value <= spent, -len(set(pair[0].both)), pair[1].gain))
        memory = replace(memory, gain=result.gain, error=result.error, p_value=result.p_value)
        if result.p_value > spent:
            return Look(memory)
        branches = self._branches(best.both, steps, halves, seen, server)
        evidence = {"gain": result.gain, "gain_error": result.error, "p_value": result.p_value}
        reason = f"on held-out data models of their own lower the loss by {result}"
        return Look(memory, SplitDecision(branches, seen.after, evidence, reason))

    def propose(self, memory: Looks, halves: ComparedHalves) -> tuple[Looks, list[Candidate]]:
        """The candidates of a look: by how alike the half-updates are, as far as they reproduce.

        A method that knows other ways to split its clients overrides this; the judge is the same.
        """
        memory = pooled(memory, halves)
        found = candidates(memory, single=halves.updates is None)
        return memory, [one for one in found if reproduces(one, halves)]

    @staticmethod
    def asked(members: list[str], t: int, cluster: int, server: Server) -> list[str]:
        """Of a cluster's members that took part in the round, as many as can be compared in one look."""
        most = max(2, min(MOST_COMPARED, MOST_NUMBERS // (2 * server.layout.size)))
        if len(members) <= most:
            return members
        drawn = numpy_generator(server.seed, "compared", t, cluster).choice(len(members), most, replace=False)
        return [members[i] for i in np.sort(drawn)]

    def _branches(
        self, sides: Sides, steps: Steps, halves: ComparedHalves, seen: LeafRound, server: Server
    ) -> tuple[Branch, ...]:
        """The children, each with the step of its members that were compared."""
        chosen = chosen_by_members(sides, steps, halves, seen, server)
        compared = np.array([chosen[client] for client in halves.clients])
        vectors = halves.vectors.mean(0)
        branches = []
        for side in np.unique(sides).tolist():
            members = tuple(client for client in seen.leaf.members if chosen[client] == side)
            # Sums are over the sides as they were found: others would show what a few members' updates are.
            stepped = sides if halves.updates is None else compared
            model = apply_update(seen.after, steps.mean_of(stepped == side))
            branches.append(Branch(members, model, sketch(vectors[torch.from_numpy(compared == side)])))
        return tuple(branches)

    def watch(self, memory: Looks, parent: Node, children: Sequence[Node], t: int, server: Server) -> Watched:
        """The cluster trains on beside its children, and takes their place again unless they surely serve better.

        They are compared at ages that double. What they gain must not shrink: a start from fewer labels learns faster
        for a while, and falls behind later.
        """
        members = [client for child in children for client in child.members]
        joint = memory.joint if memory.joint is not None else parent.model
        there = set(members)
        asked = [client for client in server.participants(t) if client in there]
        if asked:
            requests = server.training_requests(asked, joint, t)
            [total] = server.exchange(requests, weighting=memory.weighting).sums
            joint = server.step(joint, total.mean(), parent.id)
        assert parent.split_round is not None
        memory = replace(memory, joint=joint)
        age = t - parent.split_round
        last = t == server.rounds
        if age < max(FIRST_LOOK, 2 * memory.watched) and not last:
            return Watched(memory)
        found = served(children, joint, server)
        if not found.clients:  # without validation data nothing speaks against the split
            return Watched(None)
        if found.p_value > self.level:
            after = replace(memory, due=2 * (t - parent.born), joint=None, watched=0, kept=math.inf)
            return Watched(after, joint, f"on validation data models of their own lower the loss by {found}")
        if last or found.gain >= memory.kept:
            return Watched(None)
        return Watched(replace(memory, watched=age, kept=found.gain))

    def obstacles(self, server: Server) -> list[str]:
        if server.rounds < FIRST_LOOK:
            return [f"CFL cannot split within {server.rounds} rounds: it first looks after round {FIRST_LOOK}"]
        if len(server.clients) < max(2, 2 * self.min_size):
            return [f"CFL cannot split {len(server.clients)} clients (min_size={self.min_size}): add clients"]
        return []

    def why_whole(self, memory: Looks, server: Server) -> Event:
        if impossible := self.obstacles(server):
            return Event("undecided", f"no split: {impossible[0]}", {"reason": "impossible"})
        if not memory.count:
            return Event("undecided", "no split: no look came to an end; see the faults", {"reason": "no look"})
        if math.isnan(memory.p_value):
            text = "what sets the clients' updates apart on one half of their data is not found again on the other"
            return Event(
                "whole", f"no split in {memory.count} looks: {text}", {"looks": memory.count, "reason": "alike"}
            )
        last = Benefit(memory.gain, memory.error, memory.p_value, len(memory.clients))
        text = f"no split in {memory.count} looks: at the last, models of their own lowered the held-out loss by {last}"
        details = {"looks": memory.count, "gain": memory.gain, "gain_error": memory.error, "p_value": memory.p_value}
        return Event("whole", text, details | {"reason": "no benefit"})
