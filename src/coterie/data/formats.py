"""Readers of the published file formats; a damaged or wrong file is a DataError that names it."""

from __future__ import annotations

import csv
import gzip
import io
import json
import pickle
import struct
import zlib
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from coterie.errors import DataError

Files = Sequence[Sequence[Path]]
"""The files that match each pattern of a layout."""
IntArray = npt.NDArray[np.int64]
Bytes = npt.NDArray[np.uint8]

IDX_TYPES: dict[int, np.dtype[Any]] = {0x08: np.dtype(np.uint8), 0x0C: np.dtype(">i4")}
CIFAR_PIXELS = 3 * 32 * 32


def read_bytes(path: Path) -> bytes:
    """The content of a file, unpacked when its name ends in .gz."""
    try:
        raw = path.read_bytes()
        return gzip.decompress(raw) if path.suffix == ".gz" else raw
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise damaged(path, f"not a whole gzip file ({error})") from error
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror}): check the file and its permissions") from error


def damaged(path: Path, what: str) -> DataError:
    """The error for a file that is not what its name promises."""
    return DataError(f"{path}: {what}: the file is damaged or another one, remove it and fetch it again")


def _idx_type(path: Path, raw: bytes) -> np.dtype[Any]:
    """What kind of numbers an IDX file says that it holds."""
    if len(raw) < 4 or raw[:2] != b"\0\0" or raw[2] not in IDX_TYPES:
        raise damaged(path, f"starts with {raw[:4].hex() or 'nothing'}, which is not an IDX header")
    return IDX_TYPES[raw[2]]


def read_idx(path: Path, kind: type[np.uint8] | type[np.int32], dims: int) -> npt.NDArray[Any]:
    """The array of an IDX file of bytes (as uint8) or of 32-bit integers (as int64), with `dims` dimensions.

    Layout: two zero bytes, a type code, the number of dimensions, each dimension as a big-endian uint32, the values.
    """
    raw = read_bytes(path)
    dtype = _idx_type(path, raw)
    if dtype.newbyteorder("=") != np.dtype(kind) or raw[3] != dims:
        raise damaged(path, f"holds {dtype.name} in {raw[3]} dimensions, expected {np.dtype(kind).name} in {dims}")
    start = 4 + 4 * dims
    if len(raw) < start:
        raise damaged(path, f"holds {len(raw)} bytes, its header alone has {start}")
    shape = tuple(int(n) for n in np.frombuffer(raw[4:start], ">u4"))
    promised = start + dtype.itemsize * int(np.prod(shape, dtype=object))
    if len(raw) != promised:
        raise damaged(path, f"holds {len(raw)} bytes, its header promises {promised}")
    values: npt.NDArray[Any] = np.frombuffer(raw, dtype, offset=start).reshape(shape)
    return values.copy() if kind is np.uint8 else values.astype(np.int64)


def read_cifar_binary(path: Path, label_bytes: int) -> tuple[Bytes, IntArray]:
    """Images (n, 3, 32, 32) and labels (n,) of a binary batch; the last of `label_bytes` is the fine label."""
    raw = np.frombuffer(read_bytes(path), np.uint8)
    record = label_bytes + CIFAR_PIXELS
    if raw.size == 0 or raw.size % record:
        raise damaged(path, f"holds {raw.size} bytes, not a multiple of {record}")
    rows = raw.reshape(-1, record)
    return rows[:, label_bytes:].reshape(-1, 3, 32, 32).copy(), rows[:, label_bytes - 1].astype(np.int64)


class StoredDtype:
    """Stands for `numpy.dtype` in a pickle: keeps the name of the type, ignores its state."""

    def __init__(self, name: object = "", *_: object) -> None:
        self.name = name

    def __setstate__(self, state: object) -> None:
        pass


class StoredArray:
    """Stands for an array in a pickle: keeps shape, type and bytes, to be checked before an array is made of them."""

    def __init__(self, *_: object) -> None:
        self.state: tuple[object, ...] = ()

    def __setstate__(self, state: tuple[object, ...]) -> None:
        self.state = state  # version, shape, dtype, whether in Fortran order, bytes

    def pixels(self) -> Bytes:
        """The array (n, 3072); ValueError or TypeError where it is none."""
        _, shape, dtype, fortran, raw = self.state
        if not isinstance(dtype, StoredDtype) or dtype.name not in ("u1", "|u1", "uint8"):
            raise ValueError("'data' is not an array of bytes")
        raw = raw.encode("latin1") if isinstance(raw, str) else raw  # a str of Python 2
        if not isinstance(raw, bytes | bytearray) or shape != (len(raw) // CIFAR_PIXELS, CIFAR_PIXELS):
            raise ValueError(f"'data' is not of shape (n, {CIFAR_PIXELS})")
        return np.frombuffer(raw, np.uint8).reshape(shape, order="F" if fortran else "C")


def _from_buffer(raw: object, dtype: object, shape: object, order: object, *_: object) -> StoredArray:
    array = StoredArray()
    array.state = (1, shape, dtype, order == "F", raw)
    return array


def _bytes(content: str | bytes, *_: object) -> bytes:
    """Bytes as old protocols store them, in a text of Latin-1; never a number, which would ask for that much memory."""
    return content.encode("latin1") if isinstance(content, str) else b"".join([content])


# Even NumPy's own functions can be crashed by a wrong state, so that nothing of it is called while a pickle is read.
ALLOWED: dict[tuple[str, str], Any] = {
    **{(f"numpy.{core}.multiarray", "_reconstruct"): StoredArray for core in ("core", "_core")},
    **{(f"numpy.{core}.numeric", "_frombuffer"): _from_buffer for core in ("core", "_core")},
    ("numpy", "ndarray"): StoredArray,
    ("numpy", "dtype"): StoredDtype,
    ("builtins", "bytearray"): _bytes,
    ("_codecs", "encode"): _bytes,
}


class ArrayUnpickler(pickle._Unpickler):
    """Rebuilds plain containers and stand-ins for arrays; anything else a pickle asks for is refused, never run.

    It is the standard library's reader in Python: the one in C takes gigabytes for a wrong number in a damaged file.
    """

    # The same layout as bytes, which are read without making room for as many as a damaged file may promise.
    dispatch: ClassVar = {
        **pickle._Unpickler.dispatch,
        pickle.BYTEARRAY8[0]: pickle._Unpickler.dispatch[pickle.BINBYTES8[0]],
    }

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in ALLOWED:
            raise pickle.UnpicklingError(f"{module}.{name} is not allowed in a data file")
        return ALLOWED[module, name]


def read_cifar_pickle(path: Path, label_key: str) -> tuple[Bytes, IntArray]:
    """Images (n, 3, 32, 32) and labels (n,) of a Python batch; `label_key` is "labels" or "fine_labels"."""
    try:
        batch = ArrayUnpickler(io.BytesIO(read_bytes(path)), encoding="latin1").load()
        content = {key.decode("latin1") if isinstance(key, bytes) else key: value for key, value in batch.items()}
        data, labels = content["data"].pixels(), content[label_key]
        if not isinstance(labels, list) or len(labels) != len(data) or {type(v) for v in labels} - {int}:
            raise ValueError(f"{label_key!r} is not a list of {len(data)} numbers")
        return data.reshape(-1, 3, 32, 32).copy(), np.array(labels, dtype=np.int64)
    # A damaged pickle can fail in any of these ways, depending on which byte is wrong.
    except (
        pickle.UnpicklingError,
        struct.error,
        EOFError,
        ValueError,
        TypeError,
        LookupError,
        AttributeError,
    ) as error:
        raise damaged(path, f"not a readable batch ({error})") from error
    except (MemoryError, OverflowError) as error:
        raise damaged(path, "not a readable batch (a size in it is impossible)") from error


def read_mat(path: Path, names: tuple[str, ...]) -> list[npt.NDArray[Any]]:
    """The named arrays of a MATLAB file (version 5); a cell array has the type object."""
    from scipy.io import loadmat
    from scipy.io.matlab import MatReadError

    try:
        found = loadmat(io.BytesIO(read_bytes(path)), variable_names=names)  # type: ignore[arg-type]
        return [found[name] for name in names]
    # A damaged file can fail in any of these ways, depending on which byte is wrong.
    except (MatReadError, ValueError, TypeError, LookupError, NotImplementedError, OSError, MemoryError) as error:
        raise damaged(path, f"not a MATLAB file with {', '.join(names)} ({error})") from error
    except (zlib.error, struct.error, OverflowError, EOFError) as error:
        raise damaged(path, f"not a whole MATLAB file ({error})") from error


def read_numbers(
    path: Path, columns: int, separator: str | None = None, leave_out: Collection[str] = ()
) -> npt.NDArray[np.float64]:
    """The numbers of a text, `columns` in a row; lines that begin with # are comments."""
    lines = (line for line in read_text(path).splitlines() if line.strip() and not line.startswith("#"))
    words = [word for line in lines for word in line.split(separator) if word not in leave_out]
    try:
        return np.array(words, dtype=np.float64).reshape(-1, columns)
    except ValueError as error:
        raise damaged(path, f"not rows of {columns} numbers ({error})") from error


def read_leaf_json(path: Path) -> dict[str, tuple[Bytes, IntArray]]:
    """Images (n, 1, 28, 28) and labels (n,) of each user of a LEAF FEMNIST file.

    LEAF stores pixels as fractions of 255; they are kept as the bytes they came from.
    """
    try:
        content = json.loads(read_bytes(path))
        users, sizes, data = content["users"], content["num_samples"], content["user_data"]
        table = {}
        for user, size in zip(users, sizes, strict=True):
            x = np.asarray(data[user]["x"], dtype=np.float64).reshape(-1, 784)
            y = np.asarray(data[user]["y"], dtype=np.int64).reshape(-1)
            if not len(x) == len(y) == size:
                raise damaged(path, f"user {user} has {len(x)} images and {len(y)} labels, promised {size}")
            if not ((x >= 0) & (x <= 1)).all():
                raise damaged(path, f"user {user} has pixels outside 0..1")
            table[str(user)] = (np.rint(x * 255).astype(np.uint8).reshape(-1, 1, 28, 28), y)
    except (ValueError, KeyError, TypeError, UnicodeDecodeError, RecursionError) as error:
        raise damaged(path, f"not a LEAF file of users, num_samples and user_data ({error})") from error
    return table


def read_text(path: Path) -> str:
    """The text of a UTF-8 file."""
    try:
        return read_bytes(path).decode("utf-8")
    except UnicodeDecodeError as error:
        raise damaged(path, f"not UTF-8 text ({error.reason} at byte {error.start})") from error


def read_news_csv(path: Path, topics: int) -> tuple[list[str], IntArray]:
    """Texts and topics (n,) of a CSV file of class,text or class,title,text rows, classes counted from 1."""
    texts, labels = [], []
    try:
        for number, row in enumerate(csv.reader(io.StringIO(read_text(path), newline=""), strict=True), start=1):
            if not row:
                continue
            if len(row) not in (2, 3) or not row[0].isdigit() or not 1 <= int(row[0]) <= topics:
                raise damaged(path, f"row {number} is not a class 1..{topics} with one or two texts")
            labels.append(int(row[0]) - 1)
            texts.append(" . ".join(row[1:]))
    except csv.Error as error:
        raise damaged(path, f"not a whole CSV file ({error})") from error
    if not texts:
        raise damaged(path, "no rows")
    return texts, np.array(labels, dtype=np.int64)
