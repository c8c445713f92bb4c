"""The trials of a sweep: what was tried, what it reached, and the best of it as a command."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic.dataclasses import dataclass as pydantic_dataclass

from coterie.errors import ConfigError
from coterie.metrics import higher_is_better
from coterie_studies.search_space import Space, Value

if TYPE_CHECKING:
    import pandas


@pydantic_dataclass(frozen=True)
class Trial:
    """One point of the search."""

    number: int
    parameters: dict[str, Value]
    value: float | None
    """The objective on validation data, the mean over the seeds; None for a trial that failed."""
    error: float | None
    """Its standard error over the seeds; None with one seed."""
    seconds: float
    problem: str | None = None
    """Why it failed."""


@dataclass(frozen=True)
class Sweep:
    """A search and its trials. As text it is the table of trials, the best first, and the best command."""

    path: Path
    objective: str
    trials: list[Trial] = field(repr=False)
    space: Space = field(repr=False)
    options: Mapping[str, Any] = field(repr=False)
    """The options that all trials share."""
    of_python: bool = False
    """Whether the clients, the model or the loss came from Python, so that no command can name them."""

    def ranked(self) -> list[Trial]:
        """The trials, best first, failed ones last."""
        known = [trial for trial in self.trials if trial.value is not None]
        lower = not higher_is_better(self.objective)
        known.sort(key=lambda trial: (trial.value or 0.0) * (1 if lower else -1))
        return known + [trial for trial in self.trials if trial.value is None]

    @property
    def best(self) -> Trial:
        """The trial with the best objective."""
        return self.ranked()[0]

    @property
    def best_options(self) -> dict[str, Any]:
        """The best trial as options of `coterie.run`."""
        return {**self.options, **self.space.options(self.best.parameters)}

    @property
    def best_command(self) -> str:
        """The best trial as one would type it: a command, or a line of Python where objects were given."""
        chosen = self.best_options
        if self.of_python:
            return f"coterie.run(…, {', '.join(f'{key}={value!r}' for key, value in chosen.items())})"
        words = ["coterie", "run"]
        for key, value in chosen.items():
            flag = "--" + key.replace("_", "-")
            if value is True:
                words.append(flag)
            elif value is not None and value is not False:
                words += [flag, shlex.quote(str(value))]
        return " ".join(words)

    def columns(self) -> list[str]:
        """The titles of the table of trials."""
        keys = list(dict.fromkeys(key for trial in self.trials for key in trial.parameters))
        return ["trial", f"validation {self.objective}", *keys, "seconds"]

    def cells(self) -> list[list[str]]:
        """One row of text per trial, best first."""
        keys = self.columns()[2:-1]
        return [
            [
                str(trial.number),
                shown(trial),
                *(as_text(trial.parameters[key]) if key in trial.parameters else "–" for key in keys),
                f"{trial.seconds:.1f}",
            ]
            for trial in self.ranked()
        ]

    def __str__(self) -> str:
        rows = [self.columns(), *self.cells()]
        widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
        lines = ["  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)) for row in rows]
        return "\n".join([*lines, f"best: {self.best_command}"])

    def to_pandas(self) -> pandas.DataFrame:
        """The trials as a table, by number."""
        try:
            import pandas
        except ImportError:
            raise ConfigError('to_pandas() needs pandas: pip install "coterie[pandas]"') from None
        rows = [{**asdict(trial), **trial.parameters} for trial in self.trials]
        return pandas.DataFrame(rows).drop(columns="parameters").set_index("number")


def shown(trial: Trial) -> str:
    if trial.value is None:
        return "failed"
    return f"{trial.value:.4f}" + (f" ± {trial.error:.4f}" if trial.error is not None else "")


def as_text(value: Value) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)
