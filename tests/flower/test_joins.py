"""Clients that come and go between rounds: every method places them, and every client has one model at any time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pytest
import torch
from flower_trials import MODEL, digits

from coterie.clustering.sketch import sketch
from coterie.engines import LocalEngine
from coterie.federation import Federation
from coterie.methods import Method, Server, make_method
from coterie.methods.base import Assignment
from coterie.methods.splitting.candidates import Looks
from coterie.methods.tree import Branch
from coterie.runs import metrics
from coterie.runs.assemble import make_architecture
from coterie.snapshot import load_snapshot, save_snapshot
from coterie.tasks.base import Reduction, ReplyBlock, Request
from coterie.trainers.base import Training
from coterie.trainers.schedules import make_schedule
from method_specs import METHODS, SPECS

SPECS = SPECS | {"oneshot": "oneshot:warmup_rounds=2", "flhc": "flhc:warmup_rounds=2", "clove": "clove:stable_after=2"}
"""Some do something else in later rounds, while clients come and go."""


class ChangingEngine(LocalEngine):
    """A machine on which clients come and go, and on which some do not answer."""

    mute: frozenset[str] = frozenset()

    def admit(self, ids: Sequence[str]) -> None:
        self.clients = tuple(client for client in self.federation.ids if client in ids)
        self.samples = {client: len(self.federation[client].train) for client in self.clients}

    def run(self, requests: Sequence[Request], reduce: Reduction | None = None) -> Iterator[ReplyBlock]:
        kept = [i for i, request in enumerate(requests) if self._heard(request)]
        return super().run([requests[i] for i in kept], None if reduce is None else reduce.at(kept))

    def _heard(self, request: Request) -> bool:
        return request.client not in self.mute and request.client in self.clients


def server_of(federation: Federation, rounds: int = 6) -> tuple[Server, ChangingEngine]:
    engine = ChangingEngine(federation, make_architecture(MODEL, federation))
    return Server(engine, make_schedule("constant", Training(lr=0.1, epochs=2), rounds), 5, rounds), engine


def cluster_of(assignment: Assignment) -> dict[str, int]:
    return {client: i for i, members in enumerate(assignment.members) for client in members}


@pytest.fixture(scope="module")
def federation() -> Federation:
    return digits(8)


@pytest.mark.parametrize("name", METHODS)
def test_every_client_has_one_model_while_clients_join_leave_return_and_fail(name: str, federation: Federation) -> None:
    method, ids = make_method(SPECS.get(name, name)), federation.ids
    server, engine = server_of(federation)
    engine.admit(ids[:5])
    state = method.start(server)
    for t in range(1, 7):
        if t == 2:
            engine.admit(ids[:6])
        if t == 4:
            engine.admit(ids[1:7])
            engine.mute = frozenset({ids[6]})  # a newcomer that says nothing at first
        if t == 5:
            engine.mute = frozenset()
        if t == 6:
            engine.admit(ids[:7])
        state, _ = method.round(state, t, server)
        assignment = method.assignment(state, server)
        metrics.check_partition(assignment.members, server.clients)
        assert all(torch.isfinite(model).all() for model in assignment.models)
        assert len(metrics.score_clients(assignment, engine)) == len(engine.clients) - len(engine.mute)
        # A restarted server may find other clients than it left.
        engine.admit(ids[2:])
        metrics.check_partition(method.assignment(state, server).members, server.clients)
        engine.admit({1: ids[:5], 2: ids[:6], 3: ids[:6], 4: ids[1:7], 5: ids[1:7], 6: ids[:7]}[t])


@pytest.mark.parametrize("name", METHODS)
def test_a_state_with_newcomers_survives_a_snapshot(name: str, federation: Federation, tmp_path: Path) -> None:
    method = make_method(SPECS.get(name, name))
    server, engine = server_of(federation)
    engine.admit(federation.ids[:6])
    state = method.start(server)
    for t in (1, 2):
        state, _ = method.round(state, t, server)
    engine.admit(federation.ids)
    state, _ = method.round(state, 3, server)
    path = tmp_path / "state.safetensors"
    save_snapshot(state, path)
    kept, after = engine.client_states(), []
    for begin in (state, load_snapshot(path)):
        engine.restore_client_states(kept)
        after.append(method.assignment(method.round(begin, 4, server)[0], server))
    assert [list(m) for m in after[0].members] == [list(m) for m in after[1].members]
    assert all(torch.equal(a, b) for a, b in zip(after[0].models, after[1].models, strict=True))


@pytest.mark.parametrize("name", ["ifca", "oneshot", "flhc"])
def test_a_newcomer_joins_the_cluster_of_its_group(name: str, federation: Federation) -> None:
    options = {
        "ifca": "k=2,init=k-means++",
        "oneshot": "warmup_rounds=4",
        "flhc": "metric=cosine,linkage=average,warmup_rounds=6",
    }
    method = make_method(f"{name}:{options[name]}")
    server, engine = server_of(federation, 12)
    early, late = federation.ids[:6], federation.ids[6:]
    engine.admit(early)
    state = method.start(server)
    for t in range(1, 9):
        state, _ = method.round(state, t, server)
    before = cluster_of(method.assignment(state, server))
    group = {client.id: client.group for client in federation}
    assert len({(before[c], group[c]) for c in early}) == 2
    engine.admit(federation.ids)
    for t in (9, 10):
        state, _ = method.round(state, t, server)
    after = cluster_of(method.assignment(state, server))
    for client in late:
        assert {group[other] for other in after if after[other] == after[client]} == {group[client]}


@pytest.mark.parametrize("name", ["flt", "pca-kmeans-hc"])
def test_a_newcomer_is_placed_by_its_inputs_and_moves_nobody(name: str) -> None:
    federation = digits(9, 3, "flt-s1-digits")
    method = make_method(SPECS[name].replace("clusters=2", "clusters=3"))
    server, engine = server_of(federation)
    engine.admit(federation.ids[:6])
    state, _ = method.round(method.start(server), 1, server)
    before = state.relatives
    engine.admit(federation.ids)
    engine.mute = frozenset(federation.ids[6:])
    unchanged, _ = method.round(state, 2, server)
    assert unchanged.relatives.ids == before.ids  # nobody new answered: all go on, and are asked again
    engine.mute = frozenset()
    state, _ = method.round(unchanged, 3, server)
    assert state.relatives.ids == federation.ids
    assert (state.relatives.related[:6, :6] == before.related).all()
    np.testing.assert_array_equal(state.relatives.positions[:6], before.positions)  # nan where centroids are missing
    for late in (6, 7, 8):  # a member of exactly one of the clusters that were there
        assert any((state.relatives.related[late, :6] == row).all() for row in before.related)


def test_a_newcomer_of_cfl_that_gives_no_update_is_asked_again(federation: Federation) -> None:
    method = make_method("cfl")
    server, engine = server_of(federation)
    engine.admit(federation.ids[:5])
    state, _ = method.round(method.start(server), 1, server)
    # A split tree, so that the newcomer has somewhere to be sent.
    tree = state.tree
    leaf = tree.leaves()[0]
    edges = torch.randn(5, len(leaf.model))
    sides = [
        Branch(members, leaf.model, sketch(edges[: len(members)])) for members in (leaf.members[:2], leaf.members[2:])
    ]
    split = type(state)(tree.split(0, sides, 1, {}), {1: Looks(), 2: Looks()}, {}, {})
    engine.admit(federation.ids[:6])
    engine.mute = frozenset({federation.ids[5]})
    after, info = method.round(split, 2, server)
    assert [event.kind for event in info.events] == ["unplaced"]
    given = method.assignment(after, server)
    assert federation.ids[5] in given.members[1]  # the larger one serves it meanwhile
    assert all(federation.ids[5] not in node.members for node in after.tree.leaves())
    engine.mute = frozenset()
    after, info = method.round(after, 3, server)
    assert [event.kind for event in info.events] == ["joined"]
    assert any(federation.ids[5] in node.members for node in after.tree.leaves())


def test_a_newcomer_of_fedcuau_joins_the_last_cluster(federation: Federation) -> None:
    method: Method = make_method("fedcuau:clusters=2")
    server, engine = server_of(federation)
    engine.admit(federation.ids[:6])
    state, _ = method.round(method.start(server), 1, server)
    engine.admit(federation.ids)
    state, info = method.round(state, 2, server)
    assert [event.kind for event in info.events] == ["joined"]
    assert {state.cluster[client] for client in federation.ids[6:]} == {1}
    assert [cluster.members for cluster in info.clusters] == [3, 5]
