"""Does `explain` name the true difference between clusters? Runs on digits whose difference is known, and hospitals."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch

from coterie import Federation, Result, run
from coterie.data import available, find_scenario, group_shifts
from coterie_recipes.base import Findings, Row, Study, recipe

SHIFTS = {"swapped": "labels", "permuted": "labels", "rotated": "inputs"}
"""The scenarios of digits, and the kind of difference that is right for two of their groups."""
METHODS = ("cfl", "ifca:k={groups}")
ROUNDS, CLASSES = 40, 10
HOSPITALS = "heart-disease"


def settings_of(seed: int) -> dict[str, Any]:
    """Sizes by seed: two or four groups, few or all samples, CFL or IFCA, so that twelve seeds see each in turn."""
    groups = (2, 4)[seed % 2]
    return {
        "groups": groups,
        "clients": 3 * groups,
        "samples": (None, 80)[seed // 2 % 2],
        "method": METHODS[seed // 4 % 2].format(groups=groups),
    }


def explain_digits(shift: str, seed: int) -> dict[str, Any]:
    """One run on digits and what is said of each two of its clusters, beside the truth."""
    chosen = settings_of(seed)
    method = chosen.pop("method")
    federation = find_scenario(f"digits-{shift}").build(seed=seed, **chosen)
    result = run(
        method, federation, rounds=ROUNDS, lr=0.1, epochs=3, batch_size=32, seed=seed, workers=1, evaluate_every=ROUNDS
    )
    tables = [
        change(torch.zeros(CLASSES, 1, 8, 8), torch.arange(CLASSES))[1].tolist()
        for change in group_shifts(shift, CLASSES, chosen["groups"], seed)
    ]
    group_of = majority_groups(result, federation)
    pairs = []
    for pair in result.explain(federation).pairs:
        first, second = group_of[pair.first], group_of[pair.second]
        named = pair.match.moved if pair.kind == "labels" and pair.match is not None else {}
        truth = {a: b for a, b in zip(tables[first], tables[second], strict=True) if a != b}
        pairs.append(
            {
                "groups": [first, second],
                "kind": pair.kind,
                "expected": "alike" if first == second else SHIFTS[shift],
                "entries": len(truth),
                "right": sum(named.get(a) == b for a, b in truth.items()),
                "wrong": sum(truth.get(a) != b for a, b in named.items()),
            }
        )
    words = result.explain(federation).words()
    return {
        "setting": f"{method}, {len(federation)} clients",
        "ari": result.summary.ari,
        "pairs": pairs,
        "words": words,
    }


def majority_groups(result: Result, federation: Federation) -> dict[int, int]:
    """The hidden group that most clients of each cluster belong to, by the cluster's id."""
    group = dict(zip(federation.ids, federation.groups or (), strict=True))
    members = zip(result.summary.cluster_ids, result.clusters, strict=True)
    return {number: Counter(group[client] for client in own).most_common(1)[0][0] for number, own in members}


def explain_hospitals(method: str, data_dir: str | None, seed: int) -> dict[str, Any]:
    """What is said of the clusters of four real hospitals, where nobody knows the truth."""
    scenario = find_scenario(HOSPITALS)
    federation = scenario.build(seed=seed, data_dir=None if data_dir is None else Path(data_dir))
    how = scenario.defaults.training
    result = run(
        method, federation, model=scenario.defaults.model, rounds=scenario.defaults.rounds, lr=how.lr,
        epochs=how.epochs, batch_size=how.batch_size, seed=seed, workers=1,
    )  # fmt: skip
    clusters = {str(number): own for number, own in zip(result.summary.cluster_ids, result.clusters, strict=True)}
    return {"clusters": clusters, "words": str(result.explain(federation)).splitlines()}


def share(pairs: Sequence[dict[str, Any]], of: str, among: str) -> list[float]:
    """The share of one count in another over all pairs, if there are any."""
    total = sum(pair[among] for pair in pairs)
    return [sum(pair[of] for pair in pairs) / total] if total else []


@recipe(
    "explain-right", "How often explain names the true difference between clusters of digits; its words on hospitals"
)
def explain_right(study: Study) -> Findings:
    """Twelve seeds see every setting: `--seeds 12 --first-seed 100` for the published numbers."""
    jobs = {f"{shift}-seed{seed}": partial(explain_digits, shift, seed) for shift in SHIFTS for seed in study.seeds}
    if any(source.name == HOSPITALS and source.present for source in available(study.data_dir)):
        seed = study.seeds[0]
        jobs |= {f"{HOSPITALS}-{m}": partial(explain_hospitals, m, study.data_dir, seed) for m in ("cfl", "ifca:k=2")}
    cells = study.cells(jobs)
    rows, notes = [], []
    for shift, expected in SHIFTS.items():
        found = [cells[f"{shift}-seed{seed}"] for seed in study.seeds]
        pairs = [pair for cell in found for pair in cell["pairs"] if pair["expected"] == expected]
        others = [pair for cell in found for pair in cell["pairs"] if pair["expected"] != expected]
        setting = f"digits-{shift}, {len(found)} runs, {len(pairs)} pairs of clusters"
        if not pairs:
            continue
        kinds = [float(pair["kind"] == expected) for pair in pairs]
        rows.append(Row(setting, f"called a difference of {expected}", [sum(kinds) / len(kinds)]))
        if expected == "labels":
            rows.append(Row(setting, "changed labels that are named rightly", share(pairs, "right", "entries")))
            rows.append(
                Row(setting, "labels that are named wrongly, per pair", [sum(p["wrong"] for p in pairs) / len(pairs)])
            )
        if others:
            right = sum(pair["kind"] == "alike" for pair in others)
            notes.append(f"digits-{shift}: {len(others)} pairs of clusters of one group, {right} called alike")
    for key in jobs:
        if key.startswith(HOSPITALS):
            notes.append(f"{key}: {' '.join(line.strip() for line in cells[key]['words'])}")
    return Findings(rows, notes)
