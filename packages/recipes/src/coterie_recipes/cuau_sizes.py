"""Whether CUAU follows a client's labels or its size: power-law sizes with skewed labels, even ones, turned images."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from scipy.stats import spearmanr

from coterie import Client, Federation, Split
from coterie.data import load_source, power_law_sizes
from coterie.methods import FedAvg, divergences
from coterie.randomness import derive, numpy_generator
from coterie.runs import assemble, make_config
from coterie_recipes.base import Findings, Row, Study, recipe
from coterie_recipes.cuau import label_distance

CLIENTS, TOTAL, SMALLEST, DELTA = 50, 12_000, 20, 0.5
"""Clients, their samples together, and the power law of their sizes (23 to 856 samples, median 142)."""
SKEWED, EVEN = 0.3, 1000.0
"""Dirichlet's concentration of the labels."""
TURNED = 5
"""Every so many clients hold images turned by a quarter, in the setting with shifted features."""
SOURCES = ("mnist", "fashion-mnist")
SETTINGS = ("labels skewed", "labels even", "labels even, a fifth turned")
Measure = Literal["halves", "update"]
MEASURES: dict[str, tuple[Measure, dict[str, Any]]] = {
    "default": ("halves", {}),
    "one epoch": ("update", {"epochs": 1}),
    "the paper's, 20 steps": ("update", {"steps": 20}),
}


def skewed_federation(source: str, setting: str, seed: int, data_dir: str | None) -> Federation:
    """Clients of power-law sizes whose labels are drawn in proportions of their own."""
    pool = load_source(source, None if data_dir is None else Path(data_dir))
    generator = numpy_generator(derive(seed, "cuau-sizes"), source, setting)
    alpha = SKEWED if setting == "labels skewed" else EVEN
    left = [list(generator.permutation(np.flatnonzero(pool.y == label))) for label in range(pool.classes)]
    clients = []
    for number, size in enumerate(generator.permutation(power_law_sizes(TOTAL, CLIENTS, SMALLEST, DELTA))):
        counts = generator.multinomial(size, generator.dirichlet([alpha] * pool.classes))
        chosen = np.array([left[label].pop() for label, count in enumerate(counts) for _ in range(count)])
        images, labels = pool.images(chosen), pool.labels(chosen)
        group = int(setting.endswith("turned") and number % TURNED == 0)
        own = Split(torch.rot90(images, group, (2, 3)).contiguous(), labels)
        few = Split(own.x[:5], own.y[:5])
        clients.append(Client(f"client-{number:02d}", own, few, few, group))
    return Federation(clients, pool.classes)


def correlations(source: str, setting: str, seed: int, data_dir: str | None) -> dict[str, Any]:
    """Spearman's ρ of CUAU with the labels' distance, with the number of samples and with being turned."""
    federation = skewed_federation(source, setting, seed, data_dir)
    distance, found = label_distance(federation), {}
    for name, (measure, options) in MEASURES.items():
        config = make_config({"seed": seed, "rounds": 1, "model": "mlp:hidden=64", "lr": 0.1, "workers": 1, **options})
        run, _ = assemble(config, method=FedAvg(), federation=federation)
        try:
            values = divergences(run.server, measure=measure)
        finally:
            run.engine.close()
        cuau = [values[client.id] for client in federation]
        against = {
            "labels": [distance[c.id] for c in federation],
            "samples": [float(len(c.train)) for c in federation],
        }
        if setting.endswith("turned"):
            against["turned"] = [float(c.group or 0) for c in federation]
        found[name] = {key: float(spearmanr(cuau, other).statistic) for key, other in against.items()}
    return found


@recipe(
    "cuau-sizes", "FedCUAU's CUAU against label skew, client size and turned images, where sizes follow a power law"
)
def cuau_sizes(study: Study) -> Findings:
    """Three measures of CUAU on the same clients."""
    jobs = {
        f"{source}, {setting}, seed {seed}": partial(correlations, source, setting, seed, study.data_dir)
        for source in SOURCES
        for setting in SETTINGS
        for seed in study.seeds
    }
    cells = study.cells(jobs)
    rows = []
    for setting in SETTINGS:
        for source in SOURCES:
            own = [cells[f"{source}, {setting}, seed {seed}"] for seed in study.seeds]
            for name in MEASURES:
                for other in own[0][name]:
                    values = [cell[name][other] for cell in own]
                    rows.append(Row(f"{source}, {setting}, {name}", f"ρ of CUAU with {other}", values))
    notes = [
        f"{CLIENTS} clients of 23 to 856 samples, an MLP with 64 hidden units, step size 0.1.",
        "With even labels the distance of the labels is the sampling noise of small clients: ρ with it says nothing.",
    ]
    return Findings(rows, notes)
