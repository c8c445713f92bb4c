"""CFL's toy problems (Figures 1 and 2): two that need a linear model per group, and one that a single model fits."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from coterie import Federation, Split
from coterie.clustering import adjusted_rand_index, alpha_cross_max, alpha_intra_min, cosine_matrix
from coterie.methods import Assignment
from coterie.parameters import Layout
from coterie.runs import Run, RunConfig, make_federation, score_clients
from coterie_recipes.base import Findings, Row, Study, recipe
from coterie_recipes.cfl import followed, trainable_vectors
from coterie_recipes.runs import study_config

TOYS = {"xor": "federated XOR", "opposite": "opposite conditionals", "congruent": "congruent"}
PAPER = {"xor": 2, "opposite": 2, "congruent": 1}
"""Clusters that the paper says there are."""
TRAINING: dict[str, Any] = {"model": "logistic", "lr": 0.1, "epochs": 1, "batch_size": "full"}
METHODS = {"fedavg": "FedAvg", "cfl": "CFL"}


@recipe(
    "cfl-toy", "CFL Figures 1 and 2: federated XOR, opposite conditionals and a congruent case, accuracies and paths"
)
def toy(study: Study) -> Findings:
    """FedAvg and CFL with a linear classifier in the plane."""
    clients, rounds = (20, 200) if study.full else (4, 100)
    cells = {
        (kind, method): [
            study.cell(f"{kind}-{method}-seed{s}", partial(path, study, kind, method, s, clients, rounds))
            for s in study.seeds
        ]
        for kind in TOYS
        for method in METHODS
    }
    rows = []
    for (kind, method), found in cells.items():
        where = TOYS[kind]
        rows.append(Row(where, f"{METHODS[method]} accuracy %", [100 * cell["accuracy"] for cell in found]))
        if method == "cfl":
            rows.append(Row(where, "clusters of CFL", [cell["clusters"] for cell in found], PAPER[kind]))
            rows.append(Row(where, "CFL adjusted Rand index", [cell["ari"] for cell in found]))
        else:
            rows.append(Row(where, "least similarity inside a group", [cell["intra"][-1] for cell in found]))
            rows.append(Row(where, "largest similarity across groups", [cell["cross"][-1] for cell in found]))
            left = [cell["largest"][-1] / cell["largest"][0] for cell in found]
            rows.append(Row(where, "largest update: last norm / first", left))
    notes = [
        f"{clients} clients in two groups, logistic regression, {rounds} rounds; the paper draws these cases and "
        "prints no numbers",
        "chance is 50 %; no line classifies more than three of XOR's four corners correctly",
        "congruent: XOR's two groups with the classes the same way up, so that one line fits all",
        "CFL with its default rule; similarities are of updates along the FedAvg run",
    ]
    first = {key: found[0] for key, found in cells.items()}
    return Findings(
        rows,
        notes,
        {"paths": lambda figure: _draw_paths(figure, first), "similarity": lambda figure: _draw_cosines(figure, first)},
    )


def path(study: Study, kind: str, method: str, seed: int, clients: int, rounds: int) -> dict[str, Any]:
    """The models of both groups' first clients as paths in the plane, and the accuracy and ARI at the end.

    A two-class linear model is a direction: the difference of its two rows of weights `(2,)`.
    """
    scenario = "xor" if kind == "congruent" else kind
    config = study_config(study, seed, scenario=scenario, method=method, clients=clients, rounds=rounds, **TRAINING)
    paths: list[list[list[float]]] = [[], []]
    intra, cross, largest = [], [], []
    for t, prepared, state in followed(config, same_way_up(config) if kind == "congruent" else None):
        given = prepared.method.assignment(state, prepared.server)
        for group in (0, 1):
            client = prepared.server.clients[group]  # groups alternate: the first two clients are of different ones
            (model,) = [m for m, members in zip(given.models, given.members, strict=True) if client in members]
            paths[group].append(direction(model, prepared.engine.plain_layout))
        if method == "fedavg":
            updates = trainable_vectors(
                prepared.server.ask(prepared.server.training_requests(prepared.server.clients, given.models[0], t + 1)),
                prepared,
            )
            largest.append(float(updates.norm(dim=1).max()))
            similarity = cosine_matrix(updates)
            intra.append(alpha_intra_min(similarity, prepared.groups or ()))
            cross.append(alpha_cross_max(similarity, prepared.groups or ()))
    accuracy = float(np.mean([score.metrics["accuracy"] for score in score_clients(given, prepared.engine)]))
    return {
        "paths": paths,
        "intra": intra,
        "cross": cross,
        "largest": largest,
        "accuracy": accuracy,
        "ari": _ari(given, prepared),
        "clusters": len(given.members),
    }


def same_way_up(config: RunConfig) -> Federation:
    """XOR's federation with the second group's classes exchanged: groups differ in where they are, not in labels."""

    def exchanged(split: Split) -> Split:
        return Split(split.x, 1 - split.y)

    xor, _ = make_federation(config)
    clients = [
        replace(c, train=exchanged(c.train), validation=exchanged(c.validation), test=exchanged(c.test))
        if c.group
        else c
        for c in xor
    ]
    return Federation(clients, xor.classes, "congruent")


def _ari(given: Assignment, prepared: Run) -> float:
    """Adjusted Rand index of the clusters against the hidden groups."""
    cluster_of = {client: cluster for cluster, members in enumerate(given.members) for client in members}
    clusters = [cluster_of[client] for client in prepared.server.clients]
    return adjusted_rand_index(clusters, list(prepared.groups or ()))


def direction(model: Any, layout: Layout) -> list[float]:
    """The difference of the rows of weights `(2, 2)` of a two-class linear model."""
    (weight,) = [entry for entry in layout.entries if entry.name.endswith("weight")]
    rows = model[weight.start : weight.start + 4].reshape(2, 2)
    difference: list[float] = (rows[1] - rows[0]).tolist()
    return difference


def _draw_paths(figure: Any, cells: dict[tuple[str, str], dict[str, Any]]) -> None:
    for axes, kind in zip(figure.subplots(1, len(TOYS)), TOYS, strict=True):
        for group in (0, 1):
            xs, ys = zip(*cells[kind, "cfl"]["paths"][group], strict=True)
            axes.plot(xs, ys, ".-", color=f"C{group}", label=f"CFL, group {group + 1}", alpha=0.8, markersize=3)
        xs, ys = zip(*cells[kind, "fedavg"]["paths"][0], strict=True)
        axes.plot(xs, ys, "k.-", label="FedAvg", markersize=3)
        axes.set(xlabel="weight of x₁", ylabel="weight of x₂", title=TOYS[kind])
        axes.legend()


def _draw_cosines(figure: Any, cells: dict[tuple[str, str], dict[str, Any]]) -> None:
    for axes, kind in zip(figure.subplots(1, len(TOYS), sharey=True), TOYS, strict=True):
        cell = cells[kind, "fedavg"]
        axes.plot(cell["intra"], label="inside a group, least")
        axes.plot(cell["cross"], label="across groups, largest")
        axes.set(xlabel="communication rounds of FedAvg", ylim=(-1.05, 1.05), title=TOYS[kind])
        axes.legend()
    figure.axes[0].set_ylabel("cosine similarity of updates")
