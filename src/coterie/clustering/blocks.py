"""Walk over a wide block of updates a few columns at a time, so that no second copy of it is ever made."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
import torch

Updates = npt.NDArray[np.floating] | torch.Tensor

# Fixed, never derived from free memory: the order of summation, hence every last bit, must not depend on the machine.
COLUMNS = 4096


def column_blocks(updates: Updates) -> Iterator[torch.Tensor]:
    """Yield `updates` (M, d) as consecutive column blocks (M, at most COLUMNS), float64 if given so, else float32."""
    if updates.ndim != 2:
        raise ValueError(f"updates have shape {tuple(updates.shape)}, expected (clients, d)")
    for start in range(0, updates.shape[1], COLUMNS):
        piece = updates[:, start : start + COLUMNS]
        block = piece.detach() if isinstance(piece, torch.Tensor) else torch.tensor(piece)
        yield block if block.dtype == torch.float64 else block.to(torch.float32)
