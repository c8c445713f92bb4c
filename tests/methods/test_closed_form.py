"""Ways to share models in closed form: moments by hand, losses without data, and what is chosen for which clients."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from coterie.data import find_scenario
from coterie.federation import Client, Federation, Split
from coterie.methods import FedAvg, Server
from coterie.methods.closed_form import (
    MOST_CLUSTERS,
    PARTS,
    Fit,
    Moments,
    Sharing,
    _feature_task,
    _moments,
    _standardised,
    compare_sharing,
)
from coterie.runs import assemble, make_config
from coterie.tasks import Request
from coterie.tasks.moments import factors_of, part_of_samples

NOTHING = Split(torch.zeros(0, 3), torch.zeros(0, 1))


def sites(slopes: np.ndarray, intercepts: np.ndarray, rows: int = 40, seed: int = 0) -> Federation:
    """Clients with a linear rule each: y = x · slope + intercept + noise."""
    generator = np.random.default_rng(seed)
    clients = []
    for i, (slope, intercept) in enumerate(zip(slopes, intercepts, strict=True)):
        x = generator.standard_normal((rows, 3))
        y = x @ slope + intercept + 0.5 * generator.standard_normal(rows)
        train = Split(torch.tensor(x).float(), torch.tensor(y).float()[:, None])
        clients.append(Client(f"c{i}", train, NOTHING, train))
    return Federation(clients, 0)


def server_of(federation: Federation, model: str = "linear") -> Server:
    plan = make_config({"model": model, "rounds": 1, "workers": 1})
    return assemble(plan, federation=federation, method=FedAvg())[0].server


def compared(federation: Federation) -> Sharing:
    found = compare_sharing(server_of(federation))
    assert found is not None
    return found


ONE, OTHER = np.array([1.0, -1.0, 2.0]), np.array([-1.0, 2.0, 1.0])


def test_features_have_mean_zero_and_length_one_together() -> None:
    features = np.random.default_rng(0).normal([5.0, -2.0, 0.0], [3.0, 0.5, 1.0], (2, PARTS, 30, 3))
    design = torch.tensor(np.concatenate([features, np.ones((2, PARTS, 30, 1))], -1))
    count = torch.full((2, PARTS), 30.0, dtype=torch.float64)
    found = _standardised(Moments(("a", "b"), design, design[..., :1], count, count)).of(range(PARTS)).gram.mean(0)
    torch.testing.assert_close(found[-1], torch.tensor([0.0, 0.0, 0.0, 1.0], dtype=torch.float64))
    torch.testing.assert_close(found.diagonal()[:-1], torch.full((3,), 1 / 3, dtype=torch.float64))


def test_one_rule_is_one_model() -> None:
    found = compared(sites(np.tile(ONE, (12, 1)), np.zeros(12)))
    assert found.chosen is None
    assert found.clusters == ()
    assert "nothing is surely better than one model" in found.sentence()


@pytest.mark.parametrize("sizes", [(6, 6), (10, 2), (1, 1), (11, 1)])
def test_two_rules_are_two_clusters_whatever_their_sizes(sizes: tuple[int, int]) -> None:
    rules = np.array([ONE] * sizes[0] + [OTHER] * sizes[1])
    found = compared(sites(rules, np.zeros(len(rules))))
    assert sorted(map(len, found.clusters)) == sorted(sizes)
    assert {frozenset(members) for members in found.clusters} == {
        frozenset(f"c{i}" for i in range(sizes[0])),
        frozenset(f"c{i}" for i in range(sizes[0], sum(sizes))),
    }
    assert found.advised is not None
    assert found.advised.name == "2 models, one per cluster"


def test_intercepts_are_an_offset_and_no_clusters() -> None:
    found = compared(sites(np.tile(ONE, (12, 1)), np.linspace(-3, 3, 12)))
    assert found.chosen is not None
    assert found.chosen.kind == "offset"
    assert found.clusters == ()


def test_a_rule_each_is_a_model_each() -> None:
    generator = np.random.default_rng(1)
    found = compared(sites(ONE + generator.standard_normal((12, 3)), np.zeros(12)))
    assert found.chosen is not None
    assert found.chosen.kind == "own"


def test_clients_of_few_samples_that_share_nothing_are_clusters_of_one() -> None:
    """One ridge for all ways would be the one with which a model for all bears six meanings of every label."""
    data = find_scenario("digits:permuted(6)").build(clients=6, samples=40, seed=367)
    found = compare_sharing(server_of(data, "mlp:hidden=8"))
    assert found is not None
    assert sorted(map(len, found.clusters)) == [1] * 6


def test_clusters_that_the_parts_of_the_data_do_not_find_alike_are_no_candidates() -> None:
    found = compared(sites(ONE + 0.3 * np.random.default_rng(1).standard_normal((12, 3)), np.zeros(12)))
    assert {way.option for way in found.ways if way.kind == "clusters"} < set(range(2, MOST_CLUSTERS + 1))
    assert found.level == pytest.approx(0.05 / len(found.ways))


def test_losses_from_moments_are_those_of_the_data() -> None:
    federation = sites(np.array([ONE, OTHER, ONE]), np.array([0.0, 1.0, 2.0]))
    server = server_of(federation)
    ask = _feature_task(server.clients, server)
    assert ask is not None
    found = _moments(server.clients, ask, server)
    assert found is not None
    fit = found.of(range(PARTS))
    everyone = np.zeros(3, dtype=np.int64)
    losses = fit.losses(fit.by_choice(everyone, 1e-6)[0])
    x = torch.cat([c.train.x for c in federation]).double()
    y = torch.cat([c.train.y for c in federation]).double()
    design = torch.cat([x, torch.ones(len(x), 1)], 1)
    residual = y - design @ torch.linalg.lstsq(design, y).solution
    expected = residual.square().reshape(3, -1).mean(1)
    assert torch.allclose(losses, expected, rtol=1e-4)
    with_offset = fit.losses(fit.with_offset(fit.by_choice(everyone, 1e-6)[0], 1.0))
    assert torch.allclose(with_offset, residual.reshape(3, -1).var(1, unbiased=False), rtol=1e-4)


def test_parts_keep_blocks_whole_and_repeat() -> None:
    block = torch.arange(7).repeat_interleave(5)
    data = Split(torch.zeros(35, 1), torch.zeros(35), block)
    parts = part_of_samples(data, PARTS, 4)
    assert all(len(set(parts[block == b].tolist())) == 1 for b in range(7))
    assert torch.equal(parts, part_of_samples(data, PARTS, 4))
    alone = part_of_samples(replace(data, block=None), PARTS, 4)
    assert torch.bincount(alone).tolist() == [12, 12, 11]


def test_sequences_cannot_be_compared() -> None:
    x = torch.randint(0, 6, (30, 5), generator=torch.Generator().manual_seed(0))
    clients = [Client(f"c{i}", Split(x, x), Split(x[:2], x[:2]), Split(x[:2], x[:2])) for i in range(3)]
    assert compare_sharing(server_of(Federation(clients, 6), "lstm:embedding=4,hidden=4")) is None


@pytest.mark.parametrize("rows", [4, 40])
def test_ways_of_sharing_solve_ridge_regression(rows: int) -> None:
    """Of fewer rows than features and of more: solved in rows or in features, by hand it is one formula."""
    random = torch.Generator().manual_seed(0)
    x = torch.randn(3, rows, 6, generator=random, dtype=torch.float64)
    x[..., -1] = 1
    y, towards = (torch.randn(3, n, 2, generator=random, dtype=torch.float64) for n in (rows, 6))
    count = torch.full((3, 1), float(rows), dtype=torch.float64)
    fit = Moments(("a", "b", "c"), x[:, None], y[:, None], y.square().sum((1, 2))[:, None], count).of([0])
    assert fit.factor.shape[1] == min(rows, 6)
    eye = torch.eye(6, dtype=torch.float64)
    own = torch.linalg.solve(x.mT @ x + eye, x.mT @ y + towards)
    torch.testing.assert_close(fit.own(towards, 1.0), own, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(fit.losses(own), (x @ own - y).square().sum((1, 2)) / rows, rtol=1e-4, atol=1e-4)
    a, b = x[:2].flatten(0, 1), y[:2].flatten(0, 1)
    shared = torch.linalg.solve(a.T @ a + eye, a.T @ b)
    torch.testing.assert_close(fit.by_choice(np.array([3, 3, 1]), 1.0)[1], shared, rtol=1e-4, atol=1e-4)
    a, b = ((own[:2] - own[:2].mean(1, keepdim=True)).flatten(0, 1) for own in (x, y))
    without = torch.linalg.solve(a.T @ a + eye, a.T @ b)
    for found in (fit.by_choice(np.array([0, 0, 1]), 1.0, 1.0), fit.centred().by_choice(np.array([0, 0, 1]), 1.0)):
        torch.testing.assert_close(found[0], without, rtol=1e-4, atol=1e-4)


def test_factors_are_the_moments_in_fewer_numbers() -> None:
    federation = sites(np.array([ONE, OTHER]), np.zeros(2), rows=8)
    server = server_of(federation, "mlp:hidden=4")
    ask = _feature_task(server.clients, server)
    assert ask is not None
    [reply] = server.ask([Request("c0", ask)])
    counts = [int(count) for count in reply.values["sums"][:, 1]]
    assert sorted(counts) == [2, 3, 3]
    p = ask.width
    assert reply.values["factors"].shape == (PARTS, 3 * p - 3 + 3)  # three rows of R without zeros, three targets
    r, b = factors_of(reply.values["factors"], counts, p, 1)
    z, y = ask._features(federation["c0"].train.x), federation["c0"].train.y.double()
    torch.testing.assert_close((r.mT @ r).sum(0).double(), z.T @ z, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close((r.mT @ b).sum(0).double(), z.T @ y, rtol=1e-4, atol=1e-4)
    assert float(reply.values["sums"][:, 0].sum()) == pytest.approx(float(y.square().sum()), rel=1e-5)


def test_losses_under_several_models_are_those_under_each() -> None:
    random = torch.Generator().manual_seed(0)
    x, y = (torch.randn(4, 20, n, generator=random, dtype=torch.float64) for n in (5, 3))
    fit = Fit(x / 20**0.5, y / 20**0.5, y.square().sum((1, 2)) / 20, torch.full((4,), 20.0))
    models = torch.randn(6, 5, 3, generator=random, dtype=torch.float64)
    by_hand = torch.stack([(x @ model - y).square().sum((1, 2)) / 20 for model in models], 1)
    torch.testing.assert_close(fit.losses_of_all(models), by_hand)
    torch.testing.assert_close(torch.stack([fit.losses(model) for model in models], 1), by_hand)
