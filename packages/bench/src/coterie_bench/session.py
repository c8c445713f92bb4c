"""One execution of the benchmark in a folder: rows are measured one by one and written as soon as they are done."""

from __future__ import annotations

import dataclasses
import json
import os
import platform
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from coterie import __version__
from coterie.engines import available_cores
from coterie.errors import RunError
from coterie.runs import write_atomically
from coterie.trainers import bfloat16_support
from coterie_bench.findings import BenchOptions, Entry
from coterie_bench.scaling import draw_growth
from coterie_bench.table import is_busy, markdown


def run_bench(entries: Sequence[Entry], options: BenchOptions, out: Path, *, resume: bool = False) -> dict[str, Any]:
    """Measure the rows; `table.md` and `bench.json` are updated after each.

    With `resume`, rows that the folder holds from the same options and versions are not measured again.
    """
    machine = describe_machine(options)
    if is_busy(machine):
        options.log(f"the machine is busy (load {machine['load']}): the plain loop's threads wait, ratios are too high")
    (out / "rows").mkdir(parents=True, exist_ok=True)
    results: dict[str, Any] = {"scale": options.scale, "repeat": options.repeat, "machine": machine, "rows": {}}
    for number, entry in enumerate(entries, 1):
        path = out / "rows" / f"{entry.name}.json"
        kept = _kept(path, options) if resume else None
        where = f"{entry.name} ({number} of {len(entries)})"
        if kept is None:
            options.log(f"{where}: {entry.title}")
            kept = dataclasses.asdict(entry.measure(_with_prefix(options, entry.name)))
            _write(path, {"options": identity(options), "finding": kept})
        else:
            options.log(f"{where}: reused")
        results["rows"][entry.name] = kept
        _write(out / "bench.json", results)
        write_atomically(out / "table.md", markdown(results).encode())
        if "slope" in kept["details"]:
            draw_growth(kept["details"], out / "growth.png")
    return results


def _with_prefix(options: BenchOptions, name: str) -> BenchOptions:
    """The options with the row's name before every line that is logged."""

    def log(text: str) -> None:
        options.log(f"{name}: {text}")

    return dataclasses.replace(options, log=log)


def identity(options: BenchOptions) -> dict[str, Any]:
    """What a row must have been measured with to be reused."""
    values = {field.name: getattr(options, field.name) for field in dataclasses.fields(options) if field.name != "log"}
    return {**values, "torch": torch.__version__, "coterie": __version__, "threads": torch.get_num_threads()}


def describe_machine(options: BenchOptions) -> dict[str, Any]:
    """What the seconds depend on: cores, workers, threads, processor, versions and load."""
    capabilities = torch.cpu.get_capabilities()
    return {
        "cores": available_cores(),
        "workers": options.workers,
        "threads": torch.get_num_threads(),
        "processor": str(capabilities.get("cpu_name") or platform.processor() or platform.machine()),
        "bfloat16": bfloat16_support() == "native",
        "torch": torch.__version__,
        "coterie": __version__,
        "python": platform.python_version(),
        "load": round(os.getloadavg()[0], 2) if hasattr(os, "getloadavg") else None,
    }


def _kept(path: Path, options: BenchOptions) -> dict[str, Any] | None:
    if not path.exists():
        return None
    try:
        held = json.loads(path.read_text())
        same = held["options"] == identity(options)
        finding: dict[str, Any] = held["finding"]
    except (ValueError, KeyError, TypeError) as problem:
        raise RunError(f"{path}: damaged ({problem}): delete it and run again") from problem
    return finding if same else None


def _write(path: Path, content: dict[str, Any]) -> None:
    write_atomically(path, (json.dumps(content, indent=2, ensure_ascii=False) + "\n").encode())
