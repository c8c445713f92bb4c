"""Newcomers without labels: how many are placed with their group, how many are not placed, and who raises the alarm."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

from coterie import run
from coterie.data import find_scenario
from coterie.methods import Groups
from coterie.randomness import numpy_generator
from coterie_recipes.base import Findings, Row, Study, recipe

CLIENTS = 40
"""Half of them are the run's, drawn at random, the others newcomers."""
SCENARIOS = (
    "digits-rotated", "flt-s1-digits", "flt-s2-digits", "digits-4", "digits:rotated(4)+dirichlet(0.3)",
    "digits-permuted", "digits-swapped", "digits:swapped(4)+dirichlet(0.3)",
)  # fmt: skip
"""Groups differ in inputs in the first five, in labels only in the others."""
SAMPLES = {"digits-rotated": 60, "digits-permuted": 60, "digits-swapped": 60, "digits-4": 100}
"""Samples per client where the scenario's own number would leave none for half of the clients."""
ANSWERS = ("right", "wrong", "not placed", "alarm")


@recipe("newcomers-unlabelled", "Newcomers that have inputs only: placed, not placed, or an alarm")
def newcomers_unlabelled(study: Study) -> Findings:
    """Twenty founders in their groups, twenty newcomers, and the same with mirrored images, which nobody else has."""
    jobs = {
        f"{scenario} seed {seed}": partial(placed, scenario, seed, study.data_dir)
        for scenario in SCENARIOS
        for seed in study.seeds
    }
    cells = study.cells(jobs)
    rows = []
    for scenario in SCENARIOS:
        found = [cells[f"{scenario} seed {seed}"] for seed in study.seeds]
        rows += [Row(scenario, answer, [cell["newcomers"][answer] for cell in found]) for answer in ANSWERS]
        rows.append(Row(f"{scenario}, mirrored", "alarm", [cell["strangers"]["alarm"] for cell in found]))
        rows.append(Row(f"{scenario}, mirrored", "placed", [cell["strangers"]["wrong"] for cell in found]))
    notes = [
        "The founders' clusters are the hidden groups, so that only the placing is measured; shares of 20 newcomers."
    ]
    return Findings(rows, notes)


def placed(scenario: str, seed: int, data_dir: str | None) -> dict[str, Any]:
    """The share of the newcomers with each answer, as they are and mirrored."""
    everybody = find_scenario(scenario).build(
        clients=CLIENTS, samples=SAMPLES.get(scenario), seed=seed, data_dir=None if data_dir is None else Path(data_dir)
    )
    drawn = set(numpy_generator(seed, "founders").permutation(CLIENTS)[: CLIENTS // 2].tolist())
    founders = everybody.subset([client for i, client in enumerate(everybody.ids) if i in drawn])
    newcomers = everybody.subset([client for i, client in enumerate(everybody.ids) if i not in drawn])
    groups = Groups(of={client.id: str(client.group) for client in founders})
    result = run(groups, founders, model="logistic", rounds=1, seed=seed, workers=1)
    cluster_of = {founders[row.client].group: row.cluster for row in result.clients}
    true = {client.id: cluster_of.get(client.group) for client in newcomers}
    inputs = {client.id: client.train.x for client in newcomers}
    mirrored = {client: x.flip(-1) for client, x in inputs.items()}
    return {
        "newcomers": _shares(result.fits(inputs, founders), true),
        "strangers": _shares(result.fits(mirrored, founders), dict.fromkeys(true)),
    }


def _shares(fits: Any, true: dict[str, int | None]) -> dict[str, float]:
    """The share of each answer; nowhere is right for one whose group has no founder."""
    counts = dict.fromkeys(ANSWERS, 0)
    for client, fit in fits.items():
        if fit.cluster is not None:
            counts["right" if fit.cluster == true[client] else "wrong"] += 1
        else:
            counts["alarm" if fit.alarm else "not placed"] += 1
    return {answer: count / len(fits) for answer, count in counts.items()}
