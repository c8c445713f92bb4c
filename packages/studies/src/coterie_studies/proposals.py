"""The next point of a sweep, by Optuna's sampler: a function of the finished trials and the seed alone."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from coterie.errors import ConfigError
from coterie.randomness import derive
from coterie_studies.search_space import Range, Space, Value
from coterie_studies.trials import Trial

if TYPE_CHECKING:
    import optuna

ATTEMPTS = 20
"""Proposals that were tried before after which a small space counts as exhausted."""


def need_optuna() -> None:
    """Say what to install where there is no Optuna."""
    try:
        import optuna  # noqa: F401
    except ImportError:
        raise ConfigError("a sweep needs Optuna: pip install 'coterie[sweep]'") from None


def propose(space: Space, done: Sequence[Trial], seed: int, *, lower: bool) -> dict[str, Value] | None:
    """The next point to try, from the finished trials and a seed of its own; None where all seem to be tried."""
    import optuna

    before = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    tried = [trial.parameters for trial in done]
    try:
        for attempt in range(ATTEMPTS):
            sampler = optuna.samplers.TPESampler(seed=derive(seed, "sweep", len(done), attempt) % 2**32)
            study = optuna.create_study(direction="minimize" if lower else "maximize", sampler=sampler)
            study.add_trials([_frozen(space, trial) for trial in done])
            found = _asked(space, study.ask())
            if found not in tried:
                return found
    finally:
        optuna.logging.set_verbosity(before)
    return None


def _asked(space: Space, trial: optuna.Trial) -> dict[str, Value]:
    """A point of the space, as the sampler proposes it."""
    found: dict[str, Value] = {}
    method = space.methods[0]
    if len(space.methods) > 1:
        method = found["method"] = str(trial.suggest_categorical("method", space.methods))
    for key in space.keys_for(method):
        what = space.searched[key]
        if not isinstance(what, Range):
            found[key] = trial.suggest_categorical(key, what.values)  # type: ignore[assignment]
        elif what.whole:
            found[key] = trial.suggest_int(key, int(what.low), int(what.high), log=what.log)
        else:
            found[key] = what.rounded(trial.suggest_float(key, what.low, what.high, log=what.log))
    return found


def _frozen(space: Space, trial: Trial) -> optuna.trial.FrozenTrial:
    """A finished trial in Optuna's form."""
    import optuna

    kinds: dict[str, optuna.distributions.BaseDistribution] = {}
    for key in trial.parameters:
        what = space.searched.get(key)
        if not isinstance(what, Range):
            kinds[key] = optuna.distributions.CategoricalDistribution(what.values if what else space.methods)
        elif what.whole:
            kinds[key] = optuna.distributions.IntDistribution(int(what.low), int(what.high), log=what.log)
        else:
            kinds[key] = optuna.distributions.FloatDistribution(what.low, what.high, log=what.log)
    state = optuna.trial.TrialState.COMPLETE if trial.value is not None else optuna.trial.TrialState.FAIL
    return optuna.trial.create_trial(state=state, params=dict(trial.parameters), distributions=kinds, value=trial.value)
