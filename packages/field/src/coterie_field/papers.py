"""What the methods of this package are published in."""

from __future__ import annotations

from pathlib import Path

from coterie.methods.published import read_papers

PAPERS = read_papers(Path(__file__).with_name("papers.toml"))
"""By the method's name."""
