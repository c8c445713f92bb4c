"""Natural federations in tables, patients by hospital and pupils by school: nobody divided them, no groups known."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from coterie.data.builders import HELD_OUT, BuildOptions, without_groups
from coterie.data.sources import load_table_source
from coterie.errors import DataError
from coterie.federation import Federation
from coterie.federation.labels import Task
from coterie.federation.table_files import RawTable
from coterie.randomness import numpy_generator

LEAST_ROWS = 20
"""Rows of a site at the least: fewer leave none to test on, or too few to tell anything."""


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
