"""The rule of aggregation in every method: what it costs without attack (nothing), and what it stops."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch

from coterie.clustering.conduct import Conduct
from coterie.data.scenarios import find_scenario
from coterie.engines import LocalEngine
from coterie.errors import ConfigError
from coterie.methods import Server, flt, make_method
from coterie.methods.aggregation import Aggregation, Limit, Part, Streamed, followed
from coterie.methods.ifca_init import worst_fitted_models
from coterie.models import build
from coterie.randomness import numpy_generator
from coterie.tasks import Reply
from coterie.trainers.base import Training
from coterie.trainers.schedules import make_schedule
from coterie_attacks.attacks import ATTACKS, HostileEngine, choose_hostile

NO_LIMITS = Aggregation(clip=None, weight_cap=None)
METHODS = [
    "fedavg",
    "fedper",
    "ifca:k=2",
    "ifca:k=2,averaging=gradient",
    "cfl:min_rounds=2",
    "fedcuau:clusters=2",
    "fedcuau:clusters=2,base=fedper",
    "fedsem:clusters=2",
    "feddrift:most=3",
    "fedem:components=2",
    "fedrc:components=2",
    "fedsoft:clusters=2",
    "oneshot:k=2,warmup_rounds=1",
    "flt:encoder=pca",
    "flt:encoder=pca,case=1",
    "pca-kmeans-hc",
    "groups:of={'client-0':'a','client-1':'b'}",
    "flhc:warmup_rounds=1",
    "clove:k=2",
    "pacfl:clusters=2",
    "ditto",
]
FEDERATION = find_scenario("digits-swapped").build(clients=10, samples=None, groups=None, seed=5, data_dir=None)


@pytest.fixture(autouse=True)
def no_umap(monkeypatch):
    """FLT's map is of no interest here, and UMAP takes long to load: the first two coordinates stand in for it."""
    monkeypatch.setattr(flt, "import_umap", lambda: None)
    monkeypatch.setattr(flt, "project", lambda centroids, *options: centroids[..., :2])


def network(seed):
    return build("mlp:hidden=8", FEDERATION.input_shape, FEDERATION.classes, seed, torch.float32)


class OnANetwork(LocalEngine):
    """An engine that must not be asked twice, as on a network."""

    repeatable = False


def server_of(attack="none", hostile=0, aggregation=None, engine=None, rounds=3):
    bad = choose_hostile(FEDERATION, hostile, 1)
    made = (
        engine(FEDERATION, network)
        if engine
        else HostileEngine(FEDERATION, network, attack=ATTACKS[attack], hostile=bad)
    )
    schedule = make_schedule("constant", Training(lr=0.1, epochs=1, batch_size=20), rounds)
    return Server(made, schedule, 0, rounds, aggregation=aggregation or Aggregation()), set(bad)


def played(method, server, rounds=3):
    method = make_method(method)
    state = method.start(server)
    for t in range(1, rounds + 1):
        state, _ = method.round(state, t, server)
    assignment = method.assignment(state, server)
    return {served.client: served.model for served in assignment.served()}


@pytest.mark.parametrize("method", METHODS)
def test_without_attack_the_default_is_the_plain_mean_bit_for_bit(method):
    default, _ = server_of()
    plain, _ = server_of(aggregation=NO_LIMITS)
    got, expected = played(method, default), played(method, plain)
    assert default.traffic.drain() == plain.traffic.drain()
    assert all(torch.equal(got[client], expected[client]) for client in expected)


@pytest.mark.parametrize("method", METHODS)
def test_on_a_network_the_default_is_the_plain_mean_up_to_rounding(method):
    default, _ = server_of(engine=OnANetwork)
    plain, _ = server_of(aggregation=NO_LIMITS)
    got, expected = played(method, default, 2), played(method, plain, 2)
    for client, model in expected.items():
        torch.testing.assert_close(got[client], model, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("engine", [None, OnANetwork])
@pytest.mark.parametrize("method", METHODS)
def test_one_update_that_is_far_too_long_moves_a_model_no_farther_than_honest_ones_do(method, engine, monkeypatch):
    server, bad = server_of("scale", 1)
    monkeypatch.setattr(type(server.engine), "repeatable", engine is None)
    plain, _ = server_of()
    got, expected = played(method, server), played(method, plain)
    start = plain.initial_model()
    honest = max(float((model - start).norm()) for model in expected.values())
    for client, model in got.items():
        if client not in bad:
            assert float((model - start).norm()) < 3 * honest
    assert server.cut == bad or method.startswith(("flt", "pca"))


def test_without_limits_that_update_does_move_the_model_far():
    server, _ = server_of("scale", 1, NO_LIMITS)
    plain, _ = server_of()
    start = plain.initial_model()
    got, expected = played("fedavg", server), played("fedavg", plain)
    first = next(iter(got))
    assert float((got[first] - start).norm()) > 5 * float((expected[first] - start).norm())


@pytest.mark.parametrize("rule", ["median", "trimmed-mean:0.2", "multi-krum:0.2", "geometric-median"])
@pytest.mark.parametrize(
    "method",
    [
        "fedavg",
        "ifca:k=2",
        "cfl:min_rounds=2",
        "fedcuau:clusters=2",
        "fedsem:clusters=2",
        "feddrift:most=3",
        "fedem:components=2",
        "fedrc:components=2",
        "fedsoft:clusters=2",
        "oneshot:k=2,warmup_rounds=1",
        "pca-kmeans-hc",
        "groups:of={'client-0':'a','client-1':'b'}",
        "flhc:warmup_rounds=0",
        "clove:k=2",
        "ditto",
    ],
)
def test_every_rule_runs_in_every_method(method, rule):
    server, _ = server_of(aggregation=Aggregation.parse(rule))
    got = played(method, server, 2)
    assert all(torch.isfinite(model).all() for model in got.values())
    assert set(got) == set(FEDERATION.ids)


def test_fedavg_by_the_median_is_the_median_of_the_updates():
    server, _ = server_of(aggregation=Aggregation.parse("median", clip="none"))
    state = make_method("fedavg").start(server)
    updates = [reply.vector for reply in server.train(server.clients, state.model, 1)]
    after, _ = make_method("fedavg").round(state, 1, server)
    expected = state.model.double() + torch.stack(updates).double().quantile(0.5, dim=0)
    torch.testing.assert_close(after.model.double(), expected, rtol=1e-6, atol=1e-7)


def test_a_sum_that_is_done_again_counts_its_bytes_and_private_layers_once():
    hostile, bad = server_of("scale", 1)
    honest, _ = server_of()
    played("fedper", hostile, 2)
    played("fedper", honest, 2)
    assert hostile.traffic.drain() == honest.traffic.drain()
    assert hostile.cut == bad


def test_a_false_number_of_samples_weighs_no_more_than_the_cap():
    server, bad = server_of("sample-count", 1)
    weights = {client: server.weight(client, "samples") for client in server.clients}
    usual = sorted(server.samples.values())[len(weights) // 2]
    assert max(weights.values()) <= 1.1 * server.aggregation.weight_cap * usual
    assert all(weights[client] == server.samples[client] for client in weights if client not in bad)
    assert server.weight(next(iter(bad)), "uniform") == 1.0


def reply(client, norm):
    return Reply(client, 1, torch.tensor([norm]), {"norm": norm, "loss": 0.0})


def test_what_looks_too_long_waits_and_is_cut_at_the_end():
    taken = []
    stream = Streamed(Aggregation(clip=4.0), taken.append)
    for i in range(12):
        stream.add(Part(0, reply(f"c{i}", {2: 4.5, 5: 1000.0}.get(i, 1.0))))
    assert [part.reply.client for part in taken] == [f"c{i}" for i in range(12) if i not in (2, 5)]
    assert stream.finish() == ["c2", "c5"]  # cut, and left out
    assert taken[-1].reply.client == "c2"
    assert float(taken[-1].reply.vector) == 4.0


def test_an_honest_client_that_waited_is_taken_whole():
    taken = []
    stream = Streamed(Aggregation(clip=4.0), taken.append)
    for i in range(12):
        stream.add(Part(0, reply(f"c{i}", 1.0 if i != 11 else 3.0)))
    assert stream.finish() == []
    assert float(taken[-1].reply.vector) == 3.0


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"aggregate": "medain"}, "did you mean 'median'"),
        ({"aggregate": "median:0.2"}, "takes no number"),
        ({"aggregate": "trimmed-mean:0.5"}, "below 0.5"),
        ({"aggregate": "trimmed-mean:1.5"}, "whole number"),
        ({"aggregate": "multi-krum:x"}, "expected a number"),
        ({"clip": "0.5x"}, "1 or more times"),
        ({"clip": "often"}, "expected a number"),
        ({"weight_cap": 0.5}, "1 or more"),
    ],
)
def test_options_that_make_no_sense_are_refused(options, words):
    with pytest.raises(ConfigError, match=words):
        Aggregation.parse(**options)


def test_options_are_read():
    assert Aggregation.parse("trimmed-mean:0.3", "2.5x", 0) == Aggregation("trimmed-mean", 0.3, 2.5, None, None)
    assert Aggregation.parse("multi-krum:3", "1.5", 2.0) == Aggregation("multi-krum", 3.0, None, 1.5, 2.0)
    assert not Aggregation.parse("mean", "none", 0).clips
    assert Aggregation.parse("mean", "1.5").limits({0: [1.0, 9.0]}) == {0: Limit(1.5, math.inf)}
    assert Aggregation.parse("mean", "3x").limits({0: [1.0, 9.0], 1: [5.0]}) == {
        0: Limit(15.0, 40.0),
        1: Limit(15.0, 40.0),
    }
    assert NO_LIMITS.limits({0: [1.0]}) == {0: Limit(math.inf, math.inf)}


@pytest.mark.parametrize("attack", ["scale", "sign-flip"])
def test_a_hostile_client_seeds_no_model_of_ifca(attack):
    honest, _ = server_of()
    first = numpy_generator(honest.seed, "k-means++", 0).integers(len(honest.clients))
    bad = honest.clients[int(first)]  # the first whose model would be taken
    engine = HostileEngine(FEDERATION, network, attack=ATTACKS[attack], hostile=[bad])
    server = Server(engine, honest.schedule, 0, 3)
    models = worst_fitted_models(server, 2, 0, rounds=3)
    usual = float(worst_fitted_models(honest, 2, 0, rounds=3).norm(dim=1).max())
    assert models.shape[0] == 2
    assert float(models.norm(dim=1).max()) < 2 * usual


def test_by_agreement_updates_against_the_others_are_left_out_and_named():
    server, bad = server_of("inner-product", 1, Aggregation.parse("agreement"))
    played("fedavg", server)
    assert server.cut == bad
    plain, _ = server_of("inner-product", 1)
    played("fedavg", plain)
    assert not plain.cut


def test_by_agreement_one_of_two_copies_counts():
    server, bad = server_of("inner-product", 2, Aggregation.parse("agreement"))
    played("fedavg", server)
    assert len(server.cut) == 1
    assert server.cut < bad


def test_auto_compares_updates_where_clients_may_be_hostile():
    server, _ = server_of("none", 1)
    engine, auto = server.engine, Aggregation.parse()
    assert auto.rule == "auto"
    engine.repeatable = False
    assert auto.on(engine).rule == "agreement"
    assert auto.on(engine, sums_only=True).rule == "mean"
    assert Aggregation.parse("median").on(engine).rule == "median"
    engine.secure = True
    assert auto.on(engine).rule == "mean"
    engine.secure, engine.repeatable = False, True
    assert auto.on(engine).rule == "mean"


def test_among_fewer_than_four_the_default_limit_is_wider():
    auto, strict = Aggregation.parse(), Aggregation.parse(clip="8x")
    small, large = {0: [1.0, 1.0, 20.0]}, {0: [1.0] * 7 + [20.0]}
    assert auto.limits(small)[0].out == 30
    assert auto.limits(large)[0].out == strict.limits(large)[0].out == strict.limits(small)[0].out == 8


def test_clients_whose_losses_belie_their_updates_are_left_out_even_as_two_of_five():
    """Two of a cluster's five send their updates turned around: too many to be outvoted, but their losses fall."""
    ids, of = FEDERATION.ids, {}
    for i, client in enumerate(ids):
        of[client] = "a" if i % 2 == 0 else "b"
    bad = [ids[0], ids[2]]
    engine = HostileEngine(FEDERATION, network, attack=ATTACKS["sample-count"], hostile=bad)
    schedule = make_schedule("constant", Training(lr=0.1, epochs=1, batch_size=20), 16)
    server = Server(engine, schedule, 0, 16, aggregation=Aggregation.parse("agreement"))
    played(f"groups:of={of}", server, 16)
    assert {client for client, own in server.conducts.items() if own.false} == set(bad)
    server.cut.clear()
    played(f"groups:of={of}", server, 1)
    assert set(bad) <= server.cut


@pytest.mark.parametrize(("attack", "heard"), [("inner-product", True), ("scale", False)])
def test_a_check_of_cfl_asks_those_who_pull_against_the_others_and_not_the_far_too_long(monkeypatch, attack, heard):
    """A small honest group looks like an attack too: left out of the mean and of the check, it would never be split."""
    asked = []

    def check(watch, leaf, clients, *rest):
        asked.append(set(clients))
        return watch, None

    monkeypatch.setattr("coterie.methods.cfl.check", check)
    server, bad = server_of(attack, hostile=1, aggregation=Aggregation.parse("agreement"), rounds=6)
    played("cfl", server, 6)
    assert server.cut >= bad
    assert (bad <= asked[-1]) == heard
    assert asked[-1] | bad == set(server.clients)


def test_honest_clients_losses_follow_their_updates():
    server, _ = server_of(engine=OnANetwork, aggregation=Aggregation.parse("agreement"), rounds=16)
    played("ifca:k=2", server, 16)
    assert not any(own.false for own in server.conducts.values())
    assert sum((own.score() or 0.0) > 0 for own in server.conducts.values()) >= 8


def test_the_cosine_is_with_what_the_group_of_the_part_is_moved_by():
    """By hand: in group 1 the mean is (2·2 − 1)/3 along the first axis, against the update of one client."""
    alone = replace(reply("a", 3.0), vector=torch.tensor([3.0, 3.0]))
    against = replace(reply("b", 1.0), vector=torch.tensor([-1.0, 0.0]))
    along = replace(reply("c", 2.0), vector=torch.tensor([2.0, 0.0]))
    left_out = replace(reply("d", 5.0), vector=torch.tensor([3.0, 4.0]))
    counted = [Part(0, alone), Part(1, against), Part(1, along)]
    found = followed([*counted, Part(1, left_out)], counted, [1.0, 1.0, 2.0], 2)
    assert found == {name: pytest.approx(value) for name, value in {"a": 1.0, "b": -1.0, "c": 1.0, "d": 0.6}.items()}
    assert followed(counted, counted, [1.0, 1.0, 2.0], 0) == {}


def test_a_clients_loss_is_held_against_its_first_part_only():
    """FedCUAU's clients send several: the loss is of the base's model, and the others' sums are not what changed it."""
    server, _ = server_of(engine=OnANetwork, aggregation=Aggregation.parse("agreement"), rounds=2)
    clients = server.clients[:4]
    whole = {c: replace(reply(c, 1.0), vector=torch.eye(server.layout.size)[0]) for c in clients}
    head = {c: replace(reply(c, 1.0), vector=torch.tensor([-1.0 if c == clients[0] else 1.0])) for c in clients}
    parts = [part for c in clients for part in (Part(0, whole[c]), Part(1, head[c]))]
    server.clipped(parts, step=True)
    assert [server.conducts[c].cosine for c in clients] == pytest.approx([1.0] * 4)
    assert [server.conducts[c].cluster for c in clients] == [0] * 4


def test_a_family_of_two_camps_is_parted():
    """Two of a family's four train on false labels: nobody can say who is right, so each camp gets its own model."""
    federation = find_scenario("digits-iid").build(clients=4, samples=None, groups=None, seed=5, data_dir=None)
    bad = federation.ids[:2]
    engine = HostileEngine(federation, network, attack=ATTACKS["label-flip"], hostile=bad)
    schedule = make_schedule("constant", Training(lr=0.1, epochs=2, batch_size=20), 12)
    server = Server(engine, schedule, 0, 12, aggregation=Aggregation.parse("agreement"))
    method = make_method("flt:encoder=pca,clusters=1")
    state, kinds = method.start(server), []
    for t in range(1, 13):
        state, info = method.round(state, t, server)
        kinds += [event.kind for event in info.events]
    assert kinds.count("parted") == 1
    assert sorted(sorted(own) for own in method.assignment(state, server).members) == [
        sorted(bad),
        sorted(set(federation.ids) - set(bad)),
    ]


def served(server, losses, cut=()):
    """The server after a round in which clients reported these losses, and some were cut."""
    server.conducts = {client: Conduct(0, loss) for client, loss in zip(server.clients, losses, strict=False)}
    server.cut = set(cut)
    return server


def test_a_model_that_nobody_chooses_begins_anew_with_who_is_served_worst():
    """Where updates are cut, hostile clients may have seeded a model and ruined it, and a group has none."""
    server, _ = server_of(engine=OnANetwork, aggregation=Aggregation.parse("agreement"), rounds=9)
    method = make_method("ifca:k=3,seeding_rounds=2")
    losses = [0.5, 0.5, 0.5, 0.5, 2.0, 3.0]
    restart = replace(method.start(server).runs[0], idle=[0, method.patience, method.patience + 1])
    after, [event] = method._seeded_again(restart, 0, served(server, losses, cut=[server.clients[5]]))
    assert event.details == {"model": 1, "client": server.clients[4]}  # the worst of those that were not cut
    assert after.idle == [0, 0, method.patience + 1]
    assert torch.equal(after.models[[0, 2]], restart.models[[0, 2]])
    expected = server.initial_model(0)
    for step in (1, 2):
        [trained] = server.train([server.clients[4]], expected, -step, server.schedule.at(1))
        expected = expected + trained.vector
    torch.testing.assert_close(after.models[1], expected)


@pytest.mark.parametrize(
    ("idle", "losses", "init"),
    [(4, [0.5] * 5 + [3.0], "auto"), (5, [0.5] * 5 + [0.8], "auto"), (5, [0.5] * 5 + [3.0], "random")],
    ids=["chosen of late", "all are served", "nobody seeds"],
)
def test_no_model_begins_anew_without_need(idle, losses, init):
    server, _ = server_of(engine=OnANetwork, aggregation=Aggregation.parse("agreement"), rounds=9)
    method = make_method(f"ifca:k=2,init={init}")
    restart = replace(method.start(server).runs[0], idle=[0, idle])
    after, events = method._seeded_again(restart, 0, served(server, losses, cut=[server.clients[0]]))
    assert after is restart
    assert not events
