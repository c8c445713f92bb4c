"""Three natural federations in which one model does not fit all: stations, minefields and digits of four origins."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import combinations
from pathlib import Path
from typing import Any

from coterie import run
from coterie.data import find_scenario
from coterie.methods import Groups
from coterie_recipes.base import Findings, Row, Study, recipe
from coterie_studies import p_value

KNOWN = "groups"
"""One model for each of the groups that the data have: what clusters are worth if they are known."""
METHODS = ("fedavg", "local", "auto", "cfl", "ifca:k=2", "ifca:k=4", "ifca:k=auto", KNOWN)
SHARED = 0.5
"""Clients are joined in the picture if they share a model in more than this part of the seeds."""
DRAWN = "cfl"
"""The method whose clusters the picture shows."""

Place = tuple[float, float]
STATIONS: Mapping[str, Place] = {
    "Aotizhongxin": (116.397, 39.982),
    "Changping": (116.230, 40.217),
    "Dingling": (116.220, 40.292),
    "Dongsi": (116.417, 39.929),
    "Guanyuan": (116.339, 39.929),
    "Gucheng": (116.184, 39.914),
    "Huairou": (116.628, 40.328),
    "Nongzhanguan": (116.461, 39.937),
    "Shunyi": (116.655, 40.127),
    "Tiantan": (116.407, 39.886),
    "Wanliu": (116.287, 39.987),
    "Wanshouxigong": (116.352, 39.878),
}
"""Longitude and latitude of the stations of `air`, for the map."""


@dataclass(frozen=True)
class Exhibit:
    """One federation: what is measured, what its groups are called, and where its clients are, if that is known."""

    scenario: str
    metric: str
    groups: tuple[str, ...]
    places: Mapping[str, Place] | None = None
    lower_is_better: bool = False

    def better(self, ours: float, other: float) -> float:
        """How much better the first score is."""
        return other - ours if self.lower_is_better else ours - other


EXHIBITS = (
    Exhibit("air", "rmse", ("urban", "suburban"), STATIONS, lower_is_better=True),
    Exhibit("landmine", "auc", ("foliated", "desert")),
    Exhibit("digits-4", "accuracy", ("MNIST", "USPS", "optdigits", "semeion")),
)


def shown(exhibit: Exhibit, method: str, seed: int, data_dir: str | None, rounds: int | None) -> dict[str, Any]:
    """One method on one federation: its score, and who shares a model in the end."""
    scenario = find_scenario(exhibit.scenario)
    federation = scenario.build(seed=seed, data_dir=None if data_dir is None else Path(data_dir))
    group_of: dict[str, str | int] = dict(zip(federation.ids, federation.groups or (), strict=True))
    chosen = Groups(of=group_of) if method == KNOWN else method
    rounds = rounds or scenario.defaults.rounds
    how = scenario.defaults.training
    result = run(
        chosen, federation, model=scenario.defaults.model, rounds=rounds, evaluate_every=rounds, lr=how.lr,
        epochs=how.epochs, batch_size=how.batch_size, metrics=exhibit.metric, seed=seed, workers=1,
    )  # fmt: skip
    score = result.summary.metrics[exhibit.metric].mean
    return {"score": score, "clusters": result.clusters, "groups": group_of, "ari": result.summary.ari or 0.0}


@recipe("gallery", "Natural federations in which one model does not fit all: air, landmine and digits-4")
def gallery(study: Study) -> Findings:
    """Every method with the scenario's own settings, nothing tuned; `--scale quick` trains five rounds."""
    rounds = None if study.full else 5
    jobs = {
        f"{exhibit.scenario}-{method}-{seed}": partial(shown, exhibit, method, seed, study.data_dir, rounds)
        for seed in study.seeds
        for exhibit in EXHIBITS
        for method in METHODS
    }
    cells = study.cells(jobs)
    rows: list[Row] = []
    notes: list[str] = []
    for exhibit in EXHIBITS:
        found = {m: [cells[f"{exhibit.scenario}-{m}-{seed}"] for seed in study.seeds] for m in METHODS}
        for method, own in found.items():
            setting = f"{exhibit.scenario}, {method}"
            rows.append(Row(setting, exhibit.metric, [cell["score"] for cell in own]))
            rows.append(Row(setting, "clusters", [len(cell["clusters"]) for cell in own]))
            rows.append(Row(setting, "ARI", [cell["ari"] for cell in own]))
        notes.extend(compared(exhibit, found))
    drawn = {e.scenario: [cells[f"{e.scenario}-{DRAWN}-{seed}"] for seed in study.seeds] for e in EXHIBITS}
    return Findings(rows, notes, {"gallery": partial(_draw, drawn=drawn)})


def compared(exhibit: Exhibit, found: Mapping[str, Sequence[Mapping[str, Any]]]) -> list[str]:
    """Each method beside FedAvg and local models: the paired difference over seeds, and its test."""
    lines = []
    for method in METHODS[2:]:
        for other in METHODS[:2]:
            pairs = zip(found[method], found[other], strict=True)
            gains = [exhibit.better(ours["score"], theirs["score"]) for ours, theirs in pairs]
            p = p_value(gains)
            sure = "one seed" if p is None else f"p = {p:.2g}, {sum(gain > 0 for gain in gains)} of {len(gains)} seeds"
            said = f"better than {other} by {statistics.fmean(gains):+.4f} {exhibit.metric} ({sure})"
            lines.append(f"{exhibit.scenario}: {method} is {said}")
    return lines


def shares(cells: Sequence[Mapping[str, Any]]) -> dict[tuple[str, str], float]:
    """For each pair of clients, the part of the seeds in which they share a model."""
    ids = list(cells[0]["groups"])
    cluster_of = [
        {client: number for number, members in enumerate(cell["clusters"]) for client in members} for cell in cells
    ]
    return {(a, b): statistics.fmean(of[a] == of[b] for of in cluster_of) for a, b in combinations(ids, 2)}


def _draw(figure: Any, drawn: Mapping[str, Sequence[Mapping[str, Any]]]) -> None:
    """Clients as points in the colour of their group, with a line between those that mostly share a model."""
    figure.set_size_inches(13, 4.8)
    for axes, exhibit in zip(figure.subplots(1, len(EXHIBITS)), EXHIBITS, strict=True):
        cells = drawn[exhibit.scenario]
        group_of: Mapping[str, int] = cells[0]["groups"]
        at = exhibit.places or _circle(group_of)
        for (a, b), share in shares(cells).items():
            if share > SHARED:
                axes.plot(*zip(at[a], at[b], strict=True), color="0.75", linewidth=1, zorder=1)
        for group, name in enumerate(exhibit.groups):
            own = [at[client] for client in group_of if group_of[client] == group]
            axes.scatter(*zip(*own, strict=True), s=60, color=f"C{group}", label=name, zorder=2)
        if exhibit.places:
            for client, (x, y) in at.items():
                axes.annotate(client, (x, y), xytext=(4, 4), textcoords="offset points", fontsize=7)
            axes.set(xlabel="longitude", ylabel="latitude")
        else:
            axes.set_axis_off()
        axes.set_title(exhibit.scenario)
        axes.legend(loc="upper left" if exhibit.places else "center", fontsize=8)


def _circle(group_of: Mapping[str, int]) -> dict[str, Place]:
    """The clients around a circle, those of one group side by side."""
    ordered = sorted(group_of, key=lambda client: (group_of[client], client))
    step = 2 * math.pi / len(ordered)
    return {client: (math.cos(step * place), math.sin(step * place)) for place, client in enumerate(ordered)}
