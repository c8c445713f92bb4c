"""What a person sees during a run: a bar on a terminal, plain lines elsewhere, and a closing table."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, TaskID, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.progress import Progress as Bar
from rich.table import Table

from coterie import plugins
from coterie.cli.terminal import make_console
from coterie.errors import ConfigError
from coterie.methods import Event
from coterie.runs import Callback, Result, Run
from coterie.runs.callbacks import trainer_lines
from coterie.runs.records import RoundRecord, Spread, Summary
from coterie.runs.words import ending, member_lines, privacy_in_words, round_in_words, summary_cells

LINES_IN_A_FILE = 20
"""About how many progress lines a run prints where there is no terminal."""


class Progress(Callback):
    """Follows a run (it is a `Callback`) and shows rounds, accuracy, clusters, time left and events."""

    def __init__(self, *, quiet: bool = False, console: Console | None = None) -> None:
        self.console = console or make_console(stderr=True)
        self.quiet = quiet
        self.bar: Bar | None = None
        self.task: TaskID | None = None
        self.rounds = 0
        self.began = 0.0
        self.first = 0
        self.known: dict[str, Spread] = {}
        self.metrics: tuple[str, ...] = ()

    def __enter__(self) -> Progress:
        return self

    def __exit__(self, *_: object) -> None:
        if self.bar:
            self.bar.stop()
            self.bar = None

    def on_start(self, run: Run, done: int) -> None:
        self.rounds, self.first, self.began = run.server.rounds, done, time.monotonic()
        self.metrics = run.metrics
        if self.quiet:
            return
        labels = run.labels
        goes_on = f", from round {done + 1}" if done else ""
        self.console.print(
            f"[bold]{escape(labels['method'])}[/] on [bold]{escape(labels['scenario'])}[/]: "
            f"{len(run.server.clients)} clients, model {escape(labels['model'])}, {self.rounds} rounds, "
            f"seed {labels['seed']}{goes_on}",
            highlight=False,
        )
        for text in trainer_lines(run):
            self.console.print(escape(text), soft_wrap=True, highlight=False)
        for text in run.foreseen():
            self.console.print(f"[red]warning[/]: {escape(text)}", soft_wrap=True, highlight=False)
        if self.console.is_terminal:
            self.bar = Bar(
                TextColumn("round"),
                MofNCompleteColumn(),
                BarColumn(bar_width=30),
                TextColumn("{task.description}"),
                TimeElapsedColumn(),
                TextColumn("left"),
                TimeRemainingColumn(),
                console=self.console,
                transient=True,
            )
            self.bar.start()
            self.task = self.bar.add_task("", total=self.rounds, completed=done)

    def on_event(self, t: int, event: Event) -> None:
        if not self.quiet:
            self.console.print(f"[yellow]round {t}[/]: {escape(event.text)}", highlight=False)

    def on_round(self, record: RoundRecord) -> None:
        if self.quiet:
            return
        self.known = record.metrics or self.known
        text = round_in_words(record, self.known, self.metrics)
        if self.bar and self.task is not None:
            self.bar.update(self.task, completed=record.round, description=text)
            return
        t = record.round
        if t == self.rounds or t % max(1, self.rounds // LINES_IN_A_FILE) == 0:
            spent = time.monotonic() - self.began
            left = spent / (t - self.first) * (self.rounds - t)
            self.console.print(f"round {t}/{self.rounds}  {text}  {left:.0f} s left", highlight=False)


def show_results(results: Sequence[Result], path: Path | None, console: Console | None = None) -> None:
    """Print the closing table, what the clusters turned out to be, and where everything is."""
    console = console or make_console()
    console.print(summary_table([result.summary for result in results]))
    if any(result.summary.ari is not None for result in results):
        console.print("[dim]ARI: adjusted Rand index of the clusters with the hidden groups, 1 if they are the same[/]")
    for result in results:
        _show_notes(result.summary, console)
    for text in verdicts(results):
        console.print(escape(text), soft_wrap=True, highlight=False)
    for line in member_lines(results[-1].summary.cluster_ids, results[-1].clusters):
        console.print(escape(f"  {line}"), soft_wrap=True)
    if path:
        console.print(f"results: {escape(str(path))}", soft_wrap=True)


def _show_notes(summary: Summary, console: Console) -> None:
    """Print what puts a result in doubt, what its models give away, and how it ended."""
    for text in summary.warnings:
        console.print(f"[red]{escape(summary.method)}[/]: {escape(text)}", soft_wrap=True, highlight=False)
    privacy = [f"{text}, for the models and for any one client" for text in privacy_in_words(summary)]
    for text in privacy + ending(summary):
        console.print(f"{escape(summary.method)}: {escape(text)}", soft_wrap=True, highlight=False)


def verdicts(results: Sequence[Result]) -> list[str]:
    """Was the last run worth it, against those before it, and what the test covers; else what to install for that."""
    try:
        judge = plugins.required("coterie.results", "verdict", "the verdict on a run", "coterie-views")
    except ConfigError as missing:
        return [str(missing)]
    lines: list[str] = judge(results)
    return lines


def summary_table(summaries: Sequence[Summary]) -> Table:
    """Runs side by side."""
    rows = [summary_cells(summary) for summary in summaries]
    table = Table("method", box=None, pad_edge=False)
    titles = dict.fromkeys(title for row in rows for title in row)
    for title in titles:
        table.add_column(title, justify="right", no_wrap=True)
    for summary, row in zip(summaries, rows, strict=True):
        table.add_row(escape(summary.method), *(row.get(title, "–") for title in titles))
    return table
