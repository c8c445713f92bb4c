"""IFCA's start measured: random, perturbed and k-means++ on four federations of digits, at two participations."""

from __future__ import annotations

from functools import partial
from typing import Any

from coterie import Federation, run
from coterie.data import find_scenario
from coterie_recipes.base import Findings, Row, Study, recipe

STARTS = ("random", "perturbed", "k-means++")
EVEN = {"permuted": "digits-permuted", "rotated": "digits-rotated", "swapped": "digits-swapped"}
UNEQUAL = (8, 4, 3, 1)
"""Clients of the four groups of labels where groups are unequal."""
CLIENTS, GROUPS, SAMPLES = 16, 4, 60
ROUNDS = {1.0: 30, 0.3: 90}
"""Rounds by participation: about as many trainings per client."""


def federation_of(setting: str, seed: int) -> Federation:
    """Sixteen clients in four groups, four in each or as UNEQUAL says."""
    if setting in EVEN:
        return find_scenario(EVEN[setting]).build(clients=CLIENTS, samples=SAMPLES, groups=GROUPS, seed=seed)
    made = find_scenario("digits-permuted").build(clients=GROUPS * max(UNEQUAL), samples=36, groups=GROUPS, seed=seed)
    left = list(UNEQUAL)
    chosen = []
    for client in made:
        group = client.group or 0
        if left[group]:
            left[group] -= 1
            chosen.append(client)
    return Federation(chosen, made.classes, "digits-permuted-unequal")


def compare_starts(setting: str, participation: float, seed: int) -> dict[str, Any]:
    """One federation under all starts: adjusted Rand index, models in use, accuracy and megabytes of each."""
    federation = federation_of(setting, seed)
    found = {}
    for init in STARTS:
        result = run(
            f"ifca:k={GROUPS},init={init}", federation, rounds=ROUNDS[participation], participation=participation,
            lr=0.1, epochs=3, batch_size=32, seed=seed, workers=1, evaluate_every=ROUNDS[participation],
        )  # fmt: skip
        summary = result.summary
        assert summary.accuracy is not None
        found[init] = {
            "ari": summary.ari,
            "models_in_use": len(result.clusters),
            "accuracy": summary.accuracy.mean,
            "megabytes": round((summary.bytes.up + summary.bytes.down) / 1e6, 3),
        }
    return found


@recipe("ifca-start", "IFCA from random, perturbed and k-means++ models: how often the four groups are found")
def ifca_start(study: Study) -> Findings:
    """Four federations at participation 1 and 0.3; give `--seeds 20` for the published table."""
    settings = [(name, part) for part in ROUNDS for name in (*EVEN, "unequal")]
    jobs = {
        f"{name}-participation={part:g}-seed{seed}": partial(compare_starts, name, part, seed)
        for seed in study.seeds
        for name, part in settings
    }
    cells = study.cells(jobs)
    rows = []
    for name, part in settings:
        found = [cells[f"{name}-participation={part:g}-seed{seed}"] for seed in study.seeds]
        for init in STARTS:
            setting = f"{name}, participation {part:g}, {init}"
            own = [cell[init] for cell in found]
            rows.append(Row(setting, "the four groups exactly", [float(cell["ari"] > 1 - 1e-9) for cell in own]))
            rows.append(Row(setting, "adjusted Rand index", [cell["ari"] for cell in own]))
            rows.append(Row(setting, "models in use of 4", [cell["models_in_use"] for cell in own]))
            rows.append(Row(setting, "accuracy %", [100 * cell["accuracy"] for cell in own]))
            rows.append(Row(setting, "MB sent", [cell["megabytes"] for cell in own]))
    rounds = " and ".join(f"{rounds} rounds at participation {part:g}" for part, rounds in ROUNDS.items())
    notes = [
        f"{CLIENTS} clients in {GROUPS} groups, k={GROUPS}, {rounds}",
        f"unequal: labels permuted as in the first, groups of {', '.join(map(str, UNEQUAL))} clients",
        "k-means++ asks for the training of k clients, five rounds' worth each, before the first round: it is counted",
    ]
    return Findings(rows, notes)
