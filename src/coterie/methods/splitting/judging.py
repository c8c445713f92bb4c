"""What candidate splits are worth on held-out data: the steps of their sides, tried on the halves not made of them."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cache
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from coterie.benefit import Benefit, benefit
from coterie.errors import RunError
from coterie.methods.aggregation import WeightedSum
from coterie.methods.compared import ComparedHalves, halves_seed
from coterie.methods.server import Server, apply_update
from coterie.methods.splitting.base import LeafRound
from coterie.methods.splitting.candidates import Candidate, Floats, Sides, number_of_parts
from coterie.methods.tree import Node
from coterie.tasks import Evaluate, HalfUpdates, HeldOut, Request, Task
from coterie.tasks.halves import OFFSET_SCALES

Members = npt.NDArray[np.bool_]
"""(M,) which members are meant."""


class Steps:
    """The mean half-updates of sets of members: from the vectors or, where these may not be seen, from sums.

    Of a candidate whose vectors may not be seen one sum is opened for each pair of parts that members are in by their
    two halves, and every mean is put together from these: no two sums differ by a few members.
    """

    def __init__(
        self, halves: ComparedHalves, found: Sequence[Candidate], seen: LeafRound, t: int, server: Server
    ) -> None:
        self.halves = halves
        weights = [server.weight(client, seen.weighting) for client in halves.clients]
        self.weights = torch.tensor(weights, dtype=torch.float64)
        if halves.updates is None:
            [only] = found
            parts = 1 + int(only.both.max())
            self.cell = parts * only.by_half[0].astype(np.int64) + only.by_half[1]
            self.sums = _sums_of_cells(self.cell, parts**2, halves.clients, seen, t, server)
        else:
            norms = halves.updates[..., : server.layout.trainable].norm(dim=2).double()
            # One member, however long its update, moves a side's step no farther than the others do.
            self.shrink = (norms.median(1, keepdim=True).values / norms.clamp_min(1e-30)).clamp_max(1.0)

    def mean(self, side: Members, half: int) -> Tensor:
        """The weighted mean `(d,)` of the half-updates of the members in `side`, to be tried."""
        if self.halves.updates is None:
            return self._of_cells(side)[half]
        weights = self.weights * torch.from_numpy(side)
        shares = weights * self.shrink[half] / weights.sum()
        mean: Tensor = shares.float() @ self.halves.updates[half]
        return mean

    def mean_of(self, side: Members) -> Tensor:
        """The mean over both halves, in float64: what a part's model is made of."""
        if self.halves.updates is None:
            return self._of_cells(side).mean(0)
        rows = torch.from_numpy(np.flatnonzero(side))
        weights = self.weights[rows]
        means = [
            (weights * shrink[rows]) @ own[rows].double() / weights.sum()
            for own, shrink in zip(self.halves.updates, self.shrink, strict=True)
        ]
        return torch.stack(means).mean(0)

    def _of_cells(self, side: Members) -> Tensor:
        """The means `(2, d)` over the cells most of whose members are in `side`."""
        inside = [
            c
            for c in range(len(self.sums))
            if (self.cell == c).any() and 2 * side[self.cell == c].sum() > (self.cell == c).sum()
        ]
        opened = [self.sums[c] for c in inside if self.sums[c].count]
        if not opened:
            raise RunError("the sum of a side stayed closed: see the faults of the round")
        total = torch.stack([one.total for one in opened]).sum(0) / sum(one.weight for one in opened)
        return total.reshape(2, -1)


def _sums_of_cells(
    cell: npt.NDArray[np.int64], cells: int, clients: Sequence[str], seen: LeafRound, t: int, server: Server
) -> list[WeightedSum]:
    """The sums of both half-updates `(2·d,)` of the members of each cell that is large enough for a sum."""
    how = seen.compared.training(t, server)
    large = np.bincount(cell, minlength=cells)[cell] >= server.least_in_sum
    asked = [client for client, kept in zip(clients, large, strict=True) if kept]
    requests = [
        Request(c, HalfUpdates(seen.after, how, server.seed_of(t, c, "half-updates"), halves_seed(server, c)))
        for c in asked
    ]
    groups = cell[large].tolist()
    return server.exchange(requests, groups, clusters=cells, weighting=seen.weighting).sums


class Judged(NamedTuple):
    """Losses of one model and of candidates, on the halves that their steps were not made of."""

    found: Sequence[Candidate]
    losses: Floats
    """(clients, 1 + candidates) of one model for all and of each candidate, all with the offset that serves best."""
    within: Floats
    """(clients, candidates) squared standard errors over samples of what each candidate gains over one model."""
    rows: npt.NDArray[np.int64]
    """(clients,) the place of each among the members that were compared."""
    liars: int = 0
    """How many clients the run expects to be hostile."""

    def gain(self, candidate: int, over: int | None = None) -> Benefit:
        """What a candidate gains over one model, or over another candidate; sure only if all its parts gain."""
        result, all_gain = self._gain(candidate, over)
        return result if all_gain else replace(result, p_value=1.0)

    def _gain(self, candidate: int, over: int | None = None) -> tuple[Benefit, bool]:
        """What a candidate gains for the clients together, and whether each of its parts gains."""
        before = self.losses[:, 0 if over is None else over + 1]
        gains = before - self.losses[:, candidate + 1]
        errors = self.within[:, candidate] + (0 if over is None else self.within[:, over])
        parts = self.found[candidate].both[self.rows]
        return benefit(gains, errors, self.liars), all(np.median(gains[parts == part]) > 0 for part in np.unique(parts))

    def has_a_part_too_many(self, level: float) -> bool:
        """Whether a candidate surely helps the clients together, but not each of its parts: fewer parts may help all.

        A part of one liar, who denies what it gains, would be a veto otherwise.
        """
        results = [self._gain(candidate) for candidate in range(len(self.found))]
        return any(result.p_value <= level and not all_gain for result, all_gain in results)

    def best(self, level: float) -> tuple[Candidate | None, Benefit]:
        """The candidate to take, if one is sure, and what it gains; else the largest gain that there is.

        One of more parts is taken only where it is surely better than what fewer parts give.
        """
        taken = None
        sizes = [number_of_parts(one) for one in self.found]
        for parts in sorted(set(sizes)):
            results = {c: self.gain(c, taken) for c, size in enumerate(sizes) if size == parts}
            sure = {c: result.gain for c, result in results.items() if result.p_value <= level}
            taken = max(sure, key=lambda c: sure[c], default=taken)
        if taken is not None:
            return self.found[taken], self.gain(taken)
        return None, max((self.gain(c) for c in range(len(self.found))), key=lambda result: result.gain)


class Losses(NamedTuple):
    """What clients say of models on data that took no part in making them."""

    clients: list[str]
    losses: Floats
    """(clients, scales, models) with each scale of a private output offset; one scale where there is no offset."""
    within: Floats
    """(clients, models − 1) squared standard errors over samples of how much the others lower the first one's loss."""


Judge = Callable[[Mapping[str, Tensor], Server], Losses]
"""Asks each client about models `(folds, m, d)` of its own: made of its first half and of its second, or of all."""


def on_halves(models: Mapping[str, Tensor], server: Server) -> Losses:
    """Judge models `(2, m, d)` by the half of the training data that they were not made of."""
    return _answered(models, lambda c, own: HeldOut(own, halves_seed(server, c)), len(OFFSET_SCALES), server)


def on_validation(models: Mapping[str, Tensor], server: Server) -> Losses:
    """Judge models `(1, m, d)` by validation data."""
    return _answered(models, lambda _, own: HeldOut(own, None), len(OFFSET_SCALES), server)


def as_evaluated(models: Mapping[str, Tensor], server: Server) -> Losses:
    """Judge models `(1, m, d)` by what the client evaluates on: all that an app which is not ours can be asked."""
    return _answered(models, lambda _, own: Evaluate(own[0], "validation"), 1, server)


def _answered(models: Mapping[str, Tensor], task: Callable[[str, Tensor], Task], scales: int, server: Server) -> Losses:
    """The clients' answers to a task with their models, which report losses with so many scales of an offset."""
    replies = list(server.ask([Request(client, task(client, own)) for client, own in models.items()]))
    count = next(iter(models.values())).shape[1]
    losses = np.array([reply.values["loss"] for reply in replies]).reshape(len(replies), scales, count)
    unknown = [math.nan] * (count - 1)
    within = np.array([reply.values.get("within", unknown) for reply in replies]).reshape(len(replies), count - 1)
    return Losses([reply.client for reply in replies], losses, within)


def judged(
    found: Sequence[Candidate], steps: Steps, halves: ComparedHalves, model: Tensor, judge: Judge, server: Server
) -> Judged:
    """Try each candidate, and one model for all, on data that the steps were not made of."""
    answered = judge(_models_to_judge(found, steps, halves, model), server)
    place = {client: i for i, client in enumerate(halves.clients)}
    rows_of = np.array([place[client] for client in answered.clients], dtype=np.int64)
    return Judged(found, _with_best_offset(answered.losses), answered.within, rows_of, server.aggregation.hostile)


def _models_to_judge(
    found: Sequence[Candidate], steps: Steps, halves: ComparedHalves, model: Tensor
) -> dict[str, Tensor]:
    """By client its models `(folds, 1 + candidates, d)`: one for all, and of each candidate that of its part.

    Clients that are in the same parts share one tensor, which is sent to all of them.
    """

    @cache
    def after(candidate: int | None, part: int, half: int) -> Tensor:
        side = np.ones(len(halves.clients), bool) if candidate is None else found[candidate].by_half[half] == part
        return apply_update(model, steps.mean(side, half))

    @cache
    def models_of(parts: tuple[tuple[int, ...], ...]) -> Tensor:
        rows = [
            torch.stack([after(None, 0, half), *(after(c, part, half) for c, part in enumerate(own))])
            for half, own in enumerate(parts)
        ]
        return torch.stack(rows)

    folds = range(len(halves.vectors))
    parts_of = [
        tuple(tuple(int(one.by_half[half][i]) for one in found) for half in folds) for i in range(len(halves.clients))
    ]
    return {client: models_of(parts) for client, parts in zip(halves.clients, parts_of, strict=True)}


def _with_best_offset(losses: Floats) -> Floats:
    """Losses (clients, models), of each model with the scale of the offset that serves the clients best."""
    scale = np.median(losses, axis=0).argmin(0)
    best: Floats = losses[:, scale, np.arange(losses.shape[2])]
    return best


def chosen_by_members(
    sides: Sides,
    steps: Steps,
    halves: ComparedHalves,
    members: Sequence[str],
    model: Tensor,
    judge: Judge,
    server: Server,
    known: Mapping[str, Sequence[float]],
) -> tuple[dict[str, int], dict[str, list[float]]]:
    """The part of every member: the one whose step serves it better, on data that the step was not made of.

    Whether to split is decided by then; this is who goes where, those included that were not compared. A member that
    does not answer stays in its part, or goes to the largest one. If all would leave a part, all stay as they are.
    Second come the losses under each part's step, less their mean, to which those `known` from before are added.
    """
    parts, sizes = np.unique(sides, return_counts=True)
    folds = range(len(halves.vectors))
    made = [[apply_update(model, steps.mean(sides == part, half)) for part in parts] for half in folds]
    models = torch.stack([torch.stack(row) for row in made])
    before = dict(zip(halves.clients, sides.tolist(), strict=True))
    largest = parts[sizes.argmax()].item()
    chosen = {client: before.get(client, largest) for client in members}
    answered = judge(dict.fromkeys(members, models), server)
    found: dict[str, list[float]] = {}
    for client, losses in zip(answered.clients, answered.losses.min(axis=1), strict=True):
        if np.isfinite(losses).all():
            total = losses - losses.mean() + np.array(known.get(client, [0.0] * len(parts)))
            chosen[client], found[client] = parts[total.argmin()].item(), total.tolist()
    stays = {chosen[client] for client in halves.clients} == set(parts.tolist())
    return chosen if stays else chosen | before, found


def served(children: Sequence[Node], joint: Tensor, judge: Judge, server: Server) -> Benefit:
    """What the children's models gain over one for all on the members' held-out data, as they serve: without offset."""
    models: dict[str, Tensor] = {}
    for child in children:
        models |= dict.fromkeys(child.members, torch.stack([joint, child.model])[None])
    if not models:  # all members are away
        return Benefit(0.0, math.inf, 1.0, 0)
    answered = judge(models, server)
    known = np.isfinite(answered.losses).all(axis=(1, 2))
    losses = answered.losses[known, 0]
    return benefit(losses[:, 0] - losses[:, 1], answered.within[known, 0], server.aggregation.hostile)
