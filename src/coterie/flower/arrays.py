"""A user's own arrays (a state_dict, say) as one flat vector and back, and the check of what nodes send.

Nothing that a node sends is unpickled, evaluated, or given memory before its name, type, shape and size are right.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from flwr.app import Array, ArrayRecord
from torch import Tensor

from coterie.errors import ConfigError, did_you_mean
from coterie.parameters import Entry, Layout
from coterie.tasks.wire import BadReply

BATCH_NORM = ("running_mean", "running_var", "num_batches_tracked")
"""How PyTorch calls the arrays of a state_dict that are kept rather than trained."""
MAGIC = b"\x93NUMPY"
MOST_HEADER = 4096
HEADER = re.compile(
    rb"\{'descr': '([<>|=]?[a-z]\d+)', 'fortran_order': (True|False), 'shape': \(((?:\d+, ?)*\d*)\),? *\}\s*"
)


@dataclass(frozen=True)
class Template:
    """Names, shapes and types of the arrays an app exchanges, and their places in the flat vector.

    Trained arrays stand first in the vector, those that are only kept (`buffers`) after them.
    """

    names: tuple[str, ...]
    """In the app's own order."""
    types: dict[str, np.dtype[np.generic]]
    layout: Layout

    @classmethod
    def of(cls, record: ArrayRecord, buffers: Sequence[str] | None = None) -> Template:
        """The template of a record; without `buffers`, integers and BatchNorm's statistics are not trained."""
        if not record:
            raise ConfigError("initial_arrays is empty: give the model's arrays, ArrayRecord(model.state_dict())")
        types = {name: np.dtype(array.dtype) for name, array in record.items()}
        for name, kind in types.items():
            if kind.kind not in "fiu":
                raise ConfigError(f"array {name!r} holds {kind}: expected real numbers or integers")
        for name in buffers or ():
            if name not in types:
                raise ConfigError(f"buffers: no array {name!r}: {did_you_mean(name, types)}")
        kept = [name for name in types if _is_kept(name, types[name], buffers)]
        entries, start = [], 0
        for name in [*(name for name in types if name not in kept), *kept]:
            shape = tuple(record[name].shape)
            stop = start + math.prod(shape)
            entries.append(Entry(name, shape, start, stop, name in kept))
            start = stop
        layout = Layout(tuple(entries))
        if not layout.trainable:
            raise ConfigError("initial_arrays holds nothing to train: name what is only kept with buffers=[...]")
        return cls(tuple(types), types, layout)

    @cached_property
    def dtype(self) -> torch.dtype:
        """Of the flat vectors: float64 if any array is, else float32."""
        return torch.float64 if np.dtype(np.float64) in self.types.values() else torch.float32

    def vector(self, record: ArrayRecord) -> Tensor:
        """The record's numbers as one new vector `(d,)`; BadReply if it is not exactly of this kind."""
        if set(record) != set(self.names):
            raise BadReply(_other_names(record, self.names))
        vector = torch.empty(self.layout.size, dtype=self.dtype)
        for entry in self.layout.entries:
            values = read_array(entry.name, record[entry.name], entry.shape, self.types[entry.name])
            vector[entry.start : entry.stop] = torch.from_numpy(values.reshape(-1).astype(_numpy(self.dtype)))
        if not torch.isfinite(vector).all():
            raise BadReply("its arrays hold NaN or Inf")
        return vector

    def record(self, vector: Tensor) -> ArrayRecord:
        """The vector `(d,)` as a record with the app's own names, order and types."""
        named = self.layout.unflatten(vector)
        return ArrayRecord({name: Array(_as_type(named[name].numpy(), self.types[name])) for name in self.names})


def read_array(name: str, array: Array, shape: tuple[int, ...], kind: np.dtype[np.generic]) -> np.ndarray:
    """The numbers of a serialised array, which must be of this shape and type; BadReply says what is wrong."""
    if array.stype != "numpy.ndarray" or tuple(array.shape) != shape or array.dtype != str(kind):
        raise BadReply(f"array {name!r} is {array.dtype} {tuple(array.shape)}, expected {kind} {shape}")
    data, size = array.data, kind.itemsize * math.prod(shape)
    if not size <= len(data) <= size + MOST_HEADER:
        raise BadReply(f"array {name!r} has {len(data)} bytes, expected {size} and a short header")
    width = 2 if data[6:7] == b"\x01" else 4
    begin = 8 + width
    end = begin + int.from_bytes(data[8:begin], "little")
    header = HEADER.fullmatch(data[begin:end]) if data[:6] == MAGIC and end <= len(data) else None
    if header is None:
        raise BadReply(f"array {name!r} is not written in NumPy's format")
    descr, fortran, written = header.groups()
    written_shape = tuple(int(number) for number in written.split(b",") if number.strip())
    spelt = {typed.str: typed for typed in (kind.newbyteorder("<"), kind.newbyteorder(">"))}
    if written_shape != shape or descr.decode() not in spelt or len(data) - end != size:
        raise BadReply(f"array {name!r} holds something else than it says")
    values = np.frombuffer(data, spelt[descr.decode()], offset=end)
    return values.reshape(shape, order="F" if fortran == b"True" else "C")


def _is_kept(name: str, kind: np.dtype[np.generic], buffers: Sequence[str] | None) -> bool:
    if buffers is not None:
        return name in buffers
    return kind.kind != "f" or name.rpartition(".")[2] in BATCH_NORM


def _other_names(record: ArrayRecord, names: Sequence[str]) -> str:
    missing, strange = [n for n in names if n not in record], [n for n in record if n not in names]
    parts = [f"no array {missing[0]!r}"] if missing else []
    parts += [f"an unknown array {strange[0][:80]!r}"] if strange else []
    return f"its arrays have other names: {', '.join(parts)}"


def _as_type(values: np.ndarray, kind: np.dtype[np.generic]) -> np.ndarray:
    # Of a single number NumPy makes a scalar, which is no array to Flower.
    return np.asarray(values if kind.kind == "f" else np.rint(values)).astype(kind)


def _numpy(dtype: torch.dtype) -> type[np.floating]:
    return np.float64 if dtype == torch.float64 else np.float32
