"""One model or several? Train one for all, then look once, as method `auto` does, without splitting."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import torch

from coterie.benefit import FIRST_LOOK, Benefit, benefit
from coterie.errors import ConfigError
from coterie.federation import Federation
from coterie.methods import FedAvg, Server, WeightedSum
from coterie.methods.closed_form import Sharing, compare_sharing
from coterie.methods.compared import Compared
from coterie.methods.served import WAYS, try_to_serve
from coterie.methods.splitting import BenefitRule, LeafRound, Look
from coterie.methods.tree import Tree
from coterie.runs import Callback, Model, Result, RunConfig, assemble, execute
from coterie.tasks import Reply
from coterie_advice.advising import evidence_lines

Verdict = Literal["congruent", "incongruent", "undecided"]


@dataclass(frozen=True)
class Diagnosis:
    """What held-out data says of the model that was trained for all clients."""

    sharing: Sharing | None
    """What it says before training, as `advise` prints it."""
    rounds: int
    clients: int
    accuracy: float | None
    learned: Benefit
    """How much better than a constant answer the model serves a client, in accuracy or in shares of the loss."""
    own: tuple[Benefit, ...]
    """What a client's own versions of the model gain on validation data; none without validation data."""
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
        before = self.sharing is not None and any(way.chosen for way in self.sharing.ways if way.kind == "clusters")
        learned = self.learned.p_value <= level  # else its updates say little
        return "congruent" if learned and not hint and not before and self.clients > 1 else "undecided"

    def words(self) -> list[str]:
        """The diagnosis in sentences, made from the numbers that decided."""
        accuracy = "" if self.accuracy is None else f", mean accuracy {self.accuracy:.3f}"
        lines = [*evidence_lines(self.sharing)]
        lines.append(f"After {self.rounds} rounds of one model for {self.clients} clients{accuracy}:")
        lines.append(f"  it is better than a constant answer by {self.learned}")
        lines += [
            f"  {name} lowers the validation loss by {own}" for name, own in zip(WAYS[1:], self.own, strict=False)
        ]
        if self.apart is None:
            lines.append("  no split found on one half of the clients' data was found again on the other")
        else:
            lines.append(f"  the best split lowers the loss on held-out data by {self.apart}")
        lines += [f"  part {i + 1}: {', '.join(side)}" for i, side in enumerate(self.sides)]
        reason = {
            "incongruent": "These parts are surely better served by models of their own: methods auto and cfl split.",
            "undecided": "One model learned too little to tell, or several may serve better: give more rounds or data.",
            "congruent": "No split surely serves all its parts better: one model is right, as far as can be told.",
        }[self.verdict]
        return [*lines, f"{self.verdict.capitalize()}. {reason}"]


def diagnose(
    config: RunConfig,
    *,
    federation: Federation | None = None,
    model: Model | None = None,
    callbacks: Sequence[Callback] = (),
) -> Diagnosis:
    """Train one model for the configured rounds, then judge it, own versions of it and the best split."""
    if config.rounds is not None and config.rounds < 1:
        raise ConfigError(f"rounds={config.rounds}: a diagnosis needs at least one")
    run, _ = assemble(config, federation=federation, model=model, method=FedAvg())
    try:
        sharing = compare_sharing(run.server)
        result = execute(run, None, callbacks)
        server, common = replace(run.server, needs=None), result.state.model
        t = server.rounds + 1
        look = look_once(server.clients, common, t, server)
        models = dict.fromkeys(server.clients, common.expand(2, -1))
        own = try_to_serve(models, server.schedule.at(1), t, server)
        sides = () if look.split is None else tuple(branch.members for branch in look.split.branches)
        seen = look.memory
        apart = seen.last
        accuracy, learned = result.summary.accuracy.mean, learned_of(result)
        found = tuple(own.together[1:]) if own.clients else ()
        return Diagnosis(sharing, server.rounds, len(server.clients), accuracy, learned, found, apart, sides)
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
