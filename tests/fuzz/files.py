"""Data files: arrays of every type and shape, archives and tables with spoilt bytes."""

from __future__ import annotations

import contextlib
import io
import os
import random
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch

from coterie import Federation
from coterie.data.formats import read_idx, read_leaf_json, read_news_csv

from .harness import Finding, Trial
from .mutations import spoilt

TYPES = ["f2", "f4", "f8", "u1", "i1", "i4", "i8", "u8", "?", "c8", "U3", "S2", "M8[s]", "V4", "O"]
SHAPES: list[tuple[int, ...]] = [(), (0,), (9,), (10,), (0, 3), (10, 0), (10, 3), (10, 4), (10, 2, 2), (1, 3)]
NEWS = b'"1","title","text"\n"2","other","more, text"\n'
LEAF = b'{"users": ["a"], "num_samples": [1], "user_data": {"a": {"x": [[0.0, 1.0]], "y": [1]}}}'
IDX = bytes([0, 0, 8, 3, 0, 0, 0, 2, 0, 0, 0, 2, 0, 0, 0, 2]) + bytes(range(8))


class Files:
    """A folder of clients, of which one or more are odd; or a file of a published data set."""

    name = "files"

    @contextlib.contextmanager
    def open(self, folder: Path) -> Iterator[Trial]:
        """An empty folder for each case."""

        def trial(random: random.Random) -> str:
            place = folder / "data"
            shutil.rmtree(place, ignore_errors=True)
            place.mkdir()
            return _published(place, random) if random.random() < 0.2 else _clients(place, random)

        yield trial


def _clients(place: Path, random: random.Random) -> str:
    for client in range(random.randint(1, 3)):
        arrays = {"x": np.ones((10, 3), np.float32), "y": np.arange(10) % 2}
        if random.random() < 0.6:
            arrays[random.choice(["x", "y", "group", "x_train", "z"])] = _array(random)
        if random.random() < 0.6:
            file = io.BytesIO()
            np.savez(file, **arrays)
            (place / f"c{client}.npz").write_bytes(_perhaps(file.getvalue(), random))
            continue
        for name, values in arrays.items():
            file = io.BytesIO()
            np.save(file, values)
            (place / f"c{client}.{name}.npy").write_bytes(_perhaps(file.getvalue(), random))
    if random.random() < 0.05:
        os.mkfifo(place / random.choice(["c9.npz", "c9.x.npy", "c9.csv"]))
    if random.random() < 0.05:
        os.rename(place / sorted(os.listdir(place))[0], os.fsencode(place) + b"/\xff.npz")
    federation = Federation.from_folder(place, memory_bytes=random.choice([None, 10**9, 400]))
    for held in federation:
        for part in (held.train, held.validation, held.test):
            if len(part.x) != len(part.y) or not torch.isfinite(part.x.double()).all():
                raise Finding(f"client {held.id!r} was accepted with unequal lengths or numbers that are not finite")
    return "accepted"


def _array(random: random.Random) -> np.ndarray:
    shape, kind = random.choice(SHAPES), random.choice(TYPES)
    values: np.ndarray = np.zeros(shape, "O" if kind == "O" else kind)
    if kind == "i8" and values.size:
        values.flat[0] = random.choice([0, 1, 2**24, 2**63 - 1, -(2**63)])
    if kind in ("f4", "f8") and values.size:
        values.flat[0] = random.choice([0.0, np.nan, np.inf, 1e38, -1.0])
    return values


def _perhaps(data: bytes, random: random.Random) -> bytes:
    return spoilt(data, random) if random.random() < 0.4 else data


def _published(place: Path, random: random.Random) -> str:
    read: Any
    data, read = random.choice(
        [
            (NEWS, lambda path: read_news_csv(path, 4)),
            (LEAF, read_leaf_json),
            (IDX, lambda path: read_idx(path, np.uint8, 3)),
        ]
    )
    path = place / "file"
    path.write_bytes(spoilt(data, random))
    read(path)
    return "accepted"
