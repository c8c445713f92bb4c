"""Options written behind a model's name, `mlp:hidden=64`, read and checked against the builder's own signature."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Callable
from typing import Any, cast

from torch import nn

from coterie.errors import ConfigError, did_you_mean

Option = bool | int | float | str


def parse_model_options(model: str, text: str, builder: Callable[..., nn.Module]) -> dict[str, Option]:
    """The keyword arguments that `text` (`key=value,key=value`) gives to `builder`: known, typed, given once."""
    known = {
        name: parameter.annotation
        for name, parameter in inspect.signature(builder, eval_str=True).parameters.items()
        if name not in ("input_shape", "classes")
    }
    options: dict[str, Option] = {}
    for item in text.split(","):
        key, written = _key_and_value(model, item)
        if key not in known:
            hint = did_you_mean(key, known) if known else "it takes none"
            raise ConfigError(f"model {model!r} has no option {key!r}; {hint}")
        if key in options:
            raise ConfigError(f"model {model!r}: option {key!r} is given twice; keep one")
        options[key] = _typed(model, key, written, known[key])
    return options


def _key_and_value(model: str, item: str) -> tuple[str, str]:
    key, _, written = (part.strip() for part in item.partition("="))
    if not key or not written:
        raise ConfigError(f"model {model!r}: {item!r} is not an option; write {model}:name=value,name=value")
    return key, written


def _typed(model: str, key: str, written: str, wanted: type) -> Option:
    """The value that `written` stands for, as a Python literal or else as text, if it is a `wanted`."""
    try:
        value: Any = ast.literal_eval(written)
    except (ValueError, SyntaxError, MemoryError, RecursionError):  # the last two for what is nested too deeply
        value = written
    if wanted is float and type(value) is int:
        value = float(value)
    # Exact types: True is an int to isinstance, yet hidden=True is a mistake.
    if type(value) is not wanted:
        raise ConfigError(f"model {model!r}: option {key}={written} must be of type {wanted.__name__}")
    return cast(Option, value)
