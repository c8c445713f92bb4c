"""CFL: exact groups at every depth, a partition after every round, the paper's rule and held-out benefit."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import coterie
from coterie.benefit import FIRST_LOOK, Benefit
from coterie.clustering import cosine_matrix
from coterie.clustering.sketch import sketch
from coterie.data.scenarios import find_scenario
from coterie.engines import LocalEngine
from coterie.errors import ConfigError
from coterie.federation import Client, Federation, Split
from coterie.methods import CFL, make_method
from coterie.methods.base import Event
from coterie.methods.compared import Compared
from coterie.methods.server import Server
from coterie.methods.splitting import BenefitRule, LeafRound, Look, SplitDecision, SplitRule
from coterie.methods.splitting import Watched as WatchedSplit
from coterie.methods.tree import Branch, Node, follow_population, surely_better
from coterie.randomness import derive
from coterie.runs.loop import execute
from coterie.runs.prepared import Run
from coterie.tasks import HalfUpdates, Noise, Train
from coterie.tasks.base import Reduction, Reply, ReplyBlock, Request
from coterie.trainers.base import Training
from coterie.trainers.schedules import make_schedule

FEATURES, CLASSES = 6, 4
DIGITS = {"clients": 8, "groups": 2, "samples": 60}


def opposed(sizes: tuple[int, ...], samples: int = 60, seed: int = 0) -> Federation:
    """Linearly separable clients in groups that name the classes differently (cyclic shifts): pure conflict."""
    generator = np.random.default_rng(seed)
    centres = 3 * np.eye(CLASSES, FEATURES)
    clients = []
    for group, size in enumerate(sizes):
        for number in range(size):
            parts = []
            for rows in (samples, 20, 20):
                y = generator.integers(0, CLASSES, rows)
                x = centres[y] + 0.5 * generator.standard_normal((rows, FEATURES))
                parts.append(Split(torch.tensor(x, dtype=torch.float32), torch.tensor((y + group) % CLASSES)))
            clients.append(Client(f"g{group}-{number}", *parts, group=group))
    order = generator.permutation(len(clients))
    return Federation([clients[i] for i in order], CLASSES)


def net(seed: int) -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed % 2**31)
        return nn.Sequential(nn.Linear(FEATURES, 16), nn.ReLU(), nn.Linear(16, CLASSES))


def run_of(method: CFL, federation: Federation, rounds: int, participation: float = 1.0, **engine: Any) -> Run:
    how = Training(lr=0.1, epochs=2, batch_size=20)
    made = LocalEngine(federation, net, **engine)
    server = Server(made, make_schedule("constant", how, rounds), 5, rounds, participation)
    labels = {"method": "cfl", "scenario": "opposed", "model": "net", "seed": 5}
    return Run(method, server, net, federation.groups, labels, {})


def test_unequal_groups_are_found_exactly_with_every_client_once_in_every_round() -> None:
    federation = opposed((10, 5, 1, 1))
    run = run_of(CFL(), federation, 80)
    state = run.method.start(run.server)
    for t in range(1, 81):
        state, info = run.method.round(state, t, run.server)
        members = [client for leaf in state.tree.leaves() for client in leaf.members]
        assert sorted(members) == sorted(federation.ids)
        assert sum(cluster.members for cluster in info.clusters) == len(federation)
    groups = {frozenset(federation[c].group for c in leaf.members) for leaf in state.tree.leaves()}
    assert len(state.tree.leaves()) == 4
    assert groups == {frozenset({g}) for g in range(4)}


def test_clients_of_one_kind_are_never_split() -> None:
    result = execute(run_of(CFL(), opposed((12,)), 60))
    assert len(result.clusters) == 1


def test_the_papers_rule_with_numbers_and_with_auto() -> None:
    federation = opposed((4, 4))
    for method in (CFL(rule="paper(eps1=0.05,eps2=0.1,gamma_max=0.3)"), CFL(rule="paper(wait=20)")):
        result = execute(run_of(method, federation, 80))
        assert result.summary.ari == 1.0
    untouched = execute(run_of(CFL(rule="paper(eps1=1e-9,eps2=0.1,gamma_max=0.3)"), federation, 40))
    assert len(untouched.clusters) == 1
    refused = execute(run_of(CFL(rule="paper(gamma_max=0.999)"), federation, 60))
    assert len(refused.clusters) == 1


def until_split(method: CFL, federation: Federation, rounds: int = 60) -> tuple[Any, Any, Server, int]:
    """The states before and after the round of the first split."""
    run = run_of(method, federation, rounds)
    state = run.method.start(run.server)
    for t in range(1, rounds + 1):
        before = state
        state, _ = run.method.round(state, t, run.server)
        if len(state.tree.nodes) > 1:
            return before, state, run.server, t
    raise AssertionError("no split")


def test_by_the_papers_rule_children_start_from_the_stationary_model_with_this_rounds_updates() -> None:
    before, state, server, t = until_split(CFL(rule="paper(wait=20)"), opposed((4, 4)), 80)
    root, *children = state.tree.nodes
    assert torch.equal(root.model, before.tree.nodes[0].model)
    for child in children:
        replies = list(server.ask(server.training_requests(child.members, root.model, t)))
        weights = torch.tensor([float(server.samples[r.client]) for r in replies], dtype=torch.float64)
        mean = (weights[:, None] * torch.stack([r.vector for r in replies]).double()).sum(0) / weights.sum()
        assert torch.allclose(child.model.double(), root.model.double() + mean, atol=1e-6)


def cut(federation: Federation, ids: set[str], samples: int) -> Federation:
    """The federation with fewer training samples for some."""
    clients = [
        Client(c.id, Split(c.train.x[:samples], c.train.y[:samples]), c.validation, c.test, c.group)
        if c.id in ids
        else c
        for c in federation
    ]
    return Federation(clients, federation.classes)


def test_clients_of_one_sample_have_no_halves_and_block_nothing() -> None:
    federation = opposed((6, 6))
    few = {f"g{g}-{i}" for g in (0, 1) for i in (0, 1, 2)}
    _, state, _, _ = until_split(CFL(), cut(federation, few, 1))
    members = [c for leaf in state.tree.leaves() for c in leaf.members]
    assert sorted(members) == sorted(federation.ids)
    for leaf in state.tree.leaves():
        assert len({federation[c].group for c in leaf.members if c not in few}) == 1


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_a_client_whose_updates_are_not_finite_blocks_no_split() -> None:
    federation = opposed((5, 5))
    broken = "g0-0"
    clients = [
        Client(c.id, Split(c.train.x * (1e30 if c.id == broken else 1), c.train.y), c.validation, c.test, c.group)
        for c in federation
    ]
    _, state, _, _ = until_split(CFL(), Federation(clients, CLASSES))
    for leaf in state.tree.leaves():
        assert len({federation[c].group for c in leaf.members if c != broken}) == 1


class Watched(LocalEngine):
    """An engine that remembers what it was asked."""

    def run(self, requests: Sequence[Request], reduce: Reduction | None = None) -> Iterator[ReplyBlock]:
        self.asked = [*getattr(self, "asked", []), list(requests)]
        return super().run(requests, reduce)


def test_rounds_without_a_look_cost_what_plain_training_costs() -> None:
    run = run_of(CFL(), opposed((4,)), 4)
    state = run.method.start(run.server)
    for t in range(1, 4):
        state, _ = run.method.round(state, t, run.server)
        numbers = run.server.layout.size
        assert run.server.traffic.drain() == (4 * 4 * numbers, 4 * (4 * numbers + 8))


def test_partial_participation_finds_the_groups() -> None:
    result = execute(run_of(CFL(), opposed((6, 6)), 120, participation=0.5))
    assert result.summary.ari == 1.0


@pytest.mark.parametrize(
    "options", [{"compare": "gradient"}, {"rule": "paper(linkage=complete,wait=20)"}, {"weighting": "uniform"}]
)
def test_the_named_variants_find_the_groups_too(options: dict[str, Any]) -> None:
    assert execute(run_of(CFL(**options), opposed((5, 4)), 60)).summary.ari == 1.0


@pytest.fixture(scope="module")
def plain() -> Any:
    result = execute(run_of(CFL(), opposed((5, 4, 3)), 20))
    assert result.summary.ari == 1.0
    return result


@pytest.mark.parametrize("privacy", ["permutation", "signed-permutation"])
def test_a_secret_orthonormal_transform_changes_no_decision(privacy: str, plain: Any) -> None:
    hidden = execute(run_of(CFL(), opposed((5, 4, 3)), 20, privacy=privacy, secret=99))
    assert hidden.clusters == plain.clusters
    assert [n.split_round for n in hidden.state.tree.nodes] == [n.split_round for n in plain.state.tree.nodes]
    assert [n.members for n in hidden.state.tree.nodes] == [n.members for n in plain.state.tree.nodes]
    assert not torch.allclose(hidden.state.tree.nodes[-1].model, plain.state.tree.nodes[-1].model)
    for one, other in zip(hidden.models, plain.models, strict=True):
        assert torch.allclose(one, other, atol=1e-3)


def test_newcomers_go_to_their_groups_leaf(plain: Any) -> None:
    held_out = opposed((20, 20, 20), seed=1)
    engine = LocalEngine(held_out, net)
    server = Server(engine, make_schedule("constant", Training(lr=0.1, epochs=2, batch_size=20), 1), 0, 1)
    right = 0
    for client in held_out:
        leaf = CFL().place(plain.state, [client.id], server)[client.id]
        right += {int(member[1]) for member in plain.state.tree.nodes[leaf].members} == {client.group}
    assert right >= 0.98 * len(held_out)


@pytest.mark.parametrize(("participation", "rule"), [(0.3, {}), (0.5, {"rule": "paper(wait=20)"})])
def test_newcomers_of_a_tree_of_gradients_bring_gradients(participation: float, rule: dict[str, Any]) -> None:
    method = CFL(compare="gradient", **rule)
    result = execute(run_of(method, opposed((6, 6)), 80, participation=participation))
    assert result.summary.ari == 1.0
    held_out = opposed((20, 20), seed=1)
    engine = LocalEngine(held_out, net)
    server = Server(engine, make_schedule("constant", Training(lr=0.1, epochs=2, batch_size=20), 1), 0, 1)
    homes = method.place(result.state, held_out.ids, server)
    groups = {leaf.id: {int(member[1]) for member in leaf.members} for leaf in result.state.tree.leaves()}
    right = sum(groups[homes[client.id]] == {client.group} for client in held_out)
    assert right >= 0.98 * len(held_out)


def test_the_papers_rule_compares_updates_made_at_one_model() -> None:
    engine = Watched(opposed((6, 6)), net)
    how = make_schedule("constant", Training(lr=0.1, epochs=2, batch_size=20), 120)
    server = Server(engine, how, 5, 120, participation=0.5)
    method = CFL(rule="paper(wait=20)")
    state = method.start(server)
    for t in range(1, 121):
        before = state.tree.nodes[0].model
        engine.asked = []
        state, _ = method.round(state, t, server)
        if len(state.tree.nodes) > 1:
            break
    trained = [request for requests in engine.asked for request in requests if isinstance(request.task, Train)]
    assert {request.client for request in trained} == set(engine.clients)  # also those who did not take part
    assert all(torch.equal(request.task.model, before) for request in trained)


def still(clients: int) -> Federation:
    """Clients that no training moves: all their inputs are zero, and so is the net's first gradient."""
    empty = [
        Client(f"c{i}", *[Split(torch.zeros(10, FEATURES), torch.arange(10) % CLASSES) for _ in range(3)])
        for i in range(clients)
    ]
    return Federation(empty, CLASSES)


@pytest.mark.parametrize("rule", [{}, {"rule": "paper(eps1=1e9,eps2=1e-30,gamma_max=auto,wait=2)"}])
def test_clients_that_do_not_move_are_not_shattered(rule: dict[str, Any]) -> None:
    def frozen(seed: int) -> nn.Module:
        module = nn.Sequential(nn.Linear(FEATURES, CLASSES, bias=False))
        nn.init.zeros_(module[0].weight)
        return module

    engine = LocalEngine(still(5), frozen)
    server = Server(engine, make_schedule("constant", Training(lr=0.1, batch_size=20), 20), 5, 20)
    method = CFL(**rule)
    state = method.start(server)
    for t in range(1, 21):
        state, _ = method.round(state, t, server)
    assert len(state.tree.nodes) == 1


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_by_the_papers_rule_neither_one_sample_nor_divergence_blocks_a_split() -> None:
    federation = opposed((6, 6))
    few, broken = {f"g{g}-{i}" for g in (0, 1) for i in (0, 1, 2)}, "g0-5"
    clients = [
        Client(c.id, Split(c.train.x * (1e30 if c.id == broken else 1), c.train.y), c.validation, c.test, c.group)
        for c in cut(federation, few, 1)
    ]
    _, state, _, _ = until_split(
        CFL(rule="paper(eps1=1.0,eps2=0.01,gamma_max=auto,wait=20)"), Federation(clients, CLASSES), 80
    )
    members = [c for leaf in state.tree.leaves() for c in leaf.members]
    assert sorted(members) == sorted(federation.ids)
    for leaf in state.tree.leaves():
        assert len({federation[c].group for c in leaf.members if c not in {broken, *few}}) == 1


def test_two_clients_in_conflict_are_separated() -> None:
    _, state, _, _ = until_split(CFL(), opposed((1, 1)))
    assert len(state.tree.leaves()) == 2


class ChangingEngine(LocalEngine):
    """An engine whose population the test changes between rounds."""

    def admit(self, ids: list[str]) -> None:
        self.clients = tuple(ids)


def test_clients_leave_return_and_join_in_mid_run() -> None:
    federation = opposed((5, 5))
    late = "g1-4"
    engine = ChangingEngine(federation, net)
    server = Server(engine, make_schedule("constant", Training(lr=0.1, epochs=2, batch_size=20), 90), 5, 90)
    method, ids = CFL(), list(federation.ids)
    engine.admit([c for c in ids if c != late])
    state = method.start(server)
    kinds: list[str] = []
    for t in range(1, 91):
        if t == 50:
            engine.admit([c for c in ids if c != "g0-0"])
        if t == 60:
            engine.admit(ids)
        state, info = method.round(state, t, server)
        kinds += [event.kind for event in info.events]
        assert sorted(c for leaf in state.tree.leaves() for c in leaf.members) == sorted(engine.clients)
    assert kinds.count("joined") == 2
    assert kinds.count("left") == 1
    for leaf in state.tree.leaves():
        assert len({federation[c].group for c in leaf.members}) == 1


def test_a_client_that_returns_is_placed_from_the_leaf_it_left(plain: Any) -> None:
    def never(*asked: Any) -> torch.Tensor:
        raise AssertionError("a leaf asks for no update")

    tree = plain.state.tree
    leaf = tree.leaves()[-1]
    client, *others = leaf.members
    without = replace(plain.state, tree=tree.updated(replace(leaf, members=tuple(others))), away={client: leaf.id})
    server = run_of(CFL(), opposed((5, 4, 3)), 20).server
    back, events = follow_population(without, 21, server, never)
    assert set(back.tree.nodes[leaf.id].members) == set(leaf.members)
    assert (back.away, [event.kind for event in events]) == ({}, ["joined"])


@pytest.mark.parametrize("rule", ["evaluated(min_size=2)", "paper(eps1=10,eps2=1e-9,wait=8,min_size=2)"])
def test_a_cluster_of_twice_the_least_size_may_split(rule: str) -> None:
    result = execute(run_of(CFL(rule=rule), opposed((2, 2)), 40))
    assert result.summary.ari == 1.0
    [(t, split)] = [(record.round, split) for record in result.history for split in record.splits]
    assert t >= 4
    assert sorted(map(len, split.members)) == [2, 2]


def test_fallback_gives_a_client_the_best_model_on_its_path_by_its_validation_data() -> None:
    run = run_of(CFL(), opposed((5, 4)), 60)
    result = execute(run)
    state = result.state
    # Give one leaf the other's model: its members must go back to the root's.
    leaf = state.tree.leaves()[0]
    spoiled = replace(leaf, model=state.tree.leaves()[1].model)  # it names the classes differently
    ended = run.method.finish(type(state)(**{**vars(state), "tree": state.tree.updated(spoiled)}), run.server)
    assert set(ended.fallback) == set(leaf.members)
    assert set(ended.fallback.values()) == {0}
    given = run.method.assignment(ended, run.server)
    served = {entry.client: entry for entry in given.served()}
    assert set(served) == set(run.server.clients)
    for client in leaf.members:
        assert (served[client].cluster, served[client].model_id) == (leaf.id, 0)
        assert torch.equal(served[client].model, state.tree.nodes[0].model)
    others = set(served) - set(leaf.members)
    assert others
    assert all(served[client].model_id == served[client].cluster == state.tree.leaf_of(client).id for client in others)
    assert CFL(fallback=False).finish(state, run.server) is state


def test_noise_by_hand_is_the_ratio_of_difference_to_sum_over_two_halves() -> None:
    federation = opposed((2,))
    engine = LocalEngine(federation, net, precision="float64")
    how, model = Training(lr=0.1, epochs=1, batch_size=None), engine.initial_model(3)
    (reply,) = next(iter(engine.run([Request("g0-0", Noise(model, how, 7))]))).replies
    assert 0 < reply.values["noise"] < 2
    assert reply.vector is None


def test_the_tree_survives_a_file_and_answers_from_the_folder(tmp_path: Path) -> None:
    result = coterie.run("cfl", **DIGITS, scenario="digits-permuted", rounds=6, out=tmp_path / "run")
    assert result.summary.ari == 1.0
    loaded = coterie.load(tmp_path / "run")
    tree = loaded.state.tree
    assert [n.members for n in tree.nodes] == [n.members for n in result.state.tree.nodes]
    assert [n.id for n in tree.path(tree.leaf_of("client-3"))] == [0, tree.leaf_of("client-3").id]
    newcomers = find_scenario("digits-permuted").build(**DIGITS, seed=derive(0, "scenario"))
    assert loaded.assign(newcomers) == {c: tree.leaf_of(c).id for c in newcomers.ids}
    path = loaded.path_of("client-3")
    assert list(path) == [0, tree.leaf_of("client-3").id]
    x = newcomers["client-3"].test.x
    probabilities = loaded.ensemble_of("client-3")(x).exp()
    by_hand = torch.stack([torch.softmax(module(x), -1) for module in path.values()]).mean(0)
    assert torch.allclose(probabilities, by_hand, atol=1e-6)
    other = coterie.run("fedavg", scenario="digits-iid", clients=3, rounds=1)
    with pytest.raises(ConfigError, match="'fedavg' has no path of models"):
        other.path_of("client-0")


def test_cosine_of_updates_that_are_not_finite_is_refused() -> None:
    with pytest.raises(ValueError, match="finite"):
        cosine_matrix(torch.tensor([[1.0, float("nan")], [1.0, 0.0]]))


class Forming(LocalEngine):
    """Notes the kinds of tasks whose replies came with vectors of single clients."""

    def run(self, requests: Sequence[Request], reduce: Reduction | None = None) -> Iterator[ReplyBlock]:
        for block in super().run(requests, reduce):
            self.seen = getattr(self, "seen", []) + [type(requests[0].task)] * any(
                reply.vector is not None for reply in block.replies
            )
            yield block


def test_only_looks_form_the_vectors_of_single_clients() -> None:
    run = run_of(CFL(), opposed((4, 4)), 6)
    engine = Forming(opposed((4, 4)), net)
    server = replace(run.server, engine=engine)
    state = run.method.start(server)
    for t in range(1, 7):
        state, _ = run.method.round(state, t, server)
    assert len(state.tree.leaves()) == 2
    assert HalfUpdates in engine.seen
    assert Train not in engine.seen


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ("cfl:rule=never", "known: benefit, evaluated, paper"),
        ("cfl:rule=paper(eps1=-1)", "rule 'paper', option eps1=-1"),
        ("cfl:rule=paper(linkage=ward)", "rule 'paper', option linkage='ward'"),
        ("cfl:rule=benefit(eps1=1)", "rule 'benefit' has no option 'eps1'"),
        ("cfl:compare=cosine", "expected update, gradient or"),
        ("cfl:eps1=0.4", "has no option 'eps1'"),
    ],
)
def test_bad_options_are_named(spec: str, words: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(words)):
        make_method(spec)


def test_children_start_from_the_clusters_model_with_the_mean_of_their_half_updates() -> None:
    _, state, server, t = until_split(CFL(), opposed((3, 3)))
    root, *children = state.tree.nodes
    assert t == 4
    for child in children:
        halves = Compared().of_halves(child.members, root.model, t, server)
        assert halves.clients == child.members
        assert halves.updates is not None
        norms = torch.stack([Compared().of_halves(federation_ids(state), root.model, t, server).updates.norm(dim=2)])[0]
        longest = norms.median(1, keepdim=True).values
        own = halves.updates.double()
        shrunk = own * (longest[..., None] / own.norm(dim=2, keepdim=True)).clamp_max(1.0)
        expected = root.model.double() + shrunk.mean((0, 1))
        assert torch.allclose(child.model.double(), expected, atol=1e-6)
    assert set(root.evidence) == {"gain", "gain_error", "p_value"}
    assert root.evidence["p_value"] <= 0.05


def federation_ids(state: Any) -> tuple[str, ...]:
    """The clients in the order of the first cluster."""
    return tuple(state.tree.nodes[0].members)


def test_below_full_participation_a_look_asks_only_who_takes_part_and_all_at_one_model() -> None:
    engine = Watched(opposed((6, 6)), net)
    how = make_schedule("constant", Training(lr=0.1, epochs=2, batch_size=20), 40)
    server = Server(engine, how, 5, 40, participation=0.5)
    method = CFL()
    state = method.start(server)
    looks = 0
    for t in range(1, 41):
        engine.asked = []
        state, _ = method.round(state, t, server)
        halves = [r for requests in engine.asked for r in requests if isinstance(r.task, HalfUpdates)]
        assert {request.client for request in halves} <= set(server.participants(t))
        looks += bool(halves)
        if len(state.tree.nodes) > 1:
            break
        assert len({id(request.task.model) for request in halves}) <= 1
    assert looks
    assert len(state.tree.nodes) == 3


class Boastful(LocalEngine):
    """An engine with one client that sends half-updates a million times too long."""

    def run(self, requests: Sequence[Request], reduce: Reduction | None = None) -> Iterator[ReplyBlock]:
        for block in super().run(requests, reduce):
            long = [
                replace(r, vector=1e6 * r.vector)
                if r.client == "g0-0" and r.vector is not None and len(r.vector) == 2 * self.layout.size
                else r
                for r in block.replies
            ]
            yield block._replace(replies=long)


def test_one_half_update_that_is_far_too_long_spoils_no_split() -> None:
    federation = opposed((6, 6))
    how = make_schedule("constant", Training(lr=0.1, epochs=2, batch_size=20), 20)
    server = Server(Boastful(federation, net), how, 5, 20)
    method = CFL()
    state = method.start(server)
    for t in range(1, 21):
        state, _ = method.round(state, t, server)
    leaves = [{federation[c].group for c in leaf.members if c != "g0-0"} for leaf in state.tree.leaves()]
    assert [0] in map(sorted, leaves)
    assert [1] in map(sorted, leaves)
    assert max(float(leaf.model.norm()) for leaf in state.tree.leaves()) < 100


class FirstTwo(SplitRule):
    """A rule of a stranger: in round 2, split off the first two members; join all again three rounds later."""

    watches = True

    def consider(self, memory: Any, seen: LeafRound, t: int, server: Server) -> Look:
        if t != 2 or seen.leaf.parent is not None:
            return Look(memory)
        sides = seen.leaf.members[:2], seen.leaf.members[2:]
        vectors = seen.compared.of_members(seen.leaf.members, seen.leaf.model, t, server, seen.replies)
        branches = [Branch(own, seen.after, sketch(torch.stack([vectors[c] for c in own]))) for own in sides]
        return Look(memory, SplitDecision(tuple(branches), seen.after, {}, "because"))

    def watch(self, memory: Any, parent: Any, children: Any, t: int, server: Server) -> WatchedSplit:
        return WatchedSplit("joined", parent.model, "enough") if t == 5 else WatchedSplit("watching")

    def why_whole(self, memory: Any, server: Server) -> Event:
        return Event("whole", f"the rule remembers {memory}", {})


def test_a_rule_of_a_strangers_splits_and_joins_again() -> None:
    federation = opposed((3, 3))
    run = run_of(CFL(rule=FirstTwo()), federation, 6)
    state, clusters, texts = run.method.start(run.server), [], []
    for t in range(1, 7):
        state, info = run.method.round(state, t, run.server)
        clusters.append(sorted(leaf.id for leaf in state.tree.leaves()))
        texts += [event.text for event in info.events]
        assert sorted(c for leaf in state.tree.leaves() for c in leaf.members) == sorted(federation.ids)
    assert clusters == [[0], [1, 2], [1, 2], [1, 2], [0], [0]]
    assert texts[0] == "cluster 0 splits into 2 and 4: because"
    assert texts[1] == "the parts of cluster 0 are joined again: enough"
    assert texts[2] == "the rule remembers joined"


class Hasty(BenefitRule):  # type: ignore[misc, valid-type]
    """In round 3 it splits the clients by turns, whatever they are."""

    def consider(self, memory: Any, seen: LeafRound, t: int, server: Server) -> Look:
        if t != 3 or seen.leaf.parent is not None:
            return Look(memory)
        branches = tuple(
            Branch(own, seen.after, sketch(torch.eye(len(own), 9))) for own in self.parts(seen.leaf.members)
        )
        return Look(memory, SplitDecision(branches, seen.after, {}, "too early"))

    def parts(self, members: tuple[str, ...]) -> tuple[tuple[str, ...], ...]:
        return members[::2], members[1::2]


def test_a_split_that_is_undone_leaves_the_run_as_if_it_had_never_been() -> None:
    """The cluster trains on beside its parts, by the same seeds: what takes their place again is FedAvg's model."""

    federation = opposed((12,))
    hasty = execute(run_of(CFL(rule=Hasty()), federation, 12))
    plain = execute(run_of(CFL(rule="paper(eps1=1e-30)"), federation, 12))
    rounds = {event.kind: record.round for record in hasty.history for event in record.events}
    assert (rounds["split"], rounds["undone"]) == (3, 3 + FIRST_LOOK)
    assert torch.equal(hasty.models[0], plain.models[0])


def test_members_on_the_wrong_side_of_a_split_change_it_at_the_first_verdict() -> None:
    class Misplacing(Hasty):  # type: ignore[misc, valid-type]
        def parts(self, members: tuple[str, ...]) -> tuple[tuple[str, ...], ...]:
            wrong = {"g0-0", "g1-0"}
            return tuple(tuple(c for c in members if c.startswith(g) == (c not in wrong)) for g in ("g0", "g1"))

    result = execute(run_of(CFL(rule=Misplacing()), opposed((6, 6)), 8))
    moved = {record.round: event.text for record in result.history for event in record.events if event.kind == "moved"}
    assert moved == {7: "2 clients move to another part of cluster 0, which serves them better"}
    assert sorted(sorted({client[:2] for client in own}) for own in result.clusters) == [["g0"], ["g1"]]


@pytest.mark.parametrize(("reproduces", "undone"), [(True, 0), (False, 1)])
def test_a_gain_that_only_shrinks_must_be_sure_in_the_end_where_candidates_need_not_reproduce(
    reproduces: bool, undone: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    rule, gains = Hasty(), iter((0.3, 0.2, 0.1))
    monkeypatch.setattr(Hasty, "reproduces", reproduces)
    monkeypatch.setattr("coterie.methods.splitting.benefit.served", lambda *_: Benefit(next(gains), 0.4, 0.3, 12))
    result = execute(run_of(CFL(rule=rule, fallback=False), opposed((12,)), 12))  # verdicts in rounds 7, 11 and 12
    assert [event.kind for record in result.history for event in record.events].count("undone") == undone
    assert len(result.clusters) == 2 - undone


@pytest.mark.parametrize(("judged", "expected"), [(1, {}), (2, {}), (50, {"g0-0": 0})])
def test_another_model_is_surely_better_by_students_test_over_few_samples(
    judged: int, expected: dict[str, int]
) -> None:
    """A gain of 3.2 standard errors: p is 0.0008 of 50 samples, 0.1 of two, and one shows nothing."""
    values = {"loss": [2.0, 1.0] * 3, "within": [0.1], "judged": judged}

    class Answering:
        def ask_all(self, clients: Sequence[str], task: Any) -> list[Reply]:
            return [Reply(client, 60, None, values) for client in clients]

    root = Node(0, None, ("g0-0",), torch.zeros(3), 0)
    assert surely_better(replace(root, id=1), [root], 0.05, Answering()) == expected  # type: ignore[arg-type]


def test_looks_come_at_ages_that_double_and_spend_a_stated_level() -> None:
    engine = Watched(opposed((8,)), net)
    server = Server(engine, make_schedule("constant", Training(lr=0.1, batch_size=20), 20), 5, 20)
    method, looks = CFL(), []
    state = method.start(server)
    for t in range(1, 21):
        engine.asked = []
        state, _ = method.round(state, t, server)
        if any(isinstance(request.task, HalfUpdates) for requests in engine.asked for request in requests):
            looks.append(t)
    assert looks == [4, 8, 16]
    assert state.memory[0].count == 3
