"""Commands that list what can be run: methods and networks."""

from __future__ import annotations

import re
from importlib.util import find_spec
from pathlib import Path

import click
from rich.markup import escape
from rich.table import Table

from coterie import plugins
from coterie.cli.options import complete_method, examples
from coterie.cli.terminal import make_console

OWN_METHOD = re.compile(r'^@method\("(.+)"\)\n(?:@.+\n)*class .+:\n    """(.+)', re.MULTILINE)
"""A method in a source: its name, and the first line of its class's text."""


@click.command(epilog=examples("coterie methods", "coterie methods cfl", "coterie methods ifca --as table1-mnist"))
@click.argument("name", required=False, shell_complete=complete_method)
@click.option("--as", "version", metavar="paper|TABLE", help="the settings that the paper, or a table of it, prints")
def methods(name: str | None, version: str | None) -> None:
    """List the methods; with NAME, the options of one."""
    if name is not None:
        from coterie.cli.method_pages import show_method

        show_method(make_console(), name, version)
        return
    table = Table("method", "what it does", box=None, pad_edge=False)
    for known, summary in sorted(method_summaries().items()):
        table.add_row(known, escape(summary))
    make_console().print(table)


def method_summaries() -> dict[str, str]:
    """The first line of every method's text by its name; sources are read, where that is enough, to load no torch."""
    texts = summaries_beside("coterie.methods")
    for name, point in plugins.offered("coterie.methods").items():
        texts |= {} if name in texts else summaries_beside(point.module)
        if name not in texts:
            texts[name] = plugins.load(point, "method").__doc__ or ""
    return {name: text.strip().partition("\n")[0].removesuffix('"""') for name, text in texts.items()}


def summaries_beside(module: str) -> dict[str, str]:
    """The methods in the sources of a package, which is not imported."""
    package = find_spec(module)
    if package is None or package.origin is None or not package.origin.endswith("__init__.py"):
        return {}
    sources = [path.read_text(encoding="utf-8") for path in Path(package.origin).parent.glob("*.py")]
    return dict(found for text in sources for found in OWN_METHOD.findall(text))


@click.command(epilog=examples("coterie models"))
def models() -> None:
    """List the networks."""
    from coterie.models import list_models

    table = Table("model", "what it is", box=None, pad_edge=False)
    for spec in list_models():
        table.add_row(spec.name, spec.summary)
    make_console().print(table)
