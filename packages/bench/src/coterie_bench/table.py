"""The findings as a table: the limits of each row, the measured values and the seconds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

HEAD = (
    "row",
    "workload",
    "must reach",
    "reached, median (min-max)",
    "ours, s",
    "theirs, s",
    "CPU s",
    "× floor",
    "% of GEMM peak",
    "met",
)
WORDS = {True: "yes", False: "no", None: "-"}


def is_busy(machine: Mapping[str, Any]) -> bool:
    """Whether other programs used more than half of the cores when the measurement began."""
    return bool(machine["load"] is not None and machine["load"] > machine["cores"] / 2)


def cells(name: str, finding: Mapping[str, Any]) -> list[list[str]]:
    """One row of cells per limit of a finding; name and title are in the first only."""
    rows = []
    for i, line in enumerate(finding["lines"]):
        shares = line["shares"]
        peak = " / ".join(f"{100 * shares[who]:.0f}" for who in ("ours", "theirs") if who in shares)
        met = WORDS[line["met"]] + (f": {line['reason']}" if line["reason"] else "")
        found = "-" if line["found"] is None else spread(line["found"])
        seconds = [_seconds(line.get(who)) for who in ("ours", "theirs")]
        lead = [name, finding["title"]] if i == 0 else ["", ""]
        cpu = " / ".join(_seconds(line[who]) for who in ("ours_cpu", "theirs_cpu") if line.get(who) is not None)
        floors = " / ".join(f"{1 / shares[who]:.3g}" for who in ("ours", "theirs") if shares.get(who))
        rows.append([*lead, line["must"], found, *seconds, cpu or "-", floors or "-", peak or "-", met])
    return rows


def spread(found: Mapping[str, float]) -> str:
    """The median, and lowest and highest where they differ."""
    median, low, high = (f"{found[key]:.3g}" for key in ("median", "low", "high"))
    return median if low == high else f"{median} ({low}-{high})"


def markdown(results: Mapping[str, Any]) -> str:
    """The whole table with the machine, the options and notes."""
    machine = results["machine"]
    bf16 = "with" if machine["bfloat16"] else "without"
    lines = [
        "# Benchmark",
        "",
        f"Scale {results['scale']}, {results['repeat']} repetitions; {machine['cores']} cores "
        f"({machine['processor']}, {bf16} bfloat16 instructions), {machine['workers']} workers; torch "
        f"{machine['torch']} with {machine['threads']} threads for the plain loop; load average {machine['load']} "
        "before the start.",
        "",
        "Contenders alternate within one run, so compare ratios, not seconds. The first round, which starts the "
        "workers and computes Gram matrices, is reported but in no ratio. CPU s: processor seconds of a round, ours / "
        "theirs, worker processes included. × floor: seconds over those that the plain loop's operations would take "
        "at the speed of a large matrix product. % of GEMM peak: the same the other way round, the plain "
        "loop's operations per second over those of a large matrix product timed in the same repetition; above 100 "
        "where fewer operations give the same result.",
        "",
        _row(HEAD),
        _row(["---"] * len(HEAD)),
    ]
    for name, finding in results["rows"].items():
        lines += [_row(row) for row in cells(name, finding)]
    lines.append("")
    if is_busy(machine):
        lines.append(
            "* The machine was busy with other work. The plain loop's threads then wait for each other, and the ratios "
            "are too high: measure again on a quiet machine."
        )
    for name, finding in results["rows"].items():
        for other, seconds in finding["first_round"].items():
            lines.append(f"* {name}: first round of {other} {seconds:.3g} s")
        lines += [f"* {name}: {note}" for note in finding["notes"]]
    return "\n".join(lines) + "\n"


def _row(values: Sequence[str]) -> str:
    return f"| {' | '.join(value.replace('|', '/') for value in values)} |"


def _seconds(value: float | None) -> str:
    return "-" if value is None else f"{value:.3g}"
