"""CFL's Figure 8: norms of the updates over the rounds where one model fits two clients, and where none does."""

from __future__ import annotations

from functools import partial
from typing import Any

from coterie_recipes.base import Findings, Row, Study, recipe
from coterie_recipes.runs import ProgressLogger, kept_run, study_config

CASES = {"congruent": "mnist-halves", "incongruent": "mnist-swapped"}
"""Digits 0-4 and 5-9, which one model fits; or all digits, with another two labels swapped in each client."""
PAPER = {
    ("congruent", "mean"): "tends to 0",
    ("congruent", "max"): "converges to 0",
    ("incongruent", "mean"): "tends to 0",
    ("incongruent", "max"): "stagnates, even increases",
}
FULL = {"samples": 26000, "rounds": 1000}
QUICK = {"samples": 3000, "rounds": 150}
WINDOW = 5
"""Rounds over which a norm is averaged: that of a single round is noisy."""


@recipe("cfl-congruence", "CFL Figure 8: norms of the mean update and of the largest one, congruent and incongruent")
def congruence(study: Study) -> Findings:
    """FedAvg with two clients; norms are of the updates that the server receives."""
    size = FULL if study.full else QUICK
    courses = {
        case: [study.cell(f"{case}-seed{s}", partial(norms, study, case, s, size)) for s in study.seeds]
        for case in CASES
    }
    rows = []
    for case, cells in courses.items():
        for which in ("mean", "max"):
            name = f"{'mean' if which == 'mean' else 'largest'} update: last norm / highest"
            rows.append(Row(case, name, [remaining(cell[which]) for cell in cells], PAPER[case, which]))
        rows.append(Row(case, "largest / mean update at the end", [imbalance(cell) for cell in cells]))
    notes = [
        "two clients, three local epochs; norms are of weight-updates, as the server receives them",
        "last and highest norms are means over 5 rounds",
    ]
    if not study.full:
        notes.append("an MLP, 3000 samples per client and 150 rounds instead of half the data and 1000 rounds")
    return Findings(rows, notes, {"figure8": lambda figure: _draw(figure, courses)})


def norms(study: Study, case: str, seed: int, size: dict[str, int]) -> dict[str, Any]:
    """The norm of the mean update and the largest norm of a client's update, round by round."""
    model = "cnn-small" if study.full else "mlp"
    config = study_config(
        study, seed, method="fedavg", scenario=CASES[case], clients=2, groups=2, model=model, lr=0.1, epochs=3,
        batch_size=100 if study.full else 32, evaluate_every=size["rounds"], **size,
    )  # fmt: skip
    result = kept_run(study, f"{case}-seed{seed}", config, ProgressLogger(study))
    clusters = [record.clusters[0] for record in result.history]
    return {"mean": [c.mean_norm for c in clusters], "max": [c.max_norm for c in clusters]}


def remaining(course: list[float]) -> float:
    """The last norm over the highest one, both averaged over a window of rounds."""
    smooth = [sum(course[i : i + WINDOW]) / WINDOW for i in range(len(course) - WINDOW + 1)]
    return smooth[-1] / max(smooth)


def imbalance(cell: dict[str, Any]) -> float:
    """The largest update's norm over the mean update's, both summed over the last rounds."""
    return float(sum(cell["max"][-WINDOW:]) / sum(cell["mean"][-WINDOW:]))


def _draw(figure: Any, courses: dict[str, list[dict[str, Any]]]) -> None:
    for axes, (case, cells) in zip(figure.subplots(1, 2, sharey=True), courses.items(), strict=True):
        for number, which in enumerate(("mean", "max")):
            for i, cell in enumerate(cells):
                label = ("mean update" if which == "mean" else "largest update") if i == 0 else None
                axes.semilogy(range(1, len(cell[which]) + 1), cell[which], color=f"C{number}", label=label, alpha=0.8)
        axes.set(xlabel="communication rounds", title=case)
        axes.legend()
    figure.axes[0].set_ylabel("norm")
