"""FedSoft (Ruan, Joe-Wong 2022): clients between clusters, each with one model of its own.

The server keeps k centres. Every `interval` rounds a client finds how much of each it is: u_is is the share of its
samples that have their lowest loss under centre s, at least `smoothing`. It trains one model, its own, with the
proximal term λ/2 Σ_s u_is ‖w − c_s‖²; a centre becomes the mean of all clients' models, weighted by u_is n_i.

Where the paper is silent or we differ:
* the weights are made to sum to one, so that they are a mixture; in the authors' code the sum is above one
  by `smoothing` for every centre that fits nothing best;
* between two estimates the client is sent Σ_s u_is c_s alone, whose proximal term has the same gradient;
* who takes part is drawn as for every method; the paper draws clients for each cluster, by their weight in it;
* clients start from one common initial model, as in the authors' code, and keep theirs to go on from. A client is
  served by its own model; one that was never asked by the mixture of the centres;
* its cluster, for tables and the adjusted Rand index, is the centre that weighs most.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from typing import Annotated, ClassVar, Literal

import numpy as np
import torch
from pydantic import Field, NonNegativeFloat, PositiveInt
from torch import Tensor

from coterie.errors import ConfigError
from coterie.methods import Assignment, Info, Needs, Server, method, saved
from coterie.methods.graph_averaging import Mixed
from coterie.methods.published import Paper
from coterie.tasks import Reply, Request
from coterie_field.fedem import check_count, heaviest, mixture_assignment, mixture_infos
from coterie_field.papers import PAPERS
from coterie_field.soft_tasks import ImportanceWeights, SoftTraining, mean_centre


@saved
class State:
    """The centres `(k, d)`, and the importance weights of each client that was asked."""

    centres: Tensor
    weights: dict[str, tuple[float, ...]]


@method("fedsoft")
class FedSoft:
    """Clients between clusters: each trains one model of its own near the mean of the centres that fit its samples."""

    paper: ClassVar[Paper] = PAPERS["fedsoft"]
    server_steps: ClassVar[bool] = True
    needs: ClassVar[Needs] = Needs("must", (ImportanceWeights,), personal=True)

    clusters: PositiveInt = 2
    """Number of centres k."""
    proximal: NonNegativeFloat = 0.1
    """λ: how strongly a client's model is drawn to its centres."""
    interval: PositiveInt = 2
    """Rounds between two estimates of a client's weights (τ)."""
    smoothing: Annotated[float, Field(gt=0, lt=1)] = 1e-4
    """Weight of a centre that fits no sample of a client best (σ)."""
    weighting: Literal["samples", "uniform"] = "samples"
    """Weight of a client in a centre, beside its importance weight."""

    def start(self, server: Server) -> State:
        if server.schedule.at(1).keep_optimizer:
            raise ConfigError(
                "keep_optimizer: clients of 'fedsoft' keep their models, not their optimisers: leave it out"
            )
        if server.aggregation.rule != "mean":
            raise ConfigError(
                f"aggregate={server.aggregation.rule!r}: the centres of 'fedsoft' differ by clients' weights, and "
                "robust rules weigh clients alike: use aggregate='mean'"
            )
        check_count("clusters", self.clusters, server)
        return State(torch.stack([server.initial_model(s) for s in range(1, self.clusters + 1)]), {})

    def round(self, state: State, t: int, server: Server) -> tuple[State, Info]:
        centres, size = state.centres, state.centres.shape[1]
        start = server.initial_model()
        sent = {c: self._task(state, c, t, start, server) for c in server.participants(t)}
        requests = [Request(client, task) for client, task in sent.items()]
        column = {client: i for i, client in enumerate(sent)}
        shares = np.zeros((self.clusters, len(requests)))
        weights = dict(state.weights)
        means: dict[str, Tensor] = {}
        heard: list[Reply] = []

        def arriving() -> Iterator[Reply]:
            """The replies, whose vectors are models minus the mean of their centres; what they say is noted first."""
            for reply in server.ask(requests, [0] * len(requests)):
                client, task = reply.client, sent[reply.client]
                if task.weights is None:
                    weights[client] = tuple(reply.values["weights"])
                means[client] = mean_centre(task.centres, reply.values["weights"])
                shares[:, column[client]] = np.multiply(weights[client], server.weight(client, self.weighting))
                heard.append(dataclasses.replace(reply, vector=None))
                yield reply

        mixed = Mixed(shares, list(sent), means, size)
        mixed.add(arriving())
        sums, total = mixed.sums, mixed.weights
        updates = [s / w - c.double() if w else 0 * s for s, w, c in zip(sums, total.tolist(), centres, strict=True)]
        after = [server.step(c, update, s) for s, (c, update) in enumerate(zip(centres, updates, strict=True))]
        return State(torch.stack(after), weights), Info(mixture_infos(weights, heard, updates, server))

    def _task(self, state: State, client: str, t: int, start: Tensor, server: Server) -> SoftTraining:
        """With all centres where the client is to estimate its weights, else with their mean alone."""
        training = dataclasses.replace(server.schedule.at(t), proximal=self.proximal)
        init, seed = server.model_seed(), server.seed_of(t, client)
        if client not in state.weights or (t - 1) % self.interval == 0:
            return SoftTraining(start, state.centres, None, self.smoothing, training, seed, init)
        mean = mean_centre(state.centres, state.weights[client])[None]
        return SoftTraining(start, mean, torch.ones(1), self.smoothing, training, seed, init)

    def assignment(self, state: State, server: Server) -> Assignment:
        """Every client with its own model; one that was never asked with the mixture of the centres, found now."""
        absent = [client for client in server.clients if client not in state.weights]
        weights = state.weights | self._weights(state, absent, server)
        return mixture_assignment(state.centres, weights, server, server.layout.names)

    def place(self, state: State, clients: Sequence[str], server: Server) -> dict[str, int]:
        """The centre that fits most of each newcomer's samples best."""
        return {client: heaviest(weights) for client, weights in self._weights(state, clients, server).items()}

    def _weights(self, state: State, clients: Sequence[str], server: Server) -> dict[str, tuple[float, ...]]:
        task = ImportanceWeights(state.centres, self.smoothing)
        return {reply.client: tuple(reply.values["weights"]) for reply in server.ask_all(clients, task)}
