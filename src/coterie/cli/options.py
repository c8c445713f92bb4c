"""Options of the command that come from the options of a run: their types, limits, defaults and completion."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, get_args, get_origin

import click
from click.shell_completion import CompletionItem

from coterie.option_types import choices, limits_in_words, placeholder, union_members
from coterie.options import FIELDS, GROUP_OF, option_annotation, option_default, option_text

F = Callable[..., Any]
FLAGS = {
    "task": {
        "regression": "The labels are quantities, where the data does not show it.",
        "classification": "The labels are classes, where the data does not show it.",
    }
}
"""Options of few values, each of which is a flag of its own."""
FIRST = ("method", "data", "label", "scenario", "model", "rounds", "lr", "seed", "workers", "out")
"""The options that are used most: they stand at the top of the help."""


class RunOption(click.Option):
    """An option of a run; its help is put together when it is shown."""

    def __init__(self, words: Sequence[str], key: str, default_text: str | None = None, **settings: Any) -> None:
        super().__init__(words, default=None, **settings)
        self.key, self.default_text = key, default_text

    def get_help_record(self, ctx: click.Context) -> tuple[str, str] | None:
        self.help = self.help or option_help(self.key, self.default_text)
        return super().get_help_record(ctx)


class RunCommand(click.Command):
    """A command with options of a run: those that are used most stand first, then a section for each group."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the command's own options with those that are used most, and the others in sections."""
        sections: dict[str, list[tuple[str, str]]] = {"Options": []}
        for option in sorted(self.get_params(ctx), key=_place):
            record = option.get_help_record(ctx)
            if record is not None and not isinstance(option, click.Argument):
                sections.setdefault(_section(option), []).append(record)
        for title, records in sections.items():
            with formatter.section(title):
                formatter.write_dl(records)


def _place(option: click.Parameter) -> int:
    """Where an option stands: the command's own, those that are used most, those of the groups, the others."""
    key = option.key if isinstance(option, RunOption) else None
    if key in FIRST:
        return FIRST.index(key)
    return {"Options": -1, "Other": len(FIRST) + 1}.get(_section(option), len(FIRST))


def _section(option: click.Parameter) -> str:
    """The heading that an option stands under."""
    if not isinstance(option, RunOption):
        return "Other" if "--help" in option.opts else "Options"
    if option.key in FIRST:
        return "Options"
    return GROUP_OF.get(option.key, "other").capitalize()


def config_options(
    *, leave_out: frozenset[str] = frozenset(), defaults: Mapping[str, str] | None = None
) -> Callable[[F], F]:
    """One command-line option for each option of a run, described by its field.

    Args:
        leave_out: options that the command does not take.
        defaults: what the command uses instead of an option's own default, in words.
    """

    def decorate(function: F) -> F:
        for key in reversed([key for key in FIELDS if key not in leave_out]):
            function = run_option(key, (defaults or {}).get(key))(function)
        return function

    return decorate


def run_option(key: str, default: str | None = None) -> Callable[[F], F]:
    """The option of a command for an option of a run; for one in `FLAGS` an option for each of its values."""
    if key in FLAGS:
        return lambda function: _flags(key, function)
    settings: dict[str, Any] = {"is_flag": True}
    if FIELDS[key].type != "bool":
        settings = {"metavar": placeholder(option_annotation(key)), "shell_complete": _completion(key)}
    return click.option("--" + key.replace("_", "-"), key, cls=RunOption, key=key, default_text=default, **settings)


def _flags(key: str, function: F) -> F:
    """A flag for each value of an option."""
    for value, text in FLAGS[key].items():
        function = click.option(f"--{value}", key, cls=RunOption, key=key, flag_value=value, help=text)(function)
    return function


def option_help(key: str, default: str | None = None) -> str:
    """An option's text with the limits of its numbers and its default."""
    if FIELDS[key].type == "bool":
        return option_text(key)
    facts = [*_limits(option_annotation(key)), f"default: {default or option_default(key)}"]
    return f"{option_text(key)}  [{'; '.join(facts)}]"


def _limits(annotation: Any) -> list[str]:
    """The limits of the numbers in an annotation."""
    for part in union_members(annotation):
        base, own = (get_args(part)[0], get_args(part)[1:]) if get_origin(part) is Annotated else (part, ())
        if base in (int, float):
            limits = [limit for limit in limits_in_words(base, own) if limit]
            return [" and ".join(limits)] if limits else []
    return []


def examples(*lines: str) -> str:
    """The end of a command's help: commands to copy."""
    return "\b\nExamples:\n" + "\n".join(f"  {line}" for line in lines)


Completion = Callable[[click.Context, click.Parameter, str], list[CompletionItem]]


def _completion(name: str) -> Completion:
    """What a shell offers after an option: the values that its type lists, known names, or folders."""

    def complete(context: click.Context, parameter: click.Parameter, begun: str) -> list[CompletionItem]:
        if placeholder(option_annotation(name)) in ("FOLDER", "DATA"):
            return complete_folder(context, parameter, begun)
        known = NAMES[name]() if name in NAMES else choices(option_annotation(name))
        return [CompletionItem(value) for value in known if value.startswith(begun)]

    return complete


def complete_folder(context: click.Context, parameter: click.Parameter, begun: str) -> list[CompletionItem]:
    """A folder."""
    return [CompletionItem(begun, type="dir")]


def complete_method(context: click.Context, parameter: click.Parameter, begun: str) -> list[CompletionItem]:
    """The methods whose names begin so."""
    return [CompletionItem(name) for name in method_names() if name.startswith(begun)]


def method_names() -> list[str]:
    """The names of all methods."""
    from coterie.methods.base import method_names

    return method_names()


def _scenario_names() -> list[str]:
    from coterie.data.scenarios import scenario_names

    return scenario_names()


def _model_names() -> list[str]:
    from coterie.models import list_models

    return [spec.name for spec in list_models()]


NAMES: dict[str, Callable[[], list[str]]] = {
    "method": method_names,
    "scenario": _scenario_names,
    "model": _model_names,
    "device": lambda: ["auto", "cpu", "cuda"],
    "loss": lambda: ["cross-entropy", "bce", "mse", "mae", "huber"],
    "optimizer": lambda: ["sgd", "momentum", "adam", "adamw"],
    "server_optimizer": lambda: ["none", "avgm", "adam", "yogi"],
    "class_weights": lambda: ["balanced"],
    "augment": lambda: ["flip", "crop:4", "flip,crop:4"],
    "lr_schedule": lambda: ["constant", "step:", "decay:", "exponential:"],
}
"""Options that take one of many names."""
