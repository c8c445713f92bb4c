"""FedPer (Arivazhagan et al. 2019): the body is averaged, every client keeps a head of its own.

A client that has not taken part yet uses the initial head. Heads live in the clients' own state, never at the server.
"""

from __future__ import annotations

from typing import ClassVar

from coterie.methods.base import method
from coterie.methods.fedavg import FedAvg, LocalRule
from coterie.methods.needs import Needs


@method("fedper")
class FedPer(FedAvg):
    """FedAvg of the body; the head is private to each client and is never sent."""

    needs: ClassVar[Needs] = Needs(personal=True)

    head: str | tuple[str, ...] = "last"
    """Layers that stay with the client: names, or "last"."""

    def rule(self) -> LocalRule:
        return LocalRule(private=self.head)
