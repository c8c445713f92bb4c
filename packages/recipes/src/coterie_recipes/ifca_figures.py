"""IFCA's Figure 2: how often mixtures of linear regressions are recovered."""

from __future__ import annotations

import time
from collections.abc import Sequence
from functools import partial
from typing import Any

from coterie.randomness import derive
from coterie_recipes.base import Findings, Row, Study, recipe
from coterie_recipes.mixtures import MixtureSizes, allowed_distance, run_trial

STEPS = {2: (0.01, 0.1, 1.0), 4: (0.5, 1.0, 2.0)}
"""Step sizes that a trial may use, by the number of clusters."""
SEPARATIONS = (0.1, 0.25, 0.5, 0.75, 1.0)
SIGMAS = (0.0, 0.1, 0.2, 0.4)
SAMPLES = (50, 100, 200)
TRIALS = 40
"""Trials per point, as in the paper."""
RESTARTS = 4
"""Starts per trial."""


def smaller(sizes: MixtureSizes) -> MixtureSizes:
    """m/2, n·2/5 and d/5: a fifth of the unknowns, with as much data for each."""
    return sizes._replace(m=sizes.m // 2, n=2 * sizes.n // 5, d=sizes.d // 5)


@recipe("ifca-fig2a", "IFCA Figure 2(a): success over separation R and noise σ, k=2, m=100, n=100, d=1000")
def fig2a(study: Study) -> Findings:
    """Two regressions."""
    return _over_separation(study, "fig2a", MixtureSizes(2, 100, 100, 1000, 0.0, 0.0))


@recipe("ifca-fig2b", "IFCA Figure 2(b): success over separation R and noise σ, k=4, m=400, n=100, d=1000")
def fig2b(study: Study) -> Findings:
    """Four regressions."""
    return _over_separation(study, "fig2b", MixtureSizes(4, 400, 100, 1000, 0.0, 0.0))


@recipe("ifca-fig2c", "IFCA Figure 2(c): success over machines m and samples n, k=2, R=0.1, d=1000")
def fig2c(study: Study) -> Findings:
    """Two regressions, close together."""
    return _over_machines(study, "fig2c", MixtureSizes(2, 0, 0, 1000, 0.1, 0.1), (50, 70, 100, 150, 200, 300, 400))


@recipe("ifca-fig2d", "IFCA Figure 2(d): success over machines m and samples n, k=4, R=0.5, d=1000")
def fig2d(study: Study) -> Findings:
    """Four regressions."""
    return _over_machines(study, "fig2d", MixtureSizes(4, 0, 0, 1000, 0.5, 0.1), (100, 200, 300, 400, 800))


def _over_separation(study: Study, name: str, base: MixtureSizes) -> Findings:
    sigmas = SIGMAS if study.full else SIGMAS[1:3]
    lines = {f"σ={sigma:g}": [(R, base._replace(separation=R, sigma=sigma)) for R in SEPARATIONS] for sigma in sigmas}
    return _figure(study, name, lines, "separation R")


def _over_machines(study: Study, name: str, base: MixtureSizes, machines: Sequence[int]) -> Findings:
    counts = machines if study.full else machines[: 2 + len(machines) // 2]
    lines = {f"n={n}": [(float(m), base._replace(m=m, n=n)) for m in counts] for n in SAMPLES}
    return _figure(study, name, lines, "machines m")


def _figure(study: Study, name: str, lines: dict[str, list[tuple[float, MixtureSizes]]], axis: str) -> Findings:
    """Success at every point of every line, by the paper's distance and by the matched one, and its drawing."""
    found = study.cells(
        {
            cell_key(study, sizes, seed): partial(success_rate, used_sizes(study, sizes), TRIALS, seed)
            for points in lines.values()
            for _, sizes in points
            for seed in study.seeds
        }
    )
    rows, curves = [], {}
    for label, points in lines.items():
        curves[label] = [(x, [found[cell_key(study, sizes, seed)] for seed in study.seeds]) for x, sizes in points]
        for x, cells in curves[label]:
            where = f"{label}, {axis.split()[-1]}={x:g}"
            rows.append(Row(where, "success, paper's distance", [cell["paper"] for cell in cells]))
            rows.append(Row(where, "success, matched distance", [cell["matched"] for cell in cells]))
    k = next(iter(lines.values()))[0][1].k
    notes = [
        f"{TRIALS} trials per point; a trial succeeds if any of {RESTARTS} restarts with any step size of "
        f"{STEPS[k]} ends within 0.6σ (0.001 where σ=0); the paper plots its numbers without printing them",
        "truths have coordinates 0 or R; the paper's distance allows two models at one truth, the matched one does not",
    ]
    if not study.full:
        notes.append("m/2 machines, n·2/5 samples and d/5 dimensions instead of those in the labels")
    return Findings(rows, notes, {name: lambda figure: draw(figure, curves, axis)})


def used_sizes(study: Study, sizes: MixtureSizes) -> MixtureSizes:
    """The sizes at the study's scale."""
    return sizes if study.full else smaller(sizes)


def cell_key(study: Study, sizes: MixtureSizes, seed: int) -> str:
    """`k=2-m=100-…-seed0`, with the sizes that are used."""
    used = used_sizes(study, sizes)._asdict()
    return "-".join(f"{field}={value:g}" for field, value in used.items()) + f"-seed{seed}"


def success_rate(sizes: MixtureSizes, trials: int, seed: int) -> dict[str, Any]:
    """The share of trials that succeed, by both distances, the number of runs, and seconds per run on one core."""
    began = time.process_time()
    outcomes = [run_trial(sizes, STEPS[sizes.k], RESTARTS, derive(seed, "trial", t)) for t in range(trials)]
    limit = allowed_distance(sizes.sigma)
    runs = sum(outcome.runs for outcome in outcomes)
    return {
        "paper": sum(outcome.paper <= limit for outcome in outcomes) / trials,
        "matched": sum(outcome.matched <= limit for outcome in outcomes) / trials,
        "runs": runs,
        "seconds_per_run": (time.process_time() - began) / runs,
    }


def draw(figure: Any, curves: dict[str, list[tuple[float, list[dict[str, Any]]]]], axis: str) -> None:
    """One line per label: solid by the paper's distance, dashed by the matched one."""
    axes = figure.subplots()
    for number, (label, points) in enumerate(curves.items()):
        xs = [x for x, _ in points]
        for measure, style in (("paper", "o-"), ("matched", "s--")):
            ys = [sum(cell[measure] for cell in cells) / len(cells) for _, cells in points]
            axes.plot(xs, ys, style, color=f"C{number}", label=label if measure == "paper" else None, alpha=0.8)
    axes.set(xlabel=axis, ylabel="success probability", ylim=(-0.03, 1.03))
    axes.legend(title="solid: paper's distance\ndashed: matched")
