"""What "conflict" and "gain" mean, by measurement: an oracle's separate models against one joint model, and regret.

The oracle knows the hidden groups (where there are none: every client is one) and trains a model for each. Clients
*conflict* if the joint model cannot fit even the training data that the separate ones fit. Separate models are a *gain*
if they are better on test data, whatever the reason. `cfl` and `cfl:when=gain` are then judged by what they lose
against the better of both.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch

from coterie import Federation, Result, run
from coterie.data import find_scenario
from coterie.randomness import derive
from coterie_recipes.base import Findings, Row, Study, recipe

SCENARIOS = ("digits-permuted", "digits-swapped", "digits-rotated", "digits-halves", "digits-dirichlet", "digits-iid")
SETTINGS: tuple[dict[str, Any], ...] = ({"lr": 0.1, "epochs": 3}, {"lr": 0.03, "epochs": 1}, {"lr": 0.3, "epochs": 3})
POINTS = 0.02
"""A difference in mean accuracy that counts, if it is also twice its standard error over seeds and settings."""


def accuracies(result: Result, federation: Federation) -> dict[str, float]:
    """Mean accuracy of the clients' models on training and on test data."""
    found = {"train": 0.0, "test": 0.0}
    for client in federation:
        model = result.model_of(client.id)
        for part in found:
            data = client.part(part)
            with torch.no_grad():
                right = model(data.x).argmax(-1) == data.y
            found[part] += float(right.double().mean()) / len(federation)
    return found


def measure(scenario: str, setting: dict[str, Any], seed: int, data_dir: str | None) -> dict[str, Any]:
    """Accuracies of the joint model, the oracle's, and CFL's with either meaning."""
    federation = find_scenario(scenario).build(clients=20, seed=derive(seed, "meanings"))
    options: dict[str, Any] = {"model": "mlp:hidden=32", "rounds": 60, "batch_size": 32, "seed": seed, "workers": 1,
                               "evaluate_every": 60, "progress": False, **setting}  # fmt: skip
    found = {name: accuracies(run(method, federation, **options), federation)
             for name, method in (("joint", "fedavg"), ("conflict", "cfl"), ("gain", "cfl:when=gain"))}  # fmt: skip
    groups: dict[int, list[str]] = {}
    known = {client.group for client in federation}
    for i, client in enumerate(federation):
        groups.setdefault(i if len(known) < 2 or client.group is None else client.group, []).append(client.id)
    separate = {"train": 0.0, "test": 0.0}
    for members in groups.values():
        part = federation.subset(members)
        for name, value in accuracies(run("fedavg", part, **options), part).items():
            separate[name] += value * len(members) / len(federation)
    return found | {"separate": separate}


@recipe("cfl-meanings", "conflict and gain by an oracle's models, and the regret of CFL with either meaning")
def cfl_meanings(study: Study) -> Findings:
    """Six federations of digits, three step sizes."""
    jobs = {
        f"{scenario} {number} {seed}": partial(measure, scenario, setting, seed, study.data_dir)
        for scenario in SCENARIOS
        for number, setting in enumerate(SETTINGS)
        for seed in study.seeds
    }
    found = study.cells(jobs)
    rows, notes = [], []
    for scenario in SCENARIOS:
        cells = [found[f"{scenario} {n} {seed}"] for n in range(len(SETTINGS)) for seed in study.seeds]
        labels = []
        for meaning, part in (("conflict", "train"), ("gain", "test")):
            gaps = torch.tensor([cell["separate"][part] - cell["joint"][part] for cell in cells], dtype=torch.float64)
            rows.append(Row(scenario, f"separate above joint, {part}", gaps.tolist()))
            error = float(gaps.std()) / len(gaps) ** 0.5 if len(gaps) > 1 else 0.0
            if float(gaps.mean()) > max(POINTS, 2 * error):
                labels.append(meaning)
        notes.append(f"{scenario}: {' and '.join(labels) or 'neither'}")
        for meaning in ("conflict", "gain"):
            regrets = [max(c["joint"]["test"], c["separate"]["test"]) - c[meaning]["test"] for c in cells]
            rows.append(Row(scenario, f"regret of when={meaning}", regrets))
    for meaning in ("conflict", "gain"):
        values = [v for row in rows if row.measure == f"regret of when={meaning}" for v in row.ours]
        rows.append(Row("all", f"regret of when={meaning}", values))
    return Findings(rows, notes)
