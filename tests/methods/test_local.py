"""Local training: nobody's model depends on anybody else, and nothing is sent."""

from __future__ import annotations

import torch
from torch import nn

from coterie.engines import LocalEngine
from coterie.federation import Federation
from coterie.methods import Local, Server
from coterie.tasks import Evaluate, Request
from coterie.trainers.base import Training
from coterie.trainers.schedules import make_schedule


def linear(seed):
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return nn.Linear(2, 1)


def points(n, seed):
    x = torch.randn(n, 2, generator=torch.Generator().manual_seed(seed))
    return x, x.sum(1, keepdim=True) * (seed + 1)


def server_of(names, participation=1.0):
    data = {f"c{i}": {"train": points(4 + i, i)} for i in names}
    engine = LocalEngine(Federation.from_tensors(data, splits=(1, 0, 0)), linear)
    return Server(engine, make_schedule("constant", Training(batch_size=2, epochs=2), 3), 7, 3, participation)


def after_rounds(server, rounds=3):
    """The models that the clients keep."""
    state = Local().start(server)
    for t in range(1, rounds + 1):
        state, _ = Local().round(state, t, server)
    return {client: kept["private"] for client, kept in server.engine.client_states().items()}


def test_each_client_is_independent_of_the_others():
    together = after_rounds(server_of(range(4)))
    assert together.keys() == {"c0", "c1", "c2", "c3"}
    assert len({tuple(m.tolist()) for m in together.values()}) == 4
    for names in ([2], [3, 0], [1, 2, 3]):
        alone = after_rounds(server_of(names))
        assert alone.keys() == {f"c{i}" for i in names}
        for client, model in alone.items():
            assert torch.equal(model, together[client])


def test_a_clients_model_is_that_of_training_alone_round_after_round():
    server = server_of(range(2))
    expected = server.initial_model()
    for t in range(1, 4):
        (reply,) = server.ask(server.training_requests(["c1"], expected, t))
        expected = expected + reply.vector
    assert torch.equal(after_rounds(server)["c1"], expected)


def test_no_model_is_sent_but_a_seed_down_and_a_loss_up():
    server = server_of(range(4))
    state = Local().start(server)
    for t in (1, 2):
        state, _ = Local().round(state, t, server)
        assert server.traffic.drain() == (4 * 8, 4 * 8)


def test_who_does_not_take_part_keeps_the_model():
    server = server_of(range(4), participation=0.5)
    state = Local().start(server)
    after, info = Local().round(state, 1, server)
    assert torch.equal(after.model, server.initial_model())
    kept = server.engine.client_states()
    for i, client in enumerate(server.clients):
        took_part = client in server.participants(1)
        assert (client in kept) == took_part
        assert not took_part or not torch.equal(kept[client]["private"], after.model)
        assert (info.clusters[i].train_loss is None) != took_part


def test_a_client_is_given_the_model_it_keeps():
    server = server_of(range(3), participation=0.4)
    state, _ = Local().round(Local().start(server), 1, server)
    (client,) = server.participants(1)
    given = Local().assignment(state, server)
    assert set(given.private) == {"weight", "bias"}
    own = server.engine.client_states()[client]["private"]
    for name, model in zip(server.clients, given.models, strict=True):
        found, expected = (
            next(iter(server.ask([Request(name, task)])))
            for task in (
                Evaluate(model[None], "train", given.private),
                Evaluate((own if name == client else state.model)[None], "train"),
            )
        )
        assert found.values["loss"] == expected.values["loss"]


def test_every_client_is_a_cluster_of_its_own():
    server = server_of(range(3))
    assignment = Local().assignment(Local().start(server), server)
    assert [tuple(m) for m in assignment.members] == [("c0",), ("c1",), ("c2",)]
