"""`run` and `resume` name every option of a configuration, with its type and its default."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any, get_args, get_type_hints

import pytest

import coterie
from coterie.methods.option_types import union_members
from coterie.methods.papers import PAPERS
from coterie.runs.config import LIMIT_KEYS, PLACE_KEYS, RunConfig

PRINTED = {"quiet"}
"""Options that only say what the command prints."""
OBJECTS = {"federation", "loss", "callbacks", "progress"}
"""What only Python can give."""
BY_TABLE = {key for paper in PAPERS.values() for table in paper.tables.values() for key in table.training}
"""Options that a table of a paper may name."""
MAKERS = [value for name, value in inspect.getmembers(coterie.Federation) if name.startswith("from_")]


def plain_types(annotation: Any) -> set[Any]:
    """The members of a union without their limits."""
    return {get_args(part)[0] if hasattr(part, "__metadata__") else part for part in union_members(annotation)}


def test_run_has_every_option_of_a_configuration_and_no_other() -> None:
    parameters = inspect.signature(coterie.run).parameters
    assert set(parameters) == set(RunConfig.model_fields) - PRINTED | OBJECTS
    assert not [p for p in parameters.values() if p.kind is p.VAR_KEYWORD]
    for name in set(parameters) - OBJECTS:
        # None where a table of a paper may name it: only so is what was given told from what was not.
        expected = None if name in BY_TABLE else RunConfig.model_fields[name].default
        assert parameters[name].default == expected, name


@pytest.mark.parametrize("function", [coterie.run, coterie.resume])
def test_options_have_the_configurations_types(function: Any) -> None:
    hints = get_type_hints(function)
    for name in inspect.signature(function).parameters.keys() & RunConfig.model_fields.keys():
        wanted = plain_types(get_type_hints(RunConfig, include_extras=True)[name])
        # Python may also give a path where a configuration has text, and an object for a method, a model or a loss.
        assert plain_types(hints[name]) - {Path} >= wanted or name in {"method", "model", "loss"}, name


def test_resume_has_the_options_that_may_differ() -> None:
    parameters = inspect.signature(coterie.resume).parameters
    assert set(parameters) == {"path", "method", "model", "metrics"} | OBJECTS | LIMIT_KEYS | (
        PLACE_KEYS - PRINTED - {"out"}
    )
    for name in PLACE_KEYS - PRINTED - {"out"}:
        assert parameters[name].default == RunConfig.model_fields[name].default, name


@pytest.mark.parametrize("function", [coterie.run, coterie.resume, *MAKERS], ids=lambda f: f.__name__)
def test_every_argument_is_explained(function: Any) -> None:
    text = inspect.getdoc(function) or ""
    for section in ("Args:", "Returns:", "Raises:", "Example:"):
        assert section in text
    arguments = text.split("Args:")[1].split("Returns:")[0]
    for name in inspect.signature(function).parameters:
        assert f"\n    {name}: " in arguments, name
