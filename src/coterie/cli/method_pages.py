"""What the command `methods` prints of one method: its options, its paper, the settings of a table."""

from __future__ import annotations

import inspect

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from coterie.methods import make_method
from coterie.methods.base import find_method
from coterie.methods.published import Paper, departures_of, paper_of, table_of
from coterie.option_types import describe_options, value_in_words
from coterie.options import option_default


def show_method(console: Console, name: str, version: str | None) -> None:
    """Print the options of a method or, with a version, its settings as published."""
    cls = find_method(name)
    if version is not None:
        show_published(console, name, cls, version)
        return
    summary, _, more = inspect.cleandoc(cls.__doc__ or "").partition("\n")
    console.print(f"[bold]{name}[/]: {escape(summary)}", soft_wrap=True)
    if more.strip():
        console.print(escape(more.strip()))
    options = describe_options(cls)
    if not options:
        console.print("It has no options.")
        return
    table = Table("option", "type", "default", "what it does", box=None, pad_edge=False)
    for option in options:
        table.add_row(option.name, escape(option.type), escape(option.default), escape(" ".join(option.text.split())))
    console.print(table)
    show_paper(console, name, cls)
    first = options[0]
    console.print(f"Given as {name}:{first.name}={first.default},…", markup=False)


def show_paper(console: Console, name: str, cls: type) -> None:
    """Print what a method is published in, where ours is different, and the tables whose settings it knows."""
    paper, departures = paper_of(cls), departures_of(cls)
    if paper is None:
        return
    says = f"{name}:as=paper undoes where the defaults depart from it:" if departures else "by default as printed there"
    console.print(f"\nPaper: {paper.citation}; {says}", markup=False, soft_wrap=True)
    if departures:
        titles = ("option", "as=paper", "what the default does instead", "why, and what it changes")
        table = Table(*titles, box=None, pad_edge=False)
        for one in departures:
            table.add_row(one.option, escape(value_in_words(one.paper)), escape(one.here), escape(one.why))
        console.print(table)
    show_differences(console, paper)
    if paper.tables:
        console.print(f"Settings of its tables: {', '.join(f'{name}:as={known}' for known in paper.tables)}")


def show_differences(console: Console, paper: Paper) -> None:
    """Print what `as=paper` does not undo."""
    for one in paper.differences:
        text = f"Different with as=paper too: {one.printed}; here {one.here} ({one.why})"
        console.print(text, markup=False, soft_wrap=True)


def show_published(console: Console, name: str, cls: type, version: str) -> None:
    """Print every setting of a method as its paper, or a table of it, prints it; * marks what is not our default."""
    printed, paper = table_of(cls, name, version), paper_of(cls)
    assert paper is not None  # or there were no table
    made, default = make_method(f"{name}:as={version}"), make_method(name)
    console.print(f"{name}:as={version}: {paper.citation}: {printed.about}", markup=False, soft_wrap=True)
    table = Table("setting", "as printed", "our default", box=None, pad_edge=False)
    for option in describe_options(cls):
        values = [getattr(method, option.name) for method in (made, default)]
        mark = "" if values[0] == values[1] else " *"
        table.add_row(option.name + mark, *(escape(value_in_words(value)) for value in values))
    for part, inner in getattr(made, "parts", dict)().items():
        for option in describe_options(type(inner)):
            table.add_row(f"  {part}: {option.name}", escape(value_in_words(getattr(inner, option.name))), "")
    for key, value in {**printed.training, **printed.federation}.items():
        table.add_row(f"--{key.replace('_', '-')} *", escape(value_in_words(value)), escape(option_default(key)))
    console.print(table)
    if printed.ours:
        console.print(printed.ours, markup=False, soft_wrap=True)
    show_differences(console, paper)
