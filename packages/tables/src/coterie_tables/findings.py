"""What `coterie check` finds: a sentence, a proposed remedy and, where one can be applied, a correction."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from coterie.federation.corrections import EVERY_SITE, Corrections, SiteCorrections
from coterie.federation.table_files import RawColumn, RawTable

LEVEL = 0.05
"""The chance of a false alarm of one kind in a whole federation of sites that honestly differ."""
Tables = Mapping[str, RawTable]


@dataclass(frozen=True)
class Finding:
    """One problem, or something worth a look."""

    site: str
    """The site's name, "*" for all."""
    column: str
    """The column's name; empty for a whole table."""
    what: str
    remedy: str
    changes: Mapping[str, Any] = field(default_factory=dict)
    """Fields of `SiteCorrections` that apply the remedy; empty where a person has to decide."""
    problem: bool = True
    """Whether training would fail or mislead; otherwise it is worth a look."""

    def __str__(self) -> str:
        where = ", ".join(name for name in (self.site if self.site != EVERY_SITE else "all sites", self.column) if name)
        return f"{where}: {self.what}: {self.remedy}"


def columns_of(tables: Tables) -> Iterator[tuple[str, dict[str, RawColumn]]]:
    """Each column that any site has: its name, and the column by site."""
    for name in dict.fromkeys(name for table in tables.values() for name in table.columns):
        yield name, {site: table.columns[name] for site, table in tables.items() if name in table.columns}


def merge(findings: Iterable[Finding], data: str = "") -> Corrections:
    """The corrections that apply all remedies."""
    sites: dict[str, dict[str, Any]] = {}
    for finding in findings:
        if finding.changes:
            mine = sites.setdefault(finding.site, {})
            for key, value in finding.changes.items():
                mine[key] = _joined(mine.get(key), value)
    return Corrections(data=data, sites={site: SiteCorrections(**changes) for site, changes in sites.items()})


def _joined(one: Any, other: Any) -> Any:
    if isinstance(one, Mapping):
        return {key: _joined(one.get(key), other.get(key)) for key in {**one, **other}} if other else one
    if isinstance(one, list):
        return list(dict.fromkeys([*one, *(other or [])]))
    return one if other is None else other
