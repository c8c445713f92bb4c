"""Clients from a folder of NumPy files, one archive per client or one file per array."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from coterie.errors import DataError
from coterie.federation.base import PARTS, STANDARD, Client, Splits, make_client
from coterie.federation.mapped import UNREADABLE, divided_as_it_lies, mapped_arrays, npy_files, within_memory


def clients_from_folder(
    folder: Path, splits: Splits = STANDARD, seed: int = 0, memory_bytes: int | None = None
) -> list[Client]:
    """One client per `<id>.npz`, or per set of files `<id>.x.npy`, `<id>.y.npy`; see `Federation.from_folder`."""
    if not folder.is_dir():
        raise DataError(f"{folder}: no such folder: give a folder with one .npz file per client")
    files, arrays = sorted(folder.glob("*.npz")), npy_files(folder)
    if not files and not arrays:
        raise DataError(f"{folder}: holds no .npz file: write one per client, with arrays x and y")
    loaded = (client_from_npz(file, splits, seed) for file in files)
    clients = list(loaded) if memory_bytes is None else within_memory(loaded, memory_bytes // 4)
    return clients + [client_from_npy(folder, client_id, theirs, splits) for client_id, theirs in arrays.items()]


def client_from_npz(file: Path, splits: Splits = STANDARD, seed: int = 0) -> Client:
    """One client from its file; the file's name is its id."""
    try:
        archive = np.load(file, allow_pickle=False)
        if not isinstance(archive, np.lib.npyio.NpzFile):
            raise ValueError("it holds one bare array")
        with archive:
            arrays = {name: archive[name] for name in archive.files}
        group = _group(arrays.pop("group", None))
    except UNREADABLE as problem:
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
