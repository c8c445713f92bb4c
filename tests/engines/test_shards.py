"""Tensors on their way to another machine: nothing that a kernel could notice changes."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from coterie.engines.buffers import GrowingBuffer, TensorBuffer, deserialise, own_memory, pack, serialise, unpack
from coterie.engines.ray_worker import client_bytes, cut, deserialise_shard, serialise_shard
from coterie.federation import PARTS, Client, Split


def client(name: str, n: int, offset: int = 0) -> Client:
    generator = torch.Generator().manual_seed(n)
    x = torch.randn(2 * n + offset, 3, generator=generator)[offset : offset + n]
    y = torch.arange(n + offset)[offset:]
    return Client(name, Split(x, y), Split(x[:0], y[:0]), Split(x[-1:], y[-1:]), group=1)


@given(
    sizes=st.lists(st.integers(0, 9), max_size=8),
    kinds=st.lists(st.sampled_from([torch.float32, torch.float64, torch.int64, torch.bool]), min_size=8, max_size=8),
    offsets=st.lists(st.integers(0, 20), min_size=8, max_size=8),
    aligned=st.booleans(),
)
def test_what_is_serialised_comes_back_as_it_was(sizes, kinds, offsets, aligned) -> None:  # type: ignore[no-untyped-def]
    given_ = [torch.arange(n + off).to(kind)[off:] for n, kind, off in zip(sizes, kinds, offsets, strict=False)]
    found = deserialise(*serialise(given_, aligned=aligned))
    assert len(found) == len(given_)
    for a, b in zip(given_, found, strict=True):
        assert a.dtype == b.dtype
        assert torch.equal(a, b)
        assert not aligned or a.numel() == 0 or a.data_ptr() % 64 == b.data_ptr() % 64


def test_rows_of_replies_stay_rows_of_one_tensor() -> None:
    block = torch.randn(4, 5)
    rows = deserialise(*serialise(list(block), aligned=False))
    assert all(row.data_ptr() == rows[0].data_ptr() + 20 * i for i, row in enumerate(rows))
    assert torch.equal(torch.stack(rows), block)


def test_what_is_broadcast_travels_once_and_stays_one_tensor() -> None:
    models, own = torch.randn(3, 7), torch.randn(5)
    broadcast = GrowingBuffer()
    broadcast.place(models)
    received = own_memory(broadcast.seal())
    data, memory = serialise([models, own, models], broadcast)
    assert len(memory) < 64 + 4 * 5
    first, second, third = deserialise(data, memory, received)
    assert first is third
    assert torch.equal(first, models)
    assert torch.equal(second, own)
    assert broadcast.place(torch.zeros(1)) is None


def test_a_growing_buffer_takes_what_is_packed() -> None:
    buffer = GrowingBuffer()
    data = pack({"a": torch.ones(3)}, buffer)
    assert torch.equal(unpack(data, own_memory(buffer.seal()))["a"], torch.ones(3))


@pytest.mark.parametrize("fixed", [True, False])
def test_views_of_the_same_numbers_are_written_once(fixed: bool) -> None:
    models = torch.randn(3, 1000)
    buffer = TensorBuffer(torch.empty(2**16, dtype=torch.uint8)) if fixed else GrowingBuffer()
    # Indexing makes a new tensor every time; all of them are one array in memory.
    data = pack([models[1], models[1], models[1].view(-1), models[2]], buffer)
    written = buffer.used
    assert written < 2 * 4000 + 2 * 64
    first, again, view, other = unpack(data, buffer.memory if fixed else own_memory(buffer.seal()))  # type: ignore[attr-defined]
    assert first is again
    assert first is view
    assert torch.equal(first, models[1])
    assert torch.equal(other, models[2])


def test_views_of_other_numbers_are_told_apart() -> None:
    square = torch.arange(9.0).view(3, 3)
    given_ = [square, square.t(), square[:2], square[0], square[:, 0], square.double(), square.view(9)]
    for found, expected in zip(deserialise(*serialise(given_)), given_, strict=True):
        assert found.dtype == expected.dtype
        assert torch.equal(found, expected)


@settings(max_examples=50)
@given(sizes=st.lists(st.integers(1, 12), min_size=1, max_size=12), room=st.integers(1, 600))
def test_shards_hold_neighbours_and_no_more_than_they_may(sizes: list[int], room: int) -> None:
    clients = [client(str(i), n) for i, n in enumerate(sizes)]
    shards = cut(clients, room)
    assert [c for shard in shards for c in shard] == clients
    weights = [sum(map(client_bytes, shard)) for shard in shards]
    assert all(len(shard) == 1 or weight <= room for shard, weight in zip(shards, weights, strict=True))
    # None is opened before the last one is full.
    assert all(w + client_bytes(after[0]) > room for w, after in zip(weights, shards[1:], strict=False))


def test_a_client_keeps_its_data_but_not_the_truth_about_it() -> None:
    clients = [client("a", 4), client("b", 7, offset=3)]
    for before, after in zip(clients, deserialise_shard(*serialise_shard(clients)), strict=True):
        assert after.id == before.id
        assert after.group is None
        for part in PARTS:
            a, b = before.part(part), after.part(part)
            assert torch.equal(a.x, b.x)
            assert torch.equal(a.y, b.y)
            assert len(a) == 0 or a.x.data_ptr() % 64 == b.x.data_ptr() % 64


def test_images_that_lie_by_pixel_still_do() -> None:
    pixels = torch.from_numpy(np.arange(2 * 4 * 4 * 3, dtype=np.float32).reshape(2, 4, 4, 3))
    x = pixels.permute(0, 3, 1, 2)
    split = Split(x, torch.zeros(2, dtype=torch.int64))
    (found,) = deserialise_shard(*serialise_shard([Client("a", split, split, split)]))
    assert torch.equal(found.train.x, x)
    assert found.train.x.stride() == x.stride() != x.contiguous().stride()


def test_a_shard_in_place_is_the_stores_own_memory() -> None:
    data, memory = serialise_shard([client("a", 40)])
    whole = np.zeros(len(memory) + 128, dtype=np.uint8)
    start = -whole.ctypes.data % 64
    for away, shared in ((0, True), (1, False)):
        there = whole[start + away : start + away + len(memory)]
        there[:] = memory
        there.flags.writeable = False
        (found,) = deserialise_shard(data, there, in_place=True)
        assert torch.equal(found.train.x, client("a", 40).train.x)
        inside = there.ctypes.data <= found.train.x.data_ptr() < there.ctypes.data + len(there)
        assert inside == shared
    (copied,) = deserialise_shard(data, memory)
    assert not memory.ctypes.data <= copied.train.x.data_ptr() < memory.ctypes.data + len(memory)
