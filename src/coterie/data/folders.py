"""Federations from what people have: arrays, NumPy files, a folder of .npz files, torch or Hugging Face data sets."""

from __future__ import annotations

import zipfile
import zlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset

from coterie.errors import DataError
from coterie.federation import PARTS, Client, Federation, as_target, as_tensor, make_client

Splits = tuple[float, float, float]
STANDARD: Splits = (0.8, 0.1, 0.1)


def federation_from_npz(folder: Path, *, splits: Splits = STANDARD, seed: int = 0) -> Federation:
    """One client a file: `<id>.npz` with `x` and `y`, or `x_train`, `y_train`, `x_test`, … and optionally `group`."""
    folder = Path(folder)
    if not folder.is_dir():
        raise DataError(f"{folder}: no such folder: give a folder with one .npz file a client")
    files = sorted(folder.glob("*.npz"))
    if not files:
        raise DataError(f"{folder}: holds no .npz file: write one a client, with arrays x and y")
    return Federation([client_from_npz(file, splits, seed) for file in files], name=folder.name)


def client_from_npz(file: Path, splits: Splits = STANDARD, seed: int = 0) -> Client:
    """One client from its file; the file's name is its id."""
    try:
        archive = np.load(file, allow_pickle=False)
        if not isinstance(archive, np.lib.npyio.NpzFile):
            raise ValueError("it holds one bare array")
        with archive:
            arrays = {name: archive[name] for name in archive.files}
        group = _group(arrays.pop("group", None))
    except (OSError, ValueError, TypeError, zipfile.BadZipFile, zlib.error, EOFError) as problem:
        raise DataError(f"{file}: not a readable .npz file of plain arrays ({problem})") from problem
    if set(arrays) == {"x", "y"}:
        return make_client(file.stem, (arrays["x"], arrays["y"]), splits, seed, group)
    item = {
        part: (arrays[f"x_{part}"], arrays[f"y_{part}"]) for part in PARTS if {f"x_{part}", f"y_{part}"} <= set(arrays)
    }
    if "train" not in item or len(arrays) != 2 * len(item):
        raise DataError(
            f"{file}: expected arrays x and y, or pairs x_train and y_train, x_validation and y_validation, x_test and "
            f"y_test, and nothing else but group; found {', '.join(sorted(arrays)) or 'none'}: rename or remove"
        )
    return make_client(file.stem, item, splits, seed, group)


def _group(values: np.ndarray | None) -> int | None:
    if values is None:
        return None
    if values.size != 1 or values.dtype.kind not in "iu":
        raise ValueError(f"group is {values.dtype} of shape {values.shape}, expected one integer")
    return int(values.item())


def federation_from_arrays(
    x: np.ndarray | str | Path,
    y: np.ndarray | str | Path,
    client: np.ndarray | str | Path,
    *,
    splits: Splits = STANDARD,
    seed: int = 0,
) -> Federation:
    """One array of samples, one of targets, one that names the client of each sample; or `.npy` files of these.

    Files are memory-mapped: with `splits=(1, 0, 0)`, float32 rows of one client that lie together stay on disk
    until they are used; any other split draws its rows at random, which copies them.
    """
    x, y, client = (_array(values) for values in (x, y, client))
    if not len(x) == len(y) == len(client):
        raise DataError(f"x has {len(x)} rows, y {len(y)}, client {len(client)}: expected the same number")
    names, first, owner = np.unique(client, return_index=True, return_inverse=True)
    clients = []
    for number in np.argsort(first):
        rows = np.flatnonzero(owner == number)
        together = len(rows) > 0 and rows[-1] - rows[0] + 1 == len(rows)
        index: Any = slice(rows[0], rows[-1] + 1) if together else rows
        clients.append(make_client(str(names[number]), (x[index], y[index]), splits, seed))
    return Federation(clients, name="arrays")


def _array(values: np.ndarray | str | Path) -> np.ndarray:
    if isinstance(values, np.ndarray):
        return values
    try:
        # Copy-on-write, because torch wants memory that it might write to; nothing reaches the file.
        loaded: np.ndarray = np.load(values, mmap_mode="c", allow_pickle=False)
    except (OSError, ValueError) as problem:
        raise DataError(f"{values}: not a readable .npy file of plain numbers ({problem})") from problem
    return loaded


def federation_from_datasets(
    datasets: Mapping[str, Dataset[Any]] | Sequence[Dataset[Any]], *, splits: Splits = STANDARD, seed: int = 0
) -> Federation:
    """One torch `Dataset` of `(x, y)` items a client (map-style), read once into tensors."""
    named = datasets if isinstance(datasets, Mapping) else {str(i): d for i, d in enumerate(datasets)}
    return Federation.from_tensors(
        {name: _stack(name, dataset) for name, dataset in named.items()}, splits=splits, seed=seed, name="datasets"
    )


def _stack(name: str, dataset: Dataset[Any]) -> tuple[Tensor, Tensor]:
    try:
        pairs = [dataset[i] for i in range(len(dataset))]  # type: ignore[arg-type]
        if not pairs:
            raise DataError(f"client {name!r}: the data set is empty: give it data or leave it out")
        columns = zip(*pairs, strict=True)
        x, y = (torch.stack([torch.as_tensor(value) for value in column]) for column in columns)
    except (TypeError, ValueError, RuntimeError) as problem:
        raise DataError(f"client {name!r}: expected a data set of (x, y) items of one shape ({problem})") from problem
    return as_tensor(x), as_target(y)


def federation_from_hub(
    data: Any,
    *,
    x: str = "image",
    y: str = "label",
    client: str | None = None,
    transform: Callable[[np.ndarray], np.ndarray] | None = None,
    splits: Splits = STANDARD,
    seed: int = 0,
) -> Federation:
    """From a Hugging Face `datasets.Dataset` (with the column `client`) or a `flwr_datasets` partitioner.

    `x` and `y` name the columns. Images with channels last are given to `transform` first, if there is one.
    """
    if hasattr(data, "num_partitions") and hasattr(data, "load_partition"):
        parts = {str(i): data.load_partition(i) for i in range(data.num_partitions)}
    elif client is None:
        raise DataError("a Hugging Face data set needs client=, the column that names the client of each row")
    else:
        _column(data, client)
        owners = np.asarray(data[client])
        parts = {str(owner): data.select(np.flatnonzero(owners == owner)) for owner in dict.fromkeys(owners.tolist())}
    items = {}
    for name, part in parts.items():
        for column in (x, y):
            _column(part, column)
        rows = part.with_format("numpy")
        if not len(rows):
            raise DataError(f"client {name!r}: the data set is empty: give it data or leave it out")
        try:
            inputs = np.stack([np.asarray(value) for value in rows[x]])
        except ValueError as problem:
            raise DataError(f"client {name!r}, column {x!r}: expected rows of one shape ({problem})") from problem
        if _stored_type(part, x) == "uint8":
            inputs = inputs.astype(np.uint8)  # the NumPy format widens integers; bytes are to be scaled like images
        items[name] = (transform(inputs) if transform else inputs, np.asarray(rows[y][:]))
    return Federation.from_tensors(items, splits=splits, seed=seed, name="hub")


def _stored_type(data: Any, name: str) -> str | None:
    feature = data.features[name]
    while hasattr(feature, "feature"):
        feature = feature.feature
    return getattr(feature, "dtype", None)


def _column(data: Any, name: str) -> None:
    if name not in data.column_names:
        raise DataError(f"no column {name!r} in the data set: it has {', '.join(data.column_names)}")
