"""What a release needs beside code: extras that errors name, a citation, an image, a hosted pipeline, hooks."""

from __future__ import annotations

import importlib
import importlib.util
import os
import re
import runpy
import sys
import tomllib
from collections.abc import Callable
from fnmatch import fnmatch
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import coterie
from coterie.clustering.manifold import import_umap
from coterie.engines.ray import find_ray
from coterie.errors import ConfigError, extra
from coterie.privacy.sealing import _x25519
from coterie.runs.records import History
from coterie_views.trackers import MLflowCallback, TensorBoardCallback, WandbCallback

ROOT = Path(__file__).parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
EXTRAS: dict[str, list[str]] = PROJECT["optional-dependencies"]
FOR_DEVELOPERS = {"all", "dev", "docs"}
yaml = pytest.importorskip("yaml")


def import_flower() -> None:
    for name in [name for name in sys.modules if name == "coterie.flower"]:
        del sys.modules[name]
    importlib.import_module("coterie.flower")


@pytest.mark.parametrize(
    ("package", "name", "use"),
    [
        ("umap", "flt", import_umap),
        ("ray", "ray", find_ray),
        ("pandas", "pandas", History().to_pandas),
        ("cryptography", "secure", _x25519),
        ("tensorboard", "trackers", lambda: TensorBoardCallback("runs")),
        ("mlflow", "trackers", MLflowCallback),
        ("wandb", "wandb", WandbCallback),
        ("flwr", "flower", import_flower),
    ],
)
def test_a_missing_package_is_named_with_its_extra(
    package: str, name: str, use: Callable[[], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    for loaded in [key for key in sys.modules if key == package or key.startswith(f"{package}.")]:
        monkeypatch.delitem(sys.modules, loaded)
    monkeypatch.setitem(sys.modules, package, None)
    if package == "tensorboard":  # torch's own module is what imports it
        monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    if package == "flwr":
        kept = sys.modules.get("coterie.flower")
        monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
        if kept is not None:
            monkeypatch.setitem(sys.modules, "coterie.flower", kept)  # so that it is put back
    with pytest.raises(ConfigError, match=re.escape(f'pip install "coterie[{name}]"')) as told:
        use()
    assert "\n" not in str(told.value)
    assert any(re.match(rf"{package}\b", requirement) for requirement in EXTRAS[name]) or package == "umap"


def test_every_extra_that_an_error_names_exists() -> None:
    named = set()
    for path in (*ROOT.glob("src/**/*.py"), *ROOT.glob("packages/*/src/**/*.py")):
        named |= set(re.findall(r'\bextra\("([\w-]+)"|coterie\[([\w,-]+)\]', path.read_text()))
    names = {name for pair in named for part in pair for name in part.split(",") if name}
    assert {"flower", "flt", "web", "wandb"} <= names
    assert names <= set(EXTRAS)


def test_all_is_every_extra_but_the_developers() -> None:
    (everything,) = EXTRAS["all"]
    inside = re.fullmatch(r"coterie\[([\w,-]+)\]", everything)
    assert inside is not None
    assert set(inside.group(1).split(",")) == set(EXTRAS) - FOR_DEVELOPERS


def test_an_import_that_works_is_let_through() -> None:
    with extra("pandas", "nothing"):
        import json
    assert json.dumps(1) == "1"


def test_the_citation_is_of_this_version_and_names_the_four_papers() -> None:
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert citation["version"] == coterie.__version__
    assert citation["license"] == PROJECT["license"]
    assert {note["notes"].removeprefix("the method ") for note in citation["references"]} == {
        "cfl", "ifca", "flt", "fedcuau",
    }  # fmt: skip
    for reference in citation["references"]:
        assert {"type", "title", "authors", "year"} <= set(reference)


def test_the_image_is_made_of_files_that_are_there_and_not_ignored() -> None:
    lines = (ROOT / "Dockerfile").read_text().splitlines()
    copied = [word for line in lines if line.startswith("COPY ") for word in line.split()[1:-1]]
    assert "src" in copied
    ignored = (ROOT / ".dockerignore").read_text().split()
    kept = [pattern.removeprefix("!") for pattern in ignored if pattern.startswith("!")]
    for name in copied:
        assert (ROOT / name).exists(), name
        assert any(fnmatch(name, pattern) for pattern in kept), f"{name} is ignored"
    steps = [line for line in lines if line.startswith("RUN pip install")]
    assert "torch" in steps[0]
    assert "whl/cpu" in steps[0]


def test_addresses_of_the_project_are_settings_of_a_build(monkeypatch: pytest.MonkeyPatch) -> None:
    interface = ModuleType("hatchling.metadata.plugin.interface")  # hatchling itself is in the environment of a build
    interface.MetadataHookInterface = object  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, interface.__name__, interface)
    hook = runpy.run_path(str(ROOT / "hatch_build.py"))["ProjectUrls"]()
    monkeypatch.setenv("COTERIE_URL", "https://example.org")
    metadata: dict[str, Any] = {}
    hook.update(metadata)
    assert metadata == {"urls": {"Homepage": "https://example.org"}}


def test_the_hosted_pipeline_calls_what_a_change_must_pass() -> None:
    pipeline = yaml.safe_load((ROOT / ".github" / "workflows" / "ci.yml").read_text())
    steps = [step.get("run") for step in pipeline["jobs"]["test"]["steps"]]
    assert ".ci/run" in steps
    assert os.access(ROOT / ".ci" / "run", os.X_OK)
    tested = set(pipeline["jobs"]["test"]["strategy"]["matrix"]["python"])
    said = {name.rpartition(" ")[2] for name in PROJECT["classifiers"] if "Python :: 3." in name}
    assert tested == said
    oldest = EXTRAS["flower"][0].replace(">=", "==")
    assert any(line.startswith(oldest) for line in (ROOT / "constraints.txt").read_text().splitlines())
    steps = [step.get("run") for step in pipeline["jobs"]["newest-flower"]["steps"]]
    assert ".venv/bin/pip install --upgrade flwr" in steps


def test_the_hooks_are_local_and_of_the_developers_own_tools() -> None:
    config = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())
    assert [repository["repo"] for repository in config["repos"]] == ["local"]
    tools = {"ruff": "ruff", "lint-imports": "import-linter", "mypy": "mypy"}
    needed = " ".join(EXTRAS["dev"])
    for hook in config["repos"][0]["hooks"]:
        program = hook["entry"].split()[0]
        assert program.startswith(".venv/bin/")
        assert tools[program.removeprefix(".venv/bin/")] in needed
        assert hook["language"] == "system"
    assert "pre-commit" in needed
    assert "make hooks" in (ROOT / "CONTRIBUTING.md").read_text()
