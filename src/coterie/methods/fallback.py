"""Never worse than one model for all: every client ends with the best model on the way to its cluster."""

from __future__ import annotations

import numpy as np
import torch

from coterie.methods.server import Server
from coterie.methods.tree import Tree
from coterie.tasks import Evaluate


def best_on_path(tree: Tree, server: Server) -> dict[str, int]:
    """Clients whose validation data likes a node on the way to their leaf better than the leaf, and that node."""
    better: dict[str, int] = {}
    for leaf in tree.leaves():
        path = tree.path(leaf)[::-1]  # the leaf first: it wins ties
        if len(path) > 1 and leaf.members:
            task = Evaluate(torch.stack([node.model for node in path]), "validation")
            for reply in server.ask_all(leaf.members, task):
                best = int(np.nanargmin(reply.values["loss"])) if reply.samples else 0
                if best:
                    better[reply.client] = path[best].id
    return better
