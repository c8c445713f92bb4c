"""Who is like whom: the matrix that a method clustered by, in the order of its clusters."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from coterie.methods.base import make_method
from coterie.methods.flt import DISTANCES
from coterie.methods.graph_averaging import State as GraphState
from coterie.methods.tree import Tree

LARGEST = 600
"""Most rows of a matrix that are drawn; more clients are averaged in blocks."""
MOST_FOR_DISTANCES = 1000
"""Up to so many clients distances are computed again; beyond, related or not is all that is shown."""

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Matrix:
    """Values between clients `(n, n)`, neighbours from one cluster; `sizes` are the clusters' in that order."""

    values: Floats
    clusters: list[int]
    sizes: list[int]
    meaning: str
    clients: int


def from_tree(tree: Tree) -> Matrix | None:
    """Cosine similarity of updates just before the root was split, from the sketches on its children's edges."""
    edges = [tree.nodes[child] for child in tree.nodes[0].children]
    kept = [(node.edge, node.edge_members) for node in edges if node.edge is not None and len(node.edge)]
    if not kept:
        return None
    vectors = torch.cat([edge for edge, _ in kept]).float()
    names = [name for _, members in kept for name in members]
    leaf_of = {client: leaf.id for leaf in tree.leaves() for client in leaf.members}
    labels = [leaf_of.get(name, -1) for name in names]  # −1: left since
    similarity = (vectors @ vectors.T).clamp(-1, 1).double().numpy()
    return arranged(similarity, labels, "cosine similarity of the clients' updates just before the first split")


def from_relatives(state: GraphState, clusters: Sequence[Sequence[str]], method: str) -> Matrix:
    """Distances between clients as FLT (or its PCA baseline) saw them; for many clients, who is related."""
    known = state.relatives
    cluster_of = {client: i for i, members in enumerate(clusters) for client in members}
    labels = [cluster_of.get(client, row) for client, row in zip(known.ids, state.row, strict=True)]
    if len(known.ids) > MOST_FOR_DISTANCES:
        return arranged(known.related.astype(np.float64), labels, "related (1) or not (0)")
    measure = DISTANCES[getattr(make_method(method), "distance", "min")]
    return arranged(np.asarray(measure(known.positions)), labels, "distance between the clients' data as embedded")


def arranged(values: Floats, labels: Sequence[int], meaning: str) -> Matrix:
    """The matrix with clients in the order of their clusters' labels, reduced to what can be drawn."""
    order = np.argsort(labels, kind="stable")
    ids, sizes = np.unique(np.asarray(labels), return_counts=True)
    sorted_values = values[np.ix_(order, order)]
    return Matrix(reduced(sorted_values, LARGEST), ids.tolist(), sizes.tolist(), meaning, len(values))


def reduced(values: Floats, largest: int) -> Floats:
    """The matrix `(n, n)` as means over equal blocks `(m, m)` with m ≤ largest; a small one stays as it is."""
    n = len(values)
    if n <= largest:
        return values
    bounds = np.linspace(0, n, largest + 1).astype(int)[:-1]
    counts = np.diff([*bounds, n])
    sums = np.add.reduceat(np.add.reduceat(values, bounds, axis=0), bounds, axis=1)
    return np.asarray(sums / np.outer(counts, counts))
