"""Sums made where the work is done equal the sums of the replies, whoever does it and however it is divided."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from coterie.engines import LocalEngine
from coterie.federation import Client, Federation, Split
from coterie.tasks import Choose, Gradient, Train
from coterie.tasks.base import Reduction, Request
from coterie.tasks.wire import reply_bytes
from coterie.trainers.base import Training

pytestmark = pytest.mark.usefixtures("many_blocks")
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


def requests_of(engine: LocalEngine, kind: str, models: Tensor) -> tuple[list[Request], Reduction]:
    rows = [row.clone() for row in models]
    tasks = {
        "full": lambda i: Train(rows[i % 2], FULL, i),
        "batches": lambda i: Train(rows[i % 2], BATCHES, i),
        "choose": lambda i: Choose(models, FULL, i),
        "choose-gradient": lambda i: Choose(models, None, i),
        "gradient": lambda i: Gradient(models[1]),
    }
    requests = [Request(client, tasks[kind](i)) for i, client in enumerate(engine.clients)]
    chooses = kind.startswith("choose")
    return requests, Reduction(list(map(float, SIZES)), [None if chooses else i % 3 for i in range(len(SIZES))])


@pytest.mark.parametrize("make", [architecture, conv])
@pytest.mark.parametrize("kind", ["full", "batches", "choose", "choose-gradient", "gradient"])
def test_sums_equal_those_of_the_replies(kind: str, make: object) -> None:
    engine = engine_of(make)
    models = torch.stack([engine.initial_model(1), engine.initial_model(2)])
    requests, reduce = requests_of(engine, kind, models)
    replies = [reply for block in engine.run(requests) for reply in block.replies]
    expected: dict[int, Tensor] = {}
    for reply, weight, given in zip(replies, reduce.weights, reduce.groups, strict=True):
        assert reply.vector is not None
        group = reply.group if given is None else given
        expected[group] = expected.get(group, torch.zeros(engine.layout.size)) + weight * reply.vector
    traffic = engine.traffic.drain()
    blocks = list(engine.run(requests, reduce))
    assert engine.traffic.drain() == traffic  # what is sent is the same, wherever it is added up
    schema = requests[0].task.schema(engine.layout)
    for reply, plain in zip([r for block in blocks for r in block.replies], replies, strict=True):
        assert reply.vector is None
        assert (reply.client, reply.samples) == (plain.client, plain.samples)
        assert reply_bytes(reply, schema) == reply_bytes(plain, schema) > 0
        assert reply.norm == pytest.approx(plain.norm, rel=1e-10)
        assert reply.values["loss"] == pytest.approx(plain.values["loss"], rel=1e-10)
        assert reply.values.get("losses", 0) == pytest.approx(plain.values.get("losses", 0), rel=1e-10)
    sums = {g: torch.zeros(engine.layout.size, dtype=torch.float64) for g in expected}
    for block in blocks:
        for group, total in block.sums.items():
            sums[group] += total
    for group, total in expected.items():
        torch.testing.assert_close(sums[group], total, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("kind", ["full", "choose", "choose-gradient"])
def test_groups_of_the_reduction_are_those_of_the_replies_and_the_sums(kind: str) -> None:
    engine = engine_of()
    requests, _ = requests_of(engine, kind, torch.stack([engine.initial_model(1), engine.initial_model(2)]))
    groups = [i % 3 for i in range(len(SIZES))]
    blocks = list(engine.run(requests, Reduction([1.0] * len(SIZES), groups)))
    assert [reply.group for block in blocks for reply in block.replies] == groups
    vectors = [reply.vector for block in engine.run(requests) for reply in block.replies]
    for group in range(3):
        expected = sum(vector for vector, own in zip(vectors, groups, strict=True) if own == group)
        found = sum(block.sums[group] for block in blocks if group in block.sums)
        torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("kind", ["full", "batches"])
def test_a_vector_that_is_not_finite_is_in_no_sum(kind: str) -> None:
    engine = engine_of()
    engine.federation.clients[3].train.x[0, 0] = float("nan")
    models = engine.initial_model(1).expand(2, -1)
    requests, reduce = requests_of(engine, kind, models)
    blocks = list(engine.run(requests, reduce))
    assert [fault.client for fault in engine.faults()] == ["c03"]
    assert "c03" not in [reply.client for block in blocks for reply in block.replies]
    assert all(total.isfinite().all() for block in blocks for total in block.sums.values())
    sound = [i for i in range(len(SIZES)) if i != 3]
    others = list(engine.run([requests[i] for i in sound], reduce.at(sound)))
    for group in range(3):
        left, right = (sum(block.sums.get(group, 0) for block in some) for some in (blocks, others))
        torch.testing.assert_close(left, right, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("kind", ["full", "batches", "choose"])
def test_sums_do_not_depend_on_the_number_of_workers(kind: str) -> None:
    found = []
    for workers in (1, 2, 3):
        engine = LocalEngine(federation(SIZES * 4), architecture, workers=workers)
        models = torch.stack([engine.initial_model(1), engine.initial_model(2)])
        requests, _ = requests_of(engine_of(), kind, models)
        tasks = [request.task for request in requests]
        many = [Request(client, tasks[i % len(tasks)]) for i, client in enumerate(engine.clients)]
        found.append(list(engine.run(many, Reduction([1.0] * len(many), [None] * len(many)))))
        engine.close()
    for other in found[1:]:
        for one, two in zip(found[0], other, strict=True):
            assert one.replies == two.replies
            assert one.sums.keys() == two.sums.keys()
            assert all(torch.equal(one.sums[g], two.sums[g]) for g in one.sums)


def test_masked_sums_are_the_masked_sum() -> None:
    plain, masked = engine_of(), engine_of(privacy="signed-permutation", secret=4)
    for engine in (plain, masked):
        requests, reduce = requests_of(engine, "full", engine.initial_model(1).expand(2, -1))
        sums = [block.sums for block in engine.run(requests, reduce)]
        total = sum(s[1] for s in sums if 1 in s)
        assert isinstance(total, Tensor)
        if engine is plain:
            expected = total
    torch.testing.assert_close(masked.reveal(total), expected)
