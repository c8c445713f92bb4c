"""The server's optimiser: what it makes of a cluster's mean update before it adds it to the model.

FedAvgM is momentum on the mean updates (Hsu et al. 2019); FedAdam and FedYogi divide each number by its usual size
(Reddi et al. 2021, Algorithm 2). Every cluster has moments of its own. A cluster that is new, such as the two sides of
a split, begins with none: the direction that its former members had in common is what they have just parted over.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

from coterie.errors import ConfigError, did_you_mean
from coterie.methods.options import parse_options, unknown_option
from coterie.snapshot import saved

RULES: dict[str, dict[str, float]] = {
    "none": {},
    "avgm": {"lr": 1.0, "momentum": 0.9},
    "adam": {"lr": 0.01, "beta1": 0.9, "beta2": 0.99, "tau": 1e-3},
    "yogi": {"lr": 0.01, "beta1": 0.9, "beta2": 0.99, "tau": 1e-3},
}
"""The optimisers, and their options with their defaults."""
BELOW_ONE = {"momentum", "beta1", "beta2"}


@saved
class Moments:
    """A cluster's running means of its updates and, in FedAdam and FedYogi, of their squares, float64 `(d,)`."""

    first: Tensor
    second: Tensor | None = None


@dataclass
class ServerOptimizer:
    """A rule with its numbers, and the moments of each cluster, float64 `(d,)`."""

    rule: str = "none"
    options: Mapping[str, float] = field(default_factory=dict)
    moments: dict[str, Moments] = field(default_factory=dict)
    """By cluster. Tensors are replaced, never changed, so that a copy of the dict is a copy of the state."""

    @classmethod
    def parse(cls, spec: str) -> ServerOptimizer:
        """The optimiser as options write it: "none", "avgm", "adam:lr=0.1,tau=0.001"."""
        name, _, text = spec.partition(":")
        if name not in RULES:
            raise ConfigError(f"server_optimizer={spec!r}: {did_you_mean(name, RULES)}")
        given = parse_options(text, spec)
        for key, value in given.items():
            if key not in RULES[name]:
                raise ConfigError(unknown_option(f"server_optimizer={spec!r}: {name}", key, RULES[name]))
            if not _in_range(key, value):
                expected = "a number from 0 and below 1" if key in BELOW_ONE else "a number above 0"
                raise ConfigError(f"server_optimizer={spec!r}: {key}={value!r}, expected {expected}")
        return cls(name, RULES[name] | {key: float(value) for key, value in given.items()})

    def direction(self, cluster: str, update: Tensor, trainable: Tensor) -> Tensor:
        """What is added to a cluster's model for its mean `update` `(d,)`; the cluster's moments move on.

        Numbers that are not `trainable` `(d,)`, such as running means, follow the update itself. A cluster whose update
        is zero had no participants: its moments stay as they are.
        """
        if self.rule == "none" or not update.any():
            return update
        how, delta = self.options, update.double()
        known = self.moments.get(cluster)
        first = torch.zeros_like(delta) if known is None else known.first
        if self.rule == "avgm":
            first = how["momentum"] * first + delta
            self.moments[cluster] = Moments(first)
            return torch.where(trainable, how["lr"] * first, delta)
        # Algorithm 2: v starts at τ², and there is no correction of the first rounds' bias.
        second = known.second if known is not None else None
        second = torch.full_like(delta, how["tau"] ** 2) if second is None else second
        squared = delta.square()
        first = how["beta1"] * first + (1 - how["beta1"]) * delta
        if self.rule == "adam":
            second = how["beta2"] * second + (1 - how["beta2"]) * squared
        else:
            second = second - (1 - how["beta2"]) * squared * torch.sign(second - squared)
        self.moments[cluster] = Moments(first, second)
        return torch.where(trainable, how["lr"] * first / (second.sqrt() + how["tau"]), delta)


def _in_range(key: str, value: object) -> bool:
    """Whether an option's value is a number that the rule can use."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    return 0 <= value < 1 if key in BELOW_ONE else 0 < value < float("inf")
