"""The types of options in plain words, and the sentences that stand under a class's fields."""

from __future__ import annotations

import ast
import dataclasses
import inspect
import math
import textwrap
import types
from collections.abc import Sequence
from functools import cache
from itertools import pairwise
from typing import Annotated, Any, Literal, NamedTuple, Union, get_args, get_origin, get_type_hints


class Option(NamedTuple):
    """An option as a user sees it: its type in words, its default, and the sentences that stand under the field."""

    name: str
    type: str
    default: str
    text: str


class Placeholder(NamedTuple):
    """What stands for a text in help, as in `data: Annotated[str, Placeholder("FOLDER")]`."""

    text: str


def describe_options(cls: type) -> list[Option]:
    """The options of a method in the order of its fields, also of one that another package offers."""
    texts: dict[str, str] = {}
    for base in reversed(cls.__mro__):
        texts |= field_docstrings(base)
    if not dataclasses.is_dataclass(cls):
        return []
    kinds = field_types(cls)
    return [
        Option(field.name, type_in_words(kinds[field.name]), _default_in_words(field), texts.get(field.name, ""))
        for field in dataclasses.fields(cls)
    ]


def _default_in_words(field: dataclasses.Field[Any]) -> str:
    if field.default is not dataclasses.MISSING:
        return value_in_words(field.default)
    if field.default_factory is not dataclasses.MISSING:
        return value_in_words(field.default_factory())
    return "(needed)"


def value_in_words(value: Any) -> str:
    """A value as it is written on the command line."""
    return str(value).lower() if value is None or isinstance(value, bool) else str(value)


@cache
def field_docstrings(cls: type) -> dict[str, str]:
    """The text under each annotated field of a class, read from its source; empty where there is no source."""
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(cls)))
    except (OSError, TypeError, SyntaxError):
        return {}
    body = tree.body[0].body if tree.body and isinstance(tree.body[0], ast.ClassDef) else []
    return {
        field.target.id: inspect.cleandoc(under.value.value)
        for field, under in pairwise(body)
        if isinstance(field, ast.AnnAssign)
        and isinstance(field.target, ast.Name)
        and isinstance(under, ast.Expr)
        and isinstance(under.value, ast.Constant)
        and isinstance(under.value.value, str)
    }


def takes(value: Any, annotation: Any) -> bool:
    """False for true and false where a number is expected: Python counts them as 1 and 0."""
    return not isinstance(value, bool) or any(part in (bool, Any) for part in _parts(annotation))


def field_types(cls: type) -> dict[str, Any]:
    """The annotations of a dataclass's fields, as objects; none for another class."""
    if not dataclasses.is_dataclass(cls):
        return {}
    hints = get_type_hints(cls, include_extras=True)
    return {field.name: hints[field.name] for field in dataclasses.fields(cls)}


def type_in_words(annotation: Any, limits: Sequence[Any] = ()) -> str:
    """What may be given for an option: "whole number from 1", "one of conflict, gain", "number above 0 or auto".

    Args:
        annotation: the type of the option.
        limits: marks such as pydantic's `Gt(0)` that stand beside the type and hold for the numbers in it.
    """
    parts = [_part_in_words(part, limits) for part in union_members(annotation)]
    parts.sort(key=lambda part: part == "none")
    return f"{', '.join(parts[:-1])} or {parts[-1]}" if len(parts) > 1 else parts[0]


def _part_in_words(annotation: Any, limits: Sequence[Any]) -> str:
    if get_origin(annotation) is Annotated:
        base, *marks = get_args(annotation)
        return type_in_words(base, [*limits, *marks])
    if annotation in (int, float):
        return number_in_words(annotation, limits)
    if get_origin(annotation) is Literal:
        values = [value_in_words(value) for value in get_args(annotation)]
        return values[0] if len(values) == 1 else f"one of {', '.join(values)}"
    if get_origin(annotation) in (tuple, list):
        inner = type_in_words(get_args(annotation)[0])
        return f"({inner}, …)"
    if get_origin(annotation) is dict:
        key, value = map(type_in_words, get_args(annotation))
        return f"{{{key}: {value}, …}}"
    known = {bool: "true or false", str: "text", None: "none", type(None): "none", Any: "anything"}
    return known[annotation] if annotation in known else str(getattr(annotation, "__name__", annotation))


def placeholder(annotation: Any) -> str:
    """What stands for an option's value in help: INTEGER, FOLDER, [float32|float64], [INTEGER|auto]."""
    parts: list[str] = []
    for part in union_members(annotation):
        base, *marks = get_args(part) if get_origin(part) is Annotated else (part,)
        if get_origin(base) is Literal:
            parts += map(value_in_words, get_args(base))
        elif base is not type(None):
            named = [mark.text for mark in marks if isinstance(mark, Placeholder)]
            parts.append(named[0] if named else {int: "INTEGER", float: "NUMBER"}.get(base, "TEXT"))
    parts = list(dict.fromkeys(parts))
    return parts[0] if len(parts) == 1 else f"[{'|'.join(parts)}]"


def choices(annotation: Any) -> list[str]:
    """The values that an annotation lists."""
    return [
        value_in_words(value)
        for part in union_members(annotation)
        if get_origin(part) is Literal
        for value in get_args(part)
    ]


def number_in_words(kind: type, limits: Sequence[Any]) -> str:
    """A number and its limits: "whole number from 1", "number above 0 and up to 1"."""
    low, high = limits_in_words(kind, limits)
    joint = " " if kind is int else " and "
    return " ".join(filter(None, ["whole number" if kind is int else "number", joint.join(filter(None, [low, high]))]))


def limits_in_words(kind: type, limits: Sequence[Any]) -> tuple[str, str]:
    """The lower and the upper limit of a number; empty where there is none."""
    marks = [inner for mark in limits for inner in (mark, *getattr(mark, "metadata", ()))]

    def bound(name: str) -> float | None:
        found = [value for mark in marks if (value := getattr(mark, name, None)) is not None]
        return found[-1] if found else None

    above, least, below, most = bound("gt"), bound("ge"), bound("lt"), bound("le")
    if kind is int:
        least = math.floor(above) + 1 if above is not None else least
        most = math.ceil(below) - 1 if below is not None else most
        above = below = None
    low = f"above {above:g}" if above is not None else f"from {least:g}" if least is not None else ""
    high = f"below {below:g}" if below is not None else ""
    if most is not None:
        high = f"to {int(most)}" if kind is int else f"up to {most:g}"
    return low, high


def union_members(annotation: Any) -> tuple[Any, ...]:
    """The members of a union, or the type alone."""
    return get_args(annotation) if get_origin(annotation) in (Union, types.UnionType) else (annotation,)


def _parts(annotation: Any) -> list[Any]:
    """The plain types in an annotation; the values of a Literal count as their own types."""
    found: list[Any] = []
    for part in union_members(annotation):
        if get_origin(part) is Annotated:
            found += _parts(get_args(part)[0])
        elif get_origin(part) is Literal:
            found += [type(value) for value in get_args(part)]
        else:
            found.append(part)
    return found
