"""Optimisers, class weights, augmentation and losses on a Flower grid are those of a simulation."""

from __future__ import annotations

import pytest
import torch
from flower_trials import MODEL, QUICK, TRAINING, assert_same, both, digits

import coterie
from coterie.errors import ConfigError
from coterie.federation import Client, Federation, Split
from coterie.flower import InProcessGrid, client_app
from coterie.flower.server import run_on
from coterie.randomness import torch_generator


def test_training_settings_and_a_kept_state_are_the_same_on_a_grid() -> None:
    here, there = both(
        "fedavg",
        digits(4),
        2,
        optimizer="adamw:beta2=0.99",
        keep_optimizer=True,
        clip_gradient=2.0,
        class_weights="balanced",
        augment="crop:1",
        server_optimizer="avgm",
    )
    assert_same(here, there)
    fresh, _ = both("fedavg", digits(4), 2, optimizer="adamw:beta2=0.99")
    assert not torch.allclose(fresh.models[0], there.models[0], rtol=1e-3)


def test_the_clients_take_the_loss_that_the_run_names() -> None:
    generator = torch_generator(0)
    clients = []
    for name in "abc":
        x = torch.randn(30, 3, generator=generator)
        y = (x[:, 0] > 0).long()
        clients.append(Client(name, Split(x[:20], y[:20]), Split(x[20:24], y[20:24]), Split(x[24:], y[24:])))
    federation = Federation(clients, 2)
    given = TRAINING | {"method": "fedavg", "rounds": 2, "loss": "bce"}
    here = coterie.run(federation=federation, workers=1, **given)
    configs = [{"client": client} for client in federation.ids]
    grid = InProcessGrid(client_app(MODEL, federation), node_configs=configs, run_config={"loss": "bce"})
    assert_same(here, run_on(grid, given | QUICK))


def test_a_function_of_the_users_own_is_not_sent() -> None:
    with pytest.raises(ConfigError, match="cannot be sent to clients elsewhere: use flip or crop"):
        both("fedavg", digits(3), 1, augment="test_flower_training:noisy")


def noisy(images: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """An augmentation of the user's own."""
    return images
