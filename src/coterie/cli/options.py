"""Options of the command that come from the run's configuration: their types, limits, defaults and completion."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, get_args, get_origin

import click
from click.shell_completion import CompletionItem

from coterie.methods.option_types import choices, limits_in_words, placeholder, union_members
from coterie.runs.config import RunConfig, option_annotation, option_default

F = Callable[..., Any]
FLAGS = {
    "task": {
        "regression": "the labels are quantities, where the data does not show it",
        "classification": "the labels are classes, where the data does not show it",
    }
}
"""Options of few values, each of which is a flag of its own."""
DATA_DIR = f"{RunConfig.model_fields['data_dir'].description}  [default: {option_default('data_dir')}]"
"""The help of --data-dir, for commands that have no other option of a run."""


def config_options(
    *, leave_out: frozenset[str] = frozenset(), defaults: Mapping[str, str] | None = None
) -> Callable[[F], F]:
    """One command-line option for each field of the run's configuration, described by the field itself.

    Args:
        leave_out: fields that the command does not take.
        defaults: what the command uses instead of the configuration's own default, in words.
    """

    def decorate(function: F) -> F:
        for name, field in reversed(RunConfig.model_fields.items()):
            if name in leave_out:
                continue
            flag = "--" + name.replace("_", "-")
            if name in FLAGS:
                for value in FLAGS[name]:
                    function = click.option(f"--{value}", name, flag_value=value, help=FLAGS[name][value])(function)
                continue
            if field.annotation is bool:
                option = click.option(flag, name, is_flag=True, default=None, help=field.description)
            else:
                option = click.option(
                    flag,
                    name,
                    default=None,
                    help=option_help(name, (defaults or {}).get(name)),
                    metavar=placeholder(option_annotation(name)),
                    shell_complete=_completion(name),
                )
            function = option(function)
        return function

    return decorate


def option_help(name: str, default: str | None = None) -> str:
    """A field's description with the limits of its numbers and its default."""
    field = RunConfig.model_fields[name]
    facts = [*_limits(option_annotation(name), field.metadata), f"default: {default or option_default(name)}"]
    return f"{field.description}  [{'; '.join(facts)}]"


def _limits(annotation: Any, marks: Sequence[Any]) -> list[str]:
    """The limits of the numbers in an annotation."""
    for part in union_members(annotation):
        base, own = (get_args(part)[0], get_args(part)[1:]) if get_origin(part) is Annotated else (part, ())
        if base in (int, float):
            limits = [limit for limit in limits_in_words(base, [*marks, *own]) if limit]
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
