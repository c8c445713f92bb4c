"""How a result looks in a notebook: its summary as a table, and the tree of its splits, as small escaped HTML."""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING

from coterie.runs.records import Summary, TreeNode, tree_of
from coterie.runs.words import describe, ending, member_lines, privacy_in_words, served_elsewhere, summary_cells
from coterie_views.verdict import verdict_of

if TYPE_CHECKING:
    from coterie.runs import Result


def result_html(result: Result) -> str:
    """A result as HTML without scripts or styles of its own, so that it follows the notebook's colours."""
    summary = result.summary
    about = f"{summary.method} · {summary.scenario} · {summary.model}"
    tree = tree_of(result.history)
    inner = _tree(tree, result) if tree else _clusters(result)
    below = [served_elsewhere(result.clients), verdict_of(summary, result.clients, result.path)]
    notes = "".join(f"<p>{escape(text)}</p>" for text in below if text)
    return f"<div><p><b>{escape(about)}</b></p>{_summary(summary)}{inner}{notes}</div>"


def _summary(summary: Summary) -> str:
    columns = summary_cells(summary) | {"rounds": str(summary.rounds)}
    head = "".join(f"<th>{escape(name)}</th>" for name in columns)
    body = "".join(f"<td>{escape(value)}</td>" for value in columns.values())
    notes = [*ending(summary), *privacy_in_words(summary)]
    if summary.ari is not None:
        notes.append("ARI: adjusted Rand index of the clusters with the hidden groups")
    below = f"<p><small>{escape('; '.join(notes))}</small></p>" if notes else ""
    return f"<table><thead><tr>{head}</tr></thead><tbody><tr>{body}</tr></tbody></table>{below}"


def _tree(tree: list[TreeNode], result: Result) -> str:
    """The tree as nested lists; a leaf says how its members fare."""
    accuracy, nodes = {row.client: row.accuracy for row in result.clients}, {node.id: node for node in tree}

    def item(node: TreeNode) -> str:
        below = "".join(item(nodes[child]) for child in node.children)
        return f"<li>{escape(describe(node, accuracy))}{f'<ul>{below}</ul>' if below else ''}</li>"

    return f"<ul>{''.join(item(node) for node in tree if node.parent is None)}</ul>"


def _clusters(result: Result) -> str:
    lines = member_lines(result.summary.cluster_ids, result.clusters)
    return f"<ul>{''.join(f'<li>{escape(line)}</li>' for line in lines)}</ul>" if lines else ""
