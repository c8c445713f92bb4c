"""Clients from a folder of NumPy files, one archive per client or one file per array."""

from __future__ import annotations

import math
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TypeVar

import numpy as np

from coterie.errors import DataError
from coterie.federation.client import PARTS, STANDARD, Client, Splits, check_regular, make_client
from coterie.federation.labels import encode_texts, label_order
from coterie.federation.mapped import UNREADABLE, divided_as_it_lies, mapped_arrays, npy_files, within_memory

Parts = dict[str, tuple[np.ndarray, np.ndarray]]
Shape = tuple[int, ...]
V = TypeVar("V")


def clients_from_folder(
    folder: Path,
    splits: Splits,
    seed: int,
    memory_bytes: int | None,
    label_names: Sequence[str] | None,
) -> tuple[list[Client], tuple[str, ...] | None]:
    """One client per `<id>.npz`, or per set of files `<id>.x.npy`, `<id>.y.npy`; see `Federation.from_folder`."""
    if not folder.is_dir():
        raise DataError(f"{folder}: no such folder: give a folder with one .npz file per client")
    files, arrays = sorted(folder.glob("*.npz")), npy_files(folder)
    if not files and not arrays:
        raise DataError(f"{folder}: holds no .npz file: write one per client, with arrays x and y")
    _check_shapes(files)
    names = tuple(label_names) if label_names else _text_labels(files)
    loaded = (client_from_npz(file, splits, seed, names) for file in files)
    clients = list(loaded) if memory_bytes is None else within_memory(loaded, memory_bytes // 4)
    clients += [client_from_npy(folder, client_id, theirs, splits, names) for client_id, theirs in arrays.items()]
    return clients, names


def _text_labels(files: Sequence[Path]) -> tuple[str, ...] | None:
    """The names of the classes in archives whose labels are texts; None where the first archive's are not."""
    found: set[str] = set()
    for file in files:
        labels = list(_archive(file, "y").values())
        if not any(values.dtype.kind == "U" for values in labels):
            break
        found.update(str(value) for values in labels for value in values.flat)
    return tuple(sorted(found, key=label_order)) if found else None


def client_from_npz(
    file: Path, splits: Splits = STANDARD, seed: int = 0, label_names: Sequence[str] | None = None
) -> Client:
    """One client from its file; the file's name is its id. With `label_names` its labels are looked up there."""
    arrays = _archive(file)
    blocks = arrays.pop("block", None)
    try:
        group = _group(arrays.pop("group", None))
    except ValueError as problem:
        raise DataError(f"{file}: not a readable .npz file of plain arrays ({problem})") from problem
    parts = _labelled(file.stem, _parts(file, arrays), label_names)
    return make_client(file.stem, parts, splits, seed, group, blocks)


def _check_shapes(files: Sequence[Path]) -> None:
    """DataError where archives do not fit together, by their headers: a small one can unpack to gigabytes."""
    alike: list[tuple[Path, Shape]] = []
    for file in files:
        shapes = archive_shapes(file)
        if math.prod(group := shapes.pop("group", ())) != 1:
            raise DataError(f"{file}: group has shape {group}, expected one integer")
        shapes.pop("block", None)
        for part, pair in _parts(file, shapes).items():
            alike = alike or [(file, shape) for shape in pair]
            if pair[0][:1] != pair[1][:1]:
                raise DataError(
                    f"{file}, {part}: x and y have shapes {pair[0]}, {pair[1]}: give one target for each sample"
                )
            for what, shape, (first, other) in zip("xy", pair, alike, strict=True):
                if shape[1:] != other[1:]:
                    raise DataError(
                        f"{file}, {part}: {what} has shape {shape}, but {first.name} has {other}: all clients need "
                        "the same but for the number of samples"
                    )


def archive_shapes(file: Path) -> dict[str, Shape]:
    """The shapes of an archive's arrays by name, from their headers."""
    check_regular(file)
    try:
        if not zipfile.is_zipfile(file):
            raise ValueError("it is no archive: one bare array, or damaged")
        with zipfile.ZipFile(file) as archive:
            return {name.removesuffix(".npy"): _shape(archive, name) for name in archive.namelist()}
    except UNREADABLE as problem:
        raise DataError(f"{file}: not a readable .npz file of plain arrays ({problem})") from problem


def _shape(archive: zipfile.ZipFile, name: str) -> Shape:
    with archive.open(name) as array:
        first = np.lib.format.read_magic(array) == (1, 0)
        read = np.lib.format.read_array_header_1_0 if first else np.lib.format.read_array_header_2_0
        return read(array)[0]


def _archive(file: Path, begin: str = "") -> dict[str, np.ndarray]:
    """The arrays of a .npz file by name, of those whose names begin so."""
    try:
        archive = np.load(file, allow_pickle=False)
        if not isinstance(archive, np.lib.npyio.NpzFile):
            raise ValueError("it holds one bare array")
        with archive:
            return {name: archive[name] for name in archive.files if name.startswith(begin)}
    except UNREADABLE as problem:
        raise DataError(f"{file}: not a readable .npz file of plain arrays ({problem})") from problem


def _labelled(client_id: str, parts: Parts, label_names: Sequence[str] | None) -> Parts:
    """The parts with class numbers in place of the labels."""
    if not label_names:
        return parts
    items, _ = encode_texts([(client_id, parts)], label_names)
    changed: Parts = items[0][1]
    return changed


def client_from_npy(
    folder: Path,
    client_id: str,
    files: Mapping[str, Path],
    splits: Splits,
    label_names: Sequence[str] | None,
) -> Client:
    """One client from the files of its arrays, by the arrays' names; what is large stays on disk."""
    arrays = mapped_arrays(files)
    try:
        group = _group(arrays.pop("group", None))
    except ValueError as problem:
        raise DataError(f"{files['group']}: {problem}") from problem
    parts = _labelled(client_id, _parts(folder / f"{client_id}.*.npy", arrays), label_names)
    client = make_client(client_id, parts, (1, 0, 0), group=group)
    return divided_as_it_lies(client, splits) if set(parts) == {"train"} else client


def _parts(origin: Path, arrays: Mapping[str, V]) -> dict[str, tuple[V, V]]:
    """The pairs (x, y) among a client's arrays by part; a bare pair is all for training."""
    if set(arrays) == {"x", "y"}:
        return {"train": (arrays["x"], arrays["y"])}
    parts = {
        part: (arrays[f"x_{part}"], arrays[f"y_{part}"]) for part in PARTS if {f"x_{part}", f"y_{part}"} <= set(arrays)
    }
    if "train" not in parts or len(arrays) != 2 * len(parts):
        raise DataError(
            f"{origin}: expected arrays x and y, or pairs x_train and y_train, x_validation and y_validation, x_test "
            f"and y_test, and nothing else but group and (in .npz) block; found "
            f"{', '.join(sorted(arrays)) or 'none'}: rename or remove"
        )
    return parts


def _group(values: np.ndarray | None) -> int | None:
    if values is None:
        return None
    if values.size != 1 or values.dtype.kind not in "iu":
        raise ValueError(f"group is {values.dtype} of shape {values.shape}, expected one integer")
    return int(values.item())
