"""Findings and measured slips as tables: for the terminal, as JSON, and as the tables of docs/conformance.md."""

from __future__ import annotations

import datetime
import platform
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from coterie import __version__
from coterie_conformance.checking import CHECKS, Finding

MARKS = {"ok": "+", "fails": "F", "does not apply": "–"}


def terminal_table(findings: Sequence[Finding]) -> Iterator[str]:
    """Lines: methods with their counts, a grid of checks and methods, then one line per failure."""
    methods = list(dict.fromkeys(finding.method for finding in findings))
    checks = list(dict.fromkeys(finding.check for finding in findings))
    verdict = {(finding.method, finding.check): finding for finding in findings}
    letters = [chr(ord("A") + i) if i < 26 else f"A{i - 26}" for i in range(len(methods))]
    for letter, method in zip(letters, methods, strict=True):
        own = [verdict[method, check].verdict for check in checks]
        counts = f"{own.count('ok'):>2} ok  {own.count('fails')} fail  {own.count('does not apply'):>2} –"
        yield f"{letter:>2}  {counts}   {method}"
    width = max(map(len, checks))
    yield ""
    yield f"{'':<{width}}  " + " ".join(f"{letter:>2}" for letter in letters)
    for check in checks:
        marks = (MARKS[verdict[method, check].verdict] for method in methods)
        yield f"{check:<{width}}  " + " ".join(f"{mark:>2}" for mark in marks)
    yield ""
    yield "+ ok   F fails   – does not apply"
    failures = [finding for finding in findings if finding.verdict == "fails"]
    if failures:
        yield ""
    for finding in failures:
        yield f"{finding.method}: {finding.check}: {finding.text}"


def as_json(findings: Sequence[Finding]) -> dict[str, dict[str, Any]]:
    """The findings as they are stored: for each method how many checks are ok, and the others with their texts."""
    methods = dict.fromkeys(finding.method for finding in findings)
    return {
        method: {
            "ok": [f.check for f in findings if f.method == method and f.verdict == "ok"],
            "does not apply": {
                f.check: f.text for f in findings if f.method == method and f.verdict == "does not apply"
            },
            "fails": {f.check: f.text for f in findings if f.method == method and f.verdict == "fails"},
        }
        for method in methods
    }


def about(command: str, **more: Any) -> dict[str, Any]:
    """What a stored result says of how it was made."""
    asked = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], cwd=Path(__file__).parent, capture_output=True, text=True, check=False
    )
    return {
        "command": command,
        "coterie": __version__,
        "commit": asked.stdout.strip() or None,
        "machine": f"{platform.machine()}, Python {platform.python_version()}",
        "date": datetime.date.today().isoformat(),
        **more,
    }


def slip_lines(rows: Sequence[dict[str, Any]]) -> Iterator[str]:
    """A Markdown table of measured slips: accuracy without and with, and the paired difference in points."""
    yield "| slip | federation | without | with | difference | worst tenth | ARI | clusters | clients |"
    yield "|---|---|---|---|---|---|---|---|---|"
    for row in rows:
        right, wrong, gap = row["right"], row["wrong"], row["difference"]
        where = row["where"]["scenario"]
        where += f", {100 * row['where']['participation']:.0f} % a round" if "participation" in row["where"] else ""
        where += ", inputs centred" if row["where"].get("centred") else ""
        yield (
            f"| {row['method']}: {row['slip']} | {where} | "
            f"{_percent(right['accuracy'])} | {_percent(wrong['accuracy'])} | "
            f"{_points(gap['accuracy'])} | {_points(gap['worst tenth'])} | {_from_to(right, wrong, 'ari', 2)} | "
            f"{_from_to(right, wrong, 'clusters', 1)} | {_clients(wrong)} |"
        )


def _clients(wrong: Mapping[str, Sequence[float]]) -> str:
    """How many clients the slip loses, doubles, or leaves with another model than their cluster's."""
    names = {"lost": "lost", "doubled": "doubled", "unequal": "with a model of their own"}
    return ", ".join(f"{wrong[key][0]:.1f} {name}" for key, name in names.items() if wrong.get(key, [0])[0])


def _percent(value: Sequence[float]) -> str:
    return f"{100 * value[0]:.1f} ± {100 * value[1]:.1f}"


def _points(value: Sequence[float]) -> str:
    return f"{100 * value[0]:+.1f} ± {100 * value[1]:.1f}".replace("-", "−")


def _from_to(right: dict[str, Sequence[float]], wrong: dict[str, Sequence[float]], name: str, digits: int) -> str:
    if name not in right:
        return ""
    one, other = f"{right[name][0]:.{digits}f}", f"{wrong[name][0]:.{digits}f}"
    return one if one == other else f"{one} → {other}".replace("-", "−")


def check_lines() -> Iterator[str]:
    """A Markdown table of the checks."""
    yield "| check | asks | finds |"
    yield "|---|---|---|"
    for check in CHECKS.values():
        yield f"| {check.name} | {check.asks} | {check.finds} |"


def finding_lines(findings: Mapping[str, Mapping[str, Any]]) -> Iterator[str]:
    """A Markdown table: for each method how many checks pass, which do not apply, and which fail."""
    yield "| method | ok | does not apply | fails |"
    yield "|---|---|---|---|"
    for method, found in findings.items():
        others = ", ".join(found["does not apply"]) or "none"
        yield f"| `{method}` | {len(found['ok'])} | {others} | {', '.join(found['fails']) or 'none'} |"


def source_lines(rows: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """A Markdown table of slips: what the code does, where, and which check finds it."""
    yield "| slip | what the code does | where | found by |"
    yield "|---|---|---|---|"
    for row in {row["slip"]: row for row in rows}.values():
        yield f"| {row['method']}: {row['slip']} | {row['what']} | {row['source']} | {row['check']} |"
