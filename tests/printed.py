"""Code as the documents print it, and packages made of it that are installed for a test."""

from __future__ import annotations

import re
from pathlib import Path

DOCS = Path(__file__).parent.parent / "docs"


def blocks(document: str, language: str = "python") -> list[str]:
    """The code blocks of a document in their order."""
    return re.findall(rf"^```{language}\n(.*?)^```$", (DOCS / document).read_text(), re.MULTILINE | re.DOTALL)


def install(site: Path, name: str, code: str, entry_points: str) -> Path:
    """Write a package of one module, as an installer would, and return the folder for `sys.path`."""
    facts = site / f"{name}-1.0.dist-info"
    facts.mkdir(parents=True)
    (site / f"{name}.py").write_text(code)
    (facts / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    (facts / "entry_points.txt").write_text(entry_points)
    return site


def entry_points_in(toml: str) -> str:
    """The entry points of a pyproject.toml in the form that an installer writes."""
    groups = re.findall(r'^\[project\.entry-points\."(.+?)"\]\n((?:[^\[\n]+\n)+)', toml, re.MULTILINE)
    return "\n".join(f"[{group}]\n{lines.replace(chr(34), '')}" for group, lines in groups)
