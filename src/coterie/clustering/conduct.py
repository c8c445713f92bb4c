"""Whether clients' losses follow the updates that they send.

An update is the way down of its client's own loss. So where the server moves a model along a client's update, the loss
that this client reports next must fall, and where it moves the model against it, rise. A client that is served well and
sends its update turned around, or another's, is found out by this, however many do so in one cluster. An honest client
of a group that others outvote is not: the model moves against its updates, and its loss does rise.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from statistics import median

from coterie.snapshot import saved

# Set on seeds 1 to 16 and 101 to 106 of digits (fedavg and fedcuau on dirichlet), where after six rounds honest clients
# stayed above -0.12, and clients that sent updates turned around fell to -0.33 or below; judged on other seeds in
# docs/security.md.
ROUNDS = 6
"""Rounds in which a client's loss must have been seen to change before it is judged."""
EVIDENCE = 0.02
"""Change of the loss, as a share of it and times the cosine, that must have been seen in all."""
FALSE = -0.3
"""The score from which on a client's updates are held to be false, until it is above zero again."""
HOLDS = 0.0
"""The median score of all clients, above which losses do follow updates in this run: with steps that are too long they
rise whatever was sent."""


@saved
class Conduct:
    """What is known of a client: its last loss and where its model was moved then, and how the losses followed."""

    clusters: tuple[int, ...]
    """Those that its last update went to."""
    loss: float
    cosine: float = 0.0
    """Of its last update with what the models were moved by."""
    balance: float = 0.0
    """Σ fall of the loss, as a share of it, times the cosine before: above zero where the loss followed."""
    evidence: float = 0.0
    """Σ of the same without its sign."""
    rounds: int = 0
    false: bool = False

    @property
    def score(self) -> float | None:
        """From -1, the loss went against the updates, to 1, it followed them; None where too little was seen."""
        if self.rounds < ROUNDS or self.evidence < EVIDENCE:
            return None
        return self.balance / self.evidence


def reported(before: Conduct | None, clusters: tuple[int, ...], loss: float) -> Conduct:
    """The conduct of a client that now reports this loss for a model of these clusters.

    A client that went elsewhere since has a loss of another model, which says nothing.
    """
    if before is None:
        return Conduct(clusters, loss)
    known = replace(before, clusters=clusters, loss=loss, cosine=0.0)
    larger = max(abs(before.loss), abs(loss))
    if before.clusters != clusters or not (math.isfinite(before.loss) and math.isfinite(loss) and larger > 0):
        return known
    followed = (before.loss - loss) / larger * before.cosine
    known = replace(
        known,
        balance=before.balance + followed,
        evidence=before.evidence + abs(followed),
        rounds=before.rounds + (followed != 0),
    )
    score = known.score
    return known if score is None else replace(known, false=score <= (0.0 if known.false else FALSE))


def false_clients(conducts: Mapping[str, Conduct]) -> set[str]:
    """The clients whose losses go against their updates, in a federation where the others' follow them."""
    scores = [score for own in conducts.values() if (score := own.score) is not None]
    if not scores or median(scores) <= HOLDS:
        return set()
    return {client for client, own in conducts.items() if own.false}
