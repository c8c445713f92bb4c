"""How the learning rate of local training changes over the rounds."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from coterie.errors import ConfigError, did_you_mean
from coterie.trainers.base import Training

FORMS = {
    "constant": "constant",
    "step": "step:FACTOR@ROUND[@ROUND…], multiply by FACTOR from each ROUND on, e.g. step:0.1@100@150",
    "decay": "decay:FACTOR, multiply by FACTOR every round, e.g. decay:0.99",
    "exponential": "exponential:FINAL, from lr in round 1 to FINAL in the last round, e.g. exponential:0.001",
}


@dataclass(frozen=True)
class LearningRateSchedule:
    """The training of each round: `training` with its step size scaled by the schedule."""

    training: Training
    rounds: int
    form: str = "constant"
    number: float = 1.0
    drops: tuple[int, ...] = ()

    def factor(self, t: int) -> float:
        """What the step size is multiplied by in round `t`, counted from 1."""
        if self.form == "step":
            return float(self.number ** sum(t >= drop for drop in self.drops))
        if self.form == "decay":
            return float(self.number ** (t - 1))
        if self.form == "exponential" and self.rounds > 1:
            # The paper prints the ratio upside down; η_T/η_1 goes from η_1 to η_T.
            return float((self.number / self.training.lr) ** ((t - 1) / (self.rounds - 1)))
        return 1.0

    def at(self, t: int) -> Training:
        """The training of round `t`."""
        factor = self.factor(t)
        return self.training if factor == 1.0 else replace(self.training, lr=self.training.lr * factor)


def make_schedule(spec: str, training: Training, rounds: int) -> LearningRateSchedule:
    """The schedule that `spec` spells: constant, step:…, decay:… or exponential:…."""
    form, _, rest = spec.partition(":")
    if form not in FORMS:
        raise ConfigError(f"lr_schedule={spec!r}: {did_you_mean(form, FORMS)}")
    if spec == "constant":
        return LearningRateSchedule(training, rounds)
    number, *drops = rest.split("@")
    try:
        schedule = LearningRateSchedule(training, rounds, form, float(number), tuple(int(drop) for drop in drops))
    except ValueError:
        raise ConfigError(f"lr_schedule={spec!r}: expected {FORMS[form]}") from None
    sound = form != "constant" and 0 < schedule.number < math.inf and all(drop >= 1 for drop in schedule.drops)
    if not sound or bool(schedule.drops) != (form == "step"):
        raise ConfigError(f"lr_schedule={spec!r}: expected {FORMS[form]}")
    return schedule
