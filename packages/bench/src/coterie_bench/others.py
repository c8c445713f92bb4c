"""Other frameworks on the same round of FedAvg, where they are installed; each trains with its own client code."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Callable
from typing import Any

import torch
from torch.utils.data import DataLoader, TensorDataset

from coterie import Federation
from coterie.methods import Server
from coterie.trainers import default_loss
from coterie_bench.contenders import Contender
from coterie_bench.fedjax_rounds import FEDJAX, FedjaxRounds
from coterie_bench.flower_rounds import FlowerRounds
from coterie_bench.pfl_rounds import PFL, PflRounds
from coterie_bench.plain import average
from coterie_bench.workloads import Workload

FLOWER, FLUKE, FEDLAB = "Flower's simulation", "fluke", "fedlab"
Maker = Callable[[Workload, Federation, Server], Contender]


class FlukeRounds:
    """fluke's clients, each with its FastDataLoader, model and optimizer; their models are averaged."""

    name = FLUKE

    def __init__(self, workload: Workload, federation: Federation, server: Server) -> None:
        client_class = _from("fluke.client", "Client")
        loader_class = _from("fluke.data", "FastDataLoader")
        optimizer = _from("fluke.config", "OptimizerConfigurator")({"name": "SGD", "lr": workload.training.lr})
        self.module = workload.architecture()(server.model_seed())
        self.weights = self.module.state_dict()
        self.server = server
        self.samples = server.samples
        self.clients: dict[str, Any] = {}
        for i, client in enumerate(federation):
            size = workload.training.batch_size or len(client.train)
            data = loader_class(
                client.train.x, client.train.y, num_labels=workload.classes, batch_size=size, shuffle=True
            )
            loss = default_loss(federation.regression)
            made = client_class(i, data, None, optimizer, loss, local_epochs=workload.training.epochs)
            made.model = workload.architecture()(0)
            self.clients[client.id] = made

    def round(self, t: int) -> None:
        replies = []
        for name in self.server.participants(t):
            client = self.clients[name]
            client.model.load_state_dict(self.weights)
            client.fit()
            replies.append((client.model.state_dict(), float(self.samples[name])))
        self.weights = average(replies)

    def close(self) -> None:
        """Nothing to release."""


class FedLabRounds:
    """FedLab's serial trainer and synchronous server."""

    name = FEDLAB

    def __init__(self, workload: Workload, federation: Federation, server: Server) -> None:
        how = workload.training
        module = workload.architecture()(server.model_seed())
        trainer = _from("fedlab.contrib.algorithm.basic_client", "SGDSerialClientTrainer")
        handler = _from("fedlab.contrib.algorithm.basic_server", "SyncServerHandler")
        self.trainer = trainer(module, len(federation))
        self.trainer.setup_dataset(_Loaders(federation))
        self.trainer.setup_optim(how.epochs, how.batch_size, how.lr)
        self.handler = handler(module, 10**9, workload.participation)
        self.handler.num_clients = len(federation)

    def round(self, t: int) -> None:
        chosen = self.handler.sample_clients()
        self.trainer.local_process(self.handler.downlink_package, chosen)
        for reply in self.trainer.uplink_package:
            self.handler.load(reply)

    def close(self) -> None:
        """Nothing to release."""


class _Loaders:
    """The clients' data as FedLab reads it: a DataLoader by the client's number."""

    def __init__(self, federation: Federation) -> None:
        self.sets = [TensorDataset(client.train.x, client.train.y) for client in federation]

    def get_dataloader(self, number: int, batch_size: int) -> DataLoader[tuple[torch.Tensor, ...]]:
        return DataLoader(self.sets[number], batch_size=batch_size, shuffle=True)


def _from(module: str, name: str) -> Any:
    return getattr(importlib.import_module(module), name)


MAKERS: dict[str, tuple[tuple[str, ...], Maker]] = {
    FLOWER: (("flwr", "ray"), FlowerRounds),
    FLUKE: (("fluke",), FlukeRounds),
    FEDLAB: (("fedlab",), FedLabRounds),
    FEDJAX: (("fedjax", "jax"), FedjaxRounds),
    PFL: (("pfl",), PflRounds),
}


def load_contender(name: str, workload: Workload, federation: Federation, server: Server) -> Contender | str:
    """The named framework after its first round, or the reason why it cannot be measured."""
    needed, make = MAKERS[name]
    missing = [package for package in needed if importlib.util.find_spec(package) is None]
    if missing:
        return f"{' and '.join(missing)} not installed"
    contender: Contender | None = None
    try:
        contender = make(workload, federation, server)
        contender.round(1)
    except (ImportError, AttributeError, TypeError, AssertionError, RuntimeError) as problem:
        if contender is not None:
            contender.close()
        return f"installed, but its API is not the one expected here ({type(problem).__name__}: {problem})"
    return contender
