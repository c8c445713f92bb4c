"""Where the norms of CFL's criteria (30) and (31) tell congruent from incongruent clients: a map beside Figure 8."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from coterie.runs import assemble
from coterie_recipes.base import Findings, Row, Study, recipe
from coterie_recipes.cfl_congruence import CASES
from coterie_recipes.runs import study_config

NETWORKS = ("logistic", "mlp", "cnn-small")
SOME_STEPS = (0.01, 0.03, 0.1, 0.3)
FULL_STEPS = (0.003, *SOME_STEPS, 1.0)
QUICK_STEPS = {"logistic": SOME_STEPS, "mlp": SOME_STEPS, "cnn-small": (0.01, 0.1)}
QUICK_HORIZONS = {"logistic": (30, 100, 300), "mlp": (30, 100, 300), "cnn-small": (30, 100)}
FULL_HORIZONS = (30, 100, 300, 1000)
TENTH = 0.1
"""The paper's rule of thumb: ε1 is a tenth of the largest mean norm so far."""
MULTIPLES = (1.0, 10.0)
"""The paper's range of ε2 / ε1."""
Course = dict[str, list[float]]


class Verdict(NamedTuple):
    """What the thresholds do by some round: the largest ε2 / ε1 with which they fire, in both cases; 0: with none."""

    congruent: float
    incongruent: float

    @property
    def words(self) -> str:
        """Whether some ε2 in the paper's range splits incongruent clients and leaves congruent ones together."""
        low, high = MULTIPLES
        if self.incongruent < low:
            return "late"
        return "separate" if min(self.incongruent, high) > max(self.congruent, low) else "both fire"


@recipe("cfl-norm-map", "CFL Figure 8 as a map: where ε1 and ε2 separate congruent from incongruent clients")
def norm_map(study: Study) -> Findings:
    """FedAvg with two clients, over step size, network and rounds; the rule is applied to the recorded norms."""
    samples = 26000 if study.full else 500
    steps = dict.fromkeys(NETWORKS, FULL_STEPS) if study.full else QUICK_STEPS
    horizons = dict.fromkeys(NETWORKS, FULL_HORIZONS) if study.full else QUICK_HORIZONS
    courses = {
        (network, lr): [
            study.cell(f"{network}-lr={lr}-seed{s}", partial(both_cases, study, network, lr, rounds[-1], samples, s))
            for s in study.seeds
        ]
        for network, rounds in horizons.items()
        for lr in steps[network]
    }
    rows = []
    for (network, lr), cells in courses.items():
        where = f"{network}, lr={lr:g}"
        for case in CASES:
            mean, largest = ([remaining(cell[case][which]) for cell in cells] for which in ("mean", "max"))
            rows.append(Row(f"{where}, {case}", "lowest mean norm / highest before", mean, "tends to 0"))
            said = "converges to 0" if case == "congruent" else "stagnates, even increases"
            rows.append(Row(f"{where}, {case}", "lowest largest norm / highest before", largest, said))
        for rounds in horizons[network]:
            verdicts = [judged(cell, rounds) for cell in cells]
            separated = [float(verdict.words == "separate") for verdict in verdicts]
            rows.append(Row(f"{where}, {rounds} rounds", "some ε2 in ε1 … 10 ε1 separates", separated, 1))
            for case in CASES:
                values = [getattr(verdict, case) for verdict in verdicts]
                rows.append(Row(f"{where}, {rounds} rounds", f"largest ε2 / ε1 that fires, {case}", values))
    notes = [
        "two clients, three local epochs in batches of 100 as in the paper; ε1 is a tenth of the largest mean norm so "
        "far; the rule fires in a round with mean norm < ε1 and largest norm > ε2",
        f"{samples} samples per client; the paper has half of MNIST each, one unnamed network, one unnamed step size, "
        "1000 rounds",
    ]
    return Findings(rows, notes, {"norm-map": lambda figure: _draw(figure, courses, horizons)})


def both_cases(study: Study, network: str, lr: float, rounds: int, samples: int, seed: int) -> dict[str, Any]:
    """The norms of the mean update and of the largest one, round by round, in both federations."""
    return {case: norms(study, case, network, lr, rounds, samples, seed) for case in CASES}


def norms(study: Study, case: str, network: str, lr: float, rounds: int, samples: int, seed: int) -> Course:
    """One run of FedAvg with two clients; `turn` is the cosine of a mean update with the one before."""
    config = study_config(
        study, seed, method="fedavg", scenario=CASES[case], clients=2, groups=2, model=network, lr=lr, epochs=3,
        batch_size=100, rounds=rounds, samples=samples,
    )  # fmt: skip
    prepared, _ = assemble(config)
    found: Course = {"mean": [], "max": [], "turn": []}
    try:
        state, last = prepared.method.start(prepared.server), None
        for t in range(1, rounds + 1):
            before = state.model
            state, info = prepared.method.round(state, t, prepared.server)
            step = state.model - before
            found["mean"].append(float(info.clusters[0].mean_norm or 0.0))
            found["max"].append(float(info.clusters[0].max_norm or 0.0))
            found["turn"].append(0.0 if last is None else float(step @ last / (step.norm() * last.norm() + 1e-12)))
            last = step
    finally:
        prepared.engine.close()
    return found


def remaining(course: list[float]) -> float:
    """The lowest norm over the highest one before it."""
    seen = np.array(course)
    return float((seen / np.maximum.accumulate(seen)).min())


def judged(cell: dict[str, Course], rounds: int) -> Verdict:
    """What the thresholds do within some rounds."""
    return Verdict(largest_multiple(cell["congruent"], rounds), largest_multiple(cell["incongruent"], rounds))


def largest_multiple(course: Course, rounds: int, fraction: float = TENTH) -> float:
    """The largest ε2 / ε1 with which the rule fires in some round; 0 where the mean norm never falls below ε1."""
    mean, largest = np.array(course["mean"][:rounds]), np.array(course["max"][:rounds])
    eps1 = fraction * np.maximum.accumulate(mean)
    at_rest = mean < eps1
    return float((largest / eps1)[at_rest].max()) if at_rest.any() else 0.0


COLOURS = {"separate": "#4c9a5b", "both fire": "#c95d4a", "late": "#d9d9d9"}


def _draw(figure: Any, courses: dict[Any, list[dict[str, Course]]], horizons: Mapping[str, tuple[int, ...]]) -> None:
    """One panel per network: step size across, rounds upwards, coloured by what the thresholds do."""
    panels = figure.subplots(1, len(NETWORKS), sharey=True)
    most = max(horizons.values(), key=len)
    for axes, network in zip(panels, NETWORKS, strict=True):
        steps = [lr for name, lr in courses if name == network]
        for x, lr in enumerate(steps):
            for y, rounds in enumerate(horizons[network]):
                verdict = judged(courses[network, lr][0], rounds)
                axes.add_patch(_square(x, y, COLOURS[verdict.words]))
                text = f"{verdict.words}\n{verdict.congruent:.1f} | {verdict.incongruent:.1f}"
                axes.text(x, y, text, ha="center", va="center", fontsize=6)
        axes.set(title=network, xlabel="step size", xlim=(-0.5, len(steps) - 0.5), ylim=(-0.5, len(most) - 0.5))
        axes.set_xticks(range(len(steps)), [f"{lr:g}" for lr in steps])
        axes.set_yticks(range(len(most)), [str(rounds) for rounds in most])
    panels[0].set_ylabel("rounds")
    figure.suptitle("largest ε2/ε1 that fires: congruent | incongruent", fontsize=9)


def _square(x: float, y: float, colour: str) -> Any:
    from matplotlib.patches import Rectangle

    return Rectangle((x - 0.48, y - 0.46), 0.96, 0.92, facecolor=colour, edgecolor="white")
