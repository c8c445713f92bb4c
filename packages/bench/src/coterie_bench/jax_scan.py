"""FedAvg in JAX as a good engineer writes it: one compiled function per round, `lax.scan` over clients and steps."""

from __future__ import annotations

import importlib
import os
from typing import Any

import torch
from torch import nn

from coterie import Federation
from coterie.methods import Server

JAX_SCAN = "JAX scan"
ONE_THREAD = "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1"


class JaxScanRounds:
    """A chain of Linear layers with ReLU between, its data on the device, evaluation in the same function."""

    name = JAX_SCAN

    def __init__(self, federation: Federation, module: nn.Module, server: Server, lr: float, batch: int) -> None:
        os.environ.setdefault("XLA_FLAGS", ONE_THREAD)
        jax = importlib.import_module("jax")
        self.jax, self.server, self.batch = jax, server, batch
        self.places = {client: i for i, client in enumerate(federation.ids)}
        self.data = [
            jax.numpy.asarray(torch.stack(tensors).numpy())
            for part in ("train", "test")
            for tensors in (
                [client.part(part).x.flatten(1) for client in federation],
                [client.part(part).y for client in federation],
            )
        ]
        layers = [part for part in module.modules() if isinstance(part, nn.Linear)]
        self.weights = [
            tuple(jax.numpy.asarray(t.detach().numpy()) for t in (one.weight.T, one.bias)) for one in layers
        ]
        self.step = jax.jit(_round_of(jax, lr))

    def round(self, t: int) -> None:
        clients = self.server.participants(t)
        orders = []
        for client in clients:
            generator = torch.Generator().manual_seed(self.server.seed_of(t, client))
            orders.append(torch.randperm(self.data[0].shape[1], generator=generator).view(-1, self.batch))
        chosen = self.jax.numpy.asarray([self.places[client] for client in clients])
        orders_there = self.jax.numpy.asarray(torch.stack(orders).numpy())
        self.weights, scores = self.step(self.weights, *self.data, chosen, orders_there)
        self.jax.block_until_ready(scores)

    def close(self) -> None:
        """Nothing to release."""


def _round_of(jax: Any, lr: float) -> Any:
    tree = jax.tree_util.tree_map

    def outputs(weights: Any, x: Any) -> Any:
        for i, (weight, bias) in enumerate(weights):
            x = (jax.nn.relu(x) if i else x) @ weight + bias
        return x

    def losses(weights: Any, x: Any, y: Any) -> Any:
        return -jax.numpy.take_along_axis(jax.nn.log_softmax(outputs(weights, x)), y[:, None], 1)[:, 0]

    def one_round(weights: Any, x: Any, y: Any, x_test: Any, y_test: Any, chosen: Any, orders: Any) -> Any:
        def train(total: Any, job: Any) -> Any:
            client, order = job

            def step(own: Any, rows: Any) -> Any:
                gradient = jax.grad(lambda w: losses(w, x[client][rows], y[client][rows]).mean())(own)
                return tree(lambda w, g: w - lr * g, own, gradient), None

            return tree(jax.numpy.add, total, jax.lax.scan(step, weights, order)[0]), None

        total, _ = jax.lax.scan(train, tree(jax.numpy.zeros_like, weights), (chosen, orders))
        mean = tree(lambda sum_: sum_ / len(chosen), total)

        def evaluate(client: Any) -> Any:
            hit = outputs(mean, x_test[client]).argmax(1) == y_test[client]
            return losses(mean, x_test[client], y_test[client]).mean(), hit.mean()

        return mean, jax.lax.map(evaluate, chosen)

    return one_round
