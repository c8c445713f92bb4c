"""Options of a benchmark, limits that rows must meet, and findings as values for JSON."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal

from coterie_bench.measure import Log, Spread

Scale = Literal["quick", "full"]


@dataclass(frozen=True)
class BenchOptions:
    """How much to measure, how often, and where."""

    scale: Scale = "quick"
    repeat: int = 5
    seed: int = 0
    workers: int = 2
    bf16: bool = False
    """Time bfloat16 rows even where the processor has no such instructions."""
    one_thread: bool = False
    """Time the plain loop with one thread too."""
    log: Log = lambda text: None

    @property
    def full(self) -> bool:
        """Whether this is the size for which the limits are stated."""
        return self.scale == "full"


@dataclass(frozen=True)
class Limit:
    """A number to reach, or with `at_most` to stay below."""

    what: str
    number: float
    at_most: bool = False

    def met_by(self, value: float) -> bool:
        """Whether a value meets the limit."""
        return value <= self.number if self.at_most else value >= self.number

    def __str__(self) -> str:
        return f"{'≤' if self.at_most else '≥'} {self.number:g} {self.what}"


@dataclass
class Finding:
    """The result of one row: a line per limit, all the seconds, notes and details."""

    title: str
    lines: list[dict[str, Any]] = field(default_factory=list)
    seconds: dict[str, list[float]] = field(default_factory=dict)
    first_round: dict[str, float] = field(default_factory=dict)
    """Seconds of the first round, which starts workers and fills caches: not part of any ratio."""
    notes: list[str] = field(default_factory=list)
    details: dict[str, Any] = field(default_factory=dict)

    def judge(
        self, limit: Limit, found: Spread, *, shares: dict[str, float] | None = None, why: str = "", **seconds: Any
    ) -> None:
        """Add a line: the limit, the measured value and whether it meets the limit; `why` explains where it does not.

        `shares` are fractions of the GEMM peak and `seconds` medians, by contender (`ours`, `theirs`).
        """
        met = limit.met_by(found.median)
        self.lines.append(
            {
                "must": str(limit),
                "found": found.as_dict(),
                "shares": shares or {},
                "met": met,
                "reason": "" if met else why,
                **seconds,
            }
        )

    def leave_out(self, limit: Limit, reason: str) -> None:
        """Add a line for a limit that was not measured."""
        self.lines.append({"must": str(limit), "found": None, "shares": {}, "met": None, "reason": reason})


@dataclass(frozen=True)
class Entry:
    """A row of the benchmark by name."""

    name: str
    title: str
    must: tuple[str, ...]
    """The limits as text."""
    measure: Callable[[BenchOptions], Finding]
