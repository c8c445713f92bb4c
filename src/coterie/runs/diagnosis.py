"""One model or several? Train one for all, ask what CFL's rule asks, and compare with simpler models."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
import torch

from coterie.errors import ConfigError
from coterie.federation import Federation
from coterie.methods import make_method
from coterie.methods.cfl_check import Inspection, inspect
from coterie.methods.cfl_harm import CONFLICT, LEAST_SHARED
from coterie.methods.server import Server
from coterie.methods.tree import Node
from coterie.runs.assemble import Model, assemble, make_federation
from coterie.runs.callbacks import Callback
from coterie.runs.config import RunConfig
from coterie.runs.loop import execute
from coterie.runs.metrics import constant_score
from coterie.runs.target_scaling import TargetScaling
from coterie.tasks import Evaluate, Request

FEWEST_ROUNDS = 5
FEWEST_CLIENTS = 4
"""Fewer clients cannot show that they are alike: the smallest p-value of three is 1/15."""
DIFFERENT = 0.05
"""The largest p-value that counts as a difference here: nothing is split, so a doubt is enough."""
ALONE_ROUNDS = 5
"""Rounds that every client trains on alone from the common model, to see whether it would leave."""
SURE = 3.0
"""Standard errors that a mean difference must exceed."""
LEAST_GAIN = 0.05
"""The share of the loss that going on alone must save to matter."""

ERRATIC = 0.15
"""The standard error of what going on alone saves, a share of the loss, above which training is unsteady."""

Verdict = Literal["congruent", "incongruent", "undecided"]


@dataclass(frozen=True)
class Difference:
    """A mean difference over clients, and its standard error."""

    mean: float
    error: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Difference:
        known = np.array([value for value in values if math.isfinite(value)])
        if len(known) < 2:
            return cls(float(known.mean()) if len(known) else math.nan, math.inf)
        return cls(float(known.mean()), float(known.std(ddof=1) / math.sqrt(len(known))))

    @property
    def sure(self) -> bool:
        """Is it above zero by more than its noise?"""
        return self.mean > SURE * self.error


@dataclass(frozen=True)
class Diagnosis:
    """What the clients say of the model that was trained for all of them."""

    rounds: int
    clients: int
    accuracy: float | None
    learned: Difference
    """How much better the common model is than the most common label (accuracy) or the mean (share of the error)."""
    alone: Difference
    """The share of the validation loss that going on alone saves a client."""
    seen: Inspection | None

    @property
    def verdict(self) -> Verdict:
        """One model (congruent), several (incongruent), or not to be told from this (undecided)."""
        return self._judged[0]

    @property
    def _judged(self) -> tuple[Verdict, str]:
        seen = self.seen
        if seen is None:
            return "undecided", "There is one client alone, or none gave an update: there is nothing to compare."
        if seen.conflict:
            return "incongruent", (
                "No single model fits them: a step that helps one side raises the other's loss on labels that both "
                "hold. Method cfl splits here."
            )
        if not self.learned.sure:
            return "undecided", (
                "The common model is not surely better than always giving the most common answer, so its updates say "
                "little. Train longer (--rounds), with larger steps (--lr), or on scaled features."
            )
        if self.alone.error > ERRATIC and self.clients >= FEWEST_CLIENTS:
            return "undecided", (
                "Training is unsteady: going on alone lowers some clients' losses and raises others' by far, "
                "so their updates say little. Take smaller steps (--lr), or scale the features."
            )
        differ, split = seen.p_value <= DIFFERENT, seen.sides is not None
        if differ and split and seen.conflict_p_value <= DIFFERENT and seen.shared >= LEAST_SHARED:
            return "undecided", "There are signs of a conflict, not enough to be sure: more rounds would settle it."
        if self.alone.sure and self.alone.mean >= LEAST_GAIN:
            return "undecided", (
                "Clients that go on alone do better than with all the others. Run cfl:when=gain, which tries separate "
                "models out, or local, and compare."
            )
        if differ and not split:
            return "undecided", "The clients differ, but no groups are clear: more rounds or samples would settle it."
        if self.clients < FEWEST_CLIENTS:
            return "undecided", f"Fewer than {FEWEST_CLIENTS} clients cannot show that they are alike."
        if differ:
            return "congruent", (
                "The clients differ, but no side's step harms the other where both hold the same labels: one model "
                "serves them, as far as can be seen. Separate models may still be a little better: cfl:when=gain."
            )
        return "congruent", "What differs between the clients is no more than noise: one model is right."

    def words(self) -> list[str]:
        """The diagnosis in sentences."""
        accuracy = "" if self.accuracy is None else f", mean accuracy {self.accuracy:.3f}"
        lines = [f"After {self.rounds} rounds of one model for {self.clients} clients{accuracy}:"]
        seen = self.seen
        if seen is not None:
            kind = "points of accuracy above the most common label" if self.accuracy is not None else "of the error"
            lines += [
                f"  the common model is {100 * self.learned.mean:.1f} ± {100 * self.learned.error:.1f} {kind}"
                if self.accuracy is not None
                else f"  the common model explains {self.learned.mean:.0%} ± {self.learned.error:.0%} {kind}",
                f"  going on alone saves a client {self.alone.mean:.0%} ± {self.alone.error:.0%} of its loss",
                f"  do they differ at all? p = {seen.p_value:.2g}",
            ]
            if seen.sides is not None:
                sizes = " and ".join(str(len(side)) for side in seen.sides)
                lines.append(
                    f"  the best split, {sizes}: does each side's step harm the other? p = {seen.conflict_p_value:.2g} "
                    f"(below {CONFLICT:g} it is a conflict); {seen.shared:.0%} of the samples have labels of both sides"
                )
        verdict, reason = self._judged
        if verdict == "incongruent" and seen is not None and seen.sides is not None:
            lines += [f"  side {i + 1}: {', '.join(side)}" for i, side in enumerate(seen.sides)]
        return [*lines, f"{verdict.capitalize()}. {reason}"]


def diagnose(
    config: RunConfig,
    *,
    federation: Federation | None = None,
    model: Model | None = None,
    callbacks: Sequence[Callback] = (),
) -> Diagnosis:
    """Train one model for the configured rounds, then judge it and the best split, without making it."""
    if config.rounds is not None and config.rounds < FEWEST_ROUNDS:
        raise ConfigError(f"rounds={config.rounds}: a diagnosis needs at least {FEWEST_ROUNDS}")
    given = make_federation(config)[0] if federation is None else federation
    clients = TargetScaling.of(given.table).federation(given)
    run, _ = assemble(config, federation=federation, model=model, method=make_method("fedavg"))
    try:
        result = execute(run, None, callbacks)
        server, root = run.server, Node(0, None, tuple(result.clusters[0]), result.models[0], 0)
        t = server.rounds + 1
        seen = inspect(root, t, server, "samples") if len(root.members) > 1 else None
        learned = _learned(clients, root.model, server)
        alone = going_alone(root.members, root.model, t, server)
        return Diagnosis(server.rounds, len(root.members), result.summary.accuracy.mean, learned, alone, seen)
    finally:
        run.engine.close()


def _learned(clients: Federation, model: torch.Tensor, server: Server) -> Difference:
    """The common model against each client's most common label, or its mean target, on test data."""
    values = []
    for reply in server.ask_all(clients.ids, Evaluate(model[None], "test")):
        constant = constant_score(clients[reply.client], None)
        if constant is None:
            continue
        if clients.regression:
            values.append(1 - reply.values["loss"][0] / constant if constant > 0 else math.nan)
        else:
            values.append(reply.values["accuracy"][0] - constant)
    return Difference.of(values)


def going_alone(
    members: Sequence[str], model: torch.Tensor, t: int, server: Server, rounds: int = ALONE_ROUNDS
) -> Difference:
    """The share of its validation loss that each client saves by training on alone, for so many rounds' training."""
    how = server.schedule.at(t)
    longer = replace(how, epochs=rounds * how.epochs, steps=None if how.steps is None else rounds * how.steps)
    requests = []
    for reply in server.train(members, model, t, longer):
        if reply.vector is not None:
            models = torch.stack([model, model + reply.vector.to(model.dtype)])
            requests.append(Request(reply.client, Evaluate(models, "validation")))
    losses = [reply.values["loss"] for reply in server.ask(requests)]
    return Difference.of([1 - alone / common if common > 0 else math.nan for common, alone in losses])
