"""The parts of a run's report that are tables and lists."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from coterie.metrics import ALWAYS
from coterie.runs.records import MOST_CLUSTERS, ClientRecord
from coterie.runs.words import mixture_text
from coterie_views.report.clients import BEST, WORST
from coterie_views.report.markup import Markup, element, joined, named, section, table
from coterie_views.report.reading import RunView
from coterie_views.verdict import ACCURACY, FEW_SAMPLES, Judgement

MOST_NAMES = 12
MOST_EVENTS = 100
MOST_FAULTS = 3
"""Of a round."""
FEW_MARK = "†"


def settings(config: Mapping[str, Any]) -> Markup:
    """What was run, as it was configured."""
    rows = [(key.replace("_", " "), value) for key, value in config.items() if value is not None]
    return section(
        "What was run", element("details", element("summary", "configuration"), table(["", ""], rows, words=2))
    )


def clusters(run: RunView) -> Markup:
    """The clusters, largest first: size, accuracy or loss, who is in it."""
    if run.summary is None or len(run.summary.clusters) < 2:
        return Markup()
    measure, scores = run.scores.measure, run.scores.values
    rows = []
    found = zip(run.summary.cluster_ids, run.summary.clusters, run.summary.sizes, strict=True)
    pairs = sorted(found, key=lambda one: (-one[2], one[0]))
    for number, members, size in pairs[:MOST_CLUSTERS]:
        names = _ids(members) if members else "known to the clients only"
        known = [scores[member] for member in members if member in scores]
        worst = min if measure.higher_is_better else max
        mean, least = (sum(known) / len(known), worst(known)) if known else (None, None)
        rows.append((number, names, size, measure.text(mean), measure.text(least)))
    note = _cut(len(pairs), MOST_CLUSTERS, "clusters, largest first")
    return section("Clusters", table(["cluster", "clients", "size", measure.name, "worst client"], rows, words=2), note)


def explanation(run: RunView) -> Markup:
    """Why the clusters differ, in the sentences that `coterie explain` found."""
    if run.explanation is None:
        return Markup()
    sentences: list[str] = []
    for text in run.explanation.words:
        if text.startswith(" ") and sentences:
            sentences[-1] = (
                f"{sentences[-1].rstrip('.')}; {text.strip()}"  # what is indented belongs to the line before
            )
        else:
            sentences.append(text)
    return section("Why the clusters differ", element("ul", *(element("li", text) for text in sentences)))


def _ids(members: Sequence[str]) -> Markup:
    """Clients' ids, each on one line, and a mark where there are more."""
    parts: list[object] = []
    for member in members[:MOST_NAMES]:
        parts += [*([", "] if parts else []), named(member)]
    return joined([*parts, ", …"] if len(members) > MOST_NAMES else parts)


def tree(run: RunView) -> Markup:
    """The tree of splits as nested lists: sizes, evidence of every split, accuracy and what it gained."""
    if len(run.tree) < 2:
        return Markup()
    after = _node_accuracy(run)

    def item(number: int) -> Markup:
        node = run.tree[number]
        name = element("b", f"{'cluster' if not node.children else 'node'} {number}")
        words = f" · {len(node.members)} clients"
        if number in after:
            words += f" · accuracy {percent(after[number])}"
            if node.parent is not None and node.parent in after:
                words += f" ({100 * (after[number] - after[node.parent]):+.1f} points)"
        parts: list[object] = [name, words]
        if node.children:
            parts.append(element("span", f"split in round {node.split_round}: {node.reason}", class_="note"))
            parts.append(element("ul", *(item(child) for child in node.children)))
        return element("li", *parts)

    served = run.clients.served_elsewhere
    who = "1 client is" if served == 1 else f"{served} clients are"
    fallback = f"{who} served by a model further up, where validation loss is lower." if served else ""
    roots = [node.id for node in run.tree.values() if node.parent is None]
    note = "Accuracy is the cluster's last; a node's is that of the round before its split. Points are over the parent."
    return section(
        "The tree", element("ul", *map(item, roots), class_="tree"), element("p", f"{note} {fallback}", class_="note")
    )


def _node_accuracy(run: RunView) -> dict[int, float]:
    """The last known accuracy of every node while it was a cluster; a leaf's final one where the run is finished."""
    found = {}
    for series in run.series:
        if points := series.points("accuracy"):
            found[series.cluster] = points[-1][1]
    final = run.scores.accuracy
    for node in run.tree.values():
        known = [final[member] for member in node.members if member in final]
        if known and not node.children:
            found[node.id] = sum(known) / len(known)
    return found


def clients(run: RunView, against: Sequence[Judgement]) -> Markup:
    """The clients by accuracy (by loss where there is none), worst first; of many, both ends."""
    if not run.clients.total:
        return Markup()
    shown = run.clients.listed
    columns = _client_columns(run, against)
    lines = [[cell(row) for cell in columns.values()] for row in shown]
    return section("Clients, worst first", table(list(columns), lines), _client_notes(shown, run.clients.total))


def _client_columns(run: RunView, against: Sequence[Judgement]) -> dict[str, Callable[[ClientRecord], object]]:
    """What the table of clients shows, and each column's cell of a client."""
    columns: dict[str, Callable[[ClientRecord], object]] = {
        "client": lambda row: row.client,
        "cluster": lambda row: row.cluster,
    }
    if run.clients.served_elsewhere:
        columns["model"] = lambda row: row.model or "its own"
    if run.clients.heaviest:
        columns["mixture"] = lambda row: mixture_text(row.mixture)
    columns["test samples"] = lambda row: f"{row.test_samples}{FEW_MARK if row.test_samples < FEW_SAMPLES else ''}"
    if run.scores.measure is ACCURACY:
        columns["accuracy"] = lambda row: percent(row.accuracy)
    others = [name for name in run.clients.listed[0].metrics if name not in ALWAYS]
    columns |= {name: partial(_metric_cell, name) for name in ("loss", *others)}
    return columns | {f"against {one.baseline}": partial(_against, one) for one in against}


def _metric_cell(name: str, row: ClientRecord) -> str:
    value = row.metrics.get(name)
    return "–" if value is None else f"{value:.4g}"


def _against(one: Judgement, row: ClientRecord) -> str:
    """How a client fares against a baseline."""
    difference = one.differences.get(row.client)
    return "–" if difference is None else one.measure.change(difference)


def _client_notes(shown: Sequence[ClientRecord], total: int) -> Markup:
    """What a reader of the table of clients must know of it."""
    notes = []
    if any(row.test_samples < FEW_SAMPLES for row in shown):
        notes.append(f"{FEW_MARK} Fewer than {FEW_SAMPLES} test samples: a value that may be off by far.")
    if len(shown) < total:
        notes.append(f"The worst {WORST} and the best {BEST} of {total} clients.")
    return element("p", " ".join(notes), class_="note") if notes else Markup()


def events(run: RunView) -> Markup:
    """What happened, round by round, in the method's own words; and clients that failed."""
    lines = [(record.round, event.text) for record in run.history for event in record.events]
    lines += [
        (record.round, f"{len(record.faults)} clients failed: {'; '.join(first)}")
        for record in run.history
        if (first := [f"{fault.client}, {fault.reason}" for fault in record.faults[:MOST_FAULTS]])
    ]
    if not lines:
        return Markup()
    rows = [(text, f"round {t}") for t, text in sorted(lines)[:MOST_EVENTS]]
    return section("What happened", table(["event", "when"], rows), _cut(len(lines), MOST_EVENTS, "events"))


def _cut(count: int, most: int, what: str) -> Markup:
    return element("p", f"The first {most} of {count} {what}.", class_="note") if count > most else joined(())


def percent(value: float | None) -> str:
    """A share as a percentage, its sign on the line of its number."""
    return "–" if value is None else f"{100 * value:.1f}\u00a0%"
