"""CFL (Sattler, Müller, Samek 2020), Algorithms 2 to 5: average in every cluster; where a rule finds a split, split."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import field, replace
from typing import Annotated, Any, ClassVar, Literal

from torch import Tensor

from coterie.methods.base import Assignment, Info, method
from coterie.methods.compared import Compared
from coterie.methods.needs import Needs
from coterie.methods.server import Server
from coterie.methods.splitting import LeafRound, SplitRule, grow, make_rule
from coterie.methods.tree import Newcomer, Tree, best_on_path, follow_population, placed
from coterie.option_types import Placeholder
from coterie.snapshot import saved
from coterie.tasks import HeldOut


@saved
class State:
    """The tree, what the rule remembers of every leaf, and what is known of single clients."""

    tree: Tree
    memory: dict[int, Any]
    away: dict[str, int] = field(default_factory=dict)
    """The leaf of clients that left."""
    fallback: dict[str, int] = field(default_factory=dict)
    """The node that serves a client better than its leaf."""


@method("cfl")
class CFL:
    """Clusters by recursive bipartition of the clients; a rule says when a cluster is split, and why."""

    server_steps: ClassVar[bool] = True

    rule: Annotated[Any, Placeholder("RULE")] = "auto"
    """When to split: benefit (both sides are surely better served apart, on held-out data), paper (its thresholds ε1,
    ε2, γ_max) or evaluated (for apps that only train and evaluate), with options as paper(eps1=0.4,eps2=1.6). auto is
    benefit, and evaluated where clients cannot be asked about halves of their data."""
    compare: str = "update"
    """What is compared: update, gradient (steps along full gradients), or projection(1024): keyed projections of
    updates to 1024 numbers, whose key the clients hold; updates themselves then go into sums only."""
    weighting: Literal["samples", "uniform"] = "samples"
    """Weight of a client in its cluster's mean: |D_i| (Algorithm 2) or one (Algorithm 5)."""
    fallback: bool = True
    """In the end, give a client the model on its path that surely serves it better, by its own validation data."""

    def __post_init__(self) -> None:
        Compared.parse(self.compare)
        if self.rule != "auto":
            make_rule(self.rule)

    @property
    def needs(self) -> Needs:
        """Single updates, or their projections in place of them, and what the rule asks for."""
        asked = Compared.parse(self.compare).tasks
        rules = ["benefit", "evaluated"] if self.rule == "auto" else [self.rule]
        tasks = asked + tuple(task for rule in rules for task in make_rule(rule).tasks)
        tasks += (HeldOut,) if self.fallback else ()
        instead = "give compare=projection(1024) and privacy='projection'"
        return Needs("never" if asked else "must", tuple(dict.fromkeys(tasks)), instead=instead)

    def parts(self) -> dict[str, SplitRule]:
        """The rule where it is named, whose options are settings of the method too."""
        return {} if self.rule == "auto" else {"rule": make_rule(self.rule)}

    def split_rule(self, server: Server) -> SplitRule:
        """The rule in use."""
        return make_rule(self.rule if self.rule != "auto" else "benefit" if server.asks_halves else "evaluated")

    def start(self, server: Server) -> State:
        Compared.parse(self.compare).check(server)
        return State(Tree.single(server.clients, server.initial_model()), {0: self.split_rule(server).begin()})

    def round(self, state: State, t: int, server: Server) -> tuple[State, Info]:
        rule = self.split_rule(server)
        state, events = follow_population(state, t, server, self._newcomer(rule))
        rounds = self.federated_learning(state.tree, rule, t, server)  # Algorithm 2
        tree, memory, info = grow(state.tree, state.memory, rule, rounds, t, server)  # Algorithm 3, lines 3-8
        return replace(state, tree=tree, memory=memory), replace(info, events=[*events, *info.events])

    def federated_learning(self, tree: Tree, rule: SplitRule, t: int, server: Server) -> list[LeafRound]:
        """Every cluster's participants train from its model, and their mean moves it (Algorithm 2)."""
        leaves, compared = tree.leaves(), Compared.parse(self.compare)
        home = {client: i for i, leaf in enumerate(leaves) for client in leaf.members}
        asked = [client for client in server.participants(t) if client in home]
        starts = {client: leaves[home[client]].model for client in asked}
        requests = server.training_requests(asked, starts, t)  # lines 3-6
        groups = [home[client] for client in asked]
        keep: Literal["sums", "vectors"] = "vectors" if rule.needs_updates and not compared.tasks else "sums"
        found = server.exchange(requests, groups, clusters=len(leaves), weighting=self.weighting, keep=keep)
        rounds = []
        for i, (leaf, total) in enumerate(zip(leaves, found.sums, strict=True)):
            replies = [reply for reply in found.replies if reply.group == i]
            if replies:
                after = server.step(leaf.model, total, leaf.id)  # line 7: θ + Σ_i |D_i|/|D_c| Δθ_i
                rounds.append(LeafRound(leaf, total, replies, after, compared, self.weighting))
        return rounds

    def _newcomer(self, rule: SplitRule) -> Newcomer:
        compared = Compared.parse(self.compare)
        return lambda client, model, t, server: rule.newcomer(client, model, t, server, compared)

    def assignment(self, state: State, server: Server) -> Assignment:
        return state.tree.assignment(server.clients, state.fallback)

    def place(self, state: State, clients: Sequence[str], server: Server) -> dict[str, int]:
        """The leaf of each newcomer, by Algorithm 4; it trains on its own data from the nodes on its way."""
        newcomer = self._newcomer(self.split_rule(server))
        return {client: placed(state.tree, client, server.rounds, server, newcomer).id for client in clients}

    def path(self, state: State, client: str) -> dict[int, Tensor]:
        """The models from the root to the client's cluster."""
        return {node.id: node.model for node in state.tree.path(state.tree.leaf_of(client))}

    def foresee(self, server: Server) -> list[str]:
        """What makes a split impossible, in words."""
        return self.split_rule(server).obstacles(server)

    def finish(self, state: State, server: Server) -> State:
        """Look for every client's best model on its path, by its own validation data."""
        return replace(state, fallback=best_on_path(state.tree, server)) if self.fallback else state
