"""Local training: nobody's model depends on anybody else, and nothing is sent."""

from __future__ import annotations

import torch
from torch import nn

from coterie.engines import LocalEngine
from coterie.federation import Federation
from coterie.methods import Local, Server
from coterie.schedules import make_schedule
from coterie.workbench import Training


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
    state = Local().start(server)
    for t in range(1, rounds + 1):
        state, _ = Local().round(state, t, server)
    return dict(zip(server.clients, state.models, strict=True))


def test_each_client_is_independent_of_the_others():
    together = after_rounds(server_of(range(4)))
    assert len({tuple(m.tolist()) for m in together.values()}) == 4
    for names in ([2], [3, 0], [1, 2, 3]):
        for client, model in after_rounds(server_of(names)).items():
            assert torch.equal(model, together[client])


def test_nothing_is_sent():
    server = server_of(range(4))
    Local().round(Local().start(server), 1, server)
    assert server.ledger.read() == (0, 0)


def test_who_does_not_take_part_keeps_the_model():
    server = server_of(range(4), participation=0.5)
    state = Local().start(server)
    after, info = Local().round(state, 1, server)
    for i, client in enumerate(server.clients):
        took_part = client in server.participants(1)
        assert torch.equal(after.models[i], state.models[i]) != took_part
        assert (info.clusters[i].train_loss is None) != took_part


def test_every_client_is_a_cluster_of_its_own():
    server = server_of(range(3))
    assignment = Local().assignment(Local().start(server), server)
    assert [tuple(m) for m in assignment.members] == [("c0",), ("c1",), ("c2",)]
