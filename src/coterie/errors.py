"""The errors a user can cause: each is one line that says what was given, what was expected and what to do."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any


class CoterieError(Exception):
    """Base of every error raised on purpose; the command prints it as one line and exits with code 2."""


class ConfigError(CoterieError):
    """An option is unknown, of the wrong type, out of range, or does not go with another one."""


class DataError(CoterieError):
    """Data is missing, damaged, or cannot make the federation that was asked for."""


class RunError(CoterieError):
    """A run folder is in use, belongs to another run, is damaged, or a run cannot go on."""


class ModelError(RunError):
    """A model or a loss of the user's own raised an exception or tried to end the program."""


class CallbackError(RunError):
    """A callback raised an exception. The run's folder, if it has one, can be resumed."""

    result: Any = None
    """The `Result` as things stood after the last round that was done."""


class StopRun(Exception):
    """Raised by a callback to end the run after this round; the run then counts as finished, with this reason."""


@contextmanager
def users_code(what: str, kind: type[CoterieError] = ModelError) -> Iterator[None]:
    """Turn whatever code of the user's own raises, `sys.exit` included, into an error that names it."""
    try:
        yield
    except (CoterieError, MemoryError):
        raise
    except (Exception, SystemExit) as problem:
        said = str(problem).strip().partition("\n")[0]  # torch adds a stack of C++
        raise kind(f"{what} raised {type(problem).__name__}: {said or 'no message'}: correct it") from problem


@contextmanager
def extra(name: str, what: str) -> Iterator[None]:
    """Around the import of an optional package: where it is missing, an error that names the extra to install.

    Example:
        >>> from coterie.errors import ConfigError, extra
        >>> try:
        ...     with extra("pandas", "a table"):
        ...         import no_such_package
        ... except ConfigError as problem:
        ...     print(str(problem).partition(" (")[0])
        a table needs the package no_such_package: pip install "coterie[pandas]"
    """
    try:
        yield
    except ImportError as problem:
        package = (problem.name or name).partition(".")[0]
        install = f'pip install "coterie[{name}]" (in a clone of the repository: pip install -e ".[{name}]")'
        raise ConfigError(f"{what} needs the package {package}: {install}") from problem


def did_you_mean(given: str, known: Iterable[str]) -> str:
    """A sentence that names the closest known word, or all of them when none is close."""
    known = sorted(known)
    close = difflib.get_close_matches(given, known, n=1, cutoff=0.5)
    return f"did you mean {close[0]!r}?" if close else f"known: {', '.join(known)}"
