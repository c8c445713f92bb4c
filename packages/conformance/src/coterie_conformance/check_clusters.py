"""Checks of who is with whom: a partition at all times, of clients by id, that depends on nothing it should not see."""

from __future__ import annotations

import dataclasses
import math
from collections import Counter
from collections.abc import Sequence
from itertools import combinations

import numpy as np
import numpy.typing as npt
import torch

from coterie import Federation
from coterie.clustering import cosine_matrix
from coterie.methods import Assignment, Reply, Request, Train
from coterie_conformance.checking import DoesNotApply, Failed, check
from coterie_conformance.subjects import Subject
from coterie_conformance.trials import (
    Trial,
    as_partition,
    cluster_of,
    keeps_all,
    model_bits,
    passing,
    start,
    tiny_federation,
    with_vector,
)

OTHER_SEEDS = (5, 6, 7)
SHUFFLED = (5, 2, 7, 0, 3, 6, 1, 4)
"""Another order of the clients, in which neither neighbours nor halves stay together."""
MANY = 8
"""Rounds in which a method that splits clusters can split them again and again."""


def require_partition(assignment: Assignment, clients: Sequence[str], when: str) -> None:
    """Failed unless every client is in one cluster, and is given a model or a mixture that sums to one."""
    counts = Counter(client for members in assignment.members for client in members)
    if lost := [client for client in clients if client not in counts]:
        raise Failed(f"{when}: {len(lost)} of {len(clients)} clients are in no cluster ({', '.join(lost[:3])})")
    if twice := [client for client, n in counts.items() if n > 1]:
        raise Failed(f"{when}: {len(twice)} clients are in two clusters ({', '.join(twice[:3])})")
    if strange := sorted(set(counts) - set(clients)):
        raise Failed(f"{when}: there is no client {strange[0]!r}")
    if len(set(assignment.cluster_ids)) < len(assignment.members):
        raise Failed(f"{when}: two clusters have one id ({assignment.cluster_ids})")
    known = assignment.by_id
    for client, given in assignment.served_by.items():
        shares = given if not isinstance(given, int) else {given: 1.0}
        if unknown := set(shares) - set(known):
            raise Failed(f"{when}: {client} is served by model {min(unknown)}, which there is not")
        if abs(sum(shares.values()) - 1) > 1e-4:
            raise Failed(f"{when}: the mixture of {client} sums to {sum(shares.values()):.4f}")


@check(
    "partition",
    "Is every client in exactly one cluster after every round, with all clients in a round and with half of them?",
    "CFL's index slip: clients get lost or doubled from the second split on",
)
def partition(subject: Subject) -> str | None:
    for share in (1.0, 0.5):
        trial = start(subject.method, rounds=MANY, participation=share)
        require_partition(trial.last, trial.server.clients, "before the first round")
        for _ in range(MANY):
            require_partition(trial.round(), trial.server.clients, f"round {trial.t}, participation {share}")
    return None


@check(
    "tree",
    "Do the children of every split, the second and third included, share out exactly what the parent held?",
    "CFL's index slip: a child holds positions in its parent, taken for ids of clients",
)
def tree(subject: Subject) -> str | None:
    trial = start(subject.method, rounds=MANY)
    held = {number: set(m) for number, m in zip(trial.last.cluster_ids, trial.last.members, strict=True)}
    splits = depth = 0
    level = dict.fromkeys(held, 0)
    for _ in range(MANY):
        trial.round()
        for split in trial.infos[-1].splits:
            splits += 1
            shared = [client for side in split.members for client in side]
            if split.cluster not in held:
                raise Failed(f"round {trial.t}: cluster {split.cluster} was split, which there is not")
            if len(shared) != len(set(shared)) or set(shared) != held[split.cluster]:
                wrong = set(shared) ^ held[split.cluster]
                raise Failed(
                    f"round {trial.t}, split {splits}: the children of cluster {split.cluster} do not share out its "
                    f"{len(held[split.cluster])} clients ({len(wrong)} differ)"
                )
            held |= {child: set(side) for child, side in zip(split.children, split.members, strict=True)}
            level |= dict.fromkeys(split.children, level[split.cluster] + 1)
            depth = max(depth, level[split.cluster] + 1)
    if not splits:
        raise DoesNotApply("it reported no split")
    if depth < 2:
        raise DoesNotApply(f"{splits} splits, none of a child: options that split more say more")
    return f"{splits} splits, {depth} deep"


def renamed(federation: Federation, names: Sequence[str], order: Sequence[int]) -> Federation:
    """The same clients under other names, in another order."""
    clients = [dataclasses.replace(c, id=name) for c, name in zip(federation, names, strict=True)]
    return Federation([clients[i] for i in order], federation.classes, federation.name)


def compare_clusters(subject: Subject, other: Federation, name_of: dict[str, str], what: str) -> None:
    """Failed unless the clusters on another federation are the same up to names."""
    before = as_partition(subject.plain.last)
    after = as_partition(start(subject.method, other).rounds(subject.rounds).last)
    expected = {frozenset(name_of[client] for client in members) for members in before}
    if after != expected:
        others = (as_partition(start(subject.method, seed=s).rounds(subject.rounds).last) for s in OTHER_SEEDS)
        if any(other != before for other in others):
            raise DoesNotApply("it draws at random: another seed gives other clusters, too")
        moved = sum(len(members) for members in expected - after)
        raise Failed(f"{what}: {len(expected)} clusters became {len(after)}, with {moved} clients in another one")


@check(
    "names",
    "Do clients with other names, in the same order, form the same clusters?",
    "numbers read from names, and positions taken for ids",
)
def names(subject: Subject) -> str | None:
    _refuse_declared(subject)
    federation = tiny_federation()
    fresh = [f"site {chr(ord('z') - i)}" for i in range(len(federation))]
    other = renamed(federation, fresh, range(len(fresh)))
    compare_clusters(subject, other, dict(zip(federation.ids, fresh, strict=True)), "renamed")
    return None


@check(
    "order",
    "Do the same clients in another order form the same clusters?",
    "results that hang on who is listed first",
)
def order(subject: Subject) -> str | None:
    federation = tiny_federation()
    other = renamed(federation, federation.ids, SHUFFLED)
    compare_clusters(subject, other, {client: client for client in federation.ids}, "another order")
    return None


def _refuse_declared(subject: Subject) -> None:
    if getattr(subject.method, "of", None) is not None:
        raise DoesNotApply("its clusters are declared by the clients' names")


@check(
    "twins",
    "Are two clients with the same data put in one cluster?",
    "FLT's Sign(A − γ), which relates the clients that are far apart",
)
def twins(subject: Subject) -> str | None:
    _refuse_declared(subject)
    if subject.ranks_differences:
        raise DoesNotApply("its clusters are percentiles, and equal values may fall on both sides of one")
    federation = tiny_federation()
    pairs = {f"{client.id} twin": client for client in federation.clients[:4]}
    both = [*federation.clients[:4], *(dataclasses.replace(c, id=name) for name, c in pairs.items())]
    trial = start(subject.method, Federation(both, federation.classes)).rounds(subject.rounds)
    cluster = cluster_of(trial.last)
    if keeps_all(trial.last, trial.server) and len(trial.last.members) == len(both):
        raise DoesNotApply("every client trains by itself")
    apart = [name for name, client in pairs.items() if cluster[name] != cluster[client.id]]
    if apart:
        raise Failed(f"{len(apart)} of {len(pairs)} pairs of clients with the same data are in different clusters")
    sizes = len(trial.last.members)
    return None if sizes > 1 else "all are in one cluster"


@check(
    "hidden groups",
    "Do clusters and models stay as they are, bit for bit, when the hidden groups are taken away?",
    "the truth of a simulation leaking into the method",
)
def hidden_groups(subject: Subject) -> str | None:
    federation = tiny_federation()
    without = federation.with_clients([dataclasses.replace(client, group=None) for client in federation])
    _require_same(subject.plain, start(subject.method, without).rounds(subject.rounds), "without hidden groups")
    return None


@check(
    "replies only",
    "Is the result the same, up to rounding, when the server sees replies and nothing else of the engine?",
    "a server that reads the clients' data or labels in a simulation",
)
def replies_only(subject: Subject) -> str | None:
    bare = start(subject.method, bare=True).rounds(subject.rounds)
    _require_same(bare, subject.plain, "behind the bare contract", bits=False)
    return None


def _require_same(first: Trial, other: Trial, what: str, *, bits: bool = True) -> None:
    """Failed unless two trials end alike; without `bits` up to the order in which numbers are added up."""
    if cluster_of(first.last) != cluster_of(other.last):
        raise Failed(f"{what}: other clusters")
    if bits and model_bits(first.last) != model_bits(other.last):
        raise Failed(f"{what}: other models")
    for number, model in first.last.by_id.items():
        if not torch.allclose(model, other.last.by_id[number], rtol=1e-4, atol=1e-6):
            raise Failed(f"{what}: model {number} is another one")


@check(
    "signs",
    "Do clusters stay when the signs of orthonormal vectors, which are arbitrary, are turned around?",
    "PACFL's arccos of single products without their absolute value",
)
def signs(subject: Subject) -> str | None:
    flips = np.random.default_rng(5)
    turned = 0

    def turn(request: Request, reply: Reply) -> Reply:
        nonlocal turned
        values = dict(reply.values)
        for name, value in values.items():
            if isinstance(value, torch.Tensor) and value.ndim == 2 and _orthonormal(value):
                turned += 1
                values[name] = value * torch.from_numpy(flips.choice([-1.0, 1.0], (len(value), 1))).to(value.dtype)
        return dataclasses.replace(reply, values=values)

    trial = start(subject.method, change=turn).rounds(1)
    if not turned:
        raise DoesNotApply("no client sends orthonormal vectors")
    expected = as_partition(start(subject.method).rounds(1).last)
    if as_partition(trial.last) != expected:
        raise Failed(f"{turned} clients' vectors with other signs: other clusters")
    return None


def _orthonormal(rows: torch.Tensor) -> bool:
    """Whether the first two rows have length one and are orthogonal: rows of several bases are, two by two."""
    some = rows[:2].double()
    return bool(torch.allclose(some @ some.T, torch.eye(len(some), dtype=torch.float64), atol=1e-4))


ANGLES = (0, 24, 50, 74, 100, 148)
"""Directions in a plane, in degrees, that the clients' updates have: five in a chain and one apart. Complete linkage
breaks the chain; the best cut leaves it whole."""
CHAIN = tuple((math.cos(math.radians(angle)), math.sin(math.radians(angle))) for angle in ANGLES)


@check(
    "bipartition",
    "When a cluster is split by the updates' cosines, does no other cut have a lower largest cosine across?",
    "complete linkage in place of the optimal bipartition (CFL's own notebook and its copies)",
)
def best_cut(subject: Subject) -> str | None:
    federation = tiny_federation()
    few = federation.subset(federation.ids[: len(CHAIN)])
    direction = dict(zip(few.ids, CHAIN, strict=True))
    seen: set[type] = set()

    def scripted(request: Request, reply: Reply) -> Reply:
        seen.add(type(request.task))
        if reply.vector is None:
            return reply
        vector = torch.zeros_like(reply.vector)
        vector[:2] = torch.tensor(direction[reply.client])
        return with_vector(reply, vector, trial_layout)

    trial_layout = start(subject.method, few).server.layout
    trial = start(subject.method, few, rounds=MANY, change=scripted)
    while trial.t < MANY and not any(info.splits for info in trial.infos):
        trial.round()
    splits = [split for info in trial.infos for split in info.splits]
    if not splits or not any(issubclass(task, Train) for task in seen):
        raise DoesNotApply("it split nobody by the cosines of updates")
    cosines = np.asarray(cosine_matrix(torch.tensor(CHAIN)))
    position = {client: i for i, client in enumerate(few.ids)}
    first = [position[client] for client in splits[0].members[0]]
    found = largest_across(cosines, first)
    best = min(
        largest_across(cosines, list(side))
        for size in range(1, len(CHAIN))
        for side in combinations(range(len(CHAIN)), size)
    )
    if found > best + 1e-3:
        raise Failed(f"the largest cosine across is {found:.2f}, and {best:.2f} for the best cut")
    return None


def largest_across(cosines: npt.NDArray[np.float64], side: Sequence[int]) -> float:
    """The largest cosine between a side and the rest."""
    rest = [i for i in range(len(cosines)) if i not in side]
    return float(cosines[np.ix_(list(side), rest)].max()) if rest and side else float("inf")


@check(
    "common part",
    "Do clusters by how updates differ stay when the same vector is added to every update?",
    "FedCUAU's extra 1/N in the mean update, by which CUAU turns into the update's length",
)
def common_part(subject: Subject) -> str | None:
    if not subject.ranks_differences:
        raise DoesNotApply("it does not cluster by differences of updates")

    def shifted(request: Request, reply: Reply) -> Reply:
        if reply.vector is None:
            return reply
        layout = passing(plain).layout
        return with_vector(reply, reply.vector + 0.05 * torch.arange(len(reply.vector)).cos(), layout)

    plain = start(subject.method)
    moved = start(subject.method, change=shifted)
    if cluster_of(plain.last) != cluster_of(moved.last):
        raise Failed("the same vector added to every update: other clusters")
    return None
