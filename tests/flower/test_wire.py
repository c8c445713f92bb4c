"""Tasks and replies as records: what goes in comes out, and what is not as expected is refused in words."""

from __future__ import annotations

import math
from dataclasses import fields
from typing import Any

import numpy as np
import pytest
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, MetricRecord, RecordDict
from hypothesis import given
from hypothesis import strategies as st

from coterie.embedding import Embed
from coterie.errors import ConfigError
from coterie.flower import wire
from coterie.flower.wire import (
    BadReply,
    Expected,
    Packer,
    check_reply,
    expected_of,
    open_array,
    pack_array,
    unpack_task,
)
from coterie.messages import Reply, Task
from coterie.models import build
from coterie.parameters import Layout
from coterie.personalisation import Personalise
from coterie.stages import LayerUpdate, StagedTraining
from coterie.tasks import Choose, Evaluate, Gradient, Noise, Train
from coterie.workbench import Training

LAYOUT = Layout.of(build("mlp:hidden=3", (4,), 2, 0))
MODEL = torch.randn(LAYOUT.size)
HOW = Training(lr=0.3, steps=2, batch_size=None, layers=("hidden", "head"))
TASKS: list[Task] = [
    Train(MODEL, HOW, 2**62 + 1, ("head",), True),
    Evaluate(torch.stack([MODEL, -MODEL]), "validation", ("head",)),
    Gradient(MODEL),
    Noise(MODEL, HOW, 3),
    Choose(torch.stack([MODEL, -MODEL]), HOW, 4, 9),
    Choose(torch.stack([MODEL, -MODEL]), None, 4, 9),
    LayerUpdate(MODEL, HOW, 5, LAYOUT.layers[-1]),
    StagedTraining(MODEL, torch.randn(2, 8), (LAYOUT.layers[-1],), HOW, 6),
    StagedTraining(MODEL, torch.randn(0, 8), (LAYOUT.layers[-1],), HOW, 6),
    Embed("pca", (2, 2), 3, torch.randn(16), 5, 0, 7),
    Personalise(MODEL, HOW, 8),
]


def refuse_to_draw(seed: int) -> torch.Tensor:
    raise AssertionError(f"seed {seed} must not be needed")


@pytest.mark.parametrize("task", TASKS, ids=lambda task: type(task).__name__)
def test_a_task_arrives_as_it_was_sent(task: Task) -> None:
    back = unpack_task(Packer({"classes": 2}).pack(task), refuse_to_draw)
    assert type(back) is type(task)
    for entry in fields(task):  # type: ignore[arg-type]
        sent, got = getattr(task, entry.name), getattr(back, entry.name)
        assert torch.equal(sent, got) if isinstance(sent, torch.Tensor) else (sent == got and type(sent) is type(got))


def test_every_kind_of_task_in_the_package_can_travel() -> None:
    assert {type(task) for task in TASKS} == set(wire.KINDS.values())


def test_one_tensor_for_many_clients_is_one_array() -> None:
    packer = Packer({})
    first, second = (packer.pack(Train(MODEL, HOW, seed))["tensors"]["model"] for seed in (1, 2))
    assert first is second


def test_an_initial_model_travels_as_its_seed_and_a_client_that_draws_another_one_says_so() -> None:
    packer = Packer({}, lambda model: 77 if model is MODEL else None)
    records = packer.pack(LayerUpdate(MODEL, HOW, 5))
    assert len(records["tensors"]) == 0
    back = unpack_task(records, lambda seed: MODEL.clone() if seed == 77 else -MODEL)
    assert torch.equal(back.model, MODEL)  # type: ignore[attr-defined]
    with pytest.raises(ConfigError, match="version of torch"):
        unpack_task(records, lambda _: MODEL + 1e-3)
    assert "model" in packer.pack(Train(MODEL, HOW, 5))["tensors"]  # only where the method counts a seed


def test_records_that_hold_no_task_are_refused() -> None:
    good = Packer({}).pack(TASKS[0])
    for name, value in {"kind": "Explode", "fields": "{", "extra": ""}.items():
        records = RecordDict({"task": ConfigRecord(dict(good["task"]) | {name: value}), "tensors": ArrayRecord()})
        with pytest.raises(ConfigError, match="no task"):
            unpack_task(records, refuse_to_draw)


@given(st.lists(st.integers(0, 4), max_size=3), st.integers(0, 2**31))
def test_arrays_come_back_bit_for_bit(shape: list[int], seed: int) -> None:
    sent = torch.from_numpy(np.random.default_rng(seed).standard_normal(shape).astype(np.float32))
    assert torch.equal(open_array(pack_array(sent), tuple(shape)), sent)


def test_arrays_that_lie_about_themselves_are_refused() -> None:
    data, shape = pack_array(MODEL).data, (LAYOUT.size,)
    bombs = [
        Array("float32", shape, "numpy.ndarray", data[:-4]),
        Array("float32", shape, "numpy.ndarray", data + bytes(4000)),
        Array("float32", shape, "numpy.ndarray", bytes(len(data))),
        Array("float32", shape, "numpy.ndarray", b"PK\x03\x04" + data[4:]),
        Array("float32", shape, "pickle", data),
        Array("float64", shape, "numpy.ndarray", data),
        Array("float32", (LAYOUT.size - 1,), "numpy.ndarray", data),
        Array("float32", (-LAYOUT.size,), "numpy.ndarray", data),
        Array("float32", shape, "numpy.ndarray", data.replace(f"({LAYOUT.size},)".encode(), b"(9" + b"9" * 9 + b",)")),
        Array("float32", shape, "numpy.ndarray", pack_array(MODEL).data.replace(b"<f4", b"|O4")),
    ]
    for bomb in bombs:
        with pytest.raises(BadReply):
            open_array(bomb, shape)


def sound(task: Task) -> RecordDict:
    """A reply that fits the task, made by hand."""
    expected = expected_of(task, LAYOUT)
    values: dict[str, Any] = dict.fromkeys(expected.numbers, 0.5) | {n: [0.5] * k for n, k in expected.lists.items()}
    if "count" in values:
        values["count"] = 5
    vector = None if expected.vector is None else torch.ones(expected.vector)
    return wire.pack_reply(Reply("c", 3, vector, values, up=40))


@pytest.mark.parametrize("task", TASKS, ids=lambda task: type(task).__name__)
def test_a_sound_reply_is_taken_and_one_with_a_value_more_or_less_is_not(task: Task) -> None:
    expected = expected_of(task, LAYOUT)
    assert check_reply(sound(task), expected) is None
    for name in [*expected.numbers, *expected.lists, "group", "up"]:
        records = sound(task)
        del records["values"][name]
        assert "values" in str(check_reply(records, expected))
    records = sound(task)
    records["values"]["bonus"] = 1.0
    assert "bonus" in str(check_reply(records, expected))


def vector_record(vector: torch.Tensor, name: str = "vector") -> ArrayRecord:
    return ArrayRecord({name: pack_array(vector)})


@pytest.mark.parametrize(
    ("record", "reason"),
    [
        (vector_record(torch.ones(LAYOUT.size + 1)), "shape"),
        (vector_record(torch.ones(10**6)), "shape"),
        (vector_record(torch.ones(1, LAYOUT.size)), "shape"),
        (vector_record(torch.full((LAYOUT.size,), math.nan)), "not finite"),
        (vector_record(torch.full((LAYOUT.size,), math.inf)), "not finite"),
        (vector_record(torch.full((LAYOUT.size,), 3e38)), "not finite"),
        (vector_record(torch.ones(LAYOUT.size), "hidden.weight"), "expected one: vector"),
        (ArrayRecord(), "expected one: vector"),
        (MetricRecord({"vector": 1.0}), "expected one: vector"),
        (ArrayRecord({"vector": Array(np.ones(LAYOUT.size))}), "float64"),
        (ArrayRecord({"vector": Array("float32", (LAYOUT.size,), "numpy.ndarray", b"garbage")}), "bytes"),
    ],
)
def test_a_malicious_vector_is_refused_with_a_reason(record: Any, reason: str) -> None:
    records = sound(TASKS[0])
    records["vector"] = record
    assert reason in str(check_reply(records, expected_of(TASKS[0], LAYOUT)))


def test_other_malicious_replies_are_refused_with_a_reason() -> None:
    train, choose, embed = TASKS[0], TASKS[4], TASKS[9]

    def said(task: Task, **values: Any) -> str:
        records = sound(task)
        records["values"] = MetricRecord(dict(records["values"]) | values)
        return str(check_reply(records, expected_of(task, LAYOUT)))

    assert "loss is not finite" in said(train, loss=math.nan)
    assert "start loss is not finite" in said(train, start_loss=math.inf)
    assert "list" in said(train, loss=[1.0, 2.0])
    assert "model 2 of 2" in said(choose, group=2)
    assert "model -1" in said(choose, group=-1)
    assert "losses" in said(choose, losses=[0.1])
    assert "losses" in said(choose, losses=[0.1] * 10**5)
    assert "bytes" in said(train, up=-1)
    assert "centroids" in said(embed, count=4)
    assert "centroids" in said(embed, count=10**9)
    assert "finite" in said(embed, centroids=[math.nan] * 15)
    extra = sound(train)
    extra["more"] = ArrayRecord()
    assert "more" in str(check_reply(extra, expected_of(train, LAYOUT)))
    assert "records none" in str(check_reply(RecordDict(), Expected()))
    refusal = wire.pack_refusal("no\x1b[2J disk\nleft " + "x" * 10**6)
    reason = str(check_reply(refusal, Expected()))
    assert reason.startswith("no [2J disk left xxx")
    assert len(reason) <= wire.REASON_LETTERS


def test_values_that_are_not_numbers_may_be_infinite_where_that_means_something() -> None:
    records = sound(TASKS[3])
    records["values"]["noise"] = math.inf  # a client with one sample
    assert check_reply(records, expected_of(TASKS[3], LAYOUT)) is None
    records["values"]["noise"] = math.nan
    assert check_reply(records, expected_of(TASKS[3], LAYOUT)) is not None
