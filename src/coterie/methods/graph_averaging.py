"""Averaging over a graph of relatives: what FLT and its PCA baseline do in every round once relatedness is known.

Clients that get the same model share one row of `models`, so members of a cluster are equal bit for bit, and a
federation of a few clusters costs a few models, however many clients it has.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import islice

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from coterie.clustering import mixing_matrix
from coterie.errors import ConfigError
from coterie.methods.aggregation import Aggregation, vector_of
from coterie.methods.base import Assignment, ClusterInfo, Event, Info
from coterie.methods.relatives import Relatives
from coterie.methods.server import Exchange, Server
from coterie.snapshot import saved
from coterie.tasks import Reply

AT_ONCE = 32
"""Replies that enter the sums with one matrix product; fixed, so that the order of summation is."""


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
    weights = _mixing(state, columns, server)
    recipes, first, recipe_of = np.unique(weights, axis=0, return_index=True, return_inverse=True)
    recipe_of = recipe_of.reshape(-1)
    models = {client: state.models[state.row[known[client]]] for client in asked}
    own = [int(recipe_of[column]) for column in columns]
    mixed = Mixed(recipes, asked, models, state.models.shape[1], own)
    _train(mixed, state, t, server)
    after = _with_means(state, mixed, recipe_of, first, server)
    events = [Event("relatedness", state.relatives.text)] if t == 1 else []
    return after, Info(_cluster_infos(after, mixed.reported, server), events)


def _mixing(state: State, columns: Sequence[int], server: Server) -> npt.NDArray[np.float64]:
    """The weights `(M, asked)` of the participants in every client's mean."""
    present = set(server.clients)
    samples = [server.weight(c, "samples") if c in present else 0.0 for c in state.relatives.ids]
    return mixing_matrix(state.relatives.related, samples, columns)[:, columns]


def _train(mixed: Mixed, state: State, t: int, server: Server) -> None:
    """Participants train, and their models enter the sums: as sums of clusters, one by one, or by a rule."""
    requests = server.training_requests(mixed.asked, mixed.models, t)
    if server.sums_only:
        if state.relatives.gamma is not None:
            raise ConfigError(
                "a client's relatives are not a cluster here, and sums over groups that overlap show single "
                "updates: use case=2 with secure_sums"
            )
        mixed.add_sums(server.exchange(requests, mixed.own, clusters=len(mixed.recipes)))
        return
    # Where relatives are no cluster, each client's are others: lengths are compared among all.
    groups = mixed.own if state.relatives.gamma is None else [0] * len(requests)
    replies = server.ask(requests, groups)
    if server.aggregation.rule == "mean":
        mixed.add(replies)
    else:
        mixed.add_by_rule(list(replies), server.aggregation)


def _with_means(
    state: State, mixed: Mixed, recipe_of: npt.NDArray[np.int64], first: npt.NDArray[np.int64], server: Server
) -> State:
    """The state after a round: a new model for each recipe that has weight; the other clients keep their models.

    A client that failed leaves its row with less than the full weight: dividing makes the rest sum to one again.
    `recipe_of` is the recipe of each client, `first` the first client of each recipe.
    """
    arrived = np.flatnonzero(mixed.weights > 0)
    means = (mixed.sums[arrived] / torch.from_numpy(mixed.weights[arrived])[:, None]).to(state.models.dtype)
    before = [state.models[state.row[client]] for client in first[arrived]]
    means = server.steps_to(before, means, [state.relatives.ids[client] for client in first[arrived]])
    new = {recipe: ("mean", i) for i, recipe in enumerate(arrived.tolist())}
    source = [new.get(recipe, ("kept", old)) for recipe, old in zip(recipe_of.tolist(), state.row, strict=True)]
    row_of = {one: row for row, one in enumerate(dict.fromkeys(source))}  # numbered by their first client
    tables = {"mean": means, "kept": state.models}
    models = torch.stack([tables[table][i] for table, i in row_of])
    return State(state.relatives, models, tuple(row_of[one] for one in source))


class Mixed:
    """The clients' models added up by each row of the mixing matrix, `recipes: (n, asked)`."""

    def __init__(
        self,
        recipes: npt.NDArray[np.float64],
        asked: Sequence[str],
        models: Mapping[str, Tensor],
        size: int,
        own: Sequence[int] = (),
    ) -> None:
        self.recipes, self.asked, self.models, self.own = recipes, asked, models, own
        """`own` is the recipe of each client that was asked."""
        self.column = {client: column for column, client in enumerate(asked)}
        self.sums = torch.zeros(len(recipes), size, dtype=torch.float64)
        self.weights = np.zeros(len(recipes))
        self.reported: dict[str, tuple[float, float]] = {}
        """What clients reported: loss and norm."""

    def add(self, replies: Iterable[Reply]) -> None:
        """Add up the clients' models, AT_ONCE with one product."""
        arrived = iter(replies)
        while some := list(islice(arrived, AT_ONCE)):
            self._note(some)
            chosen = self.recipes[:, [self.column[reply.client] for reply in some]]
            starts = torch.stack([self.models[reply.client] for reply in some]).double()
            updates = torch.stack([vector_of(reply) for reply in some]).double()
            self.sums.addmm_(torch.from_numpy(np.ascontiguousarray(chosen)), starts + updates)
            self.weights += np.asarray(chosen.sum(axis=1))

    def add_sums(self, found: Exchange) -> None:
        """The same from the sums of the updates of clusters, whose members all started from one model."""
        self._note(found.replies)
        one_of = dict(zip(self.own, self.asked, strict=True))
        for group, client in one_of.items():
            start = self.models[client]
            self.weights[group] = found.sums[group].weight
            self.sums[group] = found.sums[group].total + self.weights[group] * start.double()

    def add_by_rule(self, replies: Sequence[Reply], rule: Aggregation) -> None:
        """The same from all the updates at once, each row averaged by a rule that is not the mean."""
        self._note(replies)
        for i, recipe in enumerate(self.recipes):
            own = [reply for reply in replies if recipe[self.column[reply.client]] > 0]
            if own:
                weights = [float(recipe[self.column[reply.client]]) for reply in own]
                rows = torch.stack([self.models[reply.client] + vector_of(reply) for reply in own])
                self.weights[i] = sum(weights)
                self.sums[i] = rule.center(rows, weights) * self.weights[i]

    def _note(self, replies: Sequence[Reply]) -> None:
        self.reported |= {reply.client: (float(reply.values["loss"]), reply.norm) for reply in replies}


def _cluster_infos(state: State, reported: dict[str, tuple[float, float]], server: Server) -> list[ClusterInfo]:
    """For each model, its clients' number and what those that took part reported of their training."""
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
