"""Several runs of one method side by side, of which the one with the lowest training loss counts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from coterie.methods.base import Assignment, Info
from coterie.methods.server import Server
from coterie.snapshot import saved


@saved
class RestartsState:
    """The state of each run."""

    runs: list[Any]

    @property
    def best(self) -> int:
        """The run with the lowest training loss in its last round."""
        return min(range(len(self.runs)), key=lambda r: self.runs[r].loss)


class Restarts:
    """A method that runs `count` times at once, on the same clients; all runs are communicated.

    The method has `start(server, draw)`, where every draw is independent, and states with the mean training `loss` of
    their last round. What it keeps outside its state it keeps under names that differ by `draw`.
    """

    def __init__(self, method: Any, count: int) -> None:
        self.method = method
        self.count = count

    def start(self, server: Server) -> RestartsState:
        return RestartsState([self.method.start(server, draw) for draw in range(self.count)])

    def round(self, state: RestartsState, t: int, server: Server) -> tuple[RestartsState, Info]:
        done = [self.method.round(run, t, server) for run in state.runs]
        after = RestartsState([run for run, _ in done])
        return after, done[after.best][1]

    def assignment(self, state: RestartsState, server: Server) -> Assignment:
        assignment: Assignment = self.method.assignment(state.runs[state.best], server)
        return assignment

    def place(self, state: RestartsState, clients: Sequence[str], server: Server) -> dict[str, int]:
        """Where the best run places them."""
        placed: dict[str, int] = self.method.place(state.runs[state.best], clients, server)
        return placed
