"""Labels as they are given: texts, booleans, numbers from 1, floats that are 0 or 1. Their names are kept."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, get_args

import numpy as np
import torch
from torch import Tensor

from coterie.errors import ConfigError, DataError
from coterie.federation.client import Client, Split, label_values
from coterie.federation.table_files import RawColumn, number_name

Task = Literal["classification", "regression"]
SURELY_CLASSES = 20
"""Whole numbers of more values than this may be classes or quantities."""
ROWS_PER_CLASS = 5
"""Fewer rows for each value than this, and whole numbers may be quantities."""
MOST_CLASSES = 10_000
TRUTHS = {"False", "True"}
"""Both are classes, whether both occur or not."""
Items = Sequence[tuple[str, Any]]


def check_task(task: Task | None) -> None:
    """Refuse a task that is none."""
    if task is not None and task not in get_args(Task):
        raise ConfigError(f"task={task!r}: expected classification or regression")


def classes_of_columns(
    columns: Mapping[str, RawColumn], label: str, task: Task | None, rows: int | None = None
) -> tuple[str, ...]:
    """The names of the classes in the label columns of all tables, by where they come from; none for regression.

    `rows` is how many rows the columns are of, where they hold each value once.

    Raises:
        DataError: it is not clear whether the labels are classes or quantities, or they are of one class only.
    """
    check_task(task)
    for origin, column in columns.items():
        check_complete(column, label, origin)
    if any(column.numbers is None for column in columns.values()):
        names = _text_classes(columns, label, task)
    else:
        names = _number_classes(columns, label, task, rows)
    if len(names) == 1:
        raise DataError(f"label {label!r} is {names[0]!r} in every row: there is nothing to learn from it")
    if len(names) > MOST_CLASSES:
        raise DataError(f"label {label!r} has {len(names):,} values, expected {MOST_CLASSES:,} classes at most")
    return tuple(names)


def check_complete(column: RawColumn, label: str, origin: str) -> None:
    """Refuse a row without a label."""
    missing = np.isnan(column.numbers) if column.numbers is not None else column.texts == np.array(None)
    if missing.any():
        row = int(np.argmax(missing)) + 1
        raise DataError(f"{origin}: row {row} has no label {label!r}: fill it in or remove the row")


def _text_classes(columns: Mapping[str, RawColumn], label: str, task: Task | None) -> list[str]:
    texts = [(origin, str(text)) for origin, column in columns.items() for text in column.texts]
    if task == "regression":
        odd_ones = ((origin, text) for origin, text in texts if not _is_number(text))
        of_texts = next((origin, str(column.texts[0])) for origin, column in columns.items() if column.numbers is None)
        origin, odd = next(odd_ones, of_texts)  # a file's reader is stricter: to Python "1_0" is a number too
        raise DataError(f"{origin}: label {label!r} holds {odd!r}, which is no number: regression needs numbers")
    return sorted({text for _, text in texts}, key=label_order)


def _number_classes(columns: Mapping[str, RawColumn], label: str, task: Task | None, rows: int | None) -> list[str]:
    values: set[float] = set()
    for origin, column in columns.items():
        values.update(_distinct_numbers(column, label, origin))
    rows = sum(map(len, columns.values())) if rows is None else rows
    task = task or _task_of(values, label, rows)
    return [] if task == "regression" else [number_name(value) for value in sorted(values)]


def _task_of(values: set[float], label: str, rows: int) -> Task:
    """What numbers that occur in so many rows are labels of."""
    if not all(value.is_integer() for value in values):
        return "regression"
    many = len(values) > SURELY_CLASSES or rows < ROWS_PER_CLASS * len(values)
    if many and len(values) > 2:
        raise DataError(
            f"label {label!r} holds {len(values)} whole numbers from {min(values):g} to {max(values):g}: classes or "
            "quantities? give --classification or --regression (Python: task='…')"
        )
    return "classification"


def _distinct_numbers(column: RawColumn, label: str, origin: str) -> list[float]:
    numbers = column.numbers if column.numbers is not None else np.empty(0)
    if not np.isfinite(numbers).all():
        raise DataError(f"{origin}: label {label!r} holds an infinite number: correct it")
    found: list[float] = np.unique(numbers).tolist()
    return found


def encode_column(column: RawColumn, names: Sequence[str], label: str, origin: str) -> np.ndarray:
    """The labels of a table: class numbers `(n,) int64` by the names, or float32 quantities if there are no names."""
    check_complete(column, label, origin)
    if not names:
        if column.numbers is None:
            raise DataError(f"{origin}: label {label!r} holds texts: regression needs numbers")
        return column.numbers.astype(np.float32)
    number = {name: i for i, name in enumerate(names)}
    values = column.texts if column.numbers is None else RawColumn(None, column.numbers).texts
    unknown = next((str(value) for value in values if value not in number), None)
    if unknown is not None:
        raise DataError(f"{origin}: label {label!r} is {unknown!r}, which is none of {_listed(names)}: correct it")
    return np.array([number[value] for value in values], dtype=np.int64)


def _listed(names: Sequence[str], most: int = 8) -> str:
    return ", ".join(map(repr, names[:most])) + (f" and {len(names) - most} others" if len(names) > most else "")


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def label_order(name: str) -> tuple[bool, float, str]:
    """Numbers in their order, then texts in theirs."""
    number = float(name) if _is_number(name) and name.lower() not in ("nan", "-nan") else None
    return (number is None, number or 0.0, name)


def encode_texts(
    items: Items, names: Sequence[str] | None = None
) -> tuple[list[tuple[str, Any]], tuple[str, ...] | None]:
    """The clients' items with class numbers in place of labels that are texts or booleans, and the classes' names.

    With `names` given, labels of every kind are looked up there. Items without such labels are left as they are.
    """
    if names is None and _all_numbers(items):
        return list(items), None
    columns = [(client_id, part, y) for client_id, item in items for part, (_, y) in _pairs(item).items()]
    texts = {(client_id, part): found for client_id, part, y in columns if (found := _texts(y, names)) is not None}
    if not texts:
        return list(items), None
    seen = set().union(*texts.values())
    given = names if names is not None else sorted(seen | (TRUTHS if seen <= TRUTHS else set()), key=label_order)
    number = {name: i for i, name in enumerate(given)}

    def encoded(client_id: str, part: str, x: Any, y: Any) -> tuple[Any, Any]:
        values = texts.get((client_id, part))
        if values is None:
            raise DataError(f"client {client_id!r}, {part}: its labels are numbers, other clients' are texts")
        unknown = next((value for value in values if value not in number), None)
        if unknown is not None:
            raise DataError(f"client {client_id!r}, {part}: label {unknown!r} is none of {_listed(given)}")
        return x, np.array([number[value] for value in values], dtype=np.int64)

    changed: list[tuple[str, Any]] = []
    for client_id, item in items:
        parts = {part: encoded(client_id, part, x, y) for part, (x, y) in _pairs(item).items()}
        changed.append((client_id, parts if isinstance(item, Mapping) else parts.get("train", item)))
    return changed, tuple(given)


def _all_numbers(items: Items) -> bool:
    """Whether all targets are tensors of numbers, as a quick look at each shows; there may be very many."""
    for _, item in items:
        for pair in item.values() if isinstance(item, dict) else (item,):
            if type(pair) is not tuple or len(pair) != 2 or type(pair[1]) is not Tensor or pair[1].dtype is torch.bool:
                return False
    return True


def _pairs(item: Any) -> dict[str, tuple[Any, Any]]:
    """The pairs (x, y) of an item by part, as far as it has the right form: others are refused later, with a reason."""
    given = item if isinstance(item, Mapping) else {"train": item}
    pairs = {part: [pair.x, pair.y] if isinstance(pair, Split) else pair for part, pair in given.items()}
    return {part: (p[0], p[1]) for part, p in pairs.items() if isinstance(p, tuple | list) and len(p) == 2}


def _texts(y: Any, names: Sequence[str] | None) -> list[str] | None:
    """Labels that are texts or booleans as texts; None for numbers, unless there are names to look them up in."""
    values = _one_column(y)
    if values is None:
        return None
    kind = values.dtype.kind
    if kind in "Ub" or (kind == "O" and all(isinstance(value, str) for value in values)):
        return [str(value) for value in values]
    if names is not None and kind in "iuf":
        return [number_name(value) for value in values.tolist()]
    return None


def _one_column(y: Any) -> np.ndarray | None:
    """Labels as an array, one for each sample; None for anything else."""
    try:
        values: np.ndarray = y.numpy() if isinstance(y, Tensor) else np.asanyarray(y)
    except (TypeError, ValueError, RuntimeError):
        return None
    return values if values.ndim == 1 and values.size else None


def name_numbers(
    clients: Sequence[Client], task: Task | None, classes: int | None
) -> tuple[Sequence[Client], tuple[str, ...] | None]:
    """The clients with labels counted from 0, and the labels' names if they were not; see `Federation.from_tensors`.

    Whole numbers with a 0 among them are left as they are, whether all occur or not. Others (1 and 2, -1 and 1) are
    counted again in their order. Floats are quantities, unless they are 0 and 1 only or `task` says otherwise.
    """
    check_task(task)
    if not _of_one_kind(clients):
        return clients, None  # a Federation of them says whose differ
    if task == "regression":
        return [client.with_targets(lambda y: y.to(torch.float32)) for client in clients], None
    if _are_counted(clients, task, classes):
        return clients, None
    return _count_from_zero(clients)


def _of_one_kind(clients: Sequence[Client]) -> bool:
    """Whether all labels are one number per sample, of one type."""
    dimensions = {split.y.ndim for client in clients for split in (client.train, client.validation, client.test)}
    return dimensions == {1} and len({client.train.y.dtype for client in clients}) == 1


def _are_counted(clients: Sequence[Client], task: Task | None, classes: int | None) -> bool:
    """Whether labels stay as they are: whole numbers with a 0, beside which -1 may be "unknown", or quantities."""
    if clients[0].train.y.is_floating_point():
        return task is None and not all(bool(((y == 0) | (y == 1)).all()) for y in label_values(clients))
    return classes is not None or any(bool((y == 0).any()) for y in label_values(clients))


def _count_from_zero(clients: Sequence[Client]) -> tuple[Sequence[Client], tuple[str, ...] | None]:
    """The clients with classes numbered in the order of their labels, and what these were."""
    values = torch.cat([y.unique() for y in label_values(clients)]).unique()
    if len(values) < 2:
        return clients, None
    if not bool(torch.isfinite(values).all() and (values == values.round()).all()):
        raise DataError("task='classification', but the labels are not whole numbers: give classes as whole numbers")
    named = [client.with_targets(lambda y: torch.searchsorted(values, y)) for client in clients]
    return named, tuple(number_name(value) for value in values.tolist())
