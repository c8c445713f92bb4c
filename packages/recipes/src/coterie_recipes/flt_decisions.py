"""FLT with nothing given beside FedAvg and declared groups, on a grid of federations; every miss is listed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from functools import partial
from typing import Any

import numpy as np

from coterie import FLT, run
from coterie.data import load_source
from coterie.encoders import save_encoder, train_encoder
from coterie.methods import make_method
from coterie.methods.groups import Groups
from coterie_recipes.base import Findings, Row, Study, recipe
from coterie_recipes.flt import scaled
from coterie_recipes.flt_federations import SOURCES, Case, draw, federation_of

FIRST = 4000
"""Federations from here on were used in choosing nothing."""
EACH = 33
"""Federations for each seed."""
ROUNDS = 30
WITHIN = 2.0
"""Points of accuracy below the better of FedAvg and declared groups up to which FLT is right."""
IMAGES, EPOCHS = 20_000, 2
"""What an encoder of a source is trained on, and for how long."""


def decide(case: Case, encoder: str, data_dir: str | None) -> dict[str, Any]:
    """What FLT makes of a case with nothing given, beside FedAvg and the hidden groups declared."""
    clients = federation_of(case, data_dir)
    declared = Groups(of={client.id: str(client.group or 0) for client in clients})
    methods = {"flt": FLT(encoder=encoder), "fedavg": make_method("fedavg"), "declared": declared}
    settings: dict[str, Any] = {
        "rounds": ROUNDS,
        "evaluate_every": ROUNDS,
        "seed": case.number,
        "workers": 1,
        "progress": False,
    }
    found: dict[str, Any] = {"case": asdict(case)}
    for name, method in methods.items():
        result = run(method, clients, **settings)
        sizes = sorted((len(members) for members in result.clusters), reverse=True)
        accuracy = scaled(result.summary.accuracy.mean, 100)
        found[name] = {"accuracy": accuracy, "sizes": sizes, "ari": result.summary.ari}
    best = max(found["fedavg"]["accuracy"], found["declared"]["accuracy"])
    found["right"] = bool(found["flt"]["accuracy"] >= best - WITHIN)
    return found


def small_encoder(study: Study, source: str) -> str:
    """The file of an encoder trained on some images of the source, once for this study."""
    path = study.out / "encoders" / f"{source}.safetensors"
    if not path.exists():
        study.log(f"encoder on {source}: training")
        path.parent.mkdir(parents=True, exist_ok=True)
        images = load_source(source, study.data_dir).images(np.arange(IMAGES))
        save_encoder(train_encoder(images, epochs=EPOCHS), path, source)
    return str(path)


def encoder_of(study: Study, case: Case) -> str:
    """The package's encoder, or one trained for this study on the case's own source."""
    return "default" if case.encoder == "default" else small_encoder(study, SOURCES[case.data])


@recipe("flt-decisions", "FLT with nothing given beside FedAvg and declared groups, over a grid; every miss is listed")
def flt_decisions(study: Study) -> Findings:
    """Federations FIRST, FIRST + 1, … of the grid: 33 for each seed, 66 with `--seeds 2`."""
    cases = [draw(FIRST + EACH * seed + i) for seed in study.seeds for i in range(EACH)]
    jobs = {
        f"federation {case.number}": partial(decide, case, encoder_of(study, case), study.data_dir) for case in cases
    }
    found = study.cells(jobs)
    return judged([(case, found[f"federation {case.number}"]) for case in cases])


def judged(results: Sequence[tuple[Case, dict[str, Any]]]) -> Findings:
    """Shares of right decisions and mean accuracies by kind, and every miss."""
    kinds = {
        "one distribution": [r for r in results if r[0].groups == 1],
        "groups": [r for r in results if r[0].groups > 1],
        "groups that share classes": [r for r in results if r[0].shift == "overlapping"],
        "disjoint groups": [r for r in results if r[0].shift == "disjoint" and not r[0].unequal],
        "disjoint groups of unequal sizes": [r for r in results if r[0].unequal],
        "rotated groups": [r for r in results if r[0].shift == "rotated"],
    }
    rows = []
    for kind, chosen in kinds.items():
        if chosen:
            where = f"{kind} ({len(chosen)} federations)"
            rows.append(Row(where, "right", [sum(f["right"] for _, f in chosen) / len(chosen)]))
            for name in ("flt", "fedavg", "declared"):
                mean = float(np.mean([f[name]["accuracy"] for _, f in chosen]))
                rows.append(Row(where, f"test accuracy %, {name}", [mean]))
    note = f"right: at most {WITHIN:g} points below the better of FedAvg and declared groups after {ROUNDS} rounds."
    misses = [f"miss: {case.words()}; {_compared(f)}" for case, f in results if not f["right"]]
    return Findings(rows, [note, *misses])


def _compared(found: dict[str, Any]) -> str:
    """A case's accuracies in words."""
    accuracies = ", ".join(f"{name} {found[name]['accuracy']:.1f}" for name in ("flt", "fedavg", "declared"))
    return f"{accuracies}; clusters of {found['flt']['sizes']}"
