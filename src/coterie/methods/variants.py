"""Options under which a method runs as another one: each is a method by itself, and they nest.

A class under `@with_variants` has `variant() -> Method | None`. Where it names another method, that one does the work:
`start`, `round`, `assignment` and `place` are passed on to it.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeVar

C = TypeVar("C", bound=type)
PASSED_ON = ("start", "round", "assignment", "place")


def with_variants(cls: C) -> C:
    """Class decorator: a method that passes its work on to its `variant()` if there is one."""
    for name in PASSED_ON:
        setattr(cls, name, _passed_on(getattr(cls, name)))
    return cls


def _passed_on(plain: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(plain)
    def call(self: Any, *arguments: Any) -> Any:
        other = self.variant()
        return plain(self, *arguments) if other is None else getattr(other, plain.__name__)(*arguments)

    return call
