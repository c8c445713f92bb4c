"""Why are a run's clusters different? Every cluster's model is tried on the other clusters' clients."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from coterie.errors import DataError
from coterie.federation import Federation
from coterie.randomness import numpy_generator
from coterie.runs.records import ExplanationRecord, to_json
from coterie.runs.words import MOST_LISTED
from coterie.trainers import predicted_labels
from coterie_advice.cluster_differences import Crossing, PairDifference, label_mix
from coterie_advice.input_shift import Separation, alike_in_labels, as_features, separation
from coterie_advice.label_matching import LabelMatch, confusion, match_labels
from coterie_inference.known_clients import clients_of
from coterie_inference.predicting import loss_of, losses_of, module_for, outputs_of, shape_of
from coterie_inference.samples import ModelShape, Samples, read_samples

if TYPE_CHECKING:
    from coterie.runs import Result

MOST_SAMPLES = 4000
"""Samples of a cluster that are used of training data, and of test data; of more, so many are drawn."""
MOST_FEATURES = 3
"""Columns of a table that are named where inputs differ."""
Array = npt.NDArray[Any]


@dataclass(frozen=True)
class ClusterFacts:
    """A cluster in numbers."""

    id: int
    clients: int
    samples: int
    """All samples of its clients."""
    tested: int
    """Samples that models were judged on: test data, or all where there is none."""
    scores: dict[int, float]
    """By the id of the cluster whose model it is: accuracy on these samples, or the share of the variance explained."""
    losses: dict[int, float]


@dataclass(frozen=True)
class Explanation:
    """Why the clusters of a run differ; `str` of it is a table and sentences.

    Attributes:
        clusters: each cluster under every cluster's model, the largest first.
        pairs: what sets each two of them apart.
        left_out: clusters that were too many to look at.
        untested: clusters without test data: models were judged on what they were trained on.
        names: what the labels are called, where they have names.
        regression: whether the run is a regression.
    """

    clusters: list[ClusterFacts]
    pairs: list[PairDifference]
    left_out: int
    untested: list[int]
    names: tuple[Any, ...]
    regression: bool

    def words(self) -> list[str]:
        """What sets the clusters apart, in sentences."""
        if len(self.clusters) < 2:
            return ["The run has one cluster: there is nothing to compare."]
        lines = []
        if self.left_out:
            lines.append(f"The {len(self.clusters)} largest clusters are compared, {self.left_out} are left out.")
        if self.untested:
            listed = ", ".join(map(str, self.untested))
            lines.append(f"No test data in clusters {listed}: models are judged on what they were trained on.")
        for pair in self.pairs:
            lines += pair.words(self.names, regression=self.regression)
        return lines

    def __str__(self) -> str:
        if len(self.clusters) < 2:
            return self.words()[0]
        ids = [facts.id for facts in self.clusters]
        what = "variance explained" if self.regression else "accuracy"
        rows = [["cluster", "clients", "samples", *(f"model {number}" for number in ids)]]
        for facts in self.clusters:
            scores = [f"{facts.scores[number]:.3f}" for number in ids]
            rows.append([str(facts.id), str(facts.clients), str(facts.samples), *scores])
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        table = ["  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)) for row in rows]
        title = f"The {what} of every cluster's model (columns) on every cluster's clients (rows):"
        return "\n".join([title, *table, "", *self.words()])

    def record(self) -> ExplanationRecord:
        """What the report shows of it."""
        ids = [facts.id for facts in self.clusters] if len(self.clusters) > 1 else []
        scores = [[facts.scores[number] for number in ids] for facts in self.clusters if ids]
        return ExplanationRecord(ids, scores, self.regression, self.words())

    def to_json(self) -> dict[str, Any]:
        """All numbers as plain values."""
        pairs = [
            to_json(pair)
            | {"kind": pair.kind, "restored": pair.restored, "moved": to_json(pair.match.moved if pair.match else {})}
            | {"words": pair.words(self.names, regression=self.regression)}
            for pair in self.pairs
        ]
        return {**to_json(self), "pairs": pairs}


@dataclass(frozen=True)
class _Part:
    """Samples of a cluster with what every cluster's model says of them, label by label."""

    x: Array
    y: Array
    predicted: Mapping[int, Array]
    losses: Mapping[int, float]


def explain(result: Result, federation: Federation | None = None) -> Explanation:
    """Compare the clusters of a run; see `Result.explain`."""
    shape = shape_of(result)
    clients = clients_of(result) if federation is None else federation
    clusters = zip(result.summary.cluster_ids, result.clusters, strict=True)
    members = {number: group for number, group in clusters if group}  # a model may be without clients
    absent = [client for group in members.values() for client in group if client not in clients.ids]
    if absent:
        raise DataError(f"client {absent[0]!r} of the run is not in the federation: give all of its clients")
    largest = sorted(members, key=lambda number: (-len(members[number]), number))[:MOST_LISTED]
    ids = largest if len(largest) > 1 else []
    fits, tests = {}, {}
    for number in ids:
        group = [clients[client] for client in members[number]]
        fit = [part for client in group for part in (client.train, client.validation) if len(part)]
        test = [client.test for client in group if len(client.test)]
        fits[number] = _part(result, shape, fit, ids, number)
        tests[number] = _part(result, shape, test, ids, number) if test else fits[number]
    facts = []
    for number in largest:
        own = [clients[client] for client in members[number]]
        count = sum(len(client.train) + len(client.validation) + len(client.test) for client in own)
        part = tests.get(number)
        scores = {} if part is None else {m: float(_scores(part, m, shape).mean()) for m in ids}
        losses = {} if part is None else dict(part.losses)
        facts.append(ClusterFacts(number, len(own), count, 0 if part is None else len(part.x), scores, losses))
    pairs = [_pair(a, b, fits, tests, shape) for a, b in combinations(sorted(ids), 2)]
    untested = [number for number in ids if tests[number] is fits[number]]
    return Explanation(facts, pairs, len(members) - len(largest), untested, shape.label_names, not shape.classes)


def _part(result: Result, shape: ModelShape, splits: Sequence[Any], ids: Sequence[int], number: int) -> _Part:
    """The splits as one, at most so many samples, and every model's answers."""
    x, y = _drawn([read_samples(split, shape, labelled=True) for split in splits], number)
    predicted, losses = {}, {}
    for model in ids:
        outputs = outputs_of(module_for(result, cluster=model), x)
        losses[model] = float(losses_of(result, outputs, y, shape).mean())
        answer = predicted_labels(outputs, loss_of(result, outputs, shape)) if shape.classes else outputs
        predicted[model] = answer.reshape(-1).numpy()
    return _Part(x.numpy(), y.reshape(-1).numpy(), predicted, losses)


def _drawn(parts: Sequence[Samples], number: int) -> tuple[Tensor, Tensor]:
    x, y = torch.cat([part.x for part in parts]), torch.cat([part.y for part in parts if part.y is not None])
    if len(x) <= MOST_SAMPLES:
        return x, y
    chosen = torch.from_numpy(numpy_generator(0, "explain", number).permutation(len(x))[:MOST_SAMPLES])
    return x[chosen], y[chosen]


def _scores(
    part: _Part, model: int, shape: ModelShape, match: LabelMatch | None = None, *, back: bool = False
) -> Array:
    """What each answer of a model is worth, with a mean that is the accuracy, or the share of variance explained."""
    answers = part.predicted[model]
    if shape.classes:
        if match is not None:
            answers = match.backward(answers) if back else match.forward(answers)
        return np.asarray(answers == part.y, dtype=np.float64)
    return np.asarray(1 - (answers - part.y) ** 2 / max(float(part.y.var()), 1e-12), dtype=np.float64)


def _pair(a: int, b: int, fits: Mapping[int, _Part], tests: Mapping[int, _Part], shape: ModelShape) -> PairDifference:
    """Two clusters: labels are matched on training data of the other's clients, everything is judged on test data."""
    match = mix = None
    if shape.classes:
        counted = [confusion(fits[own].y, fits[own].predicted[other], shape.classes) for own, other in ((b, a), (a, b))]
        match = match_labels(*counted)
    crossings = [
        _crossing(tests[a], a, b, fits, shape, match, back=True),
        _crossing(tests[b], b, a, fits, shape, match),
    ]
    found = PairDifference(a, b, crossings[0], crossings[1], match)
    sides = [_whole(fits[number], tests[number]) for number in (a, b)]
    if shape.classes:
        if found.kind == "labels" and match is not None:
            sides[0] = (sides[0][0], match.forward(sides[0][1]))
        counts = [np.bincount(y, minlength=shape.classes) for _, y in sides]
        mix = label_mix(counts[0], counts[1])
    inputs, features = _inputs(sides, shape)
    return PairDifference(a, b, crossings[0], crossings[1], match, inputs, mix, features)


def _whole(fit: _Part, test: _Part) -> tuple[Array, Array]:
    """All inputs and labels of a cluster."""
    if fit is test:
        return fit.x, fit.y
    return np.concatenate([fit.x, test.x]), np.concatenate([fit.y, test.y])


def _crossing(
    part: _Part,
    own: int,
    other: int,
    fits: Mapping[int, _Part],
    shape: ModelShape,
    match: LabelMatch | None,
    *,
    back: bool = False,
) -> Crossing:
    """One cluster's clients under its own model, and under the other's."""
    mine, others = _scores(part, own, shape), _scores(part, other, shape)
    error = float((mine - others).std() / np.sqrt(max(len(mine), 1)))
    if match is None:
        return Crossing(float(mine.mean()), float(others.mean()), error)
    usual = np.bincount(fits[own].y).argmax()
    shared = np.isin(part.y, fits[other].y)
    return Crossing(
        float(mine.mean()),
        float(others.mean()),
        error,
        float((part.y == usual).mean()),
        float(_scores(part, other, shape, match, back=back).mean()),
        float((mine - others)[shared].mean()) if shared.any() else None,
    )


def _inputs(sides: Sequence[tuple[Array, Array]], shape: ModelShape) -> tuple[Separation | None, list[str]]:
    """How far the inputs of two sides can be told apart, and the columns of a table that differ most."""
    xs = [x for x, _ in sides]
    if shape.classes and all(len(x) == len(y) for x, y in sides):
        places = alike_in_labels(sides[0][1], sides[1][1])
        xs = [x[at] for x, at in zip(xs, places, strict=True)]
    if not min(map(len, xs)):
        return None, []
    rows = as_features(xs[0], xs[1])
    found = separation(*rows)
    names = shape.table.features if shape.table is not None else []
    if len(names) != rows[0].shape[1]:
        return found, []
    spread = np.sqrt((rows[0].var(0) + rows[1].var(0)) / 2)
    apart = (rows[1].mean(0) - rows[0].mean(0)) / np.maximum(spread, 1e-9)
    order = np.argsort(-np.abs(apart), kind="stable")[:MOST_FEATURES]
    return found, [f"{names[i]} ({apart[i]:+.1f} standard deviations)" for i in order if abs(apart[i]) > 0]
