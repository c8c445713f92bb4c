"""Split a cluster where all parts are surely better served by steps of their own, on data held out from them.

Every member trains on two halves of its data. Sides are found on one half and their mean steps are tried on the other,
beside the step of all members, which each client may correct by an output offset fitted on the half not judged: what
that explains, label proportions above all, is no reason to split. Several candidates, one judge (`coterie.benefit`).
After a split the cluster trains on beside its parts for a while, and takes their place again unless they serve better.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Annotated, ClassVar

import numpy as np
import torch
from pydantic import Field, PositiveInt
from torch import Tensor

from coterie.benefit import FIRST_LOOK, LEVEL, Benefit, level_of_look
from coterie.clustering.sketch import sketch
from coterie.methods.aggregation import WeightedSum
from coterie.methods.base import Event
from coterie.methods.compared import Compared, ComparedHalves
from coterie.methods.server import Server, apply_update
from coterie.methods.splitting.base import LeafRound, Look, SplitDecision, SplitRule, Watched, split_rule
from coterie.methods.splitting.candidates import (
    Candidate,
    Looks,
    Sides,
    candidates,
    half_cosines,
    known_of,
    number_of_parts,
    pooled,
    smallest_side,
    worth_trying,
)
from coterie.methods.splitting.judging import Losses, Steps, chosen_by_members, judged, on_halves, on_validation, served
from coterie.methods.tree import Branch, Node
from coterie.randomness import numpy_generator
from coterie.tasks import HeldOut, Task

MOST_COMPARED = 2000
"""Members that are compared in one look; of more, this number is drawn. Where all go is for each of them to choose."""
MOST_NUMBERS = 2**30
"""Numbers in all half-updates of a look: four gigabytes. Fewer members are drawn where models are larger."""


@split_rule("benefit")
class BenefitRule(SplitRule):
    """Split where held-out data says that both sides are surely better served apart."""

    needs_updates: ClassVar[bool] = False
    tasks: ClassVar[tuple[type[Task], ...]] = (HeldOut,)
    watches: ClassVar[bool] = True
    reproduces: ClassVar[bool] = True
    """Whether candidates must be found again on other data before they are tried."""

    level: Annotated[float, Field(gt=0, lt=1)] = LEVEL
    """Probability that a cluster of one distribution is ever split, over all looks of the run."""
    min_size: PositiveInt = 1
    """Smallest cluster a split may make."""

    def begin(self) -> Looks:
        return Looks()

    def inherited(self, memory: Looks, members: Sequence[str]) -> Looks:
        return replace(known_of(memory, members), due=FIRST_LOOK + 1, joint=None, watched=0, kept=math.inf, leanings={})

    def newcomer(self, client: str, model: Tensor, t: int, server: Server, compared: Compared) -> Tensor:
        found = compared.of_halves([client], model, t, server)
        return found.vectors.mean(0)[0] if found.clients else compared.of_newcomer(client, model, t, server)

    @property
    def fewest(self) -> int:
        """Members without which nothing can be split."""
        return max(2, 2 * self.min_size)

    def consider(self, memory: Looks, seen: LeafRound, t: int, server: Server) -> Look:
        age = t - seen.leaf.born
        asked = self.asked(seen, t, server)
        if age < memory.due or len(asked) < self.fewest:
            return Look(memory)
        halves = self.compared(asked, seen, t, server)
        memory = replace(memory, count=memory.count + 1, due=2 * age, last=None)
        memory = replace(memory, weighting=seen.weighting, compared=seen.compared)
        if len(halves.clients) < self.fewest:
            return Look(memory)
        memory, proposed = self.propose(memory, halves)
        least = max(self.min_size, server.least_in_sum)
        possible = [one for one in proposed if smallest_side(one) >= least]
        level = level_of_look(self.level, memory.count) / max(1, len(possible))
        result, sure = self._first_sure(possible, level, halves, seen, t, server)
        memory = replace(memory, last=result)
        return Look(memory) if sure is None else self._split(memory, *sure, halves, seen, server)

    def _first_sure(
        self,
        possible: Sequence[Candidate],
        level: float,
        halves: ComparedHalves,
        seen: LeafRound,
        t: int,
        server: Server,
    ) -> tuple[Benefit | None, tuple[Sides, Steps] | None]:
        """Try the candidate that reproduces best; if it helps all together but not each part, one of fewer parts."""
        result = None
        only_one = halves.updates is None  # where vectors may not be seen, the sums of one candidate are opened
        while found := worth_trying(possible)[: 1 if only_one else None]:
            steps = Steps(halves, found, seen, t, server)
            tried = judged(found, steps, halves, self.base(seen), self.judge, server)
            best, result = tried.best(level)
            if best is not None:
                return result, (best.both, steps)
            if only_one or not tried.has_a_part_too_many(level):
                break
            fewest = min(map(number_of_parts, found))
            possible = [one for one in possible if number_of_parts(one) < fewest]
        return result, None

    def compared(self, clients: Sequence[str], seen: LeafRound, t: int, server: Server) -> ComparedHalves:
        """What clients are compared by: the updates of two halves of their data, from the model after the round."""
        return seen.compared.of_halves(clients, seen.after, t, server)

    def judge(self, models: Mapping[str, Tensor], server: Server) -> Losses:
        """What held-out data says of the models of candidates."""
        return on_halves(models, server)

    def confirm(self, models: Mapping[str, Tensor], server: Server) -> Losses:
        """What held-out data says of models after a split."""
        return on_validation(models, server)

    def base(self, seen: LeafRound) -> Tensor:
        """The model that what is compared was made from."""
        return seen.after

    def propose(self, memory: Looks, halves: ComparedHalves) -> tuple[Looks, list[Candidate]]:
        """The candidates of a look, by how alike the half-updates are.

        A method that knows other ways to split its clients overrides this; the judge is the same.
        """
        cosines = half_cosines(halves)
        memory = pooled(memory, halves.clients, cosines)
        return memory, candidates(memory, cosines)

    @staticmethod
    def asked(seen: LeafRound, t: int, server: Server) -> list[str]:
        """Of a cluster's members that took part in the round, as many as can be compared in one look."""
        there = {reply.client for reply in seen.replies}
        return some_of([client for client in seen.leaf.members if client in there], t, seen.leaf.id, server)

    def _split(
        self, memory: Looks, sides: Sides, steps: Steps, halves: ComparedHalves, seen: LeafRound, server: Server
    ) -> Look:
        """The children, each with the step of its members that were compared."""
        base, members = self.base(seen), seen.leaf.members
        chosen, leanings = chosen_by_members(sides, steps, halves, members, base, self.judge, server, {})
        compared = np.array([chosen[client] for client in halves.clients])
        vectors = halves.vectors.mean(0)
        branches = []
        for side in np.unique(sides).tolist():
            own = tuple(client for client in members if chosen[client] == side)
            # Sums are over the sides as they were found: others would show what a few members' updates are.
            stepped = sides if halves.updates is None else compared
            model = apply_update(base, steps.mean_of(stepped == side))
            branches.append(Branch(own, model, sketch(vectors[torch.from_numpy(compared == side)])))
        assert memory.last is not None
        reason = f"on held-out data models of their own lower the loss by {memory.last}"
        decision = SplitDecision(tuple(branches), base, memory.last.numbers(), reason)
        return Look(replace(memory, leanings=leanings), decision)

    def watch(self, memory: Looks, parent: Node, children: Sequence[Node], t: int, server: Server) -> Watched:
        """The cluster trains on beside its children, and takes their place again when they serve no better.

        That they differ was sure when they were split; here validation data says whether it lasts. They are compared at
        ages that double, until the gain has not shrunk: a start from fewer labels learns faster for a while, and falls
        behind later. Where candidates need not reproduce, a gain that has only shrunk must be sure in the end.
        """
        joint = self._trained_on(memory, parent, children, t, server)
        memory = replace(memory, joint=joint)
        assert parent.split_round is not None
        age = t - parent.split_round
        last = t == server.rounds
        if age < max(FIRST_LOOK, 2 * memory.watched) and not last:
            return Watched(memory)
        found = served(children, joint, self.confirm, server)
        if not found.clients:  # without validation data nothing speaks against the split
            return Watched(None, moved=self.chosen_again(memory, parent, children, t, server))
        shrunk = memory.watched > 0 and found.gain < memory.kept
        doubtful = last and shrunk and not self.reproduces and found.p_value > self.level
        if found.gain <= 0 or doubtful:
            after = replace(memory, due=2 * (t - parent.born), joint=None, watched=0, kept=math.inf)
            return Watched(after, joint, f"on validation data models of their own lower the loss by {found}")
        if last or (memory.watched and not shrunk):
            return Watched(None)
        moved = {} if memory.watched else self.chosen_again(memory, parent, children, t, server)
        return Watched(replace(memory, watched=age, kept=found.gain), moved=moved)

    def chosen_again(
        self, memory: Looks, parent: Node, children: Sequence[Node], t: int, server: Server
    ) -> dict[str, int]:
        """The members that another part's step serves better, by this look and that of the split together.

        All steps are from the joint model, which every member has trained alike: at their own parts' models, members
        would be judged on data that these have seen. Later the joint model fits its data, and steps say little.
        """
        assert memory.joint is not None
        home = {client: child.id for child in children for client in child.members}
        seen = LeafRound(parent, WeightedSum(0), [], memory.joint, memory.compared, memory.weighting)
        there = [client for client in server.participants(t) if client in home]
        halves = self.compared(some_of(there, t, parent.id, server), seen, t, server)
        parts, sides = np.unique([home[client] for client in halves.clients], return_inverse=True)
        if len(parts) < len(children):
            return {}
        steps, known = Steps(halves, [Candidate((sides, sides), sides)], seen, t, server), memory.leanings
        chosen, _ = chosen_by_members(sides, steps, halves, halves.clients, memory.joint, self.judge, server, known)
        goes_to = {client: int(parts[side]) for client, side in chosen.items()}
        return {client: part for client, part in goes_to.items() if part != home[client]}

    def _trained_on(self, memory: Looks, parent: Node, children: Sequence[Node], t: int, server: Server) -> Tensor:
        """The model of a cluster that was split, after a round of its members from there."""
        joint = parent.model if memory.joint is None else memory.joint
        members = {client for child in children for client in child.members}
        asked = [client for client in server.participants(t) if client in members]
        if not asked:
            return joint
        [total] = server.exchange(server.training_requests(asked, joint, t), weighting=memory.weighting).sums
        return server.step(joint, total.mean(), parent.id)

    def obstacles(self, server: Server) -> list[str]:
        if server.rounds < FIRST_LOOK:
            return [f"CFL cannot split within {server.rounds} rounds: it first looks after round {FIRST_LOOK}"]
        if len(server.clients) < self.fewest:
            return [f"CFL cannot split {len(server.clients)} clients (min_size={self.min_size}): add clients"]
        return []

    def why_whole(self, memory: Looks, server: Server) -> Event:
        if impossible := self.obstacles(server):
            return Event("undecided", f"no split: {impossible[0]}", {"reason": "impossible"})
        if not memory.count:
            return Event("undecided", "no split: no look came to an end; see the faults", {"reason": "no look"})
        if memory.last is None:
            text = "what sets the clients' updates apart on one half of their data is not found again on the other"
            details = {"looks": memory.count, "reason": "alike"}
            return Event("whole", f"no split in {memory.count} looks: {text}", details)
        text = f"at the last, models of their own lowered the held-out loss by {memory.last}"
        details = {"looks": memory.count, **memory.last.numbers(), "reason": "no benefit"}
        return Event("whole", f"no split in {memory.count} looks: {text}", details)


def some_of(members: list[str], t: int, cluster: int, server: Server) -> list[str]:
    """The members, or as many of them drawn as can be compared in one look."""
    most = max(2, min(MOST_COMPARED, MOST_NUMBERS // (2 * server.layout.size)))
    if len(members) <= most:
        return members
    drawn = numpy_generator(server.seed, "compared", t, cluster).choice(len(members), most, replace=False)
    return [members[i] for i in np.sort(drawn)]
