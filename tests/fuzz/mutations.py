"""Ways to spoil bytes, texts and values."""

from __future__ import annotations

import random
from typing import Any

NUMBERS: tuple[Any, ...] = (0, 1, 2, 3, -1, 10**6, 2**31, 2**63, 10**30, 0.0, 0.5, -0.5, 1e-320, 1e308, 1e6)
ODD: tuple[Any, ...] = (
    True,
    False,
    None,
    float("nan"),
    float("inf"),
    -float("inf"),
    "",
    " ",
    "x",
    "0",
    "1e999",
    "nan",
    "auto",
    "full",
    "none",
    "../..",
    "/dev/null",
    "a" * 5000,
    "\0",
    "\ud800",
    "ü☃",
    "cpu",
    [],
    [1, 2],
    {},
    {"a": 1},
)
JSON_TEXTS = (
    "",
    "1",
    "null",
    "{}",
    "[]",
    '"x"',
    "[[[[",
    "{",
    "[" * 3000,
    '{"round": 1}',
    "1e999",
    '{"checksum": 1}',
    "NaN",
)


def value(random: random.Random) -> Any:
    """A number, or something odd."""
    return random.choice(NUMBERS) if random.random() < 0.5 else random.choice(ODD)


def spoilt(data: bytes, random: random.Random) -> bytes:
    """The bytes with a bit flipped, cut off, doubled, overwritten or replaced."""
    ways = ("flip", "flips", "cut", "insert", "remove", "repeat", "zero", "text")
    way = random.choice(ways)
    at, to = sorted((random.randrange(len(data) + 1), random.randrange(len(data) + 1)))
    if way in ("flip", "flips") and data:
        changed = bytearray(data)
        for _ in range(1 if way == "flip" else random.randint(2, 40)):
            changed[random.randrange(len(data))] ^= 1 << random.randrange(8)
        return bytes(changed)
    if way == "cut":
        return data[:at]
    if way == "insert":
        return data[:at] + random.randbytes(random.randint(1, 20)) + data[at:]
    if way == "remove":
        return data[:at] + data[to:]
    if way == "repeat":
        return data[:to] + data[at:to] + data[to:]
    if way == "zero":
        return data[:at] + bytes(to - at) + data[to:]
    return random.choice(JSON_TEXTS).encode()
