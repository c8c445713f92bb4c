"""Where a run is kept while it goes on: what the loop asks of a run folder, or of a strategy's checkpoint file."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import Tensor

from coterie.methods import Matrix
from coterie.methods.server import ServerState
from coterie.runs.records import RoundRecord
from coterie.snapshot import saved

if TYPE_CHECKING:
    from coterie.runs.result import Result


@saved
class KeptRound:
    """A method's and the clients' states after a round, and what they were worth on validation data."""

    round: int
    state: Any
    client_states: dict[str, dict[str, Tensor]]
    value: float | None = None


@saved
class Checkpoint:
    """All that is needed to resume after `round` as if nothing had happened."""

    round: int
    state: Any
    client_states: dict[str, dict[str, Tensor]]
    bytes_down: int
    bytes_up: int
    seconds: float
    passes: float = 0.0
    exchanges: int = 0
    server: ServerState = field(default_factory=ServerState)
    best: KeptRound | None = None
    """The best round so far, where the run keeps it."""
    last: KeptRound | None = None
    """The last round, where the states above are the best one's: what a run that is taken up again starts from."""


class Store:
    """Where a run is kept: a run folder, or a strategy's checkpoint file. The last four may do nothing."""

    path: Path

    def checkpoint(self) -> Checkpoint | None:
        """The last checkpoint, or None."""
        raise NotImplementedError

    def save_checkpoint(self, checkpoint: Checkpoint) -> None:
        """Replace the checkpoint."""
        raise NotImplementedError

    def rewind_history(self, to: int) -> list[RoundRecord]:
        """The rounds up to `to`; later ones are forgotten, for they are about to be done again."""
        raise NotImplementedError

    def append_history(self, record: RoundRecord) -> None:
        """Add a round."""
        raise NotImplementedError

    def amend_history(self, record: RoundRecord) -> None:
        """Replace the last round."""
        raise NotImplementedError

    def write_json(self, name: str, content: Mapping[str, Any]) -> None:
        """Keep facts about the run in a file of that name."""

    def write_matrix(self, matrix: Matrix, t: int) -> None:
        """Keep a matrix of round `t`."""

    def reopen(self) -> None:
        """A run that had ended is taken up again: it is not a finished one any more."""

    def save_result(self, result: Result) -> None:
        """Keep the summary, the clients' records, and the models."""
