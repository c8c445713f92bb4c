"""Averaging over a graph of relatives: what FLT and its PCA baseline do in every round once relatedness is known.

Clients that get the same model share one row of `models`, so members of a cluster are equal bit for bit, and a
federation of a few families costs a few models, however many clients it has.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from coterie.clustering import mixing_matrix
from coterie.errors import ConfigError
from coterie.methods.aggregation import Aggregation, Part
from coterie.methods.base import Assignment, ClusterInfo, Event, Info
from coterie.methods.server import Aggregate, Server
from coterie.snapshot import saved
from coterie.tasks import Reply

AT_ONCE = 32
"""Replies that enter the sums with one matrix product; fixed, so that the order of summation is."""


@saved
class Relatives:
    """What the one-off stage found out about the clients `ids`."""

    ids: tuple[str, ...]
    centroids: npt.NDArray[np.float32]
    """`(M, k, e)`, nan where a client sent fewer than k."""
    positions: npt.NDArray[np.float32]
    """`(M, k, u)`: where UMAP put the centroids (the centroids themselves where there is no UMAP)."""
    gamma: float | None
    """Newcomers nearer than this are related; None where there are clusters, of which they join the nearest."""
    related: npt.NDArray[np.bool_]
    """`(M, M)`: whose models each client averages; in case II the members of its cluster."""
    text: str
    """The stage's result in words, for the first round's event."""


@saved
class State:
    """The relatives, the different models `(n, d)`, and for each client the row of its own."""

    relatives: Relatives
    models: Tensor
    row: tuple[int, ...]


def averaging_round(state: State, t: int, server: Server) -> tuple[State, Info]:
    """Participants train from their own models, then every client gets the weighted mean of its relatives' models.

    Weights are numbers of samples; each row of the mixing matrix sums to one (eq. 13). A client none of whose
    relatives took part keeps its model. Memory: one float64 sum for each different row of the mixing matrix.
    """
    known = {client: i for i, client in enumerate(state.relatives.ids)}
    asked = [client for client in server.participants(t) if client in known]
    if not asked:
        return state, Info(_cluster_infos(state, {}, server))
    columns = [known[client] for client in asked]
    present = set(server.clients)
    samples = [server.weight(c, "samples") if c in present else 0.0 for c in state.relatives.ids]
    mixing = mixing_matrix(state.relatives.related, samples, columns)[:, columns]
    recipes, recipe_of = np.unique(mixing, axis=0, return_inverse=True)
    recipe_of = recipe_of.reshape(-1)

    models = {client: state.models[state.row[known[client]]] for client in asked}
    column_of = {client: column for column, client in enumerate(asked)}
    mixed = Mixed(recipes, column_of, models, state.models.shape[1])

    def parts(reply: Reply) -> list[Part]:
        # Where relatives are no cluster, each client's are others: lengths are compared among all.
        return [Part(0 if state.relatives.gamma is not None else int(recipe_of[known[reply.client]]), reply)]

    requests = server.training_requests(asked, models, t)
    if server.engine.secure:
        if state.relatives.gamma is not None:
            raise ConfigError(
                "a client's relatives are not a cluster here, and sums over groups that overlap tell single updates "
                "apart: use case=2 with secure_sums"
            )
        groups = [int(recipe_of[known[client]]) for client in asked]
        found = server.aggregate(requests, "samples", groups, len(recipes))
        sums, weights = mixed.of_sums(found, {group: models[c] for c, group in zip(asked, groups, strict=True)})
    elif server.aggregation.rule == "mean":
        for part in server.parts(requests, parts):
            mixed.add(part)
        sums, weights = mixed.finish()
    else:
        arrived_replies = [reply for _, reply in server.parts(requests, parts)]
        sums, weights = mixed.by_rule(arrived_replies, server.aggregation)
    reported = mixed.reported

    # A client that failed leaves its row with less than the full weight: dividing makes the rest sum to one again.
    arrived = np.flatnonzero(weights > 0)
    means = (sums[arrived] / torch.from_numpy(weights[arrived])[:, None]).to(state.models.dtype)
    if server.optimizer.rule != "none":
        means = _by_optimizer(means, state, [recipe_of.tolist().index(int(recipe)) for recipe in arrived], server)
    new_row = {int(recipe): i for i, recipe in enumerate(arrived)}
    kept = [state.row[i] for i, recipe in enumerate(recipe_of) if int(recipe) not in new_row]
    kept_row = {old: len(means) + i for i, old in enumerate(dict.fromkeys(kept))}
    row = [new_row.get(int(recipe), kept_row.get(state.row[i], -1)) for i, recipe in enumerate(recipe_of)]
    together = torch.cat([means, state.models[list(kept_row)]]) if kept_row else means
    after = _in_order_of_clients(State(state.relatives, together, tuple(row)))
    events = [Event("relatedness", state.relatives.text)] if t == 1 else []
    return after, Info(_cluster_infos(after, reported, server), events)


def _by_optimizer(means: Tensor, state: State, first: Sequence[int], server: Server) -> Tensor:
    """The models `(n, d)` that the server's optimiser makes of the means; `first` is the first client of each."""
    rows = []
    for mean, client in zip(means, first, strict=True):
        before = state.models[state.row[client]]
        rows.append(server.step(before, mean.double() - before.double(), state.relatives.ids[client]))
    return torch.stack(rows)


class Mixed:
    """The clients' models added up by each row of the mixing matrix, `recipes: (n, asked)`."""

    def __init__(
        self, recipes: npt.NDArray[np.float64], column_of: Mapping[str, int], models: Mapping[str, Tensor], size: int
    ) -> None:
        self.recipes, self.column_of, self.models = recipes, column_of, models
        self.sums = torch.zeros(len(recipes), size, dtype=torch.float64)
        self.weights = np.zeros(len(recipes))
        self.reported: dict[str, tuple[float, float]] = {}
        """What clients reported: loss and norm."""
        self._waiting: list[Reply] = []

    def add(self, part: Part) -> None:
        """Take one client's update."""
        self._note(part.reply)
        self._waiting.append(part.reply)
        if len(self._waiting) == AT_ONCE:
            self._count_in()

    def finish(self) -> tuple[Tensor, npt.NDArray[np.float64]]:
        """The sums `(n, d)` and the weights `(n,)` that they hold."""
        if self._waiting:
            self._count_in()
        return self.sums, self.weights

    def of_sums(self, found: Aggregate, starts: Mapping[int, Tensor]) -> tuple[Tensor, npt.NDArray[np.float64]]:
        """The same from the sums of the updates of clusters, whose members all started from one model."""
        for reply in found.replies:
            self._note(reply)
        for group, start in starts.items():
            self.weights[group] = found.sums[group].weight
            self.sums[group] = found.sums[group].total + self.weights[group] * start.double()
        return self.sums, self.weights

    def by_rule(self, replies: Sequence[Reply], rule: Aggregation) -> tuple[Tensor, npt.NDArray[np.float64]]:
        """The same from all the updates at once, each row averaged by a rule that is not the mean."""
        for reply in replies:
            self._note(reply)
        for i, recipe in enumerate(self.recipes):
            own = [reply for reply in replies if recipe[self.column_of[reply.client]] > 0]
            if own:
                weights = [float(recipe[self.column_of[reply.client]]) for reply in own]
                rows = torch.stack([self.models[reply.client] + _vector(reply) for reply in own])
                self.weights[i] = sum(weights)
                self.sums[i] = rule.center(rows, weights) * self.weights[i]
        return self.sums, self.weights

    def _note(self, reply: Reply) -> None:
        self.reported[reply.client] = (float(reply.values["loss"]), reply.norm)

    def _count_in(self) -> None:
        """Add the waiting clients' models to the sums with one product."""
        replies, self._waiting = self._waiting, []
        chosen = self.recipes[:, [self.column_of[reply.client] for reply in replies]]
        starts = torch.stack([self.models[reply.client] for reply in replies]).double()
        updates = torch.stack([_vector(reply) for reply in replies]).double()
        self.sums.addmm_(torch.from_numpy(np.ascontiguousarray(chosen)), starts + updates)
        self.weights += np.asarray(chosen.sum(axis=1))


def _vector(reply: Reply) -> Tensor:
    assert reply.vector is not None
    return reply.vector


def _in_order_of_clients(state: State) -> State:
    """The same state with models numbered by their first client, and models that nobody has left out."""
    order = list(dict.fromkeys(state.row))
    number = {old: new for new, old in enumerate(order)}
    return State(state.relatives, state.models[order], tuple(number[old] for old in state.row))


def _cluster_infos(state: State, reported: dict[str, tuple[float, float]], server: Server) -> list[ClusterInfo]:
    """For each model, its clients' number and what those that took part told of their training."""
    infos = []
    for number, members in enumerate(members_by_model(state, server)):
        heard = [(client, *reported[client]) for client in members if client in reported]
        weights = [server.weight(client, "samples") for client, _, _ in heard]
        losses = [value for _, value, _ in heard]
        loss = sum(w * value for w, value in zip(weights, losses, strict=True)) / sum(weights) if heard else None
        infos.append(ClusterInfo(len(members), loss, None, max((norm for _, _, norm in heard), default=None), number))
    return infos


def members_by_model(state: State, server: Server) -> list[list[str]]:
    """The clients that have each model, only those the server still knows."""
    members: list[list[str]] = [[] for _ in state.models]
    present = set(server.clients)
    for client, row in zip(state.relatives.ids, state.row, strict=True):
        if client in present:
            members[row].append(client)
    return members


def graph_assignment(state: State, server: Server) -> Assignment:
    """Every client's model; clients that were not placed yet get the mean of all the models."""
    everywhere = members_by_model(state, server)
    ids = [row for row, clients in enumerate(everywhere) if clients]
    models, members = [state.models[row] for row in ids], [everywhere[row] for row in ids]
    placed = set(state.relatives.ids)
    if strangers := [client for client in server.clients if client not in placed]:
        models.append(state.models.double().mean(0).to(state.models.dtype))
        members.append(strangers)
        ids.append(len(state.models))
    return Assignment(models, members, ids=ids)
