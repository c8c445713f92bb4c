"""One execution of the benchmark in a folder: rows measured one by one and written as soon as they are done."""

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
from coterie.bench.findings import Entry, Setting
from coterie.bench.scaling import draw_growth
from coterie.bench.table import is_busy, markdown
from coterie.engines.bfloat16 import bfloat16_support
from coterie.engines.local import available_cores
from coterie.errors import RunError
from coterie.snapshot import write_atomically


def run_bench(entries: Sequence[Entry], setting: Setting, out: Path, *, resume: bool = False) -> dict[str, Any]:
    """Measure the rows; `table.md` and `bench.json` are brought up to date after each.

    With `resume`, rows that the folder already holds from the same setting are not measured again.
    """
    machine = describe_machine(setting)
    if is_busy(machine):
        setting.say(f"the machine is busy (load {machine['load']}): threads that wait for cores make ratios flattering")
    (out / "rows").mkdir(parents=True, exist_ok=True)
    results: dict[str, Any] = {"scale": setting.scale, "repeat": setting.repeat, "machine": machine, "rows": {}}
    for number, entry in enumerate(entries, 1):
        path = out / "rows" / f"{entry.name}.json"
        kept = _kept(path, setting) if resume else None
        where = f"{entry.name} ({number} of {len(entries)})"
        if kept is None:
            setting.say(f"{where}: {entry.title}")
            kept = dataclasses.asdict(entry.measure(_telling_for(setting, entry.name)))
            _write(path, {"setting": identity(setting), "finding": kept})
        else:
            setting.say(f"{where}: kept from before")
        results["rows"][entry.name] = kept
        _write(out / "bench.json", results)
        write_atomically(out / "table.md", markdown(results).encode())
        if "slope" in kept["details"] and not draw_growth(kept["details"], out / "growth.png"):
            setting.say("growth: no plot, it needs matplotlib (pip install 'coterie[plot]')")
    return results


def _telling_for(setting: Setting, name: str) -> Setting:
    """The setting with the row's name before everything it says."""

    def say(text: str) -> None:
        setting.say(f"{name}: {text}")

    return dataclasses.replace(setting, say=say)


def identity(setting: Setting) -> dict[str, Any]:
    """What a kept row must have been measured with to count again."""
    values = {field.name: getattr(setting, field.name) for field in dataclasses.fields(setting) if field.name != "say"}
    return {**values, "torch": torch.__version__, "coterie": __version__, "threads": torch.get_num_threads()}


def describe_machine(setting: Setting) -> dict[str, Any]:
    """What the seconds depend on."""
    capabilities = torch.cpu.get_capabilities()
    return {
        "cores": available_cores(),
        "workers": setting.workers,
        "threads": torch.get_num_threads(),
        "processor": str(capabilities.get("cpu_name") or platform.processor() or platform.machine()),
        "bfloat16": bfloat16_support() == "native",
        "torch": torch.__version__,
        "coterie": __version__,
        "python": platform.python_version(),
        "load": round(os.getloadavg()[0], 2) if hasattr(os, "getloadavg") else None,
    }


def _kept(path: Path, setting: Setting) -> dict[str, Any] | None:
    if not path.exists():
        return None
    try:
        held = json.loads(path.read_text())
        same = held["setting"] == identity(setting)
        finding: dict[str, Any] = held["finding"]
    except (ValueError, KeyError, TypeError) as problem:
        raise RunError(f"{path}: damaged ({problem}): delete it and run again") from problem
    return finding if same else None


def _write(path: Path, content: dict[str, Any]) -> None:
    write_atomically(path, (json.dumps(content, indent=2, ensure_ascii=False) + "\n").encode())
