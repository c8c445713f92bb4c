"""A user's arrays as a vector and back; whatever bytes come in, they are read right or refused in words."""

from __future__ import annotations

import contextlib

import numpy as np
import pytest
import torch
from flwr.app import Array, ArrayRecord, MetricRecord, RecordDict
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from coterie.errors import ConfigError
from coterie.flower.arrays import Template, read_array
from coterie.flower.reports import TRAIN_LOSS, number, weighted_metrics
from coterie.flower.wire import BadReply


def normed(seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))
    model(torch.randn(5, 3))  # so that the statistics are not all zeros and ones
    return model


def test_a_state_dict_comes_back_as_it_was_with_its_statistics_behind_what_is_trained() -> None:
    model = normed()
    record = ArrayRecord(model.state_dict())
    template = Template.of(record)
    vector = template.vector(record)
    assert template.layout.trainable == sum(p.numel() for p in model.parameters())
    assert template.layout.size == vector.numel() == template.layout.trainable + 4 + 4 + 1
    assert template.layout.layers == ("0", "1", "2")
    back = template.record(vector).to_torch_state_dict()
    assert list(back) == list(model.state_dict())
    for name, values in model.state_dict().items():
        assert back[name].dtype == values.dtype
        assert torch.equal(back[name], values)


def test_types_decide_the_vectors_and_names_may_say_what_is_kept() -> None:
    record = ArrayRecord([np.ones(2, np.float16), np.full((2, 2), 1 / 3), np.arange(3)])
    template = Template.of(record)
    assert template.vector(record).dtype == torch.float64
    assert template.layout.trainable == 6
    assert torch.equal(template.vector(record)[2:6], torch.full((4,), 1 / 3, dtype=torch.float64))
    assert template.record(template.vector(record))["0"].dtype == "float16"
    assert Template.of(record, buffers=["1"]).layout.trainable == 5


@pytest.mark.parametrize(
    ("record", "buffers", "message"),
    [
        (ArrayRecord(), None, "is empty"),
        (ArrayRecord([np.ones(2) + 1j]), None, "complex128"),
        (ArrayRecord([np.arange(2)]), None, "nothing to train"),
        (ArrayRecord({"running": Array(np.ones(2))}), ["runing"], "did you mean 'running'"),
    ],
)
def test_arrays_that_cannot_be_trained_are_told(record: ArrayRecord, buffers: list[str] | None, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Template.of(record, buffers)


@given(
    shape=st.lists(st.integers(0, 4), max_size=3).map(tuple),
    kind=st.sampled_from(["float32", "float64", "float16", "int64", "uint8"]),
    fortran=st.booleans(),
)
def test_any_honest_array_is_read(shape: tuple[int, ...], kind: str, fortran: bool) -> None:
    values = np.arange(np.prod(shape, dtype=int)).reshape(shape).astype(kind)
    array = Array(np.asarray(values, order="F" if fortran else "C"))
    assert np.array_equal(read_array("a", array, shape, np.dtype(kind)), values)


def test_the_other_byte_order_is_read_too() -> None:
    big = Array(np.array([1.5, -2.0], ">f4"))
    assert read_array("a", Array("float32", (2,), big.stype, big.data), (2,), np.dtype("f4")).tolist() == [1.5, -2.0]


HONEST = Array(np.arange(6, dtype=np.float32).reshape(2, 3))


@given(
    cut=st.integers(0, len(HONEST.data)),
    put=st.binary(max_size=40),
    rest=st.integers(0, len(HONEST.data)),
)
def test_whatever_bytes_come_in_are_read_or_refused(cut: int, put: bytes, rest: int) -> None:
    array = Array("float32", (2, 3), "numpy.ndarray", HONEST.data[:cut] + put + HONEST.data[rest:])
    with contextlib.suppress(BadReply):
        values = read_array("a", array, (2, 3), np.dtype("f4"))
        assert values.shape == (2, 3)
        assert values.dtype.itemsize == 4


def test_metrics_are_averaged_by_weight_over_those_that_have_them() -> None:
    told = [{"n": 1, "loss": 4.0, "a": 1.0}, {"n": 3, "loss": 2.0}, {"n": 9, "loss": float("nan"), "list": [1.0]}]
    found = weighted_metrics([RecordDict({"m": MetricRecord(metrics)}) for metrics in told], "n")  # type: ignore[arg-type]
    assert dict(found) == {"loss": 2.5, "a": 1.0}


def test_a_loss_is_found_by_its_name_or_a_usual_one() -> None:
    metrics = MetricRecord({"loss": 3.0, "train-loss": float("nan"), "other": 2})
    assert number(metrics, None, TRAIN_LOSS) == 3.0
    assert number(metrics, "other", TRAIN_LOSS) == 2.0
    assert number(metrics, "absent", TRAIN_LOSS) is None
