"""How a result looks in a notebook: its summary as a table, and the tree of a CFL run, as small escaped HTML."""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING, Any

from coterie.methods.tree import Node, Tree, describe

if TYPE_CHECKING:
    from coterie.runs.result import Result

MOST_CLUSTERS = 12
"""Clusters are listed one by one up to this number."""
MOST_MEMBERS = 20
"""Members of a cluster that are named."""


def result_html(result: Result) -> str:
    """A result as HTML without scripts or styles of its own, so that it follows the notebook's colours."""
    summary = result.summary
    about = " · ".join(str(summary[key]) for key in ("method", "scenario", "model") if summary.get(key) is not None)
    tree = getattr(result.state, "tree", None)
    inner = _tree(tree, result) if isinstance(tree, Tree) and len(tree.nodes) > 1 else _clusters(result.clusters)
    return f"<div><p><b>{escape(about)}</b></p>{_summary(summary)}{inner}</div>"


def _summary(summary: dict[str, Any]) -> str:
    accuracy, sent = summary["accuracy"], summary["bytes"]
    columns = {
        "accuracy": _number(accuracy["mean"], ".4f"),
        "worst 10 %": _number(accuracy["worst10"], ".4f"),
        "variance": _number(accuracy["variance"], ".5f"),
        "loss": _number(summary["loss"]["mean"], ".4f"),
        "clusters": str(len(summary["clusters"])),
        "ARI": _number(summary["ari"], ".3f"),
        "MB up": f"{sent['up'] / 1e6:.1f}",
        "MB down": f"{sent['down'] / 1e6:.1f}",
        "rounds": str(summary["rounds"]),
        "seconds": f"{summary['seconds']:.1f}",
    }
    head = "".join(f"<th>{escape(name)}</th>" for name in columns)
    body = "".join(f"<td>{escape(value)}</td>" for value in columns.values())
    return f"<table><thead><tr>{head}</tr></thead><tbody><tr>{body}</tr></tbody></table>"


def _tree(tree: Tree, result: Result) -> str:
    """The tree as nested lists; a leaf says how its members fare."""
    accuracy = {row["client"]: row["accuracy"] for row in result.clients}

    def item(node: Node) -> str:
        text = escape(describe(node))
        known = [accuracy[member] for member in node.members if accuracy.get(member) is not None]
        if known and not node.children:
            text += f", accuracy {sum(known) / len(known):.3f}"
        below = "".join(item(tree.nodes[child]) for child in node.children)
        return f"<li>{text}{f'<ul>{below}</ul>' if below else ''}</li>"

    return f"<ul>{item(tree.nodes[0])}</ul>"


def member_lines(clusters: list[list[str]]) -> list[str]:
    """Who is in each cluster, a line each, the first of many; nothing where there is one cluster, or a great many."""
    if not 1 < len(clusters) <= MOST_CLUSTERS:
        return []
    lines = []
    for i, members in enumerate(clusters):
        more = f" and {len(members) - MOST_MEMBERS} more" if len(members) > MOST_MEMBERS else ""
        lines.append(f"cluster {i}: {', '.join(members[:MOST_MEMBERS])}{more}")
    return lines


def _clusters(clusters: list[list[str]]) -> str:
    items = [f"<li>{escape(line)}</li>" for line in member_lines(clusters)]
    return f"<ul>{''.join(items)}</ul>" if items else ""


def _number(value: float | None, form: str) -> str:
    return "-" if value is None else format(value, form)
