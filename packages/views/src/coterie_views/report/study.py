"""What the report says of a folder with several runs: plain data, from a package beside the core that reads it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from coterie.plugins import required
from coterie_views.report.figures import Figure

GROUP = "coterie.reports"
"""The group of entry points in which a package offers the reader of such folders, under the name `study`."""


@dataclass(frozen=True)
class StudyTable:
    """A section with a table and notes below it."""

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[object]]
    notes: Sequence[str] = ()


@dataclass(frozen=True)
class StudyReport:
    """Several runs: a title, a paragraph, tables and groups of figures in their order, and one run in detail."""

    title: str
    summary: str
    sections: Sequence[StudyTable | Sequence[Figure]]
    detail: tuple[str, Path] | None = None
    """A heading, and the folder of the run."""

    @property
    def figures(self) -> list[Figure]:
        """The figures of all sections."""
        return [one for part in self.sections if not isinstance(part, StudyTable) for one in part]


def read_study(place: Path) -> StudyReport:
    """What is said of a folder with several runs; RunError where it holds none."""
    what = f"{place}: no run folder; a report of several runs"
    study: StudyReport = required(GROUP, "study", what, "coterie-studies")(place)
    return study
