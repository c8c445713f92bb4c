"""Does held-out benefit keep its word? How often clients of one distribution are split, and groups under label skew."""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from functools import partial
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import torch

from coterie import Federation, Result, run
from coterie.data import find_scenario
from coterie.methods import Groups, make_method
from coterie_recipes.base import Findings, Row, Study, recipe

CLIENTS, ROUNDS, INPUTS = 12, 18, 8
"""Of the federations of one distribution: looks come after rounds 4, 8 and 16."""
KINDS = ("images", "classes of a table", "regression")
SIZES = ("equal sizes", "unequal sizes")

COMBINED = tuple(
    f"fashion:{shift}(4)+dirichlet({skew})" for shift in ("swapped", "rotated", "permuted") for skew in ("0.3", "1")
)
"""Four groups by labels, by inputs and by both, with label skew within each group."""
SETTING: dict[str, Any] = {"rounds": 50, "lr": 0.05, "epochs": 1}
"""Of the combined shifts: as in recent papers, on 40 clients."""


def one_distribution(kind: str, sizes: str, seed: int) -> Federation:
    """Clients whose samples are drawn from one distribution, a new one for each seed."""
    draw = np.random.default_rng([seed, KINDS.index(kind), SIZES.index(sizes)])
    counts = [50] * CLIENTS if sizes == "equal sizes" else draw.lognormal(3.7, 0.8, CLIENTS).clip(12, 500).astype(int)
    if kind == "images":
        formula = "digits:none" if sizes == "equal sizes" else "digits:none+sizes(zipf)"
        return find_scenario(formula).build(clients=CLIENTS, samples=50, seed=seed)
    weights = draw.standard_normal(INPUTS)
    clients = []
    for count in counts:
        x = draw.standard_normal((count, INPUTS))
        y = x @ weights + draw.standard_normal(count)
        target = torch.tensor(y).float() if kind == "regression" else torch.tensor(y > 0).long()
        clients.append((torch.tensor(x).float(), target))
    return Federation.from_tensors(clients)


def ever_split(kind: str, sizes: str, seed: int) -> dict[str, bool]:
    """Whether CFL split such a federation in any round, and whether it ended with more than one cluster."""
    federation = one_distribution(kind, sizes, seed)
    how: dict[str, Any] = {"rounds": ROUNDS, "evaluate_every": ROUNDS, "seed": seed, "workers": 1, "progress": False}
    how |= {"model": "mlp"} if kind == "images" else {"model": "mlp:hidden=16", "lr": 0.05}
    result = run("cfl", federation, **how)
    events = [event.kind for record in result.history for event in record.events]
    return {"ever": "split" in events, "end": len(result.clusters) > 1}


@recipe(
    "benefit-level", "How often clients of one distribution are split, against the level of 5 % that the rule states"
)
def benefit_level(study: Study) -> Findings:
    """One federation of each of six kinds for every seed: 504 with `--seeds 84`."""
    kinds = [(kind, sizes) for kind in KINDS for sizes in SIZES]
    jobs = {
        f"{kind}, {sizes}, {seed}": partial(ever_split, kind, sizes, seed)
        for kind, sizes in kinds
        for seed in study.seeds
    }
    found = study.cells(jobs)
    rows = []
    for kind, sizes in kinds:
        own = [found[f"{kind}, {sizes}, {seed}"] for seed in study.seeds]
        rows.extend(_shares(f"{kind}, {sizes} ({len(own)} federations)", own))
    return Findings(rows + _shares(f"all ({len(found)} federations)", list(found.values())))


def _shares(setting: str, cells: list[dict[str, bool]]) -> list[Row]:
    share_ever = statistics.fmean(cell["ever"] for cell in cells)
    share_end = statistics.fmean(cell["end"] for cell in cells)
    return [Row(setting, "share ever split", [share_ever]), Row(setting, "share split in the end", [share_end])]


def conflicts(result: Result, groups: Mapping[str, object]) -> float:
    """The share of the pairs of clients with different rules that are in one cluster."""
    cluster = {client: number for number, members in enumerate(result.clusters) for client in members}
    pairs = [(a, b) for a, b in combinations(groups, 2) if groups[a] != groups[b]]
    return statistics.fmean(cluster[a] == cluster[b] for a, b in pairs)


def combined_run(scenario: str, method: str, seed: int, rounds: int, data_dir: str | None) -> dict[str, float]:
    """One method on one combined shift."""
    folder = None if data_dir is None else Path(data_dir)
    federation = find_scenario(scenario).build(clients=40, seed=seed, data_dir=folder)
    groups: dict[str, str | int] = dict(zip(federation.ids, federation.groups or (), strict=True))
    chosen = Groups(of=groups) if method == "groups" else make_method(method)
    how = SETTING | {"rounds": rounds, "evaluate_every": rounds}
    result = run(chosen, federation, model="mlp", seed=seed, workers=1, progress=False, **how)
    mean = result.summary.accuracy.mean
    assert mean is not None
    return {"accuracy": 100 * mean, "conflicts": 100 * conflicts(result, groups), "ari": result.summary.ari or 0.0}


@recipe("combined-shifts", "Four groups with label skew within them: CFL and auto beside FedAvg and declared groups")
def combined_shifts(study: Study) -> Findings:
    """Fashion-MNIST, 40 clients, six settings, 50 rounds; `--scale quick` has one of them and five rounds."""
    settings = COMBINED if study.full else COMBINED[:1]
    rounds = SETTING["rounds"] if study.full else 5
    methods = ("fedavg", "groups", "cfl", "auto", "ifca:k=auto") if study.full else ("groups", "cfl")
    jobs = {
        f"{scenario}-{method}-{seed}": partial(combined_run, scenario, method, seed, rounds, study.data_dir)
        for seed in study.seeds
        for scenario in settings
        for method in methods
    }
    found = study.cells(jobs)
    rows = []
    for scenario in settings:
        for method in methods:
            own = [found[f"{scenario}-{method}-{seed}"] for seed in study.seeds]
            rows.append(Row(f"{scenario}, {method}", "test accuracy %", [cell["accuracy"] for cell in own]))
            if method != "fedavg":
                rows.append(Row(f"{scenario}, {method}", "pairs in conflict %", [cell["conflicts"] for cell in own]))
                rows.append(Row(f"{scenario}, {method}", "ARI", [cell["ari"] for cell in own]))
    return Findings(rows)
