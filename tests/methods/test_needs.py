"""What methods declare that they need of clients, and that they are held to it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
import torch

import coterie
from coterie.errors import ConfigError
from coterie.flower.demands import tasks_beside_sums
from coterie.methods import FedAvg, Info, Needs, Number, Reply, ReplySchema, Task
from coterie.methods.needs import check_network
from coterie.tasks import Choose, Gradient, Request

OPTIONS: dict[str, Any] = {
    "scenario": "digits-permuted", "clients": 4, "samples": 20, "rounds": 1, "model": "logistic", "workers": 1
}  # fmt: skip


@dataclass(frozen=True)
class MeanInput(Task):
    """A task of somebody else's: a number of each client's data."""

    def schema(self, layout):
        return ReplySchema(values={"mean": Number()})

    def answer(self, context, trainer):
        x = context.client.train.x
        return Reply(context.client.id, len(x), values={"mean": float(x.float().mean())})


class Toy:
    """FedAvg by somebody else, who also does `extra` in every round."""

    def __init__(self, extra=lambda state, t, server: None, **attributes):
        self.extra = extra
        self.__dict__ |= attributes

    def start(self, server):
        return FedAvg().start(server)

    def round(self, state, t, server):
        self.extra(state, t, server)
        [total], _ = server.exchange(server.training_requests(server.participants(t), state.model, t))
        return type(state)(server.step(state.model, total.mean())), Info()

    def assignment(self, state, server):
        return FedAvg().assignment(state, server)


def single_updates(state, t, server):
    return list(server.ask(server.training_requests(server.clients, state.model, t)))


def kept_vectors(state, t, server):
    return server.exchange(server.training_requests(server.clients, state.model, t), keep="vectors")


def means_of_inputs(state, t, server):
    return list(server.ask_all(server.clients, MeanInput()))


def own_models(state, t, server):
    return list(server.ask(server.training_requests(server.clients, state.model, t, private=server.layout.names)))


def choices(state, t, server):
    models = torch.stack([state.model, server.initial_model(1)])
    requests = [Request(client, Choose(models, None, 0)) for client in server.clients]
    return server.exchange(requests, [None] * len(requests), clusters=2)


def sums_of_gradients(state, t, server):
    return server.exchange([Request(client, Gradient(state.model)) for client in server.clients])


@pytest.mark.parametrize(
    ("extra", "declared", "words"),
    [
        (single_updates, Needs("may"), "asks for Train, beyond .* single vectors"),
        (kept_vectors, Needs("must"), "asks for Train, beyond .* single vectors"),
        (means_of_inputs, Needs(tasks=(MeanInput,)), r"declare Needs\(tasks=\(MeanInput,\)\)"),
        (own_models, Needs(personal=True), r"declare Needs\(personal=True\)"),
        (choices, Needs(choices="seen"), r"declare Needs\(choices='seen'\)"),
        (sums_of_gradients, Needs(), None),
    ],
)
def test_a_method_that_asks_for_more_than_it_declares_is_refused(extra, declared, words):
    coterie.run(Toy(extra), **OPTIONS)  # one that declares nothing may ask for anything
    coterie.run(Toy(extra, needs=declared), **OPTIONS)
    if words is None:
        return
    with pytest.raises(ConfigError, match=words):
        coterie.run(Toy(extra, needs=Needs()), **OPTIONS)


@pytest.mark.parametrize("more", [{}, {"secure_sums": True}, {"participation": 0.5}])
def test_a_strangers_method_that_only_sums_runs_with_noise_and_its_steps_have_it(more):
    one, two = (coterie.run(Toy(needs=Needs()), dp_noise=0.5, **OPTIONS | more) for _ in range(2))
    assert one.summary.epsilon == two.summary.epsilon > 0
    assert float((one.models[0] != two.models[0]).float().mean()) > 0.99  # another draw in every number


@pytest.mark.parametrize(
    ("attributes", "words"),
    [
        ({}, r"Toy does not declare what it needs of clients; give its class needs = Needs\(\)"),
        ({"needs": Needs("must")}, "single updates"),
        ({"needs": Needs(tasks=(MeanInput,))}, "replies of single clients to MeanInput"),
        ({"needs": Needs(personal=True)}, "a model of their own"),
        ({"needs": Needs(unnoised="it counts exactly")}, "it counts exactly"),
        ({"needs": Needs(choices="seen"), "weighting": "samples"}, "weighting=uniform"),
    ],
)
def test_what_noise_does_not_cover_is_refused_with_the_reason(attributes, words):
    with pytest.raises(ConfigError, match=words):
        coterie.run(Toy(**attributes), dp_noise=0.5, **OPTIONS)


def test_with_noise_a_method_that_may_do_with_sums_is_shown_none_and_asked_to_count_its_clusters():
    with pytest.raises(ConfigError, match="single vectors"):
        coterie.run(Toy(single_updates, needs=Needs("may")), dp_noise=0.5, **OPTIONS)

    def two_sums(state, t, server):
        requests = server.training_requests(server.clients, state.model, t)
        server.exchange(requests, [0] * len(requests), clusters=2)

    with pytest.raises(ConfigError, match=r"noisy numbers of clients.*choices='seen'"):
        coterie.run(Toy(two_sums, needs=Needs()), dp_noise=0.5, **OPTIONS)
    coterie.run(Toy(two_sums, needs=Needs(choices="seen")), dp_noise=0.5, **OPTIONS)


def test_secure_sums_refuse_single_updates_before_the_first_round():
    with pytest.raises(ConfigError, match="Toy needs single updates, which secure sums do not show: use a method"):
        coterie.run(Toy(needs=Needs("must")), secure_sums=True, **OPTIONS)
    coterie.run(Toy(needs=Needs("may")), secure_sums=True, **OPTIONS)
    with pytest.raises(ConfigError, match="Toy: means would go out in clear beside secure sums"):
        coterie.run(Toy(needs=Needs(of_data="means")), secure_sums=True, **OPTIONS)
    coterie.run(Toy(needs=Needs(of_data="means", in_sums=True)), secure_sums=True, **OPTIONS)
    with pytest.raises(ConfigError, match="Toy: means would go out in clear beside masked updates"):
        coterie.run(Toy(needs=Needs(of_data="means", in_sums=True)), privacy="permutation", **OPTIONS)


def test_a_network_is_refused_what_nobody_agreed_to_show():
    with pytest.raises(ConfigError, match=r"Toy would send means over the network in clear.*ask first"):
        check_network(Toy(needs=Needs(of_data="means", agreed=False, instead="ask first")), secure=False)
    check_network(Toy(needs=Needs(of_data="means", agreed=False)), secure=True)
    check_network(Toy(needs=Needs(of_data="means")), secure=False)
    check_network(Toy(), secure=False)


def test_nodes_are_asked_to_allow_what_a_method_declares():
    assert tasks_beside_sums("cfl:rule=benefit,compare=projection(8)") == ["Compare", "CompareHalves", "HeldOut"]
    assert tasks_beside_sums("fedcuau") == ["Divergence"]
    assert tasks_beside_sums("fedavg") == []


def test_needs_are_of_their_type():
    with pytest.raises(ConfigError, match="expected a Needs"):
        coterie.run(Toy(needs="sums"), **OPTIONS)
