"""Natural federations: patients by hospital, pupils by school, signals by person. Nobody divided them."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from coterie.data.builders import HELD_OUT, BuildOptions, without_groups
from coterie.data.signals import Recordings, cut_windows
from coterie.data.sources import load_signal_source, load_table_source
from coterie.errors import DataError
from coterie.federation import Client, Federation, make_client
from coterie.federation.labels import Task
from coterie.federation.table_files import RawTable
from coterie.randomness import numpy_generator

LEAST_ROWS = 20
"""Rows of a site at the least: fewer leave none to test on, or too few to tell anything."""
WINDOW = 150
"""Samples in a window of a signal: 3 s at the watch's 50 Hz, about one repetition of an exercise."""
WINDOWS_VALIDATION = 0.2
"""Share of a training recording's windows, its last ones in time, that are kept for validation."""


def sites(
    source: str, label: str, *, task: Task, drop: tuple[str, ...] = (), categorical: tuple[str, ...] = ()
) -> Callable[[BuildOptions], Federation]:
    """A client for each site of a table source with enough rows, drawn at random where fewer are asked for.

    Args:
        source: the table source.
        label: the column to predict.
        task: whether the label is a class or a quantity.
        drop: columns that are no inputs, such as numbers of rows.
        categorical: columns of numbers that are categories.
    """

    def make(order: BuildOptions) -> Federation:
        without_groups(order)
        tables = {name: t for name, t in load_table_source(source, order.data_dir).items() if t.rows >= LEAST_ROWS}
        if order.clients > len(tables):
            raise DataError(
                f"clients={order.clients}: {len(tables)} sites of {source} have {LEAST_ROWS} rows: ask for fewer"
            )
        drawn = np.sort(numpy_generator(order.seed, "sites").permutation(len(tables))[: order.clients])
        chosen = [list(tables)[i] for i in drawn]
        made = Federation.from_tables(
            {name: _at_most(tables[name], order) for name in chosen},
            label,
            drop=drop,
            categorical=categorical,
            task=task,
            splits=HELD_OUT,
            seed=order.seed,
        )
        made.name = order.name
        return made

    return make


def _at_most(table: RawTable, order: BuildOptions) -> RawTable:
    """Rows for `samples` training samples, drawn at random; all, where none are asked for."""
    if order.samples is None:
        return table
    keep = min(table.rows, max(LEAST_ROWS, round(order.samples / HELD_OUT[0])))
    rows = numpy_generator(order.seed, "rows", table.origin).permutation(table.rows)[:keep]
    return table.take(np.sort(rows))


def people(source: str) -> Callable[[BuildOptions], Federation]:
    """A client for each person of a signal source; of each label one recording is for testing and the others train.

    Which one is drawn by the seed. All windows of that recording are test data, so that no recording has windows on
    both sides; windows do not overlap. Validation data is the end of the training recordings.
    """

    def make(order: BuildOptions) -> Federation:
        without_groups(order)
        found = load_signal_source(source, order.data_dir)
        names = np.unique(found.person)
        if order.clients > len(names):
            raise DataError(f"clients={order.clients}: {source} has {len(names)} people: ask for fewer")
        drawn = np.sort(numpy_generator(order.seed, "people").permutation(names)[: order.clients])
        return Federation([_person(found, int(person), order) for person in drawn], found.classes, order.name)

    return make


def _person(found: Recordings, person: int, order: BuildOptions) -> Client:
    """The windows of one person's recordings; `samples` training windows, drawn at random, where they are asked for."""
    draw = numpy_generator(order.seed, "recordings", person)
    parts: dict[str, list[tuple[np.ndarray, int]]] = {"train": [], "validation": [], "test": []}
    own = np.flatnonzero(found.person == person)
    for label in np.unique(found.label[own]):
        recordings = draw.permutation(own[found.label[own] == label])
        if len(recordings) < 2:
            raise DataError(
                f"person {person} has one recording of label {label}: expected one to train and one to test"
            )
        for place, recording in enumerate(recordings):
            windows = cut_windows(found.signals[recording], WINDOW)
            cut = len(windows) - round(WINDOWS_VALIDATION * len(windows))
            taken = {"test": windows} if place == 0 else {"train": windows[:cut], "validation": windows[cut:]}
            for part, some in taken.items():
                parts[part].append((some, int(label)))
    pairs = {part: _stacked(some) for part, some in parts.items()}
    if order.samples is not None:
        kept = np.sort(draw.permutation(len(pairs["train"][1]))[: order.samples])
        pairs["train"] = tuple(values[kept] for values in pairs["train"])
    return make_client(f"person-{person:02d}", pairs)


def _stacked(some: list[tuple[np.ndarray, int]]) -> tuple[np.ndarray, ...]:
    """Windows (n, channels, length) and their labels (n,)."""
    return np.concatenate([x for x, _ in some]), np.repeat([label for _, label in some], [len(x) for x, _ in some])
