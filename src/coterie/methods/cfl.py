"""CFL (Sattler, Müller, Samek 2020): split clusters in two, recursively, where their clients' updates conflict."""

from __future__ import annotations

import contextlib
import math
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Annotated, ClassVar, Literal, NamedTuple

import numpy as np
import torch
from pydantic import Field, NonNegativeFloat, PositiveFloat, PositiveInt
from torch import Tensor

from coterie.clustering import Bipartition, bipartition, cosine_matrix
from coterie.clustering.sketch import sketch
from coterie.errors import ConfigError, RunError
from coterie.methods.aggregation import Part, WeightedSum
from coterie.methods.base import Assignment, ClusterInfo, Event, Info, Matrix, method
from coterie.methods.cfl_check import check, observe
from coterie.methods.cfl_state import (
    Accepted,
    State,
    Track,
    Trial,
    follow_population,
    newcomer_projection,
    newcomer_update,
    placed,
    similarity_matrix,
    split_by_check,
    split_event,
    split_leaf,
    splits_since,
    trial_event,
)
from coterie.methods.cfl_vectors import sketch_width
from coterie.methods.cfl_words import obstacles, why_whole
from coterie.methods.server import Server, apply_update
from coterie.methods.splitting import (
    EPSILON2_MULTIPLE,
    LEAST_ROUNDS,
    Evidence,
    at_rest,
    auto_epsilon1,
    exponents,
    has_flattened,
    trial_gain,
)
from coterie.methods.tree import Branch, Node, Tree
from coterie.privacy.projection import Compare, check_width
from coterie.tasks import Evaluate, Noise, Reply, Request, Train
from coterie.trainers.base import Training

Auto = Literal["auto"]


class Found(NamedTuple):
    """The best bipartition of some members, the evidence for it, and what was compared, `(members, …)`."""

    members: tuple[str, ...]
    evidence: Evidence
    vectors: Tensor
    sides: Bipartition


@method("cfl")
class CFL:
    """Clusters by recursive bipartition of clients whose updates point apart; decides by itself when to split."""

    server_steps: ClassVar[bool] = True

    when: Literal["conflict", "gain"] = "conflict"
    """Split when no single model can fit the members: two sides' updates harm each other on labels that both hold
    (conflict). Or when separate models serve them better, whatever the reason, label skew included (gain)."""
    eps1: PositiveFloat | Auto | None = None
    """The paper's ε1: the mean update must be below it. Any of eps1, eps2, gamma_max switches to the paper's rule."""
    eps2: PositiveFloat | Auto | None = None
    """The paper's ε2: some client's update must be above it."""
    gamma_max: NonNegativeFloat | Auto | None = None
    """The paper's γ_max: sqrt((1 − α_cross_max)/2) must be above it; "auto" measures the clients' noise."""
    exponent: PositiveFloat = 0.3
    """A loss that falls slower than round^−exponent has flattened (conflict, where apps cannot answer checks)."""
    min_rounds: PositiveInt | None = None
    """Rounds before the first split; None is 5 (conflict), 6 (gain) or 20 (the paper's rule)."""
    patience: PositiveInt | None = None
    """Rounds between two splits of a branch; None is 5 (conflict), 3 (gain) or 15 (the paper's rule)."""
    recheck: PositiveInt = 5
    """Rounds until a refused split is considered again (gain, the paper's rule); conflict has growing ages."""
    trial_rounds: PositiveInt = 5
    """Rounds that children are on trial (gain)."""
    min_gain_z: PositiveFloat = 6.0
    """A trial's gain must exceed its standard error so many times (gain): there are many trials, most on small data."""
    min_relative_gain: Annotated[float, Field(gt=0, lt=1)] = 0.28
    """Share of the members' validation loss that a trial must save (gain): less is what label skew alone can give."""
    min_size: PositiveInt = 1
    """Smallest cluster a split may make."""
    linkage: Literal["single", "complete"] = "single"
    """Bipartition: single linkage is the optimum (Algorithm 1); complete is steadier under heavy noise."""
    similarity: Literal["update", "gradient"] = "update"
    """Compare updates, or steps along full gradients; newcomers bring what the tree holds."""
    weighting: Literal["samples", "uniform"] = "samples"
    """Weight of a client in its cluster's mean: |D_i| (Algorithm 2) or one (Algorithm 5)."""
    projection: PositiveInt | None = None
    """Compare secret projections of updates to so many numbers, of which the clients hold the key; the updates
    themselves go into sums only. A cosine is then off by 1/√projection (one standard deviation). Where a split is in
    sight, clients train once more for the sums of its sides. None compares the updates themselves."""
    sketch: PositiveInt | Auto | None = "auto"
    """Compare sketches of half-updates to so many numbers (conflict): a cosine is then off by about 1/√sketch (one
    standard deviation), and clients train once more where a split is in sight. "auto" is 512 for a cluster of more than
    1,000 clients, or where half-updates take more than 4 GB; from 65,536 clients on it is less. None never does."""
    fallback: bool = True
    """In the end, give a client the model on its path that its own validation data likes best; a cluster that was
    split is there as it stood then, so this guards against a bad split, not against stopping too early."""

    def start(self, server: Server) -> State:
        if self.projection is not None and (self.similarity == "gradient" or server.aggregation.rule != "mean"):
            raise ConfigError(
                "projection goes with similarity='update' and aggregate='mean': gradients and other rules need every "
                "client's vector at the server"
            )
        if self.projection is not None:
            check_width(self.projection, server.layout.trainable)
        tree = Tree.single(server.clients, server.initial_model())
        return State(tree, {0: Track()}, {}, {})

    def round(self, state: State, t: int, server: Server) -> tuple[State, Info]:
        state, events = follow_population(state, t, server, self._newcomer)
        replies, sums = self._train(state, t, server)
        infos: dict[int, ClusterInfo] = {}
        matrices: list[Matrix] = []
        before = len(state.tree.nodes)
        for leaf in state.tree.leaves():
            state = self._round_of(
                state, leaf, replies.get(leaf.id, []), sums.get(leaf.id), t, server, infos, events, matrices
            )
        if t == server.rounds and len(state.tree.nodes) == 1:
            events.append(why_whole(self, state.tracks[0], server))
        present = [leaf for leaf in state.tree.leaves() if leaf.members]
        clusters = [infos.get(leaf.id, ClusterInfo(len(leaf.members), id=leaf.id)) for leaf in present]
        return state, Info(clusters, events, splits_since(state.tree, before), matrices)

    def assignment(self, state: State, server: Server) -> Assignment:
        present, tree = set(server.clients), state.tree
        members = {leaf.id: [c for c in leaf.members if c in present] for leaf in tree.leaves()}
        # Clients that could not be placed yet are served by the largest cluster.
        placed = {client for own in members.values() for client in own}
        largest = max(members, key=lambda leaf: len(members[leaf]))
        members[largest] += [client for client in server.clients if client not in placed]
        served_by = {client: node for client, node in state.fallback.items() if client in present}
        leaves = [leaf for leaf, own in members.items() if own]
        models = [tree.nodes[i].model for i in leaves]
        others = {node: tree.nodes[node].model for node in served_by.values()}
        why = "their validation loss is lower there (fallback=false gives every client its cluster's model)"
        return Assignment(models, [members[i] for i in leaves], (), leaves, served_by, others, why)

    def place(self, state: State, clients: Sequence[str], server: Server) -> dict[str, int]:
        """The leaf of each newcomer, by Algorithm 4; it trains on its own data from the nodes on its way."""
        return {client: placed(state.tree, client, server.rounds, server, self._newcomer).id for client in clients}

    def path(self, state: State, client: str) -> dict[int, Tensor]:
        """The models from the root to the client's cluster."""
        return {node.id: node.model for node in state.tree.path(state.tree.leaf_of(client))}

    def foresee(self, server: Server) -> list[str]:
        """What makes a split impossible, in words."""
        return obstacles(self, server)

    def finish(self, state: State, server: Server) -> State:
        """Look for every client's best model on its path, by its own validation data."""
        if not self.fallback:
            return state
        better: dict[str, int] = {}
        for leaf in state.tree.leaves():
            path = state.tree.path(leaf)[::-1]  # the leaf first: it wins ties
            if len(path) > 1 and leaf.members:
                task = Evaluate(torch.stack([node.model for node in path]), "validation")
                for reply in server.ask_all(leaf.members, task):
                    best = int(np.nanargmin(reply.values["loss"])) if reply.samples else 0
                    if best:
                        better[reply.client] = path[best].id
        return replace(state, fallback=better)

    def _train(self, state: State, t: int, server: Server) -> tuple[dict[int, list[Reply]], dict[int, WeightedSum]]:
        """Every cluster's participants train from its model.

        Replies by leaf and, where single updates are not to be seen or nobody looks at them, sums by leaf.
        """
        asked, how = set(server.participants(t)), server.schedule.at(t)
        leaf_of = {client: leaf for leaf in state.tree.leaves() for client in leaf.members}
        requests = [
            Request(client, Train(leaf_of[client].model, how, server.seed_of(t, client), assess=True))
            for client in server.clients
            if client in asked and client in leaf_of
        ]
        replies: dict[int, list[Reply]] = {}
        if self._sums_suffice(server):
            leaves = list(dict.fromkeys(leaf_of[request.client].id for request in requests))
            groups = [leaves.index(leaf_of[request.client].id) for request in requests]
            found, light = server.aggregate(requests, self.weighting, groups, len(leaves))
            for reply in light:
                replies.setdefault(leaves[reply.group], []).append(reply)
            return replies, dict(zip(leaves, found, strict=True))
        for leaf, reply in server.parts(requests, lambda reply: [Part(leaf_of[reply.client].id, reply)]):
            replies.setdefault(leaf, []).append(reply)
        return replies, {}

    def _round_of(
        self,
        state: State,
        leaf: Node,
        replies: list[Reply],
        known: WeightedSum | None,
        t: int,
        server: Server,
        infos: dict[int, ClusterInfo],
        events: list[Event],
        matrices: list[Matrix],
    ) -> State:
        """One cluster's round: Algorithm 2's averaging, then the question of a split."""
        if not replies:
            return state
        width, track = server.layout.trainable, state.tracks[leaf.id]
        total = known or self._mean(replies, server)
        step = total.mean()
        mean_norm = float(step[:width].norm())
        loss = sum(server.weight(r.client, self.weighting) * r.values["start_loss"] for r in replies) / total.weight
        track = replace(
            track,
            losses=(*track.losses, loss),
            largest_mean_norm=max(track.largest_mean_norm, mean_norm),
        )
        infos[leaf.id] = ClusterInfo(
            len(leaf.members), loss, mean_norm, total.max_norm, leaf.id, self._thresholds(track)
        )
        after = server.step(leaf.model, step, leaf.id)
        accepted: Trial | None = None
        if track.trial is not None:
            track = self._advance_trial(track, t, server)
            assert track.trial is not None
            if t - track.trial.began >= self.trial_rounds:
                accepted, event = self._judge_trial(leaf, track.trial, t, server)
                events.append(event)
                track = replace(track, trial=None, considered=t)
        elif self.by_checks(server):
            watch = observe(track.watch, t - leaf.born, after)
            asked = [r.client for r in replies] if t - leaf.born >= self.wait(leaf, server) or watch.session else []
            how = self._compared(t, server)
            sketched = self._sketch_width(leaf, server)
            watch, made = check(
                watch, leaf, asked, t, server, how, self.weighting, self.min_size, self.projection, sketched
            )
            if made is not None:
                state, told = split_by_check(state, leaf, made, t, infos, watch)
                events.append(told)
                return state
            track = replace(track, watch=watch)
        elif self._may_consider(leaf, track, mean_norm, total.max_norm, t, server):
            track = replace(track, considered=t)
            found = self._examine(leaf, track, replies, t, server, known)
            if found is not None and found.evidence.is_signal:
                judged = replace(leaf, members=found.members)
                matrices += similarity_matrix(judged, found.vectors)
                aside = [client for client in leaf.members if client not in found.members]
                proposal = self._propose(judged, replies, found, aside, t, server)
                if self.on_trial:
                    track = replace(track, trial=proposal)
                    events.append(trial_event(leaf, proposal))
                else:
                    accepted = proposal
                    events.append(split_event(leaf, proposal, self.paper_rule is None))
        if accepted is not None:
            split = Accepted(accepted.branches, accepted.stationary, accepted.evidence)
            return split_leaf(state, leaf, split, t, infos)
        tree = state.tree.updated(replace(leaf, model=after))
        return replace(state, tree=tree, tracks=state.tracks | {leaf.id: track})

    def _mean(self, replies: Sequence[Reply], server: Server) -> WeightedSum:
        weights = [server.weight(reply.client, self.weighting) for reply in replies]
        return server.aggregation.combine(replies, weights, server.layout.size)

    def by_checks(self, server: Server) -> bool:
        """Does the rule on halves decide (`cfl_rule`)? It needs clients that know its tasks."""
        return self.when == "conflict" and self.paper_rule is None and server.engine.halves

    def _sums_suffice(self, server: Server) -> bool:
        """Are single updates of a round not to be seen, or does nobody look at them? Checks ask for their own."""
        if self.projection is not None:
            return True
        # Secure sums refuse single updates, and should do so in the first round, not in the first check.
        return self.by_checks(server) and server.aggregation.rule == "mean" and not server.engine.secure

    def _sketch_width(self, leaf: Node, server: Server) -> int | None:
        """The numbers that a cluster's half-updates are sketched to; None: they are compared as they are."""
        trainable = server.layout.trainable
        if self.sketch == "auto":
            return sketch_width(len(leaf.members), trainable)
        return self.sketch if self.sketch is not None and self.sketch < trainable else None

    @property
    def on_trial(self) -> bool:
        """Are splits tried out before they are made?"""
        return self.when == "gain" and self.paper_rule is None

    @property
    def paper_rule(self) -> tuple[float | Auto, float | Auto, float | Auto] | None:
        """ε1, ε2 and γ_max when the user asked for the paper's rule by giving any of them."""
        if self.eps1 is None and self.eps2 is None and self.gamma_max is None:
            return None
        return (
            "auto" if self.eps1 is None else self.eps1,
            "auto" if self.eps2 is None else self.eps2,
            "auto" if self.gamma_max is None else self.gamma_max,
        )

    def _thresholds(self, track: Track) -> dict[str, float]:
        """The paper's ε1 and ε2 for a cluster as it stands; empty where another rule decides."""
        if self.paper_rule is None:
            return {}
        eps1, eps2, _ = self.paper_rule
        epsilon1 = auto_epsilon1(track.largest_mean_norm) if eps1 == "auto" else eps1
        return {"eps1": epsilon1, "eps2": EPSILON2_MULTIPLE * epsilon1 if eps2 == "auto" else eps2}

    def wait(self, leaf: Node | None, server: Server) -> int:
        """The age from which on a cluster may be split; None is the root."""
        first, later = (1, 1) if self.by_checks(server) else (6, 3) if self.on_trial else (20, 15)
        return (self.min_rounds or first) if leaf is None or leaf.parent is None else (self.patience or later)

    def _compared(self, t: int, server: Server) -> Training:
        """How clients train for what is compared: as in the round, or one step along the full gradient."""
        how = server.schedule.at(t)
        plain = replace(how, steps=1, batch_size=None, optimizer="sgd")
        return plain if self.similarity == "gradient" else how

    def _newcomer(self, client: str, model: Tensor, t: int, server: Server) -> Tensor:
        """What a newcomer is placed by, of the kind that the tree holds."""
        if self.projection is not None:
            return newcomer_projection(client, model, t, server, self.projection)
        return newcomer_update(client, model, t, server, self._compared(t, server))

    def _may_consider(
        self, leaf: Node, track: Track, mean_norm: float, max_norm: float, t: int, server: Server
    ) -> bool:
        """Is it time to look at a split of this cluster?"""
        if len(leaf.members) < max(2, 2 * self.min_size) or t - leaf.born < self.wait(leaf, server):
            return False
        if track.considered and t - track.considered < self.recheck:
            return False
        if self.paper_rule is not None:
            epsilon = self._thresholds(track)
            return at_rest(mean_norm, max_norm, epsilon["eps1"], epsilon["eps2"])
        return self.when == "gain" or has_flattened(track.losses, self.exponent)

    def _examine(
        self,
        leaf: Node,
        track: Track,
        replies: list[Reply],
        t: int,
        server: Server,
        known: WeightedSum | None = None,
    ) -> Found | None:
        """The best bipartition of a cluster and the evidence for it (Algorithm 3, lines 3-6), with what was compared.

        Members that gave no finite vector are left out. None when there is nothing to split: fewer than two members,
        or a side below the minimum size.
        """
        rows = self._vectors(leaf, replies, t, server)
        members = tuple(c for c in leaf.members if c in rows)
        if len(members) < 2:
            return None
        vectors = torch.stack([rows[c] for c in members])
        try:
            sides = bipartition(cosine_matrix(vectors), self.linkage)
        except ValueError as problem:
            raise RunError(f"cluster {leaf.id}: its updates cannot be compared ({problem})") from problem
        if min(len(sides.first), len(sides.second)) < self.min_size:
            return None
        total = known or self._mean(replies, server)
        gamma = "auto" if self.paper_rule is None else self.paper_rule[2]
        evidence = Evidence(
            mean_norm=float(total.mean()[: server.layout.trainable].norm()),
            max_norm=total.max_norm,
            alpha_cross_max=sides.alpha_cross_max,
            noise=self._noise(leaf, t, server) if gamma == "auto" else float(gamma),
            exponent=exponents(track.losses)[0] if len(track.losses) >= LEAST_ROUNDS else math.nan,
        )
        return Found(members, evidence, vectors, sides)

    def _propose(
        self,
        leaf: Node,
        replies: list[Reply],
        found: Found,
        aside: Sequence[str],
        t: int,
        server: Server,
    ) -> Trial:
        """Two children: both start from the stationary model, with this round's updates averaged in each.

        Clients `aside`, who gave no finite update, go to the larger side.
        """
        both = (found.sides.first, found.sides.second)
        edges = [sketch(found.vectors[torch.from_numpy(side)]) for side in both]
        larger = int(len(both[1]) > len(both[0]))
        branches = []
        for number, (side, edge) in enumerate(zip(both, edges, strict=True)):
            members = tuple(leaf.members[i] for i in side)
            own = self._mean_of(members, leaf, replies, t, server)
            members += tuple(aside) if number == larger else ()
            branches.append(Branch(members, apply_update(leaf.model, own.mean()), edge))
        return Trial((branches[0], branches[1]), leaf.model, t, found.evidence.numbers())

    def _mean_of(
        self, members: Sequence[str], leaf: Node, replies: Sequence[Reply], t: int, server: Server
    ) -> WeightedSum:
        """The mean of this round's updates of some members; where single updates are not seen, they are summed anew."""
        own = [reply for reply in replies if reply.client in members]
        if self.projection is None:
            return self._mean(own, server)
        requests = server.training_requests([reply.client for reply in own], leaf.model, t)
        return server.aggregate(requests, self.weighting).sums[0]

    def _vectors(self, leaf: Node, replies: list[Reply], t: int, server: Server) -> dict[str, Tensor]:
        """What is compared, all made at the cluster's model: updates, gradient steps or projections of the members.

        Members that did not take part in the round are asked now.
        """
        width = server.layout.trainable
        if self.projection is not None:
            projected = self._projected(leaf, t, server)
            return {reply.client: torch.tensor(reply.values["projection"]) for reply in projected}
        anew = self.similarity == "gradient"
        known = [] if anew else [r for r in replies if r.client in leaf.members]
        # One that was asked in this round and gave nothing sound is not asked again.
        asked = set() if anew else set(server.participants(t))
        missing = [c for c in leaf.members if c not in asked]
        if missing:
            with contextlib.suppress(RunError):  # none of them gave a finite update
                known += server.train(missing, leaf.model, t, self._compared(t, server))
        return {r.client: r.vector[:width] for r in known if r.vector is not None and math.isfinite(r.norm)}

    def _projected(self, leaf: Node, t: int, server: Server) -> Iterator[Reply]:
        """The keyed projections of the members' updates of this round."""
        assert self.projection is not None
        how = server.schedule.at(t)
        tasks = {c: Compare(leaf.model, how, server.seed_of(t, c), self.projection) for c in leaf.members}
        return server.ask([Request(client, task) for client, task in tasks.items()])

    def _noise(self, leaf: Node, t: int, server: Server) -> float:
        """γ̂, the median of the noise in the updates of the members that can tell; infinite when none can."""
        how = self._compared(t, server)
        requests = [Request(c, Noise(leaf.model, how, server.seed_of(t, c, "noise"))) for c in leaf.members]
        found = [reply.values["noise"] for reply in server.ask(requests)]
        known = [noise for noise in found if math.isfinite(noise)]
        return float(statistics.median(known)) if known else math.inf

    def _advance_trial(self, track: Track, t: int, server: Server) -> Track:
        """One round of the children on trial, beside their parent's."""
        trial = track.trial
        assert trial is not None
        asked = set(server.participants(t))
        branches = []
        for branch in trial.branches:
            members = [client for client in branch.members if client in asked]
            name = f"trial of round {trial.began} with {branch.members[0]}"
            if self.projection is not None:
                sums = server.aggregate(server.training_requests(members, branch.model, t), self.weighting).sums
                branches.append(replace(branch, model=server.step(branch.model, sums[0].mean(), name)))
                continue
            trained = server.clipped([Part(0, reply) for reply in server.train(members, branch.model, t)])
            total = self._mean([reply for _, reply in trained], server)
            branches.append(replace(branch, model=server.step(branch.model, total.mean(), name)))
        return replace(track, trial=replace(trial, branches=(branches[0], branches[1])))

    def _judge_trial(self, leaf: Node, trial: Trial, t: int, server: Server) -> tuple[Trial | None, Event]:
        """Keep the children if they lower their members' validation loss by more than its noise."""
        losses = []
        for branch in trial.branches:
            task = Evaluate(torch.stack([leaf.model, branch.model]), "validation")
            losses.append([reply.values["loss"] for reply in server.ask_all(branch.members, task)])
        gain = trial_gain(losses)
        sizes = " and ".join(str(len(branch.members)) for branch in trial.branches)
        numbers = trial.evidence | {"gain": gain.mean, "gain_error": gain.error, "gain_relative": gain.relative}
        amount = f"{gain.mean:.3g} ± {gain.error:.2g}, {gain.relative:.0%} of it"
        if gain.mean > self.min_gain_z * gain.error and gain.relative >= self.min_relative_gain:
            text = f"cluster {leaf.id} splits into {sizes}: on trial, validation loss fell by {amount}"
            return replace(trial, evidence=numbers), Event("split", text, numbers | {"cluster": leaf.id})
        text = f"cluster {leaf.id} stays whole: a trial split into {sizes} lowered validation loss only by {amount}"
        return None, Event("undone", text, numbers | {"cluster": leaf.id})
