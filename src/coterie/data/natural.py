"""Natural federations: patients by hospital, pupils by school, signals by person. They are not divided by us."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import numpy as np
import torch

from coterie.data.builders import HELD_OUT, BuildOptions, without_groups
from coterie.data.signals import Recordings, cut_windows
from coterie.data.sources import load_signal_source, load_table_source
from coterie.errors import ConfigError, DataError
from coterie.federation import Client, Federation, Split, make_client
from coterie.federation.client import Splits
from coterie.federation.labels import Task
from coterie.federation.table_files import RawTable
from coterie.federation.validation import hold_out_of
from coterie.randomness import numpy_generator

LEAST_ROWS = 20
"""Rows of a site at the least: fewer leave none to test on, or too few to measure anything."""
LAST = 0.25
"""Share of a column of time that is test data: the last of the four years of Beijing's air."""
WINDOW = 150
"""Samples in a window of a signal: 3 s at the watch's 50 Hz, about one repetition of an exercise."""
WINDOWS_VALIDATION = 0.2
"""Share of a person's training windows, those of whole recordings, that are kept for validation."""


def sites(
    source: str,
    label: str,
    *,
    task: Task,
    drop: tuple[str, ...] = (),
    categorical: tuple[str, ...] = (),
    group_of: Callable[[str], int] | None = None,
    splits: Splits = HELD_OUT,
    time: str | None = None,
) -> Callable[[BuildOptions], Federation]:
    """A client for each site of a table source with enough rows, drawn at random where fewer are asked for.

    Args:
        source: the table source.
        label: the column to predict.
        task: whether the label is a class or a quantity.
        drop: columns that are no inputs, such as numbers of rows.
        categorical: columns of numbers that are categories.
        group_of: the hidden group, 0 or 1, of a site by its name, where groups are known.
        splits: fractions for train, validation and test.
        time: a column of time whose values are blocks; the last quarter of them is test data, in place of a fraction.
    """

    def make(order: BuildOptions) -> Federation:
        _check_groups(order, 1 if group_of is None else 2)
        tables = {name: t for name, t in load_table_source(source, order.data_dir).items() if t.rows >= LEAST_ROWS}
        if order.clients > len(tables):
            raise DataError(
                f"clients={order.clients}: {len(tables)} sites of {source} have {LEAST_ROWS} rows: ask for fewer"
            )
        drawn = np.sort(numpy_generator(order.seed, "sites").permutation(len(tables))[: order.clients])
        chosen = {name: tables[name] for name in (list(tables)[i] for i in drawn)}
        parts = {name: (table, None) if time is None else _by_time(table, time) for name, table in chosen.items()}
        made = Federation.from_tables(
            {name: _at_most(early, order, splits[0]) for name, (early, _) in parts.items()},
            label,
            drop=drop,
            categorical=categorical,
            task=task,
            splits=splits,
            groups=None if group_of is None else {name: group_of(name) for name in chosen},
            blocks=time,
            seed=order.seed,
        )
        made.name = order.name
        return made if time is None else _with_tests(made, {name: late for name, (_, late) in parts.items()})

    return make


def _check_groups(order: BuildOptions, known: int) -> None:
    if known == 1:
        without_groups(order)
    elif order.groups != min(known, order.clients):
        raise ConfigError(f"groups={order.groups}: {order.name} has {known} hidden groups: leave groups out")


def _by_time(table: RawTable, column: str) -> tuple[RawTable, RawTable]:
    """The rows before the last quarter of the values of a column of time, and the rows in it."""
    times = table.columns[column].numbers
    assert times is not None
    values = np.unique(times)
    first = values[-max(1, round(LAST * len(values)))]
    return table.take(np.flatnonzero(times < first)), table.take(np.flatnonzero(times >= first))


def _with_tests(federation: Federation, late: Mapping[str, RawTable | None]) -> Federation:
    """The federation with the rows of other tables as test data."""
    clients = []
    for client in federation:
        assert federation.table is not None
        x, y = federation.table.transform(late[client.id])
        assert y is not None
        clients.append(replace(client, test=Split(x, y)))
    return federation.with_clients(clients)


def _at_most(table: RawTable, order: BuildOptions, share: float) -> RawTable:
    """Rows for `samples` training samples, drawn at random; all, where none are asked for."""
    if order.samples is None:
        return table
    keep = min(table.rows, max(LEAST_ROWS, round(order.samples / share)))
    rows = numpy_generator(order.seed, "rows", table.origin).permutation(table.rows)[:keep]
    return table.take(np.sort(rows))


def people(source: str) -> Callable[[BuildOptions], Federation]:
    """A client for each person of a signal source; of each label one recording is for testing and the others train.

    Which one is drawn by the seed. All windows of that recording are test data. The recordings are the blocks of the
    training data: some of them, as a whole, are validation data. So no recording has windows in two parts; windows do
    not overlap.
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
    own = np.flatnonzero(found.person == person)
    training: list[int] = []
    testing: list[int] = []
    for label in np.unique(found.label[own]):
        recordings = draw.permutation(own[found.label[own] == label])
        if len(recordings) < 2:
            raise DataError(
                f"person {person} has one recording of label {label}: expected one to train and one to test"
            )
        testing.append(recordings[0])
        training.extend(recordings[1:])
    (x, y, block), (x_test, y_test, _) = (_windows(found, some) for some in (training, testing))
    whole = make_client(f"person-{person:02d}", {"train": (x, y), "test": (x_test, y_test)}, blocks=block)
    client = hold_out_of(whole, WINDOWS_VALIDATION, order.seed)
    if order.samples is None:
        return client
    kept = np.sort(draw.permutation(len(client.train))[: order.samples])
    return replace(client, train=client.train.take(torch.from_numpy(kept)))


def _windows(found: Recordings, recordings: Sequence[int]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Windows (n, channels, length), their labels (n,) and recordings (n,)."""
    cut = [cut_windows(found.signals[recording], WINDOW) for recording in recordings]
    recording = np.repeat(recordings, [len(windows) for windows in cut])
    return np.concatenate(cut), found.label[recording], recording
