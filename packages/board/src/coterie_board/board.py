"""The board: methods × federations × seeds, all tuned alike, every run kept as soon as it is done."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Literal

from coterie.errors import RunError
from coterie.runs import write_atomically
from coterie_board.cell import Cell, compute
from coterie_board.federations import BoardFederation
from coterie_board.methods import check_method, row_name, takes_part, variants
from coterie_board.tuning import Trial, over_seeds, search
from coterie_studies import Cells

FORMAT = 2
"""1 was the former protocol: one budget of rounds and bytes, a fixed grid of step sizes."""
TUNING_SEED = 1000
"""The first seed of tuning runs; final runs have others."""


@dataclass
class Board:
    """What was run and what came of it; as JSON it is all that the pages are made of."""

    seeds: list[int]
    federations: list[BoardFederation]
    methods: list[str]
    """Rows by their names."""
    results: dict[str, dict[str, dict[str, Any]]] = field(default_factory=dict)
    """By federation and method: `trials`, `choice` (its number) and `runs`, one per seed."""
    about: dict[str, Any] = field(default_factory=dict)
    """Command, commit, machine, date."""
    notes: list[str] = field(default_factory=list)
    """Sentences of people who looked at the results, written into the file by hand; the pages print them."""

    def to_json(self) -> dict[str, Any]:
        """As plain values."""
        return {
            "format": FORMAT,
            "about": self.about,
            "notes": self.notes,
            "seeds": self.seeds,
            "tuning": {"seed": TUNING_SEED},
            "federations": [federation.to_json() for federation in self.federations],
            "methods": self.methods,
            "results": self.results,
        }

    @classmethod
    def read(cls, path: Path) -> Board:
        """The board in a file; RunError where it holds none."""
        try:
            values = json.loads(path.read_text(encoding="utf-8"))
            if values["format"] != FORMAT:
                raise ValueError(f"format {values['format']}, expected {FORMAT}")
            federations = [BoardFederation.from_json(one) for one in values["federations"]]
            kept = {key: values[key] for key in ("seeds", "methods", "results", "about", "notes")}
            return cls(federations=federations, **kept)
        except FileNotFoundError:
            raise RunError(f"{path}: no such file: expected a leaderboard.json") from None
        except (OSError, ValueError, KeyError, TypeError) as problem:
            raise RunError(
                f"{path}: not a board ({problem!r}): expected a leaderboard.json of this version"
            ) from problem

    def write(self, path: Path) -> None:
        """Write the file: a line for every federation and method, so that a change is a readable difference."""
        values = self.to_json()
        results = values.pop("results")
        head = json.dumps(values, indent=1, ensure_ascii=False)[:-2]
        parts = []
        for federation, rows in results.items():
            lines = ",\n".join(f"   {json.dumps(row)}: {json.dumps(rows[row], ensure_ascii=False)}" for row in rows)
            parts.append(f"  {json.dumps(federation)}: {{\n{lines}\n  }}")
        body = ",\n".join(parts)
        write_atomically(path, f'{head},\n "results": {{\n{body}\n }}\n}}\n'.encode())

    def complete(self) -> list[BoardFederation]:
        """The federations on which all rows are done."""
        return [
            one
            for one in self.federations
            if all(row in self.results.get(one.name, {}) for row in self.methods if takes_part(row, one))
        ]


def run_board(
    methods: Sequence[str],
    federations: Sequence[BoardFederation],
    seeds: Sequence[int],
    out: Path,
    *,
    base: Board | None = None,
    only: Sequence[str] = (),
    data_dir: str | None = None,
    workers: int | Literal["auto"] = "auto",
    log: Callable[[str], None] = lambda text: None,
    keep: Callable[[Board], None] = lambda board: None,
) -> Board:
    """Run what is missing, federation by federation.

    Args:
        methods: names, names with options, or `package.module:Class`.
        federations: where they are run.
        seeds: of the final runs, the same for every method.
        out: the folder that keeps the cells.
        base: a board whose results are taken as they are.
        only: names of those federations that are run now; all where none are named.
        data_dir: where data sets are; by default COTERIE_DATA.
        workers: runs at once.
        log: is given a line for every step.
        keep: is given the board whenever a federation is complete.

    Raises:
        ConfigError: there is no such method.
        RunError: the folder holds cells of other seeds or federations.
    """
    for method in methods:
        check_method(method)
    _claim(out, federations, seeds)
    rows = {row_name(method): method for method in methods}
    names = list(dict.fromkeys([*(base.methods if base else []), *rows]))
    board = Board(list(seeds), list(federations), names)
    if base is not None:
        board.results = {name: dict(found) for name, found in base.results.items()}
        board.about, board.notes = dict(base.about), list(base.notes)
    with Cells(out / "cells", workers=workers, log=log) as cells:
        for number, entry in enumerate(federations, start=1):
            if only and entry.name not in only:
                continue
            found = board.results.setdefault(entry.name, {})
            missing = {row: method for row, method in rows.items() if row not in found and takes_part(row, entry)}
            log(f"{entry.name}, {number} of {len(federations)}: {len(missing)} methods to run")
            if not missing:
                continue
            found.update(_federation(entry, missing, seeds, cells, partial(Cell, entry, data_dir=data_dir)))
            found.update({row: found.pop(row) for row in names if row in found})  # in the order of the rows
            keep(board)
    return board


def _federation(
    entry: BoardFederation, rows: Mapping[str, str], seeds: Sequence[int], cells: Cells, cell: Callable[..., Cell]
) -> dict[str, dict[str, Any]]:
    """Tune every method on validation data, then do its final runs with what it chose."""
    trials, chosen = _tuned(entry, rows, cells, cell)
    final = cells.many(
        {
            f"{entry.name} {row} seed {seed}": partial(
                compute, cell(method=rows[row], trial=choice, seed=seed, tuning=False)
            )
            for row, choice in chosen.items()
            if choice is not None
            for seed in seeds
        }
    )
    return {
        row: {
            "trials": [
                {"options": trial.options, "lr": trial.rate(entry.rate), **_short(one)}
                for trial, one in trials[row].items()
            ],
            "choice": None if choice is None else list(trials[row]).index(choice),
            "runs": [] if choice is None else [{"seed": s, **final[f"{entry.name} {row} seed {s}"]} for s in seeds],
        }
        for row, choice in chosen.items()
    }


def _tuned(
    entry: BoardFederation, rows: Mapping[str, str], cells: Cells, cell: Callable[..., Cell]
) -> tuple[dict[str, dict[Trial, dict[str, Any]]], dict[str, Trial | None]]:
    """All trials of every method, and the one it chose; the trials that the methods ask for next are run together."""
    searches = {row: search(variants(method), higher=entry.higher_is_better) for row, method in rows.items()}
    asked = {row: next(one) for row, one in searches.items()}
    tried: dict[str, dict[Trial, dict[str, Any]]] = {row: {} for row in rows}
    chosen: dict[str, Trial | None] = {}
    draws = range(TUNING_SEED, TUNING_SEED + entry.tuning_seeds)
    while asked:
        keys = {
            (row, trial, seed): f"{entry.name} {row} {trial.options or 'default'} step {trial.step} seed {seed}"
            for row, trials in asked.items()
            for trial in trials
            for seed in draws
        }
        jobs = {
            key: partial(compute, cell(method=rows[row], trial=trial, seed=seed, tuning=True))
            for (row, trial, seed), key in keys.items()
        }
        found = cells.many(jobs)
        answers = {
            row: [over_seeds([found[keys[row, trial, seed]] for seed in draws]) for trial in trials]
            for row, trials in asked.items()
        }
        asked, before = {}, asked
        for row, trials in before.items():
            tried[row] |= zip(trials, answers[row], strict=True)
            try:
                asked[row] = searches[row].send(answers[row])
            except StopIteration as done:
                chosen[row] = done.value
    return tried, {row: chosen[row] for row in rows}


def _short(found: Mapping[str, Any]) -> dict[str, Any]:
    """What is kept of a trial."""
    return {key: found[key] for key in ("value", "failed", "cpu") if key in found}


def _claim(out: Path, federations: Sequence[BoardFederation], seeds: Sequence[int]) -> None:
    """Mark the folder with what its cells are of, or raise where it holds other cells."""
    identity: dict[str, Any] = {
        "seeds": list(seeds),
        "tuning": TUNING_SEED,
        "federations": {one.name: one.to_json() for one in federations},
    }
    mark = out / "board.json"
    if mark.exists():
        try:
            held = json.loads(mark.read_text())
        except ValueError as problem:
            raise RunError(f"{mark}: damaged ({problem}): choose another folder with --out") from problem
        both = {name: one for name, one in identity["federations"].items() if name in held["federations"]}
        other = [name for name, one in both.items() if one != held["federations"][name]]
        if other or any(held[key] != identity[key] for key in ("seeds", "tuning")):
            what = f"{other[0]} of another size" if other else f"seeds {held['seeds']}"
            raise RunError(f"{out}: holds cells of {what}: choose another folder with --out")
        identity["federations"] = held["federations"] | identity["federations"]
    elif out.is_dir() and any(out.iterdir()):
        raise RunError(f"{out}: the folder is not empty and holds no board: choose another one with --out")
    out.mkdir(parents=True, exist_ok=True)
    write_atomically(mark, json.dumps(identity).encode())
