"""What the references' clients do: local SGD on a small network whose gradient is written out by hand."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

Vector = np.ndarray
Schedule = Sequence[tuple[Sequence[str], Sequence[str]]]
"""For each round the clients that are there, and those that take part."""


class Round(NamedTuple):
    """What is compared after a round."""

    mates: Mapping[str, frozenset[str]]
    """For each client those in its cluster, or its relatives."""
    models: Mapping[str, Vector]
    """Every parameter vector of the method, by a name."""


def mates_of(clusters: Iterable[Iterable[str]]) -> dict[str, frozenset[str]]:
    """For each client of a partition the members of its cluster."""
    return {client: frozenset(members) for members in map(list, clusters) for client in members}


@dataclass(frozen=True)
class Network:
    """Linear layers of these sizes with ReLU between them; a vector holds each layer's (outputs, inputs) and bias."""

    sizes: tuple[int, ...]
    bias: bool = True
    squared: bool = False
    """The loss: the mean squared error, or the mean cross-entropy of labels."""

    @property
    def head(self) -> slice:
        """The last layer's place in a vector."""
        return slice(-self.sizes[-1] * (self.sizes[-2] + self.bias), None)

    def layers(self, theta: Vector) -> list[tuple[Vector, Vector | float]]:
        """Weights and bias of each layer."""
        found: list[tuple[Vector, Vector | float]] = []
        for inputs, outputs in pairwise(self.sizes):
            weights, theta = theta[: inputs * outputs].reshape(outputs, inputs), theta[inputs * outputs :]
            found.append((weights, theta[:outputs] if self.bias else 0.0))
            theta = theta[outputs * self.bias :]
        return found

    def loss_and_gradient(self, theta: Vector, x: Vector, y: Vector) -> tuple[float, Vector]:
        """F(θ) and ∇F(θ) on samples `(n, inputs)`."""
        layers, below, outputs = self.layers(theta), [], x
        for weights, bias in layers:
            below.append(np.maximum(outputs, 0) if below else x)
            outputs = below[-1] @ weights.T + bias
        if self.squared:
            error = outputs - y.reshape(outputs.shape)
            loss, signal = float((error**2).mean()), 2 * error / len(x)
        else:
            shifted = outputs - outputs.max(axis=1, keepdims=True)
            log_p = shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))
            own = np.arange(len(x)), y
            loss, signal = -float(log_p[own].mean()), np.exp(log_p)
            signal[own] -= 1
            signal /= len(x)
        pieces: list[Vector] = []
        for (weights, _), values in zip(reversed(layers), reversed(below), strict=True):
            bias = [signal.sum(axis=0)] if self.bias else []
            pieces = [(signal.T @ values).ravel(), *bias, *pieces]
            signal = (signal @ weights) * (values > 0)
        return loss, np.concatenate(pieces)


@dataclass(frozen=True)
class Clients:
    """The clients' data, and how they train."""

    network: Network
    data: Mapping[str, tuple[Vector, Vector]]
    lr: float
    batches: Callable[[int, str], Iterable[Any]]
    """The samples of each of a client's steps in a round."""

    def loss(self, client: str, theta: Vector) -> float:
        """F_i(θ) over all its samples."""
        return self.network.loss_and_gradient(theta, *self.data[client])[0]

    def gradient(self, client: str, theta: Vector) -> Vector:
        """∇F_i(θ) over all its samples."""
        return self.network.loss_and_gradient(theta, *self.data[client])[1]

    def train(self, client: str, theta: Vector, t: int, mu: float = 0.0, only: slice = slice(None)) -> Vector:
        """θ after SGD on F_i(θ) + μ/2 ‖θ − θ_start‖² that moves the numbers in `only`."""
        (x, y), start, theta = self.data[client], theta, theta.copy()
        for batch in self.batches(t, client):
            _, gradient = self.network.loss_and_gradient(theta, x[batch], y[batch])
            theta[only] -= self.lr * (gradient + mu * (theta - start))[only]
        return theta

    def mean(self, vectors: Mapping[str, Vector], weighting: str) -> Vector:
        """The clients' vectors weighted by |D_i| ("samples") or alike ("uniform"), with weights that sum to one."""
        weights = {i: float(len(self.data[i][1])) if weighting == "samples" else 1.0 for i in vectors}
        return sum(weights[i] * vector for i, vector in vectors.items()) / sum(weights.values())
