"""Tasks and replies as records: what goes in comes out, and what is not as the schema says is refused in words."""

from __future__ import annotations

import math
from dataclasses import fields, replace
from typing import Any

import numpy as np
import pytest
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, MetricRecord, RecordDict
from hypothesis import given
from hypothesis import strategies as st

from coterie.errors import ConfigError
from coterie.flower.wire import Packer, open_array, open_reply, pack_array, pack_refusal, pack_reply, unpack_task
from coterie.models import build
from coterie.parameters import Layout
from coterie.tasks import (
    Choose,
    Collect,
    CountChoice,
    Evaluate,
    Gradient,
    HalfUpdates,
    HeldOut,
    Noise,
    ReplySchema,
    ScoreHidden,
    Train,
    TrainHidden,
)
from coterie.tasks.base import Array as ArraySchema
from coterie.tasks.base import Reply, Task
from coterie.tasks.embed import Embed
from coterie.tasks.moments import FeatureMoments, InputMoments
from coterie.tasks.personalise import Personalise
from coterie.tasks.serving import ServeBy, TryToServe
from coterie.tasks.staged import Divergence, LayerUpdate, StagedTraining
from coterie.tasks.wire import REASON_LETTERS, BadReply
from coterie.tasks.words import WordSums
from coterie.trainers.base import Training
from coterie_field.mixture_tasks import MixtureTraining, MixtureWeights
from coterie_field.soft_tasks import ImportanceWeights, SoftTraining
from coterie_field.subspaces import Subspaces

LAYOUT = Layout.of(build("mlp:hidden=3", (4,), 2, 0))
MODEL = torch.randn(LAYOUT.size)
HOW = Training(lr=0.3, steps=2, batch_size=None, layers=("hidden", "head"))
HEAD = (LAYOUT.layers[-1],)
TRAIN = Train(MODEL, HOW, 2**62 + 1)
CHOOSE = Choose(torch.stack([MODEL, -MODEL]), HOW, 4)
EMBED = Embed("pca", (2, 2), 3, torch.randn(16), 5, 0, 7)
NOISE = Noise(MODEL, HOW, 3)
TASKS: list[Task] = [
    TRAIN,
    Train(MODEL, HOW, 1, HEAD),
    Evaluate(torch.stack([MODEL, -MODEL]), "validation", HEAD),
    Gradient(MODEL),
    NOISE,
    HalfUpdates(MODEL, HOW, 4, 5),
    HeldOut(torch.randn(2, 2, LAYOUT.size), 5),
    InputMoments(),
    FeatureMoments(torch.zeros(4), torch.ones(4), 3, True, 2, 3, 7, 8),
    TryToServe(torch.stack([MODEL, -MODEL]), HOW, 8),
    ServeBy(1),
    CHOOSE,
    Choose(torch.stack([MODEL, -MODEL]), None, 4),
    LayerUpdate(MODEL, HOW, 5, LAYOUT.layers[-1]),
    StagedTraining(MODEL, torch.randn(2, 8), HEAD, HOW, 6),
    StagedTraining(MODEL, torch.randn(0, 8), HEAD, HOW, 6),
    EMBED,
    Personalise(MODEL, HOW, 8),
    Collect(MODEL, HEAD),
    Collect(MODEL, HEAD, shown=True),
    CountChoice(torch.stack([MODEL, -MODEL]), "choice 0"),
    TrainHidden(torch.stack([MODEL, -MODEL]), HOW, 4, "choice 0", (1,)),
    ScoreHidden(torch.stack([MODEL, -MODEL]), "choice 0", "test", ("f1",)),
    Subspaces(3),
    WordSums("pca", (2, 2), 3, torch.randn(16), torch.randn(4, 3)),
    Divergence(LayerUpdate(MODEL, HOW, 5, LAYOUT.layers[-1]), torch.randn(8)),
    Train(MODEL, HOW, 1, personal=HOW),
    MixtureTraining(torch.stack([MODEL, -MODEL]), torch.ones(2) / 2, HOW, 3, torch.rand(2, 4)),
    MixtureWeights(torch.stack([MODEL, -MODEL]), 20),
    ImportanceWeights(torch.stack([MODEL, -MODEL]), 0.5),
    SoftTraining(MODEL, torch.stack([MODEL, -MODEL]), torch.ones(2), 0.5, HOW, 3),
]


def refuse_to_draw(seed: int) -> torch.Tensor:
    raise AssertionError(f"seed {seed} must not be needed")


@pytest.mark.parametrize("task", TASKS, ids=lambda task: type(task).__name__)
def test_a_task_arrives_as_it_was_sent(task: Task) -> None:
    back = unpack_task(Packer({"classes": 2}, LAYOUT).pack(task), LAYOUT, refuse_to_draw)
    assert_same(task, back)


def assert_same(task: Task, back: Task) -> None:
    assert type(back) is type(task)
    for entry in fields(task):  # type: ignore[arg-type]
        sent, got = getattr(task, entry.name), getattr(back, entry.name)
        if isinstance(sent, Task):
            assert_same(sent, got)
            continue
        assert torch.equal(sent, got) if isinstance(sent, torch.Tensor) else (sent == got and type(sent) is type(got))


def test_every_kind_of_task_in_the_package_can_travel() -> None:
    ours = {kind for name, kind in Task.kinds.items() if name.startswith(("coterie.tasks.", "coterie_field."))}
    assert {type(task) for task in TASKS} == ours


def test_one_tensor_for_many_clients_is_one_array() -> None:
    packer = Packer({}, LAYOUT)
    first, second = (packer.pack(Train(MODEL, HOW, seed))["tensors"]["model"] for seed in (1, 2))
    assert first is second


def test_rows_made_anew_by_indexing_are_one_array_and_other_numbers_are_not() -> None:
    packer, models = Packer({}, LAYOUT), torch.randn(3, LAYOUT.size)

    def packed(model: torch.Tensor, **options: Any) -> Array:
        return packer.pack(Train(model, HOW, 1, **options))["tensors"]["model"]

    assert models[1] is not models[1]
    assert packed(models[1]) is packed(models[1]) is packed(models[1:2].view(-1))
    assert packed(models[2]) is not packed(models[1])
    assert packed(models[1].clone()) is not packed(models[1])  # equal numbers elsewhere in memory
    assert packed(models[1], private=HEAD, init=4) is packed(models[1], private=HEAD, init=4)
    assert packed(models[1], private=HEAD, init=4) is not packed(models[1])  # without the head it is another array
    assert open_array(packed(models[1], private=HEAD, init=4)).numel() == LAYOUT.size - 8
    for row in models:  # a place in memory that was given back must not be taken for what it held before
        assert torch.equal(open_array(packed(row * 2)), row * 2)


def test_an_initial_model_travels_as_its_seed_and_a_client_that_draws_another_one_says_so() -> None:
    packer = Packer({}, LAYOUT)
    records = packer.pack(LayerUpdate(MODEL, HOW, 5, init=77))
    assert len(records["tensors"]) == 0
    back = unpack_task(records, LAYOUT, lambda seed: MODEL.clone() if seed == 77 else -MODEL)
    assert torch.equal(back.model, MODEL)  # type: ignore[attr-defined]
    with pytest.raises(ConfigError, match="version of torch"):
        unpack_task(records, LAYOUT, lambda _: MODEL + 1e-3)
    assert "model" in packer.pack(replace(TRAIN, init=77))["tensors"]  # it leaves nothing out


def test_private_layers_travel_as_a_seed_and_a_client_that_draws_others_says_so() -> None:
    trained = MODEL.clone()
    (head,) = LAYOUT.select(HEAD)
    trained[: head.start] += 1  # the body has learned, the head is still as it was drawn
    records = Packer({}, LAYOUT).pack(Train(trained, HOW, 5, HEAD, init=77))
    assert records["tensors"]["model"].shape == (head.start,)
    back = unpack_task(records, LAYOUT, lambda seed: MODEL.clone() if seed == 77 else -MODEL)
    assert torch.equal(back.model, trained)  # type: ignore[attr-defined]
    other_head = MODEL.clone()
    other_head[head] += 1e-3
    with pytest.raises(ConfigError, match="version of torch"):
        unpack_task(records, LAYOUT, lambda _: other_head)


def test_records_that_hold_no_task_are_refused() -> None:
    good = Packer({}, LAYOUT).pack(TRAIN)
    assert unpack_task(good, LAYOUT, refuse_to_draw).kind() == TRAIN.kind()
    lies = {"fields": "{", "drawn": "[]", "kind": "coterie.tasks.noise.Noise"}
    for name, value in lies.items():
        records = RecordDict({"task": ConfigRecord(dict(good["task"]) | {name: value}), "tensors": good["tensors"]})
        with pytest.raises(ConfigError, match="no task"):
            unpack_task(records, LAYOUT, refuse_to_draw)
    for records in (RecordDict(), RecordDict({"task": good["task"], "tensors": ArrayRecord()})):
        with pytest.raises(ConfigError, match="no task"):
            unpack_task(records, LAYOUT, refuse_to_draw)
    unknown = RecordDict({"task": ConfigRecord(dict(good["task"]) | {"kind": "Explode"}), "tensors": good["tensors"]})
    with pytest.raises(ConfigError, match="knows no task 'Explode'"):
        unpack_task(unknown, LAYOUT, refuse_to_draw)


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
    schema = task.schema(LAYOUT)
    values: dict[str, Any] = {
        name: torch.full([length or 2 for length in kind.shape], max(0.5, kind.minimum))
        if isinstance(kind, ArraySchema)
        else 0.5
        for name, kind in schema.values.items()
    }
    vector = None
    if schema.vector is not None:
        vector = torch.ones(schema.vector)
        for span in schema.private:
            vector[span] = 0
    return pack_reply(Reply("c", 3, vector, values), schema)


def reason(records: RecordDict, schema: ReplySchema) -> str:
    """Why a reply is refused."""
    with pytest.raises(BadReply) as caught:
        open_reply(records, schema)
    return str(caught.value)


@pytest.mark.parametrize("task", TASKS, ids=lambda task: type(task).__name__)
def test_a_sound_reply_is_taken_and_one_with_a_value_more_or_less_is_not(task: Task) -> None:
    schema = task.schema(LAYOUT)
    reply = open_reply(sound(task), schema)
    assert (reply.vector is None) == (schema.vector is None)
    if reply.vector is not None:
        assert len(reply.vector) == schema.vector
        assert reply.vector.sum() == len(reply.vector) - sum(span.stop - span.start for span in schema.private)
    for name, kind in schema.values.items():
        got = (
            torch.tensor(reply.values[name]) if not isinstance(reply.values[name], torch.Tensor) else reply.values[name]
        )
        assert got.shape == (tuple(length or 2 for length in kind.shape) if isinstance(kind, ArraySchema) else ())
        assert (got == max(0.5, kind.minimum)).all()
    assert sum(len(record) for record in sound(task).values()) >= len(schema.values)
    for part in list(sound(task)):
        for name in list(sound(task)[part]):
            records = sound(task)
            del records[part][name]
            assert name in reason(records, schema)
    records = sound(task)
    records["values"]["bonus"] = 1.0
    assert "bonus" in reason(records, schema)
    records = sound(task)
    more = dict(records["arrays"]) if "arrays" in records else {}
    records["arrays"] = ArrayRecord(more | {"bonus": pack_array(torch.ones(1))})
    assert ("bonus" if more else "arrays") in reason(records, schema)


def vector_record(vector: torch.Tensor, name: str = "vector") -> ArrayRecord:
    return ArrayRecord({name: pack_array(vector)})


@pytest.mark.parametrize(
    ("record", "why"),
    [
        (vector_record(torch.ones(LAYOUT.size + 1)), "shape"),
        (vector_record(torch.ones(10**6)), "shape"),
        (vector_record(torch.ones(1, LAYOUT.size)), "shape"),
        (vector_record(torch.full((LAYOUT.size,), math.nan)), "not finite"),
        (vector_record(torch.full((LAYOUT.size,), math.inf)), "not finite"),
        (vector_record(torch.full((LAYOUT.size,), 3e38)), "not finite"),
        (vector_record(torch.ones(LAYOUT.size), "hidden.weight"), "arrays hidden.weight, expected vector"),
        (ArrayRecord(), "arrays none, expected vector"),
        (MetricRecord({"vector": 1.0}), "arrays MetricRecord, expected vector"),
        (ArrayRecord({"vector": Array(np.ones(LAYOUT.size))}), "float64"),
        (ArrayRecord({"vector": Array("float32", (LAYOUT.size,), "numpy.ndarray", b"garbage")}), "bytes"),
    ],
)
def test_a_malicious_vector_is_refused_with_a_reason(record: Any, why: str) -> None:
    records = sound(TRAIN)
    records["arrays"] = record
    assert why in reason(records, TRAIN.schema(LAYOUT))


def test_other_malicious_replies_are_refused_with_a_reason() -> None:
    def said(task: Task, **values: Any) -> str:
        records = sound(task)
        arrays = {name: pack_array(value) for name, value in values.items() if isinstance(value, torch.Tensor)}
        numbers = {name: value for name, value in values.items() if name not in arrays}
        records["values"] = MetricRecord(dict(records["values"]) | numbers)
        records["arrays"] = ArrayRecord(dict(records["arrays"]) | arrays)
        return reason(records, task.schema(LAYOUT))

    assert "loss is not finite" in said(TRAIN, loss=math.nan)
    assert "loss is not finite" in said(TRAIN, loss=math.inf)
    assert "list" in said(TRAIN, loss=[1.0, 2.0])
    assert "model 2 of 2" in said(CHOOSE, group=2)
    assert "model -1" in said(CHOOSE, group=-1)
    assert "model 0.5" in said(CHOOSE, group=0.5)
    assert "centroids" in said(EMBED, centroids=0.5)
    assert "shape (6, 3)" in said(EMBED, centroids=torch.ones(6, 3))
    assert "shape (0, 3)" in said(EMBED, centroids=torch.ones(0, 3))
    assert "shape (5, 2)" in said(EMBED, centroids=torch.ones(5, 2))
    assert "shape ()" in said(EMBED, centroids=torch.tensor(1.0))
    assert "finite" in said(EMBED, centroids=torch.full((5, 3), math.nan))
    extra = sound(TRAIN)
    extra["more"] = ArrayRecord()
    assert "more" in reason(extra, TRAIN.schema(LAYOUT))
    assert "records none" in reason(RecordDict(), ReplySchema())
    refused = reason(pack_refusal("no\x1b[2J disk\nleft " + "x" * 10**6), ReplySchema())
    assert refused.startswith("no [2J disk left xxx")
    assert len(refused) <= REASON_LETTERS
    assert "without a reason" in reason(pack_refusal(""), ReplySchema())


def test_fewer_rows_pass_where_there_may_be_fewer() -> None:
    records = sound(EMBED)
    records["arrays"] = ArrayRecord({"centroids": pack_array(torch.ones(2, 3))})
    assert torch.equal(open_reply(records, EMBED.schema(LAYOUT)).values["centroids"], torch.ones(2, 3))


def test_values_may_be_infinite_where_that_means_something() -> None:
    records = sound(NOISE)
    records["values"]["noise"] = math.inf  # a client with one sample
    assert open_reply(records, NOISE.schema(LAYOUT)).values == {"noise": math.inf}
    records["values"]["noise"] = math.nan
    assert "noise" in reason(records, NOISE.schema(LAYOUT))
