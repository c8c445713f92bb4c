"""The rule of aggregation in every method: by default the weighted mean and nothing else; and what a limit does."""

from __future__ import annotations

import math
from dataclasses import replace
from statistics import median

import pytest
import torch

from coterie.data.scenarios import find_scenario
from coterie.errors import ConfigError
from coterie.methods import Server, flt, make_method
from coterie.methods.aggregation import Aggregation, Part, capped_weights
from coterie.methods.starts import WorstFittedStart
from coterie.models import build
from coterie.randomness import numpy_generator
from coterie.runs import assemble, execute, make_config
from coterie.tasks import Reply
from coterie.trainers.base import Training
from coterie.trainers.schedules import make_schedule
from coterie_attacks import ATTACKS, HostileEngine, choose_hostile

METHODS = [
    "fedavg",
    "fedper",
    "ifca:k=2",
    "ifca:k=2,averaging=gradient",
    "cfl",
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
    "groups:of={'client-0':'a','client-1':'a','client-2':'a','client-3':'a'}",
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
    monkeypatch.setattr("coterie.methods.relatives.project", lambda centroids, *options: centroids[..., :2])


def network(seed):
    return build("mlp:hidden=8", FEDERATION.input_shape, FEDERATION.classes, seed, torch.float32)


def server_of(attack="none", hostile=0, aggregation=None, rounds=3):
    bad = choose_hostile(FEDERATION, hostile, 1)
    made = HostileEngine(FEDERATION, network, attack=ATTACKS[attack], hostile=bad)
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
def test_with_a_limit_one_long_update_moves_a_model_no_farther_than_honest_ones_do(method):
    server, bad = server_of("scale", 1, Aggregation.parse(clip="2x"))
    plain, _ = server_of()
    got, expected = played(method, server), played(method, plain)
    start = plain.initial_model()
    honest = max(float((model - start).norm()) for model in expected.values())
    for client, model in got.items():
        if client not in bad:
            assert float((model - start).norm()) < 3 * honest
    assert server.cut >= bad or method.startswith(("flt", "pca"))


def test_without_limits_that_update_does_move_the_model_far():
    server, _ = server_of("scale", 1)
    plain, _ = server_of()
    start = plain.initial_model()
    got, expected = played("fedavg", server), played("fedavg", plain)
    first = next(iter(got))
    assert float((got[first] - start).norm()) > 5 * float((expected[first] - start).norm())


@pytest.mark.parametrize(
    "rule", ["nnm+trimmed-mean(1)", "bucketing(2)+krum(20%)", "centred-clip(1.5)", "geometric-median"]
)
@pytest.mark.parametrize(
    "method",
    [
        "fedavg",
        "ifca:k=2",
        "cfl",
        "fedcuau:clusters=2",
        "fedsem:clusters=2",
        "feddrift:most=3",
        "fedem:components=2",
        "fedrc:components=2",
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


def test_a_method_that_needs_weights_refuses_rules_that_have_none():
    server, _ = server_of(aggregation=Aggregation.parse("median"))
    with pytest.raises(ConfigError, match="robust rules weigh clients alike"):
        make_method("fedsoft:clusters=2").start(server)


def test_fedavg_by_the_median_is_the_median_of_the_updates():
    server, _ = server_of(aggregation=Aggregation.parse("median", clip="none"))
    state = make_method("fedavg").start(server)
    updates = [reply.vector for reply in server.ask(server.training_requests(server.clients, state.model, 1))]
    after, _ = make_method("fedavg").round(state, 1, server)
    expected = state.model.double() + torch.stack(updates).double().quantile(0.5, dim=0)
    torch.testing.assert_close(after.model.double(), expected, rtol=1e-6, atol=1e-7)


def test_a_false_number_of_samples_weighs_no_more_than_the_cap():
    server, bad = server_of("sample-count", 1, Aggregation.parse(weight_cap=3))
    weights = {client: server.weight(client, "samples") for client in server.clients}
    assert max(weights.values()) <= 3 * median(server.samples.values())
    assert all(weights[client] == server.samples[client] for client in weights if client not in bad)
    assert server.weight(next(iter(bad)), "uniform") == 1.0


def test_without_a_cap_every_client_weighs_its_samples():
    sizes = {"a": 1, "b": 12, "c": 12, "d": 10**6}
    assert capped_weights(sizes, None) == {"a": 1.0, "b": 12.0, "c": 12.0, "d": 1e6}
    assert capped_weights(sizes, 3.0) == {"a": 1.0, "b": 12.0, "c": 12.0, "d": 36.0}
    assert capped_weights({}, 3.0) == {}


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"aggregate": "medain"}, "did you mean 'median'"),
        ({"aggregate": "median(2)"}, "takes no number"),
        ({"aggregate": "trimmed-mean(50%)"}, "expected in brackets a hostile clients"),
        ({"aggregate": "trimmed-mean"}, "expected in brackets"),
        ({"aggregate": "trimmed-mean:0.2"}, "did you mean 'trimmed-mean'"),
        ({"aggregate": "krum(1.5)"}, "expected in brackets"),
        ({"aggregate": "nnm+median"}, "'nnm': expected in brackets"),
        ({"aggregate": "median+nnm(2)"}, "a step comes before a rule"),
        ({"aggregate": "bucketing(1)+median"}, "from 2"),
        ({"aggregate": "centred-clip(0)"}, "length"),
        ({"expect_hostile": "many", "clients": 20}, "such as 2, or a share such as 10%"),
        ({"expect_hostile": "10", "clients": 20}, "no rule stands half"),
        ({"expect_hostile": 2, "aggregate": "median", "clients": 20}, "give one of the two"),
        ({"clip": "0.5x"}, "1 or more times"),
        ({"clip": "often"}, "expected a number"),
        ({"weight_cap": 0.5}, "1 or more"),
        ({"weight_cap": 3, "expect_hostile": 2, "clients": 20}, "counts every client alike"),
    ],
)
def test_options_that_make_no_sense_are_refused(options, words):
    with pytest.raises(ConfigError, match=words):
        Aggregation.parse(**options)


def test_options_are_read():
    assert Aggregation.parse() == Aggregation("mean", None, None, None)
    assert Aggregation.parse("trimmed-mean(30%)", "2.5x", 0) == Aggregation("trimmed-mean(30%)", 2.5, None, None)
    assert Aggregation.parse("nnm + krum(3)", "1.5") == Aggregation("nnm+krum(3)", None, 1.5, None)
    assert Aggregation.parse(weight_cap=2.0) == Aggregation("mean", None, None, 2.0)


@pytest.mark.parametrize(
    ("expect", "rule"),
    [
        ("0", "mean"),
        ("2", "nnm+trimmed-mean(2)"),
        (1, "nnm+trimmed-mean(1)"),
        ("11%", "nnm+trimmed-mean(3)"),
        (9, "nnm+trimmed-mean(9)"),
    ],
)
def test_the_rule_follows_from_how_many_are_expected(expect, rule):
    assert Aggregation.parse(expect_hostile=expect, clients=20).rule == rule


def test_buckets_are_drawn_anew_in_every_round():
    rows = torch.randn(9, 5, generator=torch.Generator().manual_seed(0))
    rule = Aggregation.parse("bucketing(2)+median", seed=3)
    found = [rule.center(rows, [1.0] * 9), replace(rule, round=1).center(rows, [1.0] * 9)]
    assert not torch.equal(*found)
    assert torch.equal(found[0], rule.center(rows, [1.0] * 9))


def test_a_limit_is_a_norm_or_a_multiple_of_the_median_norm_of_a_cluster():
    assert Aggregation().bounds({0: [1.0]}) == {0: math.inf}
    assert Aggregation.parse(clip="1.5").bounds({0: [1.0, 9.0]}) == {0: 1.5}
    assert Aggregation.parse(clip="3x").bounds({0: [1.0, 2.0, 9.0], 1: [1.0, 90.0]}) == {0: 6.0, 1: 3.0}
    assert Aggregation.parse(clip="3x").bounds({0: [0.0, 0.0, 5.0]}) == {0: math.inf}  # most do not move


def test_an_update_above_the_limit_is_shortened_to_it_and_its_client_is_noted():
    server, _ = server_of(aggregation=Aggregation.parse(clip="2x"))
    norms = {"a": 1.0, "b": 1.0, "c": 4.0}
    parts = [Part(0, Reply(c, 1, torch.tensor([norm]), {"norm": norm, "loss": 0.0})) for c, norm in norms.items()]
    assert [float(part.reply.vector) for part in server._clipped(parts)] == [1.0, 1.0, 2.0]
    assert server.cut == {"c"}


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({}, ""),
        ({"expect_hostile": 2, "clients": 20}, "nnm+trimmed-mean(2), within √1.64 times the honest updates' standard"),
        ({"aggregate": "multi-krum(3)"}, "multi-krum(3), every client counts alike"),
        ({"aggregate": "median", "clip": "3x"}, "median, every client counts alike"),
        ({"clip": "3x", "weight_cap": 2.0}, "updates longer than 3 times"),
    ],
)
def test_a_choice_other_than_the_mean_is_said_in_words(options, words):
    assert Aggregation.parse(**options).describe().startswith(words)
    assert bool(Aggregation.parse(**options).describe()) == bool(options)


@pytest.mark.parametrize("attack", ["scale", "sign-flip"])
def test_a_hostile_client_seeds_no_model_of_ifca(attack):
    honest, _ = server_of()
    first = numpy_generator(honest.seed, "k-means++", 0).integers(len(honest.clients))
    bad = honest.clients[int(first)]  # the first whose model would be taken
    engine = HostileEngine(FEDERATION, network, attack=ATTACKS[attack], hostile=[bad])
    server = Server(engine, honest.schedule, 0, 3)
    models = WorstFittedStart(rounds=3).models(server, 2, 0)
    usual = float(WorstFittedStart(rounds=3).models(honest, 2, 0).norm(dim=1).max())
    assert models.shape[0] == 2
    assert float(models.norm(dim=1).max()) < 2 * usual


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"secure_sums": True}, "secure_sums shows no single update to compare"),
        ({"dp_noise": 1.0}, "the ε of dp_noise is of means"),
    ],
)
@pytest.mark.parametrize("asked", [{"expect_hostile": "10%"}, {"aggregate": "nnm+trimmed-mean(2)"}])
def test_rules_are_refused_where_no_single_update_is_seen(asked, options, words):
    with pytest.raises(ConfigError, match=f"{next(iter(asked))}=.*{words}"):
        make_config(asked | options)


def test_a_run_that_expects_hostile_clients_says_its_rule_bound_and_cost_at_the_start():
    options = {"method": "fedavg", "rounds": 2, "model": "mlp:hidden=8", "expect_hostile": "10%", "workers": 1}
    run, _ = assemble(make_config(options), federation=FEDERATION)
    first, second = execute(run).history
    [event] = [event for event in first.events if event.kind == "aggregation"]
    assert "nnm+trimmed-mean(1), within √" in event.text
    assert "every client counts alike" in event.text
    assert not [event for event in second.events if event.kind == "aggregation"]


def test_shortened_updates_are_reported_once():
    server, _ = server_of()
    server.cut.update({"client-1", "client-0"})
    assert server.report_shortened() == ["client-0", "client-1"]
    assert server.report_shortened() == []
