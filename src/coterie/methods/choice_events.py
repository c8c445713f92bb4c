"""What is said of clients that choose among k models: who moved, and which models find no clients."""

from __future__ import annotations

from collections.abc import Sequence

from coterie.methods.base import Event
from coterie.methods.choices import Always, Choices, Settled, moves

PATIENCE = 5
"""Rounds in which no client chose a model after which an event says so."""
SETTLED = 0.05
"""Choices count as settled while at most this share of a round's participants moves."""


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
