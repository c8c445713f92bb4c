"""CFL's Figure 3: how often the best split in two is correct, over the number of groups and the noise."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np

from coterie.clustering import alpha_intra_min, bipartition, separation_guaranteed
from coterie.randomness import numpy_generator
from coterie_recipes.base import Findings, Row, Study, recipe
from coterie_recipes.cfl import is_correct

DIMENSION = 100
MEMBERS = 3
"""Clients per group: M = 3K."""
MARKS = ((2, 0.5), (2, 1.0), (2, 3.0), (4, 2.0), (12, 1.0), (12, 1.25), (20, 1.25), (50, 1.0), (50, 3.0))
"""(K, γ) whose probability is a row of the table."""
PAPER = {(12, 1.0): "≈ 1", (12, 1.25): "≈ 1", (20, 1.25): "≈ 1"}
"""Equation 28: P[g(α) > 0] ≈ 1 even for K > 10 and γ > 1; the figure prints no numbers."""

QUICK_K = (2, 3, 4, 6, 8, 12, 16, 20, 30, 40, 50)
QUICK_GAMMA = tuple(i / 4 for i in range(13))
FULL_GAMMA = tuple(i / 20 for i in range(61))


@recipe("cfl-fig3", "CFL Figure 3: P[correct clustering] over K groups and noise γ, d=100, M=3K, beside Theorem 1")
def figure3(study: Study) -> Findings:
    """The map over K and γ, from synthetic gradients that sum to zero over the groups."""
    groups = range(2, 51) if study.full else QUICK_K
    noises, trials = (FULL_GAMMA, 200) if study.full else (QUICK_GAMMA, 40)
    maps = [
        {k: study.cell(f"K={k}-seed{s}", partial(probabilities, k, noises, trials, s)) for k in groups}
        for s in study.seeds
    ]
    rows = []
    for k, noise in MARKS:
        at, where = noises.index(noise), f"K={k}, γ={noise:g}"
        rows.append(Row(where, "P[correct]", [m[k]["correct"][at] for m in maps], PAPER.get((k, noise))))
        rows.append(Row(where, "P[gap > 0]", [m[k]["gap"][at] for m in maps], PAPER.get((k, noise))))
        rows.append(Row(where, "P[correct] with complete linkage", [m[k]["complete"][at] for m in maps]))
    rows.append(Row("Theorem 1's area", "least P[correct]", [least_guaranteed(m, noises) for m in maps], 1.0))
    notes = [
        f"{trials} draws per point; a split is correct when it leaves every group whole; γ is the same for all clients",
        "P[correct] stays high where the gap is negative: a positive gap is sufficient, not necessary (Corollary 1)",
    ]
    return Findings(rows, notes, {"figure3": lambda figure: _draw(figure, maps, noises)})


def probabilities(groups: int, noises: Sequence[float], trials: int, seed: int) -> dict[str, Any]:
    """The shares of draws with a correct split, with a positive gap, and correct by complete linkage, at each noise."""
    truth = np.repeat(np.arange(groups), MEMBERS)
    correct, positive, complete = np.zeros((3, len(noises)))
    for at, noise in enumerate(noises):
        generator = numpy_generator(seed, "figure3", groups, f"{noise:g}")
        for similarity in similarities(groups, noise, trials, generator):
            sides = bipartition(similarity)
            correct[at] += is_correct(sides, truth)
            positive[at] += alpha_intra_min(similarity, truth) > sides.alpha_cross_max
            complete[at] += is_correct(bipartition(similarity, "complete"), truth)
    shares = {"correct": correct, "gap": positive, "complete": complete}
    return {name: (count / trials).tolist() for name, count in shares.items()}


def similarities(groups: int, noise: float, trials: int, generator: np.random.Generator) -> np.ndarray:
    """Cosine matrices `(trials, M, M)` of gradients at a stationary point: true ones plus noise of relative size γ.

    The groups' true gradients are normal and sum to zero, as in eq. 12; each client adds a normal vector scaled
    to γ times the length of its group's gradient.
    """
    true = generator.standard_normal((trials, groups, DIMENSION))
    true -= true.mean(axis=1, keepdims=True)
    own = np.repeat(true, MEMBERS, axis=1)
    error = generator.standard_normal(own.shape)
    scale = np.linalg.norm(own, axis=-1, keepdims=True) / np.linalg.norm(error, axis=-1, keepdims=True)
    seen = own + noise * scale * error
    seen /= np.linalg.norm(seen, axis=-1, keepdims=True)
    cosines: np.ndarray = seen @ seen.transpose(0, 2, 1)
    return cosines


def least_guaranteed(cells: dict[int, dict[str, Any]], noises: Sequence[float]) -> float:
    """The smallest P[correct] where Theorem 1 guarantees a correct split: a value below 1 would refute it."""
    guaranteed = {k: separation_guaranteed(np.array(noises), k) for k in cells}
    return float(
        min(p for k, cell in cells.items() for p, sure in zip(cell["correct"], guaranteed[k], strict=True) if sure)
    )


def _draw(figure: Any, maps: Sequence[dict[int, dict[str, Any]]], noises: Sequence[float]) -> None:
    groups = list(maps[0])
    grid = np.mean([[m[k]["correct"] for k in groups] for m in maps], axis=0).T
    axes = figure.subplots()
    mesh = axes.pcolormesh(groups, noises, grid, cmap="Blues", vmin=0, vmax=1, shading="nearest")
    figure.colorbar(mesh, label="P[correct clustering]")
    fine = np.linspace(0, 1, 2001)
    limits = [fine[separation_guaranteed(fine, k)].max(initial=0.0) for k in groups]
    axes.fill_between(groups, 0, limits, color="tab:green", alpha=0.8, label="guaranteed by Theorem 1")
    axes.axhline(1, color="black", linewidth=0.8, linestyle=":")
    axes.set(xlabel="groups K", ylabel="relative noise γ")
    axes.legend(loc="upper right")
