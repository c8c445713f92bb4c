"""Groups that the user declares, with FedAvg in each: what deployments do, and the baseline that clustering must beat.

The declaration is the user's own: a table (a column of the data's tables will do) or, in Python, a mapping. The hidden
groups of a scenario are not read.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, Literal

import torch

from coterie.errors import ConfigError, DataError, did_you_mean
from coterie.federation.table_sites import read_all
from coterie.methods.averaging import FixedClusters, averaged, fixed_assignment, joined, without_cluster
from coterie.methods.base import Assignment, Event, Info, method
from coterie.methods.needs import Needs
from coterie.methods.placing import lowest_loss
from coterie.methods.server import Server
from coterie.snapshot import saved


@saved
class State:
    """The clusters, the declared group that each is, and the whole declaration."""

    clusters: FixedClusters
    names: tuple[str, ...]
    """The declared groups in the order of the models."""
    declared: dict[str, str]
    """The group of every client that the user named, here or not."""


@method("groups")
class Groups:
    """Clusters as the user declares them, in a table or a mapping of clients to groups; FedAvg in each.

    A client whose group is declared goes there whenever it comes. The others join the group whose model has the lowest
    loss on their training data, from the second round on, when the models have parted.
    """

    server_steps: ClassVar[bool] = True
    needs: ClassVar[Needs] = Needs(unnoised="clients that no group is declared for join by their exact losses")

    file: str | None = None
    """A table with the declaration, or a pattern: a CSV or Parquet file, the data's own if it has such a column."""
    column: str = "group"
    """The column of the table with the group."""
    client_column: str | None = "client"
    """The column of the table with the client's id; none: each file that the pattern finds is a client."""
    of: dict[str, str | int] | None = None
    """The declaration as a mapping, client to group, in place of a table."""
    weighting: Literal["samples", "uniform"] = "samples"
    """Weight of a client in its group's mean: its number of samples, or one."""

    def start(self, server: Server) -> State:
        declared = self._declared()
        known = {client: declared[client] for client in server.clients if client in declared}
        if not known:
            some = ", ".join(list(declared)[:3])
            raise ConfigError(
                f"groups are declared for {some or 'no client'}, and none of the run's clients is among them "
                f"({', '.join(server.clients[:3])}, …): use the ids of the federation"
            )
        names = tuple(sorted(set(known.values())))
        cluster_of = {client: names.index(group) for client, group in known.items()}
        models = server.initial_model().repeat(len(names), 1)
        return State(FixedClusters(models, cluster_of), names, declared)

    def _declared(self) -> dict[str, str]:
        """The group of each client, as the user declares it."""
        if (self.of is None) == (self.file is None):
            raise ConfigError(
                "method 'groups' needs the declared groups: give file=groups.csv with columns client and group, or in "
                "Python Groups(of={client: group})" + ("" if self.of is None else "; one of the two, not both")
            )
        if self.of is not None:
            return {client: str(group) for client, group in self.of.items()}
        assert self.file is not None
        return declared_in(self.file, self.column, self.client_column)

    def round(self, state: State, t: int, server: Server) -> tuple[State, Info]:
        state, events = self._admitted(state, t, server)
        if t == 1:
            sizes = [list(state.clusters.cluster_of.values()).count(j) for j in range(len(state.names))]
            words = ", ".join(f"{name} {size}" for name, size in zip(state.names, sizes, strict=True))
            details = {"groups": list(state.names), "sizes": sizes}
            events = [Event("declared", f"groups as declared: {words}", details)]
        clusters, info = averaged(state.clusters, t, server, self.weighting, events)
        return State(clusters, state.names, state.declared), info

    def _admitted(self, state: State, t: int, server: Server) -> tuple[State, list[Event]]:
        """The state with clients that came later, and from the second round on with those that are not declared."""
        new = without_cluster(state.clusters, server)
        clusters, names = state.clusters, list(state.names)
        places = {}
        for client in new:
            group = state.declared.get(client)
            if group is not None:
                if group not in names:
                    names.append(group)
                    models = torch.cat([clusters.models, server.initial_model()[None]])
                    clusters = FixedClusters(models, clusters.cluster_of)
                places[client] = names.index(group)
        others = [client for client in new if client not in places]
        if others and t > 1:
            places |= lowest_loss(clusters.by_id, others, server)
        clusters, events = joined(clusters, places)
        return State(clusters, tuple(names), state.declared), events

    def assignment(self, state: State, server: Server) -> Assignment:
        return fixed_assignment(state.clusters, server)

    def place(self, state: State, clients: Sequence[str], server: Server) -> dict[str, int]:
        """The declared group of each newcomer, if there is a model for it; else that with the lowest loss."""
        declared = state.declared
        places = {c: state.names.index(declared[c]) for c in clients if declared.get(c) in state.names}
        others = [client for client in clients if client not in places]
        return places | (lowest_loss(state.clusters.by_id, others, server) if others else {})


def declared_in(file: str, column: str, client_column: str | None) -> dict[str, str]:
    """The group of each client in the tables that `file` names; a client's rows must agree.

    Raises:
        DataError: a table has no such column, or a client has no group, or two.
    """
    found = {}
    for client, table in read_all(file, client_column).items():
        if column not in table.columns:
            raise DataError(
                f"{table.origin}: no column {column!r} for the group: {did_you_mean(column, table.columns)}"
            )
        values = set(table.columns[column].texts.tolist())
        if len(values) != 1 or None in values:
            given = ", ".join(sorted(str(value) for value in values if value is not None)) or "none"
            raise DataError(
                f"{table.origin}: client {client!r} has the groups {given} in column {column!r}"
                f"{' and rows without one' if None in values and given != 'none' else ''}: give it one"
            )
        found[client] = str(values.pop())
    return found
