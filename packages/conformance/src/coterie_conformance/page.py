"""The tables of docs/conformance.md, put between their marks from what the command stored.

`python -m coterie_conformance.page RESULT PAGE [FINDINGS SLIPS]` writes RESULT from the two files that
`coterie conformance --json` and `coterie conformance --slips --json` wrote, if they are given, and then PAGE from it.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

from coterie_conformance.report import check_lines, finding_lines, slip_lines, source_lines


def merged(found: dict[str, Any], slips: dict[str, Any]) -> dict[str, Any]:
    """One result from those of the two commands."""
    about = {key: slips[key] for key in ("coterie", "commit", "machine", "date", "seeds")}
    commands = [found["command"], slips["command"]]
    return {"commands": commands, **about, "findings": found["findings"], "slips": slips["slips"]}


def with_tables(page: str, result: dict[str, Any]) -> str:
    """The page with its tables as they are now."""
    tables = {
        "checks": check_lines(),
        "methods": finding_lines(result["findings"]),
        "sources": source_lines(result["slips"]),
        "effects": slip_lines(result["slips"]),
    }
    for name, lines in tables.items():
        marks = f"<!-- table: {name} -->", "<!-- end -->"
        text = "\n\n".join([marks[0], "\n".join(lines), marks[1]])
        page = re.sub(rf"{marks[0]}.*?{marks[1]}", text.replace("\\", r"\\"), page, flags=re.DOTALL)
    return page


def main(words: list[str]) -> None:
    """Write the result and the page."""
    result, page = Path(words[0]), Path(words[1])
    if len(words) > 2:
        found, slips = (json.loads(Path(word).read_text(encoding="utf-8")) for word in words[2:4])
        result.write_text(json.dumps(merged(found, slips), indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    stored = json.loads(result.read_text(encoding="utf-8"))
    page.write_text(with_tables(page.read_text(encoding="utf-8"), stored), encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
