"""Rounds, ends, clusters and their tree in words: the lines that the terminal, notebooks and reports share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from coterie.errors import ConfigError, did_you_mean
from coterie.metrics import ALWAYS
from coterie.runs.records import ClientRecord, RoundRecord, Spread, Summary, TreeNode

MOST_LISTED = 12
"""Clusters are listed one by one up to this number."""
MOST_MEMBERS = 20
"""Members of a cluster that are named."""


def describe(node: TreeNode, accuracy: Mapping[str, float | None] | None = None) -> str:
    """A node of the tree in one line; with clients' accuracies also the mean of a cluster's members."""
    who = f"{len(node.members)} clients" if len(node.members) != 1 else f"client {node.members[0]}"
    if node.children:
        return f"node {node.id}: {who}, split in round {node.split_round}: {node.reason}"
    known = [value for member in node.members if (value := (accuracy or {}).get(member)) is not None]
    score = f", accuracy {sum(known) / len(known):.3f}" if known else ""
    return f"cluster {node.id}: {who}, since round {node.born}{score}"


def ancestors(nodes: Mapping[int, TreeNode], cluster: int) -> list[TreeNode]:
    """The nodes from the root to a cluster; none where it is not in the tree."""
    steps: list[TreeNode] = []
    at: int | None = cluster
    while at is not None and at in nodes:
        steps.append(nodes[at])
        at = nodes[at].parent
    return steps[::-1]


def path_to(nodes: Mapping[int, TreeNode], client: str) -> list[TreeNode]:
    """The nodes from the root to a client's cluster; ConfigError where there is no such client."""
    leaves = [node for node in nodes.values() if not node.children]
    for leaf in leaves:
        if client in leaf.members:
            return ancestors(nodes, leaf.id)
    known = [member for leaf in leaves for member in leaf.members]
    raise ConfigError(f"no client {client!r} in the tree: {did_you_mean(client, known)}")


def served_elsewhere(clients: Sequence[ClientRecord], most: int = 5) -> str:
    """Which clients were measured with another model than their cluster's, in a sentence; empty where none was."""
    served = [row for row in clients if row.model not in (None, f"cluster-{row.cluster}") and not row.mixture]
    if not served:
        return ""
    named = [f"{row.client} (cluster {row.cluster}) by {row.model}" for row in served[:most]]
    more = [f"{len(served) - most} more"] if len(served) > most else []
    return f"served by another model than their cluster's: {', '.join(named + more)}"


def mixture_text(mixture: Mapping[Any, float]) -> str:
    """The weights of a mixture's models, by id or by file, in per cent, the heaviest first."""
    ranked = sorted(mixture.items(), key=lambda pair: -pair[1])
    shares = [(str(name).removeprefix("cluster-"), weight) for name, weight in ranked if round(weight, 2)]
    return ", ".join(f"{name}: {100 * weight:.0f} %" for name, weight in shares) or "–"


def mixtures_in_words(heaviest: Sequence[float], clients: int) -> str:
    """How much clients are served by mixtures, from the heaviest weight of each; empty where each has one model."""
    if not heaviest:
        return ""
    who = "Every client is" if len(heaviest) == clients else f"{len(heaviest)} of {clients} clients are"
    mean = 100 * sum(heaviest) / len(heaviest)
    return f"{who} served by a mixture of the models, in which the heaviest weighs {mean:.0f} % on average."


def member_lines(ids: Sequence[int], clusters: Sequence[Sequence[str]]) -> list[str]:
    """Who is in each cluster, a line each, the first of many; nothing where there is one cluster, or a great many."""
    if not 1 < len(clusters) <= MOST_LISTED:
        return []
    lines = []
    for number, members in zip(ids, clusters, strict=True):
        if not members:  # only the clients know who is in it
            continue
        more = f" and {len(members) - MOST_MEMBERS} more" if len(members) > MOST_MEMBERS else ""
        lines.append(f"cluster {number}: {', '.join(members[:MOST_MEMBERS])}{more}")
    return lines


def summary_cells(summary: Summary) -> dict[str, str]:
    """A run as cells of a table: accuracy and its spread (of a regression the loss), other metrics, clusters, costs."""
    accuracy, sent = summary.accuracy, summary.bytes
    cells = {
        "accuracy": _number(accuracy.mean, ".4f"),
        "worst 10%": _number(accuracy.worst10, ".4f"),
        "variance": _number(accuracy.variance, ".5f"),
    }
    if accuracy.mean is None:
        cells = {"loss": _number(summary.loss.mean, ".5g")}
    others = {name: _number(spread.mean, ".4g") for name, spread in summary.metrics.items() if name not in ALWAYS}
    return {
        **cells,
        **others,
        "clusters": str(len(summary.clusters)),
        "ARI": _number(summary.ari, ".3f"),
        "MB up": f"{sent.up / 1e6:.1f}",
        "MB down": f"{sent.down / 1e6:.1f}",
        "seconds": f"{summary.seconds:.1f}",
    }


def _number(value: float | None, form: str) -> str:
    return "–" if value is None else format(value, form)


def round_in_words(record: RoundRecord, known: dict[str, Spread], metrics: Sequence[str] = ()) -> str:
    """A round in a few words: what is `known` of the metrics, and the clusters."""
    spent = "" if record.epsilon is None else f"  ε {record.epsilon:.3g}"
    return f"{means_in_words(known, metrics)}  {count(len(record.clusters), 'cluster')}{spent}".strip()


def privacy_in_words(summary: Summary) -> list[str]:
    """What the models give away of any one client, where noise was asked for."""
    if summary.epsilon is None or summary.delta is None:
        return []
    return [f"ε {summary.epsilon:.3g} at δ = {summary.delta:g}"]


def means_in_words(known: dict[str, Spread], metrics: Sequence[str]) -> str:
    """Mean accuracy (of regressions the loss) and the other metrics that were asked for."""
    first = "accuracy" if known.get("accuracy", Spread()).mean is not None else "loss"
    form = {"accuracy": ".3f"}
    means = [(name, known[name].mean) for name in (first, *metrics) if name in known]
    return "  ".join(f"{name} {value:{form.get(name, '.4g')}}" for name, value in means if value is not None)


def ending(summary: Summary) -> list[str]:
    """How a run ended that did not simply do all its rounds."""
    found = [] if summary.stopped is None else [f"stopped after round {summary.rounds}: {summary.stopped}"]
    if summary.best_round is not None and summary.best_round < summary.rounds:
        found.append(f"the models are those of round {summary.best_round}, the best on validation data")
    return found


def count(number: int, what: str) -> str:
    """ "1 cluster" or "4 clusters"."""
    return f"{number} {what if number == 1 else what + 's'}"
