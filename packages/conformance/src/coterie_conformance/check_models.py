"""Checks of the models: no two share memory, states stay as they were, and members of a cluster have one model."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Mapping
from itertools import combinations
from typing import Any

import numpy as np
import torch
from torch import Tensor

from coterie_conformance.checking import DoesNotApply, Failed, check
from coterie_conformance.subjects import Subject
from coterie_conformance.trials import keeps_all, passing, start


@check(
    "aliasing",
    "Do no two models of an assignment share memory, so that a change to one leaves the others alone?",
    "models of clusters that are one and the same object",
)
def aliasing(subject: Subject) -> str | None:
    trial = start(subject.method)
    for _ in range(subject.rounds):
        assignment = trial.round()
        if keeps_all(assignment, trial.server):
            raise DoesNotApply("clients are served by models of their own, which the server does not hold")
        spans = {number: _memory(model) for number, model in assignment.by_id.items()}
        for one, other in combinations(spans, 2):
            if spans[one][0] < spans[other][1] and spans[other][0] < spans[one][1]:
                raise Failed(f"round {trial.t}: models {one} and {other} share memory")
    return None


def _memory(model: Tensor) -> tuple[int, int]:
    """The addresses at which a model's numbers begin and end."""
    return model.data_ptr(), model.data_ptr() + model.numel() * model.element_size()


@check(
    "old state",
    "Does a round leave the state that it was given as it was?",
    "averaging in place, which also spoils checkpoints and restarts",
)
def old_state(subject: Subject) -> str | None:
    trial = start(subject.method)
    for _ in range(subject.rounds):
        before, kept = trial.state, copy.deepcopy(trial.state)
        trial.round()
        if where := difference(before, kept):
            raise Failed(f"round {trial.t} changed the state before it: {where}")
        now, kept = trial.state, copy.deepcopy(trial.state)
        trial.method.assignment(now, trial.server)
        if where := difference(now, kept):
            raise Failed(f"assignment after round {trial.t} changed the state: {where}")
    return None


def difference(one: Any, other: Any, where: str = "state") -> str | None:
    """Where two states differ, or None. Numbers are compared bit for bit."""
    if isinstance(one, Tensor | np.ndarray):
        same = type(one) is type(other) and np.array_equal(np.asarray(one), np.asarray(other), equal_nan=_real(one))
        return None if same else where
    if dataclasses.is_dataclass(one) and not isinstance(one, type):
        pairs = {f.name: (getattr(one, f.name), getattr(other, f.name)) for f in dataclasses.fields(one)}
        found = (difference(*pair, f"{where}.{name}") for name, pair in pairs.items())
    elif isinstance(one, Mapping):
        if list(one) != list(other):
            return where
        found = (difference(one[key], other[key], f"{where}[{key!r}]") for key in one)
    elif isinstance(one, list | tuple):
        if len(one) != len(other):
            return where
        found = (difference(a, b, f"{where}[{i}]") for i, (a, b) in enumerate(zip(one, other, strict=True)))
    else:
        return None if one == other or (one != one and other != other) else where
    return next((text for text in found if text), None)


def _real(array: Any) -> bool:
    return np.asarray(array).dtype.kind == "f"


@check(
    "one model",
    "Do all clients of a cluster end a round with the same numbers, unless they are served by mixtures?",
    "FLT's averaging in place over models that are still to be averaged: members of a cluster end up different",
)
def one_model(subject: Subject) -> str | None:
    trial = start(subject.method)
    for _ in range(subject.rounds):
        assignment = trial.round()
        if assignment.private:
            raise DoesNotApply("clients keep layers of their own")
        if any(served.mixture for served in assignment.served()):
            raise DoesNotApply("clients are served by mixtures")
        models: dict[int, Tensor] = {}
        for served in assignment.served():
            first = models.setdefault(served.cluster, served.model)
            if not torch.equal(first, served.model):
                gap = float((first - served.model).abs().max())
                raise Failed(f"round {trial.t}: {served.client} differs from its cluster {served.cluster} by {gap:.2g}")
    return None


@check(
    "different starts",
    "Are the models that clients choose from, or are mixed of, different from the first round on?",
    "IFCA with k copies of one model: ties all go to the first, and the others are never chosen",
)
def different_starts(subject: Subject) -> str | None:
    trial = start(subject.method).rounds(1)
    engine = passing(trial)
    offers = 0
    for request in engine.asked:
        for field in dataclasses.fields(request.task):  # type: ignore[arg-type]
            value = getattr(request.task, field.name)
            if (
                isinstance(value, Tensor)
                and value.ndim == 2
                and len(value) > 1
                and value.shape[1] == engine.layout.size
            ):
                offers += 1
                if any(torch.equal(a, b) for a, b in combinations(value, 2)):
                    raise Failed(f"{request.client} is offered {len(value)} models, of which two are equal")
    if not offers:
        raise DoesNotApply("no client is offered several models")
    return None
