"""Remember many long vectors in little room so that cosine similarities to them can still be computed."""

from __future__ import annotations

import torch
from torch import Tensor

from coterie.randomness import torch_generator

WIDTH = 8192
"""Numbers kept of a long vector; the error of a cosine is about 1/√WIDTH = 0.011 (one standard deviation)."""
EXACT = 2 * WIDTH
"""Vectors up to this length are kept whole: there only float16 rounding costs anything (below 0.001)."""
SEED = 20200824


def sketch(vectors: Tensor) -> Tensor:
    """Directions of `vectors: (m, d)` as float16 `(m, min(d, WIDTH))`; a zero vector stays zero.

    Long vectors are folded to WIDTH numbers.
    """
    unit = torch.nn.functional.normalize(vectors.float(), dim=1)
    if unit.shape[1] <= EXACT:
        return unit.half()
    return torch.nn.functional.normalize(fold(unit, WIDTH), dim=1).half()


def fold(vectors: Tensor, width: int) -> Tensor:
    """Vectors `(m, d)` in fewer numbers, float32 `(m, width)`, so that inner products are kept in expectation.

    It is a count sketch: each number is added, with a random sign, to one of `width` random places, which depend on d
    and `width` alone. The cosine of two vectors is off by about 1/√width, one standard deviation, and by more where a
    few numbers make up most of a vector and share a place. Vectors of up to `width` numbers stay as they are.
    """
    d = vectors.shape[1]
    if d <= width:
        return vectors.float()
    generator = torch_generator(SEED, "sketch", d, *(() if width == WIDTH else (width,)))
    places = torch.randint(width, (d,), generator=generator)
    signs = torch.randint(2, (d,), generator=generator).float().mul_(2).sub_(1)
    return torch.zeros(len(vectors), width).index_add_(1, places, vectors.float() * signs)


def similarity(one: Tensor, kept: Tensor) -> Tensor:
    """Cosine similarities `(m,)` of one sketched vector `(w,)` to the kept ones `(m, w)`."""
    return kept.float() @ one.float()
