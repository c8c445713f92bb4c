"""Secure sums among seven clients, some of which send what they should not, in any exchange."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from coterie.privacy.secure_tasks import Masked, as_bytes, as_numbers
from coterie.tasks.base import Reply, Task
from privacy.test_active_parties import IDS, VECTORS, Network

from .harness import Finding, Trial

SOME = IDS[:7]


class Sums:
    """What is opened is the sum of those who came through, and none but a cheat is named."""

    name = "sums"

    @contextlib.contextmanager
    def open(self, folder: Path) -> Iterator[Trial]:
        """Honest clients, and up to three that are not, of whom one may stay silent."""

        def trial(random: random.Random) -> str:
            cheats = set(random.sample(SOME, random.randint(1, 3)))
            chance = random.choice([0.1, 0.3, 1.0])
            heard: list[Reply] = []
            spoilt: set[str] = set()
            changed_vectors: set[str] = set()

            def tamper(client: str, task: Task, reply: Reply, state: dict[str, Tensor]) -> Reply | None:
                heard.append(reply)
                if client not in cheats or random.random() > chance:
                    return reply
                spoilt.add(client)
                if isinstance(task, Masked):
                    changed_vectors.add(client)
                return None if random.random() < 0.2 else replace(reply, values=_spoilt(reply.values, heard, random))

            network = Network(tamper)
            block = network.sum((1.0,) * len(SOME), SOME)
            if set(network.blamed) - spoilt:
                raise Finding(f"honest clients were named: {network.blamed}, cheats {spoilt}")
            if not block.sums:
                return "closed"
            through = [reply.client for reply in block.replies]
            if changed_vectors & set(through):
                return "opened, with vectors that cheats made up"
            right = sum(VECTORS[client].clip(-1, 1) for client in through)
            if not np.allclose(block.sums[0].numpy(), right, atol=1e-6):
                raise Finding(f"a wrong sum of {through}, cheats {spoilt}")
            return "opened"

        yield trial


def _spoilt(values: Any, heard: list[Reply], random: random.Random) -> dict[str, Any]:
    """The values of a reply with one of them changed, or those of another reply of the same kind."""
    name = random.choice(sorted(values))
    alike = [reply for reply in heard if _sizes(reply.values) == _sizes(values)]  # another is no reply on a network
    if random.random() < 0.3:
        return dict(random.choice(alike).values)
    value = values[name]
    if name == "wrong":
        return {**values, name: [float(random.random() < 0.5) for _ in value]}
    if not isinstance(value, list):
        return dict(values)
    data = bytearray(as_bytes(value))
    if random.random() < 0.5:
        data[random.randrange(len(data))] ^= 1 << random.randrange(8)
    else:
        begin = random.randrange(len(data))
        data[begin : begin + 64] = random.randbytes(len(data[begin : begin + 64]))
    return {**values, name: as_numbers(bytes(data)).tolist()}


def _sizes(values: Any) -> dict[str, int]:
    return {name: len(value) if isinstance(value, list) else 0 for name, value in values.items()}
