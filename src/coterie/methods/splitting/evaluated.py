"""Held-out benefit for clients that can only train and evaluate: what they evaluate on is the judge.

Candidates come from the updates of a round, and the models of their parts, beside the one of all, are evaluated by the
members. There are no halves to reproduce on, and no offset that a client keeps to itself: label skew that an offset
would explain may split clusters, until the split is undone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar

import torch
from torch import Tensor

from coterie.methods.compared import Compared, ComparedHalves
from coterie.methods.server import Server
from coterie.methods.splitting.base import LeafRound, split_rule
from coterie.methods.splitting.benefit import BenefitRule
from coterie.methods.splitting.candidates import Looks
from coterie.methods.splitting.judging import Losses, as_evaluated
from coterie.methods.tree import Node
from coterie.tasks import Evaluate, Task


@split_rule("evaluated")
class EvaluatedRule(BenefitRule):
    """Split where what clients evaluate says that all parts are surely better served apart."""

    needs_updates: ClassVar[bool] = True
    reproduces: ClassVar[bool] = False
    tasks: ClassVar[tuple[type[Task], ...]] = (Evaluate,)

    def compared(self, clients: Sequence[str], seen: LeafRound, t: int, server: Server) -> ComparedHalves:
        """The updates of the round, each as a whole."""
        wanted = set(clients)
        updates = {r.client: r.vector for r in seen.replies if r.client in wanted and r.vector is not None}
        whole = torch.stack(list(updates.values()))[None]
        return ComparedHalves(tuple(updates), whole[..., : server.layout.trainable], whole)

    def base(self, seen: LeafRound) -> Tensor:
        """The model that they trained from."""
        return seen.leaf.model

    def judge(self, models: Mapping[str, Tensor], server: Server) -> Losses:
        return as_evaluated(models, server)

    def confirm(self, models: Mapping[str, Tensor], server: Server) -> Losses:
        return as_evaluated(models, server)

    def chosen_again(
        self, memory: Looks, parent: Node, children: Sequence[Node], t: int, server: Server
    ) -> dict[str, int]:
        return {}  # nodes that only evaluate cannot train from another model than their own

    def newcomer(self, client: str, model: Tensor, t: int, server: Server, compared: Compared) -> Tensor:
        return compared.of_newcomer(client, model, t, server)

    def obstacles(self, server: Server) -> list[str]:
        found = super().obstacles(server)
        if len(server.clients) < 3:
            few = f"CFL cannot split {len(server.clients)} nodes that only train and evaluate"
            found.append(f"{few}: it needs 3 or more to tell a difference from chance")
        return found
