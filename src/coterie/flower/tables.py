"""Tables where they lie: a node reports statistics of its columns, and applies what the server makes of all reports.

Of its CSV or Parquet file a node sends the names of the columns; of each column that is used the count, the mean and
the sum of squared deviations over its training rows, or how often each category occurs; and the label's classes, or the
same three numbers of a quantity. The server sends back one preprocessing (`Table`). Both sides compute as
`Federation.from_tables` does with all files at hand, so that a simulation gives the same model.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
from flwr.app import ConfigRecord, Context, RecordDict
from pydantic import TypeAdapter, ValidationError

from coterie.errors import DataError, RunError
from coterie.federation.client import STANDARD
from coterie.federation.labels import MOST_CLASSES, SURELY_CLASSES, Task, check_complete, classes_of_columns
from coterie.federation.table_files import RawColumn, read_table
from coterie.federation.tables import (
    Site,
    SiteReport,
    Table,
    check_named,
    column_names,
    fit_table,
    report_site,
    site_of,
)
from coterie.flower.exchange import Exchange
from coterie.flower.wire import refuse_refusal
from coterie.tasks.wire import BadReply, in_words

TABLE = "table"
"""The record that holds a report or a preprocessing as JSON, and where a node keeps the latter."""
MOST_BYTES = 2**22
"""Of a report: a column of identifiers has more categories than this holds."""


def spelt(config: Mapping[str, Any]) -> dict[str, Any]:
    """The options of a configuration with underscores for hyphens, without those that are left empty."""
    return {key.replace("-", "_"): value for key, value in config.items() if value not in ("", None)}


@dataclass(frozen=True)
class TableOptions:
    """How the nodes read their tables: what `Federation.from_tables` is given in a simulation."""

    label: str
    drop: tuple[str, ...] = ()
    categorical: tuple[str, ...] = ()
    task: Task | None = None
    decimal: str | None = None
    seed: int = 0

    @classmethod
    def of(cls, config: Mapping[str, Any]) -> TableOptions | None:
        """The options in a run configuration, in either spelling; None where nodes have no tables."""
        found = spelt(config)
        if "label" not in found:
            return None
        lists = {key: column_names(str(found[key]), key) for key in LISTS if key in found}
        seed = int(found.get("seed", 0))
        return cls(str(found["label"]), **lists, task=found.get("task"), decimal=found.get("decimal"), seed=seed)


LISTS = ("drop", "categorical")


@dataclass(frozen=True)
class LabelReport:
    """What a site says of its labels: their values where they are classes, none where they may be quantities."""

    kind: Literal["texts", "numbers", "withheld"]
    values: tuple[str | float, ...]
    whole: bool
    """Whether all are whole numbers, if they are numbers."""
    rows: int


@dataclass(frozen=True)
class NodeReport:
    """All that a node says of its table."""

    client: str
    names: tuple[str, ...]
    """Of all columns."""
    label: LabelReport
    site: SiteReport


_REPORT = TypeAdapter(NodeReport)


def read_site(path: Path, client: str, options: TableOptions) -> Site:
    """A node's rows, divided as in a simulation with a client of that name."""
    raw = replace(read_table(path, options.decimal), origin=client)
    check_named({client: raw}, options.label, {})
    return site_of(client, raw, None, STANDARD, options.seed)


def report_of(site: Site, options: TableOptions) -> NodeReport:
    """What a node says of its table."""
    left_out = {options.label, *options.drop}
    label = report_label(site.raw.columns[options.label], site.raw.origin, options)
    report = report_site(site, options.label, left_out, options.categorical)
    return NodeReport(site.id, tuple(site.raw.columns), label, report)


def report_label(column: RawColumn, origin: str, options: TableOptions) -> LabelReport:
    """The label's classes; quantities, and numbers that may be some, stay at the site."""
    check_complete(column, options.label, origin)
    if column.numbers is None:
        texts = sorted({str(text) for text in column.texts})
        if len(texts) > MOST_CLASSES:
            raise DataError(f"{origin}: label {options.label!r} has {len(texts):,} values, expected classes")
        return LabelReport("texts", tuple(texts), False, len(column))
    values = np.unique(column.numbers)
    if not np.isfinite(values).all():
        raise DataError(f"{origin}: label {options.label!r} holds an infinite number: correct it")
    whole = bool((values == np.rint(values)).all())
    most = {"classification": MOST_CLASSES, "regression": 0, None: SURELY_CLASSES if whole else 0}[options.task]
    if len(values) > most:
        return LabelReport("withheld", (), whole, len(column))
    return LabelReport("numbers", tuple(values.tolist()), whole, len(column))


def agreed_classes(reports: Sequence[NodeReport], options: TableOptions) -> tuple[str, ...]:
    """The names of the classes, none for regression; as `classes_of_columns` finds them with all labels at hand."""
    labels = {report.client: report.label for report in reports}
    texts = any(label.kind == "texts" for label in labels.values())
    real = options.task is None and not all(label.whole for label in labels.values())
    if not texts and (options.task == "regression" or real):
        return ()
    for client, label in labels.items():
        if label.kind == "withheld":
            raise DataError(
                f"client {client!r}: label {options.label!r} holds more than {SURELY_CLASSES} numbers: classes or "
                "quantities? give --classification or --regression"
            )
    columns = {
        client: RawColumn([str(text) for text in label.values], None)
        if label.kind == "texts"
        else RawColumn(None, np.array(label.values, dtype=np.float64))
        for client, label in labels.items()
    }
    rows = sum(label.rows for label in labels.values())
    return classes_of_columns(columns, options.label, options.task, rows)


def agree(reports: Sequence[NodeReport], options: TableOptions) -> Table:
    """The preprocessing that the nodes' reports lead to."""
    ordered = sorted(reports, key=lambda report: report.client)
    known = set().union(*(report.names for report in ordered))
    for option in LISTS:
        for name in getattr(options, option):
            if name not in known:
                raise DataError(f"{option}: no table has a column {name!r}: correct it")
    names = agreed_classes(ordered, options)
    unfitted = Table(options.label, names, (), options.drop, None, options.decimal)
    return fit_table([report.site for report in ordered], unfitted)


def pack_report(report: NodeReport) -> RecordDict:
    """A report as a record."""
    text = json.dumps(asdict(report))
    if len(text) > MOST_BYTES:
        raise DataError(
            f"{report.client}: statistics of {len(text):,} bytes, expected at most {MOST_BYTES:,}: give --drop for "
            "columns with too many categories"
        )
    return RecordDict({TABLE: ConfigRecord({"json": text})})


def open_report(records: RecordDict) -> NodeReport:
    """The report in a node's answer; BadReply with the reason where there is none."""
    refuse_refusal(records)
    record = records.get(TABLE)
    text = record.get("json") if isinstance(record, ConfigRecord) else None
    if not isinstance(text, str) or len(text) > MOST_BYTES:
        raise BadReply("it sent no statistics of a table")
    try:
        return _REPORT.validate_json(text)
    except ValidationError as problem:
        raise BadReply(in_words(f"its statistics cannot be read ({problem.errors()[0]['msg']})")) from problem


def table_record(table: Table) -> RecordDict:
    """A preprocessing as a record for the nodes."""
    return RecordDict({TABLE: ConfigRecord({"json": json.dumps(table.to_json())})})


def keep_table(records: RecordDict, context: Context) -> None:
    """Keep the preprocessing that came with a message, if one did."""
    if isinstance(record := records.get(TABLE), ConfigRecord):
        context.state[TABLE] = record


def kept_text(context: Context) -> str | None:
    """The preprocessing that this node keeps, as text."""
    record = context.state.get(TABLE)
    return str(record["json"]) if isinstance(record, ConfigRecord) else None


def collect_reports(exchange: Exchange, count: int, seconds: float) -> list[NodeReport]:
    """The reports of at least `count` nodes, asked for as nodes come; RunError when they have not come in that time."""
    found: dict[int, NodeReport] = {}
    refused: dict[int, str] = {}
    asked: dict[str, int] = {}
    deadline = time.monotonic() + seconds
    while True:
        known = {*found, *refused, *asked.values()}
        new = sorted(set(exchange.grid.get_node_ids()) - known)
        asked |= exchange.ask(RecordDict(), new, "query.table")
        for key, answer in exchange.pull(asked).items():
            node = asked.pop(key)
            try:
                found[node] = open_report(answer.records())
            except BadReply as problem:
                refused[node] = str(problem)
        if len(found) >= count:
            return list(found.values())
        left = deadline - time.monotonic()
        if left <= 0:
            reasons = "".join(f"; node {node}: {reason}" for node, reason in list(refused.items())[-1:])
            raise RunError(
                f"{len(found)} nodes described their tables within {seconds:g} s, {count} are needed{reasons}"
            )
        time.sleep(min(exchange.poll, left))
