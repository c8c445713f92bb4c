"""One thread for a piece of work: sums split over threads differ in their last bits from machine to machine."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def one_torch_thread() -> Iterator[None]:
    """Let torch compute on one thread inside."""
    threads = torch.get_num_threads()
    if threads == 1:
        yield
        return
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


@contextmanager
def one_thread() -> Iterator[None]:
    """Let torch, NumPy and scikit-learn compute on one thread inside. Finding their libraries takes milliseconds."""
    from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]

    with one_torch_thread(), threadpool_limits(limits=1):
        yield
