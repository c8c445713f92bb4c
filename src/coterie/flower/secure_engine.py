"""Secure sums on a Flower grid: the engine that never receives an update, only sums of them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from coterie.engines.secure_exchange import SecureExchange, refuse_vectors
from coterie.flower.engine import FlowerEngine
from coterie.tasks.base import Reduction, ReplyBlock, Request


class SecureFlowerEngine(FlowerEngine):
    """The clients behind a grid, whose updates are seen in sums only; `limit` and `minimum` are as in `SecureEngine`.

    A sum takes four exchanges instead of one. A task whose reply would hold a single update is refused before it is
    sent.
    """

    secure = True

    def __init__(self, *args: Any, limit: float = 1.0, minimum: int = 3, **options: Any) -> None:
        super().__init__(*args, **options)
        self.limit, self.least_in_sum = limit, minimum

    def run(self, requests: Sequence[Request], reduce: Reduction | None = None) -> Iterator[ReplyBlock]:
        """Send the requests; with `reduce` the vectors come as secure sums, without it there may be none."""
        if reduce is None:
            refuse_vectors(requests, self.layout)
            yield from super().run(requests)
            return
        exchange = SecureExchange(super().run, self.layout, self.limit, self.least_in_sum, self._faults)
        yield exchange.run(requests, reduce)
