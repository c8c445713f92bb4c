"""A recipe's results as a small file with what made them, from which documents are built without running it again."""

from __future__ import annotations

import json
import math
import os
import platform
import statistics
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from coterie.errors import RunError
from coterie.runs import write_atomically
from coterie_recipes.base import Study
from coterie_recipes.freshness import recipe_source

ATTEMPTS = "attempts.json"
DIGITS = 6
"""Significant digits of a stored number."""


@contextmanager
def timed(study: Study, name: str) -> Iterator[None]:
    """Note processor time, commit and the recipe's hash in the study's folder, if cells were computed inside.

    A study is computed in several attempts where it was stopped, or seed by seed: all of them count.
    """
    before, commit, source = _cpu_seconds(), _commit(), recipe_source(name)
    try:
        yield
    finally:
        if study.computed and study.out.is_dir():
            known = _attempts(study.out)
            seconds = round(_cpu_seconds() - before, 1)
            today = f"{datetime.now(UTC):%Y-%m-%d}"
            known.append({"date": today, "commit": commit, "cpu_seconds": seconds, "source": source})
            write_atomically(study.out / ATTEMPTS, json.dumps(known, indent=1).encode())


def store(results: Mapping[str, Any], study: Study, command: str, path: Path) -> None:
    """Write the results of a study, the command that repeats them, commit, machine, date and processor time.

    Raises:
        RunError: the folder does not say when and by what its cells were computed.
    """
    attempts = _attempts(study.out)
    if not attempts:
        raise RunError(f"{study.out}: says nothing of what computed its cells: choose another folder with --out")
    made = {
        "recipe": results["recipe"],
        "summary": results["summary"],
        "command": command,
        "commit": ", ".join(dict.fromkeys(attempt["commit"] for attempt in attempts)),
        "machine": f"{_processor()}, {os.cpu_count()} cores, no GPU used",
        "source": _one_source(attempts),
        "date": attempts[-1]["date"],
        "cpu_seconds": round(sum(attempt["cpu_seconds"] for attempt in attempts), 1),
        "scale": results["scale"],
        "seeds": results["seeds"],
        "notes": results["notes"],
        "rows": [_row(row) for row in results["rows"]],
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, _compact(made).encode())


def standard_error(values: Sequence[float]) -> float | None:
    """Of the mean of independent values; None of a single one."""
    return statistics.stdev(values) / math.sqrt(len(values)) if len(values) > 1 else None


def _one_source(attempts: Sequence[Mapping[str, Any]]) -> str | None:
    """The hash of the recipe that made all cells; None where they were made by several versions of it."""
    made_by = {attempt.get("source") for attempt in attempts}
    return made_by.pop() if len(made_by) == 1 else None


def _row(row: Mapping[str, Any]) -> dict[str, Any]:
    values = [float(f"{value:.{DIGITS}g}") for value in row["ours"]["values"]]
    return {"setting": row["setting"], "measure": row["measure"], "values": values, "paper": row["paper"]}


def _compact(made: Mapping[str, Any]) -> str:
    """JSON with a line for each row."""
    head = json.dumps({key: value for key, value in made.items() if key != "rows"}, indent=1, ensure_ascii=False)
    rows = ",\n".join(f"  {json.dumps(row, ensure_ascii=False)}" for row in made["rows"])
    return f'{head[:-2]},\n "rows": [\n{rows}\n ]\n}}\n'


def _attempts(folder: Path) -> list[dict[str, Any]]:
    path = folder / ATTEMPTS
    if not path.exists():
        return []
    try:
        found: list[dict[str, Any]] = json.loads(path.read_text())
    except ValueError as problem:
        raise RunError(f"{path}: damaged ({problem}): choose another folder with --out") from problem
    return found


def _cpu_seconds() -> float:
    """Of this process and of those that it has ended."""
    used = os.times()
    return time.process_time() + used.children_user + used.children_system


def _commit() -> str:
    """The commit of the source, where it is a clone, and whether it was changed; else the release."""
    folder = str(Path(__file__).parent)
    try:
        head, changes = (
            subprocess.run(["git", "-C", folder, *words], capture_output=True, text=True, check=True).stdout.strip()
            for words in (["rev-parse", "--short", "HEAD"], ["status", "--porcelain", "-uno", "--", "."])
        )
    except (OSError, subprocess.CalledProcessError):
        return "a release"
    return f"{head} with changes" if changes else head


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    named = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return named[0] if named else platform.processor() or platform.machine()
