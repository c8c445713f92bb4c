"""The bytes of a round: what a simulated run counts is what really crosses a grid, for every method."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from dropin_trials import ALL_AT_ONCE, started
from dropin_trials import app as dropin_app
from flower_trials import MODEL, QUICK, CountingGrid, assert_same, digits
from torch import nn

import coterie
from coterie.federation import Federation
from coterie.flower import CFL, FedCUAU, FedSEM, OneShot, client_app
from coterie.flower.server import run_on
from coterie.flower.strategy_base import Clustered
from coterie.methods import method_classes
from coterie.methods.base import find_method
from coterie.runs.records import Bytes
from coterie.runs.result import Result

CFL_NOW = "rule=paper(eps1=10,eps2=0.001,gamma_max=0.1,wait=2)"
"""Numbers under which CFL splits soon."""
SPECS = [
    "fedavg",
    "fedprox:mu=0.1",
    "fedbabu",
    "fedper",
    "local",
    "oneshot:k=2,warmup_rounds=2",
    "fedsem:clusters=2",
    "fedsem:clusters=2,over=participants",
    "ifca:k=2",
    "ifca:k=2,clustered=last",
    "ifca:k=2,clustered=last,averaging=gradient",
    "ifca:k=2,resend=settled(1)",
    "ifca:k=2,init=k-means++(1),restarts=2",
    "ifca:k=auto",
    "fedcuau:clusters=2",
    "fedcuau:clusters=3,base=fedper,specific=hidden",
    "feddrift:most=3",
    "fedem:components=2",
    "fedrc:components=2",
    "fedsoft:clusters=2,interval=2",
    "flt:case=1,k=3,signature=centroids",
    "flt:case=2,k=3,signature=centroids(noise=0.1)",
    "flt:case=2,encoder=pca,finetune=1,k=3,signature=centroids",
    "pca-kmeans-hc:basis=public,clusters=2,show_centroids=true",
    "pca-kmeans-hc:basis=own,clusters=2,show_centroids=true",
    "groups:of={'client-0':'a','client-1':'b','client-2':'a'}",
    "flhc:warmup_rounds=1",
    "clove:k=2",
    "clove:k=auto,k_max=3,stable_after=1",
    "pacfl:clusters=2",
    "auto",
    "ditto:lam=0.5",
    f"cfl:{CFL_NOW}",
    f"cfl:compare=gradient,{CFL_NOW}",
]
EVENTS = {"cfl:rule": "split", "cfl:compare": "split", "ifca:k=2,resend": "stable"}
"""What must happen in a run, by how its method begins, so that there is something to count."""
ROUNDS = 4
OPTIONS: dict[str, Any] = {"seed": 5, "lr": 0.2, "epochs": 1, "batch_size": 20, "rounds": ROUNDS, "evaluate_every": 2}


@pytest.fixture(scope="module")
def federation() -> Federation:
    return digits()


def normalised() -> nn.Module:
    """A network with buffers, which are averaged but have no gradient."""
    torch.manual_seed(1)
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Linear(6, 10))


@contextmanager
def counted(spec: str, grid: CountingGrid) -> Iterator[dict[str, list[Bytes]]]:
    """What crosses the grid while the method starts, does its rounds and finishes: not while others evaluate."""
    found: dict[str, list[Bytes]] = {"start": [], "round": [], "finish": []}
    cls = find_method(spec.partition(":")[0])
    inside: list[str] = []  # a method with restarts calls itself: the outer call counts

    def noted(name: str) -> Callable[..., Any]:
        original = getattr(cls, name)

        def call(*arguments: Any) -> Any:
            down, up = grid.down, grid.up
            inside.append(name)
            try:
                return original(*arguments)
            finally:
                inside.pop()
                if not inside:
                    found[name].append(Bytes(grid.up - up, grid.down - down))

        return call

    with pytest.MonkeyPatch.context() as patch:
        for name in found:
            if hasattr(cls, name):
                patch.setattr(cls, name, noted(name))
        yield found


def with_start(found: dict[str, list[Bytes]]) -> list[Bytes]:
    """The bytes of the rounds, those before the first with it."""
    first, *others = found["round"]
    before = found["start"]
    return [Bytes(first.up + sum(b.up for b in before), first.down + sum(b.down for b in before)), *others]


def three_counts(spec: str, federation: Federation, model: Any, **more: Any) -> tuple[Result, Result, list[Bytes]]:
    """The run here, the same run over a grid, and what crossed the grid in its rounds, the first with the start."""
    given = OPTIONS | more | {"method": spec}
    here = coterie.run(federation=federation, model=model, workers=1, **given)
    configs = [{"client": client} for client in federation.ids]
    grid = CountingGrid(client_app(model, federation), node_configs=configs)
    named = {"model": model} if isinstance(model, str) else {}
    with counted(spec, grid) as found:
        there = run_on(grid, given | named | QUICK, model=None if named else model)
    everything = [*found["start"], *found["round"], *found["finish"]]
    assert here.summary.bytes == there.summary.bytes
    assert there.summary.bytes == Bytes(sum(b.up for b in everything), sum(b.down for b in everything))
    return here, there, with_start(found)


def test_every_method_is_here() -> None:
    ours = {name for name, cls in method_classes().items() if cls.__module__.startswith(("coterie.", "coterie_field."))}
    assert {spec.partition(":")[0] for spec in SPECS} == ours


@pytest.mark.parametrize("spec", SPECS)
def test_a_round_counts_what_really_crosses_the_grid(spec: str, federation: Federation) -> None:
    if spec.startswith("flt"):
        pytest.importorskip("umap")
    longer = {}
    here, there, crossed = three_counts(spec, federation, MODEL, **longer)
    happened = {event.kind for record in here.history for event in record.events}
    assert all(event in happened for start, event in EVENTS.items() if spec.startswith(start))
    assert len(crossed) == ROUNDS
    assert [record.bytes for record in here.history] == crossed
    assert [record.bytes for record in there.history] == crossed
    assert all(sent.up > 0 and sent.down > 0 for sent in crossed)
    assert not [fault for record in there.history for fault in record.faults]
    assert there.clusters == here.clusters


@pytest.mark.parametrize(
    "spec", ["fedavg", "fedper", "local", "oneshot:warmup_rounds=2", "ifca:k=2,averaging=gradient"]
)
def test_buffers_are_counted_where_they_are_sent(spec: str, federation: Federation) -> None:
    here, there, crossed = three_counts(spec, federation, normalised())
    assert [record.bytes for record in here.history] == crossed
    assert [record.bytes for record in there.history] == crossed


@pytest.mark.parametrize("spec", ["fedavg", "ifca:k=2,init=random,resend=settled(1)", "fedper"])
def test_those_who_do_not_take_part_are_sent_nothing(spec: str, federation: Federation) -> None:
    here, _, crossed = three_counts(spec, federation, MODEL, participation=0.5)
    assert [record.bytes for record in here.history] == crossed
    whole = coterie.run(federation=federation, model=MODEL, workers=1, **OPTIONS, method=spec)
    assert 2 * crossed[0].down == whole.history[0].bytes.down


def test_under_privacy_a_round_costs_the_same(federation: Federation) -> None:
    given = OPTIONS | {"method": f"cfl:{CFL_NOW}", "model": MODEL}
    plain = coterie.run(federation=federation, workers=1, **given)
    configs = [{"client": client} for client in federation.ids]
    privacy = {"privacy": "signed-permutation"}
    grid = CountingGrid(
        client_app(MODEL, federation, secret="pomegranate"), node_configs=configs, run_config=dict(privacy)
    )
    with counted("cfl", grid) as found:
        hidden = run_on(grid, given | QUICK | privacy)
    assert [record.bytes for record in hidden.history] == found["round"]
    assert [record.bytes for record in plain.history] == found["round"]


@pytest.mark.parametrize(
    "strategy",
    [
        CFL(rule="paper(eps1=100,eps2=1e-9,gamma_max=0.5,wait=2)", fraction_evaluate=0.5),
        FedSEM(clusters=2),
        OneShot(k=2, warmup_rounds=2),
        FedCUAU(clusters=2, specific=("fc1", "fc2")),
    ],
    ids=lambda strategy: type(strategy).__name__,
)
def test_a_drop_in_strategy_counts_what_really_crosses_the_grid(strategy: Clustered) -> None:
    grid = CountingGrid(dropin_app, 4, run_config={"batch-size": ALL_AT_ONCE, "local-epochs": 1, "groups": 2})
    with counted(strategy.name, grid) as found:
        started(strategy, grid, 3)
    assert len(found["round"]) == 3
    assert [record.bytes for record in strategy.history] == with_start(found)
    assert all(sent.up > 4 * 4 * 2410 for sent in found["round"])


def test_the_counting_grid_sees_the_numbers_and_not_the_headers(federation: Federation) -> None:
    """By hand: FedAvg sends a model down, and an update and a loss up."""
    here, there, crossed = three_counts("fedavg", federation, MODEL)
    size = here.layout.size
    assert size == 64 * 16 + 16 + 16 * 10 + 10
    assert crossed == [Bytes(up=6 * (4 * size + 8), down=6 * 4 * size)] * ROUNDS
    assert_same(here, there)
