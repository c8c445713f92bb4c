"""Who does the same rounds: Coterie's engine and the plain loop; each can be asked for one round at a time."""

from __future__ import annotations

import dataclasses
from typing import Any, Literal, Protocol

import torch

from coterie.bench.plain import PlainServer
from coterie.bench.workloads import Workload
from coterie.engines.local import LocalEngine
from coterie.federation import Federation
from coterie.losses import default_loss
from coterie.methods.server import Server
from coterie.randomness import derive
from coterie.schedules import LearningRateSchedule

ENDLESS = 10**9
"""More rounds than any measurement takes."""
OURS = "coterie"
PLAIN = "plain loop"
STEADY = "coterie, stable choices"


class Contender(Protocol):
    """Something that can do round after round of a workload."""

    name: str

    def round(self, t: int) -> None:
        """Do round `t`, counted from 1, to its end."""
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
    """The same engine's rounds of IFCA once choices are stable: each client is sent its own model only."""

    name = STEADY

    def __init__(self, ours: OurRounds) -> None:
        self.server = ours.server
        self.method = dataclasses.replace(ours.method, stable_after=1, recheck_every=ENDLESS)  # type: ignore[type-var]
        attempts = [dataclasses.replace(attempt, steady=1) for attempt in ours.state.attempts]
        self.state: Any = dataclasses.replace(ours.state, attempts=attempts)

    def round(self, t: int) -> None:
        self.state, _ = self.method.round(self.state, t, self.server)

    def close(self) -> None:
        """The engine belongs to the other contender."""


class PlainRounds:
    """The plain loop, with torch's default threads or a number of them; same models, clients and batches as ours."""

    def __init__(self, workload: Workload, federation: Federation, server: Server, threads: int | None = None) -> None:
        self.name = PLAIN if threads is None else f"{PLAIN}, threads={threads}"
        self.threads = threads
        self.drawn = server
        self.positions = {client: i for i, client in enumerate(federation.ids)}
        self.server = PlainServer(
            [client.train for client in federation],
            workload.architecture(),
            [derive(server.seed, "model", index) for index in range(workload.k)],
            default_loss(federation.regression),
            workload.training,
        )

    def round(self, t: int, most: int | None = None) -> None:
        """Do round `t`; `most` clients are enough to warm up."""
        clients = self.drawn.participants(t)[:most]
        before = torch.get_num_threads()
        torch.set_num_threads(self.threads or before)
        try:
            self.server.round([self.positions[c] for c in clients], [self.drawn.seed_of(t, c) for c in clients])
        finally:
            torch.set_num_threads(before)

    def close(self) -> None:
        """Nothing to release."""
