"""The gallery's picture: who shares a model, on a map or in rows by group, and what that gains over one model."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any

from coterie_views.verdict import interval

SHARED = 0.5
"""Clients have one colour if they share a model in more than this part of the seeds."""
MARKERS = "os^D"
NAMES = {"local": "a model each", "groups": "groups declared"}
"""What the picture calls a method where its own name says less."""
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
class Panel:
    """What is drawn of one federation."""

    title: str
    metric: str
    groups: Sequence[str]
    """Names of the known groups."""
    group_of: Mapping[str, int]
    clusterings: Sequence[Sequence[Sequence[str]]]
    """Who shares a model, one list of clusters per seed."""
    gains: Mapping[str, Sequence[float]]
    """By method, how much better than one model for all, one number per seed."""

    @property
    def on_a_map(self) -> bool:
        return self.group_of.keys() <= STATIONS.keys()


def shares(clusterings: Sequence[Sequence[Sequence[str]]]) -> dict[tuple[str, str], float]:
    """For each pair of clients, in order, the part of the seeds in which they share a model."""
    cluster_of = [
        {client: number for number, members in enumerate(clusters) for client in members} for clusters in clusterings
    ]
    ids = sorted(cluster_of[0])
    return {(a, b): statistics.fmean(of[a] == of[b] for of in cluster_of) for a, b in combinations(ids, 2)}


def colours(group_of: Mapping[str, int], clusterings: Sequence[Sequence[Sequence[str]]]) -> dict[str, int]:
    """A number for each set of clients that mostly share a model: that of the group most of them are of, if it is free.

    Sets are joined through pairs, so that every client has one number.
    """
    set_of = {client: {client} for client in group_of}
    for (a, b), share in shares(clusterings).items():
        if share > SHARED and set_of[a] is not set_of[b]:
            joined = set_of[a] | set_of[b]
            set_of.update(dict.fromkeys(joined, joined))
    sets = sorted({id(own): own for own in set_of.values()}.values(), key=lambda own: (-len(own), min(own)))
    numbers: dict[str, int] = {}
    for own in sets:
        usual = Counter(group_of[client] for client in own).most_common(1)[0][0]
        taken = set(numbers.values())
        first_free = next(number for number in range(len(group_of) + 1) if number not in taken)
        numbers.update(dict.fromkeys(own, first_free if usual in taken else usual))
    return numbers


def in_rows(group_of: Mapping[str, int]) -> dict[str, Place]:
    """The clients in rows, one for each group."""
    rows: dict[int, list[str]] = {}
    for client in sorted(group_of):
        rows.setdefault(group_of[client], []).append(client)
    return {client: (float(place), float(-group)) for group, own in rows.items() for place, client in enumerate(own)}


def draw(figure: Any, panel: Panel) -> None:
    """Left, clients in the colour of the model they share; right, what each method gains over one model for all."""
    figure.set_size_inches(11, 4.2)
    figure.suptitle("One colour is one model. No client said which group it is of.", fontsize=13)
    left, right = figure.subplots(1, 2)
    draw_clusters(left, panel)
    draw_gains(right, panel)


def draw_clusters(axes: Any, panel: Panel) -> None:
    """Every client as a point: its place or row says its group, its colour whom it shares a model with."""
    colour_of = colours(panel.group_of, panel.clusterings)
    at = STATIONS if panel.on_a_map else in_rows(panel.group_of)
    for group, name in enumerate(panel.groups):
        own = [client for client in panel.group_of if panel.group_of[client] == group]
        points = zip(*(at[client] for client in own), strict=True)
        filled = [f"C{colour_of[client]}" for client in own]
        axes.scatter(*points, s=110, marker=MARKERS[group % len(MARKERS)], c=filled, label=name)
    axes.set_title(panel.title, fontsize=13)
    if panel.on_a_map:
        axes.set(xlabel="longitude", ylabel="latitude")
        axes.margins(0.15)
        axes.legend(loc="center", fontsize=10)
    else:
        axes.set_yticks([-group for group in range(len(panel.groups))], panel.groups, fontsize=11)
        axes.set_ylim(0.5 - len(panel.groups), 0.5)
        axes.set_xticks([])
        axes.spines[:].set_visible(False)


def draw_gains(axes: Any, panel: Panel) -> None:
    """Each method's mean gain with its 95 % interval: green if surely above 0, red if surely below."""
    for place, gains in enumerate(panel.gains.values()):
        mean = statistics.fmean(gains)
        low, high = interval(gains) or (mean, mean)
        colour = "C2" if low > 0 else "C3" if high < 0 else "0.5"
        axes.errorbar(mean, -place, xerr=[[mean - low], [high - mean]], fmt="o", color=colour, capsize=3)
    axes.axvline(0, color="0.6", linewidth=1)
    names = [NAMES.get(method, method) for method in panel.gains]
    axes.set_yticks([-place for place in range(len(names))], names)
    axes.set_xlabel(f"{panel.metric} better than one model for all →", fontsize=10)
