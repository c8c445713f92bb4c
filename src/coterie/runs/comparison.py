"""Many methods on one federation with one budget: run side by side, kept in one folder, resumed where they stopped.

DIR/comparison.json          the table as data; rewritten after every run that ends
DIR/<method>/seed-<n>/       an ordinary run folder for each method and seed
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import signal
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing import active_children, get_context, parent_process
from pathlib import Path
from typing import Any

import torch
from pydantic.dataclasses import dataclass as pydantic_dataclass

from coterie.data.scenarios import find_scenario
from coterie.engines.local import available_cores
from coterie.errors import ConfigError, CoterieError, RunError
from coterie.methods.base import make_method
from coterie.methods.options import split_outside_brackets
from coterie.runs import api
from coterie.runs.config import DEFAULT_SCENARIO, make_config
from coterie.runs.folder import RunFolder
from coterie.runs.ranking import ComparedRun, rank
from coterie.runs.records import from_json, parse_json
from coterie.snapshot import write_atomically

FILE = "comparison.json"


@dataclass(frozen=True)
class ComparisonJob:
    """One run of a comparison, and its configuration but for method and seed."""

    trial: ComparedRun
    values: Mapping[str, Any]


@pydantic_dataclass(frozen=True)
class KeptRow:
    """A method of a comparison in its file: where its runs are, and which failed, by seed."""

    method: str
    folders: dict[int, str]
    failures: dict[int, str]


@pydantic_dataclass(frozen=True)
class KeptComparison:
    """What is read back from a comparison's file; the measures are taken from the runs themselves."""

    options: dict[str, Any]
    rows: list[KeptRow]


def split_methods(texts: Sequence[str]) -> list[str]:
    """The methods in lists such as `fedavg,ifca:k=4,init=random,cfl`, each once, in order.

    Commas separate methods and also the options of one. A part with `=` before any `:` is an option of the method
    before it, so the example names fedavg, `ifca:k=4,init=random` and cfl.
    """
    found: list[str] = []
    for text in texts:
        mine: list[str] = []
        for part in (part.strip() for part in split_outside_brackets(text)):
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
    if "method" in options:
        raise ConfigError("method goes with one run: a comparison takes methods=[…]")
    config = make_config(options | {"workers": workers})
    if config.data is None:
        find_scenario(config.scenario or DEFAULT_SCENARIO)
    place, common = Path(out), config.identity()
    del common["method"], common["seed"]
    numbers = range(config.seed, config.seed + seeds)
    _claim(place, common)
    values = {key: value for key, value in options.items() if key != "seed"}
    trials = [ComparedRun(method, seed, run_folder(place, method, seed)) for seed in numbers for method in methods]
    waiting = [trial for trial in trials if not RunFolder(trial.folder).has("summary.json")]
    done, failures = len(trials) - len(waiting), _unmakable(waiting)
    _write(place, common, trials, failures)
    if done:
        say(f"{done} of {len(trials)} runs are kept from before")
    for method, why in {method: why for (method, _), why in failures.items()}.items():
        say(f"{method}: {why}")
    waiting = [trial for trial in waiting if (trial.method, trial.seed) not in failures]
    count = available_cores() if config.workers == "auto" else config.workers
    pool = ProcessPoolExecutor(max(1, min(count, len(waiting))), mp_context=get_context("spawn"), initializer=_begin)
    others = set(active_children())
    with ignore_sigint():
        futures = {pool.submit(perform, ComparisonJob(trial, values)): trial for trial in waiting}
    try:
        for ended, future in enumerate(as_completed(futures), start=len(trials) - len(waiting) + 1):
            trial, problem = futures[future], future.exception()
            if problem is not None:
                failures[trial.method, trial.seed] = _words(problem)
            told = failures.get((trial.method, trial.seed), "done")
            say(f"{trial.method}, seed {trial.seed}: {told} ({ended} of {len(trials)})")
            _write(place, common, trials, failures)
    except KeyboardInterrupt:
        for child in set(active_children()) - others:
            child.terminate()
        raise
    finally:
        pool.shutdown(wait=True, cancel_futures=True)
    if len(failures) == len(trials):
        raise RunError(f"every method failed; {trials[0].method}: {failures[trials[0].method, trials[0].seed]}")
    return _write(place, common, trials, failures)


@contextmanager
def ignore_sigint() -> Iterator[None]:
    """Processes that are started meanwhile do not hear Ctrl-C: the one that started them does, and ends them."""
    if threading.current_thread() is not threading.main_thread():  # no other thread may say so
        yield
        return
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _begin() -> None:
    """Compute with one thread, others use the other cores; and end when the process that started this one is killed."""
    torch.set_num_threads(1)
    parent = parent_process()
    assert parent is not None

    def follow() -> None:
        parent.join()
        os._exit(1)  # as good as a kill, which a run folder survives

    threading.Thread(target=follow, daemon=True).start()


def perform(job: ComparisonJob) -> None:
    """Do one run, or resume it, in this process."""
    trial, places = job.trial, {key: job.values[key] for key in ("data_dir", "memory") if key in job.values}
    if RunFolder(trial.folder).has("config.json"):
        api.resume(trial.folder, workers=1, progress=False, **places)
        return
    config = make_config({**job.values, "method": trial.method, "seed": trial.seed, "workers": 1})
    api.start(config, out=trial.folder)


def _unmakable(trials: Sequence[ComparedRun]) -> dict[tuple[str, int], str]:
    """Methods that do not exist or have other options, found before any process is started for them."""
    failures = {}
    for trial in trials:
        try:
            make_method(trial.method)
        except ConfigError as problem:
            failures[trial.method, trial.seed] = _words(problem)
    return failures


def run_folder(place: Path, method: str, seed: int) -> Path:
    """Where a run of a comparison is kept; where characters had to give way, a hash keeps two methods apart."""
    name = re.sub(r"[^A-Za-z0-9._=-]+", "-", method)
    mark = "" if name == method else "-" + hashlib.blake2b(method.encode(), digest_size=3).hexdigest()
    return place / f"{name}{mark}" / f"seed-{seed}"


def read_comparison(place: Path) -> dict[str, Any]:
    """The comparison kept in a folder, finished or not; also of plain run folders that lie side by side."""
    if (place / FILE).exists():
        kept = _read(place)
        trials = [
            ComparedRun(row.method, seed, place / folder) for row in kept.rows for seed, folder in row.folders.items()
        ]
        failures = {(row.method, seed): text for row in kept.rows for seed, text in row.failures.items()}
        return rank(trials, failures, place).table(kept.options)
    found = sorted(path.parent for path in place.glob("*/config.json"))
    if not found:
        raise RunError(f"{place}: neither a run folder nor a folder of runs: expected config.json or {FILE} in it")
    trials = []
    for path in found:
        config = RunFolder(path).config()
        trials.append(ComparedRun(str(config.get("method", path.name)), int(config.get("seed", 0)), path))
    return rank(trials, {}, place).table({})


def _claim(place: Path, common: Mapping[str, Any]) -> None:
    """Refuse a folder that holds something else, or a comparison with other options: rows must be comparable."""
    if (place / FILE).exists():
        held = _read(place).options
        for key in sorted(set(held) | set(common)):
            if held.get(key) != common.get(key):
                raise RunError(
                    f"{place}: holds a comparison with {key}={held.get(key)!r}, now it is {common.get(key)!r}: "
                    "choose another --out"
                )
    elif place.exists() and (not place.is_dir() or any(place.iterdir())):
        raise RunError(f"{place}: exists and is not a comparison's folder: choose another --out")
    place.mkdir(parents=True, exist_ok=True)


def _read(place: Path) -> KeptComparison:
    try:
        kept = parse_json((place / FILE).read_bytes())
    except (OSError, ValueError) as problem:
        raise RunError(f"{place / FILE}: damaged ({problem}): choose another --out") from problem
    return from_json(KeptComparison, kept, str(place / FILE))


def _write(
    place: Path, common: Mapping[str, Any], trials: Sequence[ComparedRun], failures: Mapping[tuple[str, int], str]
) -> dict[str, Any]:
    table = rank(trials, failures, place).table(common)
    write_atomically(place / FILE, (json.dumps(table, indent=2, ensure_ascii=False) + "\n").encode())
    return table


def _words(problem: BaseException) -> str:
    """Why a run failed, in a line."""
    text = " ".join(str(problem).split())
    return text if isinstance(problem, CoterieError) else f"unexpected {type(problem).__name__}: {text}"
