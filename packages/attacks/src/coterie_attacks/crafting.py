"""Hostile updates, made from the honest ones of a cluster and optimised against the rule that averages them.

The search: an attack names directions. Along each one `mean + γ · direction` is tried with γ from 2^-3 to 2^6 and both
signs, and the vector that moves the rule's result farthest from the honest mean is sent by all hostile clients of the
cluster. Attacks with a constraint of their own (min-max, min-sum) take the largest γ that keeps to it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from coterie.parameters import Layout

LENGTHS = tuple(2.0**power for power in range(-3, 7))
"""The γ that are tried."""
HALVINGS = 20
"""Steps of the bisection for the largest γ within a constraint."""


class Scene(NamedTuple):
    """What the hostile clients of one cluster know in a round."""

    own: Tensor
    """(d,) what one of them would send if it were honest."""
    honest: Tensor
    """(n, d), n > 0, the honest updates of the cluster."""
    hostile: int
    """How many of them are in the cluster."""
    rule: Callable[[Tensor], Tensor]
    """The rows `(n + hostile, d)` as one."""
    model: Tensor | None
    """(d,) the model that they were sent, where the task has one."""
    layout: Layout

    @property
    def mean(self) -> Tensor:
        """The honest mean `(d,)`."""
        return self.honest.mean(0)

    def moved(self, vector: Tensor) -> float:
        """How far the rule's result is from the honest mean if all hostile clients send the vector."""
        rows = torch.cat([self.honest, vector.expand(self.hostile, -1)])
        return float((self.rule(rows) - self.mean.double()).norm())

    def best(self, vectors: Iterable[Tensor]) -> Tensor:
        """The vector that moves the result farthest."""
        return max(vectors, key=self.moved)


def along(scene: Scene, *directions: Tensor) -> Tensor:
    """The best of all lengths and signs along the directions."""
    return scene.best(
        scene.mean + sign * length * direction for direction in directions for length in LENGTHS for sign in (1, -1)
    )


def little_is_enough(scene: Scene) -> Tensor:
    """ALIE (Baruch et al. 2019): the honest mean, moved by a multiple of the standard deviation of every number."""
    return along(scene, scene.honest.std(0, unbiased=False))


def inner_product(scene: Scene) -> Tensor:
    """IPM (Xie et al. 2020): a multiple of the honest mean."""
    return along(scene, scene.mean)


def min_max(scene: Scene) -> Tensor:
    """Shejwalkar, Houmansadr 2021: no farther from any honest update than two of them are from each other."""
    farthest = float(torch.cdist(scene.honest, scene.honest).max())
    return _within(scene, lambda vector: float((scene.honest - vector).norm(dim=1).max()) <= farthest)


def min_sum(scene: Scene) -> Tensor:
    """Shejwalkar, Houmansadr 2021: its squared distances to the honest updates sum to no more than an honest one's."""
    largest = float(torch.cdist(scene.honest, scene.honest).square().sum(1).max())
    return _within(scene, lambda vector: float((scene.honest - vector).square().sum()) <= largest)


def mimic(scene: Scene) -> Tensor:
    """Karimireddy et al. 2022: all copy one honest client."""
    return scene.best(scene.honest)


def orthogonal(scene: Scene) -> Tensor:
    """Towards the model whose output rows are rolled by one, orthogonal to the honest mean but for a small cosine."""
    start = torch.zeros_like(scene.mean) if scene.model is None else scene.model
    towards = rolled_outputs(start + scene.mean, scene.layout) - start
    unit = scene.mean / scene.mean.norm().clamp_min(torch.finfo(scene.mean.dtype).tiny)
    across = towards - (towards @ unit) * unit
    return along(scene, _usual(scene) * across / across.norm().clamp_min(torch.finfo(across.dtype).tiny))


def fixed(scene: Scene) -> Tensor:
    """One drawn direction, the same in all rounds, by itself and with the honest mean."""
    drawn = torch.randn(len(scene.mean), generator=torch.Generator().manual_seed(0), dtype=scene.mean.dtype)
    step = _usual(scene) * drawn / drawn.norm()
    return along(scene, step, scene.mean + step)


def own_scaled(scene: Scene) -> Tensor:
    """What its own data gives, as long as moves most."""
    return along(scene, scene.own - scene.mean)


def rolled_outputs(model: Tensor, layout: Layout) -> Tensor:
    """The model `(d,)` with the rows of its last layer rolled by one: it answers each class with the next."""
    rolled = model.clone()
    for entry in layout.entries:
        if entry.name.rpartition(".")[0] == layout.layers[-1]:
            rows = model[entry.start : entry.stop].reshape(entry.shape)
            rolled[entry.start : entry.stop] = rows.roll(1, dims=0).flatten()
    return rolled


def _usual(scene: Scene) -> float:
    """The median length of an honest update."""
    return float(scene.honest.norm(dim=1).median())


def _within(scene: Scene, allowed: Callable[[Tensor], bool]) -> Tensor:
    """The best of the largest steps that are allowed, against the mean, by standard deviations and by signs."""
    return scene.best(_largest(scene.mean, direction, allowed) for direction in _directions(scene))


def _directions(scene: Scene) -> Iterator[Tensor]:
    for direction in (-scene.mean, -scene.honest.std(0, unbiased=False), -scene.mean.sign()):
        yield direction * (_usual(scene) / float(direction.norm().clamp_min(torch.finfo(direction.dtype).tiny)))


def _largest(start: Tensor, direction: Tensor, allowed: Callable[[Tensor], bool]) -> Tensor:
    low, high = 0.0, LENGTHS[-1]
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        low, high = (middle, high) if allowed(start + middle * direction) else (low, middle)
    return start + low * direction
