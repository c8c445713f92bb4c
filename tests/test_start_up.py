"""What is imported, and when: the command's help needs no torch, a run no library that it does not use."""

from __future__ import annotations

import subprocess
import sys

import click
import numpy as np
import pytest
from click.testing import CliRunner

import coterie
from coterie import plugins
from coterie.cli.main import COMMANDS, GROUP, OWN_COMMANDS, app
from coterie.cli.method_commands import method_summaries
from coterie.cli.progress import verdicts
from coterie.data.images import load_digits_pool
from coterie.methods import method_classes

HEAVY = {"torch", "numpy", "scipy", "sklearn", "pandas", "matplotlib", "umap", "numba", "flwr", "ray", "pydantic"}
UNUSED = HEAVY - {"torch", "numpy", "pydantic"}
OTHERWISE = {"bench", "conformance", "leaderboard", "reproduce"}
"""Commands whose own help begins with other words than the list of commands."""


def loaded_by(code: str) -> set[str]:
    """The top-level packages that are loaded after the code has run in a new process."""
    script = f"{code}\nimport sys\nprint('\\n' + ' '.join(sys.modules))"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    return {module.partition(".")[0] for module in done.stdout.splitlines()[-1].split()}


@pytest.mark.parametrize("words", [["--help"], ["--version"], [], ["run", "--help"], ["sweep", "--help"], ["methods"]])
def test_the_help_of_the_command_needs_nothing_heavy(words: list[str]) -> None:
    code = f"import coterie.cli\ntry:\n    coterie.cli.main({words!r})\nexcept SystemExit:\n    pass"
    assert not loaded_by(code) & HEAVY


@pytest.mark.parametrize(("words", "most"), [(["--help"], 1), (["methods", "--help"], 0)])
def test_installed_packages_are_read_at_most_once(words: list[str], most: int, monkeypatch: pytest.MonkeyPatch) -> None:
    scans: list[str] = []
    offered = plugins.offered
    monkeypatch.setattr(plugins, "offered", lambda group: scans.append(group) or offered(group))
    assert CliRunner().invoke(app, words).exit_code == 0
    assert scans.count(GROUP) == most


def test_the_list_of_methods_is_that_of_the_registry() -> None:
    ours = {name: cls for name, cls in method_classes().items() if cls.__module__.startswith("coterie")}
    assert method_summaries() == {name: (cls.__doc__ or "").strip().partition("\n")[0] for name, cls in ours.items()}


def test_importing_the_package_needs_nothing_heavy() -> None:
    assert not loaded_by("import coterie; coterie.__version__; coterie.CoterieError; dir(coterie)") & HEAVY


def test_a_run_loads_only_what_it_uses() -> None:
    code = "import coterie; coterie.run('cfl', clients=4, samples=20, rounds=1, workers=1)"
    loaded = loaded_by(code)
    assert "torch" in loaded
    assert not loaded & UNUSED


@pytest.mark.parametrize("name", ["Comparison", "Sweep", "compare", "sweep"])
def test_a_name_of_a_missing_package_says_what_to_install(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(vars(coterie), name, raising=False)
    monkeypatch.setattr(plugins, "offered", lambda group: {})
    with pytest.raises(coterie.CoterieError, match=f"^coterie.{name} is in a package .*: pip install coterie-studies$"):
        getattr(coterie, name)


def test_what_a_result_does_by_another_package_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    result = coterie.run("fedavg", scenario="xor", clients=2, samples=10, rounds=1, workers=1)
    monkeypatch.setattr(plugins, "offered", lambda group: {})
    samples = np.zeros((1, 2), dtype=np.float32)
    acts = {
        "predict": lambda: result.predict(samples),
        "evaluate": lambda: result.evaluate((samples, [0])),
        "export": lambda: result.export("model.pt"),
        "assign": lambda: result.assign(samples),
        "drift": lambda: result.drift("client-0", samples),
    }
    for name, act in acts.items():
        with pytest.raises(coterie.CoterieError, match=f"^Result.{name} is in a .*: pip install coterie-inference$"):
            act()
    assert result._repr_html_() is None
    assert verdicts([result]) == ["the verdict on a run is in a package of its own: pip install coterie-views"]


def test_every_public_name_can_be_had_and_no_other() -> None:
    for name in coterie.__all__:
        assert getattr(coterie, name) is not None
    assert set(coterie.__all__) <= set(dir(coterie))
    with pytest.raises(AttributeError, match="nothing"):
        coterie.nothing  # noqa: B018


@pytest.mark.parametrize("name", sorted({*(row[0] for row in COMMANDS), *OWN_COMMANDS} - OTHERWISE))
def test_the_help_shows_the_words_of_the_command_itself(name: str) -> None:
    context = click.Context(app)
    shown = app.get_command(context, name)
    assert shown is not None
    own = shown.make_context(name, ["--help"], context, resilient_parsing=True).command
    assert own is not shown
    assert own.name == name
    assert shown.get_short_help_str(200) == own.get_short_help_str(200)


def test_the_digits_are_those_of_scikit_learn() -> None:
    from sklearn.datasets import load_digits

    raw, pool = load_digits(), load_digits_pool([])
    mine = np.concatenate([pool.x, pool.x_test]).reshape(-1, 64)
    labels = np.concatenate([pool.y, pool.y_test])
    theirs = (raw.data / 16).astype(np.float32)
    order, other = np.lexsort([*mine.T, labels]), np.lexsort([*theirs.T, raw.target])
    assert np.array_equal(mine[order], theirs[other])
    assert np.array_equal(labels[order], raw.target[other])
