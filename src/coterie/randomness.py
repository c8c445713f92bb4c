"""Every random draw is a function of (seed, path), so that no engine, order or chunk size changes a result.

A path names what the draw is for, for example `("batches", round, client)`.
"""

from __future__ import annotations

import hashlib

import numpy as np
import torch


def derive(seed: int, *path: int | str) -> int:
    """A 63-bit seed for the draw that `path` names; different paths give independent seeds."""
    # A slash inside a part is doubled, so that no part can pass for two.
    parts = (f"{type(part).__name__}:{str(part).replace('/', '//')}" for part in path)
    text = "/".join([str(seed), *parts])
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big") >> 1


def numpy_generator(seed: int, *path: int | str) -> np.random.Generator:
    """A NumPy generator for the draw that `path` names."""
    return np.random.default_rng(derive(seed, *path))


def torch_generator(seed: int, *path: int | str) -> torch.Generator:
    """A torch CPU generator for the draw that `path` names."""
    return torch.Generator().manual_seed(derive(seed, *path))
