"""Matrices between clients that a method clustered by, as files of a run folder."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch

from coterie.errors import RunError
from coterie.methods import Matrix
from coterie.snapshot import load_tensors, save_tensors, writing

__all__ = ["Matrix", "read_matrices", "write_matrix"]


def write_matrix(matrix: Matrix, folder: Path, t: int) -> None:
    """Write the matrix of round `t` to NAME.safetensors in the folder, atomically."""
    with writing(folder):
        folder.mkdir(exist_ok=True)
    about = {
        "clients": "\n".join(matrix.clients),
        "meaning": matrix.meaning,
        "similar": str(matrix.similar),
        "round": str(t),
    }
    values = torch.from_numpy(np.ascontiguousarray(matrix.values, dtype=np.float32))
    save_tensors({"values": values}, folder / f"{matrix.name}.safetensors", about)


def read_matrices(folder: Path) -> list[Matrix]:
    """The matrices in a folder, by name; RunError names a file that is damaged."""
    return [_read(path) for path in sorted(folder.glob("*.safetensors"))] if folder.is_dir() else []


def _read(path: Path) -> Matrix:
    tensors, about = load_tensors(path)
    try:
        clients, values = tuple(about["clients"].split("\n")), tensors["values"].numpy()
        if values.shape != (len(clients), len(clients)):
            raise ValueError(f"{values.shape} values for {len(clients)} clients")
        return Matrix(path.stem, clients, values, about["meaning"], about["similar"] == "True")
    except (KeyError, ValueError) as problem:
        raise RunError(f"{path}: not a matrix of a run ({problem})") from problem
