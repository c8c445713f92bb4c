"""Secure sums on a Flower grid: the engine that never receives an update, only sums of them."""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Sequence
from typing import Any

from coterie.engines.base import Capabilities
from coterie.engines.secure_exchange import SecureExchange, refuse_vectors
from coterie.flower.engine import FlowerEngine
from coterie.tasks.base import Reduction, ReplyBlock, Request


class SecureFlowerEngine(FlowerEngine):
    """The clients behind a grid, whose updates are seen in sums only; `limit` and `minimum` are as in `SecureEngine`.

    A sum takes six exchanges instead of one. A task whose reply would hold a single update is refused before it is
    sent.
    """

    def __init__(self, *args: Any, limit: float = 1.0, minimum: int = 3, **options: Any) -> None:
        super().__init__(*args, **options)
        self.limit, self.minimum = limit, minimum
        self.capabilities = Capabilities(remote=True, secure=True, least_in_sum=minimum)
        self.blamed: dict[str, str] = {}
        """Clients that did not keep to the protocol of a sum, and what they did: they are in no later one."""
        self._name, self._sums = secrets.token_hex(16), 0

    def run(self, requests: Sequence[Request], reduce: Reduction | None = None) -> Iterator[ReplyBlock]:
        """Send the requests; with `reduce` the vectors come as secure sums, without it there may be none."""
        if reduce is None:
            refuse_vectors(requests, self.layout)
            yield from super().run(requests)
            return
        self._sums += 1
        name = f"{self._name}/{self._sums}"
        limits = self.limit, self.minimum
        exchange = SecureExchange(super().run, self.layout, *limits, self._faults, self.blamed, name)
        yield exchange.run(requests, reduce)
