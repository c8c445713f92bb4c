"""Ways of sharing solved in closed form: against systems solved the long way, and federations with a known answer."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from coterie.data.scenarios import find_scenario
from coterie.federation import Client, Federation, Split
from coterie_advice import closed_form
from coterie_advice.closed_form import _between, _Fold, _own_models, _samples, _skew, compare_sharing


def fold(sizes: tuple[int, ...] = (7, 4), p: int = 3, c: int = 2) -> _Fold:
    """Random clients of unequal sizes, padded."""
    generator = torch.Generator().manual_seed(0)

    def padded(width: int) -> torch.Tensor:
        rows = [torch.randn(n, width, generator=generator) for n in sizes]
        return torch.nn.utils.rnn.pad_sequence(rows, batch_first=True)

    counts = torch.tensor(sizes)
    return _Fold(padded(p), padded(c), counts, padded(p), padded(c), None, counts)


def test_own_models_are_those_of_the_primal_system_whatever_the_padding(monkeypatch: pytest.MonkeyPatch) -> None:
    pull = 0.7
    monkeypatch.setattr(closed_form, "PULLS", (pull,))
    data, common = fold(), torch.randn(3, 2, generator=torch.Generator().manual_seed(1))
    found = _own_models(data, common)
    for way, centre in enumerate((common, torch.zeros_like(common))):
        for i, n in enumerate((7, 4)):
            z, y = data.z[i, :n], data.y[i, :n]
            model = torch.linalg.solve(z.T @ z + pull * torch.eye(3), z.T @ y + pull * centre)
            error = (data.z_held[i, :n] @ model - data.y_held[i, :n]).square().mean()
            assert found[way][i] == pytest.approx(1 - float(error), abs=1e-4)


def test_padding_counts_for_nothing() -> None:
    data = fold()
    model = torch.randn(3, 2, generator=torch.Generator().manual_seed(2))
    for i, n in enumerate((7, 4)):
        expected = (data.z[i, :n] @ model - data.y[i, :n]).square().sum(1).mean()
        assert float(data.fit_losses(model)[i]) == pytest.approx(float(expected), rel=1e-5)
    labelled = _Fold(
        data.z, data.y, data.sizes, data.z_held, data.y_held, torch.tensor([[0] * 7, [0] * 4 + [-1] * 3]), data.sizes
    )
    assert labelled.scores(torch.tensor([1.0, 0.0]).expand(2, 7, 2)).tolist() == [1.0, 1.0]


def test_label_skew_by_hand() -> None:
    apart = [torch.zeros(1000, dtype=torch.long), torch.ones(1000, dtype=torch.long)]
    assert _skew(apart, 2) == pytest.approx(0.5, abs=0.02)
    generator = torch.Generator().manual_seed(0)
    alike = [torch.randint(0, 10, (30,), generator=generator) for _ in range(50)]
    assert _skew(alike, 10) < 0.04  # 0.2 without taking off what chance explains


def test_variance_between_clients_by_hand() -> None:
    assert _between([torch.tensor([[0.0], [2.0]]), torch.tensor([[4.0], [6.0]])]) == pytest.approx(16 / 20)


@pytest.mark.parametrize(("kind", "groups"), [("permuted", 3), ("rotated", 2), ("swapped", 2)])
def test_groups_are_found_and_their_number(kind: str, groups: int) -> None:
    data = find_scenario(f"digits-{kind}").build(clients=4 * groups, samples=80, groups=groups, seed=3)
    found = compare_sharing(data, linear=False, seed=0)
    assert found is not None
    assert found.k == groups
    of = dict(zip(data.ids, data.groups or (), strict=True))
    assert all(len({of[client] for client in cluster}) == 1 for cluster in found.clusters)
    assert found.several_gain.mean() > 0.03


def test_clients_of_one_distribution_are_best_served_together() -> None:
    data = find_scenario("digits-iid").build(clients=12, samples=50, seed=4)
    found = compare_sharing(data, linear=False, seed=0)
    assert found is not None
    assert found.k == 1
    assert not found.several_gain.any()
    assert found.one.mean() > found.local.mean() + 0.1
    assert found.skew < 0.05


def test_a_regression_by_two_rules() -> None:
    generator = torch.Generator().manual_seed(0)
    clients = []
    for i in range(8):
        x = torch.randn(60, 4, generator=generator)
        y = x[:, 0] * (1.0 if i % 2 else -1.0) + 0.1 * torch.randn(60, generator=generator)
        clients.append(Client(f"c{i}", Split(x[:50], y[:50]), Split(x[50:], y[50:]), Split(x[:0], y[:0])))
    found = compare_sharing(Federation(clients), linear=True, seed=0)
    assert found is not None
    assert found.k == 2
    assert found.one.mean() < 0.1
    assert found.several_gain.mean() > 0.8
    assert np.all(found.local > 0.8)


def test_sequences_are_left_to_training() -> None:
    x = torch.randint(0, 5, (20, 6))
    clients = [Client(f"c{i}", Split(x, x), Split(x[:0], x[:0]), Split(x[:2], x[:2])) for i in range(3)]
    assert compare_sharing(Federation(clients, 5), linear=False, seed=0) is None


def test_of_many_samples_some_are_drawn_whatever_their_order() -> None:
    x = torch.arange(1000.0)[:, None]
    y = (torch.arange(1000) >= 500).long()  # sorted by label, as files often are
    client = Client("c", Split(x[:900], y[:900]), Split(x[900:], y[900:]), Split(x[:0], y[:0]))
    drawn, labels = _samples(client, torch.Generator().manual_seed(0))
    assert len(drawn) == len(set(drawn[:, 0].tolist())) == closed_form.MOST_SAMPLES
    assert torch.equal((drawn[:, 0] >= 500).long(), labels)
    assert 0.4 < float(labels.double().mean()) < 0.6
    assert bool((drawn[:, 0] >= 900).any())
