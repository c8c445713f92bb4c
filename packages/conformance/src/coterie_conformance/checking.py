"""A check is a small function that looks at a method; here is how checks are registered, run and told of."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from coterie.errors import ConfigError, CoterieError, did_you_mean
from coterie_conformance.subjects import Subject

Verdict = Literal["ok", "fails", "does not apply"]


class Failed(Exception):
    """The method does not conform; the text says what was seen, in one line."""


class DoesNotApply(Exception):
    """The check has nothing to ask of this method; the text says why."""


@dataclass(frozen=True)
class Check:
    """A check by name, what it asks in a sentence, and the slip that it finds."""

    name: str
    asks: str
    finds: str
    look: Callable[[Subject], str | None]
    """Raises Failed or DoesNotApply; a text it returns is told beside the verdict."""


@dataclass(frozen=True)
class Finding:
    """What a check found out about a method."""

    method: str
    check: str
    verdict: Verdict
    text: str = ""


CHECKS: dict[str, Check] = {}
"""All checks by name, in the order of the modules that define them."""


def check(
    name: str, asks: str, finds: str
) -> Callable[[Callable[[Subject], str | None]], Callable[[Subject], str | None]]:
    """Decorator that registers a check."""

    def register(look: Callable[[Subject], str | None]) -> Callable[[Subject], str | None]:
        CHECKS[name] = Check(name, asks, finds, look)
        return look

    return register


def find_check(name: str) -> Check:
    """The check of that name, or a ConfigError with a suggestion."""
    if name not in CHECKS:
        raise ConfigError(f"unknown check {name!r}: {did_you_mean(name, list(CHECKS))}")
    return CHECKS[name]


def run_check(chosen: Check, subject: Subject) -> Finding:
    """What one check finds out about a method. A method that breaks down under a check fails it."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # checks bring about what libraries warn of: equal points, overflows
            text = chosen.look(subject)
    except Failed as problem:
        return Finding(subject.name, chosen.name, "fails", str(problem))
    except DoesNotApply as reason:
        return Finding(subject.name, chosen.name, "does not apply", str(reason))
    except CoterieError as problem:
        return Finding(subject.name, chosen.name, "fails", f"{type(problem).__name__}: {problem}")
    except Exception as problem:  # a method of somebody else's may break down in any way
        first = str(problem).splitlines()[0] if str(problem) else ""
        return Finding(subject.name, chosen.name, "fails", f"{type(problem).__name__}: {first}")
    return Finding(subject.name, chosen.name, "ok", text or "")


def check_method(subject: Subject, checks: Sequence[str] = ()) -> list[Finding]:
    """What the named checks, by default all, find out about a method.

    Args:
        subject: the method.
        checks: names of checks.

    Returns:
        A finding for each check, in order.

    Raises:
        ConfigError: there is no check of that name.

    Example:
        >>> from coterie_conformance import check_method, subject_of
        >>> [finding.verdict for finding in check_method(subject_of("fedavg"), ["partition", "signs"])]
        ['ok', 'does not apply']
    """
    chosen = [find_check(name) for name in checks] or list(CHECKS.values())
    return [run_check(each, subject) for each in chosen]
