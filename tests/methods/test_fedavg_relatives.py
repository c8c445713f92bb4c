"""FedProx, FedBABU and FedPer: what sets each apart from FedAvg, and their clients' fine-tuning."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import nn

from coterie.data.scenarios import find_scenario
from coterie.engines import LocalEngine
from coterie.errors import ConfigError
from coterie.federation import Federation
from coterie.methods import FedAvg, FedBABU, FedPer, FedProx, Server, make_method
from coterie.methods.fedavg import LocalRule
from coterie.models import build
from coterie.parameters import Layout, gather
from coterie.runs.metrics import score_clients
from coterie.runs.personalised import global_accuracy, personalised, personalised_accuracy
from coterie.trainers.base import Training
from coterie.trainers.schedules import LearningRateSchedule

TRAINING = Training(lr=0.1, epochs=1, batch_size=16)


@pytest.fixture(scope="module")
def federation() -> Federation:
    return find_scenario("digits-dirichlet-quarters").build(clients=8, seed=2)


def network(seed: int) -> nn.Module:
    return build("mlp:hidden=16", (1, 8, 8), 10, seed)


def server_of(federation: Federation, participation: float = 1.0, training: Training = TRAINING) -> Server:
    engine = LocalEngine(federation, network)
    return Server(engine, LearningRateSchedule(training, 4), seed=3, rounds=4, participation=participation)


def rounds(method: Any, server: Server, count: int = 4) -> Iterator[Any]:
    state = method.start(server)
    yield state
    for t in range(1, count + 1):
        state, _ = method.round(state, t, server)
        yield state


def test_fedprox_without_mu_is_fedavg_and_with_a_large_one_hardly_moves(federation: Federation) -> None:
    first, *_, plain = rounds(FedAvg(), server_of(federation))
    *_, none = rounds(FedProx(mu=0.0), server_of(federation))
    *_, some = rounds(FedProx(mu=9.0), server_of(federation))
    assert torch.equal(plain.model, none.model)
    assert (some.model - first.model).norm() < 0.5 * (plain.model - first.model).norm()


def test_one_step_of_fedprox_by_hand(federation: Federation) -> None:
    # The proximal term's gradient is zero at the start: it first acts in the second step, where it pulls back by
    # lr · μ · (θ_1 − θ_0).
    def model_after(steps: int, method: FedAvg) -> torch.Tensor:
        training = Training(lr=0.1, steps=steps, batch_size=None)
        only = federation.subset(federation.ids[:1])
        *_, state = rounds(method, server_of(only, training=training), 1)
        return state.model.double()

    start = server_of(federation).initial_model().double()
    one, two = model_after(1, FedAvg()), model_after(2, FedAvg())
    torch.testing.assert_close(one, model_after(1, FedProx(mu=0.3)), atol=1e-6, rtol=1e-5)
    torch.testing.assert_close(model_after(2, FedProx(mu=0.3)), two - 0.1 * 0.3 * (one - start), atol=1e-6, rtol=1e-4)


def test_fedbabu_trains_the_body_and_never_the_head(federation: Federation) -> None:
    server = server_of(federation)
    first, *_, last = rounds(FedBABU(), server)
    head, body = server.engine.layout.select("head"), server.engine.layout.select("hidden")
    assert torch.equal(gather(first.model, head), gather(last.model, head))
    assert not torch.equal(gather(first.model, body), gather(last.model, body))


def test_fedper_keeps_each_head_with_its_client_and_off_the_wire(federation: Federation) -> None:
    server, method = server_of(federation, participation=0.5), FedPer()
    first, second = rounds(method, server, 1)
    layout = server.engine.layout
    places = layout.select("head")
    body = layout.size - (16 * 10 + 10)
    # Beside the body: the seed of the initial head down, the loss up.
    assert server.traffic.drain() == (4 * (4 * body + 8), 4 * (4 * body + 8))
    assert torch.equal(gather(first.model, places), gather(second.model, places))
    states = server.engine.client_states()
    assert sorted(states) == server.participants(1)
    heads = {tuple(state["private"].tolist()) for state in states.values()}
    assert len(heads) == 4
    # Evaluation uses each client's own head: without them the same body scores otherwise.
    given = method.assignment(second, server)
    assert given.private == ("head",)
    with_heads = [score.metrics["loss"] for score in score_clients(given, server.engine)]
    server.engine.restore_client_states({})
    assert with_heads != [score.metrics["loss"] for score in score_clients(given, server.engine)]


def test_fedper_goes_on_after_its_heads_were_saved_and_restored(federation: Federation) -> None:
    server, method = server_of(federation), FedPer()
    *_, state = rounds(method, server, 2)
    kept = server.engine.client_states()
    expected, _ = method.round(state, 3, server)
    again = server_of(federation)
    again.engine.restore_client_states(kept)
    repeated, _ = method.round(state, 3, again)
    fresh, _ = method.round(state, 3, server_of(federation))
    assert torch.equal(expected.model, repeated.model)
    assert not torch.equal(expected.model, fresh.model)


@pytest.mark.parametrize("method", ["fedbabu:head=('hidden','head')", "fedper:head=('hidden','head')"])
def test_a_head_that_is_the_whole_model_is_refused(method: str, federation: Federation) -> None:
    with pytest.raises(ConfigError, match="no layer is left to train together"):
        make_method(method).start(server_of(federation))


def test_a_frozen_layer_in_the_middle_leaves_its_neighbours_to_train() -> None:
    layout = Layout.of(nn.Sequential(nn.Linear(4, 3), nn.Linear(3, 3), nn.Linear(3, 2)))
    rule = LocalRule(frozen="1")
    assert rule.common_layers(layout) == ("0", "2")
    assert rule.training(TRAINING, layout).layers == ("0.weight", "0.bias", "2.weight", "2.bias")


@pytest.mark.parametrize("spec", ["fedprox:mu=-1", "fedprox:head=last", "fedper:mu=1"])
def test_options_of_the_wrong_method_or_sign_are_refused(spec: str) -> None:
    with pytest.raises(ConfigError):
        make_method(spec)


@pytest.mark.parametrize("method", [FedAvg(), FedBABU(), FedPer()])
def test_personalisation_fine_tunes_every_client_and_leaves_no_trace(method: FedAvg, federation: Federation) -> None:
    server = server_of(federation)
    *_, state = rounds(method, server)
    given, engine = method.assignment(state, server), server.engine
    before, kept = given.models[0].clone(), engine.client_states()
    scores = personalised(given, engine, TRAINING, seed=5)
    plain = score_clients(given, engine)
    accuracies = [s.values["accuracy"] for s in scores]
    assert [s.client for s in scores] == list(federation.ids)
    assert [before for before, _ in accuracies] == pytest.approx([s.metrics["accuracy"] for s in plain])
    assert [s.values["loss"][0] for s in scores] == pytest.approx([s.metrics["loss"] for s in plain])
    assert sum(after for _, after in accuracies) > sum(before for before, _ in accuracies)
    assert torch.equal(before, given.models[0])
    after = engine.client_states()
    assert all(torch.equal(kept[c]["private"], after[c]["private"]) for c in kept)
    assert scores == personalised(given, engine, TRAINING, seed=5)
    assert personalised_accuracy(scores) == pytest.approx(sum(after for _, after in accuracies) / 8)
    assert personalised_accuracy(scores, [federation.ids[2]]) == pytest.approx(accuracies[2][1])


def test_no_epochs_of_lr_zero_change_nothing_and_more_epochs_change_more(federation: Federation) -> None:
    server = server_of(federation)
    given = FedAvg().assignment(FedAvg().start(server), server)
    still = personalised(given, server.engine, Training(lr=1e-12), seed=0)
    assert all(first == last for first, last in (score.values["accuracy"] for score in still))
    one, five = (personalised(given, server.engine, TRAINING, seed=0, epochs=e) for e in (1, 5))
    assert sum(s.values["loss"][1] for s in five) < sum(s.values["loss"][1] for s in one)


def test_global_accuracy_is_that_of_the_union_of_test_data(federation: Federation) -> None:
    server = server_of(federation)
    *_, state = rounds(FedAvg(), server, 2)
    x = torch.cat([client.test.x for client in federation])
    y = torch.cat([client.test.y for client in federation])
    module = network(0)
    server.engine.layout.write(state.model, module)
    assert global_accuracy(state.model, server.engine) == pytest.approx(
        float((module(x).argmax(1) == y).float().mean())
    )
