"""A method's options: fields that are checked when they are given, and read as text."""

from __future__ import annotations

import ast
import dataclasses
import functools
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar, dataclass_transform

import pydantic
import pydantic.dataclasses

from coterie.errors import ConfigError, did_you_mean
from coterie.option_types import field_types, takes, type_in_words

C = TypeVar("C", bound=type)


def with_checked_options(cls: C, what: str) -> C:
    """The class as a frozen dataclass that checks its fields; a bad or unknown one is a ConfigError.

    Args:
        cls: a class whose annotated fields are its options.
        what: what it is, for messages, as in "method 'ifca'".
    """
    config = pydantic.ConfigDict(extra="forbid", allow_inf_nan=False)
    made: Any = pydantic.dataclasses.dataclass(frozen=True, config=config)(cls)
    check = made.__init__

    @functools.wraps(check)
    def __init__(self: Any, *values: Any, **options: Any) -> None:
        types, names = field_types(made), [field.name for field in dataclasses.fields(made)]
        given = dict(zip(names, values, strict=False)) | options
        for name, value in given.items():
            if name in types and not takes(value, types[name]):
                raise ConfigError(f"{what}, option {name}={value!r}: expected {type_in_words(types[name])}")
        try:
            check(self, *values, **options)
        except pydantic.ValidationError as problem:
            raise ConfigError(_explained(problem, what, types, given)) from problem

    made.__init__ = __init__
    return made  # type: ignore[no-any-return]


def _explained(problem: pydantic.ValidationError, what: str, types: Mapping[str, Any], given: Mapping[str, Any]) -> str:
    """The first of the errors that a check found, as one line."""
    first = problem.errors()[0]
    place = first["loc"][0] if first["loc"] else ""
    name = list(types)[place] if isinstance(place, int) and place < len(types) else str(place)
    if name not in types:
        return unknown_option(what, name, types)
    if first["type"] in ("value_error", "assertion_error"):  # a validator of the method's own
        return f"{what}, option {name}={given.get(name)!r}: {first['msg'].partition(', ')[2]}"
    value = f"={given[name]!r}" if name in given else " is missing"
    return f"{what}, option {name}{value}: expected {type_in_words(types[name])}"


def unknown_option(what: str, name: str, known: Iterable[str]) -> str:
    """The message for an option that there is not."""
    names = list(known)
    return f"{what} has no option {name!r}: {did_you_mean(name, names) if names else 'it has none'}"


def parse_options(text: str, spec: str) -> dict[str, Any]:
    """The options in `key=value,key=value`; values are Python literals where they read as such, else text."""
    options: dict[str, Any] = {}
    for part in split_outside_brackets(text):
        key, equals, value = part.partition("=")
        if not equals or not key.strip():
            raise ConfigError(f"{spec!r}: expected name:key=value,key=value, got {part!r}")
        key = key.strip()
        if key in options:
            raise ConfigError(f"{spec!r}: option {key!r} is given twice: keep one")
        options[key] = literal(value.strip())
    return options


def parse_call(text: str, spec: str) -> tuple[str, dict[str, Any]]:
    """The name and the options of a part written as `name` or `name(key=value,…)`; `spec` is for messages."""
    found = re.fullmatch(r"([\w-]+)(?:\((.*)\))?", text.strip())
    if found is None:
        raise ConfigError(f"{spec}: expected a name, or name(key=value,…)")
    return found[1], parse_options(found[2] or "", text)


def literal(text: str) -> Any:
    """The Python value that the text spells, or the text itself."""
    if text.lower() in {"true", "false", "none"}:
        return {"true": True, "false": False, "none": None}[text.lower()]
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError, MemoryError, RecursionError):  # the last two for what is nested too deeply
        return text


def split_outside_brackets(text: str) -> list[str]:
    """The parts between commas that stand in no bracket and no quotes."""
    parts, depth, start, quote = [], 0, 0, ""
    for i, char in enumerate(text):
        if quote or char in "'\"":
            quote = char if not quote else ("" if char == quote else quote)
            continue
        depth += (char in "([{") - (char in ")]}")
        if char == "," and depth == 0:
            parts.append(text[start:i])
            start = i + 1
    return [part for part in [*parts, text[start:]] if part.strip()]


class Parts:
    """The parts of one kind by name, which an option writes as `name` or `name(value,key=value)`.

    Example:
        >>> waits = Parts("wait")
        >>> @part(waits, "rounds")
        ... class Rounds:
        ...     count: int = 5
        >>> waits.make("rounds(3)").count
        3
    """

    def __init__(self, option: str) -> None:
        self.option = option
        self.known: dict[str, type] = {}

    def make(self, spec: str) -> Any:
        """The part that an option's text describes."""
        found = re.fullmatch(r"([^()]+)(?:\((.*)\))?", spec.strip())
        if found is None or found[1] not in self.known:
            raise ConfigError(f"{self.option}={spec!r}: {did_you_mean(found[1] if found else spec, self.known)}")
        parts = split_outside_brackets(found[2] or "")
        values = [literal(text.strip()) for text in parts if "=" not in text]
        named = ",".join(text for text in parts if "=" in text)
        return self.known[found[1]](*values, **parse_options(named, spec))


@dataclass_transform(frozen_default=True)
def part(kind: Parts, name: str) -> Callable[[C], C]:
    """Class decorator that makes a part known by `name`, and its fields checked options."""

    def register(cls: C) -> C:
        kind.known[name] = made = with_checked_options(cls, f"{kind.option}={name}")
        return made

    return register


def refuse_others(method: Any, given: str, allowed: Iterable[str], why: str) -> None:
    """Refuse options without effect beside a `given` one: all but the `allowed` that are not at their defaults."""
    for field in dataclasses.fields(method):
        value = getattr(method, field.name)
        if field.name not in allowed and value != field.default:
            raise ConfigError(f"{given} with {field.name}={value}: {why}")
