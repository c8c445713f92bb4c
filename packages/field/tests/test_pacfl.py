"""PACFL: what a client sends, whatever the signs of its singular vectors; the groups that it finds; what it shows."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import coterie
from coterie.data.scenarios import find_scenario
from coterie.errors import ConfigError
from coterie.federation import Client, Federation, Split
from coterie.methods import make_method
from coterie.runs.assemble import assemble
from coterie.runs.config import make_config
from coterie.tasks import ClientContext, Reply
from coterie_field import PACFL
from coterie_field.agglomerative import agglomerate
from coterie_field.pacfl import opened
from coterie_field.subspaces import Subspaces, leading_directions

HALVES: dict[str, Any] = {"scenario": "digits-halves", "clients": 8, "groups": 2, "samples": 40, "seed": 1}
SHORT: dict[str, Any] = HALVES | {"rounds": 2, "workers": 1, "model": "mlp:hidden=8"}
ANGLES = np.array([
    [0.0, 4.0, 18.0, 20.0, 9.0],
    [4.0, 0.0, 17.0, 21.0, 13.0],
    [18.0, 17.0, 0.0, 6.0, 12.0],
    [20.0, 21.0, 6.0, 0.0, 16.0],
    [9.0, 13.0, 12.0, 16.0, 0.0],
])  # fmt: skip
"""Degrees between five clients, for which the authors' own `hierarchical_clustering` was run (with numpy below 2)."""


@pytest.mark.parametrize(
    ("linkage", "threshold", "authors"),
    [
        ("complete", 5.0, [[0, 1], [2], [3], [4]]),
        ("complete", 12.0, [[0, 1], [2, 3], [4]]),
        ("complete", 13.5, [[0, 1, 4], [2, 3]]),
        ("single", 8.0, [[0, 1], [2, 3], [4]]),
        ("single", 9.5, [[0, 1, 4], [2, 3]]),
        ("single", 12.5, [[0, 1, 2, 3, 4]]),
    ],
)
def test_clusters_of_a_matrix_are_the_authors(linkage: Any, threshold: float, authors: list[list[int]]) -> None:
    labels = agglomerate(ANGLES, linkage, threshold=threshold).tolist()
    found = [[i for i, label in enumerate(labels) if label == j] for j in range(max(labels) + 1)]
    assert sorted(found) == sorted(map(sorted, authors))


def answer(x: torch.Tensor, y: torch.Tensor, **options: Any) -> Reply:
    part = Split(x, y)
    trainer: Any = type("Plain", (), {"masked": False})()
    return Subspaces(**({"p": 2} | options)).answer(ClientContext(Client("a", part, part, part), {}), trainer)


def test_a_client_sends_a_basis_of_each_class_it_holds() -> None:
    """Class 3 lies along e1 and e2 with lengths 5 and 1, class 7 along e3 alone."""
    x = torch.tensor([[5.0, 0, 0, 0], [0, 1.0, 0, 0], [0, 0, 2.0, 0]])
    y = torch.tensor([3, 3, 7])
    by_class = answer(x, y)
    assert by_class.values["ranks"] == [2.0, 1.0]
    torch.testing.assert_close(by_class.values["bases"].abs(), torch.eye(4)[:3])
    whole = answer(x, y, per_class=False)
    assert whole.values["ranks"] == [2.0]
    torch.testing.assert_close(whole.values["bases"].abs(), torch.eye(4)[[0, 2]])
    assert answer(x, y.double(), p=3).values["ranks"] == [3.0]  # a regression has no classes
    assert leading_directions(torch.zeros(3, 4), 2).shape == (1, 4)


@pytest.mark.parametrize("per", ["class", "client"])
@pytest.mark.parametrize("measure", ["smallest", "sum"])
def test_finds_the_groups_by_the_threshold_alone(per: str, measure: str) -> None:
    result = coterie.run(f"pacfl:per={per},measure={measure}", **SHORT)
    assert result.summary.ari == 1.0
    assert result.history[0].events[0].text == "principal angles: clusters of [4, 4]"


def test_signs_of_singular_vectors_do_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    """With some clients' vectors turned round, the angles and clusters are the same."""
    prepared = assemble(make_config(SHORT))[0]
    plain = PACFL().start(prepared.server)
    honest = Subspaces.answer

    def turned(self: Subspaces, context: Any, trainer: Any) -> Reply:
        reply = honest(self, context, trainer)
        signs = torch.tensor([(-1.0) ** (i + int(context.client.id[-1])) for i in range(len(reply.values["bases"]))])
        return Reply(
            reply.client, reply.samples, values={**reply.values, "bases": signs[:, None] * reply.values["bases"]}
        )

    monkeypatch.setattr(Subspaces, "answer", turned)
    other = PACFL().start(prepared.server)
    np.testing.assert_allclose(plain.distances, other.distances, atol=1e-4)
    assert plain.clusters.cluster_of == other.clusters.cluster_of


def test_bytes_are_the_bases_then_those_of_fedavg() -> None:
    """Five classes per client of digits-halves, three directions each, 64 inputs, and the five ranks."""
    result = coterie.run("pacfl:clusters=2", **SHORT)
    first, second = (record.bytes.up for record in result.history)
    assert second == 8 * (4 * result.layout.size + 8)
    assert first - second == 8 * 4 * (5 * 3 * 64 + 5)


@pytest.mark.parametrize("per", ["class", "client"])
def test_newcomers_are_placed_by_the_same_angles(per: str) -> None:
    everybody = find_scenario("digits-halves").build(clients=12, groups=2, seed=2)
    known, newcomers = everybody.subset(everybody.ids[:8]), everybody.subset(everybody.ids[8:])
    result = coterie.run(f"pacfl:clusters=2,per={per}", known, model="mlp:hidden=4", rounds=1, workers=1)
    group = {row.cluster: known[row.client].group for row in result.clients}
    assert {client: group[j] for client, j in result.assign(newcomers).items()} == {c.id: c.group for c in newcomers}
    unlabelled = {client.id: client.train.x for client in newcomers}
    if per == "client":
        assert result.assign(unlabelled) == result.assign(newcomers)
    else:
        with pytest.raises(ConfigError, match="by their labels too"):
            result.assign(unlabelled)


def test_clients_whose_bases_do_not_fit_are_left_out_of_the_clustering() -> None:
    torn = Reply("a", 5, values={"bases": torch.eye(3), "ranks": [2.0, 2.0]})
    assert opened(torn) is None
    fine = opened(Reply("a", 5, values={"bases": torch.eye(3), "ranks": [2.0, 1.0]}))
    assert fine is not None
    assert [len(basis) for basis in fine] == [2, 1]


def test_secure_sums_would_hide_the_updates_and_not_the_bases() -> None:
    with pytest.raises(ConfigError, match="would go out in clear"):
        coterie.run("pacfl", secure_sums=True, **SHORT)


def test_more_clusters_than_clients_and_one_client() -> None:
    with pytest.raises(ConfigError, match="clusters=9 with 8 clients"):
        make_method("pacfl:clusters=9").start(assemble(make_config(SHORT))[0].server)
    alone = Federation(find_scenario("digits-halves").build(clients=2, samples=40, seed=1).clients[:1])
    assert len(coterie.run("pacfl", alone, model="mlp:hidden=4", rounds=1, workers=1).clusters) == 1
