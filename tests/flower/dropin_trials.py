"""The quick-start app of `examples/flower-dropin`, unmodified, on a grid in this process."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch
from flwr.app import ArrayRecord, ConfigRecord
from flwr.serverapp import Grid

from coterie.flower import InProcessGrid
from coterie.flower.strategy_base import Clustered

EXAMPLE = Path(__file__).parents[2] / "examples" / "flower-dropin"
sys.path.insert(0, str(EXAMPLE))
from dropin import client_app, task  # noqa: E402
from dropin.client_app import app  # noqa: E402
from dropin.server_app import app as server_app  # noqa: E402
from dropin.task import Net, load_data  # noqa: E402

__all__ = [
    "ALL_AT_ONCE",
    "EXAMPLE",
    "LR",
    "Net",
    "app",
    "arrays",
    "client_app",
    "flat",
    "grid_of",
    "groups_of",
    "load_data",
    "server_app",
    "started",
    "task",
]
LR, ALL_AT_ONCE = 0.1, 1000


def grid_of(nodes: int, groups: int, *, batch: int = 32, epochs: int = 2, **more: Any) -> InProcessGrid:
    config = {"batch-size": batch, "local-epochs": epochs, "groups": groups}
    return InProcessGrid(app, nodes, run_config=config, **more)


def arrays(seed: int = 0) -> ArrayRecord:
    torch.manual_seed(seed)
    return ArrayRecord(Net().state_dict())


def started(strategy: Clustered, grid: Grid, rounds: int, **more: Any) -> Any:
    return strategy.start(grid, arrays(), rounds, train_config=ConfigRecord({"lr": LR}), **more)


def groups_of(strategy: Clustered, groups: int) -> list[list[int]]:
    """The hidden groups of every cluster's nodes; node ids count up with the partitions."""
    return [sorted({(node - 1001) % groups for node in members}) for members in strategy.clusters]


def flat(record: ArrayRecord) -> np.ndarray:
    return np.concatenate([array.numpy().ravel() for array in record.values()])
