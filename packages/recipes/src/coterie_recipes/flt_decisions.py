"""What FLT makes of federations when nothing is given: one family kept whole, groups recovered, every miss listed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from coterie import FLT
from coterie.clustering import adjusted_rand_index
from coterie.data import load_source
from coterie.encoders import save_encoder, train_encoder
from coterie.runs import assemble, make_config
from coterie_recipes.base import Findings, Row, Study, recipe
from coterie_recipes.flt_federations import SOURCES, Case, draw, federation_of

FIRST = 4000
"""Federations from here on were used in choosing nothing. The rule was chosen on those below 3066."""
EACH = 33
"""Federations for each seed."""
RIGHT = 0.95
"""Adjusted Rand index with the hidden groups from which on they count as recovered."""
IMAGES, EPOCHS = 20_000, 2
"""What an encoder of a source is trained on, and for how long."""
RULES = {"evidence": "default", "jump": "former rule (gamma=clearest)"}


def clusters_of(related: npt.NDArray[np.bool_]) -> list[int]:
    """The cluster of each client, where relatives are clusters: those with the same row `(M, M)`."""
    return [int(label) for label in np.unique(related, axis=0, return_inverse=True)[1].reshape(-1)]


def decide(case: Case, encoder: str, data_dir: str | None, options: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """What FLT makes of a case by its default, by the former rule and with case=auto, all from the same centroids."""
    clients, method = federation_of(case, data_dir), FLT(encoder=encoder, **(options or {}))
    config = make_config({"seed": case.number, "rounds": 1, "model": "logistic", "workers": 1, "participation": 0.1})
    assembled, _ = assemble(config, method=method, federation=clients)
    try:
        state = method.start(assembled.server)
    finally:
        assembled.engine.close()
    group = {client.id: client.group or 0 for client in clients}
    truth = [group[client] for client in state.relatives.ids]
    found: dict[str, Any] = {"case": asdict(case)}
    for rule, relatives in (
        ("evidence", state.relatives),
        ("jump", replace(method, gamma="clearest").reconsidered(state).relatives),
    ):
        labels = clusters_of(relatives.related)
        sizes = np.bincount(labels).tolist()
        whole = len(sizes) == 1
        ari = 1.0 if whole and case.groups == 1 else float(adjusted_rand_index(labels, truth))
        right = whole if case.groups == 1 else ari >= RIGHT
        found[rule] = {"right": bool(right), "ari": ari, "sizes": sorted(sizes, reverse=True), "text": relatives.text}
    auto = replace(method, case="auto").reconsidered(state).relatives
    found["auto"] = "graph" if auto.gamma is not None else "clusters" if not auto.related.all() else "one family"
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


@recipe("flt-decisions", "FLT's choice of one family or several, over a grid of federations; every miss is listed")
def flt_decisions(study: Study) -> Findings:
    """Federations FIRST, FIRST + 1, … of the grid: 33 for each seed, 66 with `--seeds 2`."""
    cases = [draw(FIRST + EACH * seed + i) for seed in study.seeds for i in range(EACH)]
    jobs = {
        f"federation {case.number}": partial(decide, case, encoder_of(study, case), study.data_dir) for case in cases
    }
    found = study.cells(jobs)
    return judged([(case, found[f"federation {case.number}"]) for case in cases])


def judged(results: Sequence[tuple[Case, dict[str, Any]]]) -> Findings:
    """Shares of right decisions by kind, the default's and the former rule's, and every miss of the default."""
    kinds = {
        "one family": [r for r in results if r[0].groups == 1],
        "groups": [r for r in results if r[0].groups > 1],
        "groups that share classes": [r for r in results if r[0].shift == "overlapping"],
        "disjoint groups": [r for r in results if r[0].shift == "disjoint" and not r[0].unequal],
        "disjoint groups of unequal sizes": [r for r in results if r[0].unequal],
        "rotated groups": [r for r in results if r[0].shift == "rotated"],
    }
    rows = [
        Row(
            f"{kind} ({len(chosen)} federations)",
            f"right, {words}",
            [sum(f[rule]["right"] for _, f in chosen) / len(chosen)],
        )
        for kind, chosen in kinds.items()
        if chosen
        for rule, words in RULES.items()
    ]
    notes = [
        "right: one cluster where there is one family; an adjusted Rand index of at least 0.95 with the hidden groups. "
        f"case=auto: {_auto(results)}."
    ]
    misses = [f"miss: {case.words()}; {_made(f['evidence'])}" for case, f in results if not f["evidence"]["right"]]
    return Findings(rows, [*notes, *misses])


def _made(decision: dict[str, Any]) -> str:
    """A decision in words."""
    return f"clusters of {decision['sizes']}, ARI {decision['ari']:.2f}; {decision['text']}"


def _auto(results: Sequence[tuple[Case, dict[str, Any]]]) -> str:
    """What case=auto chose, by shift."""
    parts = []
    for shift in sorted({case.shift for case, _ in results}):
        chosen = [f["auto"] for case, f in results if case.shift == shift]
        counts = ", ".join(
            f"{chosen.count(name)} {name}" for name in ("clusters", "graph", "one family") if name in chosen
        )
        parts.append(f"{shift} {counts}")
    return "; ".join(parts)
