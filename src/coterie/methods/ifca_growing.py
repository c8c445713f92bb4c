"""IFCA without a number of models: it begins with one, and a rule says when one becomes two.

Clients choose among the models in every round, as in IFCA; the rule is CFL's, unchanged: a model is split where those
who chose it are surely better served by two, on held-out data. A model that no client chooses is not sent again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import field, replace
from typing import Any

import torch

from coterie.errors import ConfigError
from coterie.methods.base import Assignment, Info
from coterie.methods.compared import Compared
from coterie.methods.placing import lowest_loss
from coterie.methods.server import Server
from coterie.methods.splitting import BenefitRule, LeafRound, grow
from coterie.methods.tree import Node, Tree
from coterie.snapshot import saved
from coterie.tasks import Choose, Request


@saved
class GrowingState:
    """The models as leaves of a tree, whose members are the clients that chose them last."""

    tree: Tree
    memory: dict[int, Any]
    latest: list[str] = field(default_factory=list)
    """The clients that chose in the last round."""


class Growing:
    """Clients choose among models that become more."""

    def __init__(self, weighting: str) -> None:
        self.weighting = weighting

    def start(self, server: Server) -> GrowingState:
        """One model for all."""
        if not server.engine.halves or server.engine.secure:
            raise ConfigError("k=auto asks clients about halves of their data, which they cannot report here: give k")
        return GrowingState(Tree.single(server.clients, server.initial_model()), {0: BenefitRule().begin()})

    def round(self, state: GrowingState, t: int, server: Server) -> tuple[GrowingState, Info]:
        """Clients choose among the models and train; then the rule looks at each model and those who chose it."""
        leaves = models_sent(state.tree)
        models = torch.stack([leaf.model for leaf in leaves])
        how = server.schedule.at(t)
        requests = [Request(c, Choose(models, how, server.seed_of(t, c))) for c in server.participants(t)]
        sums, replies = server.aggregate(requests, self.weighting, [None] * len(requests), len(leaves))
        chosen = {reply.client: leaves[reply.group].id for reply in replies}
        tree = with_choices(state.tree, chosen, server.clients)
        rounds = []
        for j, (leaf, total) in enumerate(zip(leaves, sums, strict=True)):
            own = [reply for reply in replies if reply.group == j]
            if own:
                after = server.step(leaf.model, total.mean(), leaf.id)
                rounds.append(LeafRound(tree.nodes[leaf.id], total, own, after, Compared(), self.weighting))
        grown = grow(tree, state.memory, BenefitRule(), rounds, t, server)
        return GrowingState(grown.tree, grown.memory, list(chosen)), grown.info

    def assignment(self, state: GrowingState, server: Server) -> Assignment:
        """Every client with the model of its lowest training loss; the last round's participants keep their choice."""
        late = [client for client in server.clients if client not in set(state.latest)]
        chosen = self.place(state, late, server)
        return with_choices(state.tree, chosen, server.clients).assignment(server.clients, {})

    def place(self, state: GrowingState, clients: Sequence[str], server: Server) -> dict[str, int]:
        """The model with the lowest loss on each client's data."""
        return lowest_loss({leaf.id: leaf.model for leaf in models_sent(state.tree)}, clients, server)


def models_sent(tree: Tree) -> list[Node]:
    """The leaves that some client chose last; all of them where none did."""
    return [leaf for leaf in tree.leaves() if leaf.members] or tree.leaves()


def with_choices(tree: Tree, chosen: dict[str, int], clients: Sequence[str]) -> Tree:
    """The tree with clients moved to the leaves that they chose; those that left are taken out."""
    home = {client: leaf.id for leaf in tree.leaves() for client in leaf.members} | chosen
    own = {leaf.id: [client for client in clients if home.get(client) == leaf.id] for leaf in tree.leaves()}
    return tree.updated(*(replace(leaf, members=tuple(own[leaf.id])) for leaf in tree.leaves()))
