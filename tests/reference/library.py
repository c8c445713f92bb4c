"""The library's side: runs in float64 that record what they were given, for a reference to do the same."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

import coterie
from coterie.federation import Federation
from coterie.methods import Server, make_method
from coterie.methods.embedding import Embedded
from coterie.methods.graph_averaging import State
from coterie.methods.relatives import Relatives, with_newcomers
from coterie.trainers.batching import batches
from reference.clients import Clients, Network, Round, Vector, mates_of

FEATURES, CLASSES, HIDDEN = 4, 3, 5
MODELS = {
    "linear": Network((FEATURES, 1), bias=False, squared=True),
    "logistic": Network((FEATURES, CLASSES)),
    f"mlp:hidden={HIDDEN}": Network((FEATURES, HIDDEN, CLASSES)),
}
"""The library's models by name, and the references'."""
LINEAR, LOGISTIC, MLP = MODELS


@dataclass(frozen=True)
class Setting:
    """A method, its reference, and the federation that both train."""

    spec: str
    """The library's method with its options."""
    reference: Callable[[Recorded], Iterator[Round]]
    sizes: tuple[int, ...] = (600, 3, 40, 11, 90, 25, 7, 150, 60, 30, 18, 75)
    """Training samples of each client."""
    clusters: int = 1
    """How many there are after the last round: what the setting is for must have happened."""
    groups: int = 3
    model: str = LOGISTIC
    rounds: int = 5
    training: Mapping[str, Any] = field(default_factory=lambda: {"lr": 0.3, "steps": 3, "batch_size": "full"})
    present: Mapping[str, range] = field(default_factory=dict)
    """The rounds in which a client is there, where it is not in all."""
    run: Mapping[str, Any] = field(default_factory=dict)
    """Further options of the run."""
    seed: int = 0

    def federation(self) -> Federation:
        """Clients of each group in turn, which name the classes differently or follow different linear models."""
        generator, data = np.random.default_rng(self.seed), {}
        truths = generator.normal(size=(self.groups, FEATURES))
        for number, size in enumerate(self.sizes):
            group, label = number % self.groups, generator.integers(CLASSES, size=size)
            x = 2 * np.eye(CLASSES, FEATURES)[label] + generator.normal(size=(size, FEATURES))
            noisy = x @ truths[group] + 0.1 * generator.normal(size=size)
            data[f"c{number}"] = (
                torch.tensor(x),
                torch.tensor(noisy if self.model == LINEAR else (label + group) % CLASSES),
            )
        return Federation.from_tensors(data, splits=(1, 0, 0), classes=None if self.model == LINEAR else CLASSES)


class Recorded:
    """The library's method, and a record of what it is given and of every round."""

    def __init__(self, setting: Setting) -> None:
        self.method: Any = make_method(setting.spec)
        self.setting, self.federation = setting, setting.federation()
        self.schedule: list[tuple[list[str], list[str]]] = []
        self.rounds: list[Round] = []
        self.reference: Any = None
        generator = np.random.default_rng(setting.seed)
        drawn = generator.normal(size=(len(self.federation), 3, 2)).astype(np.float32)
        drawn[:, :, 0] += 4 * (np.arange(len(drawn)) % setting.groups)[:, None]
        self.positions = dict(zip(self.federation.ids, drawn, strict=True))
        """Where UMAP may have put the clients' three centroids, for FLT: groups side by side that overlap a little."""

    def __getattr__(self, name: str) -> Any:
        return getattr(self.method, name)

    def start(self, server: Server) -> Any:
        self.server = server
        self._admit(1)
        self.initial = [self._plain(server.initial_model(j)) for j in range(6)]
        if self.method.name != "flt":
            return self.method.start(server)
        own = np.stack([self.positions[client] for client in server.clients])
        laid_out = Relatives(server.clients, own, own, None, np.eye(len(own), dtype=bool), "")
        return State(self.method.relate(laid_out), server.initial_model()[None], (0,) * len(own))

    def round(self, state: Any, t: int, server: Server) -> tuple[Any, Any]:
        self._admit(t)
        if self.method.name == "flt" and (late := [c for c in server.clients if c not in state.relatives.ids]):
            own = np.stack([self.positions[client] for client in late])
            found = Embedded(tuple(late), own)
            relatives, nearest = with_newcomers(state.relatives, found, own, self.method.distance)
            state = State(relatives, state.models, state.row + tuple(state.row[i] for i in nearest))
        self.schedule.append((list(server.clients), server.participants(t)))
        state, info = self.method.round(state, t, server)
        models = {name: self._plain(model) for name, model in self._models(state).items()}
        self.rounds.append(Round(self._mates(state), models))
        return state, info

    def _admit(self, t: int) -> None:
        there = self.setting.present
        self.server.engine.clients = tuple(c for c in self.federation.ids if c not in there or t in there[c])

    def _plain(self, model: Tensor) -> Vector:
        return self.server.engine.reveal(model).numpy().copy()

    def _mates(self, state: Any) -> dict[str, frozenset[str]]:
        if self.method.name != "flt":
            return mates_of(self.method.assignment(state, self.server).members)
        ids, related = np.array(state.relatives.ids), state.relatives.related
        return {client: frozenset(ids[row].tolist()) for client, row in zip(ids.tolist(), related, strict=True)}

    def _models(self, state: Any) -> dict[str, Tensor]:
        if self.method.name == "ifca":
            return {f"model {j}": model for j, model in enumerate(state.models)}
        if self.method.name == "cfl":
            paths = {client: state.tree.path(state.tree.leaf_of(client)) for client in self.server.clients}
            return {f"{c}, depth {i}": node.model for c, path in paths.items() for i, node in enumerate(path)}
        return {served.client: served.model for served in self.method.assignment(state, self.server).served()}

    @property
    def clients(self) -> Clients:
        """The clients as a reference has them."""
        data = {c.id: (c.train.x.double().numpy(), c.train.y.numpy()) for c in self.federation}
        return Clients(MODELS[self.setting.model], data, self.setting.training["lr"], self._batches)

    def _batches(self, t: int, client: str) -> list[Any]:
        drawn = batches(self.server.samples[client], self.server.schedule.at(t), self.server.seed_of(t, client))
        return [batch if isinstance(batch, slice) else batch.numpy() for batch in drawn]


def run(setting: Setting) -> tuple[Recorded, coterie.Result]:
    """The library's run of a setting."""
    recorded = Recorded(setting)
    options = {"rounds": setting.rounds, "evaluate_every": setting.rounds, "seed": setting.seed, "model": setting.model}
    how = {**options, **setting.training, **setting.run}
    return recorded, coterie.run(recorded, recorded.federation, precision="float64", workers=1, **how)
