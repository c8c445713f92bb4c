"""Many methods on one federation with one budget: run side by side, kept in one folder, resumed where they stopped.

DIR/comparison.json          the table as data; rewritten after every run that ends
DIR/<method>/seed-<n>/       an ordinary run folder for each method and seed
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from pydantic.dataclasses import dataclass as pydantic_dataclass

from coterie.data import Defaults, find_scenario
from coterie.engines import available_cores, pool_start_method
from coterie.errors import ConfigError, CoterieError, RunError
from coterie.methods import make_method, split_outside_brackets
from coterie.methods.base import published_spec
from coterie.runs import (
    DEFAULT_SCENARIO,
    RunConfig,
    RunFolder,
    fingerprint,
    make_architecture,
    make_config,
    make_federation,
    overlay,
    write_atomically,
)
from coterie.runs.config import with_published
from coterie.runs.records import from_json, parse_json
from coterie_studies.budgets import LIMITS, Budget, check_budget, spent
from coterie_studies.differences import Test, check_test, find_baseline
from coterie_studies.ranking import ComparedRun, rank, tested
from coterie_studies.side_by_side import (
    NOTHING,
    ComparisonJob,
    Ended,
    Given,
    performed_here,
    performed_in_pool,
)

FILE = "comparison.json"
DEFAULTS = {key: field.default for key, field in RunConfig.model_fields.items()}


@pydantic_dataclass(frozen=True)
class KeptRow:
    """A method of a comparison in its file: where its runs are, and which failed, by seed."""

    method: str
    folders: dict[int, str]
    failures: dict[int, str]


@pydantic_dataclass(frozen=True)
class KeptBaseline:
    """What the others were measured against, and whether it was named (or is the best)."""

    method: str | None
    named: bool


@pydantic_dataclass(frozen=True)
class KeptComparison:
    """What is read back from a comparison's file; the measures are taken from the runs themselves."""

    options: dict[str, Any]
    rows: list[KeptRow]
    baseline: KeptBaseline | None = None
    test: str = "t"


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


def run_methods(
    methods: Sequence[str],
    *,
    out: str | Path,
    seeds: int = 1,
    workers: int | str = "auto",
    baseline: str | None = None,
    test: str = "t",
    equal: str = "rounds",
    say: Callable[[str], None] = lambda text: None,
    given: Given = NOTHING,
    **options: Any,
) -> dict[str, Any]:
    """Run every method with every seed, several at once, and return the table as in `comparison.json`.

    With `equal` of bytes or passes a run also ends when it has spent as much as `max_bytes` or `max_passes` says; where
    that is not given, as much as the first method does in its rounds.

    A seed makes the same federation for every method; its first is `seed=`. The other options are those of a run and
    hold for all. Methods, options, data and folder are checked before anything is trained. Runs that are complete in
    the folder are not done again, others go on where they stopped; rows of other methods and seeds stay, and options
    that are not given are theirs. A run that fails says so in its row and leaves the others alone.
    """
    if seeds < 1:
        raise ConfigError(f"seeds={seeds}: expected 1 or more")
    if "method" in options:
        raise ConfigError("method goes with one run: a comparison takes methods=[…]")
    chosen, place, budget = check_test(test), Path(out), check_budget(equal)
    methods, options = _as_published(methods, options)
    values, kept = _agreed(place, options, say)
    config = make_config(values | {"workers": workers})
    common = {key: value for key, value in config.identity().items() if key not in ("method", "seed")}
    common |= _fingerprints(given)
    trials = _trials(methods, range(config.seed, config.seed + seeds), place)
    waiting = [trial for trial in trials if not RunFolder(trial.folder).has("summary.json")]
    _check(methods, config, given, place, common, kept, waiting=bool(waiting))
    against = _baseline_to_use(baseline, methods, kept)
    place.mkdir(parents=True, exist_ok=True)
    failures: dict[tuple[str, int], str] = {}
    record = partial(_write, place, common, trials, failures)
    record()
    done = len(trials) - len(waiting)
    if done:
        say(f"{done} of {len(trials)} runs are kept from before")
    shared = {key: value for key, value in values.items() if key != "seed"}
    limit = LIMITS.get(budget)
    sets_budget = [trial for trial in waiting if limit and limit not in shared and trial.method == methods[0]]
    for part in (sets_budget, [trial for trial in waiting if trial not in sets_budget]):
        jobs = [ComparisonJob(trial, shared | _budget(trial, trials, shared, budget)) for trial in part]
        for trial, problem in _performed(jobs, config.workers, given):
            done += 1
            if problem is not None:
                failures[trial.method, trial.seed] = _words(problem)
            outcome = failures.get((trial.method, trial.seed), "done")
            say(f"{trial.method}, seed {trial.seed}: {outcome} ({done} of {len(trials)})")
            record()
    if len(failures) == len(trials):
        raise RunError(f"every method failed; {trials[0].method}: {failures[trials[0].method, trials[0].seed]}")
    return record(against=against, test=chosen)


def _budget(
    trial: ComparedRun, trials: Sequence[ComparedRun], values: Mapping[str, Any], budget: Budget
) -> dict[str, Any]:
    """What a run may spend: as much as the first method did with the same seed, unless a limit is given."""
    first = next(one for one in trials if one.seed == trial.seed)
    if budget == "rounds" or LIMITS[budget] in values or trial == first:
        return {}
    summary = RunFolder(first.folder).summary()
    amount = None if summary is None else spent(summary)[budget]
    if not amount:
        raise RunError(f"equal={budget!r}: {first.method} spent none with seed {first.seed}: give {LIMITS[budget]}")
    return {LIMITS[budget]: amount}


def _as_published(methods: Sequence[str], options: Mapping[str, Any]) -> tuple[list[str], dict[str, Any]]:
    """The methods as published where that is asked for, and the options with a table's settings, which hold for all."""
    given = {key: value for key, value in options.items() if value is not None and key != "as_published"}
    named = [published_spec(method) for method in methods] if options.get("as_published") else list(methods)
    tables = {method: with_published({"method": method, **given}) for method in named}
    settings = {method: {k: v for k, v in found.items() if k != "method"} for method, found in tables.items()}
    changed = {method: found for method, found in settings.items() if found != given}
    first = next(iter(changed), None)
    if other := next((method for method in changed if changed[method] != changed[first or ""]), None):
        raise ConfigError(f"{first} and {other} name tables with different settings: compare the methods of one table")
    return named, changed[first] if first else given


def _trials(methods: Sequence[str], seeds: Sequence[int], place: Path) -> list[ComparedRun]:
    """Every method with every seed, the first seed first."""
    return [ComparedRun(method, seed, run_folder(place, method, seed)) for seed in seeds for method in methods]


def _baseline_to_use(baseline: str | None, methods: Sequence[str], kept: KeptComparison | None) -> str | None:
    """The baseline that was named, here or before in the folder; None: the best. ConfigError for an unknown one."""
    held = [row.method for row in kept.rows] if kept else []
    if baseline is not None:
        find_baseline(baseline, [*methods, *held])
        return baseline
    return kept.baseline.method if kept and kept.baseline and kept.baseline.named else None


def _performed(jobs: Sequence[ComparisonJob], workers: int | str, given: Given) -> Iterator[Ended]:
    """Do the runs, in processes side by side where there are several and the objects of Python reach them."""
    count = available_cores() if workers == "auto" else int(workers)
    method = pool_start_method()
    if count == 1 or len(jobs) <= 1 or (given and method != "fork"):
        return performed_here(jobs, given)
    return performed_in_pool(jobs, count, given, method)


def _agreed(
    place: Path, options: Mapping[str, Any], say: Callable[[str], None]
) -> tuple[dict[str, Any], KeptComparison | None]:
    """The options with those of the folder where none was given, and what the folder holds."""
    if not (place / FILE).exists():
        if place.exists() and (not place.is_dir() or any(place.iterdir())):
            raise RunError(f"{place}: exists and is not a comparison's folder: choose another --out")
        return dict(options), None
    kept = _read(place)
    given = {key: value for key, value in options.items() if value is not None}
    kept_values = {key: value for key, value in kept.options.items() if key in DEFAULTS and key not in given}
    held = {key: value for key, value in kept_values.items() if value != DEFAULTS[key]}
    if held:
        say("as before in this folder: " + ", ".join(f"{key}={value}" for key, value in held.items()))
    return overlay(held, given), kept


def _check(
    methods: Sequence[str],
    config: RunConfig,
    given: Given,
    place: Path,
    common: Mapping[str, Any],
    kept: KeptComparison | None,
    *,
    waiting: bool,
) -> None:
    """Find what is wrong before anything is trained: methods, options that conflict with the folder's, data, model."""
    _check_methods(methods)
    if config.data is None and given.federation is None:
        find_scenario(config.scenario or DEFAULT_SCENARIO)
    if kept is not None:
        _check_same_options(kept.options, common, place)
    if waiting:
        federation, scenario = (given.federation, Defaults()) if given.federation else make_federation(config)
        make_architecture(given.model or config.model or scenario.model, federation)


def _check_methods(methods: Sequence[str]) -> None:
    """ConfigError that names everything that is wrong with the methods."""
    problems = []
    for method in methods:
        try:
            make_method(method)
        except ConfigError as problem:
            problems.append(f"{method}: {_words(problem)}")
    if problems:
        raise ConfigError("; ".join(problems))


def _check_same_options(held: Mapping[str, Any], now: Mapping[str, Any], place: Path) -> None:
    """RunError where the folder's comparison was made with other options."""
    for key in sorted(set(held) | set(now)):
        before, after = (table.get(key, DEFAULTS.get(key)) for table in (held, now))
        if before != after:
            raise RunError(
                f"{place}: holds a comparison with {key}={before!r}, now it is {after!r}: "
                f"give {key}={before!r} to add to it, or choose another --out"
            )


def _fingerprints(given: Given) -> dict[str, Any]:
    """What tells the objects that Python gave from others; nothing where it gave none."""
    found: dict[str, Any] = {}
    if given.federation is not None:
        found["federation"] = fingerprint(given.federation)
    for key, value in {"model": given.model, "loss": given.loss}.items():
        if value is not None:
            found[key] = getattr(value, "__name__", type(value).__name__)
    return found


def run_folder(place: Path, method: str, seed: int) -> Path:
    """Where a run of a comparison is kept; where characters had to give way, a hash keeps two methods apart."""
    name = re.sub(r"[^A-Za-z0-9._=-]+", "-", method)
    mark = "" if name == method else "-" + hashlib.blake2b(method.encode(), digest_size=3).hexdigest()
    return place / f"{name}{mark}" / f"seed-{seed}"


def read_comparison(place: Path, baseline: str | None = None, test: str | None = None) -> dict[str, Any]:
    """The comparison kept in a folder, finished or not; also of plain run folders that lie side by side.

    The baseline and the test are those that the comparison was made with, if they are not given.
    """
    if (place / FILE).exists():
        kept = _read(place)
        trials, failures = _runs_of(kept, place)
        named = kept.baseline.method if kept.baseline and kept.baseline.named else None
        table = rank(trials, failures, place).table(kept.options)
        return tested(table, place, baseline or named, check_test(test or kept.test))
    found = sorted(path.parent for path in place.glob("*/config.json"))
    if not found:
        raise RunError(f"{place}: neither a run folder nor a folder of runs: expected config.json or {FILE} in it")
    trials = []
    for path in found:
        config = RunFolder(path).config()
        trials.append(ComparedRun(str(config.get("method", path.name)), int(config.get("seed", 0)), path))
    return tested(rank(trials, {}, place).table({}), place, baseline, check_test(test or "t"))


def _runs_of(kept: KeptComparison, place: Path) -> tuple[list[ComparedRun], dict[tuple[str, int], str]]:
    """The runs in a comparison's file, and why some failed."""
    trials = [ComparedRun(row.method, seed, place / path) for row in kept.rows for seed, path in row.folders.items()]
    return trials, {(row.method, seed): text for row in kept.rows for seed, text in row.failures.items()}


def _read(place: Path) -> KeptComparison:
    try:
        kept = parse_json((place / FILE).read_bytes())
    except (OSError, ValueError) as problem:
        raise RunError(f"{place / FILE}: damaged ({problem}): choose another --out") from problem
    return from_json(KeptComparison, kept, str(place / FILE))


def _write(
    place: Path,
    common: Mapping[str, Any],
    trials: Sequence[ComparedRun],
    failures: Mapping[tuple[str, int], str],
    *,
    against: str | None = None,
    test: Test | None = None,
) -> dict[str, Any]:
    """Renew the file: the given runs beside what it holds of others; with a test, also the differences."""
    others, troubles = _runs_of(_read(place), place) if (place / FILE).exists() else ([], {})
    mine = {(trial.method, trial.seed) for trial in trials}
    everything = [trial for trial in others if (trial.method, trial.seed) not in mine]
    troubles = {key: text for key, text in troubles.items() if key not in mine} | dict(failures)
    order = {method: i for i, method in enumerate(dict.fromkeys(trial.method for trial in [*others, *trials]))}
    everything = sorted([*everything, *trials], key=lambda trial: (order[trial.method], trial.seed))
    table = rank(everything, troubles, place).table(common)
    if test is not None:
        table = tested(table, place, against, test)
    write_atomically(place / FILE, (json.dumps(table, indent=2, ensure_ascii=False) + "\n").encode())
    return table


def _words(problem: BaseException) -> str:
    """Why a run failed, in a line."""
    text = " ".join(str(problem).split())
    return text if isinstance(problem, CoterieError) else f"unexpected {type(problem).__name__}: {text}"
