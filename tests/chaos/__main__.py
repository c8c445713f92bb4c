"""Run the faults and print a table: `PYTHONPATH=tests python -m chaos --faults 300 --seed 0`."""

from __future__ import annotations

import argparse
import signal
import sys

from .trials import chaos


def main() -> int:
    """Return 1 if a result was lost or is another one."""
    parser = argparse.ArgumentParser(prog="python -m chaos", description=__doc__)
    parser.add_argument("--faults", type=int, default=100, help="faults in all")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--fault", type=int, help="this one only")
    given = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that the small disk is unmounted
    numbers = range(given.faults) if given.fault is None else range(given.fault, given.fault + 1)
    rows = chaos(numbers, given.seed)
    print(f"{'fault':15} {'tried':>6} {'survived':>9}")
    for row in rows:
        tried = sum(row.counts.values())
        words = ", ".join(f"{count} {word}" for word, count in sorted(row.counts.items()))
        print(f"{row.name:15} {tried:6} {tried - row.counts['LOST']:9}  {words}")
        for text in row.lost:
            print(f"  {text}")
    tried = sum(sum(row.counts.values()) for row in rows)
    lost = sum(row.counts["LOST"] for row in rows)
    print(f"{'in all':15} {tried:6} {tried - lost:9}  (seed {given.seed})")
    return 1 if lost else 0


if __name__ == "__main__":
    sys.exit(main())
