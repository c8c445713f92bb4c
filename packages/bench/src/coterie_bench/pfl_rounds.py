"""pfl on the same round of FedAvg: its own algorithm, simulator and local training."""

from __future__ import annotations

import importlib
import itertools
from typing import Any

import torch
from torch import Tensor, nn

from coterie import Federation
from coterie.methods import Server
from coterie.trainers import default_loss
from coterie_bench.workloads import Workload

PFL = "pfl"
_NEVER = 10**9
"""Rounds between two evaluations of pfl's, which belong to no round that is timed here."""


class PflRounds:
    """pfl's FederatedAveraging on its SimulatedBackend, in one process: clients in turn, batches in order."""

    name = PFL

    def __init__(self, workload: Workload, federation: Federation, server: Server) -> None:
        how = workload.training
        module: Any = workload.architecture()(server.model_seed())
        # A module that pfl trains has a method for the loss and one for what it reports.
        module.loss = _Loss(module, default_loss(federation.regression))
        module.metrics = _no_metrics
        self.model = _from("pfl.model.pytorch", "PyTorchModel")(
            module, torch.optim.SGD, torch.optim.SGD(module.parameters(), lr=1.0)
        )
        data = {client.id: (client.train.x, client.train.y) for client in federation}
        dataset = _from("pfl.data.dataset", "Dataset")
        turn = itertools.cycle(federation.ids)
        clients = _from("pfl.data.federated_dataset", "FederatedDataset")(
            lambda name: dataset(data[name], user_id=name), lambda: next(turn)
        )
        self.backend = _from("pfl.aggregate.simulate", "SimulatedBackend")(clients, clients)
        self.algorithm = _from("pfl.algorithm.federated_averaging", "FederatedAveraging")()
        self.participants = workload.participants
        self.training = _from("pfl.hyperparam", "NNTrainHyperParams")(
            local_batch_size=how.batch_size,
            local_num_epochs=None if how.steps else how.epochs,
            local_learning_rate=how.lr,
            local_num_steps=how.steps,
        )
        self.evaluation = _from("pfl.hyperparam", "NNEvalHyperParams")(local_batch_size=None)
        self.parameters = _from("pfl.algorithm.base", "NNAlgorithmParams")
        self.rounds = 0

    def round(self, t: int) -> None:
        self.rounds += 1
        until = self.parameters(
            central_num_iterations=self.rounds,
            evaluation_frequency=_NEVER,
            train_cohort_size=self.participants,
            val_cohort_size=0,
        )
        self.model = self.algorithm.run(
            until, self.backend, self.model, self.training, self.evaluation, send_metrics_to_platform=False
        )

    def close(self) -> None:
        """Nothing to release."""


class _Loss:
    """The loss of a batch, as pfl calls it; no module, so that it adds no parameters."""

    def __init__(self, module: nn.Module, loss: Any) -> None:
        self.module, self.loss = module, loss

    def __call__(self, x: Tensor, y: Tensor) -> Tensor:
        value: Tensor = self.loss(self.module(x), y)
        return value


def _no_metrics(x: Tensor, y: Tensor) -> dict[str, Any]:
    return {}


def _from(module: str, name: str) -> Any:
    return getattr(importlib.import_module(module), name)
