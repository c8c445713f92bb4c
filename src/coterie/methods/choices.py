"""Which of k models each client chose, followed over the rounds; what is said of it; when all models are sent."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field
from typing import Any

from pydantic import PositiveInt

from coterie.methods.base import Event
from coterie.methods.needs import Needs
from coterie.methods.options import Parts, part
from coterie.methods.starts import STARTS
from coterie.snapshot import saved
from coterie.tasks import HeldOut

RESENDS = Parts("resend")
PATIENCE = 5
"""Rounds in which no client chose a model after which an event says so."""
SETTLED = 0.05
"""Choices count as settled while at most this share of a round's participants moves."""


@saved
class Choices:
    """What the server knows of the clients' choices among k models."""

    idle: list[int]
    """For each model, rounds in a row in which no client chose it."""
    last: dict[str, int] = field(default_factory=dict)
    """The model that each client chose when it last took part."""
    latest: list[str] = field(default_factory=list)
    """The clients that took part in the last round."""
    steady: int = 0
    """Rounds in a row in which no client moved to another model or chose for the first time."""
    unchecked: int = 0
    """Rounds since all models were last sent to all participants."""

    @property
    def sizes(self) -> list[int]:
        """How many clients chose each model last."""
        return [list(self.last.values()).count(j) for j in range(len(self.idle))]

    def after(self, now: Mapping[str, int], clients: Sequence[str], own_only: bool) -> Choices:
        """The choices after a round: of its participants, and of whoever is still there.

        With `own_only`, clients were sent their own model, and only those who had none chose.
        """
        moved = len(moves(self.last, now))
        first_choices = sum(client not in self.last for client in now)
        unsure = moved if own_only else moved + first_choices
        present = set(clients)  # a client that left chooses again if it returns
        return Choices(
            idle=idle_after(self.idle, [list(now.values()).count(j) for j in range(len(self.idle))]),
            last={client: j for client, j in (self.last | dict(now)).items() if client in present},
            latest=list(now),
            steady=0 if unsure else self.steady + 1,
            unchecked=self.unchecked + 1 if own_only else 0,
        )


def moves(before: Mapping[str, int], now: Mapping[str, int]) -> list[str]:
    """The clients that choose another model than before."""
    return [client for client, choice in now.items() if before.get(client, choice) != choice]


def idle_after(idle: Sequence[int], takers: Sequence[int]) -> list[int]:
    """Rounds in a row in which no client chose each model, after one more."""
    return [0 if count else rounds + 1 for rounds, count in zip(idle, takers, strict=True)]


@part(RESENDS, "always")
class Always:
    """All models are sent to all participants in every round."""

    def own_only(self, choices: Choices) -> bool:
        """Never."""
        return False


@part(RESENDS, "settled")
class Settled:
    """Each client is sent its own model only, once no client has moved for some rounds."""

    after: PositiveInt
    """Rounds without a move."""
    recheck: PositiveInt = 10
    """While that lasts, all models are sent, and choices made again, every `recheck` rounds."""

    def own_only(self, choices: Choices) -> bool:
        """Is each client of the next round sent only the model that it chose before?"""
        return choices.steady >= self.after and choices.unchecked < self.recheck - 1


def choice_events(
    before: Choices, after: Choices, resend: Always | Settled, last_round: bool, advice: str
) -> list[Event]:
    """What there is to say of a round's choices; `advice` is what to try where models find no clients."""
    now = {client: after.last[client] for client in after.latest if client in after.last}
    moved = moves(before.last, now)
    events = moved_events(moved, len(now))
    if resend.own_only(after) and not resend.own_only(before) and not before.unchecked:
        text = f"no client moved for {after.steady} rounds: each client is sent its own model only"
        events.append(Event("stable", text, {"rounds": after.steady}))
    return events + (ending_events(after, moved, advice) if last_round else unused_events(after.idle, advice))


def moved_events(moved: Sequence[str], participants: int) -> list[Event]:
    """Participants that changed cluster, if there are any."""
    text = f"{len(moved)} of {participants} participants changed cluster"
    return [Event("moved", text, {"clients": len(moved), "participants": participants})] if moved else []


def unused_events(idle: Sequence[int], advice: str) -> list[Event]:
    """Models that no client has chosen for a while: once, when that becomes so."""
    unused = [j for j, rounds in enumerate(idle) if rounds >= PATIENCE]
    if not any(idle[j] == PATIENCE for j in unused):
        return []
    left = len(idle) - len(unused)
    text = (
        f"no client chose {len(unused)} of the {len(idle)} models for {PATIENCE} rounds: "
        f"{left} {'cluster remains' if left == 1 else 'clusters remain'}; if more were expected, {advice}"
    )
    return [Event("unused", text, {"models": unused, "remain": left})]


def ending_events(choices: Choices, moved: Sequence[str], advice: str) -> list[Event]:
    """After the last round: models that no client chose last, and models that exchange clients."""
    k = len(choices.idle)
    unused = [j for j in range(k) if j not in choices.last.values()]
    left = k - len(unused)
    events = []
    if unused and left:
        share = "share one model" if left == 1 else f"share {left} models"
        text = (
            f"{len(unused)} of the {k} models were no client's last choice, and {len(choices.last)} clients {share}: "
            f"if more groups were expected, {advice}; if not, give k={left}"
        )
        events.append(Event("unused", text, {"models": unused, "remain": left}))
    if left > 1 and len(moved) > max(1, SETTLED * len(choices.latest)):
        to = sorted({choices.last[client] for client in moved})
        text = (
            f"{len(moved)} of {len(choices.latest)} clients still changed model in the last round, to "
            f"{', '.join(map(str, to))}: the models share clients; give more rounds, or a smaller k"
        )
        events.append(Event("unsettled", text, {"clients": len(moved), "models": to}))
    return events


def next_try(init: str) -> str:
    """The start to try next where models find no clients."""
    seeded = init == "auto" or init.startswith("k-means++")
    return "try more restarts" if seeded else "try init=k-means++ or restarts=3"


def needs_of_choices(method: Any) -> Needs:
    """Sums by choice; single clients' updates where k-means++ makes the first models, or models grow."""
    grows = method.k == "auto"
    return Needs(
        "must" if grows else "may",
        (HeldOut,) if grows else (),
        "hidden" if method.hide_choice else "seen",
        unnoised=_unnoised(method),
        instead="k=auto compares halves of clients' data, give k",
    )


def _unnoised(method: Any) -> str:
    """Why noise on the sums would not cover all; empty where it does."""
    by_clients = STARTS.make(method.init).looks_at_clients
    if method.k == "auto" or method.restarts > 1 or method.resend != "always" or by_clients:
        return "k='auto', restarts, resend and init=k-means++ or redrawn decide by exact losses or choices"
    if method.averaging != "model" or method.clustered != "all":
        return "shared layers and gradients are divided by exact numbers of clients"
    return ""
