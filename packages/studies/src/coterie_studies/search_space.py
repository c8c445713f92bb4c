"""What a sweep searches: ranges and choices of run options, of the method, and of methods' own options.

As text: `lr=log:0.001:1`, `epochs=1:5`, `batch_size=10,20,full`, `method=ifca,cfl`, `ifca.k=2:6`. A range of whole
numbers is searched in whole numbers, one with a point or an exponent (`1.0:6.0`) in real numbers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from coterie.errors import ConfigError, did_you_mean
from coterie.methods import field_types, find_method, literal, make_method, split_outside_brackets
from coterie.runs import PLACE_KEYS, RunConfig, make_config
from coterie_studies.comparison import split_methods

EXAMPLES = "lr=log:0.001:1, epochs=1:5, batch_size=10,20, method=ifca,cfl or ifca.k=2:6"
FIXED = PLACE_KEYS | {"seed", "method", "scenario", "data"}
"""Options that are no part of a search."""
DIGITS = 4
"""Significant digits of a real number that is tried: enough to type, and it is what is run."""

Value = bool | int | float | str


@dataclass(frozen=True)
class Range:
    """Numbers from `low` to `high`, both among them."""

    low: int | float
    high: int | float
    log: bool = False

    @property
    def whole(self) -> bool:
        """Whole numbers only?"""
        return isinstance(self.low, int) and isinstance(self.high, int)

    @property
    def ends(self) -> tuple[Value, ...]:
        """What is tried out before anything is trained."""
        return self.low, self.high

    def rounded(self, value: float) -> float:
        """A real number with few digits, within the range."""
        return min(max(float(f"{value:.{DIGITS}g}"), self.low), self.high)

    def __str__(self) -> str:
        return f"{'log:' if self.log else ''}{self.low}:{self.high}"


@dataclass(frozen=True)
class Choice:
    """One of several values."""

    values: tuple[Value, ...]

    @property
    def ends(self) -> tuple[Value, ...]:
        """What is tried out before anything is trained."""
        return self.values

    def __str__(self) -> str:
        return ",".join(map(str, self.values))


Searched = Mapping[str, Any]
"""Keys and what is searched: text, a list of choices, or a pair of numbers `(low, high)`."""


@dataclass(frozen=True)
class Space:
    """All that is searched, checked; `methods` are tried with the options that are searched for them."""

    methods: tuple[str, ...]
    searched: Mapping[str, Range | Choice]
    """By key; a method's own option as `method.option`. The method itself is not among them."""

    def keys_for(self, method: str) -> list[str]:
        """What is searched with this method."""
        name = method.partition(":")[0]
        return [key for key in self.searched if "." not in key or key.partition(".")[0] == name]

    def options(self, parameters: Mapping[str, Value]) -> dict[str, Any]:
        """A trial's parameters as options of a run."""
        method = str(parameters.get("method", self.methods[0]))
        own = [f"{key.partition('.')[2]}={value}" for key, value in parameters.items() if "." in key]
        if own:
            method += (":" if ":" not in method else ",") + ",".join(own)
        plain = {key: value for key, value in parameters.items() if "." not in key and key != "method"}
        return {"method": method, **plain}


def parse_searches(texts: Sequence[str]) -> dict[str, str]:
    """The keys and texts of several `key=what`."""
    found: dict[str, str] = {}
    for text in texts:
        key, equals, what = (part.strip() for part in text.partition("="))
        if not equals or not key or not what:
            raise ConfigError(f"search {text!r}: expected key=what, as in {EXAMPLES}")
        if key in found:
            raise ConfigError(f"search {text!r}: {key} is searched already: give it once")
        found[key] = what
    return found


def make_space(search: Searched, options: Mapping[str, Any]) -> Space:
    """The checked space; `options` are the run's other options, `method` among them."""
    if not search:
        raise ConfigError(f"nothing to search: give --search, as in {EXAMPLES}")
    given = dict(search)
    methods = _methods(given.pop("method", None), options)
    for method in methods:
        make_method(method)
    space = Space(tuple(methods), {key: read(key, what) for key, what in given.items()})
    for key, what in space.searched.items():
        _check(key, what, space, options)
    return space


def _methods(searched: Any, options: Mapping[str, Any]) -> list[str]:
    """The methods to try: those that are searched, else the one that is given."""
    if searched is None:
        return [str(options.get("method") or "fedavg")]
    if options.get("method") is not None:
        raise ConfigError(f"method={options['method']!r} and a search over methods: give one of the two")
    return split_methods([searched] if isinstance(searched, str) else list(searched))


def read(key: str, what: Any) -> Range | Choice:
    """What is searched for one key."""
    if isinstance(what, Range | Choice):
        return what
    if isinstance(what, str):
        return _read_text(key, what)
    if isinstance(what, tuple) and len(what) == 2 and all(_number(end) for end in what):
        return _range(key, what[0], what[1], log=False)
    if isinstance(what, Sequence) and what:
        return Choice(tuple(what))
    raise ConfigError(f"search {key}={what!r}: expected text, a pair (low, high) or a list of values")


def _number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _read_text(key: str, text: str) -> Range | Choice:
    parts = text.split(":")
    log = parts[0] == "log"
    ends = [literal(part) for part in parts[log:]]
    if len(ends) == 2 and all(_number(end) for end in ends):
        return _range(key, ends[0], ends[1], log=log)
    if log:
        raise ConfigError(f"search {key}={text!r}: expected log:low:high, as in log:0.001:1")
    return Choice(tuple(literal(part.strip()) for part in split_outside_brackets(text)))


def _range(key: str, low: Any, high: Any, *, log: bool) -> Range:
    if not low < high or (log and low <= 0):
        raise ConfigError(f"search {key}={low}:{high}: expected low below high" + (", both above 0" if log else ""))
    return (
        Range(low, high, log) if isinstance(low, int) and isinstance(high, int) else Range(float(low), float(high), log)
    )


def _check(key: str, what: Range | Choice, space: Space, options: Mapping[str, Any]) -> None:
    """Refuse a key that does not exist and values that a run would refuse."""
    name, dot, option = key.partition(".")
    if dot:
        known = field_types(find_method(name))
        if option not in known:
            raise ConfigError(f"search {key}: {name} has no option {option!r}: {did_you_mean(option, known)}")
        users = [method for method in space.methods if method.partition(":")[0] == name]
        if not users:
            raise ConfigError(f"search {key}: {name} is not among the methods: give --search method={name},…")
        for method in users:
            for value in what.ends:
                make_method(space.options({"method": method, key: value})["method"])
        return
    searchable = sorted(set(RunConfig.model_fields) - FIXED)
    if key not in searchable:
        hint = "it is the same in all trials" if key in FIXED else did_you_mean(key, [*searchable, "method"])
        raise ConfigError(f"search {key}: no such option to search: {hint}")
    if options.get(key) is not None:
        raise ConfigError(f"{key}={options[key]!r} and a search over it: give one of the two")
    for value in what.ends:
        make_config({key: value})
