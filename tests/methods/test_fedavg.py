"""FedAvg worked by hand on a linear model in float64."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from torch import nn

from coterie.engines import LocalEngine
from coterie.errors import ConfigError
from coterie.federation import Federation
from coterie.methods import FedAvg, Server, make_method
from coterie.methods.averaging import mean_loss
from coterie.trainers.base import Training
from coterie.trainers.schedules import make_schedule

SIZES = (2, 6, 4)
TRAINING = Training(lr=0.1, epochs=2, batch_size=None)


def points(n, seed):
    x = torch.randn(n, 2, generator=torch.Generator().manual_seed(seed))
    return x, x.sum(1, keepdim=True) * (seed + 1)


def linear(seed):
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return nn.Linear(2, 1)


def server_of(sizes=SIZES, participation=1.0, seed=0, spec="constant"):
    data = {f"c{i}": {"train": points(n, i)} for i, n in enumerate(sizes)}
    engine = LocalEngine(Federation.from_tensors(data, splits=(1, 0, 0)), linear, precision="float64")
    return Server(engine, make_schedule(spec, TRAINING, 3), seed, 3, participation)


def trained(start, x, y, lr=TRAINING.lr, steps=2):
    """Full-batch gradient descent by the closed form of the gradient."""
    x, y = x.double(), y.double()
    design = torch.cat([x, torch.ones(len(x), 1, dtype=torch.float64)], 1)
    theta = start.double().clone()
    for _ in range(steps):
        theta -= lr * 2 / len(x) * (design.T @ (design @ theta[:, None] - y)).flatten()
    return theta


@pytest.mark.parametrize(
    ("method", "weights", "lr"),
    [
        (FedAvg(), SIZES, 1.0),
        (FedAvg(weighting="uniform"), (1, 1, 1), 1.0),
        (FedAvg(server_lr=0.5), SIZES, 0.5),
    ],
)
def test_a_round_is_the_weighted_mean(method, weights, lr):
    server = server_of()
    state = method.start(server)
    updates = [trained(state.model, *points(n, i)) - state.model for i, n in enumerate(SIZES)]
    mean = sum(w * u for w, u in zip(weights, updates, strict=True)) / sum(weights)
    after, info = method.round(state, 1, server)
    torch.testing.assert_close(after.model, state.model + lr * mean, rtol=1e-10, atol=1e-12)
    (cluster,) = info.clusters
    assert cluster.members == 3
    assert cluster.mean_norm == pytest.approx(mean.norm().item(), rel=1e-9)
    assert cluster.max_norm == pytest.approx(max(u.norm().item() for u in updates), rel=1e-9)


def test_the_state_before_a_round_is_left_alone():
    server = server_of()
    state = FedAvg().start(server)
    kept = state.model.clone()
    FedAvg().round(state, 1, server)
    assert torch.equal(kept, state.model)


def test_one_client_is_local_training():
    server = server_of(sizes=(5,))
    state = FedAvg().start(server)
    after, _ = FedAvg().round(state, 1, server)
    torch.testing.assert_close(after.model, trained(state.model, *points(5, 0)), rtol=1e-10, atol=1e-12)


def test_the_schedule_sets_the_step_size_of_the_round():
    server = server_of(sizes=(5,), spec="decay:0.5")
    state = FedAvg().start(server)
    after, _ = FedAvg().round(state, 3, server)
    expected = trained(state.model, *points(5, 0), lr=TRAINING.lr / 4)
    torch.testing.assert_close(after.model, expected, rtol=1e-10, atol=1e-12)


def test_bytes_are_the_model_down_and_the_update_and_loss_up():
    server = server_of()
    FedAvg().round(FedAvg().start(server), 1, server)
    assert server.traffic.drain() == (3 * 4 * 3, 3 * (4 * 3 + 8))  # three clients, four bytes, three parameters
    assert server.traffic.drain() == (0, 0)


@pytest.mark.parametrize(("fraction", "count"), [(0.1, 2), (0.5, 10), (0.01, 1), (0.99, 20), (1.0, 20), (0.62, 12)])
def test_participation_draws_the_right_number_in_order(fraction, count):
    server = server_of(sizes=(2,) * 20, participation=fraction)
    for t in (1, 2):
        drawn = server.participants(t)
        assert len(drawn) == count
        assert sorted(set(drawn), key=server.clients.index) == drawn
        assert drawn == server.participants(t)


def test_participants_change_with_round_and_seed_and_reach_everybody():
    server = server_of(sizes=(2,) * 20, participation=0.2)
    rounds = [tuple(server.participants(t)) for t in range(1, 60)]
    assert len(set(rounds)) > 50
    assert {c for drawn in rounds for c in drawn} == set(server.clients)
    assert rounds != [
        tuple(server_of(sizes=(2,) * 20, participation=0.2, seed=1).participants(t)) for t in range(1, 60)
    ]


def test_only_participants_count():
    server = server_of(sizes=(2, 3, 4, 5), participation=0.5)
    state = FedAvg().start(server)
    after, _ = FedAvg().round(state, 1, server)
    drawn = [int(c[1:]) for c in server.participants(1)]
    sizes = (2, 3, 4, 5)
    mean = sum(sizes[i] * trained(state.model, *points(sizes[i], i)) for i in drawn) / sum(sizes[i] for i in drawn)
    torch.testing.assert_close(after.model, mean, rtol=1e-10, atol=1e-12)


def test_everybody_is_given_the_one_model():
    server = server_of()
    state = FedAvg().start(server)
    assignment = FedAvg().assignment(state, server)
    assert [list(m) for m in assignment.members] == [["c0", "c1", "c2"]]
    assert torch.equal(assignment.models[0], state.model)


def test_initial_model_is_a_function_of_seed_and_index():
    server = server_of()
    assert torch.equal(server.initial_model(0), server_of().initial_model(0))
    assert not torch.equal(server.initial_model(0), server.initial_model(1))
    assert not torch.equal(server.initial_model(0), server_of(seed=1).initial_model(0))


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("fedavq", "unknown method 'fedavq': did you mean 'fedavg'"),
        ("fedavg:server_rl=1", "no option 'server_rl': did you mean 'server_lr'"),
        ("fedavg:server_lr=0", "option server_lr=0"),
        ("fedavg:server_lr=fast", "option server_lr='fast'"),
        ("fedavg:weighting=size", "option weighting='size'"),
        ("fedavg:server_lr", "expected name:key=value"),
        ("local:k=2", "no option 'k': it has none"),
        ("", "unknown method ''"),
    ],
)
def test_bad_specs(spec, message):
    with pytest.raises(ConfigError, match=message):
        make_method(spec)


def test_good_specs():
    assert make_method("fedavg") == FedAvg()
    assert make_method("fedavg: server_lr = 0.5 , weighting='uniform'") == FedAvg("uniform", 0.5)


def test_the_mean_loss_of_several_sums_by_hand():
    sums = [SimpleNamespace(weight=2.0, loss=6.0), SimpleNamespace(weight=1.0, loss=0.0)]
    assert mean_loss(sums) == 2.0
    assert mean_loss([SimpleNamespace(weight=0.0, loss=0.0)]) == float("inf")
