"""Differential privacy inside secure sums: every client adds a share of the noise itself, before its masks.

No party, the server included, ever sees a sum without noise. Vectors are whole numbers there, and so is the noise: the
distributed discrete Gaussian mechanism (Kairouz, Liu, Steinke 2021). A client cuts its vector so that it is no longer
than `length` after rounding too, and adds numbers from a discrete Gaussian. The δ of a discrete Gaussian is that of a
Gaussian with sums over whole numbers in place of integrals (Canonne, Kamath, Steinke 2020, theorem 7), and a sum of
some that are wider than a few whole numbers is one to within 10^-40. Here they are some millions wide, so the account
of a trusted server's noise holds (`accounting`). Sums wrap around beyond 2^31, which changes nothing of that.

The shares are so large that those of the fewest clients with which a sum is opened make up the whole noise; with all of
them there is up to √1.5 times as much. Clients that work together with the server can take their own shares off again:
c of n leave √(1 − c/n) of the noise.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from coterie.errors import ConfigError
from coterie.privacy.keys import secret_uniforms
from coterie.privacy.whole_numbers import MODULUS_BITS, Quantiser, WideQuantiser, Words, quantiser_for
from coterie.trainers.base import SumNoise

Ints = npt.NDArray[np.int64]

ROOM = 12
"""Standard deviations of the sum's noise that fit beside the vectors: more come once in 10^32 numbers."""
LEAST_SCALE = 10
"""The narrowest discrete Gaussian, in whole numbers, whose sums are taken for one; 2π² times its square is 1,974."""


class NoisyQuantiser(NamedTuple):
    """Vectors as whole multiples of `step`, cut to `length`, with discrete Gaussian noise of `scale` steps on each."""

    length: float
    step: float
    scale: float

    @classmethod
    def for_sums(cls, noise: SumNoise, count: int, sharers: int) -> NoisyQuantiser:
        """The finest for sums of up to `count` vectors, with the whole noise where no more than `sharers` are in it."""
        if noise.multiplier <= 0 or noise.length <= 0 or not 1 <= sharers <= count:
            raise ConfigError(f"{noise}, count={count}, sharers={sharers}: expected numbers above 0, sharers of count")
        share = noise.multiplier * noise.length / math.sqrt(sharers)
        room = count * noise.length + ROOM * share * math.sqrt(count)
        step = room / (2 ** (MODULUS_BITS - 1) - 1 - count)
        if share < LEAST_SCALE * step:
            raise ConfigError(
                f"dp_noise={noise.multiplier} is too little for {count} clients' whole numbers: give at least "
                f"{2 * noise.multiplier * LEAST_SCALE * step / share:.1g}"
            )
        return cls(noise.length, step, share / step)

    def encode(self, values: npt.NDArray[np.floating]) -> Words:
        """The numbers `(d,)` as words, with this client's share of the noise."""
        exact = values.astype(np.float64)
        # Rounding moves each number by half a step at the most, and so the whole vector by √d / 2 steps.
        longest = self.length - self.step * math.sqrt(len(exact)) / 2
        if longest <= 0:
            raise ConfigError(f"dp_clip={self.length} is too short for vectors of {len(exact)} numbers")
        norm = float(np.linalg.norm(exact))
        rounded = np.rint(exact * (min(1.0, longest / norm) if norm > 0 else 1.0) / self.step).astype(np.int64)
        return np.asarray((rounded + discrete_gaussian(self.scale, len(exact))).astype(np.uint32))

    def decode(self, total: Words) -> npt.NDArray[np.float64]:
        """The sum that the words `(d,)` stand for."""
        return np.asarray(total.astype(np.int32).astype(np.float64) * self.step)


def sum_quantiser(
    limit: float, count: int, wide: bool, noise: SumNoise | None, sharers: int
) -> Quantiser | WideQuantiser | NoisyQuantiser:
    """How the vectors of a secure sum become whole numbers: with noise, or with rounding alone."""
    if noise is None:
        return quantiser_for(limit, count, wide)
    return NoisyQuantiser.for_sums(noise, count, sharers)


def discrete_gaussian(scale: float, size: int) -> Ints:
    """Whole numbers `(size,)` with probabilities proportional to exp(−x²/(2·scale²)), by rejection.

    Candidates are discrete Laplace numbers of about the same width (Canonne, Kamath, Steinke 2020, algorithm 3), drawn
    and judged in float64.
    """
    width = math.floor(scale) + 1
    found = np.zeros(size, dtype=np.int64)
    missing = np.arange(size)
    while len(missing):
        sizes = np.floor(-width * np.log1p(-secret_uniforms(len(missing)))).astype(np.int64)
        negative = secret_uniforms(len(missing)) < 0.5
        chance = np.exp(-((sizes - scale**2 / width) ** 2) / (2 * scale**2))
        # Zero must not count twice, once for either sign.
        kept = (secret_uniforms(len(missing)) < chance) & ~(negative & (sizes == 0))
        found[missing[kept]] = np.where(negative, -sizes, sizes)[kept]
        missing = missing[~kept]
    return found
