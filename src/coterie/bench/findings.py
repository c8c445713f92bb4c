"""What a measurement found, as plain values that go to JSON and come back, and when a requirement is met."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal

from coterie.bench.measure import Say, Spread

Scale = Literal["quick", "full"]


@dataclass(frozen=True)
class Setting:
    """How large and how often to measure."""

    scale: Scale = "quick"
    repeat: int = 5
    seed: int = 0
    workers: int = 2
    bf16: bool = False
    """Time bfloat16 rows even where the processor has no such instructions."""
    one_thread: bool = False
    """Time the plain loop with one thread too."""
    say: Say = lambda text: None

    @property
    def full(self) -> bool:
        """Is this the size that the requirements speak of?"""
        return self.scale == "full"


@dataclass(frozen=True)
class Limit:
    """A number to reach (or to stay below)."""

    what: str
    number: float
    at_most: bool = False

    def met_by(self, value: float) -> bool:
        return value <= self.number if self.at_most else value >= self.number

    def __str__(self) -> str:
        return f"{'≤' if self.at_most else '≥'} {self.number:g} {self.what}"


@dataclass
class Finding:
    """One row's result: a line for each requirement, all the seconds, and what else there is to say."""

    title: str
    lines: list[dict[str, Any]] = field(default_factory=list)
    seconds: dict[str, list[float]] = field(default_factory=dict)
    first_round: dict[str, float] = field(default_factory=dict)
    """Seconds of the first round, which starts workers and computes what is kept: not part of any ratio."""
    notes: list[str] = field(default_factory=list)
    details: dict[str, Any] = field(default_factory=dict)

    def judge(
        self, limit: Limit, found: Spread, *, shares: dict[str, float] | None = None, why: str = "", **told: Any
    ) -> None:
        """Add a line: the limit, what was found, and whether it is met; `why` is kept for the case that it is not."""
        met = limit.met_by(found.median)
        self.lines.append(
            {
                "must": str(limit),
                "found": found.as_dict(),
                "shares": shares or {},
                "met": met,
                "reason": "" if met else why,
                **told,
            }
        )

    def leave_out(self, limit: Limit, reason: str) -> None:
        """Add a line for a requirement that was not measured."""
        self.lines.append({"must": str(limit), "found": None, "shares": {}, "met": None, "reason": reason})


@dataclass(frozen=True)
class Entry:
    """A row of the benchmark by name."""

    name: str
    title: str
    must: tuple[str, ...]
    """What it must reach, in words."""
    measure: Callable[[Setting], Finding]
