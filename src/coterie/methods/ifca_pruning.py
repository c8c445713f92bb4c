"""How `k="auto"` finds clusters it can do without. This goes beyond the paper, which leaves them empty.

Clusters that nobody chooses are dropped. That alone is not enough: from eight models on four groups, two models
often share one group, each chosen by the clients that trained it. So a cluster is also merged into another whose
model serves its clients nearly as well, measured by the losses that the clients report anyway.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt


class Merge(NamedTuple):
    """Cluster `gone` can be served by cluster `into`, at the cost of `lost`, a share of what training has gained."""

    gone: int
    into: int
    lost: float


def cheapest_merge(losses: npt.ArrayLike, choices: npt.ArrayLike, first_loss: float) -> Merge | None:
    """The merge of a cluster into another that costs its clients least, or None when fewer than two have any.

    `losses: (clients, k)`, `choices: (clients,)`. Moving the clients of cluster j to model l costs (their mean loss
    under l − reference) / (`first_loss` − reference), where the reference is what either model reaches on the clients
    that trained it, the larger of the two: 0 when they look to model l like its own clients, 1 when the move would
    throw away all that training has gained since the first round. A model's own clients always look a little better
    to it, the more so the fewer they are, which is why j's own loss alone is no fair reference.
    """
    table, chosen = np.asarray(losses, dtype=np.float64), np.asarray(choices)
    occupied = np.unique(chosen)
    means = {int(j): table[chosen == j].mean(axis=0) for j in occupied}  # of j's clients, under every model
    merges = []
    for j in means:
        for into in means:
            reference = max(means[j][j], means[into][into])
            if j != into and reference < first_loss:
                merges.append(Merge(j, into, float((means[j][into] - reference) / (first_loss - reference))))
    return min(merges, key=lambda merge: merge.lost, default=None)
