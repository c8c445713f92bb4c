"""Layers that the models of all clusters share (IFCA, section 4.1)."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from coterie.errors import ConfigError
from coterie.methods.aggregation import WeightedSum
from coterie.methods.server import Server
from coterie.parameters import gather, scatter

Spans = tuple[slice, ...]
"""Places in a vector."""


def shared_spans(clustered: str | tuple[str, ...], server: Server) -> Spans:
    """The places of the layers that all clusters share, which are all but the `clustered`; none where that is "all"."""
    if clustered == "all":
        return ()
    if server.optimizer.rule != "none":
        raise ConfigError(
            f"server_optimizer={server.optimizer.rule!r} does not go with clustered={clustered!r}: the layers that "
            "clusters share would part, use clustered='all'"
        )
    layout = server.layout
    names = (clustered,) if isinstance(clustered, str) else clustered
    known = ", ".join(layout.layers)
    if not any(names):
        raise ConfigError(f"clustered={clustered!r} leaves nothing to cluster: name some of {known}, or 'all'")
    rest = layout.complement(layout.select(names))
    if not rest:
        raise ConfigError(f"clustered={clustered!r} leaves nothing to share: name fewer of {known}, or 'all'")
    return rest


def share(models: Tensor, shared: Spans) -> Tensor:
    """The models `(k, d)` with the numbers in the `shared` places taken from the first one."""
    for place in shared:
        models[:, place] = models[0, place]
    return models


def share_steps(steps: Sequence[Tensor], sums: Sequence[WeightedSum], m: float, shared: Spans) -> None:
    """Give all clusters' steps `(d,)` the same numbers in the `shared` places: the sum over all clients, over m."""
    if not shared:
        return
    of_all = gather(sum((total.total for total in sums), torch.zeros(())) / m, shared)
    for step in steps:
        scatter(step, shared, of_all)
