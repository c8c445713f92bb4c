"""What differential privacy costs: accuracy against ε for FedAvg and IFCA on MNIST, as a table and a figure."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

from coterie import run
from coterie.privacy import noise_for
from coterie_recipes.base import Findings, Row, Study, recipe

EPSILONS = (32.0, 16.0, 8.0, 4.0, 2.0)
DELTA = 1e-4
CLIP, SAMPLES = 0.5, 60


class Subject(NamedTuple):
    """A method, the federation it runs on, and how many things of a client a round releases: an update, a choice."""

    name: str
    method: str
    scenario: str
    releases: int
    groups: int | None = None
    participation: float = 0.3
    secure: bool = False
    """Do the clients add the noise themselves, in secure sums?"""
    clients: int | None = None
    """How many clients there are, where that is not the scale's."""


SUBJECTS = (
    Subject("fedavg", "fedavg:weighting=uniform", "mnist-iid", 1),
    Subject("ifca:k=2", "ifca:k=2,weighting=uniform", "mnist-permuted", 2, 2),
)
CHOOSING = "ifca:k=2,init=random,weighting=uniform"
FEW = 40
"""Clients of the secure sums, whose work grows with the square of that."""
WITH_ALL = (
    Subject("fedavg, all take part", "fedavg:weighting=uniform", "mnist-iid", 1, None, 1.0, False, FEW),
    Subject("fedavg, secure sums", "fedavg:weighting=uniform", "mnist-iid", 1, None, 1.0, True, FEW),
    Subject("ifca:k=2, all take part", CHOOSING, "mnist-permuted", 2, 2, 1.0, False, FEW),
    Subject("ifca:k=2, secure sums", f"{CHOOSING},hide_choice=true", "mnist-permuted", 2, 2, 1.0, True, FEW),
)
"""A trusted server's noise beside the clients' own, at quick scale. All take part, as hidden choices need."""


def private_run(subject: Subject, target: float | None, clients: int, rounds: int, seed: int) -> dict[str, Any]:
    """One run within ε = `target`, or without noise: its ε, accuracy and adjusted Rand index."""
    noise = 0.0
    if target is not None:
        noise = math.sqrt(subject.releases) * noise_for(target, subject.participation, rounds, DELTA)
    options: dict[str, Any] = {} if target is None else {"dp_noise": noise, "dp_clip": CLIP, "dp_delta": DELTA}
    summary = run(
        subject.method, scenario=subject.scenario, clients=clients, samples=SAMPLES, groups=subject.groups,
        model="logistic", rounds=rounds, participation=subject.participation, seed=seed, workers=1,
        evaluate_every=rounds, secure_sums=subject.secure, **options,
    ).summary  # fmt: skip
    assert summary.accuracy is not None
    return {"noise": noise, "epsilon": summary.epsilon, "accuracy": summary.accuracy.mean, "ari": summary.ari}


@recipe("private-accuracy", "accuracy against the ε of user-level differential privacy, FedAvg and IFCA on MNIST")
def private_accuracy(study: Study) -> Findings:
    """1,000 clients and 40 rounds at full scale; 100 clients and 10 rounds at quick scale, where noise weighs more."""
    clients, rounds = (1000, 40) if study.scale == "full" else (100, 10)
    subjects = SUBJECTS if study.scale == "full" else SUBJECTS + WITH_ALL
    targets = (None, *EPSILONS)
    jobs = {
        f"{subject.name}-{target or 'no-noise'}-seed{seed}": partial(
            private_run, subject, target, subject.clients or clients, rounds, seed
        )
        for seed in study.seeds
        for subject in subjects
        for target in targets
    }
    cells = study.cells(jobs)
    rows = []
    curves: dict[str, list[tuple[float | None, float]]] = {}
    for subject in subjects:
        for target in targets:
            own = [cells[f"{subject.name}-{target or 'no-noise'}-seed{seed}"] for seed in study.seeds]
            setting = f"{subject.name}, no noise" if target is None else f"{subject.name}, ε = {target:g}"
            rows.append(Row(setting, "accuracy %", [100 * cell["accuracy"] for cell in own]))
            mean = sum(cell["accuracy"] for cell in own) / len(own)
            if subject in SUBJECTS:
                curves.setdefault(subject.name, []).append((target, mean))
    notes = [
        f"{clients} clients of {SAMPLES} samples, logistic regression, {rounds} rounds, participation "
        f"{SUBJECTS[0].participation}, updates cut to {CLIP}, δ = {DELTA:g}",
        f"where all take part, or sums are secure: {FEW} clients, participation 1",
        "noise is drawn from the system, so that runs do not repeat bit for bit",
    ]
    return Findings(rows, notes, {"private-accuracy": partial(draw_curves, curves)})


def draw_curves(curves: Mapping[str, Sequence[tuple[float | None, float]]], figure: Any) -> None:
    """Draw accuracy against ε for each method; a dashed line is the run without noise (ε None)."""
    axes = figure.add_subplot()
    for number, (name, points) in enumerate(curves.items()):
        noisy = [(epsilon, 100 * accuracy) for epsilon, accuracy in points if epsilon is not None]
        axes.plot(*zip(*noisy, strict=True), marker="o", color=f"C{number}", label=name)
        for accuracy in [100 * accuracy for epsilon, accuracy in points if epsilon is None]:
            axes.axhline(accuracy, linestyle="--", linewidth=0.8, color=f"C{number}")
    axes.set_xscale("log", base=2)
    axes.set_xticks(EPSILONS, [f"{epsilon:g}" for epsilon in EPSILONS])
    axes.set_xlabel("ε at δ = 1e-4 (smaller is more private)")
    axes.set_ylabel("mean test accuracy in %")
    axes.legend()
