"""How fast a round is: the papers' workloads, timed against a plain training loop and other frameworks."""

from coterie_bench.entries import ENTRIES, find_entries
from coterie_bench.findings import BenchOptions, Entry, Finding
from coterie_bench.session import run_bench

__all__ = ["ENTRIES", "BenchOptions", "Entry", "Finding", "find_entries", "run_bench"]
