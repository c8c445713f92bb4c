"""Sums made where the work is done equal the sums of the replies, whoever does it and however it is divided."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from coterie.engines import LocalEngine
from coterie.engines.base import shares
from coterie.federation import Client, Federation, Split
from coterie.messages import Due, Order
from coterie.tasks import Choose, Gradient, Train
from coterie.workbench import Training

FULL = Training(lr=0.2, steps=4, batch_size=None)
BATCHES = Training(lr=0.1, epochs=2, batch_size=3, momentum=0.5)


def split(rng: np.random.Generator, n: int) -> Split:
    return Split(torch.tensor(rng.normal(size=(n, 40))), torch.tensor(rng.integers(0, 3, n)))


def federation(sizes: Sequence[int]) -> Federation:
    rng = np.random.default_rng(5)
    none = split(rng, 0)
    return Federation([Client(f"c{i:02d}", split(rng, n), none, none) for i, n in enumerate(sizes)], 3)


def architecture(seed: int) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(40, 6), nn.ReLU(), nn.Linear(6, 3))


def conv(seed: int) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Unflatten(1, (1, 40)), nn.Conv1d(1, 2, 5), nn.Flatten(), nn.Linear(72, 3))


SIZES = [7, 7, 3, 12, 7, 1, 9, 7, 5, 7, 7]


def engine_of(make: object = architecture, **options: object) -> LocalEngine:
    return LocalEngine(federation(SIZES), make, precision="float64", **options)  # type: ignore[arg-type]


def orders_of(engine: LocalEngine, kind: str, models: Tensor) -> tuple[list[Order], list[Due]]:
    rows = [row.clone() for row in models]
    tasks = {
        "full": lambda i: Train(rows[i % 2], FULL, i),
        "batches": lambda i: Train(rows[i % 2], BATCHES, i),
        "assess": lambda i: Train(rows[i % 2], FULL, i, assess=True),
        "choose": lambda i: Choose(models, FULL, i, 0),
        "choose-gradient": lambda i: Choose(models, None, i, 0),
        "gradient": lambda i: Gradient(models[1]),
    }
    orders = [Order(client, tasks[kind](i)) for i, client in enumerate(engine.clients)]
    chooses = kind.startswith("choose")
    return orders, [Due(float(n), 0 if chooses else i % 3) for i, n in enumerate(SIZES)]


@pytest.mark.parametrize("make", [architecture, conv])
@pytest.mark.parametrize("kind", ["full", "batches", "assess", "choose", "choose-gradient", "gradient"])
def test_sums_equal_those_of_the_replies(kind: str, make: object) -> None:
    engine = engine_of(make)
    models = torch.stack([engine.initial_model(1), engine.initial_model(2)])
    orders, bill = orders_of(engine, kind, models)
    replies = [reply for block in engine.run(orders) for reply in block]
    expected: dict[int, Tensor] = {}
    for reply, due in zip(replies, bill, strict=True):
        assert reply.vector is not None
        group = reply.group if kind.startswith("choose") else due.group
        expected[group] = expected.get(group, torch.zeros(engine.layout.size)) + due.weight * reply.vector
    told = list(shares(engine, orders, bill))
    for reply, plain in zip([r for share in told for r in share.replies], replies, strict=True):
        assert reply.vector is None
        assert (reply.client, reply.samples, reply.up) == (plain.client, plain.samples, plain.up)
        assert reply.norm == pytest.approx(plain.norm, rel=1e-10)
        assert reply.values["loss"] == pytest.approx(plain.values["loss"], rel=1e-10)
        assert reply.values.get("losses", 0) == pytest.approx(plain.values.get("losses", 0), rel=1e-10)
    sums = {g: torch.zeros(engine.layout.size, dtype=torch.float64) for g in expected}
    for share in told:
        for group, total in share.sums.items():
            sums[group] += total
    for group, total in expected.items():
        torch.testing.assert_close(sums[group], total, rtol=1e-10, atol=1e-12)


def test_groups_of_the_bill_are_told_with_the_replies() -> None:
    engine = engine_of()
    orders, bill = orders_of(engine, "full", engine.initial_model(1).expand(2, -1))
    replies = [reply for share in engine.total(orders, bill) for reply in share.replies]
    assert [reply.group for reply in replies] == [due.group for due in bill]


@pytest.mark.parametrize("kind", ["full", "batches"])
def test_a_vector_that_is_not_finite_is_in_no_sum(kind: str) -> None:
    engine = engine_of()
    engine.federation.clients[3].train.x[0, 0] = float("nan")
    models = engine.initial_model(1).expand(2, -1)
    orders, bill = orders_of(engine, kind, models)
    told = list(engine.total(orders, bill))
    assert [fault.client for fault in engine.faults()] == ["c03"]
    assert "c03" not in [reply.client for share in told for reply in share.replies]
    assert all(total.isfinite().all() for share in told for total in share.sums.values())
    sound = [i for i in range(len(SIZES)) if i != 3]
    others = list(engine.total([orders[i] for i in sound], [bill[i] for i in sound]))
    for group in range(3):
        left, right = (sum(share.sums.get(group, 0) for share in some) for some in (told, others))
        torch.testing.assert_close(left, right, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("kind", ["full", "batches", "choose"])
def test_sums_do_not_depend_on_the_number_of_workers(kind: str) -> None:
    found = []
    for workers in (1, 2, 3):
        engine = LocalEngine(federation(SIZES * 4), architecture, workers=workers)
        models = torch.stack([engine.initial_model(1), engine.initial_model(2)])
        orders, _ = orders_of(engine_of(), kind, models)
        tasks = [order.task for order in orders]
        many = [Order(client, tasks[i % len(tasks)]) for i, client in enumerate(engine.clients)]
        found.append(list(engine.total(many, [Due(1.0)] * len(many))))
        engine.close()
    for other in found[1:]:
        for one, two in zip(found[0], other, strict=True):
            assert one.replies == two.replies
            assert one.sums.keys() == two.sums.keys()
            assert all(torch.equal(one.sums[g], two.sums[g]) for g in one.sums)


def test_masked_sums_are_the_masked_sum() -> None:
    plain, masked = engine_of(), engine_of(privacy="signed-permutation", secret=4)
    for engine in (plain, masked):
        orders, bill = orders_of(engine, "full", engine.initial_model(1).expand(2, -1))
        sums = [share.sums for share in engine.total(orders, bill)]
        total = sum(s[1] for s in sums if 1 in s)
        assert isinstance(total, Tensor)
        if engine is plain:
            expected = total
    torch.testing.assert_close(masked.reveal(total), expected)
