"""What clients' losses tell of the updates that they send.

An update is the way down of its client's own loss. So where the server moves a model along a client's update, the loss
that this client reports next must fall, and where it moves the model against it, rise. A client that is served well and
sends its update turned around, or another's, is found out by this, however many do so in one cluster. An honest client
of a group that others outvote is not: the model moves against its updates, and its loss does rise.

And where a model has learned what nearly all of its clients have, a few whose losses hardly fell in all that time have
something else: false labels, or a group so small that this model will never serve it. Their updates only take away from
the others.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from statistics import median, median_low

from coterie.clustering.agreement import ALONE, FEWEST
from coterie.snapshot import saved

# Set on seeds 1 to 16 and 101 to 106 of digits (fedavg and fedcuau on dirichlet), where after six rounds honest clients
# stayed above -0.12, and clients that sent updates turned around fell to -0.33 or below; judged on other seeds in
# docs/security.md.
ROUNDS = 6
"""Rounds in which a client's loss must have been seen to change before it is judged."""
EVIDENCE, EVIDENCE_SHARE = 0.02, 0.25
"""Change of the loss, as a share of it and times the cosine, that must have been seen in all; where all learn slowly,
so much of what was seen of the median client (by hand, on seeds 201 to 204 with a step size of 0.02)."""
FALSE = -0.3
"""The score from which on a client's updates are held to be false, until it is above zero again."""
HOLDS = 0.0
"""The median score of all clients, above which losses do follow updates in this run: with steps that are too long they
rise whatever was sent."""

# Set on seeds 74 to 76 and 101 to 104 of digits (fedavg on dirichlet, 40 rounds), with false labels at three clients of
# 20 and without, and set again on 201 to 204 with step sizes of 0.02, 0.05 and 0.1: of 0.2 to 0.5, 0.4 to 0.6 and 1 to
# 1.75, these find most of those with false labels among the values that accused no honest client in any round.
LEARNED = 0.4
"""The share of its first loss that the median client of a cluster must have lost before anybody is said to lag."""
LAGS = 0.6
"""Those lag who lost less than so many times what the median client lost,"""
HIGH = 1.5
"""and whose loss is above so many times the median."""


@saved
class Conduct:
    """What is known of a client: its last loss and where its model was moved then, and how the losses followed."""

    cluster: int
    """The one that its last update went to; with several, the one whose model its loss is of."""
    loss: float
    cosine: float = 0.0
    """Of its last update with what the models were moved by."""
    balance: float = 0.0
    """Σ fall of the loss, as a share of it, times the cosine before: above zero where the loss followed."""
    evidence: float = 0.0
    """Σ of the same without its sign."""
    rounds: int = 0
    false: bool = False
    first: float = math.nan
    """Its first loss in this cluster,"""
    lowest: float = math.nan
    """the lowest since,"""
    reports: int = 0
    """and how many it reported."""

    def score(self, enough: float = EVIDENCE) -> float | None:
        """From -1, the loss went against the updates, to 1, it followed them; None where too little was seen."""
        if self.rounds < ROUNDS or self.evidence < enough or not self.evidence:
            return None
        return self.balance / self.evidence

    @property
    def learned(self) -> float:
        """The share of its first loss that it lost; nan where that was zero or is not known."""
        return 1 - self.lowest / self.first if self.first > 0 else math.nan


def enough_evidence(conducts: Mapping[str, Conduct]) -> float:
    """The evidence from which on clients are judged: less where all of them learn slowly."""
    seen = [own.evidence for own in conducts.values() if own.rounds >= ROUNDS]
    return min(EVIDENCE, EVIDENCE_SHARE * median_low(seen)) if seen else EVIDENCE


def reported(before: Conduct | None, cluster: int, loss: float, enough: float = EVIDENCE) -> Conduct:
    """The conduct of a client that now reports this loss for the model of this cluster, judged if there is `enough`.

    A client that went elsewhere since has a loss of another model, which says nothing.
    """
    if before is None:
        return Conduct(cluster, loss, first=loss, lowest=loss, reports=1)
    same = before.cluster == cluster and math.isfinite(before.first)
    known = replace(
        before,
        cluster=cluster,
        loss=loss,
        cosine=0.0,
        first=before.first if same else loss,
        lowest=min(loss, before.lowest) if same else loss,
        reports=before.reports + 1 if same else 1,
    )
    larger = max(abs(before.loss), abs(loss))
    if before.cluster != cluster or not (math.isfinite(before.loss) and math.isfinite(loss) and larger > 0):
        return known
    followed = (before.loss - loss) / larger * before.cosine
    known = replace(
        known,
        balance=before.balance + followed,
        evidence=before.evidence + abs(followed),
        rounds=before.rounds + (followed != 0),
    )
    score = known.score(enough)
    return known if score is None else replace(known, false=score <= (0.0 if known.false else FALSE))


def false_clients(conducts: Mapping[str, Conduct]) -> set[str]:
    """The clients whose losses go against their updates, in a federation where the others' follow them."""
    return {client for client, own in conducts.items() if own.false} if _losses_follow(conducts) else set()


def trusted_clients(conducts: Mapping[str, Conduct]) -> set[str]:
    """The clients whose losses have followed their updates and have fallen as the others' did.

    Nobody is where the losses of all do not follow. A liar whose updates are turned around can report losses that go
    with them, but these rise.
    """
    if not _losses_follow(conducts):
        return set()
    enough, found = enough_evidence(conducts), set()
    for own in _by_cluster(conducts).values():
        least = LAGS * median_low(known.learned for known in own.values())
        for client, known in own.items():
            if not known.false and (known.score(enough) or 0.0) > 0 and known.learned > least:
                found.add(client)
    return found


def _losses_follow(conducts: Mapping[str, Conduct]) -> bool:
    enough = enough_evidence(conducts)
    scores = [score for own in conducts.values() if (score := own.score(enough)) is not None]
    return bool(scores) and median(scores) > HOLDS


def lagging_clients(conducts: Mapping[str, Conduct]) -> set[str]:
    """The few clients of a cluster whose losses hardly fell while the others' fell to 0.6 of what they were or less.

    More than one in ALONE (but one is always few) are a group of their own. Clients that came late are not judged
    before they have reported half as often as the median client.
    """
    found: set[str] = set()
    for own in _by_cluster(conducts).values():
        usual = median_low(known.learned for known in own.values())
        if len(own) < FEWEST or usual < LEARNED:
            continue
        loss = median_low(known.loss for known in own.values())
        often = median_low(known.reports for known in own.values())
        lag = {
            client
            for client, known in own.items()
            if known.learned < LAGS * usual and known.loss > HIGH * loss and 2 * known.reports >= often
        }
        if len(lag) <= max(1, len(own) // ALONE):
            found |= lag
    return found


def _by_cluster(conducts: Mapping[str, Conduct]) -> dict[int, dict[str, Conduct]]:
    """The clients of each cluster whose losses can be compared."""
    members: dict[int, dict[str, Conduct]] = {}
    for client, known in conducts.items():
        if math.isfinite(known.learned) and math.isfinite(known.loss):
            members.setdefault(known.cluster, {})[client] = known
    return members
