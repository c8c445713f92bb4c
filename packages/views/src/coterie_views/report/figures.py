"""The figures of one run; each function gives a drawing, or None when the run has nothing of the kind to show."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from coterie.runs.records import Spread, TreeNode
from coterie_views.report.drawing import HEIGHT, INK, Draw, colour, over_rounds
from coterie_views.report.reading import RunView, Series
from coterie_views.verdict import ACCURACY, Judgement

MOST_LINES = 12
"""Clusters with a line of their own; beyond, the largest ones have one."""
MOST_BARS = 40
"""Clients with a bar and a name of their own; beyond, a histogram."""
LONGEST_LABEL = 22
"""Characters of a client's id beside its bar; of a longer one both ends are shown."""
MOST_BOUNDARIES = 40
LATE = 0.8
"""Share of the rounds after which a cluster's name is set before its end, so that it is not cut off."""
LETTERS = {"eps1": "ε1", "eps2": "ε2"}
"""How the papers write the thresholds."""


@dataclass(frozen=True)
class Figure:
    """A drawing with its file name, title, what it shows, and its height in inches."""

    name: str
    title: str
    caption: str
    draw: Draw
    height: float = HEIGHT


def run_figures(run: RunView, against: Sequence[Judgement] = ()) -> list[Figure]:
    """All the figures that a run and its baselines give, in the order a reader wants them."""
    first = [accuracy(run), tree(run), matrix(run), crossing(run)]
    made = [*first, *(gain(one) for one in against), norms(run), communication(run)]
    return [figure for figure in made if figure is not None]


def accuracy(run: RunView) -> Figure | None:
    """Accuracy over rounds (loss where there is no accuracy): the mean, and a line per cluster, with splits marked."""
    records = run.evaluated()
    if not records:
        return _loss(run)
    shown = largest(run.series)

    def draw(figure: Any) -> None:
        axes = figure.add_subplot()
        rounds = [record.round for record in records]
        low, mean, high = zip(*(_percentages(record.accuracy) for record in records), strict=True)
        axes.fill_between(rounds, low, high, color=INK, alpha=0.15, linewidth=0, label="worst to best tenth")
        if len(run.series) > 1:
            for series in shown:
                points = [(t, 100 * accuracy) for t, accuracy in series.points("accuracy")]
                if points:
                    lone = "o" if len(points) == 1 else None
                    name = f"cluster {series.cluster}" if len(shown) <= 6 else None
                    axes.plot(*zip(*points, strict=True), color=colour(series.cluster), marker=lone, ms=3, label=name)
        axes.plot(rounds, mean, color=INK, ls="--", label="all clients")
        for t in run.split_rounds():
            axes.axvline(t, color=INK, alpha=0.5, lw=0.8, ls=":")
        over_rounds(axes, ylabel="accuracy, %")
        _legend(axes)

    marks = " Dotted lines mark splits." if run.split_rounds() else ""
    marks += " Colours as in the tree." if len(run.tree) > 1 else ""
    caption = (
        "On the clients' own test data: the mean (dashed), the band from the worst to the best tenth, and clusters."
        f"{marks}{_cut(run)}"
    )
    return Figure("accuracy", "Accuracy over rounds", caption, draw)


def _percentages(spread: Spread) -> tuple[float, float, float]:
    """The worst tenth, the mean and the best tenth in per cent."""
    values = (spread.worst10, spread.mean, spread.best10)
    low, mean, high = (float("nan") if value is None else 100 * value for value in values)
    return low, mean, high


def _loss(run: RunView) -> Figure | None:
    points = [(r.round, r.loss.mean) for r in run.history if r.loss.mean is not None]
    if not points:
        return None

    def draw(figure: Any) -> None:
        axes = figure.add_subplot()
        axes.plot(*zip(*points, strict=True), color=colour(0))
        over_rounds(axes, ylabel="loss on own test data")
        logarithmic(axes)

    return Figure("loss", "Loss over rounds", "Mean over the clients of the loss on their own test data.", draw)


def tree(run: RunView) -> Figure | None:
    """The tree of splits over the rounds: a bar per cluster, its width its members, branching where it was split."""
    if len(run.tree) < 2:
        return None
    place: dict[int, float] = {}
    nodes = depth_first(run.tree)
    leaves = [node.id for node in nodes if not node.children]
    place |= {leaf: -float(i) for i, leaf in enumerate(leaves)}
    for node in reversed(nodes):  # children come after their parents
        if node.children:
            place[node.id] = sum(place[child] for child in node.children) / len(node.children)
    last = run.history[-1].round
    all_clients = max(1, len(nodes[0].members))

    def draw(figure: Any) -> None:
        axes = figure.add_subplot()
        for node in nodes:
            y, end = place[node.id], node.split_round if node.children else last
            width = 1.5 + 8.5 * len(node.members) / all_clients
            axes.plot([node.born, end], [y, y], color=colour(node.id), lw=width, solid_capstyle="butt")
            for child in node.children:
                axes.plot([end, end], [y, place[child]], color=INK, lw=0.9)
            late = node.born > LATE * last
            at, offset, side = (end, 0, "right") if late else (node.born, 4, "left")
            name, lifted = f"{node.id}: {len(node.members)}", 2 + width / 2
            axes.annotate(name, (at, y), xytext=(offset, lifted), ha=side, textcoords="offset points", fontsize=10)
        over_rounds(axes, yticks=[], ylim=(-len(leaves) + 0.4, 0.8), xlim=(0, max(1, last)))
        axes.spines["left"].set_visible(False)

    caption = "Each bar is a cluster (its number: its clients), from the round it began to the round it was split."
    return Figure("tree", "How the clusters split", caption, draw, min(12.0, 1.2 + 0.5 * len(leaves)))


def depth_first(tree: Mapping[int, TreeNode]) -> list[TreeNode]:
    """The nodes from the root on, each before its children."""
    found, waiting = [], [node.id for node in tree.values() if node.parent is None][::-1]
    while waiting:
        node = tree[waiting.pop()]
        found.append(node)
        waiting += reversed(node.children)
    return found


def matrix(run: RunView) -> Figure | None:
    """Similarity or distance of clients in the order of their clusters."""
    found = run.matrix
    if found is None:
        return None
    similar = found.similar

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


def crossing(run: RunView) -> Figure | None:
    """Every cluster's model on every cluster's clients, where `coterie explain` has tried them."""
    found = run.explanation
    if found is None or not found.clusters:
        return None
    values = 100 * np.asarray(found.scores)
    what = "variance explained, %" if found.regression else "accuracy, %"

    def draw(figure: Any) -> None:
        axes = figure.add_subplot()
        image = axes.imshow(np.clip(values, 0, 100), vmin=0, vmax=100, cmap="viridis")
        for (row, column), value in np.ndenumerate(values):
            ink = "black" if value > 60 else "white"
            axes.text(column, row, f"{value:.0f}", ha="center", va="center", color=ink)
        places = range(len(found.clusters))
        axes.set_xticks(places, [str(number) for number in found.clusters])
        axes.set_yticks(places, [str(number) for number in found.clusters])
        axes.set(xlabel="model of cluster", ylabel="clients of cluster")
        figure.colorbar(image, ax=axes, shrink=0.9, label=what)

    caption = "Every cluster's model tried on the clients of every cluster, on their test data."
    return Figure("crossing", "Each model on the others' clients", caption, draw, 4.2)


def gain(against: Judgement) -> Figure:
    """What the clients have over a baseline: a named bar each, the least first, or a histogram of many."""
    measure, baseline, gains = against.measure, against.baseline, against.gains
    values = np.asarray([measure.gain(measure.amount(against.differences[client])) for client, _ in gains])
    few = len(values) <= MOST_BARS

    def draw(figure: Any) -> None:
        axes = figure.add_subplot()
        colours = [colour(2) if v >= 0 else colour(6) for v in values]
        axes.set_xlabel(f"points over {baseline}" if measure is ACCURACY else f"% less loss than {baseline}")
        if few:
            places = range(len(values))
            axes.barh(places, values, color=colours)
            axes.set_yticks(places, [short(client) for client, _ in gains])
            axes.set_ylim(len(values) - 0.4, -0.6)
        else:
            _, bins, patches = axes.hist(values, bins=40)
            for left, patch in zip(bins, patches, strict=False):
                patch.set_facecolor(colour(2) if left >= 0 else colour(6))
            axes.set_ylabel("clients")
        axes.axvline(0, color=INK, lw=0.8)

    name = "gain-over-" + "".join(char if char.isalnum() else "-" for char in baseline)
    order = ", the least gain first" if few else ""
    what = "Accuracy in percentage points" if measure is ACCURACY else "How much lower the loss is, in per cent"
    caption = f"{what}{order}; green gained, red lost."
    height = 0.9 + 0.24 * len(values) if few else HEIGHT
    return Figure(name, f"Each client against {baseline}", caption, draw, max(1.6, height))


def short(name: str) -> str:
    """A client's id as it fits beside a bar."""
    half = LONGEST_LABEL // 2
    return name if len(name) <= LONGEST_LABEL else f"{name[: half - 1]}…{name[-half:]}"


def norms(run: RunView) -> Figure | None:
    """Norms of updates over rounds: of the mean and the largest in each cluster, with the method's thresholds."""
    shown = [series for series in largest(run.series) if series.points("mean_norm") or series.points("max_norm")]
    if not shown:
        return None
    lines = thresholds(run)

    def draw(figure: Any) -> None:
        axes = figure.add_subplot()
        for series in shown:
            for norm, style, name in (("mean_norm", "-", "mean update"), ("max_norm", "--", "largest")):
                points = [(t, value) for t, value in series.points(norm) if value]  # zero has no logarithm
                label = name if series is shown[0] else None
                if points:
                    axes.plot(*zip(*points, strict=True), color=colour(series.cluster), ls=style, lw=1.2, label=label)
        for name, (rounds, level) in lines.items():
            axes.plot(rounds, level, color=INK, lw=1, ls=":")
            axes.annotate(name, (rounds[-1], level[-1]), fontsize=10, ha="right", va="bottom")
        for t in run.split_rounds():
            axes.axvline(t, color=INK, alpha=0.5, lw=0.8, ls=":")
        over_rounds(axes, ylabel="norm")
        logarithmic(axes)
        _legend(axes)

    note = f" Grey: thresholds of the first cluster ({', '.join(lines)})." if lines else ""
    caption = (
        f"Solid: the norm of a cluster's mean update; dashed: its largest update. Colours as above.{note}{_cut(run)}"
    )
    return Figure("norms", "Size of the updates", caption, draw)


def logarithmic(axes: Any) -> None:
    """Draw the values on a logarithmic scale, its numbers in plain type."""
    from matplotlib.ticker import LogLocator, NullFormatter

    axes.set_yscale("log")
    axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:g}")  # the usual 10^k is mathematical type
    axes.yaxis.set_minor_formatter(NullFormatter())


def thresholds(run: RunView) -> dict[str, tuple[list[int], list[float]]]:
    """The thresholds of the first cluster over its rounds, by name, where the method compared norms with some."""
    if not run.series:
        return {}
    lines: dict[str, tuple[list[int], list[float]]] = {}
    for t, record in run.series[0].records.items():
        for name, level in record.thresholds.items():
            if level is not None:
                rounds, levels = lines.setdefault(LETTERS.get(name, name), ([], []))
                rounds.append(t)
                levels.append(level)
    return lines


def communication(run: RunView) -> Figure | None:
    """Megabytes sent so far, up and down."""
    if not run.history:
        return None
    rounds = [record.round for record in run.history]
    sent = {way: np.cumsum([getattr(r.bytes, way) for r in run.history]) / 1e6 for way in ("up", "down")}

    def draw(figure: Any) -> None:
        axes = figure.add_subplot()
        for i, (way, values) in enumerate(sent.items()):
            name = "clients to server" if way == "up" else "server to clients"
            axes.plot(rounds, values, color=colour(i), ls="-" if i == 0 else "--", label=name)
        over_rounds(axes, ylabel="MB, all clients together", ylim=(0, None))
        _legend(axes)

    return Figure(
        "communication",
        "Communication",
        "Sent so far: the tensors and numbers in the messages, without their framing.",
        draw,
    )


def largest(series: Sequence[Series]) -> list[Series]:
    """The clusters that get a line: all, or the largest ones."""
    sizes = {one.cluster: max(record.members for record in one.records.values()) for one in series}
    chosen = sorted(series, key=lambda one: (-sizes[one.cluster], one.cluster))[:MOST_LINES]
    return sorted(chosen, key=lambda one: one.cluster)


def _cut(run: RunView) -> str:
    return f" Lines: the {MOST_LINES} largest of {len(run.series)} clusters." if len(run.series) > MOST_LINES else ""


def _legend(axes: Any) -> None:
    if len(axes.get_legend_handles_labels()[0]) > 1:
        axes.figure.legend(loc="outside upper center", ncols=3)
