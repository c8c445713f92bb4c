"""The figures of one run; each function gives a drawing, or None when the run has nothing of the kind to show."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from coterie.errors import ConfigError
from coterie.methods.base import make_method
from coterie.methods.splitting import EPSILON2_MULTIPLE, auto_epsilon1
from coterie.report.drawing import HEIGHT, INK, Draw, colour
from coterie.report.reading import Gains, RunView, Series

MOST_LINES = 12
"""Clusters with a line of their own; beyond, the largest ones have one."""
MOST_BARS = 80
"""Clients with a bar of their own; beyond, a histogram."""
MOST_BOUNDARIES = 40


@dataclass(frozen=True)
class Figure:
    """A drawing with its file name, title, what it shows, and its height in inches."""

    name: str
    title: str
    caption: str
    draw: Draw
    height: float = HEIGHT


def run_figures(run: RunView, gains: Sequence[Gains] = ()) -> list[Figure]:
    """All the figures that a run and its baselines give, in the order a reader wants them."""
    made = [accuracy(run), tree(run), matrix(run), *(gain(one) for one in gains), norms(run), communication(run)]
    return [figure for figure in made if figure is not None]


def accuracy(run: RunView) -> Figure | None:
    """Accuracy over rounds (loss where there is no accuracy): the mean, and a line a cluster, with splits marked."""
    records = run.evaluated()
    if not records:
        return _loss(run)
    shown = largest(run.series)

    def draw(figure: Any) -> None:
        axes = figure.add_subplot()
        rounds = [record["round"] for record in records]
        low = [100 * record["accuracy"]["worst10"] for record in records]
        high = [100 * record["accuracy"]["best10"] for record in records]
        axes.fill_between(rounds, low, high, color=INK, alpha=0.15, linewidth=0, label="worst to best tenth")
        if len(run.series) > 1:
            for series in shown:
                points = [(t, 100 * a) for t, a in zip(series.rounds, series.accuracy, strict=True) if a is not None]
                if points:
                    lone = "o" if len(points) == 1 else None
                    name = f"cluster {series.cluster}" if len(shown) <= 6 else None
                    axes.plot(*zip(*points, strict=True), color=colour(series.cluster), marker=lone, ms=3, label=name)
        axes.plot(rounds, [100 * r["accuracy"]["mean"] for r in records], color=INK, ls="--", label="all clients")
        for t, _ in run.splits():
            axes.axvline(t, color=INK, alpha=0.5, lw=0.8, ls=":")
        axes.set(xlabel="round", ylabel="accuracy on own test data, %")
        _legend(axes)

    marks = " Dotted lines mark splits." if run.splits() else ""
    marks += " Colours as in the tree." if len(run.tree) > 1 else ""
    caption = (
        f"Mean over the clients (dashed), the band from the worst to the best tenth, and clusters.{marks}{_cut(run)}"
    )
    return Figure("accuracy", "Accuracy over rounds", caption, draw)


def _loss(run: RunView) -> Figure | None:
    points = [(r["round"], r["loss"]["mean"]) for r in run.history if r.get("loss", {}).get("mean") is not None]
    if not points:
        return None

    def draw(figure: Any) -> None:
        axes = figure.add_subplot()
        axes.plot(*zip(*points, strict=True), color=colour(0))
        axes.set(xlabel="round", ylabel="loss on own test data")

    return Figure("loss", "Loss over rounds", "Mean over the clients of the loss on their own test data.", draw)


def tree(run: RunView) -> Figure | None:
    """CFL's tree over the rounds: a bar a cluster, as thick as it has members, branching where it was split."""
    if len(run.tree) < 2:
        return None
    place: dict[int, float] = {}
    leaves = [row["id"] for row in depth_first(run.tree) if not row["children"]]
    place |= {leaf: -float(i) for i, leaf in enumerate(leaves)}
    for row in reversed(run.tree):  # children have higher numbers than their parents
        if row["children"]:
            place[row["id"]] = sum(place[child] for child in row["children"]) / len(row["children"])
    last = run.history[-1]["round"] if run.history else run.tree[-1]["born"]
    everybody = max(1, len(run.tree[0]["members"]))

    def draw(figure: Any) -> None:
        axes = figure.add_subplot()
        for row in run.tree:
            y, end = place[row["id"]], row["split_round"] if row["children"] else last
            width = 1.5 + 8.5 * len(row["members"]) / everybody
            axes.plot([row["born"], end], [y, y], color=colour(row["id"]), lw=width, solid_capstyle="butt")
            for child in row["children"]:
                axes.plot([end, end], [y, place[child]], color=INK, lw=0.9)
            side = {"xytext": (4, 6 + width / 2 - 4), "ha": "left"}
            axes.annotate(
                f"{row['id']}: {len(row['members'])}", (row["born"], y), textcoords="offset points", fontsize=10, **side
            )
        axes.set(xlabel="round", yticks=[], ylim=(-len(leaves) + 0.4, 0.8), xlim=(0, max(1, last)))
        axes.spines["left"].set_visible(False)

    caption = "Each bar is a cluster (its number: its clients), from the round it began to the round it was split."
    return Figure("tree", "How the clusters split", caption, draw, min(12.0, 1.2 + 0.5 * len(leaves)))


def depth_first(rows: Sequence[dict[str, Any]], start: int = 0) -> list[dict[str, Any]]:
    """The nodes below one, itself first, each before its children."""
    found, waiting = [], [start]
    while waiting:
        row = rows[waiting.pop()]
        found.append(row)
        waiting += reversed(row["children"])
    return found


def matrix(run: RunView) -> Figure | None:
    """Similarity or distance of clients in the order of their clusters."""
    found = run.matrix
    if found is None:
        return None
    similar = "cosine" in found.meaning

    def draw(figure: Any) -> None:
        axes = figure.add_subplot()
        n = found.clients
        limits = {"vmin": -1, "vmax": 1, "cmap": "RdBu"} if similar else {"cmap": "viridis_r"}
        image = axes.imshow(found.values, interpolation="none", extent=(0, n, n, 0), **limits)
        ends = np.cumsum(found.sizes)
        few = len(ends) <= MOST_BOUNDARIES
        for end in ends[:-1] if few else ():
            axes.axhline(end, color=INK, lw=0.8)
            axes.axvline(end, color=INK, lw=0.8)
        names = ["left" if number < 0 else str(number) for number in found.clusters]
        axes.set_yticks(ends - np.asarray(found.sizes) / 2 if few else [], names if few else [])
        axes.set_xticks([])
        axes.set_ylabel("cluster")
        figure.colorbar(image, ax=axes, shrink=0.9)

    caption = f"{found.meaning[:1].upper()}{found.meaning[1:]}, {found.clients} clients in the order of their clusters."
    return Figure("matrix", "Who is like whom", caption, draw, 4.2)


def gain(gains: Gains) -> Figure:
    """What the clients have over a baseline: a bar each, worst first, or a histogram of many."""
    values = 100 * np.asarray(gains.values)

    def draw(figure: Any) -> None:
        axes = figure.add_subplot()
        if len(values) <= MOST_BARS:
            axes.bar(range(len(values)), values, color=[colour(2) if v >= 0 else colour(6) for v in values])
            axes.set(xlabel="client, worst first", xticks=[])
            axes.set_ylabel(f"points over {gains.baseline}")
        else:
            _, bins, patches = axes.hist(values, bins=40)
            for left, patch in zip(bins, patches, strict=False):
                patch.set_facecolor(colour(2) if left >= 0 else colour(6))
            axes.set(xlabel=f"points over {gains.baseline}", ylabel="clients")
        (axes.axhline if len(values) <= MOST_BARS else axes.axvline)(0, color=INK, lw=0.8)

    name = "gain-over-" + "".join(char if char.isalnum() else "-" for char in gains.baseline)
    caption = "Accuracy in percentage points; green gained, red lost."
    return Figure(name, f"Each client against {gains.baseline}", caption, draw)


def norms(run: RunView) -> Figure | None:
    """Norms of updates over rounds: of the mean and the largest in each cluster, with the paper's thresholds."""
    shown = [s for s in largest(run.series) if any(v is not None for v in (*s.mean_norm, *s.max_norm))]
    if not shown:
        return None
    lines = thresholds(run)

    def draw(figure: Any) -> None:
        from matplotlib.ticker import LogLocator, NullFormatter

        axes = figure.add_subplot()
        for series in shown:
            for values, style, name in ((series.mean_norm, "-", "mean update"), (series.max_norm, "--", "largest")):
                points = [(t, v) for t, v in zip(series.rounds, values, strict=True) if v]
                label = name if series is shown[0] else None
                if points:
                    axes.plot(*zip(*points, strict=True), color=colour(series.cluster), ls=style, lw=1.2, label=label)
        for name, (rounds, level) in lines.items():
            axes.plot(rounds, level, color=INK, lw=1, ls=":")
            axes.annotate(name, (rounds[-1], level[-1]), fontsize=10, ha="right", va="bottom")
        for t, _ in run.splits():
            axes.axvline(t, color=INK, alpha=0.5, lw=0.8, ls=":")
        axes.set(xlabel="round", ylabel="norm", yscale="log")
        axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axes.yaxis.set_major_formatter(lambda value, _: f"{value:g}")  # the usual 10^k is mathematical type
        axes.yaxis.set_minor_formatter(NullFormatter())
        _legend(axes)

    told = " Grey: the thresholds ε1 and ε2 of the first cluster." if lines else ""
    caption = (
        f"Solid: the norm of a cluster's mean update; dashed: its largest update. Colours as above.{told}{_cut(run)}"
    )
    return Figure("norms", "Size of the updates", caption, draw)


def thresholds(run: RunView) -> dict[str, tuple[list[int], list[float]]]:
    """ε1 and ε2 over the rounds of the first cluster, where the run was asked to split by the paper's rule."""
    try:
        method = make_method(run.method)
    except ConfigError:  # a method from Python, or of a package that is not here
        return {}
    given = [getattr(method, name, None) for name in ("eps1", "eps2", "gamma_max")]
    if all(value is None for value in given) or not run.series:
        return {}
    first = run.series[0]
    grown = np.maximum.accumulate([value or 0.0 for value in first.mean_norm])
    eps1 = [auto_epsilon1(float(v)) if given[0] in (None, "auto") else float(given[0]) for v in grown]
    eps2 = [EPSILON2_MULTIPLE * e if given[1] in (None, "auto") else float(given[1]) for e in eps1]
    return {"ε1": (first.rounds, eps1), "ε2": (first.rounds, eps2)}


def communication(run: RunView) -> Figure | None:
    """Megabytes sent so far, up and down."""
    if not run.history:
        return None
    rounds = [record["round"] for record in run.history]
    sent = {way: np.cumsum([r["bytes"][way] for r in run.history]) / 1e6 for way in ("up", "down")}

    def draw(figure: Any) -> None:
        axes = figure.add_subplot()
        for i, (way, values) in enumerate(sent.items()):
            name = "clients to server" if way == "up" else "server to clients"
            axes.plot(rounds, values, color=colour(i), ls="-" if i == 0 else "--", label=name)
        axes.set(xlabel="round", ylabel="MB, all clients together", ylim=(0, None))
        _legend(axes)

    return Figure("communication", "Communication", "Sent so far, as counted from the messages themselves.", draw)


def largest(series: Sequence[Series]) -> list[Series]:
    """The clusters that get a line: all, or the largest ones."""
    chosen = sorted(series, key=lambda one: (-max(one.members), one.cluster))[:MOST_LINES]
    return sorted(chosen, key=lambda one: one.cluster)


def _cut(run: RunView) -> str:
    return f" Lines: the {MOST_LINES} largest of {len(run.series)} clusters." if len(run.series) > MOST_LINES else ""


def _legend(axes: Any) -> None:
    if len(axes.get_legend_handles_labels()[0]) > 1:
        axes.figure.legend(loc="outside upper center", ncols=3)
