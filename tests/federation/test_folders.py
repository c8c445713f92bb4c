"""Federations from files, arrays, torch data sets and Hugging Face data sets."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.utils.data import Dataset, TensorDataset

from coterie.errors import DataError
from coterie.federation import Federation

X = np.arange(24, dtype=np.float32).reshape(12, 2)
Y = np.arange(12) % 3


def rows(federation):
    return {
        c.id: sorted(torch.cat([c.part(p).x for p in ("train", "validation", "test")])[:, 0].tolist())
        for c in federation
    }


def test_npz_both_forms_with_group(tmp_path):
    np.savez(tmp_path / "ann.npz", x=X, y=Y, group=3)
    np.savez_compressed(
        tmp_path / "bob.npz", x_train=X[:5], y_train=Y[:5], x_test=X[5:], y_test=Y[5:], group=np.array([1])
    )
    (tmp_path / "readme.txt").write_text("not a client")
    made = Federation.from_folder(tmp_path)
    assert made.ids == ("ann", "bob")
    assert made.groups == [3, 1]
    assert made.classes == 3
    assert rows(made)["ann"] == X[:, 0].tolist()
    assert len(made["ann"].test) == 1
    assert made["bob"].train.x.tolist() == X[:5].tolist()
    assert (len(made["bob"].validation), len(made["bob"].test)) == (0, 7)
    assert made.name == tmp_path.name


def test_npz_seed_and_splits(tmp_path):
    np.savez(tmp_path / "a.npz", x=X, y=Y)
    a, b, c = (Federation.from_folder(tmp_path, splits=(0.5, 0.0, 0.5), seed=s)["a"] for s in (0, 0, 1))
    assert a.test.x.tolist() == b.test.x.tolist() != c.test.x.tolist()
    assert len(a.test) == 6


def test_missing_and_empty_folder(tmp_path):
    with pytest.raises(DataError, match="no such folder"):
        Federation.from_folder(tmp_path / "nowhere")
    with pytest.raises(DataError, match=r"holds no \.npz file"):
        Federation.from_folder(tmp_path)


def corrupted(path):
    np.savez_compressed(path, x=np.random.default_rng(0).normal(size=(50, 9)), y=np.zeros(50, int))
    raw = bytearray(path.read_bytes())
    raw[120:160] = bytes(40)
    path.write_bytes(raw)


def truncated(path):
    np.savez(path, x=X, y=Y)
    path.write_bytes(path.read_bytes()[:200])


def bare_array(path):
    with open(path, "wb") as file:
        np.save(file, X)


@pytest.mark.parametrize(
    ("write", "message"),
    [
        (corrupted, "not a readable"),
        (truncated, "not a readable"),
        (bare_array, "bare array"),
        (lambda p: p.write_bytes(b""), "not a readable"),
        (lambda p: p.write_text("hello"), "not a readable"),
        (lambda p: np.savez(p, x=np.array([{}, []], dtype=object), y=np.zeros(2, int)), "plain arrays"),
        (lambda p: np.savez(p, x=X), "expected arrays x and y"),
        (lambda p: np.savez(p), "found none"),
        (lambda p: np.savez(p, x_train=X, y_train=Y, x_test=X), "x_test"),
        (lambda p: np.savez(p, x_train=X, y_train=Y, x_val=X, y_val=Y), "x_val"),
        (lambda p: np.savez(p, x=X, y=Y, x_test=X, y_test=Y), "expected arrays x and y"),
        (lambda p: np.savez(p, x_test=X, y_test=Y), "x_train"),
        (lambda p: np.savez(p, x=X, y=Y, group="a"), "one integer"),
        (lambda p: np.savez(p, x=X, y=Y, group=[1, 2]), "one integer"),
        (lambda p: np.savez(p, x=X, y=Y[:3]), "one target for each sample"),
    ],
)
def test_bad_npz_files_are_named(tmp_path, write, message):
    write(tmp_path / "eve.npz")
    with pytest.raises(DataError, match=message) as caught:
        Federation.from_folder(tmp_path)
    assert "eve" in str(caught.value)


def test_arrays_by_owner():
    owner = np.array(["b", "a"] * 6)
    made = Federation.from_arrays(X, Y, owner)
    assert made.ids == ("b", "a")  # in the order in which they appear
    assert rows(made) == {"b": X[0::2, 0].tolist(), "a": X[1::2, 0].tolist()}
    with pytest.raises(DataError, match="x has 12 rows, y 12, client 3"):
        Federation.from_arrays(X, Y, owner[:3])


def test_npy_files_stay_on_disk(tmp_path):
    files = [tmp_path / f"{name}.npy" for name in ("x", "y", "client")]
    for file, values in zip(files, (X, Y, np.repeat(["a", "b", "c"], 4)), strict=True):
        np.save(file, values)
    made = Federation.from_arrays(*files, splits=(1, 0, 0))
    maps = []
    for line in Path("/proc/self/maps").read_text().splitlines() if sys.platform == "linux" else []:
        if line.rstrip().endswith("x.npy"):
            low, high = (int(part, 16) for part in line.split()[0].split("-"))
            maps.append((low, high))
    if not maps:
        pytest.skip("no /proc/self/maps on this system to look at the mapping")
    for client in made:
        assert any(low <= client.train.x.data_ptr() < high for low, high in maps)
    assert made["b"].train.x.tolist() == X[4:8].tolist()
    made["b"].train.x[:] = -1
    assert np.load(files[0]).tolist() == X.tolist()  # whoever writes, writes to memory only


def test_npy_files_that_cannot_be_read(tmp_path):
    np.save(tmp_path / "objects.npy", np.array([{}, 1], dtype=object), allow_pickle=True)
    (tmp_path / "cut.npy").write_bytes(b"\x93NUMPY")
    for name in ("objects.npy", "cut.npy", "missing.npy"):
        with pytest.raises(DataError, match=name):
            Federation.from_arrays(tmp_path / name, Y, Y)


def test_torch_data_sets():
    x, y = torch.from_numpy(X), torch.from_numpy(Y)
    made = Federation.from_datasets({"a": TensorDataset(x[:5], y[:5]), "b": TensorDataset(x[5:], y[5:])})
    assert rows(made) == {"a": X[:5, 0].tolist(), "b": X[5:, 0].tolist()}
    assert Federation.from_datasets([TensorDataset(x, y)]).ids == ("0",)


class Odd(Dataset):
    def __init__(self, items):
        self.items = items

    def __len__(self):
        return len(self.items)

    def __getitem__(self, i):
        return self.items[i]


@pytest.mark.parametrize(
    "items",
    [
        [],
        [(torch.zeros(2), 0), (torch.zeros(3), 0)],
        [(torch.zeros(2), 0, 1)],
        [{"x": torch.zeros(2), "y": 0}],
        [(torch.zeros(2), "cat"), (torch.zeros(2), 1)],
    ],
)
def test_bad_torch_data_sets(items):
    with pytest.raises(DataError, match="client 'odd'"):
        Federation.from_datasets({"odd": Odd(items)})


def hub_data():
    datasets = pytest.importorskip("datasets", reason="needs Hugging Face datasets: pip install 'coterie[hub]'")
    images = (np.arange(10 * 9) % 256).astype(np.uint8).reshape(10, 3, 3)
    return datasets.Dataset.from_dict(
        {
            "image": images.tolist(),
            "label": [i % 2 for i in range(10)],
            "who": ["z", "a"] * 5,
            "ragged": [[1.0] * (i + 1) for i in range(10)],
        }
    ).cast_column("image", datasets.Array2D((3, 3), "uint8")), images


def test_hugging_face_data_set_in_memory():
    data, images = hub_data()
    made = Federation.from_hub(data, client="who", splits=(1, 0, 0))
    assert made.ids == ("z", "a")
    np.testing.assert_allclose(made["a"].train.x.numpy(), images[1::2] / np.float32(255), rtol=1e-6)
    assert made["z"].train.y.tolist() == [0] * 5
    flat = Federation.from_hub(data, client="who", transform=lambda x: x.reshape(len(x), -1))
    assert flat.input_shape == (9,)


def test_hugging_face_mistakes():
    data, _ = hub_data()
    with pytest.raises(DataError, match="needs client="):
        Federation.from_hub(data)
    for wrong in ({"client": "whose"}, {"client": "who", "x": "picture"}, {"client": "who", "y": "lable"}):
        with pytest.raises(DataError, match=f"no column '{list(wrong.values())[-1]}'.*image, label"):
            Federation.from_hub(data, **wrong)
    with pytest.raises(DataError, match="client 'z', column 'ragged': expected rows of one shape"):
        Federation.from_hub(data, client="who", x="ragged")


def test_flower_partitioner_in_memory():
    data, images = hub_data()
    partitioners = pytest.importorskip(
        "flwr_datasets.partitioner", reason="needs flwr-datasets: pip install 'coterie[hub]'"
    )
    partitioner = partitioners.NaturalIdPartitioner(partition_by="who")
    partitioner.dataset = data
    made = Federation.from_hub(partitioner, splits=(1, 0, 0))
    assert len(made) == 2
    seen = sorted(tuple(row.flatten().mul(255).round().int().tolist()) for c in made for row in c.train.x)
    assert seen == sorted(tuple(row.flatten().tolist()) for row in images)


class HandMade:
    """What a partitioner must offer, and no more."""

    num_partitions = 2

    def __init__(self, data):
        self.data = data

    def load_partition(self, i):
        return self.data.select(range(5 * i, 5 * i + 5) if self.num_partitions == 2 else [])


def test_anything_with_partitions():
    data, _ = hub_data()
    made = Federation.from_hub(HandMade(data))
    assert made.ids == ("0", "1")
    empty = HandMade(data)
    empty.num_partitions = 1
    with pytest.raises(DataError, match="client '0': the data set is empty"):
        Federation.from_hub(empty)
