"""What candidate splits are worth on held-out data: the steps of their sides, tried on the halves not made of them."""

from __future__ import annotations

import math
from collections.abc import Sequence

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
from coterie.methods.splitting.candidates import Candidate, Sides
from coterie.methods.tree import Node
from coterie.tasks import HalfUpdates, HeldOut, Request
from coterie.tasks.halves import OFFSET_SCALES


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

    def mean(self, side: Sides, half: int) -> Tensor:
        """The weighted mean `(d,)` of the half-updates of the members in `side`, float64."""
        if self.halves.updates is None:
            return self._of_cells(side)[half]
        rows = torch.from_numpy(np.flatnonzero(side))
        weights = self.weights[rows] * self.shrink[half, rows]
        total: Tensor = weights @ self.halves.updates[half, rows].double()
        return total / self.weights[rows].sum()

    def mean_of(self, side: Sides) -> Tensor:
        """The mean over both halves."""
        return (self.mean(side, 0) + self.mean(side, 1)) / 2

    def _of_cells(self, side: Sides) -> Tensor:
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
    both_halves = 2 * server.layout.size
    groups = cell[large].tolist()
    return server.exchange(requests, groups, clusters=cells, weighting=seen.weighting, size=both_halves).sums


def judged(
    found: Sequence[Candidate], steps: Steps, halves: ComparedHalves, model: Tensor, server: Server
) -> list[tuple[Candidate, Benefit]]:
    """What each candidate gains over one model for all, on the halves that its steps were not made of."""
    everyone = np.ones(len(halves.clients), dtype=bool)
    joint = [apply_update(model, steps.mean(everyone, half)) for half in (0, 1)]
    made = [
        {
            side: [apply_update(model, steps.mean(one.by_half[half] == side, half)) for half in (0, 1)]
            for side in np.unique(one.both).tolist()
        }
        for one in found
    ]
    stacks: dict[tuple[int, ...], Tensor] = {}
    requests = []
    for i, client in enumerate(halves.clients):
        own = tuple(one.by_half[half][i].item() for one in found for half in (0, 1))
        if own not in stacks:
            rows = [[joint[half], *(made[c][own[2 * c + half]][half] for c in range(len(found)))] for half in (0, 1)]
            stacks[own] = torch.stack([torch.stack(row) for row in rows])
        requests.append(Request(client, HeldOut(stacks[own], halves_seed(server, client))))
    replies = list(server.ask(requests))
    losses = np.array([reply.values["loss"] for reply in replies]).reshape(len(replies), len(OFFSET_SCALES), -1)
    within = np.array([reply.values["within"] for reply in replies])
    place = {client: i for i, client in enumerate(halves.clients)}
    rows_of = np.array([place[reply.client] for reply in replies], dtype=np.int64)
    results = []
    scale = np.median(losses, axis=0).argmin(0)  # the offset that serves best, of one model and of each candidate
    for c, one in enumerate(found):
        gains = losses[:, scale[0], 0] - losses[:, scale[c + 1], c + 1]
        all_gain = all(np.median(gains[one.both[rows_of] == side]) > 0 for side in np.unique(one.both))
        result = benefit(gains, within[:, c])
        results.append((one, result if all_gain else result._replace(p_value=1.0)))
    return results


def chosen_by_members(
    sides: Sides, steps: Steps, halves: ComparedHalves, seen: LeafRound, server: Server
) -> dict[str, int]:
    """The part of every member: the one whose step serves it better, on halves that the step was not made of.

    Whether to split is decided by then; this is who goes where, those included that were not compared. A member that
    does not answer stays in its part, or goes to the largest one. If all would leave a part, all stay as they are.
    """
    parts, sizes = np.unique(sides, return_counts=True)
    made = [[apply_update(seen.after, steps.mean(sides == part, half)) for part in parts] for half in (0, 1)]
    models = torch.stack([torch.stack(row) for row in made])
    before = dict(zip(halves.clients, sides.tolist(), strict=True))
    largest = parts[sizes.argmax()].item()
    chosen = {client: before.get(client, largest) for client in seen.leaf.members}
    requests = [Request(client, HeldOut(models, halves_seed(server, client))) for client in seen.leaf.members]
    for reply in server.ask(requests):
        losses = np.array(reply.values["loss"]).reshape(len(OFFSET_SCALES), -1).min(0)
        if np.isfinite(losses).all():
            chosen[reply.client] = parts[losses.argmin()].item()
    stays = {chosen[client] for client in halves.clients} == set(parts.tolist())
    return chosen if stays else chosen | before


def served(children: Sequence[Node], joint: Tensor, server: Server) -> Benefit:
    """What the children's models gain over one for all on the members' validation data, each with the best offset."""
    losses, within = [], []
    for child in children:
        models = torch.stack([joint, child.model])[None]
        for reply in server.ask_all(child.members, HeldOut(models, None)):
            losses.append(np.array(reply.values["loss"]).reshape(len(OFFSET_SCALES), 2))
            within.append(reply.values["within"][0])
    table = np.array(losses).reshape(-1, len(OFFSET_SCALES), 2)
    known = np.isfinite(table).all(axis=(1, 2))
    if not known.any():
        return Benefit(0.0, math.inf, 1.0, 0)
    scale = np.median(table[known], axis=0).argmin(0)
    gains = table[known][:, scale[0], 0] - table[known][:, scale[1], 1]
    return benefit(gains, np.array(within)[known])
