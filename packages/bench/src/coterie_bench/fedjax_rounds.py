"""fedjax on the same round of FedAvg: its own algorithm and batches, the network written as JAX functions."""

from __future__ import annotations

import importlib
from typing import Any

from torch import Tensor, nn

from coterie import Federation
from coterie.methods import Server
from coterie_bench.workloads import Workload

FEDJAX = "fedjax"


class FedjaxRounds:
    """fedjax's federated averaging with its client data sets, compiled by JAX in its first round.

    Only chains of linear layers, convolutions, ReLU and max-pooling can be written down here; TypeError for others.
    """

    name = FEDJAX

    def __init__(self, workload: Workload, federation: Federation, server: Server) -> None:
        jax = importlib.import_module("jax")
        if not hasattr(jax, "tree_map"):
            jax.tree_map = jax.tree_util.tree_map  # type: ignore[attr-defined]  # the name that fedjax 0.0.16 uses
        fedjax = importlib.import_module("fedjax")
        how, self.server, self.jax = workload.training, server, jax
        layers = chain_of(workload.architecture()(server.model_seed()))
        parameters = [_weights(jax, layer) for layer in layers if isinstance(layer, nn.Linear | nn.Conv2d)]
        sizes = {
            "batch_size": how.batch_size or max(server.samples.values()),
            "num_epochs": None if how.steps else how.epochs,
            "num_steps": how.steps,
        }
        self.algorithm = importlib.import_module("fedjax.algorithms.fed_avg").federated_averaging(
            jax.grad(lambda own, batch, rng: _loss(jax, layers, own, batch)),
            fedjax.optimizers.sgd(how.lr),
            fedjax.optimizers.sgd(1.0),
            fedjax.ShuffleRepeatBatchHParams(**sizes),
        )
        self.data = {
            client.id: fedjax.ClientDataset(
                {"x": _inputs(client.train.x, layers[0]).numpy(), "y": client.train.y.numpy()}
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


def chain_of(module: nn.Module) -> list[nn.Module]:
    """The layers of a network that is a chain of known ones; TypeError for any other."""
    parts = [part for part in module.modules() if not list(part.children())]
    if not isinstance(module, nn.Sequential) or not all(map(_is_known, parts)):
        raise TypeError("only chains of linear layers, convolutions, ReLU and max-pooling are written in JAX here")
    return parts


def _is_known(part: nn.Module) -> bool:
    if isinstance(part, nn.Conv2d):
        return part.bias is not None and (part.stride, part.dilation, part.groups) == ((1, 1), (1, 1), 1)
    if isinstance(part, nn.MaxPool2d):
        return (part.kernel_size, part.stride, part.padding, part.ceil_mode) == (2, 2, 0, False)
    return isinstance(part, nn.ReLU | nn.Flatten) or (isinstance(part, nn.Linear) and part.bias is not None)


def _inputs(x: Tensor, first: nn.Module) -> Tensor:
    """Images with their channels last, as XLA's convolutions on processors want them; flat for any other layer."""
    return x.permute(0, 2, 3, 1).contiguous() if isinstance(first, nn.Conv2d) else x.flatten(1)


def _weights(jax: Any, layer: nn.Linear | nn.Conv2d) -> dict[str, Any]:
    weight = layer.weight.permute(2, 3, 1, 0) if isinstance(layer, nn.Conv2d) else layer.weight.T
    return {"w": _array(jax, weight), "b": _array(jax, layer.bias)}


def _array(jax: Any, tensor: Any) -> Any:
    return jax.numpy.asarray(tensor.detach().numpy())


def _loss(jax: Any, layers: list[nn.Module], parameters: Any, batch: Any) -> Any:
    """Mean cross-entropy of the network on a batch."""
    values, own = batch["x"], iter(parameters)
    for layer in layers:
        if isinstance(layer, nn.Linear):
            weights = next(own)
            values = values @ weights["w"] + weights["b"]
        elif isinstance(layer, nn.Conv2d):
            weights = next(own)
            assert isinstance(layer.padding, tuple)
            padding = [(side, side) for side in layer.padding]
            names = ("NHWC", "HWIO", "NHWC")
            values = jax.lax.conv_general_dilated(values, weights["w"], (1, 1), padding, dimension_numbers=names)
            values = values + weights["b"]
        elif isinstance(layer, nn.MaxPool2d):
            window = (1, 2, 2, 1)
            values = jax.lax.reduce_window(values, -jax.numpy.inf, jax.lax.max, window, window, "VALID")
        elif isinstance(layer, nn.Flatten):
            values = _flat(values)
        else:
            values = jax.nn.relu(values)
    logs = jax.nn.log_softmax(values)
    return -jax.numpy.take_along_axis(logs, batch["y"][:, None], 1).mean()


def _flat(values: Any) -> Any:
    """Rows in torch's order: channel by channel."""
    return (values.transpose(0, 3, 1, 2) if values.ndim == 4 else values).reshape(len(values), -1)
