"""CFL in words where nothing was split: what makes a split impossible, and why a cluster stayed whole."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from coterie.clustering.half_vectors import reachable_p_value
from coterie.methods import cfl_rule as rule
from coterie.methods.base import Event
from coterie.methods.cfl_check import check_window
from coterie.methods.cfl_state import Track
from coterie.methods.server import Server
from coterie.methods.splitting import LEAST_ROUNDS

if TYPE_CHECKING:
    from coterie.methods.cfl import CFL

STILL_FALLING = 0.25
"""The loss still falls if its last progress per round is at least this part of its fastest."""


def obstacles(method: CFL, server: Server) -> list[str]:
    """What makes a split impossible in this run, whatever the clients hold; each with what to do."""
    found = []
    first, rounds = first_split(method, server), server.rounds
    if rounds < first:
        found.append(f"CFL cannot split within {_count(rounds, 'round')}: the first split comes after round {first} at "
                     f"the earliest; give at least {2 * first} rounds")  # fmt: skip
    clients, fewest = len(server.clients), fewest_clients(method, server)
    if clients < fewest:
        kind = "client" if server.engine.halves else "node"
        found.append(f"CFL cannot split {_count(clients, kind)}: it needs {fewest} or more to tell a difference from "
                     f"noise (min_size={method.min_size}); add {kind}s")  # fmt: skip
    return found


def first_split(method: CFL, server: Server) -> int:
    """The first round after which there may be two clusters."""
    if method.by_checks(server):
        first = max(rule.FIRST_CHECK, method.min_rounds or 1)
        took_part = max(1, round(server.participation * len(server.clients)))
        # A check waits until every member has taken part, or for a window of rounds.
        return first + min(check_window(server), -(-len(server.clients) // took_part)) - 1
    first = method.wait(None, server)
    if method.on_trial:
        return first + method.trial_rounds
    return max(first, LEAST_ROUNDS) if method.paper_rule is None else first


def fewest_clients(method: CFL, server: Server) -> int:
    """The fewest clients that can be split.

    An app that only trains and evaluates tells its noise by its nearest peer, and among two nobody has another one.
    """
    by_peers = not server.engine.halves and (method.paper_rule is None or method.paper_rule[2] == "auto")
    return max(3 if by_peers else 2, 2 * method.min_size)


def why_whole(method: CFL, track: Track, server: Server) -> Event:
    """The event after the last round of a run without a split: why, and what to try next.

    Its kind is "whole" where the clients were looked at and found to agree, "undecided" where that is not known.
    """
    if impossible := obstacles(method, server):
        return Event("undecided", f"no split: {impossible[0]}", {"reason": "impossible"})
    if method.by_checks(server):
        return _after_checks(track, server)
    if track.trial is not None:
        text = "no split: one was on trial when the rounds ended; give more rounds"
        return Event("undecided", text, {"reason": "on trial"})
    if track.considered:
        text = (
            f"no split: in round {track.considered}, when the updates were last compared, no two sides "
            "differed by more than noise, or a trial did not pay; if groups are expected, give more rounds or samples"
        )
        return Event("whole", text, {"reason": "noise", "considered": track.considered})
    if method.paper_rule is not None:
        text = (
            "no split: the mean update never fell below eps1 while some client's stayed above eps2; give more rounds, "
            "a larger eps1, or leave eps1, eps2 and gamma_max out"
        )
        return Event("undecided", text, {"reason": "still improving"})
    text = f"no split: the training loss still falls after {server.rounds} rounds; give more rounds"
    return Event("undecided", text, {"reason": "still improving"})


def _after_checks(track: Track, server: Server) -> Event:
    """The same where the rule on halves decided."""
    watch = track.watch
    if watch.session is not None:
        text = f"no split: a check was under way when the rounds ended; give {2 * check_window(server)} rounds more"
        return Event("undecided", text, {"reason": "check under way"})
    if not watch.records:
        text = "no split: no check came to an end with the answers of two clients; see the faults in the history"
        return Event("undecided", text, {"reason": "no check"})
    last = watch.records[-1]
    p, clients = rule.last_p_value(watch.records), len(last.clients)
    surest = reachable_p_value(clients // 2, clients - clients // 2)
    details = {"p_value": p, "clients": clients}
    falls = math.isfinite(last.progress) and last.progress >= STILL_FALLING * last.fastest > 0
    kind = "undecided" if falls else "whole"
    hint = (
        "but the loss still falls: give more rounds"
        if falls
        else "so one model can fit them; if separate models might serve better, try when=gain"
    )
    if p <= rule.SIGNIFICANCE or (clients >= rule.FEWEST and p <= rule.SLACK * surest):
        text = f"the clients differ (p = {p:.1g}), yet no two sides harm each other on labels that both hold, {hint}"
        return Event(kind, f"no split: {text}", details | {"reason": "no conflict"})
    if clients < rule.FEWEST:
        text = (
            f"no split: {clients} clients are too few for a sure answer (p = {p:.2g}, of groups told apart perfectly "
            f"{surest:.2g}); give more clients or more samples per client, or try when=gain"
        )
        return Event("undecided", text, details | {"reason": "few clients"})
    reason = "still improving" if falls else "congruent"
    text = f"no split: the clients look alike to the test (p = {p:.2g}), {hint}"
    return Event(kind, text, details | {"reason": reason})


def _count(number: int, what: str) -> str:
    return f"{number} {what}" if number == 1 else f"{number} {what}s"
