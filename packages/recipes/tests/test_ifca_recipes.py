"""IFCA's recipes: the table's way of testing, blocks of local models, and a figure from end to end at a small size."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import coterie
from coterie.errors import ConfigError
from coterie.runs import make_config
from coterie_recipes import Study, find_recipe, ifca_figures, ifca_tables, reproduce
from coterie_recipes.ifca_inference import lowest_loss_score, own_group_accuracies, rotated_machines
from coterie_recipes.mixtures import MixtureSizes
from coterie_recipes.runs import kept_run

CONFIG = make_config({"model": "mlp:hidden=16", "workers": 1})
TRAINING: dict[str, Any] = {"model": "mlp:hidden=16", "steps": 10, "batch_size": "full", "lr": 0.5, "rounds": 6}


def column() -> ifca_tables.Column:
    return ifca_tables.Column("digits", 8, 40, 2, "ifca:k=2,init=k-means++", TRAINING, ("1", "2", "3"), 2)


def test_machines_hold_the_whole_test_set_of_every_group() -> None:
    whole = rotated_machines("digits", 4, None, 0, None)
    assert [machine.group for machine in whole] == [0, 1, 2, 3]
    cut = rotated_machines("digits", 4, 50, 0, None)
    each = len(whole.clients[0].test) // 50
    assert len(cut) == 4 * each
    assert {len(machine.test) for machine in cut} == {50}
    a, b = whole.clients[0].test, whole.clients[2].test
    turned = torch.rot90(b.x, 2, dims=(-2, -1)).flatten(1)
    assert sorted(a.x.flatten(1).sum(1).tolist()) == pytest.approx(sorted(turned.sum(1).tolist()))


def test_machines_larger_than_the_test_set() -> None:
    with pytest.raises(ConfigError, match="ask for fewer"):
        rotated_machines("digits", 2, 10**6, 0, None)


def test_each_machine_is_evaluated_by_its_lowest_loss() -> None:
    result = coterie.run("ifca:k=2,init=k-means++", scenario="digits-rotated", clients=8, samples=40, groups=2,
                         workers=1, **TRAINING)  # fmt: skip
    models = torch.stack(list(result.models))
    machines = rotated_machines("digits", 2, 30, 0, None)
    both = lowest_loss_score(models, machines, CONFIG)
    single = [lowest_loss_score(model[None], machines, CONFIG).accuracy for model in models]
    assert both.accuracy > max(single) + 0.1
    assert sum(both.chosen) == len(machines)
    assert both.chosen[0] == both.chosen[1]


def test_local_models_are_evaluated_on_their_own_group() -> None:
    result = coterie.run("local", scenario="digits-rotated", clients=4, samples=60, groups=2, workers=1, **TRAINING)
    machines = rotated_machines("digits", 2, None, 0, None)
    right = own_group_accuracies(result.models, [0, 1, 0, 1], machines, CONFIG)
    crossed = own_group_accuracies(result.models, [1, 0, 1, 0], machines, CONFIG)
    assert len(right) == 4
    assert min(right) > max(crossed) + 0.1


def test_blocks_of_local_clients_change_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    study = Study(tmp_path, workers=1)
    whole = ifca_tables._local(study, column(), 0, 3)
    monkeypatch.setattr(ifca_tables, "LOCAL_BLOCK", 3)
    assert ifca_tables._local(study, column(), 0, 3)["accuracy"] == pytest.approx(whole["accuracy"], abs=1e-6)


def test_a_column_has_every_row_and_its_cells_are_kept(tmp_path: Path) -> None:
    study = Study(tmp_path, seeds=1, workers=1)
    rows = {row.measure: row for row in ifca_tables._rows(study, column())}
    assert study.computed == 4
    assert rows["IFCA adjusted Rand index"].ours == [1.0]
    assert rows["IFCA accuracy %"].ours[0] > rows["global accuracy %"].ours[0]
    assert rows["IFCA accuracy %"].ours[0] > rows["local accuracy %"].ours[0]
    names = ("IFCA", "global", "local", "local, 2 rounds,")
    assert [rows[f"{name} accuracy %"].paper for name in names] == ["1", "2", "3", "3"]
    assert rows["local, 2 rounds, accuracy %"].ours[0] < rows["local accuracy %"].ours[0]
    ifca_tables._rows(study, column())
    assert study.computed == 4
    more = ifca_tables._rows(study, replace(column(), published={"random start": "ifca:k=2,init=random"}))
    assert study.computed == 5  # the random start only
    assert [row.paper for row in more if row.measure == "IFCA, random start, accuracy %"] == ["1"]


def test_a_kept_run_is_evaluated_once_at_its_end(tmp_path: Path) -> None:
    study = Study(tmp_path, workers=1)
    result = kept_run(study, "run", column().config(study, 0))
    assert ["accuracy" in record.metrics for record in result.history] == [False] * 5 + [True]


def test_a_figure_from_end_to_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tiny = MixtureSizes(2, 10, 20, 8, 0.0, 0.0)
    monkeypatch.setattr(ifca_figures, "smaller", lambda sizes: tiny._replace(
        separation=sizes.separation, sigma=sizes.sigma))  # fmt: skip
    monkeypatch.setattr(ifca_figures, "TRIALS", 2)
    monkeypatch.setattr(ifca_figures, "SEPARATIONS", (0.1, 1.0))
    monkeypatch.setattr(ifca_figures, "SIGMAS", (0.0, 0.1))
    reproduce("ifca-fig2a", Study(tmp_path / "out"))
    results = json.loads((tmp_path / "out" / "results.json").read_text())
    assert len(results["rows"]) == 1 * 2 * 2
    assert all(0 <= row["ours"]["mean"] <= 1 for row in results["rows"])
    assert (tmp_path / "out" / "fig2a.png").stat().st_size > 1000


@pytest.mark.parametrize(
    "name",
    ["ifca-fig2a", "ifca-fig2b", "ifca-fig2c", "ifca-fig2d", "ifca-table1-mnist", "ifca-table1-cifar", "ifca-table2"],
)
def test_recipes_are_known(name: str) -> None:
    assert find_recipe(name).summary.startswith("IFCA")
