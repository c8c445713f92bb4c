"""How often `explain` is right: groups of digits whose difference is known, well and badly trained."""

from __future__ import annotations

from collections import Counter
from functools import partial
from itertools import product
from typing import Any

import torch

from coterie import run
from coterie.data.builders import group_shifts
from coterie.data.scenarios import find_scenario
from coterie.methods.groups import Groups
from coterie_recipes.base import Findings, Row, Study, recipe

RIGHT = {"swapped": "labels", "permuted": "labels", "rotated": "inputs", "iid": "alike"}
"""The kind of difference that each shift makes."""
CLIENTS, CLASSES, SIDE = 8, 10, 8


def explained(shift: str, groups: int, samples: int | None, rounds: int, model: str, seed: int) -> dict[str, Any]:
    """The kinds that are found between the groups of one run, and what becomes of the labels' names."""
    hidden = 1 if shift == "iid" else groups
    data = find_scenario(f"digits-{shift}").build(clients=CLIENTS, groups=hidden, samples=samples, seed=seed)
    of = {client.id: i % groups if shift == "iid" else client.group or 0 for i, client in enumerate(data)}
    result = run(Groups(of=of), data, model=model, rounds=rounds, progress=False)
    changes = group_shifts(shift, CLASSES, hidden, seed)
    names = [change(torch.zeros(CLASSES, SIDE, SIDE), torch.arange(CLASSES))[1].tolist() for change in changes]
    members = dict(zip(result.summary.cluster_ids, result.clusters, strict=True))
    kinds, named, wrong, entries = [], 0, 0, 0
    for pair in result.explain(data).pairs:
        kinds.append(pair.kind)
        if RIGHT[shift] == pair.kind == "labels" and pair.match is not None:
            first, second = (names[of[members[number][0]]] for number in (pair.first, pair.second))
            truth = {a: b for a, b in zip(first, second, strict=True) if a != b}
            named += sum(pair.match.moved.get(a) == b for a, b in truth.items())
            wrong += sum(truth.get(a) != b for a, b in pair.match.moved.items())
            entries += len(truth)
    return {"kinds": kinds, "named": named, "wrong": wrong, "entries": entries}


@recipe("explain-kinds", "`explain` on digits: swapped, permuted and turned groups, and groups that are alike")
def explain_kinds(study: Study) -> Findings:
    """2 and 4 groups, 30 or all samples per client, 4 or 20 rounds, MLP and logistic; every wrong answer is a note."""
    settings = [
        (shift, *others)
        for shift, *others in product(RIGHT, (2, 4), (None, 30), (4, 20), ("mlp:hidden=32", "logistic"))
        if shift != "iid" or others[0] == 2
    ]
    found = study.cells({f"{one} {seed}": partial(explained, *one, seed) for one in settings for seed in study.seeds})
    rows, notes = [], []
    for shift, right in RIGHT.items():
        for samples in (None, 30):
            of = [one for one in settings if one[0] == shift and one[2] == samples]
            where = f"{shift}, {samples or 'all'} samples"
            cells = {seed: [found[f"{one} {seed}"] for one in of] for seed in study.seeds}
            kinds = {seed: [kind for cell in cells[seed] for kind in cell["kinds"]] for seed in study.seeds}
            for kind in sorted({right, "undecided", *(k for some in kinds.values() for k in some)}):
                share = [some.count(kind) / len(some) for some in kinds.values()]
                rows.append(Row(where, f"called {kind}{'' if kind != right else ', as it is'}", share))
            counts = Counter(kind for some in kinds.values() for kind in some)
            notes.append(f"{where}: {', '.join(f'{kind} {count}' for kind, count in sorted(counts.items()))}")
            if right == "labels":
                total = {
                    key: sum(c[key] for some in cells.values() for c in some) for key in ("named", "wrong", "entries")
                }
                notes.append(f"{where}: {total['named']} of {total['entries']} names right, {total['wrong']} wrong")
    for key, cell in found.items():
        shift = key.split("'")[1]
        notes += [f"wrong: {kind} in {key}" for kind in cell["kinds"] if kind not in (RIGHT[shift], "undecided")]
    return Findings(rows, notes)
