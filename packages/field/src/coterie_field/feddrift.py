"""FedDrift (Jothimurugesan, Hsieh, Wang, Joshi, Gibbons 2023): clusters that follow clients whose data changes.

Before every round each participant reports its loss under all models, on the data it has now. If the lowest is above
its last one by more than δ, its data is of a kind that no model knows: it opens a model of its own. Otherwise it is
in the cluster of the lowest loss, so that a concept which comes back finds its model again. Models that serve each
other's clients as well, max(L_ij − L_jj, L_ji − L_ii) < δ, are merged, the closest first, by complete linkage. Then
every cluster does a round of FedAvg.

Where the paper is silent or we differ:
* the paper has time steps of many rounds; here every round is one, and a model is merged once it has been trained for
  `settle` rounds, because models that have learnt nothing do the same everywhere;
* δ is in units of what training gained: `share` times the mean loss of the first models minus the mean of the lowest
  losses now, so that one default serves all losses and data; or a number of one's own;
* the paper's clients begin with one concept; here each begins with a model of its own, because groups may be there
  from the start (`start_with=one` is the paper's);
* new models start from the common initial model, so that those which are merged can be averaged, as the paper does;
* a model that no client has is kept for its concept's return, up to `most` models; the one unused for longest goes.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Annotated, ClassVar, Literal

import numpy as np
import torch
from pydantic import Field, PositiveFloat, PositiveInt
from torch import Tensor

from coterie.methods import Assignment, Event, Info, Needs, Server, average_clusters, members_of, method, saved
from coterie.methods.averaging import assignment_of
from coterie.methods.placing import lowest_loss
from coterie.methods.published import Paper
from coterie.tasks import Evaluate
from coterie_field.papers import PAPERS


@saved
class State:
    """The models `(k, d)` with their ids, who is in which, and what δ is measured by."""

    models: Tensor
    ids: list[int]
    born: list[int]
    """The round in which each model began."""
    used: list[int]
    """The last round in which each had a client."""
    cluster_of: dict[str, int]
    """The id of each client's model."""
    lowest: dict[str, float]
    """Each client's lowest loss when it was last asked."""
    first_loss: float | None = None
    next_id: int = 1


@method("feddrift")
class FedDrift:
    """Clusters for clients whose data changes: a rise of the loss opens a model, models that do the same are merged."""

    paper: ClassVar[Paper] = PAPERS["feddrift"]
    needs: ClassVar[Needs] = Needs(unnoised="clients are clustered by their exact losses")

    start_with: Literal["each", "one"] = "each"
    """Models of the first round: one per client, up to `most`, which are merged later; or one for all."""
    delta: PositiveFloat | None = None
    """δ: the rise in loss by which a client has drifted, and below which models are merged; none: see `share`."""
    share: Annotated[float, Field(gt=0, lt=1)] = 0.3
    """δ as a share of what training has gained so far."""
    settle: PositiveInt = 3
    """Rounds that a model is trained for before it can be merged."""
    most: Annotated[int, Field(ge=2)] = 12
    """Most models that are kept."""
    weighting: Literal["samples", "uniform"] = "samples"
    """Weight of a client in its cluster's mean."""

    def start(self, server: Server) -> State:
        return State(server.initial_model()[None], [0], [0], [0], {}, {})

    def round(self, state: State, t: int, server: Server) -> tuple[State, Info]:
        replies = server.ask_all(server.participants(t), Evaluate(state.models, "train"))
        losses = {reply.client: np.nan_to_num(reply.values["loss"], nan=np.inf) for reply in replies}
        asked = state.ids
        state, delta = self._measured(state, losses)
        state, events = self._moved(state, losses, delta, t, server)
        state, merged = self._merged(state, losses, asked, delta, t, server)
        position = {number: j for j, number in enumerate(state.ids)}
        places = {client: position[number] for client, number in state.cluster_of.items()}
        models, infos = average_clusters(server, t, state.models, places, self.weighting)
        clusters = [
            dataclasses.replace(info, id=number) for number, info in zip(state.ids, infos, strict=True) if info.members
        ]
        return dataclasses.replace(state, models=models), Info(clusters, events + merged)

    def _measured(self, state: State, losses: Mapping[str, np.ndarray]) -> tuple[State, float]:
        """The state that knows the loss of the first models, and δ."""
        means = [float(np.mean(list(losses.values())))] if losses else []
        first = state.first_loss if state.first_loss is not None or not means else means[0]
        state = dataclasses.replace(state, first_loss=first)
        if self.delta is not None:
            return state, self.delta
        now = float(np.mean(list(state.lowest.values()))) if state.lowest else np.inf
        gained = max((first or 0.0) - now, 0.0)
        return state, self.share * gained if gained else np.inf

    def _moved(
        self, state: State, losses: Mapping[str, np.ndarray], delta: float, t: int, server: Server
    ) -> tuple[State, list[Event]]:
        """Every participant in the cluster of its lowest loss, or with a new model where that has risen."""
        cluster_of = {client: number for client, number in state.cluster_of.items() if client in server.samples}
        lowest, opening = dict(state.lowest), []
        begins = self.start_with == "each" and not state.cluster_of
        for client, row in losses.items():
            best = int(np.argmin(row))
            drifted = client in lowest and row[best] > lowest[client] + delta
            if begins or drifted:
                opening.append(client)
                lowest.pop(client, None)  # its new model has everything to learn: no loss to compare with yet
                cluster_of.pop(client, None)
            else:
                cluster_of[client] = state.ids[best]
                lowest[client] = float(row[best])
        state = _used(dataclasses.replace(state, cluster_of=cluster_of, lowest=lowest), t)
        if not opening:
            return state, []
        state, opening = self._opened(state, opening, t, server)
        if t == 1:
            return state, []
        text = f"{len(opening)} clients fit no model any more (δ = {delta:.3g}) and have new ones: {', '.join(opening)}"
        return state, [Event("drifted", text, {"clients": opening, "delta": delta})]

    def _opened(self, state: State, clients: list[str], t: int, server: Server) -> tuple[State, list[str]]:
        """The state with new models for the clients, and the clients in the order in which they have them.

        Where there is no room for a model each, clients share the new ones, and part later if they must. Who shares is
        drawn: the order of the clients may follow their groups, as it does in a simulation.
        """
        count = min(len(clients), max(1, self.most - len(set(state.cluster_of.values()))))
        if count < len(clients):
            clients = sorted(clients, key=lambda client: server.seed_of(t, client, "shared models"))
        state = self._limited(state, self.most - count)
        new = [state.next_id + i for i in range(count)]
        places = {client: new[i % count] for i, client in enumerate(clients)}
        opened = dataclasses.replace(
            state,
            models=torch.cat([state.models, server.initial_model().repeat(count, 1)]),
            ids=state.ids + new,
            born=state.born + [t] * count,
            used=state.used + [t] * count,
            cluster_of=state.cluster_of | places,
            next_id=state.next_id + count,
        )
        return opened, clients

    def _limited(self, state: State, most: int) -> State:
        """The state without the models that no client has had for longest, where there are more than `most`."""
        spare = [j for j, number in enumerate(state.ids) if number not in state.cluster_of.values()]
        gone = sorted(spare, key=lambda j: state.used[j])[: max(len(state.ids) - most, 0)]
        return _kept(state, set(gone))

    def _merged(
        self,
        state: State,
        losses: Mapping[str, np.ndarray],
        asked: Sequence[int],
        delta: float,
        t: int,
        server: Server,
    ) -> tuple[State, list[Event]]:
        """Models that serve each other's clients as well become one, their mean by samples; `asked` had the losses."""
        table, weights = self._losses_of_models(state, losses, asked, server)
        old = [j for j, weight in enumerate(weights) if weight and t - state.born[j] > self.settle]
        if len(old) < 2 or not np.isfinite(delta):
            return state, []
        own = table[np.ix_(old, old)]
        rise = own - np.diag(own)[None, :]
        groups = [[old[i] for i in group] for group in merged_below(np.maximum(rise, rise.T), delta)]
        gone, events = set(), []
        for rows in groups:
            if len(rows) > 1:
                state, event = _merge(state, rows, weights, delta)
                events.append(event)
                gone |= set(rows[1:])
        return _kept(state, gone), events

    def _losses_of_models(
        self, state: State, losses: Mapping[str, np.ndarray], asked: Sequence[int], server: Server
    ) -> tuple[np.ndarray, list[float]]:
        """L_ij `(models, models)`, the mean loss of model i on the clients of j, and the weight of the clients of j.

        A model that is new, which no client was asked about, has infinite losses, and its clients no weight.
        """
        count = len(state.ids)
        sums, weights = np.zeros((count, count)), [0.0] * count
        position = {number: j for j, number in enumerate(state.ids)}
        for client, row in losses.items():
            j, weight = position[state.cluster_of[client]], server.weight(client, self.weighting)
            if state.ids[j] not in asked:
                continue
            known = dict(zip(asked, row, strict=True))
            sums[:, j] += [weight * known.get(number, np.inf) for number in state.ids]
            weights[j] += weight
        return sums / np.maximum(weights, np.finfo(float).tiny), weights

    def assignment(self, state: State, server: Server) -> Assignment:
        """Every client with its model; one that was never asked is asked now."""
        absent = [client for client in server.clients if client not in state.cluster_of]
        by_id = dict(zip(state.ids, state.models, strict=True))
        found = state.cluster_of | (lowest_loss(by_id, absent, server) if absent else {})
        position = {number: j for j, number in enumerate(state.ids)}
        places = {client: position[found.get(client, state.ids[0])] for client in server.clients}
        return assignment_of(state.models, members_of(places, server.clients, len(state.ids)), state.ids)

    def place(self, state: State, clients: Sequence[str], server: Server) -> dict[str, int]:
        """The model with the lowest loss on each newcomer's data, among those that some client has."""
        held = set(state.cluster_of.values())
        models = {n: model for n, model in zip(state.ids, state.models, strict=True) if n in held}
        return lowest_loss(models, clients, server)


def merged_below(distances: np.ndarray, limit: float) -> list[list[int]]:
    """Groups of positions by complete linkage: the closest two are joined while their distance is below the limit."""
    groups = [[i] for i in range(len(distances))]
    table = distances.astype(np.float64).copy()
    np.fill_diagonal(table, np.inf)
    while len(groups) > 1:
        i, j = sorted(np.unravel_index(int(np.argmin(table)), table.shape))
        if not table[i, j] < limit:
            break
        groups[i] += groups.pop(j)
        table[i] = np.maximum(table[i], table[j])
        table[:, i] = table[i]
        table = np.delete(np.delete(table, j, 0), j, 1)
        np.fill_diagonal(table, np.inf)
    return groups


def _used(state: State, t: int) -> State:
    """The state that knows which models have clients in round t."""
    held = set(state.cluster_of.values())
    used = [t if number in held else last for number, last in zip(state.ids, state.used, strict=True)]
    return dataclasses.replace(state, used=used)


def _merge(state: State, rows: Sequence[int], weights: Sequence[float], delta: float) -> tuple[State, Event]:
    """The state with the mean of some models in the place of the first, which has all their clients now."""
    into, *gone = rows
    shares = torch.tensor([weights[j] for j in rows], dtype=torch.float64)
    mean = (shares / shares.sum()) @ state.models[list(rows)].double()
    models = state.models.clone()
    models[into] = mean.to(models.dtype)
    names = [state.ids[j] for j in gone]
    moved = {c: state.ids[into] if n in names else n for c, n in state.cluster_of.items()}
    text = f"models {', '.join(map(str, names))} merged into {state.ids[into]}: each serves the others' clients"
    event = Event("merged", text, {"gone": names, "into": state.ids[into], "delta": delta})
    return dataclasses.replace(state, models=models, cluster_of=moved), event


def _kept(state: State, gone: set[int]) -> State:
    """The state without the models at some positions."""
    if not gone:
        return state
    rows = [j for j in range(len(state.ids)) if j not in gone]
    return dataclasses.replace(
        state,
        models=state.models[rows],
        ids=[state.ids[j] for j in rows],
        born=[state.born[j] for j in rows],
        used=[state.used[j] for j in rows],
    )
