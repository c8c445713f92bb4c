"""FedDrift: who opens a model, which are merged, by hand; and what it does when concepts change."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import coterie
from coterie.engines.local import LocalEngine
from coterie.federation import ChangingFederation, Client, Federation, Split
from coterie.methods import Server, make_method
from coterie.trainers.base import Training
from coterie.trainers.schedules import make_schedule
from coterie_field.feddrift import State, merged_below


def test_complete_linkage_by_hand() -> None:
    """0 and 1 are joined at 1; their distance to 2 is then max(2, 5) = 5, so 2 joins 3 at 3."""
    distances = np.array([[0, 1, 2, 9], [1, 0, 5, 9], [2, 5, 0, 3], [9, 9, 3, 0.0]])
    assert merged_below(distances, 0.5) == [[0], [1], [2], [3]]
    assert merged_below(distances, 2.5) == [[0, 1], [2], [3]]
    assert merged_below(distances, 4.0) == [[0, 1], [2, 3]]
    assert merged_below(distances, 100.0) == [[0, 1, 2, 3]]


def federation(slopes: list[float]) -> Federation:
    """A client for each slope, of y = a x at x = 1 and −1: the loss of a model w is (w − a)²."""
    x = torch.tensor([[1.0], [-1.0]])
    made = []
    for i, slope in enumerate(slopes):
        split = Split(x, slope * x[:, 0])
        made.append(Client(f"c{i}", split, Split(x[:0], split.y[:0]), split))
    return Federation(made, task="regression")


def line(seed: int) -> nn.Module:
    made = nn.Sequential(nn.Linear(1, 1, bias=False))
    nn.init.constant_(made[0].weight, 0.0)
    return made


def server_of(slopes: list[float]) -> Server:
    engine = LocalEngine(federation(slopes), line, precision="float64")
    return Server(engine, make_schedule("constant", Training(lr=0.25, steps=1, batch_size=None), 50), 1, 50)


def known(**changed: Any) -> State:
    """Models 1 and 5 for slopes 1 and 5, both of them old, and what clients had as lowest losses."""
    values: dict[str, Any] = {
        "models": torch.tensor([[1.0], [5.0]]).double(),
        "ids": [0, 1],
        "born": [0, 0],
        "used": [9, 9],
        "cluster_of": {"c0": 0, "c1": 0, "c2": 1},
        "lowest": {"c0": 0.0, "c1": 0.0, "c2": 0.0},
        "first_loss": 9.0,
        "next_id": 2,
    }
    return State(**(values | changed))


def test_a_client_goes_to_a_model_it_finds_and_opens_one_where_it_finds_none() -> None:
    """δ = 0.5: c0 stays, c1 now has the slope of model 1, c2 one that no model is near."""
    method = make_method("feddrift:delta=0.5")
    after, info = method.round(known(), 10, server_of([1.0, 5.0, 3.0]))
    assert after.cluster_of == {"c0": 0, "c1": 1, "c2": 2}
    assert after.ids == [0, 1, 2]
    assert after.born[2] == 10
    assert "c2" not in after.lowest
    [event] = info.events
    assert (event.kind, event.details["clients"]) == ("drifted", ["c2"])
    # A step of 0.25 on (w − 3)² from w = 0 goes to 0 + 0.25 · 2 · 3; the others are where their slopes are.
    assert after.models[:, 0].tolist() == pytest.approx([1.0, 5.0, 1.5])
    again, info = method.round(after, 11, server_of([1.0, 5.0, 3.0]))
    assert again.cluster_of == after.cluster_of
    assert info.events == []
    assert again.lowest["c2"] == pytest.approx((1.5 - 3) ** 2)


def test_a_small_rise_is_no_drift() -> None:
    after, info = make_method("feddrift:delta=0.5").round(known(), 10, server_of([1.6, 1.0, 5.0]))
    assert after.cluster_of == {"c0": 0, "c1": 0, "c2": 1}
    assert after.lowest["c0"] == pytest.approx(0.36)
    assert info.events == []


def test_delta_is_a_share_of_what_training_gained() -> None:
    """Clients' lowest losses were 1 on average, the first 9: δ = 0.25 · 8 = 2 is passed by (1 − 2.8)² = 3.24 − 1."""
    before = known(lowest={"c0": 1.0, "c1": 1.0, "c2": 1.0})
    server = server_of([2.8, 1.0, 5.0])
    after, info = make_method("feddrift:share=0.25").round(before, 10, server)
    assert info.events[0].details == {"clients": ["c0"], "delta": pytest.approx(2.0)}
    assert after.cluster_of["c0"] == 2
    _, info = make_method("feddrift:share=0.3").round(before, 10, server)  # δ = 2.4
    assert info.events == []


def test_models_that_serve_each_others_clients_are_merged() -> None:
    """Models 1.0 and 1.2: L_01 − L_11 = 0.04 both ways; model 5 is far. Two clients against one weigh 2 : 1."""
    before = known(
        models=torch.tensor([[1.0], [1.2], [5.0]]).double(),
        ids=[0, 3, 4],
        born=[0, 0, 0],
        used=[9, 9, 9],
        cluster_of={"c0": 0, "c1": 0, "c2": 3, "c3": 4},
        lowest=dict.fromkeys(["c0", "c1", "c2", "c3"], 0.0),
        next_id=5,
    )
    server = server_of([1.0, 1.0, 1.2, 5.0])
    after, info = make_method("feddrift:delta=0.1").round(before, 10, server)
    assert after.ids == [0, 4]
    assert after.cluster_of == {"c0": 0, "c1": 0, "c2": 0, "c3": 4}
    [event] = info.events
    assert (event.kind, event.details["gone"], event.details["into"]) == ("merged", [3], 0)
    mean = (2 * 1.0 + 1.2) / 3  # and then one step of 0.25 · 2 halves the way to its clients' mean slope, the same
    assert after.models[0, 0] == pytest.approx(mean)
    _, apart = make_method("feddrift:delta=0.03").round(before, 10, server)
    assert apart.events == []
    young = State(**{**vars(before), "born": [0, 8, 0]})
    _, apart = make_method("feddrift:delta=0.1,settle=3").round(young, 10, server)
    assert apart.events == []


def test_before_training_has_gained_anything_nobody_drifts_and_nothing_is_merged() -> None:
    before = known(lowest={}, first_loss=None)
    after, info = make_method("feddrift").round(before, 10, server_of([1.0, 1.0, 5.0]))
    assert info.events == []
    assert after.ids == [0, 1]


def test_models_are_limited_and_those_unused_for_longest_go() -> None:
    before = known(
        models=torch.tensor([[1.0], [5.0], [40.0], [50.0]]).double(), ids=[0, 1, 2, 3], born=[0] * 4, used=[9, 9, 4, 7],
        next_id=4,
    )  # fmt: skip
    after, _ = make_method("feddrift:delta=0.5,most=4").round(before, 10, server_of([1.0, 1.0, -9.0]))
    assert after.ids == [0, 1, 3, 4]  # model 2 was used in round 4, model 3 in round 7
    full, _ = make_method("feddrift:delta=0.5,most=2").round(known(), 10, server_of([-9.0, -9.0, -30.0]))
    assert len(full.ids) == 2
    assert len(set(full.cluster_of.values())) == 2  # three clients share two new models


def test_in_the_first_round_each_client_has_a_model_or_all_have_one() -> None:
    server = server_of([1.0, 1.0, 5.0])
    each, _ = make_method("feddrift").round(make_method("feddrift").start(server), 1, server)
    assert len(set(each.cluster_of.values())) == 3
    one, _ = make_method("feddrift:start_with=one").round(make_method("feddrift").start(server), 1, server)
    assert set(one.cluster_of.values()) == {0}


def concepts() -> ChangingFederation:
    """Six clients of two opposite concepts, which they exchange in round 9; a third appears in round 17."""
    generator = torch.Generator().manual_seed(1)
    points = [torch.randn(300, 2, generator=generator) for _ in range(6)]
    rules = [lambda x: (x[:, 0] > 0).long(), lambda x: (x[:, 0] < 0).long(), lambda x: 2 + (x[:, 1] > 0).long()]

    def phase(concept: list[int]) -> Federation:
        data = {f"c{i}": (x, rules[k](x)) for i, (x, k) in enumerate(zip(points, concept, strict=True))}
        return Federation.from_tensors(data, groups=concept, classes=4)

    return ChangingFederation(
        {1: phase([0, 0, 0, 1, 1, 1]), 9: phase([1, 1, 1, 0, 0, 0]), 17: phase([2, 2, 1, 0, 0, 0])}
    )


def test_accuracy_is_back_soon_after_every_change() -> None:
    options: dict[str, Any] = {"model": "mlp:hidden=8", "rounds": 26, "lr": 0.5, "epochs": 5, "workers": 1}
    result = coterie.run("feddrift", concepts(), **options)
    accuracy = [record.accuracy.mean for record in result.history]
    recovery = result.history.recovery()
    assert list(recovery) == [9, 17]
    for change, rounds in recovery.items():
        before = accuracy[change - 2]
        assert before is not None
        assert before > 0.9
        assert rounds is not None
        assert rounds <= 9
        again, floor = accuracy[change - 1 : change + rounds], before - 0.02
        assert [value is not None and value >= floor for value in again] == [False] * rounds + [True]
    assert result.summary.ari == 1.0
    assert len(result.clusters) == 3
    kinds = [(record.round, event.kind) for record in result.history for event in record.events]
    assert (9, "drifted") not in kinds  # each finds the other's model
    assert (17, "drifted") in kinds
    assert result.history.recovery(within=-1.0) == {9: None, 17: None}  # nothing is a point above what is whole
    plain = coterie.run("fedavg", concepts(), **options)
    assert plain.summary.accuracy.mean is not None
    assert result.summary.accuracy.mean is not None
    assert plain.summary.accuracy.mean < result.summary.accuracy.mean - 0.2


def test_who_shares_a_first_model_does_not_follow_the_order_of_the_clients() -> None:
    """Scenarios deal groups out in turn: every fourth client sharing a model would be told a group by its place."""
    server = server_of([float(i) for i in range(12)])
    method = make_method("feddrift:most=4")
    state, _ = method.round(method.start(server), 1, server)
    shared = [{c for c, j in state.cluster_of.items() if j == number} for number in set(state.cluster_of.values())]
    assert [len(own) for own in shared] == [3] * 4
    assert shared != [{f"c{i}" for i in range(start, 12, 4)} for start in range(4)]
    server.engine.clients = server.engine.clients[::-1]
    again, _ = method.round(method.start(server), 1, server)
    assert again.cluster_of == state.cluster_of
