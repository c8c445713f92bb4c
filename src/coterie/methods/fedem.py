"""FedEM (Marfoq et al. 2021): clients are mixtures of a few models that all of them train.

Every client's data is taken for a mixture of M unknown distributions, with proportions π_i of its own. E-step: the
chance q_s(m) ∝ π_im exp(−loss of model m on sample s) that sample s came from distribution m; π_im becomes the mean
of q. M-step: the client trains every model on all of its samples, weighted by q. The server averages each model over
the clients, and a client predicts by the mixture π_i of the models.

Where the paper is silent or we differ:
* π_i is kept by the server, which sends it to the client and has it back: M numbers, so that clients keep no state
  and records can say who is served by what. In the authors' code it stays with the client;
* the loss is taken for the negative log-likelihood as it is, also the squared error (a Gaussian of variance 1/2);
* a client that was never asked has the weights of `place`: several E-steps from equal weights, the models held fixed;
* its cluster, for tables and the adjusted Rand index, is the model that weighs most.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, Literal

import torch
from pydantic import PositiveInt
from torch import Tensor

from coterie.errors import ConfigError
from coterie.methods.base import Assignment, Info, method
from coterie.methods.mixtures import heaviest, mixture_assignment, mixture_infos
from coterie.methods.needs import Needs
from coterie.methods.server import Server
from coterie.snapshot import saved
from coterie.tasks import MixtureTraining, MixtureWeights, Reply, Request

PLACING_STEPS = 20
"""E-steps by which a client finds its weights when the models are held fixed; one per round is enough in training."""


@saved
class State:
    """The models `(M, d)`, the weights of each client that was asked, and what it reported of its labels, if it did."""

    models: Tensor
    weights: dict[str, tuple[float, ...]]
    counts: dict[str, Tensor]
    """Samples by model and label `(M, classes)`: FedRC's."""


@method("fedem")
class FedEM:
    """Clients are mixtures of a few models, which all of them train by EM."""

    server_steps: ClassVar[bool] = True
    needs: ClassVar[Needs] = Needs(tasks=(MixtureTraining, MixtureWeights))

    components: PositiveInt = 3
    """Number of models M."""
    weighting: Literal["samples", "uniform"] = "samples"
    """Weight of a client in the mean of each model."""

    def start(self, server: Server) -> State:
        if server.schedule.at(1).keep_optimizer:
            raise ConfigError(
                f"keep_optimizer: a client trains {self.components} models, and keeps the state of one optimiser: "
                "leave it out"
            )
        return State(torch.stack([server.initial_model(m) for m in range(self.components)]), {}, {})

    def labels(self, state: State) -> Tensor | None:
        """The share of each label among the samples of each model `(M, classes)`, where it counts; here it does not."""
        return None

    def round(self, state: State, t: int, server: Server) -> tuple[State, Info]:
        models, labels, size = state.models, self.labels(state), state.models.shape[1]
        equal = (1 / self.components,) * self.components
        requests = [
            Request(
                c,
                MixtureTraining(
                    models,
                    torch.tensor(state.weights.get(c, equal), dtype=torch.float32),
                    server.schedule.at(t),
                    server.seed_of(t, c),
                    labels,
                ),
            )
            for c in server.participants(t)
        ]
        # All updates as one: a model that is not for a client hardly moves, so only together have they a norm.
        [total], replies = server.exchange(requests, weighting=self.weighting, size=self.components * size)
        told = {reply.client: reply for reply in replies}
        updates = list(total.mean().view(-1, size))
        after = [server.step(model, update, m) for m, (model, update) in enumerate(zip(models, updates, strict=True))]
        weights = {client: tuple(reply.values["weights"]) for client, reply in told.items()}
        counts = {client: _bounded(reply) for client, reply in told.items() if "counts" in reply.values}
        state = State(torch.stack(after), state.weights | weights, state.counts | counts)
        return state, Info(mixture_infos(state.weights, told.values(), updates, server))

    def assignment(self, state: State, server: Server) -> Assignment:
        """Every client with its mixture; a client that was never asked is asked for its weights now."""
        absent = [client for client in server.clients if client not in state.weights]
        weights = state.weights | self._weights(state, absent, server)
        return mixture_assignment(state.models, weights, server)

    def place(self, state: State, clients: Sequence[str], server: Server) -> dict[str, int]:
        """The model that accounts for most of each newcomer's data."""
        return {client: heaviest(weights) for client, weights in self._weights(state, clients, server).items()}

    def _weights(self, state: State, clients: Sequence[str], server: Server) -> dict[str, tuple[float, ...]]:
        task = MixtureWeights(state.models, PLACING_STEPS, self.labels(state))
        return {reply.client: tuple(reply.values["weights"]) for reply in server.ask_all(clients, task)}


def _bounded(reply: Reply) -> Tensor:
    """The counts that a client reported, which may sum to no more than the samples it has."""
    counts: Tensor = reply.values["counts"]
    return counts * min(1.0, reply.samples / max(float(counts.sum()), 1e-30))
