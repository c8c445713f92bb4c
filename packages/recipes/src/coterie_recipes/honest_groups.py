"""What the defaults against hostile clients cost where nobody is hostile and small groups have labels of their own.

To a server a small honest group is what false labels are. Here nobody lies: each run is compared with one by the plain
mean.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from statistics import fmean
from typing import Any

import torch

from coterie import Federation, Split
from coterie.data import find_scenario
from coterie.randomness import numpy_generator
from coterie.runs import make_config
from coterie_attacks import attacked_run
from coterie_recipes.base import Findings, Row, Study, recipe

SIZES = ((8, 8, 4), (12, 5, 2, 1))
METHODS = ("fedavg", "fedcuau", "ifca", "cfl")
ROUNDS = 40
PLAIN: dict[str, Any] = {"aggregate": "mean", "clip": "none", "weight_cap": 0}


def grouped(sizes: tuple[int, ...], seed: int) -> Federation:
    """Digits, with labels permuted at random in groups of these sizes."""
    whole = find_scenario("digits-iid").build(clients=sum(sizes), seed=seed)
    random = numpy_generator(seed, "honest groups")
    labels = [torch.as_tensor(random.permutation(whole.classes)) for _ in sizes]
    group_of = [group for group, size in enumerate(sizes) for _ in range(size)]

    def own(split: Split, group: int) -> Split:
        return Split(split.x, labels[group][split.y])

    clients = [
        replace(
            client,
            train=own(client.train, group),
            validation=own(client.validation, group),
            test=own(client.test, group),
            group=group,
        )
        for client, group in zip(whole, group_of, strict=True)
    ]
    return Federation(clients, whole.classes)


def measure(sizes: tuple[int, ...], method: str, seed: int) -> dict[str, Any]:
    """Each group's mean accuracy with what a network takes by default, and by the mean without limits."""
    federation = grouped(sizes, seed)
    spec = f"ifca:k={len(sizes)}" if method == "ifca" else method
    found: dict[str, Any] = {}
    for name, options in (("default", {}), ("plain", PLAIN)):
        config = make_config(
            {"scenario": "digits-iid", "clients": len(federation), "method": spec, "rounds": ROUNDS, "seed": seed}
            | {"workers": 1, "evaluate_every": ROUNDS}
            | options
        )
        reached = attacked_run(config, "none", 0, federation).accuracy
        of_group = [[reached[c.id] for c in federation if c.group == group] for group in range(len(sizes))]
        found[name] = {"mean": fmean(reached.values()), "groups": [fmean(own) for own in of_group]}
    return found


@recipe("honest-groups", "what the defaults against hostile clients cost small honest groups")
def honest_groups(study: Study) -> Findings:
    """Groups of 8/8/4 and 12/5/2/1 clients under four methods: default less plain, and that of the worst group."""
    jobs = {
        f"{'/'.join(map(str, sizes))} {method} {seed}": partial(measure, sizes, method, seed)
        for sizes in SIZES
        for method in METHODS
        for seed in study.seeds
    }
    cells = study.cells(jobs)
    rows = []
    for sizes in SIZES:
        for method in METHODS:
            where = f"{'/'.join(map(str, sizes))}, {method}"
            own = [cells[f"{'/'.join(map(str, sizes))} {method} {seed}"] for seed in study.seeds]
            gains = [100 * (cell["default"]["mean"] - cell["plain"]["mean"]) for cell in own]
            by_group = [
                [100 * (a - b) for a, b in zip(cell["default"]["groups"], cell["plain"]["groups"], strict=True)]
                for cell in own
            ]
            rows.append(Row(where, "accuracy, default less plain, points", gains))
            rows.append(Row(where, "the same of the group that loses most", [min(each) for each in by_group]))
    return Findings(rows, [f"Digits, 20 clients, labels permuted at random in each group, {ROUNDS} rounds."])
