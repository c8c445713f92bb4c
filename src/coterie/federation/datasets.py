"""Clients from arrays with a column that names the client, from torch data sets and from Hugging Face data sets."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset, TensorDataset

from coterie.errors import DataError
from coterie.federation.mapped import mapped_array

Values = np.ndarray | str | Path
"""An array, or the `.npy` file that holds it."""
Datasets = Mapping[str, Dataset[Any]] | Sequence[Dataset[Any]]


def items_from_arrays(x: Values, y: Values, client: Values) -> dict[str, Any]:
    """One client per name in the array `client`, with the rows that carry it; see `Federation.from_arrays`."""
    x, y, client = (
        values if isinstance(values, np.ndarray) else mapped_array(Path(values)) for values in (x, y, client)
    )
    if not len(x) == len(y) == len(client):
        raise DataError(f"x has {len(x)} rows, y {len(y)}, client {len(client)}: expected the same number")
    names, first, owner = np.unique(client, return_index=True, return_inverse=True)
    items: dict[str, Any] = {}
    for number in np.argsort(first):
        rows = np.flatnonzero(owner == number)
        together = len(rows) > 0 and rows[-1] - rows[0] + 1 == len(rows)
        index: Any = slice(rows[0], rows[-1] + 1) if together else rows
        items[str(names[number])] = (x[index], y[index])
    return items


def items_from_datasets(datasets: Datasets) -> dict[str, Any]:
    """One client per torch `Dataset`, read once into tensors; see `Federation.from_datasets`."""
    named = datasets if isinstance(datasets, Mapping) else {str(i): d for i, d in enumerate(datasets)}
    return {name: _stack(str(name), data) for name, data in named.items()}


def _stack(name: str, dataset: Dataset[Any]) -> tuple[Tensor, Any]:
    if isinstance(dataset, TensorDataset) and len(dataset.tensors) == 2 and len(dataset):
        x, y = dataset.tensors
        return x, y
    try:
        pairs = [dataset[i] for i in range(len(dataset))]  # type: ignore[arg-type]
        if not pairs:
            raise DataError(f"client {name!r}: the data set is empty: give it data or leave it out")
        inputs, targets = zip(*pairs, strict=True)
        x = torch.stack([_as_tensor(value) for value in inputs])
        if all(isinstance(target, str) for target in targets):
            return x, list(targets)
        y = torch.stack([torch.as_tensor(value) for value in targets])
    except (TypeError, ValueError, RuntimeError) as problem:
        raise DataError(f"client {name!r}: expected a data set of (x, y) items of one shape ({problem})") from problem
    return x, y


def _as_tensor(value: Any) -> Tensor:
    """A sample as a tensor; an image of Pillow `(channels, height, width)`."""
    if not hasattr(value, "getbands"):
        return torch.as_tensor(value)
    pixels = np.array(value)
    return torch.from_numpy(pixels[None] if pixels.ndim == 2 else pixels.transpose(2, 0, 1).copy())


def items_from_hub(
    data: Any, x: str, y: str, client: str | None, transform: Callable[[np.ndarray], np.ndarray] | None
) -> dict[str, Any]:
    """Clients of a Hugging Face data set or a `flwr_datasets` partitioner; see `Federation.from_hub`."""
    items: dict[str, Any] = {}
    for name, part in _hub_parts(data, client).items():
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
    return items


def _hub_parts(data: Any, client: str | None) -> dict[str, Any]:
    """The clients' rows: a partitioner's parts, or those that the column `client` names."""
    if hasattr(data, "num_partitions") and hasattr(data, "load_partition"):
        return {str(i): data.load_partition(i) for i in range(data.num_partitions)}
    if client is None:
        raise DataError("a Hugging Face data set needs client=, the column that names the client of each row")
    _column(data, client)
    owners = np.asarray(data[client])
    return {str(owner): data.select(np.flatnonzero(owners == owner)) for owner in dict.fromkeys(owners.tolist())}


def _stored_type(data: Any, name: str) -> str | None:
    feature = data.features[name]
    while hasattr(feature, "feature"):
        feature = feature.feature
    return getattr(feature, "dtype", None)


def _column(data: Any, name: str) -> None:
    if name not in data.column_names:
        raise DataError(f"no column {name!r} in the data set: it has {', '.join(data.column_names)}")
