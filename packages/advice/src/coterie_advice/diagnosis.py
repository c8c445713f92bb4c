"""One model or several? Train one for all, then look once, as CFL's rule does, without splitting."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import torch

from coterie.benefit import FIRST_LOOK, Benefit, benefit
from coterie.errors import ConfigError
from coterie.federation import Federation
from coterie.methods import FedAvg, Server, WeightedSum
from coterie.methods.compared import Compared
from coterie.methods.splitting import BenefitRule, LeafRound, Look
from coterie.methods.tree import Tree
from coterie.runs import Callback, Model, Result, RunConfig, assemble, execute
from coterie.tasks import Evaluate, Reply, Request

ALONE_ROUNDS = 5
"""Rounds that every client trains on alone from the common model, to see whether it would leave."""

Verdict = Literal["congruent", "incongruent", "undecided"]


@dataclass(frozen=True)
class Diagnosis:
    """What held-out data says of the model that was trained for all clients."""

    rounds: int
    clients: int
    accuracy: float | None
    learned: Benefit
    """How much better than a constant answer the model serves a client, in accuracy or in shares of the loss."""
    alone: Benefit
    """The share of its validation loss that going on alone saves a client."""
    apart: Benefit | None
    """What the best split saves of the loss on held-out data; None where no split reproduces on both halves."""
    sides: tuple[tuple[str, ...], ...]
    """Who would be split from whom; empty where held-out data does not surely say so."""

    @property
    def verdict(self) -> Verdict:
        """Several models (incongruent), one (congruent), or more data is needed to tell (undecided)."""
        if self.sides:
            return "incongruent"
        level = BenefitRule().level
        hint = self.apart is not None and self.apart.p_value <= level
        learned = self.learned.p_value <= level  # else its updates say little
        return "congruent" if learned and not hint and self.clients > 1 else "undecided"

    def words(self) -> list[str]:
        """The diagnosis in sentences, made from the numbers that decided."""
        accuracy = "" if self.accuracy is None else f", mean accuracy {self.accuracy:.3f}"
        lines = [f"After {self.rounds} rounds of one model for {self.clients} clients{accuracy}:"]
        lines.append(f"  it is better than a constant answer by {self.learned}")
        if math.isfinite(self.alone.error):
            lines.append(f"  going on alone saves a client {self.alone} of its validation loss (1 is all of it)")
        if self.apart is None:
            lines.append("  no split found on one half of the clients' data was found again on the other")
        else:
            lines.append(f"  the best split lowers the loss on held-out data by {self.apart}")
        lines += [f"  side {i + 1}: {', '.join(side)}" for i, side in enumerate(self.sides)]
        reason = {
            "incongruent": "Both sides are surely better served by models of their own: method cfl splits here.",
            "undecided": "Not enough was learned to tell, or two models may serve better: give more rounds or samples.",
            "congruent": "No split surely serves both sides better: one model is right, as far as can be told.",
        }[self.verdict]
        return [*lines, f"{self.verdict.capitalize()}. {reason}"]


def diagnose(
    config: RunConfig,
    *,
    federation: Federation | None = None,
    model: Model | None = None,
    callbacks: Sequence[Callback] = (),
) -> Diagnosis:
    """Train one model for the configured rounds, then judge it and the best split, without making it."""
    if config.rounds is not None and config.rounds < 1:
        raise ConfigError(f"rounds={config.rounds}: a diagnosis needs at least one")
    run, _ = assemble(config, federation=federation, model=model, method=FedAvg())
    try:
        result = execute(run, None, callbacks)
        server, common = run.server, result.state.model
        t = server.rounds + 1
        look = look_once(server.clients, common, t, server)
        alone = going_alone(server.clients, common, t, server)
        sides = () if look.split is None else tuple(branch.members for branch in look.split.branches)
        seen = look.memory
        apart = None if math.isnan(seen.p_value) else Benefit(seen.gain, seen.error, seen.p_value, len(seen.clients))
        accuracy = result.summary.accuracy.mean
        return Diagnosis(server.rounds, len(server.clients), accuracy, learned_of(result), alone, apart, sides)
    finally:
        run.engine.close()


def learned_of(result: Result) -> Benefit:
    """How much better than a constant answer a run's models serve its clients, on their test data."""
    rows = [row for row in result.clients if row.constant is not None]
    if result.summary.accuracy.mean is not None:
        return benefit(
            [row.accuracy - row.constant for row in rows if row.accuracy is not None and row.constant is not None]
        )
    return benefit([1 - row.loss / row.constant for row in rows if row.loss is not None and row.constant])


def look_once(clients: Sequence[str], model: torch.Tensor, t: int, server: Server) -> Look:
    """What CFL's default rule makes of some clients that share a model."""
    leaf = replace(Tree.single(clients, model).nodes[0], born=t - FIRST_LOOK)
    there = [Reply(client, server.samples[client], None, {}) for client in clients]
    rule = BenefitRule()
    return rule.consider(rule.begin(), LeafRound(leaf, WeightedSum(0), there, model, Compared(), "samples"), t, server)


def going_alone(
    members: Sequence[str], model: torch.Tensor, t: int, server: Server, rounds: int = ALONE_ROUNDS
) -> Benefit:
    """The share of its validation loss that each client saves by training on alone, for so many rounds' training."""
    how = server.schedule.at(t)
    longer = replace(how, epochs=rounds * how.epochs, steps=None if how.steps is None else rounds * how.steps)
    requests = []
    for reply in server.train(members, model, t, longer):
        if reply.vector is not None:
            models = torch.stack([model, model + reply.vector.to(model.dtype)])
            requests.append(Request(reply.client, Evaluate(models, "validation")))
    losses = [reply.values["loss"] for reply in server.ask(requests)]
    return benefit([1 - alone / common if common > 0 else math.nan for common, alone in losses])
