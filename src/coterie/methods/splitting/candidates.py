"""Ways to split a cluster in two, from how alike its members' half-updates are over several looks."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from coterie.benefit import FIRST_LOOK, benefit
from coterie.clustering import bipartition, cosine_matrix
from coterie.clustering.dendrogram import cut
from coterie.methods.compared import ComparedHalves
from coterie.snapshot import saved

TRIED = 0.05
"""The level at which a candidate must reproduce on the other half of the data to be tried at all."""

Sides = npt.NDArray[np.bool_ | np.int64]
"""(M,) which part each member is in: of two False and True, of several their numbers; the first member's is 0."""
Floats = npt.NDArray[np.float64]


@saved
class Looks:
    """What the rule remembers of a cluster: how often it was looked at, and how alike the members' updates were."""

    count: int = 0
    """Looks along the branch: together they spend the level."""
    due: int = FIRST_LOOK
    """The cluster's age at the next look; it doubles, for early looks in any run and few in a long one."""
    clients: tuple[str, ...] = ()
    """The members that were compared so far."""
    cosines: Floats | None = None
    """(2, M, M) sums over the looks of the cosines of their half-updates, for each half."""
    pairs: Floats | None = None
    """(M, M) looks in which both of a pair were compared."""
    gain: float = math.nan
    error: float = math.nan
    p_value: float = math.nan
    """Of the best candidate of the last look; NaN where no candidate was tried."""
    joint: Tensor | None = None
    """After a split: the model of the cluster, which trains on beside its children's."""
    weighting: str = "samples"
    """The weight of a client in its mean."""
    watched: int = 0
    """The children's age when they were last compared with it."""
    kept: float = math.inf
    """What they gained over it then."""


class Candidate(NamedTuple):
    """A way to split some members."""

    by_half: tuple[Sides, Sides]
    """As found on each half alone: what is judged."""
    both: Sides
    """As found on both halves: what would be made."""


def known_of(memory: Looks, members: Sequence[str]) -> Looks:
    """The memory of those members that were compared before."""
    if memory.cosines is None or memory.pairs is None:
        return replace(memory, clients=())
    wanted = set(members)
    rows = np.array([i for i, client in enumerate(memory.clients) if client in wanted], dtype=np.int64)
    clients = tuple(memory.clients[i] for i in rows)
    cosines, pairs = memory.cosines[:, rows[:, None], rows], memory.pairs[np.ix_(rows, rows)]
    return replace(memory, clients=clients, cosines=cosines, pairs=pairs)


def pooled(memory: Looks, halves: ComparedHalves) -> Looks:
    """The memory with this look's cosines: the noise of one look averages out over several.

    What is compared in a look is made at one model; only the cosines are added up.
    """
    before = known_of(memory, halves.clients)
    place = {client: i for i, client in enumerate(halves.clients)}
    cosines = np.stack([np.asarray(cosine_matrix(own), dtype=np.float64) for own in halves.vectors])
    pairs = np.ones_like(cosines[0])
    if before.cosines is not None and before.pairs is not None:
        at = np.array([place[client] for client in before.clients], dtype=np.int64)
        cosines[:, at[:, None], at] += before.cosines
        pairs[np.ix_(at, at)] += before.pairs
    return replace(memory, clients=halves.clients, cosines=cosines, pairs=pairs)


def candidates(memory: Looks, single: bool = False) -> list[Candidate]:
    """Ways to split the members by how alike their half-updates are; `single`: the first of them alone."""
    assert memory.cosines is not None
    assert memory.pairs is not None
    mean = memory.cosines / memory.pairs
    first, second, both = (bipartitions(own) for own in (mean[0], mean[1], mean.mean(0)))
    found = [Candidate((a, b), c) for a, b, c in zip(first, second, both, strict=True)]
    different = {np.concatenate([*one.by_half, one.both]).tobytes(): one for one in reversed(found)}
    return found[:1] if single else list(different.values())


def bipartitions(similarity: Floats) -> list[Sides]:
    """Three ways to cut clients in two by their similarities (M, M).

    By the leading direction in which they disagree, by average linkage, and by single linkage, which is Algorithm 1.
    """
    from scipy.cluster.hierarchy import linkage  # it takes long to load, and few runs need it
    from scipy.spatial.distance import squareform

    count = len(similarity)
    if count == 2:
        return [np.array([False, True])]
    centred = similarity.copy()
    np.fill_diagonal(centred, (similarity.sum(1) - np.diagonal(similarity)) / (count - 1))
    centred -= centred.mean(0)
    centred -= centred.mean(1)[:, None]
    leading = np.linalg.eigh((centred + centred.T) / 2)[1][:, -1] > 0
    distances = np.clip(1 - similarity, 0, None)
    np.fill_diagonal(distances, 0)
    average = cut(linkage(squareform(distances, checks=False), "average"), 2) == 1
    closest = np.zeros(count, dtype=bool)
    closest[bipartition(similarity, "single").second] = True
    return [leading ^ leading[0], average, closest]


def smallest_side(candidate: Candidate) -> int:
    """Members of the smallest part, by each half and by both; 0 where there is one part only."""
    sizes = [np.unique(sides, return_counts=True)[1] for sides in (*candidate.by_half, candidate.both)]
    return min(int(own.min()) if len(own) > 1 else 0 for own in sizes)


def reproduces(candidate: Candidate, halves: ComparedHalves) -> bool:
    """Is what sets the sides apart on one half found again on the other? Only then is the candidate worth trying.

    Each member's update on one half should lean to its own side's mean, as found on the other half. This decides what
    is tried, not what is split; with few members everything is tried.
    """
    leanings = []
    for half in (0, 1):
        side = torch.from_numpy(candidate.by_half[half])
        made_of = torch.nn.functional.normalize(halves.vectors[half].double(), dim=1)
        other = torch.nn.functional.normalize(halves.vectors[1 - half].double(), dim=1)
        apart = made_of[~side].mean(0) - made_of[side].mean(0)
        leaning = (other - other.mean(0)) @ apart
        leanings.append(torch.where(side, -leaning, leaning))
    found = benefit(torch.stack(leanings).mean(0).numpy())
    return found.p_value <= TRIED or math.isinf(found.error)
