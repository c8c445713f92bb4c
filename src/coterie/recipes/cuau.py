"""What the FedCUAU paper's tables and figures have in common: settings, and a run with its two accuracies."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from coterie.federation import Federation
from coterie.methods import Assignment, Method
from coterie.recipes.base import Study
from coterie.runs.assemble import assemble, check_same_run
from coterie.runs.config import RunConfig, make_config
from coterie.runs.folder import RunFolder
from coterie.runs.loop import Run, execute
from coterie.runs.personalised import global_accuracy, personalised, personalised_accuracy

QUARTERS = ("C1", "C2", "C3", "C4")


@dataclass(frozen=True)
class Setting:
    """A federation with its network and local training."""

    scenario: str
    model: str
    rounds: int
    lr: float
    lr_schedule: str
    samples: int
    epochs: int = 1
    batch_size: int = 32
    participation: float = 0.1
    clients: int = 100

    def config(self, study: Study, seed: int, **others: Any) -> RunConfig:
        """The configuration of a run in this setting."""
        places = {"data_dir": study.data_dir, "workers": study.workers}
        return make_config(asdict(self) | places | {"seed": seed, "evaluate_every": self.rounds} | others)


CIFAR = Setting("cifar-dirichlet-quarters", "resnet18", 500, 0.1, "step:0.1@250@375", samples=500)
"""The paper's: ResNet-18 on CIFAR-10, 10 of 100 clients a round, one epoch, lr 0.1 dropped twice (batches are ours)."""
FASHION = Setting("fashion-dirichlet-quarters", "mlp", 60, 0.1, "step:0.1@30@45", samples=200, epochs=2)
"""The small one: an MLP on Fashion-MNIST, the same shape of federation and schedule in 60 rounds."""


def setting_of(study: Study) -> Setting:
    """The setting for the study's scale."""
    return CIFAR if study.full else FASHION


def carried_out(study: Study, key: str, config: RunConfig, method: Method | None = None, **objects: Any) -> Trained:
    """Do a run, or go on with it; at full scale its rounds are kept in a folder of the study."""
    run, used = assemble(config, method=method, **objects)
    if not study.full:
        return Trained(run, execute(run).state)
    path = study.out / "runs" / key
    begun = (path / "config.json").exists()
    with RunFolder.open(path) if begun else RunFolder.create(path, used) as folder:
        if begun:
            check_same_run(used, folder.config(), path)
        return Trained(run, execute(run, folder).state)


@dataclass(frozen=True)
class Trained:
    """A run that is done, its engine still open so that its models can be looked at."""

    run: Run
    state: Any

    @property
    def assignment(self) -> Assignment:
        """The model of every client."""
        return self.run.method.assignment(self.state, self.run.server)

    def initial(self, cluster: int) -> float:
        """Accuracy of a cluster's model on everybody's test data, in %."""
        return 100 * global_accuracy(self.assignment.models[cluster], self.run.engine)

    def personal(self, groups: Sequence[Sequence[str]], cluster: int | None = None) -> list[float]:
        """Mean accuracy (%) of each group of clients after 5 local epochs, from their own models or from one cluster's.

        The step size is that of the last round, as in the paper.
        """
        given, server = self.assignment, self.run.server
        if cluster is not None:
            given = replace(given, models=[given.models[cluster]], members=[list(server.clients)])
        scores = personalised(given, server.engine, server.schedule.at(server.rounds), server.seed)
        values = [personalised_accuracy(scores, group) for group in groups]
        return [float("nan") if value is None else 100 * value for value in values]

    def close(self) -> None:
        """Release the engine."""
        self.run.engine.close()


def label_distance(federation: Federation) -> dict[str, float]:
    """Each client's earth mover's distance (the paper's) of its labels from everybody's: Σ_y |p_k(y) − p(y)|."""
    counts = np.stack([np.bincount(client.train.y.numpy(), minlength=federation.classes) for client in federation])
    own = counts / counts.sum(axis=1, keepdims=True)
    everybody = counts.sum(axis=0) / counts.sum()
    return dict(zip(federation.ids, np.abs(own - everybody).sum(axis=1).tolist(), strict=True))
