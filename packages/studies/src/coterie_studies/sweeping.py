"""A search over method and training options (Optuna): every trial an ordinary run folder, judged by validation data.

DIR/sweep.json                  what is searched, and the trials so far; rewritten after every trial
DIR/trial-<n>/seed-<s>/         an ordinary run folder for each trial and seed

A trial is proposed from the finished ones and a seed of its own, so that a sweep that was stopped goes on as if it
had not been. Test data is not touched: the clients' validation data takes its place in every run.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from pydantic.dataclasses import dataclass as pydantic_dataclass

from coterie.data import Defaults
from coterie.errors import ConfigError, CoterieError, RunError, did_you_mean
from coterie.federation import Federation, on_validation
from coterie.metrics import higher_is_better, listed
from coterie.runs import (
    PLACE_KEYS,
    SOURCE_KEYS,
    Model,
    Result,
    RunConfig,
    RunFolder,
    assemble,
    execute,
    fingerprint,
    make_architecture,
    make_config,
    make_federation,
    new_folder,
    resume,
    write_atomically,
)
from coterie.runs.records import from_json, parse_json
from coterie.trainers import Loss
from coterie_studies.comparison import FILE as COMPARISON
from coterie_studies.proposals import need_optuna, propose
from coterie_studies.run_options import config_values
from coterie_studies.search_space import Searched, Space, Value, make_space
from coterie_studies.trials import Sweep, Trial, as_text, shown
from coterie_views.verdict import standard_error

FILE = "sweep.json"


@pydantic_dataclass(frozen=True)
class KeptSweep:
    """What is read back from a sweep's file."""

    options: dict[str, Any]
    search: dict[str, str]
    seeds: int
    objective: str
    trials: list[Trial]


def sweep(
    search: Searched,
    federation: Federation | None = None,
    *,
    trials: int = 20,
    seeds: int = 1,
    method: str | None = None,
    objective: str | None = None,
    model: Model | None = None,
    out: str | Path | None = None,
    say: Callable[[str], None] | None = None,
    **options: Any,
) -> Sweep:
    """Search for the method and the options that serve the clients best on validation data.

    Validation data is what the clients have as such; of a client without, a fifth of its training data. It takes the
    place of the test data in every trial, which no trial sees: run the best command for a figure on test data. A folder
    that holds the same search is continued.

    Args:
        search: what is searched, by option: text as in `{"lr": "log:0.001:1", "method": "ifca,cfl", "ifca.k": "2:6"}`,
            or a list of choices, or a pair `(low, high)`.
        federation: the clients. Without it a scenario or a folder of data is named.
        trials: how many points are tried in all, those of the folder among them.
        seeds: runs per trial, from `seed` on; the objective is their mean.
        method: the method, where it is not searched.
        objective: the metric to go by, as a mean over the clients; by default accuracy, for regression the loss.
        model: as in `run`.
        out: the folder to keep the runs in; by default a new one under runs/.
        say: is given a line of text as each trial ends.
        options: the other options of `run`, for all trials, in groups or by themselves; the trials follow one another.

    Returns:
        The trials, the best one and its command.

    Raises:
        ConfigError: Optuna is not installed, or something that is searched does not exist or is out of range.
        RunError: the folder holds something else, or every trial failed.

    Example:
        >>> import tempfile
        >>> import coterie
        >>> folder = tempfile.TemporaryDirectory()
        >>> found = coterie.sweep(
        ...     {"lr": [0.01, 0.1]}, trials=2, scenario="digits-iid", clients=4, rounds=2, out=f"{folder.name}/lr"
        ... )
        >>> found.best_options["lr"]
        0.1
        >>> folder.cleanup()
    """
    need_optuna()
    if trials < 1 or seeds < 1:
        raise ConfigError(f"trials={trials}, seeds={seeds}: expected 1 or more")
    values, own_model, own_loss = config_values(options, model)
    if method is not None:
        values["method"] = method
    space = make_space(search, values)
    config = make_config(values)
    shared = _Shared(config, values, federation, own_model, own_loss, seeds)
    goal = _checked_goal(objective, shared.check(space), listed(config.metrics))
    place = Path(out) if out else new_folder(config, "sweep")
    kept = KeptSweep(shared.identity(), _spelled(space), seeds, goal, [])
    done = _claim(place, kept)
    talk = say or (lambda text: None)
    if done:
        talk(f"{len(done)} trials are kept from before")
    for trial in shared.new_trials(space, done, trials, place, goal):
        _write(place, replace(kept, trials=done))
        talk(f"trial {trial.number}: {_told(trial)}")
    if len(done) < trials:
        talk(f"all of the space is tried after {len(done)} trials")
    common = {key: value for key, value in values.items() if key not in (PLACE_KEYS - {"data_dir"}) | {"method"}}
    of_python = any(value is not None for value in (federation, own_model, own_loss))
    found = Sweep(place, goal, done, space, common, of_python)
    if found.best.value is None:
        raise RunError(f"every trial failed; the first: {done[0].problem}")
    return found


def _checked_goal(objective: str | None, federation: Federation, metrics: Sequence[str]) -> str:
    """The metric that trials are judged by; ConfigError for one that the runs do not have."""
    goal = objective or ("accuracy" if federation.classes else "loss")
    known = {"accuracy", "loss", *metrics}
    if goal not in known:
        raise ConfigError(f"objective={goal!r}: no metric of these runs: {did_you_mean(goal, known)}")
    return goal


def _told(trial: Trial) -> str:
    point = ", ".join(f"{key}={as_text(value)}" for key, value in trial.parameters.items())
    return f"{point}: {trial.problem or shown(trial)}"


def _spelled(space: Space) -> dict[str, str]:
    return {"method": ",".join(space.methods)} | {key: str(what) for key, what in space.searched.items()}


@dataclass(frozen=True)
class _Shared:
    """What all trials share."""

    config: RunConfig
    values: Mapping[str, Any]
    federation: Federation | None
    model: Model | None
    loss: Loss | None
    seeds: int

    def federation_for(self, seed: int) -> tuple[Federation, Defaults]:
        """The clients of a seed with validation data in the place of test data, and what goes with them."""
        made = make_config({**self.values, "seed": seed})
        found, defaults = (self.federation, Defaults()) if self.federation else make_federation(made)
        return on_validation(found, seed), defaults

    def check(self, space: Space) -> Federation:
        """Make clients and model once, so that what is wrong with them is found before anything is trained."""
        federation, defaults = self.federation_for(self.config.seed)
        if "model" not in space.searched:
            make_architecture(self.model or self.config.model or defaults.model, federation)
        return federation

    def identity(self) -> dict[str, Any]:
        """What tells this sweep's options from another's."""
        found = {key: value for key, value in self.config.identity().items() if key != "method"}
        if self.federation is not None:
            found["federation"] = fingerprint(self.federation)
        return found

    def new_trials(self, space: Space, done: list[Trial], trials: int, place: Path, goal: str) -> Iterator[Trial]:
        """Propose and do trials until there are enough, or all of the space is tried; each is added to `done`."""
        while len(done) < trials:
            parameters = propose(space, done, self.config.seed, lower=not higher_is_better(goal))
            if parameters is None:
                return
            done.append(self.perform(space, parameters, len(done) + 1, place, goal))
            yield done[-1]

    def perform(self, space: Space, parameters: dict[str, Value], number: int, place: Path, goal: str) -> Trial:
        """Do a trial's runs, or resume them; a trial that fails says why."""
        reached, seconds = [], 0.0
        for seed in range(self.config.seed, self.config.seed + self.seeds):
            folder = place / f"trial-{number:04d}" / f"seed-{seed}"
            try:
                summary = self._run(space.options(parameters), folder, seed).summary
            except CoterieError as problem:
                return Trial(number, parameters, None, None, seconds, " ".join(str(problem).split()))
            seconds += summary.seconds
            value = summary.metrics[goal].mean if goal in summary.metrics else None
            if value is None:
                known = ", ".join(sorted(name for name, spread in summary.metrics.items() if spread.mean is not None))
                raise ConfigError(f"objective={goal!r}: the runs have {known}: choose one of these")
            reached.append(value)
        error = standard_error(reached) if len(reached) > 1 else None
        return Trial(number, parameters, statistics.fmean(reached), error, seconds)

    def _run(self, options: Mapping[str, Any], folder: Path, seed: int) -> Result:
        federation, defaults = self.federation_for(seed)
        own = {**self.values, **options, "seed": seed}
        if RunFolder(folder).has("config.json"):
            places = {key: own[key] for key in PLACE_KEYS & own.keys()}
            return resume(folder, federation=federation, model=self.model, loss=self.loss, **places)
        config = make_config({key: value for key, value in own.items() if key not in SOURCE_KEYS})
        prepared, used = assemble(config, federation=federation, model=self.model, loss=self.loss, defaults=defaults)
        try:
            with RunFolder.create(folder, used) as opened:
                return execute(prepared, opened)
        finally:
            prepared.engine.close()


def _claim(place: Path, wanted: KeptSweep) -> list[Trial]:
    """The trials that the folder holds of this very search; a folder that holds anything else is refused."""
    if not (place / FILE).exists():
        if place.exists() and (not place.is_dir() or any(place.iterdir())):
            what = "holds a comparison" if (place / COMPARISON).exists() else "exists and is not a sweep's folder"
            raise RunError(f"{place}: {what}: choose another --out")
        place.mkdir(parents=True, exist_ok=True)
        _write(place, wanted)
        return []
    try:
        held = from_json(KeptSweep, parse_json((place / FILE).read_bytes()), str(place / FILE))
    except (OSError, ValueError) as problem:
        raise RunError(f"{place / FILE}: damaged ({problem}): choose another --out") from problem
    for name, before, now in (
        ("search", held.search, wanted.search),
        ("options", held.options, wanted.options),
        (
            "",
            {"seeds": held.seeds, "objective": held.objective},
            {"seeds": wanted.seeds, "objective": wanted.objective},
        ),
    ):
        for key in sorted(set(before) | set(now)):
            if before.get(key) != now.get(key):
                words = f"{name} {key}" if name == "search" else key
                raise RunError(
                    f"{place}: holds a sweep with {words}={before.get(key)!r}, now it is {now.get(key)!r}: "
                    "give what it was begun with, or choose another --out"
                )
    return list(held.trials)


def _write(place: Path, kept: KeptSweep) -> None:
    content = json.dumps(asdict(kept), indent=2, ensure_ascii=False)
    write_atomically(place / FILE, (content + "\n").encode())
