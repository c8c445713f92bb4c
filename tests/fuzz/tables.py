"""Tables: CSV files with odd cells, headers, separators and bytes."""

from __future__ import annotations

import contextlib
import csv
import io
import random
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from coterie import Federation

from .harness import Finding, Trial
from .mutations import spoilt

NAMES = ["age", "ward", "id", "", " ", "y", "site", "y", "a,b", 'quo"te', "1", "ü☃", "x" * 2000]
CELLS = [
    *("", "NA", "?", "nan", "inf", "-inf", "1e400", "1e308", "-0", "1_000", "1,5", "1.5", " 7 ", "0x10", "٣", "1 000"),
    *("yes", "no", "true", "FALSE", "a;b", "a\nb", 'quo"te', "'", "\0", "ü☃", "x" * 3000, "=1+1", "2024-01-01", "NULL"),
]
SEPARATORS = ",;\t|"


class Tables:
    """Tables of two or three sites, of which one or more are odd."""

    name = "tables"

    @contextlib.contextmanager
    def open(self, folder: Path) -> Iterator[Trial]:
        """An empty folder for each case."""

        def trial(random: random.Random) -> str:
            place = folder / "sites"
            shutil.rmtree(place, ignore_errors=True)
            place.mkdir()
            return _federation(place, random)

        yield trial


def _federation(place: Path, random: random.Random) -> str:
    header = ["age", "ward", "site", "y"]
    for site in range(random.choice([1, 2, 2, 2, 3])):
        data = _table(header, random).encode(
            "utf-16" if random.random() < 0.03 else random.choice(["utf-8", "utf-8-sig"])
        )
        (place / f"s{site}.csv").write_bytes(spoilt(data, random) if random.random() < 0.2 else data)
    options: dict[str, Any] = {}
    if random.random() < 0.2:
        options["drop"] = random.sample([*header, "nothing"], random.randint(0, 2))
    if random.random() < 0.2:
        options["categorical"] = random.sample([*header, ""], random.randint(0, 2))
    if random.random() < 0.2:
        options["client_column"] = random.choice([*header, "nothing"])
    if random.random() < 0.3:
        options["task"] = random.choice(["classification", "regression"])
    if random.random() < 0.1:
        options |= {
            "decimal": random.choice([".", ".", ",", ";"]),
            "scale": False,
            "max_categories": random.randint(0, 9),
        }
    federation = Federation.from_tables(place / "*.csv", random.choice(["y"] * 8 + ["age", "nothing"]), **options)
    _check(federation, place)
    return "accepted"


def _check(federation: Federation, place: Path) -> None:
    """What was accepted is finite, and the table encodes its own files again."""
    table = federation.table
    if table is None or table != type(table).from_json(table.to_json()):
        raise Finding("the table is another after JSON")
    for client in federation:
        for part in (client.train, client.validation, client.test):
            if not torch.isfinite(part.x).all() or part.x.shape[1] != len(table.features):
                raise Finding(f"client {client.id!r} was accepted with numbers that are not finite, or too few")
    for file in place.glob("*.csv"):
        inputs, labels = table.transform(file)
        if labels is None or len(labels) != len(inputs):
            raise Finding(f"{file.name}: the table gives other numbers of inputs and labels")


def _table(header: list[str], random: random.Random) -> str:
    names = list(header)
    if random.random() < 0.05:
        names[random.randrange(len(names))] = random.choice(NAMES)
    if random.random() < 0.05:
        names.append(random.choice(NAMES))
    odd = random.choice([0.0, 0.0, 0.0, 0.0, 0.005, 0.02, 0.3, 1.0])
    text = io.StringIO()
    separator = random.choice(SEPARATORS)
    writer = csv.writer(text, delimiter=separator, lineterminator=random.choice(["\n", "\r\n", "\r"]))
    writer.writerow(names)
    for row in range(random.choice([0, 1, 5, 40, 60]) if random.random() < 0.3 else 40):
        usual = [str(row % 9), "abc"[row % 3], f"s{row % 2}", str(row % 2), *("7" for _ in names[4:])]
        cells = [random.choice(CELLS) if random.random() < odd else cell for cell in usual]
        writer.writerow(cells if random.random() < 0.999 else cells[:-1])
        if random.random() < 0.02:
            text.write("\n")
    return text.getvalue()
