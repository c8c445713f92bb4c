"""Which of k models each client chose, followed over the rounds, and when all models are sent again."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field

from pydantic import PositiveInt

from coterie.methods.options import Parts, part
from coterie.snapshot import saved

RESENDS = Parts("resend")


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
