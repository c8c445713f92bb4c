"""Declared groups: FedAvg of each group alone, where the declaration may come from, and who is in no group."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import coterie
from coterie.data.scenarios import find_scenario
from coterie.errors import ConfigError, DataError
from coterie.methods import Groups, Server, make_method
from coterie.runs.assemble import assemble
from coterie.runs.config import make_config

SCENARIO: dict[str, Any] = {
    "scenario": "digits-permuted", "clients": 6, "samples": 40, "groups": 2, "model": "mlp:hidden=8", "rounds": 3,
    "workers": 1,
}  # fmt: skip
BY_TRUTH = {f"client-{i}": "even" if i % 2 == 0 else "odd" for i in range(6)}


def server_of(**more: Any) -> Server:
    return assemble(make_config(SCENARIO | more))[0].server


def test_each_group_trains_as_fedavg_would_train_it_alone() -> None:
    how: dict[str, Any] = {"model": "mlp:hidden=8", "rounds": 3, "workers": 1, "lr": 0.1}
    federation = find_scenario("digits-permuted").build(clients=6, samples=40, groups=2, seed=1)
    result = coterie.run(Groups(of=BY_TRUTH), federation, **how)
    assert result.summary.ari == 1.0
    for members in result.clusters:
        alone = coterie.run("fedavg", federation.subset(members), **how)
        torch.testing.assert_close(result.vector_of(members[0]), alone.models[0], rtol=0, atol=1e-6)


def test_the_hidden_groups_are_not_read() -> None:
    """A declaration across the hidden groups is followed all the same."""
    halves = {client: int(i >= 3) for i, client in enumerate(BY_TRUTH)}
    result = coterie.run(Groups(of=halves), **SCENARIO)
    assert sorted(result.clusters) == [["client-0", "client-1", "client-2"], ["client-3", "client-4", "client-5"]]
    assert result.history[0].events[0].text == "groups as declared: 0 3, 1 3"


def test_a_table_declares_groups_by_client_or_by_file(tmp_path: Path) -> None:
    rows = "".join(f"{client},{group}\n" * 2 for client, group in BY_TRUTH.items())
    (tmp_path / "all.csv").write_text("site,region\n" + rows)
    for client, group in BY_TRUTH.items():
        (tmp_path / f"{client}.tsv").write_text(f"age\tregion\n1\t{group}\n2\t{group}\n")
    by_column = make_method(f"groups:file={tmp_path / 'all.csv'},client_column=site,column=region")
    by_file = make_method(f"groups:file={tmp_path}/*.tsv,client_column=none,column=region")
    expected = Groups(of=BY_TRUTH).start(server_of())
    for method in (by_column, by_file):
        state = method.start(server_of())
        assert state.declared == expected.declared
        assert state.names == ("even", "odd")
        assert state.clusters.cluster_of == expected.clusters.cluster_of


def test_clients_that_nobody_declared_join_by_loss_from_the_second_round_on() -> None:
    server = server_of(lr=0.5, steps=20)
    method = Groups(of={"client-0": "even", "client-1": "odd", "client-9": "far away"})
    state = method.start(server)
    assert len(state.clusters.models) == 2  # nobody is far away yet
    state, _ = method.round(state, 1, server)
    assert set(state.clusters.cluster_of) == {"client-0", "client-1"}
    for t in (2, 3):
        state, _ = method.round(state, t, server)
    assert {client: state.names[j] for client, j in state.clusters.cluster_of.items()} == BY_TRUTH


def test_newcomers_go_to_their_declared_group_and_others_by_loss() -> None:
    server = server_of(lr=0.5, steps=20)
    method = Groups(of=BY_TRUTH | {"client-3": "even", "client-4": "nobody's"})
    state = method.start(server)
    for t in (1, 2, 3):
        state, _ = method.round(state, t, server)
    even, nobodys, odd = (state.names.index(name) for name in ("even", "nobody's", "odd"))
    assert method.place(state, ["client-3", "client-4"], server) == {"client-3": even, "client-4": nobodys}
    undeclared = type(state)(state.clusters, state.names, {"client-3": "a group without a model"})
    assert method.place(undeclared, ["client-5", "client-3"], server)["client-5"] == odd


@pytest.mark.parametrize(
    ("method", "words"),
    [
        (Groups(), "needs the declared groups: give file=groups.csv"),
        (Groups(of={"client-0": 1}, file="groups.csv"), "one of the two, not both"),
        (Groups(of={"ward": 1}), r"declared for ward, .*client-0, client-1, client-2.*use the ids"),
    ],
)
def test_what_is_not_a_declaration(method: Groups, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        method.start(server_of())


def test_a_client_has_one_group(tmp_path: Path) -> None:
    table = tmp_path / "groups.csv"
    table.write_text("client,group\nclient-0,a\nclient-0,b\n")
    with pytest.raises(DataError, match="'client-0' has the groups a, b in column 'group': give it one"):
        Groups(file=str(table)).start(server_of())
    table.write_text("client,gruop\nclient-0,a\n")
    with pytest.raises(DataError, match="no column 'group' for the group: did you mean 'gruop'"):
        Groups(file=str(table)).start(server_of())
    with pytest.raises(ConfigError, match=r"of='a': expected \{text: text or whole number, …\} or none"):
        make_method("groups:of=a")
