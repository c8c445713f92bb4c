"""The ready ServerApp: it does a run, keeps it in a folder, and a new one resumes where a killed one stopped."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from flower_trials import MODEL, QUICK, TRAINING, assert_same, both, digits, grid_of
from flwr.app import Context, RecordDict

import coterie
from coterie.errors import ConfigError, RunError
from coterie.federation import Federation
from coterie.flower import InProcessGrid, client_app, server_app
from coterie.flower.server import read_options, run_on
from coterie.runs import Result
from coterie.runs.folder import RunFolder
from coterie.runs.records import RoundRecord

CFL = "cfl:rule=paper(eps1=10,eps2=0.001,gamma_max=0.1,wait=3)"


@pytest.fixture(scope="module")
def federation() -> Federation:
    return digits()


class Killed(BaseException):
    """Stands for a kill: nothing in the program catches it."""


class Follower:
    """Follows a run, and kills it after a round if told to."""

    def __init__(self, kill_after: int | None = None) -> None:
        self.kill_after = kill_after
        self.began = -1
        self.result: Result | None = None

    def on_start(self, run: Any, done: int) -> None:
        self.began = done

    def on_event(self, t: int, event: Any) -> None:
        pass

    def on_round(self, record: RoundRecord) -> None:
        if record.round == self.kill_after:
            raise Killed

    def on_end(self, result: Result) -> None:
        self.result = result


def start(grid: InProcessGrid, out: Path | None, run_config: dict[str, Any], follower: Follower, **given: Any) -> None:
    app = server_app(TRAINING | QUICK | given, out, callbacks=[follower])
    app(grid, Context(1, 1, {}, RecordDict(), run_config=run_config))


def test_options_come_from_the_run_configuration_with_hyphens_and_empty_ones_are_left_out(
    federation: Federation, tmp_path: Path
) -> None:
    follower = Follower()
    config = {"method": "fedavg", "rounds": 2, "batch-size": 20, "min-nodes": 6, "lr": "", "scenario": ""}
    start(grid_of(federation), tmp_path / "run", config, follower, rounds=9)
    assert follower.result is not None
    stored = RunFolder(tmp_path / "run").config()
    assert (stored["rounds"], stored["batch_size"], stored["lr"]) == (2, 20, 0.1)
    assert len(follower.result.history) == 2
    here = coterie.run("fedavg", federation, **TRAINING, rounds=2, batch_size=20, workers=1)
    assert torch.allclose(here.models[0], follower.result.models[0], rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("method", [CFL, "fedcuau:clusters=2", "ifca:k=2"])
def test_a_new_server_on_new_nodes_goes_on_with_the_same_clusters(
    method: str, federation: Federation, tmp_path: Path
) -> None:
    whole = run_on(grid_of(federation), TRAINING | QUICK | {"method": method, "rounds": 6})
    config = {"method": method, "rounds": 6}
    with pytest.raises(Killed):
        start(grid_of(federation), tmp_path / "run", config, Follower(kill_after=4))
    again = Follower()
    start(grid_of(federation), tmp_path / "run", config, again)  # a new grid: all node ids and states are new
    assert again.began == 4
    assert again.result is not None
    assert again.result.clusters == whole.clusters
    for ours, theirs in zip(whole.models, again.result.models, strict=True):
        assert torch.allclose(ours, theirs, rtol=1e-4, atol=1e-6)
    assert [record.round for record in again.result.history] == [1, 2, 3, 4, 5, 6]


def test_a_resumed_run_takes_in_who_is_there_now(federation: Federation, tmp_path: Path) -> None:
    config = {"method": CFL, "rounds": 6}
    with pytest.raises(Killed):
        start(grid_of(federation, federation.ids[:5]), tmp_path / "run", config, Follower(kill_after=4))
    again = Follower()
    start(grid_of(federation, federation.ids[1:]), tmp_path / "run", config, again)
    assert again.result is not None
    assert sorted(c for members in again.result.clusters for c in members) == sorted(federation.ids[1:])
    kinds = [event.kind for event in again.result.history[4].events]
    assert {"left", "joined"} <= set(kinds)


def test_private_layers_are_found_again_by_a_new_run_where_the_nodes_keep_them(
    federation: Federation, tmp_path: Path
) -> None:
    def grid() -> InProcessGrid:
        configs = [{"client": client, "state-dir": str(tmp_path / "states")} for client in federation.ids]
        return InProcessGrid(client_app(MODEL, federation), node_configs=configs)

    config = {"method": "fedper", "rounds": 4}
    whole = run_on(grid(), TRAINING | QUICK | config)
    with pytest.raises(Killed):
        start(grid(), tmp_path / "run", config, Follower(kill_after=2))
    again = Follower()
    start(grid(), tmp_path / "run", config, again)
    assert again.result is not None
    assert [row.loss for row in again.result.clients] == pytest.approx([row.loss for row in whole.clients])


def test_every_round_is_checkpointed_and_the_state_before_the_first_too(federation: Federation, tmp_path: Path) -> None:
    with pytest.raises(Killed):
        start(grid_of(federation), tmp_path / "run", {"rounds": 3}, Follower(kill_after=1))
    checkpoint = RunFolder(tmp_path / "run").checkpoint()
    assert checkpoint is not None
    assert checkpoint.round == 1

    class AtOnce(Follower):
        def on_start(self, run: Any, done: int) -> None:
            raise Killed

    with pytest.raises(Killed):
        start(grid_of(federation), tmp_path / "other", {"rounds": 3}, AtOnce())
    checkpoint = RunFolder(tmp_path / "other").checkpoint()
    assert checkpoint is not None
    assert checkpoint.round == 0


def test_another_configuration_or_a_finished_run_is_refused(federation: Federation, tmp_path: Path) -> None:
    with pytest.raises(Killed):
        start(grid_of(federation), tmp_path / "run", {"rounds": 3}, Follower(kill_after=1))
    with pytest.raises(RunError, match="begun with lr"):
        start(grid_of(federation), tmp_path / "run", {"rounds": 3, "lr": 0.5}, Follower())
    start(grid_of(federation), tmp_path / "run", {"rounds": 3}, Follower())
    with pytest.raises(RunError, match="already complete"):
        start(grid_of(federation), tmp_path / "run", {"rounds": 3}, Follower())


def test_hidden_groups_are_for_the_metrics_of_a_trial_only(federation: Federation) -> None:
    options = TRAINING | QUICK | {"method": CFL, "rounds": 5}
    quiet = run_on(grid_of(federation), options)
    trial = run_on(grid_of(federation, run_config={"trial-groups": True}), options | {"trial_groups": True})
    assert quiet.summary.ari is None
    assert trial.summary.ari is not None
    assert trial.clusters == quiet.clusters


def test_a_node_that_joins_in_mid_run_is_in_the_result(federation: Federation) -> None:
    grid = grid_of(federation, federation.ids[:4])

    class Doorman(Follower):
        def on_round(self, record: RoundRecord) -> None:
            if record.round == 2:
                grid.join({"client": federation.ids[4]})

    follower = Doorman()
    start(grid, None, {"rounds": 4}, follower)
    assert follower.result is not None
    assert follower.result.summary.clients == 5
    assert [[cluster.members for cluster in record.clusters] for record in follower.result.history] == [
        [4],
        [4],
        [5],
        [5],
    ]
    assert follower.result.history[2].assignment == {federation.ids[4]: 0}


def test_the_scenario_gives_the_defaults_as_it_does_here() -> None:
    federation = digits()
    here, there = both("fedavg", federation, 1, evaluate_every=1)
    assert_same(here, there)
    config, network = read_options({"scenario": "digits-permuted", "min_nodes": 3})
    assert (config.scenario, network.min_nodes) == ("digits-permuted", 3)


def test_bad_options_are_named(federation: Federation) -> None:
    for options, named in (
        ({"precision": "float64"}, "float32"),
        ({"min_nodes": 0}, "min_nodes"),
        ({"min_nods": 2}, "min_nods"),
        ({"method": "cfk"}, "cfl"),
        ({"timeout": -1}, "timeout"),
    ):
        with pytest.raises(ConfigError, match=named):
            run_on(grid_of(federation), options)
    with pytest.raises(RunError, match=r"6 clients came .* 7 are needed"):
        run_on(grid_of(federation), TRAINING | QUICK | {"min_nodes": 7, "wait": 0.1})
