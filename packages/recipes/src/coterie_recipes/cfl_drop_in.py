"""Does the drop-in Flower strategy decide as CFL does in simulation? Both on the same federations, drawn by number."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import asdict, replace
from functools import partial
from typing import Any

from coterie import Client, Federation, run
from coterie.models import build
from coterie.randomness import derive
from coterie_recipes.base import Findings, Row, Study, recipe
from coterie_recipes.cfl_grid import Case, draw, federation_of

FIRST, COUNT = 9501, 40
"""Federations from FIRST on were used in choosing nothing."""
MOST_ROUNDS = {1.0: 40, 0.3: 60}
"""By participation."""
FIRST_NODE = 1001
"""Ids of nodes in this process count up from here; the clients of both runs have them as names."""


def cases(count: int = COUNT) -> list[Case]:
    """The first quick federations of the grid from FIRST on: digits, up to 20 clients and 3 epochs, no CNN."""
    drawn = (draw(number) for number in itertools.count(FIRST))
    quick = (
        replace(case, rounds=min(case.rounds, MOST_ROUNDS[case.participation]))
        for case in drawn
        if case.data == "digits" and case.kind != "gain" and case.clients <= 20 and case.epochs <= 3
        and case.participation in MOST_ROUNDS
    )  # fmt: skip
    return list(itertools.islice(quick, count))


def as_nodes(clients: Federation) -> Federation:
    """The same clients under the ids that their nodes have: what is drawn at random is drawn by them."""
    named = [Client(str(FIRST_NODE + i), c.train, c.validation, c.test, c.group) for i, c in enumerate(clients)]
    return Federation(named, clients.classes)


def compare(case: Case, data_dir: str | None) -> dict[str, Any]:
    """The clusters of a case by the method `cfl` in simulation, and by the strategy on a Flower app of its own."""
    from coterie_recipes.flower_app import drop_in_clusters  # needs Flower

    federation = as_nodes(federation_of(case, data_dir))
    model = "mlp:hidden=32" if case.model == "mlp" else case.model
    how: dict[str, Any] = {
        "lr": case.lr, "epochs": case.epochs, "rounds": case.rounds, "participation": case.participation,
        "seed": case.number,
    }  # fmt: skip
    first = federation.clients[0].train.x
    network = partial(
        build, model, federation.input_shape, federation.classes, derive(case.number, "model", 0), first.dtype
    )
    result = run("cfl:fallback=false", federation=federation, model=model, batch_size=32, workers=1,
                 evaluate_every=case.rounds, **how)  # fmt: skip
    local = [record.round for record in result.history for event in record.events if event.kind == "split"]
    clusters, splits = drop_in_clusters(federation, network, **how)
    return {
        "case": asdict(case),
        "agree": partition(result.clusters) == partition(clusters),
        "local": {"sizes": [len(members) for members in result.clusters], "splits": local},
        "drop_in": {"sizes": [len(members) for members in clusters], "splits": splits},
    }


def partition(clusters: Sequence[Sequence[str]]) -> set[frozenset[str]]:
    """The clusters without any order."""
    return {frozenset(members) for members in clusters}


@recipe("cfl-drop-in", "how often the drop-in Flower strategy CFL decides as the method does in simulation")
def cfl_drop_in(study: Study) -> Findings:
    """The first federations of `cases`, 40 for each seed."""
    chosen = cases(COUNT * (study.seeds.stop))[COUNT * study.seeds.start :]
    found = [(case, study.cell(f"federation {case.number}", partial(compare, case, study.data_dir))) for case in chosen]
    return agreement(found)


def agreement(results: Sequence[tuple[Case, dict[str, Any]]]) -> Findings:
    """Shares of federations with the same partition, by kind and participation; every other one in words."""
    rows = []
    for kind, participation in itertools.product((None, "conflict", "congruent"), (None, 1.0, 0.3)):
        own = [
            result
            for case, result in results
            if kind in (None, case.kind) and participation in (None, case.participation)
        ]
        where = (kind or "all") + ("" if participation is None else f", participation {participation:g}")
        if own:
            rows.append(
                Row(f"{where} ({len(own)} federations)", "agreement", [sum(r["agree"] for r in own) / len(own)])
            )
    split = sum(len(result["local"]["sizes"]) > 1 for _, result in results)
    notes = [f"The local run split {split} of {len(results)}. Agreement: the same partition, or whole in both."]
    notes += [
        f"{case.words()}: local {result['local']}, drop-in {result['drop_in']}"
        for case, result in results
        if not result["agree"]
    ]
    return Findings(rows, notes)
