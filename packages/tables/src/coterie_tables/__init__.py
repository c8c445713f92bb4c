"""The faults of a federation's tables, found before training, each with a proposed remedy."""

from coterie_tables.checking import check_tables
from coterie_tables.findings import Finding, merge

__all__ = ["Finding", "check_tables", "merge"]
