"""Local training: every client by itself, the baseline that shares nothing."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from torch import Tensor

from coterie.errors import ConfigError
from coterie.methods.base import Assignment, ClusterInfo, Info, method
from coterie.methods.needs import Needs
from coterie.methods.server import Server
from coterie.snapshot import saved


@saved
class State:
    """The model `(d,)` that every client starts from; what it makes of it stays with the client."""

    model: Tensor


@method("local")
class Local:
    """A model for each client, trained on its own data alone; the models never leave their clients."""

    needs: ClassVar[Needs] = Needs(personal=True)

    def start(self, server: Server) -> State:
        return State(server.initial_model())

    def round(self, state: State, t: int, server: Server) -> tuple[State, Info]:
        return state, train_alone(state.model, server.participants(t), t, server)

    def assignment(self, state: State, server: Server) -> Assignment:
        return alone(state.model, server)

    places_unlabelled: ClassVar[bool] = True

    def place(self, state: State, clients: Sequence[str], server: Server) -> dict[str, int]:
        """Nowhere: no client's model is for another."""
        raise ConfigError(
            "method 'local' has no model for newcomers, every client has its own: train one on the newcomer's data, or "
            "run a method with clusters"
        )


def train_alone(model: Tensor, clients: Sequence[str], t: int, server: Server) -> Info:
    """A round in which each of the clients trains its own version of a model, which stays with it."""
    infos = {client: ClusterInfo(1) for client in server.clients}
    for reply in server.ask(server.training_requests(clients, model, t, private=server.layout.names)):
        infos[reply.client] = ClusterInfo(1, reply.values["loss"])
    return Info(list(infos.values()))


def alone(model: Tensor, server: Server) -> Assignment:
    """Every client with its own version of a model."""
    members = [(client,) for client in server.clients]
    return Assignment([model] * len(members), members, private=server.layout.names)
