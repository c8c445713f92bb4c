"""FedBABU (Oh et al. 2021): the federation trains the body under a random head that stays as it is.

The head is tuned when a client personalises the model (`coterie.runs.personalised`), with all the other layers.
"""

from __future__ import annotations

from typing import ClassVar

from coterie.methods.base import method
from coterie.methods.fedavg import FedAvg, LocalRule
from coterie.methods.needs import Needs


@method("fedbabu")
class FedBABU(FedAvg):
    """FedAvg of the body alone; the head keeps its initial values until a client personalises."""

    needs: ClassVar[Needs] = Needs(
        unnoised="noise is added to every layer, and would move the head, which stays as it is"
    )

    head: str | tuple[str, ...] = "last"
    """Layers that are not trained in the rounds: names, or "last"."""

    def rule(self) -> LocalRule:
        return LocalRule(frozen=self.head)
