"""Metrics and validation data on a grid: the nodes compute them, and they are the simulator's."""

from __future__ import annotations

from typing import Any

import pytest
from flower_trials import MODEL, QUICK, TRAINING, digits
from torch import Tensor

import coterie
from coterie.errors import RunError
from coterie.flower import InProcessGrid, client_app
from coterie.flower.server import run_on


def spread(outputs: Tensor, labels: Tensor) -> float:
    return float(outputs.std())


def test_nodes_compute_the_metrics_and_hold_data_out() -> None:
    federation = digits()
    options: dict[str, Any] = TRAINING | {"rounds": 3, "validation": 0.25, "patience": 9}
    own = {"spread": spread}
    here = coterie.run("fedavg", federation, workers=1, metrics=["auc", "log-loss", spread], **options)
    configs = [{"client": client} for client in federation.ids]
    app = client_app(MODEL, federation, metrics=own)
    grid = InProcessGrid(app, node_configs=configs, run_config={"validation": 0.25, "seed": 5})
    there = run_on(grid, options | QUICK | {"method": "fedavg", "metrics": "auc,log-loss"}, metrics=own)
    assert there.summary.best_round == here.summary.best_round
    for ours, theirs in zip(here.clients, there.clients, strict=True):
        assert set(theirs.metrics) == {"loss", "accuracy", "auc", "log-loss", "spread"}
        assert theirs.metrics == pytest.approx(ours.metrics, rel=1e-3)
        assert theirs.validation == pytest.approx(ours.validation, rel=1e-3)


def test_a_node_without_the_function_says_what_is_missing() -> None:
    federation = digits(clients=2)
    grid = InProcessGrid(client_app(MODEL, federation), node_configs=[{"client": c} for c in federation.ids])
    options = TRAINING | QUICK | {"method": "fedavg", "rounds": 1}
    with pytest.raises(RunError, match=r"this client knows no metric 'spread': .* client_app\(metrics="):
        run_on(grid, options, metrics={"spread": spread})
