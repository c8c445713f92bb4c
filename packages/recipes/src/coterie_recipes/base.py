"""A recipe repeats a paper's table or figure: cells are computed once and kept, results stand beside the paper's."""

from __future__ import annotations

import json
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from coterie.errors import ConfigError, RunError, did_you_mean
from coterie.runs import write_atomically
from coterie_studies import Cells

Scale = Literal["quick", "full"]


@dataclass(frozen=True)
class Row:
    """One number of a paper's table: our values, one per seed, beside the paper's."""

    setting: str
    measure: str
    ours: Sequence[float]
    paper: float | str | None = None

    def summary(self) -> dict[str, Any]:
        """The row with mean and standard deviation (population) of our values."""
        values = [float(value) for value in self.ours]
        return {
            "setting": self.setting,
            "measure": self.measure,
            "ours": {"mean": statistics.fmean(values), "std": statistics.pstdev(values), "values": values},
            "paper": self.paper,
        }


@dataclass
class Findings:
    """The result of a recipe: rows, notes on what differs from the paper, and figures of the rows' data."""

    rows: list[Row]
    notes: list[str] = field(default_factory=list)
    figures: dict[str, Callable[[Any], None]] = field(default_factory=dict)
    """Name to a function that draws on a matplotlib figure."""


class Study:
    """One execution of a recipe: the folder that keeps its cells, its scale and seeds, and where it runs.

    Args:
        out: folder for cells, runs and results.
        scale: "quick" (minutes) or "full" (the paper's size).
        seeds: number of seeds.
        first_seed: the first of them.
        data_dir: where data sets are; by default COTERIE_DATA.
        workers: worker processes, or "auto" for one per core.
        log: is called with a line of text for every step.
    """

    def __init__(
        self,
        out: Path,
        *,
        scale: Scale = "quick",
        seeds: int = 1,
        first_seed: int = 0,
        data_dir: str | None = None,
        workers: int | Literal["auto"] = "auto",
        log: Callable[[str], None] = lambda text: None,
    ) -> None:
        self.out, self.scale, self.data_dir, self.workers, self.log = out, scale, data_dir, workers, log
        self.seeds = range(first_seed, first_seed + seeds)
        self._cells = Cells(out / "cells", workers=workers, log=log)

    @property
    def full(self) -> bool:
        """Whether this is the paper's own size."""
        return self.scale == "full"

    @property
    def computed(self) -> int:
        """Cells that were computed, not reused."""
        return self._cells.computed

    def cell(self, key: str, compute: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        """The result of `compute`, from the folder where an earlier attempt has computed it already."""
        return self._cells.one(key, compute)

    def cells(self, jobs: Mapping[str, Callable[[], dict[str, Any]]]) -> dict[str, dict[str, Any]]:
        """The results of many small jobs by key, several at once on the cores: see `coterie_studies.Cells.many`."""
        return self._cells.many(jobs)


@dataclass(frozen=True)
class Recipe:
    """A table or figure by name."""

    name: str
    summary: str
    run: Callable[[Study], Findings]


_RECIPES: dict[str, Recipe] = {}


def recipe(name: str, summary: str) -> Callable[[Callable[[Study], Findings]], Callable[[Study], Findings]]:
    """Function decorator that registers a recipe under `name`."""

    def register(run: Callable[[Study], Findings]) -> Callable[[Study], Findings]:
        _RECIPES[name] = Recipe(name, summary, run)
        return run

    return register


def list_recipes() -> tuple[Recipe, ...]:
    """All recipes, sorted by name."""
    return tuple(_RECIPES[name] for name in sorted(_RECIPES))


def find_recipe(name: str) -> Recipe:
    """The recipe of that name; ConfigError with a suggestion where there is none."""
    if name not in _RECIPES:
        raise ConfigError(f"unknown recipe {name!r}: {did_you_mean(name, _RECIPES)}")
    return _RECIPES[name]


def reproduce(name: str, study: Study) -> dict[str, Any]:
    """Run a recipe and write `results.json`, `table.md` and its figures to the study's folder."""
    chosen = find_recipe(name)
    _claim(study, name)
    findings = chosen.run(study)
    results = {
        "recipe": name,
        "summary": chosen.summary,
        "scale": study.scale,
        "seeds": list(study.seeds),
        "rows": [row.summary() for row in findings.rows],
        "notes": findings.notes,
    }
    write_atomically(study.out / "results.json", (json.dumps(results, indent=2, ensure_ascii=False) + "\n").encode())
    write_atomically(study.out / "table.md", table_markdown(results).encode())
    for figure_name, draw in findings.figures.items():
        _draw(study, figure_name, draw)
    return results


def _claim(study: Study, name: str) -> None:
    """Mark the folder as this recipe's, or raise where it holds cells of another recipe or scale."""
    identity = {"recipe": name, "scale": study.scale}
    mark = study.out / "recipe.json"
    if mark.exists():
        try:
            held = json.loads(mark.read_text())
        except ValueError as problem:
            raise RunError(f"{mark}: damaged ({problem}): choose another folder with --out") from problem
        if held != identity:
            holds = f"{held.get('recipe')} at scale {held.get('scale')}"
            raise RunError(f"{study.out}: holds {holds}: choose another folder with --out")
    elif study.out.is_dir() and any(study.out.iterdir()):
        raise RunError(f"{study.out}: the folder is not empty and belongs to no recipe: choose another one with --out")
    study.out.mkdir(parents=True, exist_ok=True)
    write_atomically(mark, json.dumps(identity).encode())


def _draw(study: Study, name: str, draw: Callable[[Any], None]) -> None:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 4.5), layout="constrained")
    draw(figure)
    for ending in ("png", "svg"):
        figure.savefig(study.out / f"{name}.{ending}", dpi=150)


def table_markdown(results: dict[str, Any]) -> str:
    """The results as a Markdown table, ours beside the paper's."""
    lines = [f"# {results['recipe']}: {results['summary']}", ""]
    lines += [f"Scale {results['scale']}, seeds {', '.join(map(str, results['seeds']))}.", ""]
    lines += ["| setting | measure | ours (mean ± std) | paper |", "|---|---|---|---|"]
    for row in results["rows"]:
        ours = row["ours"]
        spread = f" ± {ours['std']:.3g}" if len(ours["values"]) > 1 else ""
        paper = "" if row["paper"] is None else row["paper"]
        lines.append(f"| {row['setting']} | {row['measure']} | {ours['mean']:.4g}{spread} | {paper} |")
    lines += ["", *(f"* {note}" for note in results["notes"])]
    return "\n".join(lines) + "\n"
