"""Columns and rows of tables: names, cells that are no numbers, dates, identifiers, repeated rows, classes."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

import numpy as np

from coterie.federation.corrections import EVERY_SITE, first_of_each
from coterie.federation.labels import SURELY_CLASSES
from coterie.federation.table_columns import DATE, listed
from coterie.federation.table_files import RawColumn, RawTable
from coterie.federation.table_statistics import CategoryStatistics
from coterie_tables.findings import LEVEL, Finding, Tables, columns_of
from coterie_tables.spelling import is_number, plain

IDENTIFIERS = {"id", "ids", "uuid", "guid", "mrn", "ssn", "identifier", "key", "index", "rownumber"}
"""Words in the names of columns that name rows."""
CODES = (-9.0, -99.0, -999.0, -9999.0, 99.0, 999.0, 9999.0, 99999.0)
"""Numbers that stand for a missing value."""
WITH_UNIT = re.compile(r"([+-]?\d+(?:[.,]\d+)?)\s*[^\W\d_%]?\S*")
"""A number with a unit behind it."""
RARE = 0.05
"""A class with a smaller share of all rows than this is named."""
SEPARATORS = {",": "commas", ";": "semicolons", "\t": "tabs", "|": "bars"}


def check_forms(tables: Tables) -> Iterator[Finding]:
    """Files that are written unlike the others. They are read as they are."""
    for what, names in (("encoding", {}), ("separator", SEPARATORS), ("decimal", {".": "points", ",": "commas"})):
        forms = {site: getattr(table.form, what) for site, table in tables.items()}
        usual = Counter(forms.values()).most_common(1)[0][0]
        for site, form in forms.items():
            if form != usual:
                text = f"{what} {names.get(form, form)}, of most files {names.get(usual, usual)}"
                yield Finding(site, "", text, "nothing, it is read as such", problem=False)


def check_names(tables: Tables, label: str | None) -> Iterator[Finding]:
    """Columns that a site lacks, alone has, or calls by another spelling."""
    counts = Counter(name for table in tables.values() for name in table.columns)
    usual = [name for name, count in counts.items() if 2 * count > len(tables)]
    for site, table in tables.items():
        lacking = [name for name in usual if name not in table.columns]
        for extra in [name for name in table.columns if name not in usual]:
            meant = next((name for name in lacking if plain(name) == plain(extra)), None)
            if meant is None:
                what = f"{len(tables) - counts[extra]} of {len(tables)} sites have no such column"
                yield Finding(site, extra, what, "leave it out", {"drop": [extra]})
            else:
                lacking.remove(meant)
                yield Finding(site, extra, f"called {meant!r} at other sites", "rename it", {"rename": {extra: meant}})
        yield from (_lacks(site, name, is_label=name == label) for name in lacking)


def _lacks(site: str, name: str, is_label: bool) -> Finding:
    what = "no such column, unlike most sites"
    if is_label:
        return Finding(site, name, what, "add the labels, or leave the site out")
    return Finding(site, name, what, "add it without values", {"add": [name]})


def check_cells(tables: Tables, label: str | None) -> Iterator[Finding]:
    """Texts among numbers, infinite numbers and codes for missing values."""
    for name, columns in columns_of(tables):
        numeric = sum(column.numbers is not None for column in columns.values() if not column.empty)
        for site, column in columns.items():
            if column.numbers is not None:
                yield from _check_numbers(site, name, column, columns.values())
            elif column.odd is not None or (2 * numeric > len(columns) and not column.empty and name != label):
                yield from _check_texts(site, name, column)


def _check_texts(site: str, name: str, column: RawColumn) -> Iterator[Finding]:
    """Texts in a column that holds numbers, here or at most sites."""
    texts = Counter(text for text in column.texts if text is not None and not is_number(text))
    known = sum(text is not None for text in column.texts)
    read = {text: found[1] for text in texts if (found := WITH_UNIT.fullmatch(text))}
    if len(read) < len(texts) and sum(texts.values()) == known:
        yield Finding(
            site, name, f"holds texts such as {listed(texts, 2)}, other sites numbers", "give numbers, or drop it"
        )
        return
    new = {text: read.get(text, "") for text in texts}
    remedy = "read the numbers in them" if len(read) == len(texts) else "take them for missing values"
    what = f"{sum(texts.values())} of {known} values are no numbers, such as {listed(texts, 3)}"
    yield Finding(site, name, what, remedy, {"values": {name: new}})


def _check_numbers(site: str, name: str, column: RawColumn, everywhere: Iterable[RawColumn]) -> Iterator[Finding]:
    """Infinite numbers, and codes for missing values: numbers that occur again, far from all others."""
    numbers = column.numbers
    assert numbers is not None
    infinite = np.flatnonzero(np.isinf(numbers))
    if len(infinite):
        yield _missing(site, name, column, infinite, f"{len(infinite)} values are infinite")
    others = np.concatenate([known.numbers for known in everywhere if known.numbers is not None])
    others = others[np.isfinite(others) & ~np.isin(others, CODES)]
    if not len(others):
        return
    for code in CODES:
        rows = np.flatnonzero(numbers == code)
        if len(rows) > 1 and _beyond(code, others):
            what = f"{len(rows)} values are {code:g}, the others {others.min():.4g} to {others.max():.4g}"
            yield _missing(site, name, column, rows, what)


def _missing(site: str, name: str, column: RawColumn, rows: np.ndarray, what: str) -> Finding:
    """A finding whose remedy takes the cells of some rows for missing values."""
    texts = {column.texts[row]: "" for row in rows}
    return Finding(site, name, what, "take them for missing values", {"values": {name: texts}})


def _beyond(code: float, others: np.ndarray) -> bool:
    """Whether a number is further from the others than these are from one another."""
    low, high = float(others.min()), float(others.max())
    return max(low - code, code - high) > high - low > 0


def check_meanings(tables: Tables, label: str | None) -> Iterator[Finding]:
    """Dates, and columns that name rows: what is learnt from them does not hold for other rows."""
    known = {name: list(columns.values()) for name, columns in columns_of(tables) if name != label}
    for name, columns in known.items():
        date = _date_in(columns)
        if date is not None:
            remedy = "leave it out, or write numbers such as days since an event"
            yield Finding(EVERY_SITE, name, f"holds dates such as {date!r}", remedy, {"drop": [name]})
        elif _names_rows(name, columns, LEVEL / len(known)):
            what = "another value in nearly every row: it names rows"
            yield Finding(EVERY_SITE, name, what, "leave it out", {"drop": [name]})


def _date_in(columns: Sequence[RawColumn]) -> str | None:
    """The first text, where all texts are dates."""
    texts = [text for column in columns if column.numbers is None for text in column.texts if text is not None]
    return texts[0] if texts and all(map(DATE.match, texts)) else None


def _names_rows(name: str, columns: list[RawColumn], level: float) -> bool:
    """Whether a column holds identifiers.

    Whole numbers do if no site has one twice and, drawn at random from its range, some would be: n draws from r numbers
    are all different with a chance of about exp(-n²/2r) (the birthday problem), and less if some are more common.
    """
    numbers = [column.numbers[np.isfinite(column.numbers)] for column in columns if column.numbers is not None]
    numbers = [values for values in numbers if len(values) > 1]
    if not all(map(_distinct_whole, numbers)):
        return False
    if any(column.numbers is None for column in columns):
        return all(column.empty or CategoryStatistics.of(column.texts).names_rows for column in columns)
    if not numbers:
        return False
    expected = sum(len(values) ** 2 / 2 / (values.max() - values.min() + 1) for values in numbers)
    named = IDENTIFIERS & set(re.findall(r"[a-z]+", re.sub(r"(?<=[a-z])(?=[A-Z])", " ", name).lower()))
    return bool(named) or math.exp(-expected) < level


def _distinct_whole(values: np.ndarray) -> bool:
    """Whether these are whole numbers, none twice."""
    return len(np.unique(values)) == len(values) and bool((values == values.round()).all())


def check_rows(tables: Tables, label: str | None) -> Iterator[Finding]:
    """Rows that occur more than once, and rows without a label."""
    for site, table in tables.items():
        if label is not None and label in table.columns:
            missing = sum(text is None for text in table.columns[label].texts)
            if missing:
                what = f"{missing} of {table.rows} rows have no label"
                yield Finding(site, label, what, "leave them out", {"complete": [label]})
        again = ~first_of_each(table)
        if again.any() and _chance_of_repeats(table, int(again.sum())) < LEVEL / len(tables):
            what = (
                f"{int(again.sum())} of {table.rows} rows repeat others, the first in row {int(np.argmax(again)) + 1}"
            )
            yield Finding(site, "", what, "leave them out", {"distinct": True})


def _chance_of_repeats(table: RawTable, repeats: int) -> float:
    """The chance of as many repeated rows if columns were independent: Poisson, by how often values meet in each."""
    from scipy.stats import poisson

    meets = 1.0
    for column in table.columns.values():
        shares = np.array(list(Counter(column.texts.tolist()).values())) / table.rows
        meets *= float(np.square(shares).sum())
    return float(poisson.sf(repeats - 1, table.rows * (table.rows - 1) / 2 * meets))


def check_classes(tables: Tables, label: str | None) -> Iterator[Finding]:
    """Rare classes, and sites of one class. Both may be as they should."""
    labels = {site: table.columns[label] for site, table in tables.items() if label and label in table.columns}
    counts: dict[str, Counter[str]] = {site: Counter(column.texts.tolist()) for site, column in labels.items()}
    whole = sum(counts.values(), Counter())
    if not 2 <= len(whole) <= SURELY_CLASSES:
        return
    yield from (_rare(str(label), name, whole) for name, count in whole.items() if count < RARE * whole.total())
    for site, known in counts.items():
        if len(known) == 1:
            what = f"{next(iter(known))!r} is the label of all its rows"
            yield Finding(site, str(label), what, "make sure that it is meant", problem=False)


def _rare(label: str, name: str, counts: Counter[str]) -> Finding:
    what = f"{name!r} is the label of {counts[name]} of {counts.total()} rows"
    remedy = "try --class-weights balanced, and --metrics auc,f1"
    return Finding(EVERY_SITE, label, what, remedy, problem=False)
