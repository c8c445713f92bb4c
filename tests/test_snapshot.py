"""Snapshots come back as they were, and nothing else comes back."""

from __future__ import annotations

import dataclasses
import os
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import save_file
from torch import Tensor

from coterie.errors import RunError
from coterie.snapshot import load_snapshot, save_snapshot, save_tensors, saved, write_atomically


@saved
@dataclasses.dataclass(frozen=True)
class Leaf:
    value: Any
    tensor: Tensor


@dataclasses.dataclass
class Stranger:
    value: int


def tensor(seed, dtype, shape):
    return (torch.rand(shape, generator=torch.Generator().manual_seed(seed)) * 9).to(dtype)


TENSORS = st.builds(
    tensor,
    st.integers(0, 99),
    st.sampled_from([torch.float32, torch.float64, torch.bfloat16, torch.int64, torch.uint8, torch.bool]),
    st.lists(st.integers(0, 3), max_size=3).map(tuple),
)
ARRAYS = TENSORS.filter(lambda t: t.dtype != torch.bfloat16).map(lambda t: t.numpy())
KEYS = st.one_of(st.integers(), st.text(max_size=4), st.tuples(st.integers(), st.booleans()))
PLAIN = st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(), TENSORS, ARRAYS)
STATES = st.recursive(
    PLAIN,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.lists(inner, max_size=3).map(tuple),
        st.dictionaries(KEYS, inner, max_size=3),
        st.dictionaries(st.sampled_from(["tensor", "list", "class", "dict"]), inner, max_size=2),
        st.builds(Leaf, inner, TENSORS),
    ),
    max_leaves=8,
)


def same(a, b):
    if type(a) is not type(b):
        return False
    if isinstance(a, Tensor):
        return (
            a.dtype == b.dtype and a.shape == b.shape and a.numpy(force=True).tobytes() == b.numpy().tobytes()
            if (a.dtype != torch.bfloat16)
            else torch.equal(a, b)
        )
    if isinstance(a, np.ndarray):
        return a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()
    if isinstance(a, dict):
        return list(a) == list(b) and all(same(a[k], b[k]) for k in a)
    if isinstance(a, list | tuple):
        return len(a) == len(b) and all(map(same, a, b))
    if isinstance(a, Leaf):
        return same(a.value, b.value) and same(a.tensor, b.tensor)
    return repr(a) == repr(b)  # NaN is itself, -0.0 is not 0.0


@given(STATES)
def test_round_trip(tmp_path_factory, state):
    path = tmp_path_factory.getbasetemp() / "round-trip.safetensors"
    save_snapshot(state, path)
    assert same(load_snapshot(path), state)


def test_views_of_one_storage_come_back_apart(tmp_path):
    base = torch.arange(6.0)
    save_snapshot([base[:3], base[1:4], base.reshape(2, 3).T], tmp_path / "s")
    a, b, c = load_snapshot(tmp_path / "s")
    a.zero_()
    assert b.tolist() == [1, 2, 3]
    assert c.tolist() == [[0, 3], [1, 4], [2, 5]]


def test_reversed_array(tmp_path):
    save_snapshot(np.arange(3)[::-1], tmp_path / "s")
    assert load_snapshot(tmp_path / "s").tolist() == [2, 1, 0]


def test_bytes_are_a_function_of_the_state(tmp_path):
    for name in "ab":
        save_snapshot(Leaf({"x": [1, 2.5]}, torch.ones(3)), tmp_path / name)
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


@pytest.mark.parametrize("value", [Stranger(1), {1, 2}, object(), np.int64(3), len])
def test_what_cannot_come_back_is_refused_on_the_way_in(tmp_path, value):
    with pytest.raises(TypeError, match="a snapshot cannot hold"):
        save_snapshot({"deep": [value]}, tmp_path / "s")
    assert list(tmp_path.iterdir()) == []


def test_unregistered_class_in_a_file_is_refused(tmp_path):
    for tree in ('{"class": "os.system", "fields": {}}', '{"class": "test_snapshot.Stranger", "fields": {"value": 1}}',
                 f'{{"class": "{Leaf.__module__}.Leaf", "fields": {{"other": 1}}}}', '{"odd": 1}', "{", '{"list": 3}',
                 '{"dict": [[{"list": []}, 1]]}'):  # fmt: skip
        save_tensors({"_": torch.zeros(1)}, tmp_path / "s", {"state": tree})
        with pytest.raises(RunError, match="not a snapshot of this program, or damaged"):
            load_snapshot(tmp_path / "s")


def test_foreign_corrupt_truncated_missing(tmp_path):
    path = tmp_path / "s"
    with pytest.raises(RunError, match="no such file"):
        load_snapshot(path)
    save_file({"a": torch.zeros(1)}, path)
    with pytest.raises(RunError, match=f"{path}: not a file of this program"):
        load_snapshot(path)
    save_snapshot({"a": torch.ones(100), "b": 1}, path)
    whole = path.read_bytes()
    for cut in (0, 1, 7, 8, 20, len(whole) // 2, len(whole) - 1):
        path.write_bytes(whole[:cut])
        with pytest.raises(RunError):
            load_snapshot(path)
    path.write_bytes(b"\xff" * 200)
    with pytest.raises(RunError):
        load_snapshot(path)
    with pytest.raises(RunError):
        load_snapshot(tmp_path)


@pytest.mark.parametrize("step", ["fsync", "replace"])
def test_a_failed_write_leaves_the_old_file_alone(tmp_path, monkeypatch, step):
    path = tmp_path / "f"
    write_atomically(path, b"old")

    def fail(*_):
        raise OSError("disk full")

    monkeypatch.setattr(os, step, fail)
    with pytest.raises(RunError, match="disk full"):
        write_atomically(path, b"new")
    assert path.read_bytes() == b"old"
    assert [p.name for p in tmp_path.iterdir()] == ["f"]
