"""How fast a round is: the workloads of the papers, timed against the plain loop and other frameworks."""

from coterie.bench.entries import ENTRIES, find_entries
from coterie.bench.findings import Entry, Finding, Setting
from coterie.bench.session import run_bench

__all__ = ["ENTRIES", "Entry", "Finding", "Setting", "find_entries", "run_bench"]
