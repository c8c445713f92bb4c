"""Norms of updates and the cosine of every pair of them (eq. 13 of the CFL paper), a few columns at a time."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
import torch

Updates = npt.NDArray[np.floating] | torch.Tensor

# Fixed, never derived from free memory: the order of summation, hence every last bit, must not depend on the machine.
COLUMNS = 4096

# Rows of the Gram matrix made by one product. Only the part right of the diagonal is computed, so thinner strips
# waste less of the symmetric half, but a product that is too thin leaves the peak of the matrix multiplication.
STRIP = 512


def column_blocks(updates: Updates) -> Iterator[torch.Tensor]:
    """Yield `updates` (M, d) as consecutive column blocks (M, at most COLUMNS), float64 if given so, else float32.

    No second copy of a wide block of updates is ever made.
    """
    if updates.ndim != 2:
        raise ValueError(f"updates have shape {tuple(updates.shape)}, expected (clients, d)")
    for start in range(0, updates.shape[1], COLUMNS):
        piece = updates[:, start : start + COLUMNS]
        block = piece.detach() if isinstance(piece, torch.Tensor) else torch.tensor(piece)
        yield block if block.dtype == torch.float64 else block.to(torch.float32)


def norms(updates: Updates) -> npt.NDArray[np.float64]:
    """Euclidean norm of every update. updates: (M, d); returns (M,), accumulated in float64."""
    squares = torch.zeros(updates.shape[0], dtype=torch.float64)
    for block in column_blocks(updates):
        squares += torch.linalg.vector_norm(block, dim=1, dtype=torch.float64) ** 2
    return np.asarray(squares.sqrt().numpy())


def cosine_matrix(updates: Updates) -> npt.NDArray[np.float64]:
    """Cosine similarity of every pair of updates. updates: (M, d); returns (M, M), symmetric, within [-1, 1].

    Products are float32 (float64 for float64 updates) over 4096 columns at a time and are summed in float64, which
    keeps the error near 1e-7 however large d is. Rows are scaled to unit length first, so that neither tiny nor huge
    updates leave the range of float32. A zero update has similarity 0 to all others and 1 to itself.
    """
    lengths = norms(updates)
    if not np.isfinite(lengths).all():
        raise ValueError(f"update {int(np.argmin(np.isfinite(lengths)))} is not finite, so it has no direction")
    clients = len(lengths)
    scale = torch.from_numpy(np.divide(1.0, lengths, out=np.zeros(clients), where=lengths > 0))[:, None]
    gram = torch.zeros(clients, clients, dtype=torch.float64)
    for block in column_blocks(updates):
        unit = _scaled(block, scale)
        for top in range(0, clients, STRIP):
            gram[top : top + STRIP, top:] += unit[top : top + STRIP] @ unit[top:].T
    return _symmetric(gram.numpy())


def _scaled(block: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    """Rows of `block` (M, c) times `scale` (M, 1), in the block's own type."""
    if block.dtype == torch.float64 or bool(((scale < 1e30) & ((scale > 1e-30) | (scale == 0))).all()):
        return block * scale.to(block.dtype)
    # The factor itself would overflow or vanish in float32, although the product does not.
    return (block * scale).to(block.dtype)


def _symmetric(gram: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Mirror what stands right of the diagonal, clip to [-1, 1] and set the diagonal to one, all in place."""
    for top in range(0, len(gram), STRIP):
        strip = slice(top, top + STRIP)
        corner = np.triu(gram[strip, strip])
        gram[strip, strip] = corner + np.triu(corner, 1).T
        gram[top + STRIP :, strip] = gram[strip, top + STRIP :].T
    np.clip(gram, -1.0, 1.0, out=gram)
    np.fill_diagonal(gram, 1.0)
    return gram
