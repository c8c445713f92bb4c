"""The picture in docs/architecture.md and the contract that the linter checks are the same list."""

from __future__ import annotations

import tomllib
from pathlib import Path

ROOT = Path(__file__).parent.parent


def contract(name: str) -> dict[str, object]:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())
    (found,) = [c for c in settings["tool"]["importlinter"]["contracts"] if c["name"] == name]
    return found  # type: ignore[no-any-return]


def test_the_documented_layers_are_the_linters() -> None:
    text = (ROOT / "docs" / "architecture.md").read_text()
    documented = text.split("```layers\n")[1].split("```")[0].strip().splitlines()
    assert documented == contract("layers")["layers"]


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
