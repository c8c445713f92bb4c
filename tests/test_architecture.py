"""The picture in docs/architecture.md and the contract that the linter checks are the same list."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

from import_cycles import cycles, import_graph

ROOT = Path(__file__).parent.parent


def contract(name: str) -> dict[str, object]:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())
    (found,) = [c for c in settings["tool"]["importlinter"]["contracts"] if c["name"] == name]
    return found  # type: ignore[no-any-return]


@pytest.mark.parametrize(("picture", "name"), [("layers", "layers"), ("packages", "packages beside the core")])
def test_the_documented_layers_are_the_linters(picture: str, name: str) -> None:
    text = (ROOT / "docs" / "architecture.md").read_text()
    documented = text.split(f"```{picture}\n")[1].split("```")[0].strip().splitlines()
    assert documented == contract(name)["layers"]


def test_every_package_is_documented_and_in_a_layer() -> None:
    text = (ROOT / "docs" / "architecture.md").read_text()
    layers = {name.strip() for line in contract("layers")["layers"] for name in line.split("|")}  # type: ignore[attr-defined]
    here = {
        path.stem
        for path in (ROOT / "src" / "coterie").iterdir()
        if (path.suffix == ".py" and path.stem != "__init__") or (path / "__init__.py").exists()
    }
    assert here == layers
    assert all(f"`{name}`" in text for name in layers)


def test_no_modules_import_one_another() -> None:
    assert cycles(import_graph()) == []


def test_cycles_are_found_through_functions_and_not_through_type_checking(tmp_path: Path) -> None:
    package = tmp_path / "toy"
    package.mkdir()
    for name, text in {
        "__init__": "",
        "a": "from toy.b import f",
        "b": "def f():\n    from toy import c",
        "c": "import toy.a",
        "d": "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from toy.e import g",
        "e": "from toy import d",
    }.items():
        (package / f"{name}.py").write_text(text)
    assert cycles(import_graph(tmp_path, "toy")) == [["toy.a", "toy.b", "toy.c"]]
