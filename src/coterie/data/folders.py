"""Federations from what people have: arrays, a folder of NumPy files, torch or Hugging Face data sets."""

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

from coterie.data.mapped import divided_as_it_lies, mapped_array, mapped_arrays, npy_files, within_memory
from coterie.errors import DataError
from coterie.federation import PARTS, Client, Federation, as_target, as_tensor, make_client

Splits = tuple[float, float, float]
STANDARD: Splits = (0.8, 0.1, 0.1)


def federation_from_npz(
    folder: Path, *, splits: Splits = STANDARD, seed: int = 0, memory_bytes: int | None = None
) -> Federation:
    """One client a file: `<id>.npz` with `x` and `y`, or `x_train`, `y_train`, `x_test`, … and optionally `group`.

    A client may also come as one file an array: `<id>.x.npy`, `<id>.y.npy` and so on. Its inputs, float32 or int64,
    are always left on disk and read as they are used. They are divided by `splits` as they lie, the first rows to
    train, because a random choice would have to copy them. Archives are loaded and divided at random; with
    `memory_bytes`, what goes beyond a quarter of it is kept in a file without a name (in TMPDIR, else /var/tmp).
    """
    folder = Path(folder)
    if not folder.is_dir():
        raise DataError(f"{folder}: no such folder: give a folder with one .npz file a client")
    files, arrays = sorted(folder.glob("*.npz")), npy_files(folder)
    if not files and not arrays:
        raise DataError(f"{folder}: holds no .npz file: write one a client, with arrays x and y")
    loaded = (client_from_npz(file, splits, seed) for file in files)
    clients = list(loaded) if memory_bytes is None else within_memory(loaded, memory_bytes // 4)
    clients += [client_from_npy(folder, client_id, theirs, splits) for client_id, theirs in arrays.items()]
    return Federation(clients, name=folder.name)


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
    return make_client(file.stem, _parts(file, arrays), splits, seed, group)


def client_from_npy(folder: Path, client_id: str, files: Mapping[str, Path], splits: Splits = STANDARD) -> Client:
    """One client from the files of its arrays, by the arrays' names; what is large stays on disk."""
    arrays = mapped_arrays(files)
    try:
        group = _group(arrays.pop("group", None))
    except ValueError as problem:
        raise DataError(f"{files['group']}: {problem}") from problem
    parts = _parts(folder / f"{client_id}.*.npy", arrays)
    client = make_client(client_id, parts, (1, 0, 0), group=group)
    return divided_as_it_lies(client, splits) if set(parts) == {"train"} else client


def _parts(origin: Path, arrays: Mapping[str, np.ndarray]) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """The pairs (x, y) among a client's arrays by part; a bare pair is all for training."""
    if set(arrays) == {"x", "y"}:
        return {"train": (arrays["x"], arrays["y"])}
    parts = {
        part: (arrays[f"x_{part}"], arrays[f"y_{part}"]) for part in PARTS if {f"x_{part}", f"y_{part}"} <= set(arrays)
    }
    if "train" not in parts or len(arrays) != 2 * len(parts):
        raise DataError(
            f"{origin}: expected arrays x and y, or pairs x_train and y_train, x_validation and y_validation, x_test "
            f"and y_test, and nothing else but group; found {', '.join(sorted(arrays)) or 'none'}: rename or remove"
        )
    return parts


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
    x, y, client = (
        values if isinstance(values, np.ndarray) else mapped_array(Path(values)) for values in (x, y, client)
    )
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
