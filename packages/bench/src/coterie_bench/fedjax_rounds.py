"""fedjax on the same round of FedAvg: its own algorithm and batches, the network written as JAX functions."""

from __future__ import annotations

import importlib
from typing import Any

from torch import nn

from coterie import Federation
from coterie.methods import Server
from coterie_bench.workloads import Workload

FEDJAX = "fedjax"


class FedjaxRounds:
    """fedjax's federated averaging with its client data sets, compiled by JAX in its first round.

    Only feed-forward networks with ReLU can be written down here; TypeError for others.
    """

    name = FEDJAX

    def __init__(self, workload: Workload, federation: Federation, server: Server) -> None:
        jax = importlib.import_module("jax")
        if not hasattr(jax, "tree_map"):
            jax.tree_map = jax.tree_util.tree_map  # type: ignore[attr-defined]  # the name that fedjax 0.0.16 uses
        fedjax = importlib.import_module("fedjax")
        how, self.server, self.jax = workload.training, server, jax
        layers = linear_layers(workload.architecture()(server.model_seed()))
        parameters = [{"w": _array(jax, layer.weight.T), "b": _array(jax, layer.bias)} for layer in layers]
        sizes = {
            "batch_size": how.batch_size or max(server.samples.values()),
            "num_epochs": None if how.steps else how.epochs,
            "num_steps": how.steps,
        }
        self.algorithm = importlib.import_module("fedjax.algorithms.fed_avg").federated_averaging(
            jax.grad(lambda own, batch, rng: _loss(jax, own, batch)),
            fedjax.optimizers.sgd(how.lr),
            fedjax.optimizers.sgd(1.0),
            fedjax.ShuffleRepeatBatchHParams(**sizes),
        )
        self.data = {
            client.id: fedjax.ClientDataset(
                {"x": client.train.x.flatten(1).numpy(), "y": client.train.y.numpy()},
            )
            for client in federation
        }
        self.state = self.algorithm.init(parameters)

    def round(self, t: int) -> None:
        keys = self.jax.random.split(self.jax.random.PRNGKey(t), len(self.data))
        clients = [(name, self.data[name], keys[i]) for i, name in enumerate(self.server.participants(t))]
        self.state, _ = self.algorithm.apply(self.state, clients)
        self.jax.block_until_ready(self.state.params)

    def close(self) -> None:
        """Nothing to release."""


def linear_layers(module: nn.Module) -> list[nn.Linear]:
    """The linear layers of a network that is nothing but those with ReLU between them; TypeError for any other."""
    parts = [part for part in module.modules() if not list(part.children())]
    layers = [part for part in parts if isinstance(part, nn.Linear)]
    known = nn.Linear | nn.ReLU | nn.Flatten
    if not all(isinstance(part, known) for part in parts) or any(layer.bias is None for layer in layers):
        raise TypeError("only feed-forward networks with ReLU are written in JAX here")
    return layers


def _array(jax: Any, tensor: Any) -> Any:
    return jax.numpy.asarray(tensor.detach().numpy())


def _loss(jax: Any, parameters: Any, batch: Any) -> Any:
    """Mean cross-entropy of the network on a batch."""
    values = batch["x"]
    for i, layer in enumerate(parameters):
        values = values @ layer["w"] + layer["b"]
        values = jax.nn.relu(values) if i < len(parameters) - 1 else values
    logs = jax.nn.log_softmax(values)
    return -jax.numpy.take_along_axis(logs, batch["y"][:, None], 1).mean()
