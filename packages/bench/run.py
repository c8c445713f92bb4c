"""Run the whole benchmark at full scale and keep its results beside this file; further options are passed on."""

from __future__ import annotations

import sys
from pathlib import Path

from coterie.cli import main

if __name__ == "__main__":
    place = Path(__file__).resolve().parent / "results" / "last"
    main(["bench", "--scale", "full", "--out", str(place), "--resume", *sys.argv[1:]])
