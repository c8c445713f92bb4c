"""Ways to split a cluster, from how alike its members' half-updates are over several looks."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import field, replace
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from torch import Tensor

from coterie.benefit import FEWEST, FIRST_LOOK, LEVEL, Benefit, benefit
from coterie.clustering import bipartition, cosine_matrix
from coterie.clustering.agglomerative import cut, dendrogram
from coterie.methods.compared import Compared, ComparedHalves
from coterie.snapshot import saved

LEVELS = (2, 3, 4)
"""Numbers of parts that are tried in a look. More come by splitting again."""

Sides = npt.NDArray[np.int64]
"""(M,) the number of the part that each member is in; the first member's is 0."""
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
    """(2, M, M) sums over the looks of the cosines of their half-updates, for each half; (1, M, M) of whole updates."""
    pairs: Floats | None = None
    """(M, M) looks in which both of a pair were compared."""
    last: Benefit | None = None
    """What the candidate of the last look gained; None where none was tried."""
    joint: Tensor | None = None
    """After a split: the model of the cluster, which trains on beside its children's."""
    weighting: str = "samples"
    """The weight of a client in its mean."""
    compared: Compared = Compared()
    """What is compared in this run."""
    leanings: dict[str, list[float]] = field(default_factory=dict)
    """By member the loss under the step of each part, less their mean, when it was split."""
    watched: int = 0
    """The children's age when they were last compared with it."""
    kept: float = math.inf
    """What they gained over it then."""


class Candidate(NamedTuple):
    """A way to split some members."""

    by_half: tuple[Sides, ...]
    """As found on each half of the data alone, or on all of it where there are no halves: what is judged."""
    both: Sides
    """As found on all data: what would be made."""
    leaning: Benefit | None = None
    """How clearly what sets its parts apart on one half of the data is found again on the other; None: not known."""


def known_of(memory: Looks, members: Sequence[str]) -> Looks:
    """The memory of those members that were compared before."""
    if memory.cosines is None or memory.pairs is None:
        return replace(memory, clients=())
    wanted = set(members)
    rows = np.array([i for i, client in enumerate(memory.clients) if client in wanted], dtype=np.int64)
    clients = tuple(memory.clients[i] for i in rows)
    cosines, pairs = memory.cosines[:, rows[:, None], rows], memory.pairs[np.ix_(rows, rows)]
    return replace(memory, clients=clients, cosines=cosines, pairs=pairs)


def half_cosines(halves: ComparedHalves) -> Floats:
    """The cosines `(2, M, 2, M)` of every two half-updates of a look: by half and member, and again."""
    parts, count = halves.vectors.shape[:2]
    cosines = cosine_matrix(halves.vectors.flatten(0, 1))
    return np.asarray(cosines, dtype=np.float64).reshape(parts, count, parts, count)


def pooled(memory: Looks, clients: tuple[str, ...], cosines: Floats) -> Looks:
    """The memory with this look's cosines within each half: the noise of one look averages out over several.

    What is compared in a look is made at one model; only the cosines are added up.
    """
    before = known_of(memory, clients)
    place = {client: i for i, client in enumerate(clients)}
    within = np.stack([cosines[half, :, half] for half in range(len(cosines))])
    pairs = np.ones_like(within[0])
    if before.cosines is not None and before.pairs is not None:
        at = np.array([place[client] for client in before.clients], dtype=np.int64)
        within[:, at[:, None], at] += before.cosines
        pairs[np.ix_(at, at)] += before.pairs
    return replace(memory, clients=clients, cosines=within, pairs=pairs)


def candidates(memory: Looks, cosines: Floats) -> list[Candidate]:
    """Ways to split the members by how alike their half-updates are; `cosines` are those of this look."""
    assert memory.cosines is not None
    assert memory.pairs is not None
    mean = memory.cosines / memory.pairs
    by_half = [cuts(own) for own in mean]
    both = cuts(mean.mean(0))
    found = [Candidate(tuple(own), whole) for *own, whole in zip(*by_half, both, strict=True)]
    different = {np.concatenate([*one.by_half, one.both]).tobytes(): one for one in reversed(found)}
    split = [one for one in different.values() if smallest_side(one)]
    return [one._replace(leaning=leaning_of(one, cosines)) for one in split] if len(cosines) == 2 else split


def cuts(similarity: Floats) -> list[Sides]:
    """Ways to cut clients by their similarities (M, M).

    In two by the leading direction in which they disagree; in each of LEVELS by average linkage; and in two by single
    linkage, which is Algorithm 1.
    """
    count = len(similarity)
    if count == 2:
        return [np.array([0, 1])]
    centred = similarity.copy()
    np.fill_diagonal(centred, (similarity.sum(1) - np.diagonal(similarity)) / (count - 1))
    centred -= centred.mean(0)
    centred -= centred.mean(1)[:, None]
    leading = np.linalg.eigh((centred + centred.T) / 2)[1][:, -1] > 0
    distances = np.clip(1 - similarity, 0, None)
    np.fill_diagonal(distances, 0)
    merges = dendrogram(distances, "average")
    average = [cut(merges, parts) for parts in LEVELS if parts <= count]
    closest = np.zeros(count, dtype=np.int64)
    closest[bipartition(similarity, "single").second] = 1
    return [(leading ^ leading[0]).astype(np.int64), *average, closest]


def smallest_side(candidate: Candidate) -> int:
    """Members of the smallest part, by each half and by both; 0 where there is one part only."""
    sizes = [np.unique(sides, return_counts=True)[1] for sides in (*candidate.by_half, candidate.both)]
    return min(int(own.min()) if len(own) > 1 else 0 for own in sizes)


def number_of_parts(candidate: Candidate) -> int:
    """How many parts would be made."""
    return len(np.unique(candidate.both))


def leaning_of(candidate: Candidate, cosines: Floats) -> Benefit:
    """How much each member's update on one half leans to its own part's on the other, more than to the other parts'."""
    leanings = []
    for half in (0, 1):
        parts = candidate.by_half[half]
        towards = cosines[1 - half, :, half]
        own = (parts[:, None] == parts).astype(np.float64)
        others = 1 - own
        apart = own / own.sum(1, keepdims=True) - others / others.sum(1, keepdims=True)
        leanings.append(((towards - towards.mean(0)) * apart).sum(1))
    return benefit(np.mean(leanings, axis=0))


def worth_trying(found: Sequence[Candidate]) -> list[Candidate]:
    """The candidate that reproduces best, if one does at all; those of which that is not known are all tried.

    This decides what is tried, not what is split. Of few members hardly anything can be said before it is tried.
    """
    reproduced = [
        (one.leaning.gain, i)
        for i, one in enumerate(found)
        if one.leaning is not None and (len(one.both) < FEWEST or one.leaning.p_value <= LEVEL)
    ]
    best = [found[max(reproduced)[1]]] if reproduced else []
    return best + [one for one in found if one.leaning is None]
