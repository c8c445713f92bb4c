"""Newcomers with inputs alone: the cluster whose clients' inputs are like theirs, or why that cannot be said."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np
import numpy.typing as npt
import torch

from coterie.clustering.conformal import distances, left_out_distances, p_values, relative
from coterie.errors import ConfigError, DataError
from coterie.methods.needs import Needs
from coterie.randomness import torch_generator
from coterie.tasks import InputMoments
from coterie_inference.samples import ModelShape, Samples, as_federation

if TYPE_CHECKING:
    from coterie.federation import Federation
    from coterie.methods import Server

LEVEL = 0.05
"""Chance with which a newcomer that is drawn as a cluster's clients were is said not to fit it."""
FEWEST = 19
"""Clients at the least: the smallest p-value is one of as many and one, and must reach the level."""
Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class InputFit:
    """Which cluster a newcomer fits by its inputs; `str` of it is a sentence."""

    client: str
    cluster: int | None
    """None: its inputs do not say."""
    p_values: dict[int, float]
    """By the cluster's id: the chance of so bad a fit for a client of that cluster."""
    p_far: float
    """Chance of so large a distance to the nearest cluster for a client of the run."""
    alarm: bool
    """Whether it fits no cluster."""
    reason: str

    def __str__(self) -> str:
        return f"{self.client}: {self.reason}"


class ByInputs:
    """What comparing inputs needs of clients; privacy and secure sums accept or refuse it by this."""

    name: ClassVar[str] = "placing newcomers without labels"
    needs: ClassVar[Needs] = Needs(
        tasks=(InputMoments,), of_data="moments of the clients' inputs", instead="give the newcomers' labels too"
    )


def fit_by_inputs(
    newcomers: Mapping[str, Samples],
    known: Mapping[str, Samples],
    cluster_of: Mapping[str, int],
    server_for: Callable[[Federation], Server],
    shape: ModelShape,
) -> dict[str, InputFit]:
    """Compare the inputs of newcomers with those of a run's clients.

    Args:
        newcomers: their samples by id; labels are not looked at.
        known: those of all clients of the run.
        cluster_of: the id of each client's cluster.
        server_for: makes a server of clients, who answer it with moments of their inputs.
        shape: what the run's model takes.

    Raises:
        ConfigError: the inputs are tokens.
        DataError: a client of the run is missing.
    """
    if absent := [client for client in cluster_of if client not in known]:
        raise DataError(f"client {absent[0]!r} of the run is not in the federation: give all of its clients")

    def ask(clients: Mapping[str, Samples]) -> Floats:
        """Mean and mean square `(m, 2, width)` of the clients' inputs."""
        server = server_for(as_federation({client: Samples(own.x) for client, own in clients.items()}, shape))
        try:
            replies = list(server.ask_all(list(clients), InputMoments()))
        finally:
            server.engine.close()
        return np.asarray([[reply.values["mean"], reply.values["square"]] for reply in replies])

    founders = {client: known[client] for client in cluster_of}
    found: dict[str, InputFit] = {}
    for size in sorted({len(samples.x) for samples in newcomers.values()}):
        alike = {client: samples for client, samples in newcomers.items() if len(samples.x) == size}
        moments = ask(alike)
        rows, others = as_rows(ask(at_most(founders, size)), moments)
        found |= judged(rows, list(cluster_of.values()), others, list(alike))
    return {client: found[client] for client in newcomers}


def at_most(clients: Mapping[str, Samples], size: int) -> dict[str, Samples]:
    """The clients with as many inputs as the newcomer has, at the most: means of more have less noise."""
    found = {}
    for client, samples in clients.items():
        order = torch.randperm(len(samples.x), generator=torch_generator(size, "inputs", client))
        found[client] = Samples(samples.x[order[:size]])
    return found


def as_rows(founders: Floats, newcomers: Floats) -> tuple[Floats, Floats]:
    """Means and mean squares `(m, 2, width)` as rows `(m, 2 width)` of inputs with mean 0 and variance 1 in all.

    One scale serves all inputs: pixels keep their proportions, and columns of tables have theirs already.
    """
    if not np.isfinite(founders).all():
        raise ConfigError("the run's inputs are tokens, of which there are no moments: give the newcomers' labels too")
    mean, square = founders.mean(0)
    variance = float((square - mean**2).mean())
    scale = variance**0.5 if variance > 0 else 1.0

    def rows(found: Floats) -> Floats:
        first = (found[:, 0] - mean) / scale
        second = (found[:, 1] - 2 * found[:, 0] * mean + mean**2) / scale**2
        return np.concatenate([first, second], axis=1)

    return rows(founders), rows(newcomers)


def judged(founders: Floats, clusters: Sequence[int], rows: Floats, names: Sequence[str]) -> dict[str, InputFit]:
    """The clusters that each newcomer fits by its distance relative to the others, and whether it is far from all."""
    ids, places = np.unique(np.asarray(clusters), return_inverse=True)
    before, now = left_out_distances(founders, places), distances(rows, founders, places)
    together = np.flatnonzero(np.bincount(places)[places] > 1)  # one that is alone has no cluster when it is left out
    own = together, places[together]
    far = p_values(now.min(1), before[own])
    p = p_values(relative(now), relative(before)[own]) if len(ids) > 1 else far[:, None]
    by_cluster = [dict(zip(ids.tolist(), row, strict=True)) for row in p.tolist()]
    return {
        name: _verdict(name, values, float(p_far), len(together))
        for name, values, p_far in zip(names, by_cluster, far, strict=True)
    }


def _verdict(client: str, values: dict[int, float], p_far: float, founders: int) -> InputFit:
    """One cluster that fits: there. None, or far from all: an alarm. Several: the inputs do not say which."""
    some = [number for number, p in values.items() if p > LEVEL]
    surely_far = p_far <= LEVEL
    cluster, alarm = None, False
    if founders < FEWEST:
        few = f"{founders} clients that share a cluster are too few"
        reason = f"{few} to be {1 - LEVEL:.0%} sure by inputs, {FEWEST} are needed"
    elif not some or (surely_far and len(some) > 1):
        alarm = True
        least = max(values.values()) if not some else p_far
        reason = f"fits no cluster: its inputs are not like those of any (p = {least:.2g})"
    elif len(some) > 1:
        reason = f"fits clusters {', '.join(map(str, some))} alike by its inputs: give labels too"
    else:
        cluster = some[0]
        reason = f"fits cluster {cluster} by its inputs"
    return InputFit(client, cluster, values, p_far, alarm, reason)
