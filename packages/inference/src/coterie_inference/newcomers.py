"""Clients after training: where a newcomer belongs, and whether a client still fits its cluster."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from coterie.errors import ConfigError, DataError
from coterie.runs.prepared import Placing
from coterie_inference.known_clients import clients_of
from coterie_inference.predicting import losses_of, module_for, outputs_of, shape_of
from coterie_inference.samples import ModelShape, Samples, as_federation, read_newcomers, read_samples
from coterie_inference.unlabelled import ByInputs, InputFit, fit_by_inputs

if TYPE_CHECKING:
    from coterie.federation import Federation
    from coterie.runs import Result

DRIFT_LEVEL = 0.01
"""Chance with which a client that has not changed is said to have drifted."""
LEAST_SAMPLES = 10
"""Samples that drift is judged by, at the least."""


def assign(result: Result, data: Any) -> dict[str, int]:
    """The cluster of every newcomer by the run's own method; see `Result.assign`."""
    shape = shape_of(result)
    newcomers = read_newcomers(data, shape)
    bare = lacking_labels(result, newcomers)
    labelled = {client: samples for client, samples in newcomers.items() if client not in bare}
    by_inputs = _surely_by_inputs(result, bare) if bare else {}
    by_rule = {} if bare and not labelled else _by_rule(result, labelled, shape)
    return {client: (by_inputs | by_rule)[client] for client in newcomers}


def lacking_labels(result: Result, newcomers: Mapping[str, Samples]) -> dict[str, Samples]:
    """The newcomers without labels, where the run's method places newcomers by them."""
    method = _placing(result).method
    if hasattr(method, "place") and getattr(method, "places_unlabelled", False):
        return {}
    return {client: samples for client, samples in newcomers.items() if samples.y is None}


def fits(result: Result, data: Any, federation: Federation | None = None) -> dict[str, InputFit]:
    """Which cluster every newcomer fits by its inputs alone; see `Result.fits`."""
    placing, shape = _placing(result), shape_of(result)
    placing.check(ByInputs)
    newcomers = read_newcomers(data, shape)
    cluster_of = {row.client: result.record_of(row.client).cluster for row in result.clients}
    known = read_newcomers(clients_of(result) if federation is None else federation, shape)
    return fit_by_inputs(newcomers, known, cluster_of, placing.server_for, shape)


def _surely_by_inputs(result: Result, newcomers: Mapping[str, Samples]) -> dict[str, int]:
    """The clusters that newcomers fit by their inputs; ConfigError where one of them fits none, or several alike."""
    name = result.summary.method.partition(":")[0]
    missing = f"client {next(iter(newcomers))!r} has no labels: method {name!r} places newcomers by their labels too"
    try:
        found = fits(result, newcomers)
    except ConfigError as problem:
        raise ConfigError(f"{missing}, and by inputs alone it is not possible here: {problem}") from problem
    for client, fit in found.items():
        if fit.cluster is None:
            raise ConfigError(f"client {client!r} has no labels, and {fit.reason}")
    return {client: fit.cluster for client, fit in found.items() if fit.cluster is not None}


def _placing(result: Result) -> Placing:
    if result.placing is None:
        raise ConfigError("the run's method is not known here: load the run from its folder, coterie.load(folder)")
    return result.placing


def _by_rule(result: Result, newcomers: Mapping[str, Samples], shape: ModelShape) -> dict[str, int]:
    """By the rule of the run's method; where it has none, or its answer has no model, by the lowest loss."""
    placing, found = _placing(result), {}
    place = getattr(placing.method, "place", None)
    federation = as_federation(newcomers, shape)
    if place is not None:
        server = placing.server_for(federation)
        try:
            found = place(result.state, federation.ids, server)
        finally:
            server.engine.close()
    # A model that no client has in the end is in no file, and a method of one's own may have no rule.
    known = set(result.summary.cluster_ids)
    return {
        client: number
        if (number := found.get(client)) in known
        else _best_fit(result, client, newcomers[client], shape)
        for client in federation.ids
    }


def _best_fit(result: Result, client: str, samples: Samples, shape: ModelShape) -> int:
    """The cluster whose model has the lowest loss on the samples."""
    if samples.y is None:
        raise ConfigError(f"client {client!r} found no cluster by its inputs: give labels too")
    means = {number: float(losses.mean()) for number, losses in _losses(result, samples, shape).items()}
    return min(means, key=lambda number: means[number])


def _losses(result: Result, samples: Samples, shape: ModelShape, apart: int | None = None) -> dict[int, Tensor]:
    """The loss of every sample under the model of every cluster but one, by the clusters' ids."""
    assert samples.y is not None
    return {
        number: losses_of(result, outputs_of(module_for(result, cluster=number), samples.x), samples.y, shape)
        for number in result.summary.cluster_ids
        if number != apart
    }


@dataclass(frozen=True)
class Drift:
    """Whether a client still fits its cluster, from new samples of its own.

    Two things are tested, one-sided: is its loss lower under another cluster's model (a t-test of the differences,
    paired over the samples), and is it higher than on its test data at training time (a t-test of the mean)? The
    p-values are multiplied by the number of tests (Bonferroni), so that a client that has not changed is called
    drifted in at most one case of a hundred, as far as a t-test holds for its losses.
    """

    client: str
    cluster: int
    samples: int
    loss: float
    """Mean loss of the new samples under the client's own model."""
    trained_loss: float | None
    """Its loss on its test data at the end of training, if it had any."""
    others: dict[int, float]
    """Mean loss of the new samples under the other clusters' models, by id."""
    nearest: int | None
    """The cluster whose model has the lowest of these."""
    p_other: float
    """Chance of so large a difference to another cluster's model, if that were no better."""
    p_rise: float
    """Chance of so large a rise of the loss, if there were none."""

    @property
    def elsewhere(self) -> bool:
        """Whether it belongs to another cluster: that one's model is better, and undoes half of the rise or more."""
        if self.p_other > DRIFT_LEVEL or self.nearest is None:
            return False
        before = self.loss if self.trained_loss is None else self.trained_loss
        return self.loss - self.others[self.nearest] >= (self.loss - before) / 2

    @property
    def drifted(self) -> bool:
        """Whether it no longer fits its cluster."""
        return min(self.p_other, self.p_rise) <= DRIFT_LEVEL

    def __str__(self) -> str:
        was = "" if self.trained_loss is None else f", {self.trained_loss:.3g} at training time"
        now = f"loss {self.loss:.3g} on {self.samples} new samples{was}"
        if self.elsewhere:
            assert self.nearest is not None
            return (
                f"{self.client} no longer fits cluster {self.cluster}: the model of cluster {self.nearest} is better "
                f"for it, {now}, {self.others[self.nearest]:.3g} there (p = {self.p_other:.1g})"
            )
        if self.drifted:
            return (
                f"{self.client} no longer fits cluster {self.cluster}, and no other cluster fits it: {now} "
                f"(p = {min(self.p_other, self.p_rise):.1g}); train again"
            )
        return f"{self.client} fits cluster {self.cluster}: {now} (p = {min(self.p_other, self.p_rise):.2g})"


def drift(result: Result, client: str, data: Any) -> Drift:
    """Judge a client by new samples; see `Result.drift`."""
    row, shape = result.record_of(client), shape_of(result)
    samples = read_samples(data, shape, labelled=True)
    assert samples.y is not None
    n = len(samples.x)
    if n < LEAST_SAMPLES:
        raise DataError(f"{n} samples are too few to judge drift by: give at least {LEAST_SAMPLES}")
    own = losses_of(result, outputs_of(module_for(result, client), samples.x), samples.y, shape).double()
    # Where clients keep layers of their own, another cluster's model would be another client's.
    apart = {} if any(one.private for one in result.clients) else _losses(result, samples, shape, row.cluster)
    means = {number: float(losses.mean()) for number, losses in apart.items()}
    p_values = [_p_above(own - losses.double()) for losses in apart.values()]
    before = row.loss if row.test_samples else None
    p_rise = 1.0 if before is None else _p_above(own - before, n / row.test_samples)
    tests = len(apart) + (before is not None)
    return Drift(
        client,
        row.cluster,
        n,
        float(own.mean()),
        row.loss,
        means,
        min(means, key=means.__getitem__, default=None),
        min(1.0, tests * min(p_values, default=1.0)),
        min(1.0, tests * p_rise),
    )


def _p_above(values: Tensor, further: float = 0.0) -> float:
    """Student's one-sided test that the mean of values `(n,)` is above zero.

    `further` is n over the number of samples in a mean that was taken off all values, for it has an error too.
    """
    from scipy.stats import t

    values = values[torch.isfinite(values)]
    n = len(values)
    if n < 2:
        return 1.0
    mean, error = float(values.mean()), float(values.std()) * math.sqrt((1 + further) / n)
    if error == 0:
        return 0.0 if mean > 0 else 1.0
    return float(t.sf(mean / error, n - 1))
