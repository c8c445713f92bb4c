"""What the runs of a comparison spent, and a budget of bytes or passes that all of them keep."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

from coterie.errors import ConfigError, did_you_mean
from coterie.runs.records import Summary

Budget = Literal["rounds", "bytes", "passes"]
BUDGETS: tuple[Budget, ...] = ("rounds", "bytes", "passes")
LIMITS = {"bytes": "max_bytes", "passes": "max_passes"}
"""The option of a run that ends it when such a budget is spent."""


def check_budget(text: str) -> Budget:
    """The budget of that name; ConfigError where there is none."""
    for known in BUDGETS:
        if text == known:
            return known
    raise ConfigError(f"equal={text!r}: {did_you_mean(text, BUDGETS)}")


def spent(summary: Summary) -> dict[str, float | None]:
    """What a run took, from its first message on; None for what was not counted."""
    return {"rounds": summary.rounds, "bytes": summary.bytes.total, "passes": summary.passes}


def spent_by_all(runs: Sequence[tuple[int, Summary]]) -> dict[str, dict[str, Any]]:
    """For each budget the least and the most that a run took, and whether it was the same in all runs of each seed.

    A run ends with a whole round, so that bytes and passes count as equal within the costs of one.

    Args:
        runs: the seed and the summary of every finished run.
    """
    found: dict[str, dict[str, Any]] = {}
    for name in BUDGETS:
        values = {i: value for i, (_, summary) in enumerate(runs) if (value := spent(summary)[name]) is not None}
        if len(values) < len(runs) or not runs:
            continue
        seeds = {seed for seed, _ in runs}
        of_seed = [[i for i, (own, _) in enumerate(runs) if own == seed] for seed in seeds]
        tolerance = 0.0 if name == "rounds" else max(values[i] / runs[i][1].rounds for i in values)
        gaps = [max(values[i] for i in places) - min(values[i] for i in places) for places in of_seed]
        found[name] = {
            "least": min(values.values()),
            "most": max(values.values()),
            "equal": max(gaps) <= tolerance,
        }
    return found


def budgets_in_words(table: Mapping[str, Mapping[str, Any]]) -> str:
    """Which budgets were equal, as a sentence: "Equal: rounds (100). Not equal: bytes (458 to 1,201 MB)."."""
    same = [_amount(name, one) for name, one in table.items() if one["equal"]]
    other = [_amount(name, one) for name, one in table.items() if not one["equal"]]
    parts = [f"Equal for all methods: {', '.join(same)}." if same else ""]
    parts.append(f"Not equal: {', '.join(other)}." if other else "")
    return " ".join(part for part in parts if part)


def _amount(name: str, one: Mapping[str, Any]) -> str:
    scale, unit = (1e-6, " MB") if name == "bytes" else (1.0, "")
    low, high = (f"{scale * one[key]:,.4g}" for key in ("least", "most"))
    return f"{name} ({low}{unit})" if low == high else f"{name} ({low} to {high}{unit})"
