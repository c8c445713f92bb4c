"""A method on a tiny federation, driven round by round, with an engine in between that can change what is seen."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any

import torch
from torch import Tensor

from coterie import Client, Federation, Method, Split
from coterie.data import find_scenario
from coterie.engines import Capabilities, Engine, Fault, Traffic
from coterie.methods import Assignment, Info, Layout, Server
from coterie.runs import assemble, make_config
from coterie.tasks import Reduction, Reply, ReplyBlock, Request, reduced

CLIENTS, GROUPS = 8, 4
MODEL = "mlp:hidden=8"
TRAINING: dict[str, Any] = {"lr": 0.2, "steps": 5, "batch_size": "full", "seed": 4, "workers": 1}
"""Full batches: then what a client computes depends on its data and its model, and not on its name."""
Change = Callable[[Request, Reply], Reply | None]
"""What becomes of a reply; None: the client did not answer."""


@cache
def tiny_federation() -> Federation:
    """Eight clients in four hidden groups, whose images are turned by 0 to 270 degrees; no two have one size."""
    whole = find_scenario("digits-rotated").build(clients=CLIENTS, groups=GROUPS, samples=44, seed=3)
    return whole.with_clients([_cut(client, 44 - 2 * i) for i, client in enumerate(whole)])


def _cut(client: Client, samples: int) -> Client:
    return replace(client, train=Split(client.train.x[:samples], client.train.y[:samples]))


class PassingEngine:
    """An engine that passes everything on and has nothing but the contract: no data, no contexts, no groups.

    `change` sees every reply; `scale` multiplies every client's number of samples, as the server sees it.
    """

    capabilities = Capabilities()

    def __init__(self, inner: Engine, change: Change | None = None, scale: int = 1) -> None:
        self._inner = inner
        self._change = change
        self._samples = {client: scale * count for client, count in inner.samples.items()}
        self.clients: tuple[str, ...] = ()
        self.samples: dict[str, int] = {}
        self.traffic: Traffic = inner.traffic
        self.layout: Layout = inner.layout
        self.plain_layout: Layout = inner.plain_layout
        self.asked: list[Request] = []
        """The requests so far."""
        self.replies: list[tuple[Request, Reply]] = []
        """What came back, with what was asked."""
        self.admit(inner.clients)

    def admit(self, clients: Sequence[str]) -> None:
        """Let these be the clients that are known from now on."""
        self.clients = tuple(clients)
        self.samples = {client: self._samples[client] for client in clients}

    def run(self, requests: Sequence[Request], reduce: Reduction | None = None) -> Iterator[ReplyBlock]:
        """Do the requests one block at a time; replies are changed before they are added up."""
        asked = list(requests)
        self.asked += asked
        found = [reply for block in self._inner.run(asked) for reply in block.replies]
        kept, replies, position = [], [], 0
        for reply in found:
            while asked[position].client != reply.client:  # somebody failed
                position += 1
            changed = reply if self._change is None else self._change(asked[position], reply)
            if changed is not None:
                kept.append(position)
                replies.append(changed)
                self.replies.append((asked[position], changed))
            position += 1
        yield reduced(replies, None if reduce is None else reduce.at(kept))

    def initial_model(self, seed: int) -> Tensor:
        return self._inner.initial_model(seed)

    def reveal(self, model: Tensor) -> Tensor:
        return self._inner.reveal(model)

    def faults(self) -> list[Fault]:
        return self._inner.faults()

    def client_states(self) -> dict[str, dict[str, Tensor]]:
        return self._inner.client_states()

    def restore_client_states(self, states: dict[str, dict[str, Tensor]]) -> None:
        self._inner.restore_client_states(states)

    def close(self) -> None:
        self._inner.close()


def with_vector(reply: Reply, vector: Tensor, layout: Layout) -> Reply:
    """The reply with another vector and the norm of that."""
    norm = float(torch.linalg.vector_norm(vector[: layout.trainable]))
    return replace(reply, vector=vector, values={**reply.values, "norm": norm})


@dataclass
class Trial:
    """A method at work: its server, its state, and what it reported and assigned after every round."""

    method: Method
    server: Server
    state: Any
    t: int = 0
    infos: list[Info] = field(default_factory=list)
    assignments: list[Assignment] = field(default_factory=list)

    def round(self) -> Assignment:
        """One more round, and who is given which model after it."""
        self.t += 1
        self.state, info = self.method.round(self.state, self.t, self.server)
        self.infos.append(info)
        self.assignments.append(self.method.assignment(self.state, self.server))
        return self.assignments[-1]

    def rounds(self, count: int) -> Trial:
        """So many rounds more."""
        for _ in range(count):
            self.round()
        return self

    @property
    def last(self) -> Assignment:
        """Who is given which model as things stand."""
        return self.assignments[-1] if self.assignments else self.method.assignment(self.state, self.server)


def start(
    method: Method,
    federation: Federation | None = None,
    *,
    rounds: int = 6,
    change: Change | None = None,
    scale: int = 1,
    bare: bool = False,
    first: Sequence[str] | None = None,
    **options: Any,
) -> Trial:
    """A trial before its first round.

    Args:
        method: the method.
        federation: the clients; by default `tiny_federation()`.
        rounds: rounds that the method is told of.
        change: what becomes of every reply.
        scale: what every client's number of samples is multiplied by, as the server sees it.
        bare: leave Coterie's own engine as it is; else a `PassingEngine` stands between.
        first: the clients that are there in the beginning; by default all.
        options: of the run, beside TRAINING.
    """
    federation = federation or tiny_federation()
    config = make_config(TRAINING | {"rounds": rounds, "method": "fedavg"} | options)
    run, _ = assemble(config, federation=federation, model=MODEL, method=method)
    server = run.server
    if not bare:
        engine = PassingEngine(server.engine, change, scale)
        engine.admit(engine.clients if first is None else first)
        server.engine = engine
    return Trial(method, server, method.start(server))


def passing(trial: Trial) -> PassingEngine:
    """The engine of a trial that was not started bare."""
    assert isinstance(trial.server.engine, PassingEngine)
    return trial.server.engine


def cluster_of(assignment: Assignment) -> dict[str, int]:
    """The id of each client's cluster."""
    return {served.client: served.cluster for served in assignment.served()}


def as_partition(assignment: Assignment) -> set[frozenset[str]]:
    """The clusters as sets of clients."""
    return {frozenset(members) for members in assignment.members if members}


def model_bits(assignment: Assignment) -> dict[int, bytes]:
    """Every model's numbers by id, to be compared bit for bit."""
    return {number: model.contiguous().numpy().tobytes() for number, model in assignment.by_id.items()}


def all_finite(assignment: Assignment) -> bool:
    """Whether every number of every model is finite."""
    return all(math.isfinite(float(model.double().abs().sum())) for model in assignment.by_id.values())


def keeps_all(assignment: Assignment, server: Server) -> bool:
    """Whether clients keep all layers to themselves, so that the server's models are only what they began with."""
    spans = server.layout.select(assignment.private)
    return sum(int(span.stop) - int(span.start) for span in spans) == server.layout.size
