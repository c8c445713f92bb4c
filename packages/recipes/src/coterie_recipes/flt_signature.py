"""What FLT's signature shows of a client's own samples, and what hiding them costs in FLT's decisions.

The attack: whoever sees a client's centroids has the encoder too, encodes 1,200 images, among them the client's own,
and asks which is nearest to each centroid. A centroid lies where its client's classes are, so an image of these classes
that another client holds, or nobody, may be nearest as well: as many of each are among the 1,200, and how often one of
them is nearest are base rates. The control asks the same of the signature of a twin, who has as many other samples of
the same classes: it has never seen the client's images, so what it hits of them says nothing of them. What the own
images have beyond the control tells on the client: this advantage is what a signature is judged by. How often an own
image is nearest is not: of a client with 100 of the 1,200 images one is nearest to anything in a twelfth of the cases,
and of those of its classes more often.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.spatial.distance import cdist

from coterie import FLT, Client, Federation, Split
from coterie.data import Pool, load_source
from coterie.encoders import load_encoder
from coterie.randomness import derive, numpy_generator
from coterie.runs import assemble, make_config
from coterie_recipes.base import Findings, Row, Study, recipe
from coterie_recipes.flt_decisions import FIRST, decide
from coterie_recipes.flt_federations import draw

SIGNATURES: dict[str, dict[str, Any]] = {
    "centroids, least=5": {},
    "words": {"signature": "words"},
}
SIZES = {"digits": (10, 20), "mnist": (10, 20, 50, 100)}
"""Samples per client by source."""
CLASSES_OF_ALL = 10
CLASSES = (10, 2)
SOURCES_OF_IMAGES = {"own": "own image nearest, %", "others": "another client's, %", "nobody": "nobody's, %"}
CONTROL = "own image nearest to a twin's signature, %"
ADVANTAGE = "own image nearest more often than to a twin's signature, points"
CLIENTS = 20
POOL = 1200
UNHELD = 3000
"""Images that no client holds, at most."""
FEDERATIONS = 24
MOST_CLIENTS = 60


def attack(source: str, samples: int, classes: int, signature: str, seed: int, data_dir: str | None) -> dict[str, int]:
    """Of how many centroids an own image is nearest, one of as many that other clients hold, or that nobody holds.

    And of how many centroids of twins, who have other samples of the same classes, the own image is nearest.
    """
    pool = load_source(source, data_dir)
    generator = numpy_generator(seed, "attack", source, samples)
    free = generator.permutation(len(pool.y))
    labels = np.asarray(pool.labels(np.arange(len(pool.y))))
    kinds = [(np.arange(classes) + classes * number) % CLASSES_OF_ALL for number in range(CLIENTS)]
    own: list[npt.NDArray[np.int64]] = []
    twins: list[npt.NDArray[np.int64]] = []
    for mine in (own, twins):
        for kind in kinds:
            mine.append(free[np.isin(labels[free], kind)][:samples])
            free = free[~np.isin(free, mine[-1])]
    free = free[:UNHELD]
    everything = np.concatenate([*own, free])
    codes = np.empty((len(pool.y), load_encoder("default").code), dtype=np.float32)
    codes[everything] = load_encoder("default").encode(pool.images(everything)).numpy()
    # What clients send does not depend on γ; with one given the server lays the centroids out once, not eight times.
    method = FLT(**SIGNATURES[signature], gamma=1.0)
    table, control = (signatures(_federation(pool, rows), method, seed) for rows in (own, twins))
    hits = dict.fromkeys((*SOURCES_OF_IMAGES, "centroids", "control", "control centroids"), 0)
    for number, found in table.items():
        held = np.concatenate([rows for i, rows in enumerate(own) if i != number])
        alike = [generator.permutation(rows[np.isin(labels[rows], kinds[number])])[:samples] for rows in (held, free)]
        rest = generator.permutation(np.setdiff1d(np.concatenate([held, free]), np.concatenate(alike)))
        parts = [own[number], *alike, rest[: POOL - sum(map(len, (own[number], *alike)))]]
        of_part = np.repeat(np.arange(len(parts)), [len(rows) for rows in parts])
        part = of_part[cdist(found, codes[np.concatenate(parts)]).argmin(1)]
        for i, name in enumerate(SOURCES_OF_IMAGES):
            hits[name] += int((part == i).sum())
        hits["centroids"] += len(found)
        twin = control.get(number, found[:0])
        hits["control"] += int((of_part[cdist(twin, codes[np.concatenate(parts)]).argmin(1)] == 0).sum())
        hits["control centroids"] += len(twin)
    return hits


def _federation(pool: Pool, rows: Sequence[npt.NDArray[np.int64]]) -> Federation:
    """Clients with these images of a source."""
    splits = [Split(pool.images(own), pool.labels(own)) for own in rows]
    few = [Split(split.x[:1], split.y[:1]) for split in splits]
    clients = [Client(f"client-{i:02d}", s, f, f) for i, (s, f) in enumerate(zip(splits, few, strict=True))]
    return Federation(clients, pool.classes)


def signatures(federation: Federation, method: FLT, seed: int) -> dict[int, npt.NDArray[np.float32]]:
    """The centroids `(≤ k, e)` that each client sends, by its number."""
    config = make_config({"seed": derive(seed, "attack"), "rounds": 1, "model": "logistic", "workers": 1})
    assembled, _ = assemble(config, method=method, federation=federation)
    try:
        relatives = method.start(assembled.server).relatives
    finally:
        assembled.engine.close()
    numbers = [federation.ids.index(client) for client in relatives.ids]
    return {i: own[~np.isnan(own).any(axis=1)] for i, own in zip(numbers, relatives.centroids, strict=True)}


def advantage(cells: Sequence[dict[str, int]]) -> tuple[float, float]:
    """How much more often an own image is nearest than to a twin's signature, and half of its 95 % interval."""
    shares = []
    for hits, total in (("own", "centroids"), ("control", "control centroids")):
        count, of = sum(cell[hits] for cell in cells), sum(cell[total] for cell in cells)
        # Agresti and Caffo: one hit and one miss more, so that a share of zero has an interval too.
        shares.append((count / of, (count + 1) / (of + 2), of + 2))
    (own, _, _), (twin, _, _) = shares
    error = math.sqrt(sum(share * (1 - share) / of for _, share, of in shares))
    return own - twin, 1.96 * error


def _in_words(name: str, value: float, error: float) -> str:
    return f"{name}, all sizes together: advantage {100 * value:.1f} points, 95 % interval ± {100 * error:.1f}."


@recipe("flt-signature", "how often a client's own image is nearest to what FLT sends of it, and what hiding costs")
def flt_signature(study: Study) -> Findings:
    """The attack on clients of all classes and of two, by size; decisions on 24 federations that chose nothing."""
    attacks = {
        f"attack {source} {samples} {classes} {name} {seed}": partial(
            attack, source, samples, classes, name, seed, study.data_dir
        )
        for source, sizes in SIZES.items()
        for samples in sizes
        for classes in CLASSES
        for name in SIGNATURES
        for seed in study.seeds
    }
    cases = [c for c in map(draw, range(FIRST, FIRST + 400)) if c.encoder == "default" and c.clients <= MOST_CLIENTS]
    decisions = {
        f"federation {case.number} {name}": partial(decide, case, "default", study.data_dir, dict(options))
        for case in cases[:FEDERATIONS]
        for name, options in SIGNATURES.items()
    }
    cells = study.cells(attacks | decisions)
    rows = []
    for name in SIGNATURES:
        for source, sizes in SIZES.items():
            for samples in sizes:
                for classes in CLASSES:
                    own = [cells[f"attack {source} {samples} {classes} {name} {seed}"] for seed in study.seeds]
                    where = f"{name}: {source}, {samples} samples, {classes} classes"
                    for what, words in SOURCES_OF_IMAGES.items():
                        rows.append(Row(where, words, [100 * cell[what] / cell["centroids"] for cell in own]))
                    rows.append(Row(where, CONTROL, [100 * c["control"] / c["control centroids"] for c in own]))
                    rows.append(Row(where, ADVANTAGE, [100 * advantage([cell])[0] for cell in own]))
        right = [cells[f"federation {case.number} {name}"]["evidence"]["right"] for case in cases[:FEDERATIONS]]
        rows.append(Row(f"{name}: {len(right)} federations", "right decisions, %", [100 * sum(right) / len(right)]))
    misses = [
        f"miss with {name}: {case.words()}; {made['text']}, ARI {made['ari']:.2f}"
        for name in SIGNATURES
        for case in cases[:FEDERATIONS]
        if not (made := cells[f"federation {case.number} {name}"]["evidence"])["right"]
    ]
    every = {
        name: [cell for key, cell in cells.items() if key.startswith("attack") and f" {name} " in key]
        for name in SIGNATURES
    }
    notes = [
        *(_in_words(name, *advantage(own)) for name, own in every.items()),
        f"{CLIENTS} clients; nearest of {POOL} images by their codes, among them the client's own and, of its "
        "classes, as many that other clients hold and as many that nobody holds; a twin has other samples of the same "
        "classes, and everybody's twins make its signature together.",
        f"decisions: federations from {FIRST} on of the grid of flt-decisions with the package's encoder and up to "
        f"{MOST_CLIENTS} clients.",
    ]
    return Findings(rows, [*notes, *misses])
