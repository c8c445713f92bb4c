"""A run that is ready to start: what `assemble` makes of a configuration, and what the loop executes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from torch import Tensor, nn

from coterie.engines.base import Engine
from coterie.federation import Federation
from coterie.federation.tables import Table
from coterie.methods import Assignment, Info, Method, Server
from coterie.runs import metrics
from coterie.runs.metrics import ClientScore
from coterie.runs.stopping import NO_LIMITS, Limits
from coterie.runs.target_scaling import scores_in_units
from coterie.trainers.losses import Loss


@dataclass(frozen=True)
class Placing:
    """What using a method's state takes: the method, a server that asks newcomers, and the run's own loss, if any."""

    method: Method
    server_for: Callable[[Federation], Server]
    loss: Loss | None = None
    reveal: Callable[[Tensor], Tensor] = lambda vector: vector
    """A model as the clients see it, of one as the server holds it."""
    check: Callable[[Any], None] = lambda part: None
    """Refuses what declares needs that the run's protection does not allow."""


@dataclass(frozen=True)
class Run:
    """A method on a federation (through an engine), ready to start."""

    method: Method
    server: Server
    architecture: Callable[[int], nn.Module] | None
    """Makes a freshly initialised module from a seed; None where the server does not know the network."""
    groups: Sequence[int] | None
    """Hidden groups in the order of the clients: for the metrics only, the method never sees this object."""
    labels: dict[str, Any]
    """What the summary says of the run: method, scenario, model, seed."""
    model_shape: dict[str, Any]
    """What is needed to make the model again without the data: its name, input shape, classes and input type."""
    evaluate_every: int | Literal["auto"] = 1
    """Rounds between two evaluations of all clients. "auto": as many as a client waits for its turn on average, with
    the participants alone evaluated in between, so that evaluating costs about what training does."""
    personalise: int = 0
    """Local epochs of every client's own fine-tuning after the last round; 0 leaves it out."""
    save_every_round: bool = False
    """Checkpoint after every round and before the first, however fast they are."""
    groups_now: Callable[[], Sequence[int] | None] | None = None
    """The hidden groups in the end, in place of `groups`, where clients come and go."""
    enter_round: Callable[[int], list[str]] | None = None
    """Called with every round before it, and with the last one done where a run is taken up: clients of a federation
    that changes with time then hold what they hold in that round. Gives those whose data has changed."""
    before_round: Callable[[int], None] | None = None
    """Called before every round: on a network clients come and go, but between rounds only."""
    evaluate: Callable[[Assignment, int], list[ClientScore]] | None = None
    """Scores the clients in round `t`; None: all of them, each on its own test data."""
    metrics: tuple[str, ...] = ()
    """What clients are evaluated by beside loss and accuracy."""
    validate: bool = False
    """Whether all clients are also evaluated on their validation data whenever they are on their test data."""
    limits: Limits = NO_LIMITS
    """What ends the run before its last round."""
    placing: Placing | None = None
    """What newcomers are placed by after the run."""
    table: Table | None = None
    """The preprocessing of a federation that was made from tables."""
    loss_unit: float = 1.0
    """What losses are multiplied by to be those of targets in their units, where these are scaled for training."""
    constant: Callable[[str], float | None] | None = None
    """What a constant answer scores on a client's test data, where that is known here; see `metrics.constant_score`."""

    @property
    def engine(self) -> Engine:
        """Where the clients' work runs."""
        return self.server.engine

    def foreseen(self) -> list[str]:
        """What makes the method's work impossible in this run, in words."""
        foresee = getattr(self.method, "foresee", None)
        return foresee(self.server) if foresee else []

    def score(
        self, assignment: Assignment, t: int, among: Sequence[str] | None = None, part: str = "test"
    ) -> list[ClientScore]:
        """The metrics of all clients, or of those `among`, each with the model it is given."""
        if self.evaluate is not None:
            return self.evaluate(assignment, t)
        found = metrics.score_clients(assignment, self.engine, part, among, self.metrics)
        return scores_in_units(found, self.loss_unit)

    def scores_all(self, t: int, info: Info) -> bool:
        """Whether all clients are evaluated after round `t`: the last, and any in which clusters split, are."""
        if self.evaluate_every != "auto":
            return t % self.evaluate_every == 0 or t == self.server.rounds
        every = max(1, round(1 / self.server.participation)) if self.evaluate is None else 1
        return t % every == 0 or t == self.server.rounds or bool(info.splits)
