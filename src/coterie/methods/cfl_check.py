"""How a CFL cluster is checked: who is asked what, over which rounds, and at what cost. The rule itself is `cfl_rule`.

A check freezes θ̄, the mean of the cluster's recent models, and asks every member that takes part in a round for its
half-updates there, until all have answered or the window closes: one round at full participation, more below. If
these promise a split, the two sides' models are judged by the members on halves of data they were not made of.

With a projection the server sees projections in place of half-updates, and the steps of the sides as sums over their
members (`cfl_vectors`). Children start at the sums that were judged. Where the projections are keyed, all members of
the sides are asked at once, whether they take part in the round or not: a second sum without a few would tell the few
from the rest. Of very many members sketches are compared, which are projections without a key.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import field, replace
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from coterie.clustering import cosine_matrix
from coterie.clustering.copies import copied, copies_among_many
from coterie.clustering.half_vectors import Floats
from coterie.clustering.sketch import sketch
from coterie.errors import RunError
from coterie.methods import cfl_rule as rule
from coterie.methods.cfl_harm import PART, conflict_p_value, harm_of
from coterie.methods.cfl_likeness import MANY
from coterie.methods.cfl_sides import completed, movers, sure_places
from coterie.methods.cfl_vectors import ask_half_updates, compared, grams, halves_seed, sketch_width, sum_steps
from coterie.methods.server import Server, apply_update
from coterie.methods.tree import Branch, Node
from coterie.snapshot import saved
from coterie.tasks import HalfLosses, Request
from coterie.tasks.halves import LabelSums
from coterie.trainers.base import Training

WINDOW = 3.0
"""A window has this many rounds over the participation: a member misses it with probability exp(−3)."""


FEW = 3
"""Members of a side that must have judged it before it is decided on, and at least half of them."""


@saved
class Block:
    """The sum of the models of consecutive rounds."""

    start: int
    """Age of the cluster at the first of them."""
    count: int
    total: Tensor


@saved
class Session:
    """A check that is under way."""

    age: int
    mean_age: float
    opened: int
    model: Tensor
    """θ̄, where everything is measured."""
    updates: dict[str, Tensor]
    """The half-updates of the members that answered, `(2, d)`, or their projections."""
    whole: dict[str, list[float]]
    """Their losses at θ̄, by scale of the output offset."""
    forks: tuple[rule.Fork, ...] = ()
    """The splits that are being judged, from the top down; empty before there are any."""
    preference: dict[str, list[float]] = field(default_factory=dict)
    """By how much the members that judged the sides' steps like their own side's more, for each fork on their way and
    each half."""
    labels: dict[str, Tensor] = field(default_factory=dict)
    """Sums over the members that answered of what the steps did to each label, by the finest side they are on."""
    judged: int = 0
    """The round in which the second question was first asked."""
    projection: int | None = None
    """The numbers that a half-update is projected to; None: it is seen as it is."""
    steps: dict[str, Tensor] = field(default_factory=dict)
    """The mean half-updates `(2, d)` of the sides by name, where they come as sums."""
    keyed: bool = True
    """Whether a projection is the clients' secret; else it is a sketch."""

    @property
    def secret(self) -> bool:
        """Are half-updates hidden from the server?"""
        return self.projection is not None and self.keyed


@saved
class Watch:
    """What a cluster has shown in checks since it began."""

    blocks: tuple[Block, ...] = ()
    records: tuple[rule.Record, ...] = ()
    checked: int = 0
    """Age at the last check."""
    spent: float = 0.0
    """Checks so far, on the whole path from the root: training passes per member."""
    session: Session | None = None


class Made(NamedTuple):
    """A split that the rule decided on: by one bipartition of the cluster, or by several, one of a side of another.

    All of them are of the same updates at one model, and between groups about equally far apart which comes first is
    a matter of noise. So the order is not kept: the cluster has as many children as there are sides in the end.
    """

    branches: tuple[Branch, ...]
    """In the order of their first members in the cluster."""
    stationary: Tensor
    evidence: tuple[rule.Evidence, ...]
    """Of each bipartition."""


def passed_on(watch: Watch, members: Sequence[str]) -> Watch:
    """What a child with these members begins with."""
    return Watch(records=tuple(rule.passed_on(record, members) for record in watch.records), spent=watch.spent)


def observe(watch: Watch, age: int, model: Tensor) -> Watch:
    """Count a round's model in; blocks older than half the age are dropped."""
    blocks = [block for block in watch.blocks if 2 * (block.start + block.count) > age]
    if blocks and blocks[-1].start > watch.checked and watch.session is None:
        last = blocks[-1]
        blocks[-1] = Block(last.start, last.count + 1, last.total + model.double())
    else:
        blocks.append(Block(age, 1, model.double()))
    return replace(watch, blocks=tuple(blocks))


def recent_mean(watch: Watch, age: int) -> tuple[Tensor, float]:
    """θ̄, the mean of the models of about the last half of the cluster's life, float64 `(d,)`, and their mean age."""
    blocks = [block for block in watch.blocks if 2 * block.start > age] or [watch.blocks[-1]]
    count = sum(block.count for block in blocks)
    total = torch.stack([block.total for block in blocks]).sum(0)
    return total / count, sum(block.count * (block.start + (block.count - 1) / 2) for block in blocks) / count


def check(
    watch: Watch,
    leaf: Node,
    asked: Sequence[str],
    t: int,
    server: Server,
    how: Training,
    weighting: str,
    min_size: int = 1,
    projection: int | None = None,
    sketched: int | None = None,
) -> tuple[Watch, Made | None]:
    """One round of the check of a cluster: open it if it is due, ask those who take part, and decide when all is in.

    `asked` are the members that take part, none where no check may begin; `how` they train for it; with `projection`
    no single half-update is seen, with `sketched` sketches of so many numbers. The last round waits for nobody: a check
    that is under way is decided by those who have answered, and where all take part there is a last one.
    """
    age, window, last = t - leaf.born, check_window(server), t >= server.rounds
    if watch.session is None:
        affordable = watch.spent + 1 <= rule.allowance(t, server.participation)
        due = rule.next_check(watch.checked)
        if last and window == 1:
            due = min(due, max(rule.FIRST_CHECK, watch.checked + rule.GAP))
        if not asked or len(leaf.members) < max(2, 2 * min_size) or age < due or not affordable:
            return watch, None
        mean, mean_age = recent_mean(watch, age)
        model, width, keyed = mean.to(leaf.model.dtype), projection or sketched, projection is not None
        watch = replace(watch, session=Session(age, mean_age, t, model, {}, {}, projection=width, keyed=keyed))
    session = watch.session
    assert session is not None
    waits = False
    if not session.forks:
        session = _ask_updates(session, leaf, [c for c in asked if c not in session.updates], t, server, how)
        under_way = replace(watch, session=session)
        waits = any(client not in session.updates for client in leaf.members) and t - session.opened + 1 < window
        if waits and not last:
            return under_way, None
        watch, session = _look(watch, session, leaf, t, server, weighting, min_size)
        if session is None:
            return under_way if waits else watch, None
        if session.projection is not None:
            session = _with_steps(session, t, server, how, weighting)
    if session.secret:
        asked = leaf.members
    session = _ask_losses(session, asked, server, weighting)
    sides = [side for fork in session.forks for side in fork.sides]
    within = t - session.judged + 1 < window
    enough = all(
        sum(c in session.preference for c in side) >= min(len(side), max(FEW, len(side) / 2)) for side in sides
    )
    if (waits or (within and not enough)) and not last:
        return replace(watch, session=session), None
    labels = _labels(session)
    made = rule.accepted(session.forks, labels, _squared(server))
    if not made:
        absent = any(c not in session.preference for side in sides for c in side)
        waits = waits or (within and absent and rule.is_promising(session.forks, labels))
        return replace(watch, session=session if waits else None), None
    return replace(watch, session=None), _split(session, leaf, made, t, server, how, weighting)


class Inspection(NamedTuple):
    """What one check of all members at one model says, without any history."""

    p_value: float
    """Of "one distribution for all"."""
    sides: tuple[tuple[str, ...], tuple[str, ...]] | None
    """The best split, where one is clear and the members differ."""
    conflict_p_value: float
    """Of "neither side's step harms the other"; 1 without sides."""
    shared: float
    """The part of the samples whose labels both sides hold."""
    conflict: bool
    """Would the rule split here?"""


def inspect(leaf: Node, t: int, server: Server, weighting: str) -> Inspection | None:
    """Check a cluster now, with all its members at its model, and split nothing; None where nobody can tell."""
    how, width = server.schedule.at(t), sketch_width(len(leaf.members), server.layout.trainable)
    session = Session(1, 1.0, t, leaf.model, {}, {}, projection=width, keyed=False)
    session = _ask_updates(session, leaf, leaf.members, t, server, how)
    watch, judged = _look(Watch(), session, leaf, t, server, weighting, 1)
    if not watch.records:
        return None
    seen = watch.records[-1].p_value()
    if judged is None:
        return Inspection(seen, None, 1.0, 0.0, False)
    if judged.projection is not None:
        judged = _with_steps(judged, t, server, how, weighting)
    judged = _ask_losses(judged, leaf.members, server, weighting)
    top, labels = judged.forks[0], _labels(judged)
    made = rule.accepted(judged.forks, labels, _squared(server))
    if "0" not in labels or "1" not in labels:
        return Inspection(seen, top.sides, 1.0, 0.0, False)
    harms = harm_of(labels["0"], labels["1"]), harm_of(labels["1"], labels["0"])
    return Inspection(seen, top.sides, conflict_p_value(harms), min(harm.shared for harm in harms), bool(made))


def check_window(server: Server) -> int:
    """The rounds that a check may wait for its members: one where all take part."""
    return 1 if server.participation >= 1 else math.ceil(WINDOW / server.participation)


def _ask_updates(
    session: Session, leaf: Node, clients: Sequence[str], t: int, server: Server, how: Training
) -> Session:
    """The session with what these members answer to the first question."""
    members, width = len(leaf.members), session.projection
    found = ask_half_updates(clients, session.model, how, t, server, width, members, session.keyed)
    return replace(
        session,
        updates=session.updates | {answer.client: answer.vectors for answer in found},
        whole=session.whole | {answer.client: answer.whole for answer in found},
    )


def _with_steps(session: Session, t: int, server: Server, how: Training, weighting: str) -> Session:
    """The session with the steps of the sides as sums; forks with a side that has none are not judged."""
    sides: dict[str, list[str]] = {}
    paths = paths_of(session.forks)
    for client in [c for side in session.forks[0].sides for c in side]:
        sides.setdefault(paths[client], []).append(client)
    steps = sum_steps(sides, session.model, how, t, server, weighting)
    forks = [fork for fork in session.forks if {f"{fork.name}0", f"{fork.name}1"} <= steps.keys()]
    return replace(session, steps=steps, forks=tuple(_connected(forks)))


def _ask_absent(session: Session, leaf: Node, t: int, server: Server, how: Training, weighting: str) -> Session:
    """Once a split is decided, ask the members that the windows have missed; at full participation all were asked."""
    if server.participation >= 1:
        return session
    try:
        if not session.secret:  # else all were asked at once
            session = _ask_losses(session, leaf.members, server, weighting)
        return _ask_updates(session, leaf, [c for c in leaf.members if c not in session.updates], t, server, how)
    except RunError:  # none of them gave a finite update: they are placed without
        return session


def _usable(session: Session, leaf: Node, server: Server) -> list[str]:
    """The members that have answered soundly, have halves, and whose losses are finite."""
    sound = _sound(session, leaf, server)
    return [c for c in sound if all(map(math.isfinite, session.whole[c]))]


def _sound(session: Session, leaf: Node, server: Server) -> dict[str, Tensor]:
    """The members' half-updates, but those longer than the mean's limit, if it has one, and all but one of copies."""
    norms = {c: float(session.updates[c].norm()) for c in leaf.members if c in session.updates}
    limit = server.aggregation.bounds({0: list(norms.values())})[0] if norms else math.inf
    return without_copies({c: session.updates[c] for c, norm in norms.items() if norm <= limit})


def without_copies(updates: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The half-updates `(2, d)` without copies: a few that agree on what to send would look like a group of its own."""
    if len(updates) < 2:
        return dict(updates)
    rows = torch.stack([own.reshape(-1) for own in updates.values()])
    many = len(rows) > MANY
    copies = copies_among_many(rows.float().numpy()) if many else copied(cosine_matrix(rows), rows.shape[1])
    return {client: own for (client, own), copy in zip(updates.items(), copies, strict=True) if not copy}


def _look(
    watch: Watch, session: Session, leaf: Node, t: int, server: Server, weighting: str, min_size: int
) -> tuple[Watch, Session | None]:
    """The first part of the rule, once the half-updates are in: the check goes on if there is a split to judge."""
    usable = _usable(session, leaf, server)
    watch = replace(watch, checked=session.age, spent=watch.spent + 1, session=None)
    if len(usable) < 2:
        return watch, None
    record, _, forks = rule.look(_probe(session, usable, leaf, server, weighting), watch.records)
    watch = replace(watch, records=(*watch.records, record)[-rule.KEPT :])
    least = max(min_size, server.engine.least_in_sum)
    forks = _connected([fork for fork in forks if min(map(len, fork.sides)) >= least])
    if not forks:
        return watch, None
    return watch, replace(session, forks=tuple(forks), judged=t)


def _probe(session: Session, usable: Sequence[str], leaf: Node, server: Server, weighting: str) -> rule.Probe:
    """What the usable members measured: products of their half-updates or, of very many, the vectors."""
    what = compared(server.layout, len(leaf.members), session.projection)
    stacked = torch.stack([session.updates[c][half] for half in (0, 1) for c in usable])
    weights = np.array([server.weight(c, weighting) for c in usable])
    whole = rule.best_scale([session.whole[c] for c in usable], weights)
    if len(usable) > MANY:
        vectors = stacked[:, : what.whole].float().numpy()
        return rule.Probe(session.mean_age, tuple(usable), weights, np.zeros((0, 0, 0)), whole, vectors)
    return rule.Probe(session.mean_age, tuple(usable), weights, grams(stacked.double(), what), whole)


def _connected(forks: Sequence[rule.Fork]) -> list[rule.Fork]:
    """The forks, from the top down, without those below a fork that is missing."""
    kept: list[rule.Fork] = []
    names = {""}
    for fork in forks:
        if fork.name in names:
            kept.append(fork)
            names |= {f"{fork.name}0", f"{fork.name}1"}
    return kept


def paths_of(forks: Sequence[rule.Fork]) -> dict[str, str]:
    """The name of the finest side that each client is on: a digit for each fork on its way."""
    paths: dict[str, str] = {}
    for fork in sorted(forks, key=lambda f: len(f.name)):
        for digit, side in enumerate(fork.sides):
            paths |= {c: f"{fork.name}{digit}" for c in side if paths.get(c, "") == fork.name}
    return paths


def _ask_losses(session: Session, asked: Sequence[str], server: Server, weighting: str) -> Session:
    """The second question: what the steps of the sides, made of halves, save or cost on the other halves."""
    forks = {fork.name: fork for fork in session.forks}
    models: dict[str, Tensor] = {}
    requests, paths, path_of = [], [], paths_of(session.forks)
    for client in asked:
        path = path_of.get(client)
        if path is None or client in session.preference:
            continue
        if path not in models:
            models[path] = _models_on(path, forks, session, server, weighting)
        requests.append(Request(client, HalfLosses(session.model, models[path], halves_seed(server, client))))
        paths.append(path)
    if not requests:
        return session
    names = sorted(set(paths))
    try:
        sums, replies = server.sum_vectors(requests, [names.index(path) for path in paths])
    except RunError:  # no loss with the sides' steps is finite, which speaks for no split
        return session
    labels = dict(session.labels)
    for group, total in sums.items():
        labels[names[group]] = labels[names[group]] + total if names[group] in labels else total
    preference = session.preference | {r.client: r.values["preference"] for r in replies}
    return replace(session, labels=labels, preference=preference)


def _models_on(path: str, forks: dict[str, rule.Fork], session: Session, server: Server, weighting: str) -> Tensor:
    """For each fork on a path θ̄ after a part of the own side's two half-steps and of the other side's, `(4k, d)`."""
    rows = []
    for depth, digit in enumerate(map(int, path)):
        fork = forks[path[:depth]]
        for side in (digit, 1 - digit):
            steps = _steps(session, f"{fork.name}{side}", fork.sides[side], server, weighting)
            rows += [apply_update(session.model, PART * step) for step in steps]
    return torch.stack(rows)


def _labels(session: Session) -> dict[str, Floats]:
    """The label sums `(8, labels + 1)` over each side, by its name, from those over the finest sides."""
    sums: dict[str, Tensor] = {}
    for path, total in session.labels.items():
        for depth, part in enumerate(total.reshape(len(path), len(LabelSums._fields), -1)):
            name = path[: depth + 1]
            sums[name] = sums[name] + part if name in sums else part
    return {name: total.numpy() for name, total in sums.items()}


def _squared(server: Server) -> bool:
    """Is the loss a squared error? A model of one output gives a quantity."""
    return len(server.layout.outputs()) < 2


def _steps(session: Session, name: str, members: Sequence[str], server: Server, weighting: str) -> Tensor:
    """A side's weighted mean half-updates, float64 `(2, d)`; where they came as sums, those of the side as judged."""
    if session.projection is not None:
        return session.steps[name]
    weights = torch.tensor([server.weight(c, weighting) for c in members], dtype=torch.float64)
    stacked = torch.stack([session.updates[c].reshape(-1) for c in members]).double()
    return ((weights / weights.sum()) @ stacked).reshape(2, -1)


def _split(
    session: Session,
    leaf: Node,
    made: Sequence[rule.Fork],
    t: int,
    server: Server,
    how: Training,
    weighting: str,
) -> Made | None:
    """The children: each starts at θ̄ with its side's mean half-update; who was not seen is placed by its likeness."""
    width = session.projection or server.layout.trainable
    session = _ask_absent(session, leaf, t, server, how, weighting)
    # Those that were judged count, also where one who came later is like them, or longer.
    judged = {c for fork in made for side in fork.sides for c in side}
    sound = _sound(session, leaf, server) | {c: session.updates[c] for c in judged}
    updates = {c: vectors.sum(0)[:width] for c, vectors in sound.items()}
    names = {"": list(leaf.members)}
    evidence = []
    for fork in made:
        if fork.name not in names:
            continue
        seen = {c for side in fork.sides for c in side}
        absent = [c for c in names[fork.name] if c in updates and c not in seen]
        placed = _preferred(fork, absent, session, server, weighting)
        sides = completed(fork, names[fork.name], updates, movers(fork, session.preference, server.samples), placed)
        if not all(any(c in updates for c in side) for side in sides):
            continue  # all of a side have moved away at a fork above
        del names[fork.name]
        names |= {f"{fork.name}{digit}": members for digit, members in enumerate(sides)}
        evidence.append(fork.evidence)
    if not evidence:
        return None
    branches = []
    for name, members in sorted(names.items(), key=lambda side: leaf.members.index(side[1][0])):
        known = [c for c in members if c in updates]
        model = apply_update(session.model, _steps(session, name, known, server, weighting).mean(0))
        held = torch.stack([updates.get(c, torch.zeros(width)) for c in members])
        branches.append(Branch(tuple(members), model, sketch(held)))
    # Newcomers train from θ̄, where the edges' updates were made.
    return Made(tuple(branches), session.model, tuple(evidence))


def _preferred(
    fork: rule.Fork, clients: Sequence[str], session: Session, server: Server, weighting: str
) -> dict[str, int]:
    """Of clients that the windows missed, the side whose step lowers the loss more on both halves of their data."""
    if not clients or session.projection is not None:
        return {}
    models = _models_on("0", {"": replace(fork, name="")}, session, server, weighting)
    requests = [Request(c, HalfLosses(session.model, models, halves_seed(server, c))) for c in clients]
    try:
        replies = server.sum_vectors(requests, [0] * len(requests))[1]
    except RunError:  # no loss is finite
        return {}
    return sure_places({reply.client: reply.values["preference"] for reply in replies}, server.samples)
