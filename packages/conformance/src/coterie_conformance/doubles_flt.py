"""A double of FLT's averaging in few lines, on a plain signature of the data, with slips to be switched on one by one.

The signature is the mean input of a client in place of an encoder and UMAP: it is the averaging that is looked at.
"""

from __future__ import annotations

import dataclasses
from typing import Literal

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from coterie.methods import (
    Array,
    Assignment,
    ClientContext,
    ClusterInfo,
    Info,
    Layout,
    Reply,
    ReplySchema,
    Server,
    Task,
    Trainer,
    saved,
)

Slip = Literal["none", "in place", "far pairs", "p/‖A‖₀"]


@dataclasses.dataclass(frozen=True)
class MeanInput(Task):
    """Send the mean of the training inputs."""

    def schema(self, layout: Layout) -> ReplySchema:
        return ReplySchema(None, {"mean": Array((None,))})

    def answer(self, context: ClientContext, trainer: Trainer) -> Reply:
        x = context.client.train.x.flatten(1).double()
        return Reply(context.client.id, len(x), values={"mean": x.mean(0).tolist()})


@saved
class State:
    """The clients, their signatures `(M, inputs)`, and the model `(M, d)` of each."""

    clients: tuple[str, ...]
    signatures: npt.NDArray[np.float64]
    models: Tensor


@dataclasses.dataclass(frozen=True)
class PlainFLT:
    """Each client's model is the mean of the models of its relatives, the clients whose data are near (case I)."""

    slip: Slip = "none"
    gamma: float = 0.75
    """Clients are related where their signatures are nearer than this."""

    def start(self, server: Server) -> State:
        found = _signatures(server.clients, server)
        models = server.initial_model().repeat(len(found), 1)
        return State(tuple(found), np.array(list(found.values())), models)

    def related(self, state: State) -> npt.NDArray[np.bool_]:
        """Who averages with whom `(M, M)`, everybody with itself."""
        apart = np.linalg.norm(state.signatures[:, None] - state.signatures[None], axis=2)
        near = apart > self.gamma if self.slip == "far pairs" else apart < self.gamma
        return np.asarray(near | np.eye(len(near), dtype=bool))

    def round(self, state: State, t: int, server: Server) -> tuple[State, Info]:
        state = self._with_newcomers(state, server)
        row = {client: i for i, client in enumerate(state.clients)}
        asked = [client for client in server.participants(t) if client in row]
        starts = {client: state.models[row[client]].clone() for client in asked}
        trained = state.models.double()
        took_part = np.zeros(len(row), dtype=bool)
        for reply in server.ask(server.training_requests(asked, starts, t)):
            assert reply.vector is not None
            trained[row[reply.client]] += reply.vector
            took_part[row[reply.client]] = True
        samples = np.array([server.samples.get(client, 0) for client in state.clients], dtype=np.float64)
        after = self._averaged(trained, state.models.double(), self.related(state), took_part, samples)
        infos = [ClusterInfo(len(own), id=j) for j, own in self._clusters(state, server).items()]
        return dataclasses.replace(state, models=after.to(state.models.dtype)), Info(infos)

    def _averaged(
        self,
        trained: Tensor,
        before: Tensor,
        related: npt.NDArray[np.bool_],
        took_part: npt.NDArray[np.bool_],
        samples: npt.NDArray[np.float64],
    ) -> Tensor:
        """Everybody's mean over its relatives that took part; a client without any keeps its model."""
        # The slip: a client's mean is written over its model, of which the means of later clients are then made.
        source = trained if self.slip == "in place" else trained.clone()
        after = source if self.slip == "in place" else before.clone()
        for i in range(len(related)):
            own = np.flatnonzero(related[i] & took_part)
            if len(own):
                weights = samples[own] / samples[own].sum()
                if (
                    self.slip == "p/‖A‖₀"
                ):  # as printed: the sum of the relatives' models, times p_i = n_i / n over ‖A_i‖₀
                    weights = np.full(len(own), samples[i] / samples.sum() / related[i].sum())
                after[i] = torch.from_numpy(weights) @ source[torch.from_numpy(own)]
            else:
                after[i] = before[i]
        return after

    def _clusters(self, state: State, server: Server) -> dict[int, list[str]]:
        """Clients that have the same relatives, by the position of the first, only those that are there."""
        rows = [tuple(row.tolist()) for row in self.related(state)]
        present = set(server.clients)
        found: dict[int, list[str]] = {}
        for client, row in zip(state.clients, rows, strict=True):
            if client in present:
                found.setdefault(rows.index(row), []).append(client)
        return found

    def assignment(self, state: State, server: Server) -> Assignment:
        """Clients with the same relatives are a cluster, each served by its own model, as the authors' code has it."""
        state = self._with_newcomers(state, server)
        clusters = self._clusters(state, server)
        row = {client: i for i, client in enumerate(state.clients)}
        served = {client: row[client] for own in clusters.values() for client in own}
        others = {i: state.models[i].clone() for i in served.values() if i not in clusters}
        models = [state.models[j].clone() for j in clusters]
        return Assignment(models, list(clusters.values()), (), list(clusters), _by_cluster(served, clusters), others)

    def _with_newcomers(self, state: State, server: Server) -> State:
        """The state with clients that came later, each with the model of the client with the nearest signature."""
        found = _signatures([c for c in server.clients if c not in state.clients], server)
        if not found:
            return state
        new = np.array(list(found.values()))
        apart = np.linalg.norm(new[:, None] - state.signatures[None], axis=2)
        models = torch.cat([state.models, state.models[torch.from_numpy(apart.argmin(axis=1))]])
        return State(state.clients + tuple(found), np.concatenate([state.signatures, new]), models)


def _signatures(clients: list[str] | tuple[str, ...], server: Server) -> dict[str, list[float]]:
    return {reply.client: reply.values["mean"] for reply in server.ask_all(clients, MeanInput())} if clients else {}


def _by_cluster(served: dict[str, int], clusters: dict[int, list[str]]) -> dict[str, int]:
    """Clients that are served by another model than their cluster's first."""
    return {client: served[client] for first, own in clusters.items() for client in own if served[client] != first}
