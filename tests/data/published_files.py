"""Small files in the published formats, for the readers' tests."""

from __future__ import annotations

import gzip
import json
import pickle
import struct
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt


def idx_bytes(values: npt.NDArray[Any]) -> bytes:
    code, dtype = (0x08, ">u1") if values.dtype == np.uint8 else (0x0C, ">i4")
    head = struct.pack(f">BBBB{values.ndim}I", 0, 0, code, values.ndim, *values.shape)
    return head + values.astype(dtype).tobytes()


def write(path: Path, content: bytes) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(gzip.compress(content) if path.suffix == ".gz" else content)
    return path


def write_idx_set(
    folder: Path, prefixes: tuple[str, str] = ("train", "t10k"), ending: str = "", classes: int = 10, seed: int = 0
) -> dict[str, npt.NDArray[np.uint8]]:
    """Thirty training and ten test images; returns the arrays by part and kind."""
    generator = np.random.default_rng(seed)
    arrays = {}
    for prefix, n in zip(prefixes, (30, 10), strict=True):
        arrays[f"{prefix}-images"] = generator.integers(0, 256, (n, 28, 28)).astype(np.uint8)
        arrays[f"{prefix}-labels"] = generator.integers(0, classes, n).astype(np.uint8)
        write(folder / f"{prefix}-images-idx3-ubyte{ending}", idx_bytes(arrays[f"{prefix}-images"]))
        write(folder / f"{prefix}-labels-idx1-ubyte{ending}", idx_bytes(arrays[f"{prefix}-labels"]))
    return arrays


def cifar_arrays(n: int, classes: int, seed: int) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.uint8]]:
    generator = np.random.default_rng(seed)
    pixels = generator.integers(0, 256, (n, 3072)).astype(np.uint8)
    return pixels, generator.integers(0, classes, n).astype(np.uint8)


def cifar_pickle(pixels: npt.NDArray[np.uint8], labels: npt.NDArray[np.uint8], key: str, protocol: int = 2) -> bytes:
    return pickle.dumps({"data": pixels, key: [int(v) for v in labels], "batch_label": "a batch"}, protocol=protocol)


def leaf_bytes(users: dict[str, tuple[npt.NDArray[np.uint8], list[int]]]) -> bytes:
    content = {
        "users": list(users),
        "num_samples": [len(y) for _, y in users.values()],
        "user_data": {user: {"x": (x / 255).tolist(), "y": y} for user, (x, y) in users.items()},
    }
    return json.dumps(content).encode()
