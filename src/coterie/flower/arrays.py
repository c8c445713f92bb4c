"""A user's own arrays (a state_dict, say) as one flat vector and back, and the check of what nodes send.

Nothing that a node sends is unpickled, evaluated, or given memory before its name, type, shape and size are right.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from io import SEEK_CUR, BytesIO

import numpy as np
import torch
from flwr.app import Array, ArrayRecord
from torch import Tensor

from coterie.errors import ConfigError, did_you_mean
from coterie.federation.mapped import UNREADABLE
from coterie.parameters import Entry, Layout
from coterie.tasks.wire import BadReply

BATCH_NORM = ("running_mean", "running_var", "num_batches_tracked")
"""How PyTorch calls the arrays of a state_dict that are kept rather than trained."""
MOST_HEADER = 4096
NUMPY = "numpy.ndarray"
"""Flower's name for arrays in NumPy's own file format."""


@dataclass(frozen=True)
class Template:
    """Names, shapes and types of the arrays an app exchanges, and their places in the flat vector.

    Trained arrays stand first in the vector, those that are only kept (`buffers`) after them.
    """

    types: dict[str, np.dtype[np.generic]]
    """In the app's own order."""
    layout: Layout

    @classmethod
    def of(cls, record: ArrayRecord, buffers: Sequence[str] | None = None) -> Template:
        """The template of a record; without `buffers`, integers and BatchNorm's statistics are not trained."""
        if not record:
            raise ConfigError("initial_arrays is empty: give the model's arrays, ArrayRecord(model.state_dict())")
        types = _types(record, buffers or ())
        layout = Layout(tuple(_entries(record, types, buffers)))
        if not layout.trainable:
            raise ConfigError("initial_arrays holds nothing to train: name what is only kept with buffers=[...]")
        return cls(types, layout)

    @cached_property
    def dtype(self) -> np.dtype[np.floating]:
        """Of the flat vectors: float64 if any array is, else float32."""
        return np.dtype(np.float64 if np.dtype(np.float64) in self.types.values() else np.float32)

    def vector(self, record: ArrayRecord) -> Tensor:
        """The record's numbers as one new vector `(d,)`; BadReply if it is not exactly of this kind."""
        if set(record) != set(self.types):
            raise BadReply(_other_names(record, self.types))
        vector = np.empty(self.layout.size, self.dtype)
        for entry in self.layout.entries:
            values = read_array(entry.name, record[entry.name], entry.shape, self.types[entry.name])
            vector[entry.start : entry.stop] = values.reshape(-1)
        if not np.isfinite(vector).all():
            raise BadReply("its arrays hold NaN or Inf")
        return torch.from_numpy(vector)

    def record(self, vector: Tensor) -> ArrayRecord:
        """The vector `(d,)` as a record with the app's own names, order and types."""
        named = self.layout.unflatten(vector)
        return ArrayRecord({name: Array(_as_type(named[name].numpy(), kind)) for name, kind in self.types.items()})


def read_array(name: str, array: Array, shape: tuple[int, ...], kind: np.dtype[np.generic]) -> np.ndarray:
    """The numbers of a serialised array, which must be of this shape and type; BadReply says what is wrong.

    Sizes are compared before anything is read, so that a false header cannot make this allocate.
    """
    if array.stype != NUMPY or tuple(array.shape) != shape or array.dtype != str(kind):
        raise BadReply(f"array {name!r} is {array.dtype} {tuple(array.shape)}, expected {kind} {shape}")
    size = kind.itemsize * math.prod(shape)
    if not size <= len(array.data) <= size + MOST_HEADER:
        raise BadReply(f"array {name!r} has {len(array.data)} bytes, expected {size} and a short header")
    written, fortran, spelt, begin = numpy_header(array.data)
    if written != shape or kind not in (spelt, spelt.newbyteorder()) or len(array.data) - begin != size:
        raise BadReply(f"array {name!r} holds something else than it says")
    values = np.frombuffer(array.data, spelt, offset=begin)
    return values.reshape(shape, order="F" if fortran else "C")


def numpy_header(data: bytes) -> tuple[tuple[int, ...], bool, np.dtype[np.generic], int]:
    """Shape, order, type and first byte of the numbers of an array in NumPy's format."""
    file = BytesIO(data)
    try:
        first = np.lib.format.read_magic(file) == (1, 0)
        read = np.lib.format.read_array_header_1_0 if first else np.lib.format.read_array_header_2_0
        shape, fortran, kind = read(file)
    except UNREADABLE as problem:
        raise BadReply("an array is not written in NumPy's format") from problem
    return shape, fortran, kind, file.seek(0, SEEK_CUR)


def _types(record: ArrayRecord, buffers: Sequence[str]) -> dict[str, np.dtype[np.generic]]:
    """The types of a record's arrays, checked."""
    types = {name: np.dtype(array.dtype) for name, array in record.items()}
    for name, kind in types.items():
        if kind.kind not in "fiu":
            raise ConfigError(f"array {name!r} holds {kind}: expected real numbers or integers")
    for name in buffers:
        if name not in types:
            raise ConfigError(f"buffers: no array {name!r}: {did_you_mean(name, types)}")
    return types


def _entries(
    record: ArrayRecord, types: Mapping[str, np.dtype[np.generic]], buffers: Sequence[str] | None
) -> Iterator[Entry]:
    """The places of the arrays in the flat vector."""
    start = 0
    kept = {name: _is_kept(name, kind, buffers) for name, kind in types.items()}
    for name in sorted(types, key=kept.__getitem__):  # trained ones first, else in the app's order
        shape = tuple(record[name].shape)
        stop = start + math.prod(shape)
        yield Entry(name, shape, start, stop, kept[name])
        start = stop


def _is_kept(name: str, kind: np.dtype[np.generic], buffers: Sequence[str] | None) -> bool:
    if buffers is not None:
        return name in buffers
    return kind.kind != "f" or name.rpartition(".")[2] in BATCH_NORM


def _other_names(record: ArrayRecord, names: Collection[str]) -> str:
    missing, strange = [n for n in names if n not in record], [n for n in record if n not in names]
    parts = [f"no array {missing[0]!r}"] if missing else []
    parts += [f"an unknown array {strange[0][:80]!r}"] if strange else []
    return f"its arrays have other names: {', '.join(parts)}"


def _as_type(values: np.ndarray, kind: np.dtype[np.generic]) -> np.ndarray:
    # Of a single number NumPy makes a scalar, which is no array to Flower.
    return np.asarray(values if kind.kind == "f" else np.rint(values)).astype(kind)
