"""User-level differential privacy: updates cut to a length, and noise on every sum.

A server that is trusted adds the noise; in secure sums the clients add it (`noisy_sum`). What ε covers is the
models. The losses, norms and accuracies in a run's records are exact and not covered; publish the models, not the
records. Noise is drawn from the system's own source and not from the run's seed, which stands in the records: two runs
differ. A trusted server's sums are floating-point numbers, so attacks on the last bits of its noise are not covered;
those of secure sums are whole numbers, and so is their noise.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from coterie.errors import ConfigError
from coterie.privacy.accounting import epsilon
from coterie.privacy.keys import secret_normals, secret_uniforms
from coterie.trainers.base import SumNoise


@dataclass(frozen=True)
class UserPrivacy:
    """`noise` z times `clip` C is the standard deviation of the noise on a sum of updates of length up to C.

    `rate` is the probability with which a client takes part in a round, one where that is known anyway. Where clients
    choose between clusters (`choices`), their numbers in them are secret too: they get noise as well, and the two
    releases together count as one with noise z/√2.
    """

    noise: float
    clip: float
    delta: float
    rate: float
    choices: bool = False

    def __post_init__(self) -> None:
        if self.noise <= 0 or self.clip <= 0 or not 0 < self.delta < 1:
            raise ConfigError(
                f"noise={self.noise}, clip={self.clip}, delta={self.delta}: expected noise and clip above 0, and a "
                "delta below 1, well below one over the number of clients"
            )

        if not 0 < self.epsilon(1) < math.inf:
            raise ConfigError(
                f"dp_noise={self.noise}, dp_delta={self.delta}: one round has ε = {self.epsilon(1):g}, which says "
                "nothing: give noise of about 0.3 to 10"
            )

    def epsilon(self, rounds: int) -> float:
        """What that many rounds give away of any one client, at `delta`."""
        return epsilon(self.noise / (2**0.5 if self.choices else 1.0), self.rate, rounds, self.delta)

    def of_updates(self) -> SumNoise:
        """The noise that clients add to a secure sum of updates."""
        return SumNoise(self.noise, self.clip)

    def of_choices(self) -> SumNoise:
        """The noise that clients add to a secure count of choices, each a one among zeros."""
        return SumNoise(self.noise, 1.0)

    def blurred(self, total: Tensor) -> Tensor:
        """A sum of updates with noise."""
        return total + torch.from_numpy(secret_normals(len(total)) * (self.noise * self.clip))

    def blurred_count(self, count: int) -> float:
        """A number of clients with noise; one at the least, since means are divided by it."""
        return max(1.0, count + self.noise * float(secret_normals(1)[0]))

    def taking_part(self, clients: Sequence[str], share: float) -> list[str]:
        """Who takes part in a round, each with probability `share` by itself: a secret, which lowers ε."""
        coins = secret_uniforms(len(clients))
        return [client for client, coin in zip(clients, coins, strict=True) if coin < share]
