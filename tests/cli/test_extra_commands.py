"""Commands of other packages: listed without being imported, loaded on use, and one line where one is missing."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from coterie.cli import main
from coterie.cli.main import OWN_COMMANDS

MODULE = """
import click

@click.command()
@click.option("--times", type=int, default=1, show_default=True, help="how often")
def greet(times):
    "Greet the clients."
    click.echo("hello " * times)

not_a_command = 3
"""
DIST = "greeting-1.0.dist-info"
METADATA = "Metadata-Version: 2.1\nName: greeting\nVersion: 1.0\nSummary: Greets the clients of a federation.\n"
POINTS = """
[coterie.commands]
greet = greeting_commands:greet
run = greeting_commands:greet
broken = no_such_module:greet
number = greeting_commands:not_a_command
"""
Call = Callable[..., tuple[int, str, str]]


@pytest.fixture
def coterie(capfd: pytest.CaptureFixture[str]) -> Call:
    def call(*words: str) -> tuple[int, str, str]:
        code = 0
        try:
            main(list(words))
        except SystemExit as stop:
            code = int(stop.code or 0)
        captured = capfd.readouterr()
        return code, captured.out, captured.err

    return call


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A package with four commands, one of them by the name of ours, installed in a folder of the path."""
    (tmp_path / "greeting_commands.py").write_text(MODULE)
    (tmp_path / DIST).mkdir()
    (tmp_path / DIST / "METADATA").write_text(METADATA)
    (tmp_path / DIST / "entry_points.txt").write_text(POINTS)
    monkeypatch.syspath_prepend(tmp_path)
    yield
    sys.modules.pop("greeting_commands", None)


@pytest.mark.usefixtures("installed")
def test_a_command_is_listed_with_its_package_summary_and_not_imported(coterie: Call) -> None:
    code, out, _ = coterie("--help")
    assert code == 0
    (line,) = [line for line in out.splitlines() if line.split()[:1] == ["greet"]]
    assert "Greets the clients" in line
    assert "greeting_commands" not in sys.modules


@pytest.mark.usefixtures("installed")
def test_a_command_is_loaded_when_it_is_used(coterie: Call) -> None:
    assert coterie("greet", "--times", "2") == (0, "hello hello \n", "")
    code, out, _ = coterie("greet", "--help")
    assert code == 0
    assert "Usage: coterie greet" in out
    assert "--times INTEGER  how often" in out


@pytest.mark.usefixtures("installed")
def test_our_own_command_wins_over_another_of_its_name(coterie: Call) -> None:
    _, out, _ = coterie("run", "--help")
    assert "Train a method on a federation" in out


@pytest.mark.usefixtures("installed")
@pytest.mark.parametrize(
    ("name", "hint"), [("broken", "no_such_module"), ("number", "of type int: expected a click command")]
)
def test_a_command_that_cannot_be_loaded_is_named_in_one_line(coterie: Call, name: str, hint: str) -> None:
    code, out, err = coterie(name)
    assert (code, out) == (2, "")
    assert len(err.strip().splitlines()) == 1
    assert f"command {name!r}" in err
    assert hint in err


@pytest.mark.parametrize("name", OWN_COMMANDS)
def test_a_missing_package_is_named_with_what_installs_it(
    coterie: Call, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setattr("coterie.plugins.offered", lambda group: {})
    code, out, err = coterie(name, "--help")
    assert (code, out) == (2, "")
    package, _ = OWN_COMMANDS[name]
    assert f"coterie: 'coterie {name}' is a package of its own: pip install {package} (" in err
    folder = package.removeprefix("coterie-")
    assert f"pip install packages/{folder})" in err
    assert (Path(__file__).parents[2] / "packages" / folder / "pyproject.toml").exists()
    _, out, _ = coterie("--help")
    assert name not in [line.split()[0] for line in out.splitlines() if line.strip()]


def test_help_imports_neither_recipes_nor_benchmarks() -> None:
    script = (
        "import sys; from coterie.cli import main\n"
        "try: main(['--help'])\n"
        "except SystemExit: pass\n"
        "print(sorted(name for name in sys.modules if name.startswith('coterie_')))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"
    assert {"reproduce", "bench"} <= {line.split()[0] for line in done.stdout.splitlines() if line.strip()}
