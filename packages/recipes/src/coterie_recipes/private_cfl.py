"""CFL on secret projections beside CFL in the clear: clusters, tree and bytes; and a search for the key."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch

from coterie import run
from coterie.privacy import make_key, new_key, project
from coterie_recipes.base import Findings, Row, Study, recipe

SCENARIOS = {"digits-permuted": 120, "digits-swapped": 120, "mnist-permuted": 100}
"""Samples per client."""
CLEAR = "in the clear"
WAYS: dict[str, tuple[str, dict[str, Any]]] = {
    CLEAR: ("cfl", {}),
    "s = 1024": ("cfl:compare=projection(1024)", {"privacy": "projection"}),
    "s = 4096": ("cfl:compare=projection(4096)", {"privacy": "projection"}),
    "s = 1024, secure sums": ("cfl:compare=projection(1024)", {"privacy": "projection", "secure_sums": True}),
}
ROUNDS = 60
TRIES = 2**18
KNOWN_NUMBER = 123_456
"""A secret that a search of TRIES numbers must find: it shows that the search works."""


def measure(scenario: str, way: str, seed: int, data_dir: str | None, rounds: int = ROUNDS) -> dict[str, Any]:
    """One run: its tree (round, cluster and children's members of each split), clusters, accuracy and bytes up."""
    method, options = WAYS[way]
    found = run(
        method, scenario=scenario, samples=SCENARIOS[scenario], rounds=rounds, seed=seed, workers=1,
        evaluate_every=rounds, data_dir=data_dir, **options,
    )  # fmt: skip
    splits = [[r.round, s.cluster, [sorted(side) for side in s.members]] for r in found.history for s in r.splits]
    assert found.summary.accuracy is not None
    return {
        "splits": splits,
        "clusters": sorted(sorted(own) for own in found.clusters),
        "ari": found.summary.ari,
        "accuracy": found.summary.accuracy.mean,
        "bytes_up": found.summary.bytes.up,
        "faults": sum(len(record.faults) for record in found.history),
    }


def search(key: bytes, tries: int) -> dict[str, Any]:
    """Try numbers as the clients' secret: one update is known, and what its projection under `key` came out as."""
    update = torch.arange(1.0, 13.0)[None]
    seen = project(update, key, 8)
    hits = [n for n in range(tries) if torch.equal(project(update, make_key(n), 8), seen)]
    return {"tries": tries, "found": hits}


def search_both(tries: int) -> dict[str, Any]:
    """The search for a key that comes from a number, and for one of 256 random bits."""
    return {"number": search(make_key(KNOWN_NUMBER), tries), "key": search(new_key(), tries)}


@recipe("private-cfl", "CFL on secret projections of s numbers: are clusters and tree those of the run in the clear?")
def private_cfl(study: Study) -> Findings:
    """Three scenarios, by projections of two sizes and under secure sums; and 2^18 tries at the key."""
    jobs = {
        f"{scenario} {way} {seed}": partial(measure, scenario, way, seed, study.data_dir)
        for scenario in SCENARIOS
        for seed in study.seeds
        for way in WAYS
    }
    cells = study.cells(jobs)
    rows = []
    for scenario in SCENARIOS:
        clear = [cells[f"{scenario} {CLEAR} {seed}"] for seed in study.seeds]
        rows.append(Row(f"{scenario}, {CLEAR}", "accuracy %", [100 * cell["accuracy"] for cell in clear]))
        rows.append(Row(f"{scenario}, {CLEAR}", "adjusted Rand index", [cell["ari"] for cell in clear]))
        for way in list(WAYS)[1:]:
            own = [cells[f"{scenario} {way} {seed}"] for seed in study.seeds]
            pairs = list(zip(own, clear, strict=True))
            where = f"{scenario}, {way}"
            rows.append(Row(where, "same clusters", [float(a["clusters"] == b["clusters"]) for a, b in pairs]))
            rows.append(Row(where, "same tree", [float(a["splits"] == b["splits"]) for a, b in pairs]))
            rows.append(Row(where, "accuracy %", [100 * cell["accuracy"] for cell in own]))
            rows.append(Row(where, "bytes up, over the clear run's", [a["bytes_up"] / b["bytes_up"] for a, b in pairs]))
    tried = study.cell("search", partial(search_both, TRIES))
    notes = [
        f"{ROUNDS} rounds; samples per client: {', '.join(f'{name} {n}' for name, n in SCENARIOS.items())}.",
        f"{TRIES} numbers tried as the secret, with one update and its projection known: the secret {KNOWN_NUMBER} was "
        f"found ({tried['number']['found']}), a random key of 256 bits was not ({tried['key']['found']}).",
    ]
    return Findings(rows, notes)
