"""The options of a run are written once, in groups: `run`, `resume`, the configuration and the keywords follow them."""

from __future__ import annotations

import inspect
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

import coterie
from coterie.errors import ConfigError
from coterie.option_types import field_docstrings
from coterie.options import FIELDS, GROUPS, BasicOptions
from coterie.runs.api import RESUME_KEYS
from coterie.runs.config import RunConfig, make_config, ungrouped

MAKERS = [value for name, value in inspect.getmembers(coterie.Federation) if name.startswith("from_")]
MOST_PARAMETERS = 25


def test_every_option_is_in_one_group_with_a_sentence_under_it() -> None:
    groups = [BasicOptions, *GROUPS.values()]
    assert sum(len(fields(group)) for group in groups) == len(FIELDS)
    assert set(FIELDS) == set(RunConfig.model_fields)
    for group in groups:
        texts = field_docstrings(group)
        for option in fields(group):
            assert texts[option.name].endswith("."), option.name
            assert RunConfig.model_fields[option.name].default == option.default, option.name


def test_run_takes_every_group_and_every_option_by_itself() -> None:
    parameters = inspect.signature(coterie.run).parameters
    named = {name for name, parameter in parameters.items() if parameter.kind is not parameter.VAR_KEYWORD}
    assert len(named) <= MOST_PARAMETERS
    assert set(GROUPS) <= named
    assert {"method", "model", "seed", "out", "as_published"} <= named
    assert named.isdisjoint(set(FIELDS) - set(GROUPS) - {option.name for option in fields(BasicOptions)})
    resumed = inspect.signature(coterie.resume).parameters
    assert set(resumed) & RESUME_KEYS <= set(GROUPS)
    assert {parameters["options"].kind, resumed["options"].kind} == {inspect.Parameter.VAR_KEYWORD}


@pytest.mark.parametrize("key", sorted(set(FIELDS) - set(GROUPS) - {option.name for option in fields(BasicOptions)}))
def test_run_checks_every_option_that_is_given_by_itself(key: str) -> None:
    with pytest.raises(coterie.CoterieError, match=key):
        coterie.run("fedavg", **{key: object()})


def test_an_option_that_resume_does_not_take_is_refused(tmp_path: Path) -> None:
    coterie.run("fedavg", scenario="digits-iid", clients=2, samples=20, rounds=1, out=tmp_path / "run")
    with pytest.raises(ConfigError, match="unknown option 'lr' of resume"):
        coterie.resume(tmp_path / "run", lr=0.1)


def test_a_group_a_table_and_options_by_themselves_are_the_same() -> None:
    training, data = coterie.TrainingOptions(lr=0.3, class_weights=[1, 5]), coterie.DataOptions("here", label="y")
    grouped = make_config({"training": training, "data": data, "engine": coterie.EngineOptions(workers=2)})
    tables = {"training": {"lr": 0.3, "class_weights": [1, 5]}, "data": {"data": "here", "label": "y"}}
    flat = {"lr": 0.3, "class_weights": (1, 5), "data": "here", "label": "y", "workers": 2}
    assert grouped == make_config(flat) == make_config({**tables, "workers": 2})
    assert grouped.class_weights == "1,5"
    assert ungrouped({"training": coterie.TrainingOptions(), "limits": None}) == {}


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"training": coterie.TrainingOptions(lr=0.1), "lr": 0.1}, "lr is given twice"),
        ({"training": {"lrr": 0.1}}, "unknown option 'lrr' in training: did you mean 'lr'"),
        ({"training": 0.1}, r"training=0.1: expected coterie.TrainingOptions\(…\)"),
        ({"training": coterie.TrainingOptions(lr=-1)}, "lr=-1: expected number above 0"),
        ({"limits": coterie.TrainingOptions(lr=1)}, r"expected coterie.LimitOptions"),
        ({"roundz": 3}, "unknown option 'roundz': did you mean 'rounds'"),
        ({"data": {"clients": 0}}, "clients=0: expected whole number from 1"),
    ],
)
def test_mistakes_in_groups_are_one_line(given: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        coterie.run("fedavg", **given)


@pytest.mark.parametrize("function", [coterie.run, coterie.resume, *MAKERS], ids=lambda f: f.__name__)
def test_every_argument_is_explained(function: Any) -> None:
    text = inspect.getdoc(function) or ""
    for section in ("Args:", "Returns:", "Raises:", "Example:"):
        assert section in text
    arguments = text.split("Args:")[1].split("Returns:")[0]
    for name in inspect.signature(function).parameters:
        assert f"\n    {name}: " in arguments, name
