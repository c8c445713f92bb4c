"""What FLT's signature shows of a client's own samples, and what hiding them costs in finding groups.

The attack: whoever sees what a client sends has the encoder too. They encode candidate images of the client's classes,
of which one in a hundred is the client's own, and ask which is nearest to each centroid. A blind guess is right in one
case of a hundred. The control asks the same of the signature of a twin, who has as many other samples of the same
classes and has never seen the client's images: what it hits of them is the base rate.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import lru_cache, partial
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.spatial.distance import cdist

from coterie import FLT, Client, Federation, Split
from coterie.clustering import adjusted_rand_index
from coterie.data import Pool, load_source
from coterie.encoders import load_encoder
from coterie.methods.relatives import Relatives
from coterie.randomness import derive, numpy_generator
from coterie.runs import assemble, make_config
from coterie_recipes.base import Findings, Row, Study, recipe
from coterie_recipes.flt_decisions import FIRST
from coterie_recipes.flt_federations import Case, draw, federation_of

SIGNATURES = {"centroids": "centroids", "centroids, noise=4": "centroids(noise=4)", "words": "words"}
SETTINGS = {
    ("digits", 10): (10, 20),
    **{(s, c): (10, 20, 50, 100) for s in ("mnist", "fashion-mnist") for c in (10, 2)},
}
"""Samples per client, by source and by the classes that a client has."""
CLASSES_OF_ALL = 10
SHARE = 100
"""Candidates for each image of the client's own, itself included."""
OWN = "own image nearest, %"
CONTROL = "own image nearest to a twin's signature, %"
BAR = 5.0
"""Own images may be nearest to fewer of a client's centroids than this, in per cent."""
CLIENTS = 20
FEDERATIONS = 24
MOST_CLIENTS = 60
FOUND = 0.95
"""Adjusted Rand index with the hidden groups from which on they count as found."""

Hits = dict[str, int]


@lru_cache(maxsize=1)
def _encoded(source: str, data_dir: str | None) -> tuple[Pool, npt.NDArray[np.float32], npt.NDArray[np.int64]]:
    """A source, the codes of all its images, and their labels."""
    pool = load_source(source, data_dir)
    encoder, every = load_encoder("default"), np.arange(len(pool.y))
    codes = [encoder.encode(pool.images(rows)).numpy() for rows in np.array_split(every, 1 + len(every) // 10_000)]
    return pool, np.concatenate(codes), np.asarray(pool.labels(every))


def attack(source: str, samples: int, classes: int, signature: str, seed: int, data_dir: str | None) -> Hits:
    """Of how many centroids an own image is the nearest candidate, and of how many of the twins' centroids."""
    pool, codes, labels = _encoded(source, data_dir)
    generator = numpy_generator(seed, "attack", source, samples)
    order = generator.permutation(len(labels))
    kinds = [(np.arange(classes) + classes * number) % CLASSES_OF_ALL for number in range(CLIENTS)]
    free = order
    own: list[npt.NDArray[np.int64]] = []
    twins: list[npt.NDArray[np.int64]] = []
    for mine in (own, twins):
        for kind in kinds:
            mine.append(free[np.isin(labels[free], kind)][:samples])
            free = free[~np.isin(free, mine[-1])]
    method = FLT(signature=SIGNATURES[signature])
    sent, control = (signatures(_federation(pool, rows), method, seed) for rows in (own, twins))
    hits = dict.fromkeys(("own", "centroids", "control", "control centroids"), 0)
    for number, kind in enumerate(kinds):
        strangers = order[np.isin(labels[order], kind) & ~np.isin(order, own[number])]
        candidates = codes[np.concatenate([own[number], strangers[: (SHARE - 1) * samples]])]
        for name, total, table in (("own", "centroids", sent), ("control", "control centroids", control)):
            found = table.get(number, codes[:0])
            hits[name] += int((cdist(found, candidates).argmin(1) < samples).sum()) if len(found) else 0
            hits[total] += len(found)
    return hits


def _federation(pool: Pool, rows: Sequence[npt.NDArray[np.int64]]) -> Federation:
    """Clients with these images of a source."""
    splits = [Split(pool.images(own), pool.labels(own)) for own in rows]
    few = [Split(split.x[:1], split.y[:1]) for split in splits]
    clients = [Client(f"client-{i:02d}", s, f, f) for i, (s, f) in enumerate(zip(splits, few, strict=True))]
    return Federation(clients, pool.classes)


def grouped(case: Case, signature: str, data_dir: str | None) -> dict[str, Any]:
    """How well the hidden groups are found where their number is given."""
    federation = federation_of(case, data_dir)
    found = _relatives(federation, FLT(signature=SIGNATURES[signature], clusters=case.groups), case.number)
    group = {client.id: client.group or 0 for client in federation}
    labels = found.related.argmax(axis=1)
    return {"ari": float(adjusted_rand_index(labels, [group[client] for client in found.ids]))}


def _relatives(federation: Federation, method: FLT, seed: int) -> Relatives:
    """The result of the one-off stage."""
    config = make_config({"seed": derive(seed, "attack"), "rounds": 1, "model": "logistic", "workers": 1})
    assembled, _ = assemble(config, method=method, federation=federation)
    try:
        return method.start(assembled.server).relatives
    finally:
        assembled.engine.close()


def signatures(federation: Federation, method: FLT, seed: int) -> dict[int, npt.NDArray[np.float32]]:
    """The centroids `(≤ k, e)` that each client sends, by its number."""
    relatives = _relatives(federation, method, seed)
    numbers = [federation.ids.index(client) for client in relatives.ids]
    return {i: own[~np.isnan(own).any(axis=1)] for i, own in zip(numbers, relatives.centroids, strict=True)}


def advantage(cells: Sequence[Hits]) -> tuple[float, float]:
    """How much more often an own image is nearest than to a twin's signature, and half of its 95 % interval."""
    shares = []
    for hits, total in (("own", "centroids"), ("control", "control centroids")):
        count, of = sum(cell[hits] for cell in cells), sum(cell[total] for cell in cells)
        # Agresti and Caffo: one hit and one miss more, so that a share of zero has an interval too.
        shares.append((count / of, (count + 1) / (of + 2), of + 2))
    (own, _, _), (twin, _, _) = shares
    error = math.sqrt(sum(share * (1 - share) / of for _, share, of in shares))
    return own - twin, 1.96 * error


def _in_words(name: str, of_settings: Mapping[str, Sequence[Hits]]) -> str:
    """All settings of a signature together, and in how many of them it is below the bar."""
    value, error = advantage([cell for cells in of_settings.values() for cell in cells])
    rates = {where: _rate(cells, "own", "centroids") for where, cells in of_settings.items()}
    worst = max(rates, key=rates.__getitem__)
    return (
        f"{name}: below {BAR:g} % in {sum(rate < BAR for rate in rates.values())} of {len(rates)} settings, at most "
        f"{rates[worst]:.1f} % ({worst}); all together {100 * value:.1f} points more than to a twin's, 95 % interval "
        f"± {100 * error:.1f}."
    )


def _rate(cells: Sequence[Hits], hits: str, total: str) -> float:
    return 100 * sum(cell[hits] for cell in cells) / sum(cell[total] for cell in cells)


@recipe("flt-signature", "how often a client's own image is nearest to what FLT sends of it, and what hiding costs")
def flt_signature(study: Study) -> Findings:
    """The attack on clients of all classes and of two, by size; groups of 24 federations that chose nothing."""
    attacks = {
        (name, f"{source}, {samples} samples, {classes} classes", seed): partial(
            attack, source, samples, classes, name, seed, study.data_dir
        )
        for (source, classes), sizes in SETTINGS.items()
        for samples in sizes
        for name in SIGNATURES
        for seed in study.seeds
    }
    drawn = (draw(FIRST + number) for number in range(400))
    cases = [c for c in drawn if c.groups > 1 and c.encoder == "default" and c.clients <= MOST_CLIENTS][:FEDERATIONS]
    groupings = {
        f"federation {case.number} {name}": partial(grouped, case, name, study.data_dir)
        for case in cases
        for name in SIGNATURES
    }
    cells = study.cells({f"attack {where}, {name}, {seed}": job for (name, where, seed), job in attacks.items()})
    cells |= study.cells(groupings)
    rows, notes, misses = [], [], []
    for name in SIGNATURES:
        of_settings: dict[str, list[Hits]] = {}
        for of, where, seed in attacks:
            if of == name:
                of_settings.setdefault(where, []).append(cells[f"attack {where}, {name}, {seed}"])
        for where, own in of_settings.items():
            for measure, hits, total in ((OWN, "own", "centroids"), (CONTROL, "control", "control centroids")):
                rows.append(Row(f"{name}: {where}", measure, [_rate([cell], hits, total) for cell in own]))
        notes.append(_in_words(name, of_settings))
        ari = {case: cells[f"federation {case.number} {name}"]["ari"] for case in cases}
        right = 100 * sum(found >= FOUND for found in ari.values()) / len(ari)
        rows.append(Row(f"{name}: {len(ari)} federations", "groups found, given their number, %", [right]))
        misses += [f"miss with {name}: {case.words()}; ARI {found:.2f}" for case, found in ari.items() if found < FOUND]
    notes += [
        f"{CLIENTS} clients; candidates are images of the client's classes, by their codes, one of {SHARE} of them its "
        "own; a twin has other samples of the same classes, and everybody's twins make its signature together.",
        f"groups: federations from {FIRST} on of the grid of flt-decisions with groups, the package's encoder and at "
        f"most {MOST_CLIENTS} clients; found: an adjusted Rand index of at least {FOUND:g}.",
    ]
    return Findings(rows, [*notes, *misses])
