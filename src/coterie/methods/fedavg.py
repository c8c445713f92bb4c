"""FedAvg (McMahan et al. 2017): one model for all clients, the mean of what the clients make of it."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Sequence
from typing import ClassVar, Literal

from pydantic import PositiveFloat
from torch import Tensor

from coterie.errors import ConfigError
from coterie.methods.averaging import cluster_info
from coterie.methods.base import Assignment, Info, make_method, method
from coterie.methods.needs import Needs
from coterie.methods.server import Server
from coterie.parameters import Layout
from coterie.snapshot import saved
from coterie.tasks import Request
from coterie.trainers.base import Training

BASES = "fedavg, fedprox, fedbabu, fedper"
"""The methods that another one can be built on."""


@dataclasses.dataclass(frozen=True)
class LocalRule:
    """How the clients train in a method that averages one model: all that sets FedAvg's relatives apart."""

    proximal: float = 0.0
    """FedProx's μ."""
    frozen: str | tuple[str, ...] = ()
    """Layers that keep their initial values in the federated rounds."""
    private: str | tuple[str, ...] = ()
    """Layers that every client keeps to itself."""

    def common_layers(self, layout: Layout) -> tuple[str, ...]:
        """The layers that all clients train together: neither frozen nor private; there must be one."""
        apart = layout.select(self.frozen) + layout.select(self.private)
        common = [
            name
            for name in layout.layers
            if not any(a.start < b.stop and b.start < a.stop for a in layout.select(name) for b in apart)
        ]
        if not common:
            raise ConfigError(
                f"head={self.frozen or self.private!r} is the whole model: no layer is left to train together, "
                "use a deeper model or a smaller head"
            )
        return tuple(common)

    def private_layers(self, layout: Layout) -> tuple[str, ...]:
        """The private layers by name."""
        given = (self.private,) if isinstance(self.private, str) else self.private
        return tuple(layout.layers[-1] if name == "last" else name for name in given)

    def training(self, training: Training, layout: Layout) -> Training:
        """The round's training as the clients of this method do it."""
        kept = layout.complement(layout.select(self.frozen))
        trained = [e.name for e in layout.entries if not e.buffer and any(s.start <= e.start < s.stop for s in kept)]
        return dataclasses.replace(training, proximal=self.proximal, layers=tuple(trained) if self.frozen else ())


@saved
class State:
    """The global model `(d,)`."""

    model: Tensor


@method("fedavg")
class FedAvg:
    """One global model, the mean of the clients' updates."""

    server_steps: ClassVar[bool] = True
    needs: ClassVar[Needs] = Needs()

    weighting: Literal["samples", "uniform"] = "samples"
    """Weight of a client in the mean: its number of samples, or one."""
    server_lr: PositiveFloat = 1.0
    """How far the server follows the mean update."""

    def rule(self) -> LocalRule:
        """How the clients train; relatives of FedAvg change this and nothing else."""
        return LocalRule()

    def start(self, server: Server) -> State:
        self.rule().common_layers(server.layout)  # a head that does not fit the model ends here
        return State(server.initial_model())

    def requests(self, state: State, clients: Sequence[str], t: int, server: Server) -> list[Request]:
        """What the clients are asked to do in round `t`."""
        rule = self.rule()
        training, private = rule.training(server.schedule.at(t), server.layout), rule.private_layers(server.layout)
        return server.training_requests(clients, state.model, t, training, private)

    def round(self, state: State, t: int, server: Server) -> tuple[State, Info]:
        requests = self.requests(state, server.participants(t), t, server)
        [total], _ = server.exchange(requests, weighting=self.weighting)
        info = cluster_info(len(server.clients), total, server)
        return State(server.step(state.model, total, lr=self.server_lr)), Info([info])

    def assignment(self, state: State, server: Server) -> Assignment:
        return Assignment([state.model], [server.clients], self.rule().private_layers(server.layout))

    places_unlabelled: ClassVar[bool] = True

    def place(self, state: State, clients: Sequence[str], server: Server) -> dict[str, int]:
        """The one cluster there is."""
        return dict.fromkeys(clients, 0)


def base_method(base: str) -> FedAvg:
    """The method that is written as `fedprox:mu=0.01`, or with several options as `(fedprox:mu=0.01,…)`."""
    if "," in re.sub(r"\(.*\)", "", base):
        raise ConfigError(f"base={base!r}: several options need brackets around them, base=({base})")
    bracketed = base.startswith("(") and base.endswith(")")
    made = make_method(base[1:-1] if bracketed else base)
    if not isinstance(made, FedAvg):
        raise ConfigError(f"option base={base!r}: expected one of {BASES}")
    return made


def layers_above(base: str, specific: str | int | tuple[str, ...], layout: Layout) -> tuple[str, ...]:
    """The layers that `specific` names, or that number of the last, of those that the base's clients train together."""
    common = base_method(base).rule().common_layers(layout)
    if isinstance(specific, int) or specific == "last":
        depth = specific if isinstance(specific, int) else 1
        if depth > len(common):
            raise ConfigError(f"specific={depth}: {base} trains {len(common)} layers of this model together")
        return common[-depth:]
    names = (specific,) if isinstance(specific, str) else specific
    ours = tuple(common[-1] if name == "last" else name for name in names)
    for name in ours:
        if layout.select((*common, name)) != layout.select(common):
            raise ConfigError(f"specific={name!r}: {base} freezes it or keeps it private, choose another layer")
    return ours
