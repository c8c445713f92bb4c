"""Twelve hospitals' tables: unequal sizes, mixed columns, missing values, and three rules for the outcome."""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np

LABEL = "y"
COLUMNS = ("age", "pressure", "glucose", "crp", "ward", "smoker")
NUMERIC = ("age", "pressure", "glucose", "crp")
SIZES = (1000, 700, 500, 350, 250, 180, 130, 100, 80, 60, 50, 40)
"""Rows per hospital, 25:1."""
RULES = ((1.5, 2.0, -1.0, 0.0), (-1.5, 0.0, 1.0, 2.0), (0.5, -2.0, 0.0, -1.5))
"""How age, pressure, glucose and crp (standardised) speak for the outcome, by the hospital's hidden group."""
WARDS = ("surgery", "medicine", "icu")


def write_hospitals(folder: Path, seed: int = 0, share: float = 1.0) -> dict[str, int]:
    """Write `hospital-01.csv` to `hospital-12.csv` and return each hospital's hidden group by its name.

    The outcome `y` is "yes" or "no". `share` makes all tables smaller.
    """
    folder.mkdir(parents=True, exist_ok=True)
    random = np.random.default_rng(seed)
    groups = {}
    for i, size in enumerate(SIZES):
        name = f"hospital-{i + 1:02d}"
        groups[name] = i % len(RULES)
        rows = hospital_rows(random, groups[name], max(12, round(size * share)), incomplete=i % 4 != 3)
        with open(folder / f"{name}.csv", "w", newline="", encoding="utf-8") as file:
            writer = csv.writer(file)
            writer.writerow([*COLUMNS, LABEL])
            writer.writerows(rows)
    return groups


def hospital_rows(random: np.random.Generator, group: int, n: int, *, incomplete: bool) -> list[list[str]]:
    """The rows of one hospital as texts, both outcomes among the first two."""
    numbers = random.normal(size=(n, len(NUMERIC)))
    ward = random.integers(len(WARDS), size=n)
    smoker = random.random(n) < 0.3
    score = numbers @ np.array(RULES[group]) + 0.8 * (ward == 2) + 0.5 * smoker + 0.5 * random.normal(size=n)
    outcome = score > np.median(score)
    missing = random.random((n, len(NUMERIC))) < (0.05 if incomplete else 0.0)
    scaled = numbers * [12.0, 15.0, 1.2, 8.0] + [61.0, 128.0, 6.0, 14.0]
    rows = [
        [
            *("" if missing[r, c] else f"{scaled[r, c]:.3f}" for c in range(len(NUMERIC))),
            "" if incomplete and random.random() < 0.02 else WARDS[ward[r]],
            "true" if smoker[r] else "false",
            "yes" if outcome[r] else "no",
        ]
        for r in range(n)
    ]
    first = [int(np.argmax(outcome)), int(np.argmin(outcome))]
    return [rows[r] for r in first] + [rows[r] for r in range(n) if r not in first]
