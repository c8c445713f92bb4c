"""Honest clients of very unequal sizes: the default of every method is its paper's weighted mean, without any limit."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits

import coterie
from coterie import Client, Federation, Split


def digits(sizes: list[int], seed: int, group_of: list[int] | None = None) -> Federation:
    """Clients of the given sizes with digits drawn at random; labels are shifted by 2 for each group."""
    x, y = load_digits(return_X_y=True)
    x = torch.tensor(x / 16.0, dtype=torch.float32)
    random = np.random.default_rng(seed)
    test = random.permutation(len(x))[:300]
    train = np.setdiff1d(np.arange(len(x)), test)
    clients = []
    for number, size in enumerate(sizes):
        group = group_of[number] if group_of else 0
        own = random.choice(train, size, replace=size > len(train))
        labels = torch.tensor((y + 2 * group) % 10)
        train_data, test_data = Split(x[own], labels[own]), Split(x[test], labels[test])
        clients.append(Client(f"c{number}", train_data, Split(x[:0], labels[:0]), test_data, group))
    return Federation(clients, 10)


@pytest.mark.parametrize(("sizes", "seed"), [([1000] + [12] * 19, 0), ([1000] + [12] * 19, 1), ([1250] + [12] * 12, 0)])
def test_fedavg_learns_from_one_large_client_among_small_ones(sizes: list[int], seed: int) -> None:
    # After 40 rounds the second case has 287 of its 300 test samples right; the large client alone ends with 288.
    result = coterie.run("fedavg", digits(sizes, seed), model="mlp:hidden=64", rounds=80, lr=0.2, epochs=2, seed=seed)
    assert round(300 * result.summary.metrics["accuracy"].mean) >= 288  # 96 %
    assert not [event for record in result.history for event in record.events]


@pytest.mark.parametrize("seed", [0, 1])
def test_cfl_by_the_papers_thresholds_finds_four_groups_of_unequal_clients(seed: int) -> None:
    # With ε2 = ε1 = 0.6 the same splits come, and then a fifth cluster: in a group
    # whose mean has just fallen below ε1 the longest update is 0.62, and one client is split off.
    federation = digits([20, 50, 200, 2500] * 4, seed, [number // 4 for number in range(16)])
    method = "cfl:rule=paper(eps1=0.4,eps2=1.6)"
    result = coterie.run(method, federation, model="mlp:hidden=64", rounds=60, lr=0.1, epochs=1, seed=seed)
    members = {tuple(f"c{number}" for number in range(first, first + 4)) for first in (0, 4, 8, 12)}
    assert {tuple(sorted(cluster, key=lambda client: int(client[1:]))) for cluster in result.clusters} == members
    assert result.summary.metrics["accuracy"].mean >= 0.96
