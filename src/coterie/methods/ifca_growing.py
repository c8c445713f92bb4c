"""IFCA without a number of models: it begins with one, and a rule says when one becomes more.

The rule is CFL's, unchanged: a model is split where those who have it are surely better served apart, on held-out data.
To change the model is a decision like any other: a client does where another surely serves it better, by its validation
data. By its training loss, as in IFCA, it would prefer what has seen its samples, and at first what has its labels.
Where nothing is split this is FedAvg. A model that no client has is not trained again.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from coterie.benefit import FIRST_LOOK, LEVEL, level_of_look
from coterie.errors import ConfigError
from coterie.methods.base import Assignment, Info
from coterie.methods.cfl import CFL
from coterie.methods.placing import lowest_loss
from coterie.methods.server import Server
from coterie.methods.splitting import BenefitRule, grow
from coterie.methods.tree import Tree, surely_better
from coterie.snapshot import saved


@saved
class GrowingState:
    """The models as leaves of a tree, whose members are the clients that have them."""

    tree: Tree
    memory: dict[int, Any]
    looks: int = 0
    """How often clients looked at all models: together the looks spend the level."""


class Growing:
    """Clients choose among models that become more."""

    def start(self, server: Server) -> GrowingState:
        """One model for all."""
        if server.sums_only or not server.asks_halves:
            raise ConfigError("k=auto asks clients about halves of their data, which they cannot report here: give k")
        return GrowingState(Tree.single(server.clients, server.initial_model()), {0: BenefitRule().begin()})

    def round(self, state: GrowingState, t: int, server: Server) -> tuple[GrowingState, Info]:
        """Clients train their models, and the rule looks at each; in rounds that double clients look at all models."""
        tree, rule = self._with_newcomers(state.tree, server), BenefitRule()
        rounds = CFL(weighting="samples").federated_learning(tree, rule, t, server)
        tree, memory, info = grow(tree, state.memory, rule, rounds, t, server)
        if t < FIRST_LOOK * 2**state.looks and t != server.rounds:
            return GrowingState(tree, memory, state.looks), info
        looks = state.looks + 1
        return GrowingState(with_choices(tree, level_of_look(LEVEL, looks), server), memory, looks), info

    def assignment(self, state: GrowingState, server: Server) -> Assignment:
        """Every client with the model that it has; those that came later have that of their lowest training loss."""
        return self._with_newcomers(state.tree, server).assignment(server.clients, {})

    def place(self, state: GrowingState, clients: Sequence[str], server: Server) -> dict[str, int]:
        """The model with the lowest loss on each client's data."""
        return lowest_loss({leaf.id: leaf.model for leaf in state.tree.leaves() if leaf.members}, clients, server)

    def _with_newcomers(self, tree: Tree, server: Server) -> Tree:
        """The tree with the clients that are here now."""
        known = {client for leaf in tree.leaves() for client in leaf.members}
        late = [client for client in server.clients if client not in known]
        chosen = self.place(GrowingState(tree, {}), late, server) if late else {}
        return tree.with_moved(chosen, server.clients)


def with_choices(tree: Tree, level: float, server: Server) -> Tree:
    """The tree with every client at the model that surely serves it better than its own, if there is one."""
    leaves = [leaf for leaf in tree.leaves() if leaf.members]
    moved: dict[str, int] = {}
    for leaf in leaves:
        moved |= surely_better(leaf, [other for other in leaves if other is not leaf], level, server)
    return tree.with_moved(moved, server.clients)
