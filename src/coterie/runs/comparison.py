"""Many methods on one federation with one budget: run side by side, kept in one folder, resumed where they stopped.

    DIR/comparison.json          the table as data; rewritten after every run that ends
    DIR/<method>/seed-<n>/       an ordinary run folder for each method and seed
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import torch

from coterie.data.scenarios import find_scenario
from coterie.engines.local import available_cores
from coterie.errors import ConfigError, CoterieError, RunError
from coterie.methods.base import _split_outside_brackets
from coterie.runs import api
from coterie.runs.assemble import DEFAULT_SCENARIO
from coterie.runs.config import make_config
from coterie.runs.folder import RunFolder
from coterie.runs.standing import Standing, Trial, standing
from coterie.snapshot import write_atomically

FILE = "comparison.json"


@dataclass(frozen=True)
class Job:
    """One run of a comparison: what to run, and where it is kept."""

    method: str
    seed: int
    folder: Path
    values: Mapping[str, Any]
    """The configuration but for method and seed."""

    @property
    def title(self) -> str:
        """The run in words."""
        return f"{self.method}, seed {self.seed}"


def split_methods(texts: Sequence[str]) -> list[str]:
    """The methods in lists such as `fedavg,ifca:k=4,init=random,cfl`, each once, in order.

    Commas separate methods and also the options of one. A part with `=` before any `:` is an option of the method
    before it, so the example names fedavg, `ifca:k=4,init=random` and cfl.
    """
    found: list[str] = []
    for text in texts:
        mine: list[str] = []
        for part in (part.strip() for part in _split_outside_brackets(text)):
            if "=" not in part.partition(":")[0]:
                mine.append(part)
            elif mine:
                mine[-1] += f"{',' if ':' in mine[-1] else ':'}{part}"
            else:
                raise ConfigError(f"methods {text!r}: {part!r} is an option without a method: expected name:{part}")
        found += mine
    if not found:
        raise ConfigError("no methods to compare: give --methods fedavg,cfl,…")
    return list(dict.fromkeys(found))


def compare(
    methods: Sequence[str],
    *,
    out: str | Path,
    seeds: int = 1,
    workers: int | str = "auto",
    say: Callable[[str], None] = lambda text: None,
    **options: Any,
) -> dict[str, Any]:
    """Run every method with every seed, several at once, and return the table as in `comparison.json`.

    A seed makes the same federation for every method; its first is `seed=`. The other options are those of a run and
    hold for all. Runs that are complete in the folder are not done again, others go on where they stopped. A method
    that fails says so in its row and leaves the others alone.
    """
    if seeds < 1:
        raise ConfigError(f"seeds={seeds}: expected 1 or more")
    for key in ("method", "quiet"):
        options.pop(key, None)
    config = make_config(options | {"workers": workers})
    if config.data is None:
        find_scenario(config.scenario or DEFAULT_SCENARIO)
    place, common = Path(out), config.identity()
    del common["method"], common["seed"]
    numbers = range(config.seed, config.seed + seeds)
    _claim(place, common)
    values = {key: value for key, value in options.items() if key not in {"seed", "out"}}
    jobs = [
        Job(method, seed, run_folder(place, method, seed), values) for seed in numbers for method in split_methods(methods)
    ]
    count = available_cores() if config.workers == "auto" else config.workers
    failures: dict[Job, str] = {}
    _write(place, common, jobs, failures)
    waiting = [job for job in jobs if not RunFolder(job.folder).has("summary.json")]
    if len(waiting) < len(jobs):
        say(f"{len(jobs) - len(waiting)} of {len(jobs)} runs are kept from before")
    pool = ProcessPoolExecutor(max(1, min(count, len(waiting))), mp_context=get_context("spawn"))
    try:
        futures: dict[Future[None], Job] = {pool.submit(perform, job): job for job in waiting}
        for done, future in enumerate(as_completed(futures), start=len(jobs) - len(waiting) + 1):
            job, problem = futures[future], future.exception()
            if problem is not None:
                failures[job] = _words(problem)
            say(f"{job.title}: {failures.get(job, 'done')} ({done} of {len(jobs)})")
            _write(place, common, jobs, failures)
    finally:
        pool.shutdown(wait=True, cancel_futures=True)
    if len(failures) == len(jobs):
        raise RunError(f"every method failed; {jobs[0].title}: {failures[jobs[0]]}")
    return _write(place, common, jobs, failures)


def perform(job: Job) -> None:
    """Do one run, or go on with it, in this process and with one thread: others use the other cores."""
    torch.set_num_threads(1)
    places = {key: job.values[key] for key in ("data_dir", "memory") if key in job.values}
    if RunFolder(job.folder).has("config.json"):
        api.resume(job.folder, workers=1, **places)
        return
    config = make_config({**job.values, "method": job.method, "seed": job.seed, "workers": 1})
    api.start(config, out=job.folder)


def run_folder(place: Path, method: str, seed: int) -> Path:
    """Where a run of a comparison is kept; where characters had to give way, a hash keeps two methods apart."""
    name = re.sub(r"[^A-Za-z0-9._=-]+", "-", method)
    mark = "" if name == method else "-" + hashlib.blake2b(method.encode(), digest_size=3).hexdigest()
    return place / f"{name}{mark}" / f"seed-{seed}"


def read_comparison(place: Path) -> dict[str, Any]:
    """The comparison kept in a folder, finished or not; also of plain run folders that lie side by side."""
    if (place / FILE).exists():
        kept = _read(place)
        trials = [Trial(row["method"], seed, place / folder) for row in kept["rows"] for seed, folder in _runs(row)]
        failures = {(row["method"], int(seed)): text for row in kept["rows"] for seed, text in row["failures"].items()}
        return standing(trials, failures, place).table(kept["options"])
    found = sorted(path.parent for path in place.glob("*/config.json"))
    if not found:
        raise RunError(f"{place}: neither a run folder nor a folder of runs: expected config.json or {FILE} in it")
    trials = []
    for path in found:
        config = RunFolder(path).config()
        trials.append(Trial(str(config.get("method", path.name)), int(config.get("seed", 0)), path))
    return standing(trials, {}, place).table({})


def _runs(row: Mapping[str, Any]) -> list[tuple[int, str]]:
    return [(int(seed), folder) for seed, folder in row["folders"].items()]


def _claim(place: Path, common: Mapping[str, Any]) -> None:
    """Refuse a folder that holds something else, or a comparison with other options: rows must be comparable."""
    if (place / FILE).exists():
        held = _read(place)["options"]
        for key in sorted(set(held) | set(common)):
            if held.get(key) != common.get(key):
                raise RunError(
                    f"{place}: holds a comparison with {key}={held.get(key)!r}, now it is {common.get(key)!r}: "
                    "choose another --out"
                )
    elif place.exists() and (not place.is_dir() or any(place.iterdir())):
        raise RunError(f"{place}: exists and is not a comparison's folder: choose another --out")
    place.mkdir(parents=True, exist_ok=True)


def _read(place: Path) -> dict[str, Any]:
    try:
        kept: dict[str, Any] = json.loads((place / FILE).read_text(encoding="utf-8"))
    except ValueError as problem:
        raise RunError(f"{place / FILE}: damaged ({problem}): choose another --out") from problem
    return kept


def _write(
    place: Path, common: Mapping[str, Any], jobs: Sequence[Job], failures: Mapping[Job, str]
) -> dict[str, Any]:
    trials = [Trial(job.method, job.seed, job.folder) for job in jobs]
    found: Standing = standing(trials, {(job.method, job.seed): text for job, text in failures.items()}, place)
    table = found.table(common)
    write_atomically(place / FILE, (json.dumps(table, indent=2, ensure_ascii=False) + "\n").encode())
    return table


def _words(problem: BaseException) -> str:
    """Why a run failed, in a line."""
    text = " ".join(str(problem).split())
    return text if isinstance(problem, CoterieError) else f"unexpected {type(problem).__name__}: {text}"
