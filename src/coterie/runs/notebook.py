"""How a result looks in a notebook: its summary as a table, and the tree of its splits, as small escaped HTML."""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING

from coterie.metrics import ALWAYS
from coterie.runs.progress import ending, privacy_words
from coterie.runs.records import Summary, TreeNode, tree_of
from coterie.runs.verdict import verdict_of
from coterie.runs.words import describe, member_lines, served_elsewhere

if TYPE_CHECKING:
    from coterie.runs.result import Result


def result_html(result: Result) -> str:
    """A result as HTML without scripts or styles of its own, so that it follows the notebook's colours."""
    summary = result.summary
    about = f"{summary.method} · {summary.scenario} · {summary.model}"
    tree = tree_of(result.history)
    inner = _tree(tree, result) if tree else _clusters(result)
    elsewhere = served_elsewhere(result.clients)
    told = f"<p>{escape(elsewhere)}</p>" if elsewhere else ""
    worth = verdict_of(summary, result.clients, result.path)
    told += f"<p>{escape(worth)}</p>" if worth else ""
    return f"<div><p><b>{escape(about)}</b></p>{_summary(summary)}{inner}{told}</div>"


def _summary(summary: Summary) -> str:
    accuracy, sent = summary.accuracy, summary.bytes
    columns = {
        "accuracy": _number(accuracy.mean, ".4f"),
        "worst 10 %": _number(accuracy.worst10, ".4f"),
        "variance": _number(accuracy.variance, ".5f"),
        "loss": _number(summary.loss.mean, ".4f"),
        **{name: _number(spread.mean, ".4g") for name, spread in summary.metrics.items() if name not in ALWAYS},
        "clusters": str(len(summary.clusters)),
        "ARI": _number(summary.ari, ".3f"),
        "MB up": f"{sent.up / 1e6:.1f}",
        "MB down": f"{sent.down / 1e6:.1f}",
        "rounds": str(summary.rounds),
        "seconds": f"{summary.seconds:.1f}",
    }
    head = "".join(f"<th>{escape(name)}</th>" for name in columns)
    body = "".join(f"<td>{escape(value)}</td>" for value in columns.values())
    notes = ending(summary.stopped, summary.best_round, summary.rounds)
    if summary.epsilon is not None and summary.delta is not None:
        notes.append(privacy_words(summary.epsilon, summary.delta))
    if summary.ari is not None:
        notes.append("ARI: adjusted Rand index of the clusters with the hidden groups")
    below = f"<p><small>{escape('; '.join(notes))}</small></p>" if notes else ""
    return f"<table><thead><tr>{head}</tr></thead><tbody><tr>{body}</tr></tbody></table>{below}"


def _tree(tree: list[TreeNode], result: Result) -> str:
    """The tree as nested lists; a leaf says how its members fare."""
    accuracy, nodes = {row.client: row.accuracy for row in result.clients}, {node.id: node for node in tree}

    def item(node: TreeNode) -> str:
        text = escape(describe(node))
        known = [value for member in node.members if (value := accuracy.get(member)) is not None]
        if known and not node.children:
            text += f", accuracy {sum(known) / len(known):.3f}"
        below = "".join(item(nodes[child]) for child in node.children)
        return f"<li>{text}{f'<ul>{below}</ul>' if below else ''}</li>"

    return f"<ul>{''.join(item(node) for node in tree if node.parent is None)}</ul>"


def _clusters(result: Result) -> str:
    lines = member_lines(result.summary.cluster_ids, result.clusters)
    return f"<ul>{''.join(f'<li>{escape(line)}</li>' for line in lines)}</ul>" if lines else ""


def _number(value: float | None, form: str) -> str:
    return "–" if value is None else format(value, form)
