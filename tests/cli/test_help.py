"""Help tells of every option its type or choices and its default; methods explain theirs; shells can complete."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator

import click
import pytest

from coterie.cli import main
from coterie.cli.main import app
from coterie.cli.options import FIRST, FLAGS
from coterie.options import FIELDS, GROUPS, option_default
from coterie.runs.config import option_type

Called = Callable[..., str]


@pytest.fixture
def coterie(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Called:
    """What the command prints, on lines wide enough not to be broken."""

    def call(*words: str) -> str:
        monkeypatch.setenv("COLUMNS", "300")
        with pytest.MonkeyPatch.context() as patch:
            patch.setitem(app.context_settings, "max_content_width", 300)
            code = 0
            try:
                main(list(words))
            except SystemExit as stop:
                code = stop.code
        said = capfd.readouterr()
        assert not code, said.err
        return said.out

    return call


def loaded(command: click.Command | None) -> click.Command:
    """The command itself, where another stands for it until it is used."""
    assert command is not None
    return command.load() if hasattr(command, "load") else command


def commands(group: click.Group = app, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """Every command of this package by its words."""
    context = click.Context(group)
    for name in group.list_commands(context):
        if name not in group.commands:  # another package's
            continue
        yield (*path, name)
        command = loaded(group.get_command(context, name))
        if isinstance(command, click.Group):
            yield from commands(command, (*path, name))


@pytest.mark.parametrize("words", [*commands(), ("attack",), ("compare",), ("sweep",)], ids="-".join)
def test_every_command_has_examples_and_no_bare_value(coterie: Called, words: tuple[str, ...]) -> None:
    text = coterie(*words, "--help")
    assert "VALUE" not in text
    _, _, examples = text.partition("Examples:\n")
    lines = [line.strip() for line in examples.strip().splitlines()]
    assert lines
    assert all(line.startswith("coterie ") for line in lines)
    assert any(line.startswith(f"coterie {' '.join(words)}") for line in lines)
    for line in lines:
        check_options(line.split()[1:])


def check_options(words: list[str]) -> None:
    """The options in an example exist."""
    command: click.Command = app
    while isinstance(command, click.Group) and words:
        command = loaded(command.get_command(click.Context(app), words.pop(0)))
    known = {name for parameter in command.params for name in parameter.opts}
    assert {word for word in words if word.startswith("--")} <= known


def test_every_option_of_a_run_shows_its_type_and_its_default(coterie: Called) -> None:
    text = " ".join(coterie("run", "--help").split())
    flags = {name for name, option in FIELDS.items() if option.type == "bool"}
    for name in set(FIELDS) - flags - set(FLAGS) - {"method"}:
        flag = "--" + name.replace("_", "-")
        (shown,) = re.findall(rf" {flag} .+?\](?= -| [A-Z]\w+:)", text)
        assert shown.endswith(f"default: {option_default(name)}]"), shown
        assert re.match(rf" {flag} (\[\S+\|\S+\]|[A-Z]+) ", shown), shown
    for value in [value for values in FLAGS.values() for value in values]:
        assert f" --{value} " in text
    assert re.search(r"--method METHOD .*default: fedavg, and then auto\]", text)
    for expected in (
        "--workers [INTEGER|auto]", "--precision [float32|float64|bf16]", "--participation NUMBER",
        "[above 0 and up to 1; default: 1.0]", "[from 1; default: the scenario's]",
    ):  # fmt: skip
        assert expected in text


def test_the_options_of_a_run_come_in_sections_and_those_that_are_used_most_first(coterie: Called) -> None:
    text = coterie("run", "--help")
    assert re.findall(r"^(\w+):$", text, re.MULTILINE) == ["Options", *(name.capitalize() for name in GROUPS), "Other"]
    first = re.findall(r"^  --([\w-]+)", text.partition("Data:")[0], re.MULTILINE)
    assert first == list(FIRST)
    assert len(first) == 10
    for name, group in GROUPS.items():
        section = text.partition(f"\n{name.capitalize()}:\n")[2].partition("\n\n")[0]
        shown = {word.replace("-", "_") for word in re.findall(r"^  --([\w-]+)", section, re.MULTILINE)}
        assert shown - set(FLAGS["task"]) == set(group.__dataclass_fields__) - set(FIRST) - set(FLAGS)
    assert coterie("compare", "--help").index("--methods") < coterie("compare", "--help").index("--data")


def test_commands_come_in_sections_each_with_a_line_in_full() -> None:
    settings = os.environ | {"COLUMNS": "100"}
    done = subprocess.run(
        [sys.executable, "-m", "coterie", "--help"], env=settings, capture_output=True, text=True, check=True
    )
    text = done.stdout.partition("\nTrain:\n")[2]
    lines = [line for line in text.splitlines() if line.startswith("  ")]
    names = [line.split()[0] for line in lines]
    assert all(re.match(r"  \S+ +[A-Z].*\.$", line) for line in lines), "one line each"
    assert {"run", "compare", "attack", *app.commands} <= set(names)
    assert len(names) == len(set(names))
    assert "Other packages" not in text


def test_a_methods_options_are_explained(coterie: Called) -> None:
    text = coterie("methods", "cfl")
    assert re.search(r"rule +anything +auto +When to split: benefit", text)
    assert re.search(r"weighting +one of samples, uniform +samples +Weight of a client", text)
    assert re.search(r"fallback +true or false +true", text)
    assert "no options" in coterie("methods", "local")
    inherited = coterie("methods", "fedprox")
    assert "How far the server follows the mean update." in inherited
    assert "Strength of the proximal term" in inherited


@pytest.mark.parametrize(
    ("key", "words"),
    [
        ("rounds", "whole number from 1 to 1000000000"),
        ("momentum", "number from 0 and below 1"),
        ("engine", "one of local, ray"),
        ("batch_size", "whole number from 1 or full"),
        ("out", "text"),
        ("quiet", "true or false"),
    ],
)
def test_types_in_words(key: str, words: str) -> None:
    assert option_type(key) == words


@pytest.mark.parametrize(
    ("line", "offered"),
    [
        ("coterie res", {"resume"}),
        ("coterie run --method if", {"ifca"}),
        ("coterie run --engine ", {"local", "ray"}),
        ("coterie run --workers ", {"auto"}),
        ("coterie run --scenario digits-r", {"digits-rotated"}),
        ("coterie run --model ml", {"mlp"}),
        ("coterie methods fedp", {"fedper", "fedprox"}),
        ("coterie run --mo", {"--model", "--momentum"}),
    ],
)
def test_a_shell_can_complete(coterie: Called, monkeypatch: pytest.MonkeyPatch, line: str, offered: set[str]) -> None:
    words = line.split(" ")
    monkeypatch.setenv("_COTERIE_COMPLETE", "bash_complete")
    monkeypatch.setenv("COMP_WORDS", line)
    monkeypatch.setenv("COMP_CWORD", str(len(words) - 1))
    found = {entry.partition(",")[2] for entry in coterie().splitlines()}
    assert offered <= found
    assert all(word.startswith(words[-1]) for word in found)
