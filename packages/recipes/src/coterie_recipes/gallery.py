"""Three natural federations in which one model may not fit all: stations, minefields and digits of four origins."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

from coterie import Federation, run
from coterie.data import find_scenario
from coterie.methods import Groups
from coterie_recipes.base import Findings, Row, Study, recipe
from coterie_recipes.gallery_picture import Panel, draw
from coterie_studies import p_value
from coterie_views.verdict import interval

KNOWN = "groups"
"""One model for each of the groups that the data have: what clusters are worth if they are known."""
METHODS = ("fedavg", "local", "cfl", "auto", "ifca:k=2", "ifca:k=4", KNOWN)
"""What is compared: the others are set beside the first two."""


@dataclass(frozen=True)
class Exhibit:
    """One federation: what is measured, and what its groups are called."""

    scenario: str
    title: str
    metric: str
    groups: tuple[str, ...]
    drawn: str
    """The method whose clusters the picture shows and that is asked why they differ: told how many, not which."""
    lower_is_better: bool = False

    def better(self, ours: float, other: float) -> float:
        """How much better the first score is."""
        return other - ours if self.lower_is_better else ours - other

    def gains(self, ours: Sequence[Mapping[str, Any]], others: Sequence[Mapping[str, Any]]) -> list[float]:
        """How much better each seed's score is than the other method's with the same clients."""
        return [self.better(one["score"], other["score"]) for one, other in zip(ours, others, strict=True)]


AIR = Exhibit("air", "Stations in Beijing", "rmse", ("urban", "suburban"), "ifca:k=2", lower_is_better=True)
LANDMINE = Exhibit("landmine", "Minefields", "auc", ("foliated", "desert"), "ifca:k=2")
DIGITS = Exhibit(
    "digits-4", "Digits of four origins", "accuracy", ("MNIST", "USPS", "optdigits", "semeion"), "ifca:k=4"
)


@lru_cache(maxsize=1)
def federation_of(scenario: str, seed: int, data_dir: str | None) -> Federation:
    """The clients of a seed, built once for all methods."""
    return find_scenario(scenario).build(seed=seed, data_dir=None if data_dir is None else Path(data_dir))


def shown(
    exhibit: Exhibit, method: str, seed: int, data_dir: str | None, rounds: int | None, *, explain: bool = False
) -> dict[str, Any]:
    """One method on one federation: its score, over all clients and by group, and who shares a model in the end."""
    federation = federation_of(exhibit.scenario, seed, data_dir)
    group_of: dict[str, int] = dict(zip(federation.ids, federation.groups or (), strict=True))
    chosen = Groups(of={client: str(group) for client, group in group_of.items()}) if method == KNOWN else method
    defaults = find_scenario(exhibit.scenario).defaults
    rounds, how = rounds or defaults.rounds, defaults.training
    result = run(
        chosen, federation, model=defaults.model, rounds=rounds, evaluate_every=rounds, lr=how.lr,
        epochs=how.epochs, batch_size=how.batch_size, metrics=exhibit.metric, seed=seed, workers=1,
    )  # fmt: skip
    scores = {row.client: row.metrics.get(exhibit.metric) for row in result.clients}
    known = {client: score for client, score in scores.items() if score is not None}
    return {
        "score": result.summary.metrics[exhibit.metric].mean,
        "by_group": [
            statistics.fmean(score for client, score in known.items() if group_of[client] == group)
            for group in sorted(set(group_of.values()))
        ],
        "clusters": result.clusters,
        "groups": group_of,
        "ari": result.summary.ari or 0.0,
        "why": result.explain(federation).words() if explain else [],
    }


@recipe("gallery-air", "Twelve stations in Beijing, tested on the last year: one model, own models, clusters")
def gallery_air(study: Study) -> Findings:
    """Every method with the scenario's own settings, nothing tuned; `--scale quick` trains five rounds."""
    return exhibited(AIR, study)


@recipe("gallery-landmine", "Minefields of two kinds of ground: one model, own models, clusters")
def gallery_landmine(study: Study) -> Findings:
    """As gallery-air."""
    return exhibited(LANDMINE, study)


@recipe("gallery-digits-4", "Digits of four origins: one model, own models, clusters")
def gallery_digits(study: Study) -> Findings:
    """As gallery-air."""
    return exhibited(DIGITS, study)


def exhibited(exhibit: Exhibit, study: Study) -> Findings:
    """All methods with all seeds on one federation."""
    rounds = None if study.full else 5
    first = study.seeds[0]
    jobs = {
        f"{exhibit.scenario}-{method}-{seed}": partial(
            shown, exhibit, method, seed, study.data_dir, rounds, explain=method == exhibit.drawn and seed == first
        )
        for seed in study.seeds
        for method in METHODS
    }
    cells = study.cells(jobs)
    found = {m: [cells[f"{exhibit.scenario}-{m}-{seed}"] for seed in study.seeds] for m in METHODS}
    rows = [row for method, own in found.items() for row in rows_of(exhibit, method, own)]
    why = " ".join(found[exhibit.drawn][0]["why"])
    notes = [*compared(exhibit, found), f"explain says of {exhibit.drawn} with seed {first}: {why}"]
    return Findings(rows, notes, {exhibit.scenario: partial(draw, panel=panel_of(exhibit, found))})


def rows_of(exhibit: Exhibit, method: str, cells: Sequence[Mapping[str, Any]]) -> list[Row]:
    """What is stored of one method on one federation."""
    return [
        Row(method, exhibit.metric, [cell["score"] for cell in cells]),
        *(
            Row(method, f"{exhibit.metric}, {name}", [cell["by_group"][group] for cell in cells])
            for group, name in enumerate(exhibit.groups)
        ),
        Row(method, "clusters", [len(cell["clusters"]) for cell in cells]),
        Row(method, "ARI", [cell["ari"] for cell in cells]),
    ]


def compared(exhibit: Exhibit, found: Mapping[str, Sequence[Mapping[str, Any]]]) -> list[str]:
    """Each method beside FedAvg and local models: the paired difference over seeds, its interval and its test."""
    lines = []
    one_model, own_models, *others = METHODS
    for method in others:
        for other in (one_model, own_models):
            gains = exhibit.gains(found[method], found[other])
            limits, p = interval(gains), p_value(gains)
            sure = "one seed"
            if limits is not None and p is not None:
                better = sum(gain > 0 for gain in gains)
                low, high = limits
                sure = f"95 % interval {low:+.4f} to {high:+.4f}, p = {p:.2g}, {better} of {len(gains)} seeds"
            gain = statistics.fmean(gains)
            lines.append(f"{method} gains {gain:+.4f} {exhibit.metric} over {other} ({sure})")
    return lines


def panel_of(exhibit: Exhibit, found: Mapping[str, Sequence[Mapping[str, Any]]]) -> Panel:
    """What the picture shows of one federation."""
    one_model, *others = METHODS
    cells = found[exhibit.drawn]
    return Panel(
        title=f"{exhibit.title}, {exhibit.drawn}",
        metric=exhibit.metric,
        groups=exhibit.groups,
        group_of=cells[0]["groups"],
        clusterings=[cell["clusters"] for cell in cells],
        gains={method: exhibit.gains(found[method], found[one_model]) for method in others},
    )
