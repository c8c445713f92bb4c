"""What the FedCUAU paper's tables and figures have in common: settings, and a finished run with its two accuracies."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from itertools import chain
from typing import Any, TypeVar

import numpy as np

from coterie import Federation, Method
from coterie.methods import Assignment
from coterie.runs import Run, RunConfig, global_accuracy, personalised, personalised_accuracy
from coterie_recipes.base import Study
from coterie_recipes.runs import AtTheEnd, kept_run, new_run, study_config

QUARTERS = ("C1", "C2", "C3", "C4")
T = TypeVar("T")


@dataclass(frozen=True)
class CuauSetting:
    """A federation with its network and local training; the fields are options of a run."""

    scenario: str
    model: str
    rounds: int
    lr: float
    lr_schedule: str
    samples: int | None = None
    epochs: int = 1
    batch_size: int = 32
    participation: float = 0.1
    clients: int = 100

    def config(self, study: Study, seed: int) -> RunConfig:
        """The configuration of a run in this setting, evaluated after its last round."""
        return study_config(study, seed, evaluate_every=self.rounds, **asdict(self))


CIFAR = CuauSetting("cifar-dirichlet-quarters", "resnet18", 500, 0.1, "step:0.1@250@375", samples=500)
"""The paper's: ResNet-18 on CIFAR-10, 10 of 100 clients per round, one epoch, lr 0.1 dropped twice; batch size ours."""
FASHION = CuauSetting("fashion-dirichlet-quarters", "mlp", 60, 0.1, "step:0.1@30@45", samples=200, epochs=2)
"""The small one: an MLP on Fashion-MNIST, the same shape of federation and schedule in 60 rounds."""


def setting_of(study: Study) -> CuauSetting:
    """The setting for the study's scale."""
    return CIFAR if study.full else FASHION


@dataclass(frozen=True)
class FinishedRun:
    """A run after its last round, its engine still open, so that its models can be evaluated."""

    run: Run
    state: Any

    @property
    def assignment(self) -> Assignment:
        """The model of every client."""
        return self.run.method.assignment(self.state, self.run.server)

    def initial(self, cluster: int) -> float:
        """Accuracy (%) of a cluster's model on all clients' test data."""
        return 100 * global_accuracy(self.assignment.models[cluster], self.run.engine)

    def personal(self, groups: Sequence[Sequence[str]], cluster: int | None = None) -> list[float]:
        """Mean accuracy (%) of each group of clients after 5 local epochs, from their own models or from one cluster's.

        The learning rate is that of the last round, as in the paper. Clients of no group are left out.
        """
        given, server = self.assignment, self.run.server
        asked = {client for group in groups for client in group}
        members = [[client for client in some if client in asked] for some in given.members]
        if cluster is None:
            given = Assignment(given.models, members, given.private)
        else:
            given = Assignment([given.models[cluster]], [list(chain(*members))], given.private)
        scores = personalised(given, server.engine, server.schedule.at(server.rounds), server.seed)
        values = [personalised_accuracy(scores, group) for group in groups]
        return [float("nan") if value is None else 100 * value for value in values]


def measured_run(
    study: Study,
    key: str,
    config: RunConfig,
    measure: Callable[[FinishedRun], T],
    *,
    method: Method | None = None,
    federation: Federation | None = None,
    keep: bool = False,
) -> T:
    """What `measure` finds at the end of a run; at full scale, or to `keep`, the run is in the study's folder."""
    end = AtTheEnd(lambda run, state: measure(FinishedRun(run, state)))
    if study.full or keep:
        kept_run(study, key, config, end, method=method, federation=federation)
    else:
        new_run(config, end, method=method, federation=federation)
    return end.measured


def label_distance(federation: Federation) -> dict[str, float]:
    """Σ_y |p_k(y) − p(y)| of each client k: how far its labels are from all clients' (the paper's EMD)."""
    counts = np.stack([np.bincount(client.train.y.numpy(), minlength=federation.classes) for client in federation])
    own = counts / counts.sum(axis=1, keepdims=True)
    total = counts.sum(axis=0) / counts.sum()
    return dict(zip(federation.ids, np.abs(own - total).sum(axis=1).tolist(), strict=True))
