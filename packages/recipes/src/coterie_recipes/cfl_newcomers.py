"""Newcomers: clients that join after training are placed in the tree (Algorithm 4), at their group's leaf."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

from coterie import run
from coterie.data import find_scenario
from coterie.randomness import derive
from coterie_recipes.base import Findings, Row, Study, recipe

SCENARIO, FOUNDERS, NEWCOMERS = "mnist-permuted", 20, 200


@recipe("cfl-newcomers", "CFL Algorithm 4: 200 held-out clients placed in the tree that 20 others grew")
def cfl_newcomers(study: Study) -> Findings:
    """MNIST with permuted labels, 200 samples per client (500 at full scale); by updates, and by gradients."""
    samples = 500 if study.full else 200
    rows = []
    for method, participation in (("cfl", 1.0), *(("cfl:compare=gradient", share) for share in (1.0, 0.3, 0.1))):
        name = f"{method}, participation {participation:g}"
        found = [
            study.cell(f"{name}, seed={seed}", partial(place, study, samples, seed, method, participation))
            for seed in study.seeds
        ]
        rows += [
            Row(f"{FOUNDERS} founders, {name}", "exact groups", [float(cell["ari"] == 1.0) for cell in found]),
            Row(f"{NEWCOMERS} newcomers, {name}", "share at their group's leaf", [cell["right"] for cell in found]),
        ]
    return Findings(rows, ["The newcomers' groups are known to this recipe only; the tree is given their updates."])


def place(study: Study, samples: int, seed: int, method: str, participation: float) -> dict[str, Any]:
    """Train CFL on the founders, then place the newcomers."""
    everybody = find_scenario(SCENARIO).build(
        clients=FOUNDERS + NEWCOMERS,
        samples=samples,
        seed=derive(seed, "newcomers"),
        data_dir=Path(study.data_dir) if study.data_dir else None,
    )
    founders, newcomers = everybody.subset(everybody.ids[:FOUNDERS]), everybody.subset(everybody.ids[FOUNDERS:])
    out = study.out / "runs" / f"{method.replace(':', '-')}-{participation:g}-seed-{seed}"
    rounds = round(70 / participation**0.5)
    result = run(
        method, founders, model="mlp", rounds=rounds, seed=seed, epochs=3, batch_size=32, lr=0.1, out=out,
        participation=participation, progress=False,
    )  # fmt: skip
    clusters = dict(zip(result.summary.cluster_ids, result.summary.clusters, strict=True))
    group_of = {c: everybody[c].group for c in everybody.ids}
    correct = [
        all(group_of[member] == group_of[client] for member in clusters[cluster])
        for client, cluster in result.assign(newcomers).items()
    ]
    return {"ari": result.summary.ari, "right": sum(correct) / len(correct)}
