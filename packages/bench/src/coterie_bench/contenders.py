"""Coterie's engine and the plain loop as contenders: each does the same rounds, one at a time."""

from __future__ import annotations

import dataclasses
from typing import Any, Literal, Protocol

import torch

from coterie import Federation
from coterie.engines import LocalEngine
from coterie.methods import Server
from coterie.trainers import LearningRateSchedule, default_loss
from coterie_bench.plain import PlainServer
from coterie_bench.workloads import Workload

ENDLESS = 10**9
"""More rounds than any measurement takes."""
OURS = "coterie"
PLAIN = "plain loop"
STEADY = "coterie, stable choices"


class Contender(Protocol):
    """Something that does rounds of a workload."""

    name: str

    def round(self, t: int) -> None:
        """Do round `t`, counted from 1."""
        ...

    def close(self) -> None:
        """Release processes and memory."""
        ...


class OurRounds:
    """Coterie: the method on the local engine with worker processes."""

    name = OURS

    def __init__(
        self,
        workload: Workload,
        federation: Federation,
        seed: int,
        workers: int | Literal["auto"],
        precision: str = "float32",
    ) -> None:
        self.engine = LocalEngine(federation, workload.architecture(), workers=workers, precision=precision)
        schedule = LearningRateSchedule(workload.training, ENDLESS)
        self.server = Server(self.engine, schedule, seed, ENDLESS, workload.participation)
        self.method = workload.method()
        self.state: Any = self.method.start(self.server)

    def round(self, t: int) -> None:
        self.state, _ = self.method.round(self.state, t, self.server)

    def close(self) -> None:
        self.engine.close()


class SteadyRounds:
    """Rounds of IFCA on the same engine once choices are stable: each client is sent only its own model."""

    name = STEADY

    def __init__(self, ours: OurRounds) -> None:
        self.server = ours.server
        self.method = dataclasses.replace(ours.method, resend=f"settled(1,recheck={ENDLESS})")  # type: ignore[type-var]
        self.state: Any = dataclasses.replace(ours.state, choices=dataclasses.replace(ours.state.choices, steady=1))

    def round(self, t: int) -> None:
        self.state, _ = self.method.round(self.state, t, self.server)

    def close(self) -> None:
        """The engine belongs to the other contender."""


class PlainRounds:
    """The plain loop, with torch's default threads or a number of them; same models, clients and batches as ours."""

    def __init__(self, workload: Workload, federation: Federation, server: Server, threads: int | None = None) -> None:
        self.name = PLAIN if threads is None else f"{PLAIN}, threads={threads}"
        self.threads = threads
        self.sampler = server
        self.positions = {client: i for i, client in enumerate(federation.ids)}
        self.server = PlainServer(
            [client.train for client in federation],
            workload.architecture(),
            [server.model_seed(index) for index in range(workload.k)],
            default_loss(federation.regression),
            workload.training,
        )

    def round(self, t: int, limit: int | None = None) -> None:
        """Do round `t`, with at most `limit` of its clients."""
        clients = self.sampler.participants(t)[:limit]
        before = torch.get_num_threads()
        torch.set_num_threads(self.threads or before)
        try:
            self.server.round([self.positions[c] for c in clients], [self.sampler.seed_of(t, c) for c in clients])
        finally:
            torch.set_num_threads(before)

    def close(self) -> None:
        """Nothing to release."""
