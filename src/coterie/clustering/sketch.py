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

    Long vectors are folded to WIDTH numbers by a count sketch: each number is added, with a random sign, to a random
    one of WIDTH places, which depend on d alone. Inner products are kept in expectation; a cosine is off by more than
    its usual error where a few numbers make up most of a vector and share a place.
    """
    unit = torch.nn.functional.normalize(vectors.float(), dim=1)
    d = unit.shape[1]
    if d <= EXACT:
        return unit.half()
    generator = torch_generator(SEED, "sketch", d)
    places = torch.randint(WIDTH, (d,), generator=generator)
    signs = torch.randint(2, (d,), generator=generator).float().mul_(2).sub_(1)
    folded = torch.zeros(len(unit), WIDTH).index_add_(1, places, unit * signs)
    return torch.nn.functional.normalize(folded, dim=1).half()


def similarity(one: Tensor, kept: Tensor) -> Tensor:
    """Cosine similarities `(m,)` of one sketched vector `(w,)` to the kept ones `(m, w)`."""
    return kept.float() @ one.float()
