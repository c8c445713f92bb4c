"""An entry of the papers' page: a table or figure, the stored result that stands beside it, and what differs."""

from __future__ import annotations

from dataclasses import dataclass

Pattern = tuple[str, str]
"""Setting and measure of stored rows; `*` stands for anything."""


@dataclass(frozen=True)
class Item:
    """A table or figure, or a part of it."""

    place: str
    about: str
    stored: str | None = None
    """A file of docs/results without its ending."""
    rows: tuple[Pattern, ...] = (("*", "*"),)
    says: str = ""
    """The paper in words, where it plots its numbers without printing them."""
    differs: str = ""
    """What differs from the paper's setting and was tried, where our number is further away than errors explain."""
    picture: str = ""
    """A file of docs/images that draws ours, where it is not the rows that are drawn."""
    not_run: str = ""
    """What to say where there is no stored result."""


DRAWING = "a drawing, nothing to run"
NOT_RUN = "not run"
EARLIER = "not stored by its command; earlier figures are in [Results](results.md)"
TRAIN = (("*", "train *"),)
