"""IFCA's Theorem 2 on logistic regressions with a ridge: strongly convex and smooth, with constants that are known."""

from __future__ import annotations

import math
from functools import partial
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from scipy.optimize import brentq
from scipy.special import expit

from coterie.randomness import numpy_generator
from coterie_recipes.base import Findings, Row, Study, recipe

Vectors = npt.NDArray[np.float64]


class Sizes(NamedTuple):
    """Two logistic regressions in d dimensions; a share p of the m machines has the smaller one, n' samples each."""

    m: int = 100
    n: int = 100
    d: int = 20
    p: float = 0.5
    ridge: float = 0.1

    @property
    def smoothness(self) -> float:
        """L of E[log-loss] + ridge/2 ‖θ‖² for x ~ N(0, I); the strong convexity λ is the ridge at least."""
        return 0.25 + self.ridge

    @property
    def contraction(self) -> float:
        """The theorem's factor of a round, 1 − pλ/8L."""
        return 1 - self.p * self.ridge / (8 * self.smoothness)


SIZES = {
    "m=100, n'=100, d=20, p=½, λ=0.1": Sizes(),
    "four times the samples": Sizes(n=400),
    "four times the machines": Sizes(m=400),
    "a quarter of the machines in the smaller cluster": Sizes(p=0.25),
    "a quarter of the ridge": Sizes(ridge=0.025),
}
SLOPE = 3.0
"""Length of the logistic model that labels are drawn from."""
ROUNDS, FLOOR_ROUNDS = 80, 20
ABOVE = 4.0
"""A round counts for the contraction while the error before it is this many times the floor."""


def minimiser(ridge: float) -> float:
    """The length of the population's minimiser, which lies in the direction that the labels are drawn by."""
    points, weights = np.polynomial.hermite_e.hermegauss(80)

    def slope(length: float) -> float:
        return float((weights * (expit(length * points) - expit(SLOPE * points)) * points).sum() / weights.sum())

    return float(brentq(lambda length: slope(length) + ridge * length, 0.0, SLOPE))


def descent(sizes: Sizes, seed: int) -> dict[str, Any]:
    """The error of each cluster before and after every round, started Δ/4 from the truths, step size 1/L.

    Fresh samples in every round, one set to choose the cluster and another for the gradient, as in the theorem.
    """
    draw = numpy_generator(seed, "strongly convex", sizes.m, sizes.n)
    directions = np.linalg.qr(draw.standard_normal((sizes.d, 2)))[0].T
    truths = minimiser(sizes.ridge) * directions
    offsets = draw.standard_normal((2, sizes.d))
    distance = float(np.linalg.norm(truths[0] - truths[1]))
    models = truths + distance / 4 * offsets / np.linalg.norm(offsets, axis=1, keepdims=True)
    groups = (np.arange(sizes.m) >= round(sizes.p * sizes.m)).astype(int)
    errors, wrong = [np.linalg.norm(models - truths, axis=1).tolist()], 0
    for _ in range(ROUNDS):
        x, y = _samples(sizes, directions[groups], draw)
        chosen = np.stack([_losses(x, y, theta, sizes.ridge) for theta in models]).argmin(axis=0)
        wrong += int((chosen != groups).sum())
        x, y = _samples(sizes, directions[groups], draw)
        residuals = expit(np.einsum("mnd,md->mn", x, models[chosen])) - y
        gradients = np.einsum("mn,mnd->md", residuals, x) / sizes.n + sizes.ridge * models[chosen]
        for j in (0, 1):
            models[j] -= gradients[chosen == j].sum(axis=0) / (sizes.smoothness * sizes.m)
        errors.append(np.linalg.norm(models - truths, axis=1).tolist())
    return {"errors": errors, "wrong": wrong}


def _samples(sizes: Sizes, directions: Vectors, draw: np.random.Generator) -> tuple[Vectors, Vectors]:
    """Fresh inputs `(m, n, d)` and labels `(m, n)`, 0 or 1."""
    x = draw.standard_normal((sizes.m, sizes.n, sizes.d))
    chance = expit(SLOPE * np.einsum("mnd,md->mn", x, directions))
    return x, (draw.random((sizes.m, sizes.n)) < chance).astype(float)


def _losses(x: Vectors, y: Vectors, theta: Vectors, ridge: float) -> Vectors:
    """Each machine's mean loss `(m,)`."""
    logits = x @ theta
    return np.asarray((np.logaddexp(0, logits) - y * logits).mean(axis=1) + ridge / 2 * float(theta @ theta))


def rates(cell: dict[str, Any]) -> tuple[float, float]:
    """The largest ratio of the error after a round to that before, above the floor, and the floor."""
    errors = np.array(cell["errors"])
    floors = errors[-FLOOR_ROUNDS:].mean(axis=0)
    ratios = [
        after[j] / before[j] for before, after in pairwise(errors) for j in (0, 1) if before[j] > ABOVE * floors[j]
    ]
    return float(max(ratios)), float(floors.max())


@recipe("ifca-theorem2", "IFCA Theorem 2: strongly convex losses, the contraction of a round and the error's floor")
def theorem2(study: Study) -> Findings:
    """Logistic regressions with a ridge; sizes changed one at a time."""
    rows = []
    for name, sizes in SIZES.items():
        cells = [study.cell(f"{name}-seed{s}", partial(descent, sizes, s)) for s in study.seeds]
        found = [rates(cell) for cell in cells]
        bound = f"≤ {sizes.contraction:.4g} = 1 − pλ/8L"
        rows.append(Row(name, "largest error after a round / before, above the floor", [r for r, _ in found], bound))
        floors = [floor * math.sqrt(sizes.m * sizes.n) for _, floor in found]
        rows.append(Row(name, "floor · √(mn')", floors, "constant in m and n'"))
        rows.append(Row(name, "wrong choices of a cluster, all rounds", [float(c["wrong"]) for c in cells]))
    notes = [
        f"started Δ/4 from the population's minimisers, which are known by quadrature; step size 1/L; {ROUNDS} rounds "
        f"with fresh samples; a round counts for the contraction while the error is above {ABOVE:g} times its floor",
    ]
    return Findings(rows, notes)
