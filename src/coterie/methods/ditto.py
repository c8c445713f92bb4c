"""Ditto (Li, Hu, Beirami, Smith 2021): FedAvg's model for all, and beside it a personal model for each client."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import ClassVar

from pydantic import NonNegativeFloat

from coterie.methods.base import Assignment, method
from coterie.methods.fedavg import FedAvg, State
from coterie.methods.needs import Needs
from coterie.methods.server import Server
from coterie.tasks import Request, Train


@method("ditto")
class Ditto(FedAvg):
    """FedAvg, and beside it a personal model v for each client, trained with λ/2 ‖v − w‖² to the global model w.

    A client trains both on the same batches. Its personal model stays with it, and is what it is measured with. A
    client that has not taken part yet uses the global model.
    """

    needs: ClassVar[Needs] = Needs(personal=True)

    lam: NonNegativeFloat = 1.0
    """λ, the pull to the global model: 0 is local training, and with a large one all have the global model."""

    def requests(self, state: State, clients: Sequence[str], t: int, server: Server) -> list[Request]:
        personal = dataclasses.replace(server.schedule.at(t), proximal=self.lam, keep_optimizer=False)
        plain = super().requests(state, clients, t, server)
        return [
            Request(client, dataclasses.replace(task, personal=personal))
            for client, task in plain
            if isinstance(task, Train)
        ]

    def assignment(self, state: State, server: Server) -> Assignment:
        return Assignment([state.model], [server.clients], private=server.layout.names)
