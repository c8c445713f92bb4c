"""IFCA's guarantees on the linear mixture: Theorem 1's contraction, Corollary 1's rate; and more models than groups."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from coterie import run
from coterie.data import find_scenario
from coterie.randomness import numpy_generator
from coterie_recipes.base import Findings, Row, Study, recipe

Vectors = npt.NDArray[np.float64]


class Sizes(NamedTuple):
    """Two regressions in d dimensions; a share p of the m machines has the smaller one, n' samples per draw."""

    m: int = 100
    n: int = 50
    d: int = 100
    p: float = 0.5
    sigma: float = 0.2

    @property
    def bound(self) -> float:
        """The theorem's error floor without its constant, (σ/p)·√(d/(m·n'))."""
        return self.sigma / self.p * math.sqrt(self.d / (self.m * self.n))


SIZES = {
    "m=100, n'=50, d=100, p=½, σ=0.2": Sizes(),
    "four times the samples": Sizes(n=200),
    "four times the machines": Sizes(m=400),
    "a quarter of the dimensions": Sizes(d=25),
    "half the noise": Sizes(sigma=0.1),
    "a quarter of the machines in the smaller cluster": Sizes(p=0.25),
}
SEPARATION = 1.0
"""Δ, the distance of the two truths."""
ROUNDS = 12
FLOOR_ROUNDS = 4
"""The last rounds, whose mean error is the floor."""


def contraction(sizes: Sizes, seed: int) -> dict[str, Any]:
    """The largest error over the clusters before and after every round, started Δ/4 from the truths.

    This is the theorem's algorithm: fresh samples in every round, one set to choose the cluster and another for the
    gradient of (y − ⟨x, θ⟩)², all machines, gradient averaging over m, step size 1/(4p).
    """
    draw = numpy_generator(seed, "contraction", sizes.m, sizes.n)
    first = draw.standard_normal(sizes.d)
    truths = np.stack([0 * first, SEPARATION * first / np.linalg.norm(first)])
    offsets = draw.standard_normal((2, sizes.d))
    models = truths + SEPARATION / 4 * offsets / np.linalg.norm(offsets, axis=1, keepdims=True)
    groups = (np.arange(sizes.m) >= round(sizes.p * sizes.m)).astype(int)
    errors = [_errors(models, truths)]
    wrong = 0
    for _ in range(ROUNDS):
        x, y = _samples(sizes, truths[groups], draw)
        losses = np.stack([np.square(y - x @ theta).mean(axis=1) for theta in models])
        chosen = losses.argmin(axis=0)
        wrong += int((chosen != groups).sum())
        x, y = _samples(sizes, truths[groups], draw)
        residuals = np.einsum("mnd,md->mn", x, models[chosen]) - y
        gradients = 2 / sizes.n * np.einsum("mn,mnd->md", residuals, x)
        for j in (0, 1):
            models[j] -= 1 / (4 * sizes.p) / sizes.m * gradients[chosen == j].sum(axis=0)
        errors.append(_errors(models, truths))
    return {"errors": errors, "wrong": wrong}


def _samples(sizes: Sizes, truths: Vectors, draw: np.random.Generator) -> tuple[Vectors, Vectors]:
    """Fresh inputs `(m, n, d)` and answers `(m, n)` of machines with these truths `(m, d)`."""
    x = draw.standard_normal((sizes.m, sizes.n, sizes.d))
    return x, np.einsum("mnd,md->mn", x, truths) + sizes.sigma * draw.standard_normal((sizes.m, sizes.n))


def _errors(models: Vectors, truths: Vectors) -> list[float]:
    return [float(error) for error in np.linalg.norm(models - truths, axis=1)]


def largest(errors: Sequence[Sequence[float]]) -> list[float]:
    """The largest error over the clusters in every round."""
    return [max(pair) for pair in errors]


def floor_of(errors: Sequence[Sequence[float]]) -> float:
    """The mean of the largest error over the last rounds."""
    return float(np.mean(largest(errors)[-FLOOR_ROUNDS:]))


@recipe(
    "ifca-theorem1", "IFCA Theorem 1 and Corollary 1: the error halves in a round, down to a floor of the stated rate"
)
def theorem1(study: Study) -> Findings:
    """The linear mixture with fresh samples in every round; sizes changed one at a time."""
    cells = {
        name: [study.cell(f"{name}-seed{s}", partial(contraction, sizes, s)) for s in study.seeds]
        for name, sizes in SIZES.items()
    }
    rows = []
    for name, found in cells.items():
        bound = SIZES[name].bound
        floors = [floor_of(cell["errors"]) for cell in found]
        # The least constant c₂ with which every round keeps ‖θ⁺ − θ*‖ ≤ ½‖θ − θ*‖ + c₂·bound.
        constants = [
            max(
                (after - before / 2) / bound
                for j in (0, 1)
                for (before, after) in zip(_of(cell, j), _of(cell, j)[1:], strict=False)
            )
            for cell in found
        ]
        first = [largest(cell["errors"])[1] / largest(cell["errors"])[0] for cell in found]
        rows.append(Row(name, "error after the first round / before", first, "≤ ½ + floor"))
        rows.append(Row(name, "least constant of the floor that holds in every round", constants, "universal"))
        rows.append(Row(name, "floor / (σ/p)√(d/mn')", [floor / bound for floor in floors], "universal"))
        needed = math.log2(SEPARATION / 4 / (2 * float(np.mean(floors))))
        reached = [
            float(next(t for t, error in enumerate(largest(cell["errors"])) if error <= 2 * np.mean(floors)))
            for cell in found
        ]
        paper = f"{math.ceil(needed)} = ⌈log₂(Δ/4ε)⌉"
        rows.append(Row(name, "rounds until the error is twice the floor", reached, paper))
        rows.append(Row(name, "wrong choices of a cluster, all rounds", [float(cell["wrong"]) for cell in found], 0))
    notes = [
        f"started Δ/4 from the truths, Δ = {SEPARATION:g}; step size 1/(4p), which halves the error of the smaller "
        "cluster in expectation; the theorem's constants are not known, so that what compares is their constancy",
    ]
    return Findings(rows, notes)


def _of(cell: dict[str, Any], cluster: int) -> list[float]:
    return [pair[cluster] for pair in cell["errors"]]


MODELS = (4, 6, 8)
GROUPS = 4


@recipe("ifca-more-models", "IFCA with more models than groups (section 6.3): how many are left empty")
def more_models(study: Study) -> Findings:
    """Rotated digits, four groups, random starts."""
    clients, rounds = (80, 60) if study.full else (40, 30)
    found = study.cells(
        {f"k={k}-seed{s}": partial(_with_models, k, clients, rounds, s) for k in MODELS for s in study.seeds}
    )
    rows = []
    for k in MODELS:
        cells = [found[f"k={k}-seed{s}"] for s in study.seeds]
        rows.append(Row(f"k={k}", "models in use at the end", [c["used"] for c in cells], "3 for k > 3 (FEMNIST)"))
        rows.append(Row(f"k={k}", "groups that share a model with another", [c["shared"] for c in cells]))
        rows.append(Row(f"k={k}", "accuracy %", [c["accuracy"] for c in cells]))
    notes = [f"digits turned by quarter turns, {clients} clients in {GROUPS} groups, {rounds} rounds, random starts"]
    return Findings(rows, notes)


def _with_models(k: int, clients: int, rounds: int, seed: int) -> dict[str, Any]:
    federation = find_scenario("digits-rotated").build(clients=clients, samples=100, groups=GROUPS, seed=seed)
    result = run(
        f"ifca:k={k},init=random", federation, seed=seed, rounds=rounds, lr=0.1, epochs=3, batch_size=32, workers=1,
        evaluate_every=rounds, progress=False,
    )  # fmt: skip
    groups = {client.id: client.group for client in federation}
    held = [{groups[client] for client in members} for members in result.clusters if members]
    mixed = {group for some in held if len(some) > 1 for group in some}
    accuracy = result.summary.accuracy.mean
    return {"used": len(held), "shared": len(mixed), "accuracy": math.nan if accuracy is None else 100 * accuracy}
