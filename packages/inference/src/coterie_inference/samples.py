"""Data that is brought to a finished run: read from arrays, tables or files, and checked against the run's model."""

from __future__ import annotations

import os
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from coterie.errors import DataError, did_you_mean
from coterie.federation import PARTS, Client, Federation, Split, as_target, as_tensor
from coterie.federation.client import check_regular
from coterie.federation.folders import archive_shapes
from coterie.federation.images import image_files, read_images
from coterie.federation.table_files import is_frame
from coterie.federation.table_sites import read_all
from coterie.federation.tables import Table

TABLES = (".csv", ".tsv", ".parquet", ".pq")
"""Endings of the files that a table's preprocessing reads."""
NEWCOMER = "newcomer"
"""The id of data that has no name of its own."""


class Samples(NamedTuple):
    """Inputs `(n, …)` and, where they are known, targets `(n, …)`."""

    x: Tensor
    y: Tensor | None = None


@dataclass(frozen=True)
class ModelShape:
    """What a run's model takes and what it answers, as in `model.json`."""

    input_shape: tuple[int, ...]
    classes: int
    """Number of classes; 0 for a regression."""
    dtype: torch.dtype
    """Type of the inputs: real numbers, or whole ones (tokens)."""
    scaled: bool | None = None
    """Whether the run's inputs came as uint8 and were scaled to [0, 1]; None: not known."""
    label_names: tuple[Any, ...] = ()
    """What the classes are called, in order; empty: by their numbers."""
    table: Table | None = None
    """How rows of a table become inputs; None where the run was not trained on tables."""

    @classmethod
    def of(cls, shape: Mapping[str, Any], table: Table | None = None) -> ModelShape:
        """From the content of `model.json` and `table.json`."""
        names = getattr(table, "label_names", None) or shape.get("label_names") or ()
        return cls(
            tuple(shape["input_shape"]),
            int(shape["classes"]),
            getattr(torch, shape["dtype"]),
            shape.get("scaled"),
            tuple(names),
            table,
        )

    def inputs(self, values: Any) -> Tensor:
        """Inputs `(n, *input_shape)` from numbers of any kind; DataError where they do not fit the model."""
        try:
            given = values if isinstance(values, Tensor) else torch.from_numpy(np.asarray(values))
            x = as_tensor(given)
        except (TypeError, ValueError) as problem:
            raise DataError(f"the inputs are no array of numbers ({problem}): give one row per sample") from problem
        self.check_shape(tuple(x.shape))
        if self.dtype.is_floating_point:
            self._check_scale(given, x)
            x = x.to(self.dtype)
            if not bool(torch.isfinite(x).all()):
                raise DataError("the inputs hold numbers that are not finite: fill in or leave out missing values")
        elif x.is_floating_point():
            raise DataError("the inputs are real numbers, the model takes whole ones (tokens): give integers")
        return x

    def check_shape(self, shape: tuple[int, ...]) -> None:
        """DataError where inputs of that shape do not fit the model."""
        if not shape or shape[1:] != self.input_shape:
            hint = "; one sample alone needs a first dimension of 1" if shape == self.input_shape else ""
            raise DataError(
                f"the inputs have shape {shape}, the model takes (n, {', '.join(map(str, self.input_shape))})"
                f": give samples of that shape{hint}"
            )

    def check_count(self, labels: int, n: int) -> None:
        """DataError where there are fewer or more labels than samples."""
        if labels != n:
            raise DataError(f"{n} samples with {labels} labels: give one label for each sample")

    def _check_scale(self, given: Tensor, x: Tensor) -> None:
        if self.scaled is None or not x.numel():
            return
        as_bytes = given.dtype == torch.uint8
        if as_bytes and not self.scaled:
            raise DataError(
                "the inputs are uint8, which is scaled to [0, 1], and the run's were not: give them as real numbers"
            )
        if self.scaled and not as_bytes and float(x.abs().max()) > 1:
            raise DataError(
                f"the inputs go up to {float(x.abs().max()):.4g}, the run's were scaled to [0, 1]: give uint8, or "
                "divide by 255"
            )

    def targets(self, values: Any, n: int) -> Tensor:
        """Targets for n samples: labels by number or by name, or real numbers."""
        y = values if isinstance(values, Tensor) else np.asarray(values)
        self.check_count(len(y), n)
        if not self.classes:
            try:
                return as_target(y).to(torch.float32)
            except (TypeError, ValueError) as problem:
                raise DataError(f"the targets are no numbers ({problem}), but the run is a regression") from problem
        if self.label_names and not self._numbered(y):
            return self._by_name(y.tolist())
        return self._by_number(y)

    def _by_number(self, y: Tensor | np.ndarray) -> Tensor:
        """Classes by number."""
        try:
            labels = as_target(y)
        except (TypeError, ValueError) as problem:
            raise DataError(f"the labels are no numbers ({problem}): give classes 0 to {self.classes - 1}") from problem
        if labels.is_floating_point() and bool((labels != labels.round()).any()):
            raise DataError(f"the labels are real numbers, the run has classes 0 to {self.classes - 1}: give those")
        labels = labels.to(torch.int64)
        wrong = labels[(labels < 0) | (labels >= self.classes)]
        if len(wrong):
            raise DataError(f"label {int(wrong[0])}: the run has {self.classes} classes, 0 to {self.classes - 1}")
        return labels

    def _numbered(self, y: Tensor | np.ndarray) -> bool:
        """Whether these are classes by number, although they have names: whole numbers, where no name is a number."""
        whole = not y.is_floating_point() if isinstance(y, Tensor) else y.dtype.kind in "iu"
        return whole and not any(str(name).lstrip("-").isdigit() for name in self.label_names)

    def _by_name(self, values: Sequence[Any]) -> Tensor:
        number = {str(name): i for i, name in enumerate(self.label_names)}
        labels = []
        for value in values:
            text = str(value)
            if text not in number and isinstance(value, float) and value.is_integer():
                text = str(int(value))  # a column of whole numbers with a gap is read as real numbers
            if text not in number:
                raise DataError(f"label {text!r} is none of the run's: {did_you_mean(text, number)}")
            labels.append(number[text])
        return torch.tensor(labels, dtype=torch.int64)

    def named(self, labels: Tensor) -> np.ndarray:
        """Class numbers by their names, where they have some."""
        return np.asarray(self.label_names)[labels.numpy()] if self.label_names else np.asarray(labels.numpy())


def read_samples(data: Any, shape: ModelShape, *, labelled: bool = False) -> Samples:
    """The samples in whatever was given.

    Args:
        data: a pair `(inputs, targets)`, inputs alone, a `Split`, a data frame, or the path of a `.npz`, `.npy` or
            table file, of an image or of a folder of images.
        shape: what the model takes.
        labelled: whether a pair, or what has labels, must have come; DataError otherwise.
    """
    found = _read(data, shape)
    if labelled and found.y is None:
        raise DataError(
            "the data has no labels, which are needed here: give a pair (inputs, labels) or a file with both"
        )
    return found


def _read(data: Any, shape: ModelShape) -> Samples:
    if isinstance(data, str | os.PathLike):
        return _read_file(Path(data), shape)
    if isinstance(data, Client):
        raise DataError(f"client {data.id!r} has several parts of data: give one, such as client.test")
    if isinstance(data, Split):
        return Samples(shape.inputs(data.x), _counted(data.y, shape))
    if isinstance(data, tuple) and len(data) == 2:
        return _checked(*data, shape)
    if shape.table is not None and is_frame(data):
        return _from_table(data, shape.table, shape)
    return _checked(data, None, shape)


def _checked(x: Any, y: Any, shape: ModelShape) -> Samples:
    inputs = shape.inputs(x)
    return Samples(inputs, None if y is None else shape.targets(y, len(inputs)))


def _from_table(data: Any, table: Table, shape: ModelShape) -> Samples:
    x, y = table.transform(data)
    return Samples(shape.inputs(x), y)


def _read_file(path: Path, shape: ModelShape) -> Samples:
    if not path.exists():
        raise DataError(f"{path}: no such file: give a .npz, .npy, .csv or .parquet file, or images")
    if path.suffix.lower() in TABLES:
        if shape.table is None:
            raise DataError(
                f"{path}: the run was not trained on tables, so nothing says which columns its inputs are: give a .npz "
                "file with an array x"
            )
        return _from_table(path, shape.table, shape)
    if path.suffix.lower() not in (".npz", ".npy"):
        return _from_images(path, shape)
    check_regular(path)
    if zipfile.is_zipfile(path):
        _check_headers(path, shape)
    arrays = _arrays(path)
    try:
        return _checked(*_inputs_and_labels(arrays), shape)
    except DataError as problem:
        raise DataError(f"{path}: {problem}") from problem


def _check_headers(path: Path, shape: ModelShape) -> None:
    """DataError where an archive does not fit the model, before it is unpacked: a small one can hold gigabytes."""
    shapes = archive_shapes(path)
    try:
        for name, inputs in shapes.items():
            if name == "x" or name.startswith("x_"):
                shape.check_shape(inputs)
                labels = shapes.get(f"y{name[1:]}") or inputs
                shape.check_count(labels[0], inputs[0])
    except DataError as problem:
        raise DataError(f"{path}: {problem}") from problem


def _inputs_and_labels(arrays: Mapping[str, np.ndarray]) -> tuple[np.ndarray, np.ndarray | None]:
    """`x` and `y` of an archive, or those of all its parts together; without labels where some part has none."""
    if "x" in arrays:
        return arrays["x"], arrays.get("y")
    parts = [part for part in PARTS if f"x_{part}" in arrays]
    if not parts:
        found = ", ".join(arrays) or "none"
        raise DataError(f"expected an array x and, where labels are known, y; found {found}")
    x = np.concatenate([arrays[f"x_{part}"] for part in parts])
    known = all(f"y_{part}" in arrays for part in parts)
    return x, np.concatenate([arrays[f"y_{part}"] for part in parts]) if known else None


def _from_images(path: Path, shape: ModelShape) -> Samples:
    """The samples in an image or a folder of images, labelled by the folders' names."""
    if not path.is_dir() and not image_files(path):
        raise DataError(f"{path}: cannot be read: give a .npz, .npy, .csv or .parquet file, or images")
    pixels, kinds = read_images(path, shape.input_shape)
    return _checked(pixels, kinds, shape)


def _arrays(path: Path) -> dict[str, np.ndarray]:
    try:
        loaded = np.load(path, allow_pickle=False)
        if isinstance(loaded, np.ndarray):
            return {"x": loaded}
        with loaded:
            return {name: loaded[name] for name in loaded.files}
    except Exception as problem:
        raise DataError(f"{path}: not a readable file of plain arrays ({problem})") from problem


def read_newcomers(data: Any, shape: ModelShape) -> dict[str, Samples]:
    """Samples of several clients by id: from a federation, a mapping, a folder with a file per client, or of one alone.

    Of a federation all that a client holds counts.
    """
    if isinstance(data, Federation):
        names = tuple(getattr(data, "label_names", None) or ())
        return {client.id: _whole(client, shape, names) for client in data}
    if isinstance(data, Client):
        return {data.id: _whole(data, shape)}
    if isinstance(data, Mapping):
        return {str(name): read_samples(item, shape) for name, item in data.items()}
    if isinstance(data, str | os.PathLike):
        return _newcomers_at(Path(data), shape)
    return (_by_client(data, shape) if is_frame(data) else {}) or {NEWCOMER: read_samples(data, shape)}


def _newcomers_at(path: Path, shape: ModelShape) -> dict[str, Samples]:
    """Newcomers in a file, by its column of clients if it has one, or in a folder."""
    if not path.is_dir():
        return _by_client(path, shape) or {path.stem: read_samples(path, shape)}
    files = sorted(file for file in path.iterdir() if file.suffix.lower() in (".npz", *TABLES))
    return {file.stem: read_samples(file, shape) for file in files} if files else _in_folders(path, shape)


def _in_folders(path: Path, shape: ModelShape) -> dict[str, Samples]:
    """Newcomers in a folder without tables and archives: arrays, or images, of one or with a folder for each."""
    below = sorted(entry for entry in path.iterdir() if entry.is_dir() and not entry.name.startswith("."))
    if not below and any(path.glob("*.npy")):
        return read_newcomers(Federation.from_folder(path, splits=(1, 0, 0)), shape)
    classes = {str(name) for name in shape.label_names}
    of_one_client = any(entry.name in classes and image_files(entry) for entry in below)
    places = below if below and not of_one_client else [path]
    return {place.name: read_samples(place, shape) for place in places}


def _by_client(data: Any, shape: ModelShape) -> dict[str, Samples]:
    """The clients in one table, where the run's tables had a column that names them and this one has it."""
    table = shape.table
    if table is None or table.client_column is None or (isinstance(data, Path) and data.suffix.lower() not in TABLES):
        return {}
    if table.client_column not in table.read(data).columns:
        return {}
    tables = read_all(data, table.client_column, table.decimal)
    return {name: _from_table(raw, table, shape) for name, raw in tables.items()}


def _whole(client: Client, shape: ModelShape, names: tuple[str, ...] = ()) -> Samples:
    parts = [client.part(name) for name in PARTS if len(client.part(name))]
    x, y = torch.cat([part.x for part in parts]), torch.cat([part.y for part in parts])
    try:
        other = names and shape.label_names and names != shape.label_names
        return Samples(
            shape.inputs(x), shape.targets([names[i] for i in y.tolist()], len(y)) if other else _counted(y, shape)
        )
    except DataError as problem:
        raise DataError(f"client {client.id!r}: {problem}") from problem


def _counted(y: Tensor, shape: ModelShape) -> Tensor:
    """Labels that a federation has counted from 0 already."""
    return replace(shape, label_names=()).targets(y, len(y))


def as_federation(newcomers: Mapping[str, Samples], shape: ModelShape) -> Federation:
    """Newcomers as a federation whose data is all for training; data without labels is given labels of zero."""
    if not newcomers:
        raise DataError("there is no newcomer in the data: give at least one")
    clients = []
    for name, (x, y) in newcomers.items():
        if not len(x):
            raise DataError(f"client {name!r} has no samples: give it data or leave it out")
        if y is None:
            y = torch.zeros(len(x), dtype=torch.int64) if shape.classes else torch.full((len(x),), 0.5)
        clients.append(Client(name, Split(x, y), Split(x[:0], y[:0]), Split(x[:0], y[:0])))
    return Federation(clients, shape.classes or None, name="newcomers")
