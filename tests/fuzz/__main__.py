"""Run the fuzzer: `PYTHONPATH=tests python -m fuzz --cases 5000 --seed 0`."""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

from .harness import Outcome, fuzz
from .targets import TARGETS


def main() -> int:
    """Try the cases, print a table, and return 1 if anything was found."""
    parser = argparse.ArgumentParser(prog="python -m fuzz", description=__doc__)
    parser.add_argument("--cases", type=int, default=1000, help="cases in all")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--target", choices=[target.name for target in TARGETS], help="one target only")
    parser.add_argument("--case", type=int, help="this case of the target only")
    given = parser.parse_args()
    targets = [target for target in TARGETS if given.target in (None, target.name)]
    outcomes = []
    for position, target in enumerate(targets):
        share = given.cases // len(targets) + (position < given.cases % len(targets))
        numbers = range(share) if given.case is None else range(given.case, given.case + 1)
        with tempfile.TemporaryDirectory() as folder:
            outcomes.append(fuzz(target, numbers, given.seed, Path(folder)))
        _print(outcomes[-1])
    found = sum(len(outcome.findings) for outcome in outcomes)
    print(f"{sum(sum(o.counts.values()) for o in outcomes)} cases, {found} findings (seed {given.seed})")
    return 1 if found else 0


def _print(outcome: Outcome) -> None:
    words = ", ".join(f"{count} {word}" for word, count in sorted(outcome.counts.items()))
    print(f"{outcome.name:10} {sum(outcome.counts.values()):6} cases in {outcome.seconds:6.1f} s: {words}", flush=True)
    for finding in outcome.findings:
        print(f"  {finding}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
