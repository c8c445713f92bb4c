"""The examples in the public API's docstrings run, and print what they say."""

from __future__ import annotations

import doctest
import importlib.util
import inspect
from typing import Any

import pytest

import coterie
import coterie.data
import coterie.methods

FINDER = doctest.DocTestFinder(exclude_empty=True, recurse=True)
NEEDS = {"from_hub": "datasets", "sweep": "optuna"}
"""Examples that need an optional package."""


def examples() -> list[doctest.DocTest]:
    """The examples of what the public packages export, each once."""
    found: dict[str, doctest.DocTest] = {}
    for package in (coterie, coterie.methods, coterie.data):
        for name in package.__all__:
            thing: Any = getattr(package, name)
            if not (inspect.isclass(thing) or inspect.isfunction(thing)):
                continue
            if not thing.__module__.startswith("coterie"):
                continue
            for test in FINDER.find(thing, f"{thing.__module__}.{thing.__qualname__}", globs={}):
                if test.examples:
                    found[test.name] = test
    return list(found.values())


@pytest.mark.parametrize("test", examples(), ids=lambda test: test.name)
def test_example(test: doctest.DocTest) -> None:
    needed = NEEDS.get(test.name.rpartition(".")[2])
    if needed and importlib.util.find_spec(needed) is None:
        pytest.skip(f"needs {needed}")
    said: list[str] = []
    result = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS).run(test, out=said.append)
    assert not result.failed, "".join(said)


def test_the_entry_points_of_the_library_have_examples() -> None:
    names = {test.name.partition("coterie.")[2] for test in examples()}
    assert {"runs.api.run", "runs.api.resume", "runs.result.Result", "methods.base.method", "snapshot.saved"} <= names
    makers = ("from_tensors", "from_arrays", "from_folder", "from_datasets", "from_hub")
    assert {f"federation.base.Federation.{maker}" for maker in makers} <= names
