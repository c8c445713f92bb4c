"""Newcomers without labels: placed where inputs differ, not placed where only labels do, and an alarm for strangers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import coterie
from coterie.cli.main import main
from coterie.data.scenarios import find_scenario
from coterie.errors import ConfigError, DataError
from coterie.federation import Federation
from coterie.methods import Groups
from coterie.runs import Result
from coterie_inference.unlabelled import FEWEST, LEVEL, judged

FOUNDERS = 20


def split(scenario: str, clients: int = 30, founders: int = FOUNDERS) -> tuple[Federation, Federation]:
    everybody = find_scenario(scenario).build(clients=clients, groups=2, samples=60, seed=1)
    return everybody.subset(everybody.ids[:founders]), everybody.subset(everybody.ids[founders:])


def trained(known: Federation, out: Path | None = None, **more: Any) -> Result:
    """One round with declared groups: what is tested does not look at models."""
    method = Groups(of={client.id: str(client.group) for client in known})
    return coterie.run(method, known, model="mlp:hidden=8", rounds=1, out=out, **more)


def inputs_of(newcomers: Federation) -> dict[str, torch.Tensor]:
    return {client.id: client.train.x for client in newcomers}


def cluster_of_group(result: Result, known: Federation) -> dict[int | None, int]:
    return {known[row.client].group: row.cluster for row in result.clients}


def test_where_inputs_differ_newcomers_find_their_cluster_and_strangers_are_named() -> None:
    known, newcomers = split("digits-rotated")
    result = trained(known)
    expected = cluster_of_group(result, known)
    fits = result.fits(inputs_of(newcomers), known)
    right = [fits[client.id].cluster == expected[client.group] for client in newcomers]
    assert sum(right) >= 9
    assert {fit.reason for fit in fits.values() if fit.cluster == 0} == {"fits cluster 0 by its inputs"}
    mirrored = {client: x.flip(-1) for client, x in inputs_of(newcomers).items()}
    strange = result.fits(mirrored, known)
    assert all(fit.alarm and fit.cluster is None for fit in strange.values())
    assert "fits no cluster: its inputs are not like those of any (p = 0.048)" in str(next(iter(strange.values())))


def test_where_only_labels_differ_inputs_do_not_say() -> None:
    known, newcomers = split("digits-permuted")
    fits = trained(known).fits(inputs_of(newcomers), known)
    assert sum(fit.cluster is None and not fit.alarm for fit in fits.values()) >= 9
    assert "fits clusters 0, 1 alike by its inputs: give labels too" in {fit.reason for fit in fits.values()}


def test_labels_are_not_looked_at() -> None:
    known, newcomers = split("digits-rotated")
    result = trained(known)
    one = newcomers.clients[0].train
    alone, labelled = result.fits(one.x, known), result.fits((one.x, one.y), known)
    assert alone == labelled
    assert list(alone) == ["newcomer"]


def test_one_model_has_an_alarm_too() -> None:
    known, newcomers = split("digits-permuted")
    result = coterie.run("fedavg", known, model="mlp:hidden=8", rounds=1)
    fits = result.fits(inputs_of(newcomers), known)
    assert sum(fit.cluster == 0 for fit in fits.values()) >= 9
    assert all(fit.alarm for fit in result.fits({"new": 1 - newcomers.clients[0].train.x}, known).values())


def test_too_few_clients_cannot_be_sure() -> None:
    known, newcomers = split("digits-rotated", clients=20, founders=FEWEST - 1)
    fit = trained(known).fits(newcomers.clients[0].train.x, known)["newcomer"]
    assert fit.cluster is None
    assert fit.reason == "18 clients that share a cluster are too few to be 95% sure by inputs, 19 are needed"


def test_the_fewest_clients_reach_the_level_and_one_fewer_do_not() -> None:
    rows, far = np.arange(float(FEWEST))[:, None] / FEWEST, np.array([[100.0]])
    assert judged(rows, [0] * FEWEST, far, ["new"])["new"].p_far == pytest.approx(LEVEL)
    assert judged(rows[1:], [0] * (FEWEST - 1), far, ["new"])["new"].p_far > LEVEL


def test_a_client_alone_in_its_cluster_is_no_measure() -> None:
    line = np.concatenate([np.arange(10.0), np.arange(10.0) + 100, [500.0]])[:, None]
    found = judged(line, [0] * 10 + [1] * 10 + [2], np.array([[104.0], [300.0], [499.0]]), ["new", "far", "beside"])
    assert found["new"].cluster == 1
    assert found["far"].alarm
    assert found["beside"].cluster == 2
    assert found["new"].p_values[0] == pytest.approx(1 / 21)


def test_clusters_keep_their_ids() -> None:
    rows = np.concatenate([np.arange(10.0), np.arange(10.0) + 100])[:, None]
    fit = judged(rows, [7] * 10 + [3] * 10, np.array([[104.5]]), ["new"])["new"]
    assert fit.cluster == 3
    assert set(fit.p_values) == {3, 7}


def test_a_run_finds_its_clients_again_and_assign_uses_their_inputs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, order = tmp_path / "run", {"clients": FOUNDERS, "groups": 2, "samples": 60, "seed": 1}
    known = find_scenario("digits-rotated").build(**order)
    method = f"groups:of={ {client.id: str(client.group) for client in known} }"
    result = coterie.run(
        method, scenario="digits-rotated", clients=FOUNDERS, groups=2, samples=60, seed=1, model="mlp:hidden=8",
        rounds=1, out=folder,
    )  # fmt: skip
    _, newcomers = split("digits-rotated")
    inputs = inputs_of(newcomers)
    fits = result.fits(inputs)
    assert fits == coterie.load(folder).fits(inputs)
    placed = {client: x for client, x in inputs.items() if fits[client].cluster is not None}
    assert result.assign(placed) == {client: fits[client].cluster for client in placed}
    with pytest.raises(ConfigError, match="client 'new' has no labels, and fits no cluster"):
        result.assign({"new": next(iter(inputs.values())).flip(-1)})
    np.savez(tmp_path / "new.npz", x=next(iter(placed.values())).numpy())
    main(["assign", str(folder), str(tmp_path / "new.npz")])
    assert (
        capsys.readouterr().out.strip()
        == f"new: fits cluster {next(iter(result.assign(placed).values()))} by its inputs"
    )


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"privacy": "permutation"}, "moments of the clients' inputs would go out in clear beside masked updates"),
        ({"secure_sums": True}, "moments of the clients' inputs would go out in clear beside secure sums"),
        ({"dp_noise": 1.0, "dp_clip": 1.0}, "replies of single clients to InputMoments have no noise"),
    ],
)
def test_what_is_kept_from_the_server_is_not_asked_for(options: dict[str, Any], why: str) -> None:
    known, newcomers = split("digits-permuted", clients=6, founders=4)
    result = coterie.run("fedavg:weighting=uniform", known, model="mlp:hidden=8", rounds=1, **options)
    with pytest.raises(ConfigError, match=why):
        result.fits(newcomers, known)


def test_what_is_missing_is_named() -> None:
    known, newcomers = split("digits-permuted", clients=6, founders=4)
    result = trained(known)
    with pytest.raises(DataError, match="client 'client-0' of the run is not in the federation"):
        result.fits(newcomers, known.subset(known.ids[1:]))
    with pytest.raises(ConfigError, match="needs the clients' data, and the run was given it in Python"):
        result.fits(newcomers)
    with pytest.raises(DataError, match="client 'new' has no samples"):
        result.fits({"new": newcomers.clients[0].train.x[:0]}, known)
