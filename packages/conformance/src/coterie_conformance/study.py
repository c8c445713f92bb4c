"""What a slip does to a result: the double with it and without it, side by side on one federation, seed by seed."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from coterie import Federation, Method, Split
from coterie.clustering import adjusted_rand_index
from coterie.methods import Assignment
from coterie.runs import assemble, make_config, make_federation, score_clients, write_atomically
from coterie_conformance.doubles_cfl import PlainCFL, labels_of, lost_and_doubled
from coterie_conformance.slips import SLIPS, Slip
from coterie_conformance.trials import cluster_of

Cell = dict[str, float]


def measure(method: Method, where: dict[str, Any], seed: int) -> Cell:
    """Mean accuracy, ARI and what else there is to count after a run of the method."""
    options = {key: value for key, value in where.items() if key != "centred"}
    config = make_config(options | {"seed": seed, "workers": 1, "method": "fedavg"})
    federation, defaults = make_federation(config)
    if where.get("centred"):
        federation = centred(federation)
    run, _ = assemble(config, method=method, federation=federation, defaults=defaults)
    server = run.server
    state = method.start(server)
    for t in range(1, server.rounds + 1):
        state, _ = method.round(state, t, server)
    if isinstance(method, PlainCFL):
        assignment, labels = method.held_by(state, server), labels_of(state)
        lost, doubled = lost_and_doubled(state)
        more = {"clusters": len(state.clusters), "lost": lost, "doubled": doubled}
    else:
        assignment = method.assignment(state, server)
        cluster = cluster_of(assignment)
        labels = [cluster[client] for client in server.clients]
        more = {"clusters": len(set(labels)), "unequal": unequal(assignment)}
    scores = score_clients(assignment, server.engine)
    server.engine.close()
    accuracies = [score.metrics["accuracy"] for score in scores]
    found = {"accuracy": float(np.mean(accuracies)), "worst tenth": _worst_tenth(accuracies)} | more
    if run.groups is not None:
        found["ari"] = adjusted_rand_index(labels, list(run.groups))
    return {name: round(float(value), 5) for name, value in found.items()}


def centred(federation: Federation) -> Federation:
    """The federation without the mean of all training inputs, as most code prepares images."""
    mean = torch.cat([client.train.x for client in federation]).mean(0)

    def moved(part: Split) -> Split:
        return Split(part.x - mean, part.y)

    return federation.with_clients(
        [replace(c, train=moved(c.train), validation=moved(c.validation), test=moved(c.test)) for c in federation]
    )


def unequal(assignment: Assignment) -> int:
    """How many clients have another model than the first client of their cluster."""
    first: dict[int, Tensor] = {}
    return sum(
        not torch.equal(first.setdefault(served.cluster, served.model), served.model) for served in assignment.served()
    )


def _worst_tenth(accuracies: Sequence[float]) -> float:
    worst = sorted(accuracies)[: max(1, len(accuracies) // 10)]
    return float(np.mean(worst))


def measure_slips(
    folder: Path, seeds: Sequence[int], slips: Sequence[Slip] = SLIPS, log: Callable[[str], None] = lambda text: None
) -> list[dict[str, Any]]:
    """Every slip on every seed; cells are kept in the folder as soon as they are there, so that a second call resumes.

    Args:
        folder: where `cells.json` is kept.
        seeds: the seeds, the same with the slip and without.
        slips: what to measure.
        log: told of every cell.

    Returns:
        A row for each slip, as it is stored and printed.
    """
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "cells.json"
    cells: dict[str, Cell] = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    for slip, where in ((each, where) for each in slips for where in each.where):
        for seed in seeds:
            for slipped in (False, True):
                key = key_of(slip, where, slipped, seed)
                if key not in cells:
                    cells[key] = measure(slip.measured(slipped), where, seed)
                    write_atomically(path, (json.dumps(cells, indent=1, ensure_ascii=False) + "\n").encode())
                    log(f"{key}: {cells[key]}")
    return [row_of(slip, where, seeds, cells) for slip in slips for where in slip.where]


def key_of(slip: Slip, where: dict[str, Any], slipped: bool, seed: int) -> str:
    """The name of a cell."""
    place = ",".join(f"{key}={value}" for key, value in where.items())
    return f"{slip.name} | {place} | {'wrong' if slipped else 'right'} | {seed}"


def row_of(slip: Slip, where: dict[str, Any], seeds: Sequence[int], cells: dict[str, Cell]) -> dict[str, Any]:
    """A slip with its source, its cells, and means and paired differences with their standard errors."""
    sides = {side: [cells[key_of(slip, where, side == "wrong", seed)] for seed in seeds] for side in ("right", "wrong")}
    names = [name for name in sides["right"][0] if all(name in cell for cell in sides["wrong"])]
    return {
        "slip": slip.name,
        "method": slip.method,
        "what": slip.what,
        "source": slip.source,
        "check": slip.check,
        "where": where,
        "right": {name: mean_and_error([cell[name] for cell in sides["right"]]) for name in names},
        "wrong": {name: mean_and_error([cell[name] for cell in sides["wrong"]]) for name in names},
        "difference": {
            name: mean_and_error([w[name] - r[name] for r, w in zip(sides["right"], sides["wrong"], strict=True)])
            for name in names
        },
    }


def mean_and_error(values: Sequence[float]) -> list[float]:
    """The mean and its standard error, which is zero for one value."""
    spread = float(np.std(values, ddof=1) / np.sqrt(len(values))) if len(values) > 1 else 0.0
    return [round(float(np.mean(values)), 4), round(spread, 4)]
