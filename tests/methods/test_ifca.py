"""IFCA: both averagings, sharing, the stable-id saving and its bytes, restarts, auto k, and bad options."""

from __future__ import annotations

import dataclasses
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import coterie
from coterie.data.scenarios import find_scenario
from coterie.engines import LocalEngine
from coterie.errors import ConfigError
from coterie.federation import Client, Federation, Split
from coterie.methods import IFCA, FedAvg, Server, make_method
from coterie.methods.choices import PATIENCE, Choices, ending_events, idle_after
from coterie.methods.ifca import State
from coterie.methods.sharing import shared_spans
from coterie.methods.splitting import BenefitRule
from coterie.methods.starts import WorstFittedStart
from coterie.methods.tree import Branch
from coterie.runs.assemble import assemble
from coterie.runs.config import make_config
from coterie.snapshot import load_snapshot, save_snapshot
from coterie.tasks import Evaluate

SCENARIO: dict[str, Any] = {
    "scenario": "digits-rotated", "clients": 8, "samples": 40, "groups": 2, "model": "mlp:hidden=16",
    "lr": 0.5, "steps": 5, "batch_size": "full", "rounds": 6, "workers": 1,
}  # fmt: skip


def server_for(**options: Any) -> Server:
    """The server of a small real federation."""
    return assemble(make_config(SCENARIO | options))[0].server


def linear_server(participation: float = 1.0, clients: int = 10, samples: int = 30) -> Server:
    """The theory's setting through the ordinary engine, in float64."""
    config = make_config(
        {
            "scenario": "linear-mixture", "clients": clients, "samples": samples, "rounds": 30, "lr": 0.1,
            "precision": "float64", "participation": participation, "workers": 1,
        }
    )  # fmt: skip
    return assemble(config)[0].server


@pytest.mark.parametrize("participation", [1.0, 0.6])
def test_gradient_averaging_is_the_closed_form(participation: float) -> None:
    server = linear_server(participation)
    method = IFCA(k=2, averaging="gradient")
    state = method.start(server)
    before = state.models
    after, _ = method.round(state, 1, server)
    took_part = server.participants(1)
    assert len(took_part) == round(10 * participation)
    federation: Federation = server.engine.federation  # type: ignore[attr-defined]
    expected = before.double().clone()
    for client in took_part:
        x, y = (part.double() for part in (federation[client].train.x, federation[client].train.y))
        losses = [float(((x @ theta)[:, None] - y).square().mean()) for theta in before.double()]
        j = int(np.argmin(losses))
        gradient = 2 / len(x) * x.T @ ((x @ before[j].double()) - y[:, 0])
        expected[j] -= 0.1 / len(took_part) * gradient
    torch.testing.assert_close(after.models.double(), expected, rtol=0, atol=1e-6)


def test_gradients_divided_by_all_clients_shrink_with_the_participation() -> None:
    server = linear_server(0.6)
    steps = {}
    for divide_by in ("participants", "clients"):
        method = IFCA(k=2, averaging=f"gradient(divide_by={divide_by})")
        state = method.start(server)
        steps[divide_by] = method.round(state, 1, server)[0].models - state.models
    torch.testing.assert_close(steps["clients"], 0.6 * steps["participants"])


def test_a_gradient_on_a_batch_of_everything_is_the_full_gradient() -> None:
    server = linear_server(samples=30)
    ends = []
    for batch in (None, 30, 5):
        method = IFCA(k=2, averaging="gradient" if batch is None else f"gradient(batch={batch})")
        state = method.start(server)
        ends.append(method.round(state, 1, server)[0].models)
    torch.testing.assert_close(ends[0], ends[1])
    assert not torch.allclose(ends[0], ends[2])


def test_models_that_nobody_chooses_are_named_once() -> None:
    server = server_for(rounds=12)
    method = IFCA(k=2)
    state = method.start(server)
    far = 100 * torch.randn(server.layout.size, generator=torch.Generator().manual_seed(0))
    state.models[1] = far
    told = []
    for t in range(1, 9):
        state, info = method.round(state, t, server)
        told += [(t, event.text) for event in info.events if event.kind == "unused"]
    assert [t for t, _ in told] == [PATIENCE]
    assert f"no client chose 1 of the 2 models for {PATIENCE} rounds" in told[0][1]


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_a_client_that_diverges_seeds_no_model() -> None:
    federation: Federation = server_for().engine.federation  # type: ignore[attr-defined]
    broken = [
        Client(c.id, Split(c.train.x * (1e30 if i == 0 else 1), c.train.y), c.validation, c.test, c.group)
        for i, c in enumerate(federation)
    ]
    for seed in range(4):
        config = make_config({"model": "mlp:hidden=16", "lr": 0.5, "rounds": 3, "workers": 1, "seed": seed})
        server = assemble(config, federation=Federation(broken, federation.classes))[0].server
        models = WorstFittedStart(rounds=2).models(server, 3, 0)
        assert torch.isfinite(models).all()
        assert len({tuple(model[:5].tolist()) for model in models}) == 3


def test_linear_mixture_is_recovered_by_the_ordinary_method() -> None:
    result = coterie.run(
        "ifca:k=2,averaging=gradient,init=k-means++", scenario="linear-mixture", clients=12, samples=200, groups=2,
        lr=0.2, rounds=40, evaluate_every=40, workers=1,
    )  # fmt: skip
    assert result.summary.ari == 1.0


def test_one_cluster_is_fedavg() -> None:
    server = server_for(participation=0.5)
    ours, theirs = IFCA(k=1), FedAvg(weighting="uniform")
    a, b = ours.start(server), theirs.start(server)
    for t in (1, 2, 3):
        (a, _), (b, _) = ours.round(a, t, server), theirs.round(b, t, server)
    torch.testing.assert_close(a.models[0], b.model, rtol=0, atol=1e-6)


def replies_by_client(server: Server, state: State, t: int) -> dict[str, tuple[int, torch.Tensor]]:
    """What each participant chose and its update, asked once more."""
    requests = list(IFCA(k=2)._requests(state, False, t, server))
    return {reply.client: (reply.group, reply.vector.double()) for reply in server.ask(requests)}  # type: ignore[union-attr]


def test_model_averaging_is_the_mean_of_those_who_chose() -> None:
    server = server_for()
    method = IFCA(k=2)
    state = method.start(server)
    told = replies_by_client(server, state, 1)
    after, _ = method.round(state, 1, server)
    before, now = state.models.double(), after.models.double()
    for j in range(2):
        own = [vector for choice, vector in told.values() if choice == j]
        expected = before[j] + (torch.stack(own).mean(dim=0) if own else 0)
        torch.testing.assert_close(now[j], expected, rtol=0, atol=1e-6)


def test_a_cluster_that_nobody_chose_keeps_its_model() -> None:
    server = server_for()
    method = IFCA(k=2)
    state = method.start(server)
    models = state.models
    models[1] = 100 * torch.randn(models.shape[1], generator=torch.Generator().manual_seed(0))  # nobody wants this
    after, info = method.round(state, 1, server)
    assert torch.equal(after.models[1], models[1])
    assert [cluster.members for cluster in info.clusters] == [8]
    assert [list(members) for members in method.assignment(after, server).members] == [list(server.clients)]


def test_ties_go_to_the_lowest_index() -> None:
    server = server_for()
    method = IFCA(k=3)
    state = method.start(server)
    state.models[:] = state.models[0].clone()
    after, _ = method.round(state, 1, server)
    assert set(after.choices.last.values()) == {0}


@pytest.mark.parametrize("averaging", ["model", "gradient"])
def test_shared_layers_follow_everybody(averaging: Any) -> None:
    server = server_for()
    method = IFCA(k=2, clustered="last", averaging=averaging)
    state = method.start(server)
    shared = shared_spans(method.clustered, server)
    head = server.layout.select("last")[0]
    heads = state.models[:, head]
    heads[1] = heads[0] + 0.02 * torch.randn(heads.shape[1], generator=torch.Generator().manual_seed(1))
    before = state.models.double()
    how = server.schedule.at(1) if averaging == "model" else None
    requests = list(method._requests(state, False, 1, server))
    assert all(request.task.training == how for request in requests)  # type: ignore[attr-defined]
    told = [(reply.group, reply.vector.double()) for reply in server.ask(requests)]  # type: ignore[union-attr]
    assert {choice for choice, _ in told} == {0, 1}
    after = method.round(state, 1, server)[0].models.double()
    everybody = torch.stack([vector for _, vector in told]).mean(dim=0) * (1 if how else -0.5)
    for place in shared:
        assert torch.equal(after[0, place], after[1, place])
        torch.testing.assert_close(after[0, place], (before[0] + everybody)[place], rtol=0, atol=1e-6)
    assert not torch.equal(after[0, head], after[1, head])


def bytes_of_round(method: IFCA, server: Server, state: State, t: int) -> tuple[State, int, int]:
    server.traffic.drain()
    state, _ = method.round(state, t, server)
    return state, *server.traffic.drain()


def test_bytes_of_plain_ifca() -> None:
    server = server_for(participation=0.5)
    method, d, k = IFCA(k=3), server.layout.size, 3
    _, down, up = bytes_of_round(method, server, method.start(server), 1)
    assert down == 4 * 4 * k * d
    assert up == 4 * (4 * d + 8 * 2)  # the update, the choice and the loss while training


def test_bytes_of_gradient_averaging_count_trainable_numbers() -> None:
    server = server_for()
    method, k = IFCA(k=2, averaging="gradient"), 2
    _, down, up = bytes_of_round(method, server, method.start(server), 1)
    assert down == 4 * 8 * k * server.layout.size
    assert up == 8 * (4 * server.layout.trainable + 8 * 2)


def test_buffers_which_have_no_gradient_are_not_sent() -> None:
    def normalised(seed: int) -> nn.Module:
        torch.manual_seed(seed)
        return nn.Sequential(nn.Flatten(), nn.Linear(64, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Linear(6, 10))

    plain = server_for()
    federation: Federation = plain.engine.federation  # type: ignore[attr-defined]
    server = dataclasses.replace(plain, engine=LocalEngine(federation, normalised))
    layout = server.layout
    assert layout.size == layout.trainable + 13
    method = IFCA(k=2, averaging="gradient", resend="settled(1)")
    state, _, up = bytes_of_round(method, server, method.start(server), 1)
    assert up == 8 * (4 * layout.trainable + 8 * 2)
    steady = replace(state, choices=replace(state.choices, steady=5, unchecked=0))
    _, _, up = bytes_of_round(method, server, steady, 2)
    assert up == 8 * (4 * layout.trainable + 8)


def test_weight_sharing_sends_shared_layers_once() -> None:
    server = server_for()
    method, d, k = IFCA(k=3, clustered="last"), server.layout.size, 3
    own = 16 * 10 + 10
    _, down, up = bytes_of_round(method, server, method.start(server), 1)
    assert down == 4 * 8 * ((d - own) + k * own)
    assert up == 8 * (4 * d + 8 * 2)


def test_stable_ids_send_one_model_and_check_again() -> None:
    server = server_for(rounds=20)
    saving, plain = IFCA(k=2, init="k-means++", resend="settled(2,recheck=3)"), IFCA(k=2, init="k-means++")
    state, other = saving.start(server), plain.start(server)
    d, k = server.layout.size, 2
    whole, single = (4 * 8 * k * d, 8 * (4 * d + 8 * 2)), (4 * 8 * d, 8 * (4 * d + 8))
    seen = []
    for t in range(1, 11):
        state, down, up = bytes_of_round(saving, server, state, t)
        other, _, _ = bytes_of_round(plain, server, other, t)
        assert (down, up) in (whole, single)
        seen.append((down, up) == single)
        # Nobody moves in this federation, so the saving changes no number.
        assert torch.equal(state.models, other.models)
    # Round 1 is everybody's first choice, 2 and 3 show that nobody moves; then two single rounds to each whole one.
    assert seen == [False, False, False, True, True, False, True, True, False, True]


def test_a_client_that_moves_ends_the_saving() -> None:
    server = server_for(rounds=20)
    method = IFCA(k=2, init="k-means++", resend="settled(1,recheck=2)")
    state = method.start(server)
    for t in range(1, 4):
        state, _ = method.round(state, t, server)
    assert state.choices.unchecked == 1
    turned = replace(state, models=state.models.flip(0))  # now all clients are better off elsewhere
    after, info = method.round(turned, 4, server)
    assert [event.kind for event in info.events] == ["moved"]
    assert info.events[0].details["clients"] == 8
    assert after.choices.steady == 0


def test_newcomers_choose_even_while_ids_are_stable() -> None:
    server = server_for(rounds=20)
    method = IFCA(k=2, resend="settled(1)")
    state = method.start(server)
    for t in range(1, 4):
        state, _ = method.round(state, t, server)
    known = {client: j for client, j in state.choices.last.items() if client != server.clients[0]}
    state = replace(state, choices=replace(state.choices, last=known, steady=5, unchecked=0))
    state, down, _ = bytes_of_round(method, server, state, 4)
    assert down == 4 * server.layout.size * (7 + 2)
    assert server.clients[0] in state.choices.last


def test_everybody_gets_a_model_also_who_never_took_part() -> None:
    server = server_for(participation=0.25)
    method = IFCA(k=2, init="k-means++")
    state, _ = method.round(method.start(server), 1, server)
    assignment = method.assignment(state, server)
    assert sorted(c for members in assignment.members for c in members) == sorted(server.clients)
    federation: Federation = server.engine.federation  # type: ignore[attr-defined]
    groups = {tuple(sorted({federation[c].group for c in members})) for members in assignment.members}
    assert groups == {(0,), (1,)}


def test_restarts_keep_the_lowest_training_loss() -> None:
    server = server_for()
    method = IFCA(k=2, restarts=3)
    state = method.start(server)
    firsts = [restart.models for restart in state.runs]
    assert not torch.equal(firsts[0], firsts[1])
    for t in range(1, 4):
        state, _ = method.round(state, t, server)
    losses = [restart.loss for restart in state.runs]
    assert state.best == int(np.argmin(losses))
    best = state.runs[state.best].models
    assert any(torch.equal(method.assignment(state, server).models[0], model) for model in best)


def test_perturbed_models_are_close_and_different() -> None:
    server = server_for()
    models = IFCA(k=3, init="perturbed(0.01)").start(server).models
    base = server.initial_model(0)
    apart = (models - base).norm(dim=1) / base.norm()
    assert apart.min() > 0.005
    assert apart.max() < 0.02


def test_worst_fitted_seeds_find_the_groups_at_once() -> None:
    server = server_for(clients=12, groups=4, steps=20)
    method = IFCA(k=4, init="k-means++")
    state, _ = method.round(method.start(server), 1, server)
    federation: Federation = server.engine.federation  # type: ignore[attr-defined]
    pairs = {(federation[c].group, j) for c, j in state.choices.last.items()}
    assert len(pairs) == 4


def with_labels_of_its_own(odd: int, groups: int, clients: int) -> tuple[Server, Federation]:
    """A federation of groups, and `odd` clients more that each have other labels than all others."""
    base = find_scenario("digits-iid").build(clients=clients + odd, samples=40, seed=2)
    maps = [torch.from_numpy(np.random.default_rng(7 + g).permutation(10)) for g in range(groups + odd)]
    numbers = [i % groups if i < clients else groups + i - clients for i in range(clients + odd)]
    changed = [
        dataclasses.replace(client, train=Split(client.train.x, maps[g][client.train.y]), group=g)
        for client, g in zip(base, numbers, strict=True)
    ]
    federation = Federation(changed, 10, "odd")
    config = make_config({"rounds": 4, "seed": 3, "lr": 0.3, "epochs": 15, "workers": 1, "model": "mlp:hidden=16"})
    return assemble(config, federation=federation)[0].server, federation


@pytest.mark.parametrize("first", range(4))
def test_a_client_with_labels_of_its_own_gets_no_model_that_a_group_needs(first: int) -> None:
    """With as many models as groups each group has one; with one model more, the odd client has it."""
    server, federation = with_labels_of_its_own(1, 3, 9)
    server.seed = first
    odd = federation.ids[-1]
    for k in (3, 4):
        models = WorstFittedStart().models(server, k, 0)
        losses = {
            reply.client: reply.values["loss"] for reply in server.ask_all(server.clients, Evaluate(models, "train"))
        }
        choices = {client: int(np.argmin(row)) for client, row in losses.items()}
        groups = {(federation[client].group, choice) for client, choice in choices.items() if client != odd}
        assert len(groups) == 3
        assert len({choice for _, choice in groups}) == 3
        assert (choices[odd] not in {choice for _, choice in groups}) == (k == 4)


def test_auto_grows_to_the_number_of_groups_by_cfls_rule() -> None:
    options = SCENARIO | {"clients": 24, "groups": 4, "rounds": 14, "samples": 100, "lr": 0.3}
    result = coterie.run("ifca:k=auto", evaluate_every=14, **options)
    assert len(result.clusters) == 4
    assert result.summary.ari == 1.0
    splits = [event for record in result.history for event in record.events if event.kind == "split"]
    assert len(splits) == 1  # four parts are surely better than two: one look finds them
    assert all("on held-out data models of their own lower the loss by" in event.text for event in splits)


def test_auto_keeps_one_model_where_all_are_alike_and_is_then_fedavg() -> None:
    options = SCENARIO | {"scenario": "digits-iid", "clients": 8, "rounds": 8}
    auto = coterie.run("ifca:k=auto", **options)
    plain = coterie.run("fedavg", **options)
    assert torch.equal(auto.models[0], plain.models[0])
    assert auto.history[-1].events[-1].kind == "whole"


def test_auto_moves_clients_to_what_surely_serves_them_better_and_trains_no_model_that_none_has() -> None:
    server = server_for(rounds=20)
    method = IFCA(k="auto")
    state = method.start(server)
    model, clients = server.initial_model(), list(server.clients)
    diverged = torch.full_like(model, torch.nan)
    sides = [Branch(tuple(clients[:4]), model, torch.eye(4)), Branch(tuple(clients[4:]), diverged, torch.eye(4))]
    memory = dict.fromkeys((1, 2), BenefitRule().begin())
    state = replace(state, tree=state.tree.split(0, sides, 2, {}), memory=memory)
    state, _ = method.round(state, 3, server)
    assert [len(leaf.members) for leaf in state.tree.leaves()] == [4, 4]  # no look yet
    state, _ = method.round(state, 4, server)
    assert [len(leaf.members) for leaf in state.tree.leaves()] == [8, 0]
    assert method.assignment(state, server).cluster_ids == [1]
    server.traffic.drain()
    _, info = method.round(state, 5, server)
    assert [cluster.id for cluster in info.clusters] == [1]
    down, _ = server.traffic.drain()
    assert down == len(clients) * 4 * server.layout.size


def test_clients_count_alike_as_in_the_paper_unless_models_grow() -> None:
    plain, named = (coterie.run(f"ifca:k=2{more}", **SCENARIO) for more in ("", ",weighting=uniform"))
    assert all(torch.equal(a, b) for a, b in zip(plain.models, named.models, strict=True))
    make_method("ifca:init=random,weighting=uniform,hide_choice=true")
    with pytest.raises(ConfigError, match="hide_choice=True with weighting=samples"):
        make_method("ifca:init=random,weighting=samples,hide_choice=true")


@pytest.mark.parametrize(
    "extra", ["restarts=2", "averaging=gradient", "clustered=last", "resend=settled(2)", "init=random"]
)
def test_auto_refuses_options_that_have_no_effect(extra: str) -> None:
    with pytest.raises(ConfigError, match="k=auto with"):
        make_method(f"ifca:k=auto,{extra}").start(server_for())


def test_state_survives_a_snapshot(tmp_path: Any) -> None:
    server = server_for()
    method = IFCA(k=2, resend="settled(1)")
    state, _ = method.round(method.start(server), 1, server)
    save_snapshot(state, tmp_path / "state")
    back = load_snapshot(tmp_path / "state")
    a, _ = method.round(state, 2, server)
    b, _ = method.round(back, 2, server)
    assert torch.equal(a.models, b.models)
    assert a.choices.last == b.choices.last
    assert isinstance(b, State)


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ("ifca:k=9", "k=9 with 8 clients"),
        ("ifca:clustered=haed", "did you mean 'head'"),
        ("ifca:clustered=('hidden','head')", "leaves nothing to share"),
        ("ifca:clustered=()", "leaves nothing to cluster"),
    ],
)
def test_options_that_do_not_fit_the_federation(spec: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words.replace("(", r"\(")):
        make_method(spec).start(server_for())


@pytest.mark.parametrize("spec", ["ifca:k=0", "ifca:k=-1", "ifca:k=many", "ifca:restarts=0", "ifca:weighting=mean"])
def test_options_out_of_range(spec: str) -> None:
    with pytest.raises(ConfigError, match=r"method 'ifca', option"):
        make_method(spec)


def test_the_default_start_is_k_means_unless_no_single_client_may_decide() -> None:
    seeded = IFCA(k=2, init="k-means++").start(server_for()).models
    random = IFCA(k=2, init="random").start(server_for()).models
    assert not torch.equal(seeded, random)
    for options, expected in (
        ({}, seeded),
        ({"secure_sums": True}, random),
        ({"dp_noise": 1.0, "method": "ifca:k=2"}, random),
        ({"aggregate": "median"}, seeded),
    ):
        models = IFCA(k=2).start(server_for(**options)).models
        assert torch.equal(models, expected), options
    alone = IFCA(k=1).start(server_for()).models
    assert torch.equal(alone, IFCA(k=1, init="random").start(server_for()).models)


def test_the_last_round_says_which_models_nobody_chose_and_the_summary_repeats_it() -> None:
    class Drowned(IFCA):
        """IFCA whose second model is far from all clients."""

        def start(self, server: Server, draw: int = 0) -> State:
            state = super().start(server, draw)
            state.models[1] *= 1e3
            return state

    options: dict[str, Any] = {"model": "mlp:hidden=16", "lr": 0.5, "rounds": 2, "workers": 1}
    federation: Federation = server_for().engine.federation  # type: ignore[attr-defined]
    result = coterie.run(Drowned(k=2, init="random"), federation, **options)
    (text,) = result.summary.warnings
    assert text.startswith("1 of the 2 models were no client's last choice, and 8 clients share one model")
    assert "try init=k-means++" in text
    assert text.endswith("if not, give k=1")
    assert "try more restarts" in coterie.run(Drowned(k=2), federation, **options).summary.warnings[0]
    assert coterie.run(IFCA(k=2), federation, **options).summary.warnings == []


def test_models_that_exchange_clients_to_the_end_are_named() -> None:
    clients = [f"client-{i}" for i in range(8)]
    after = Choices([0, 0], last={c: i % 2 for i, c in enumerate(clients)}, latest=clients)
    (event,) = ending_events(after, clients[:3], "try again")
    assert event.kind == "unsettled"
    assert event.text.startswith("3 of 8 clients still changed model in the last round, to 0, 1")
    assert ending_events(after, clients[:1], "try again") == []


def test_a_model_is_idle_for_as_many_rounds_as_no_client_chose_it() -> None:
    assert idle_after([1, 2, 0], [0, 3, 0]) == [2, 0, 1]
