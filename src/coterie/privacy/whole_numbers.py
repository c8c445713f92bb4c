"""Numbers as whole ones modulo 2^32, in which masks hide them perfectly and sums are exact."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from coterie.errors import ConfigError

MODULUS_BITS = 32
WIDE_LIMIT = 2.0**30
Words = npt.NDArray[np.uint32]


class Quantiser(NamedTuple):
    """Numbers as whole ones modulo 2^32: each is cut to ±`limit` and rounded to a multiple of `step`.

    With n vectors the sum of the rounded ones is at most n · step / 2 from the sum of those that went in.
    """

    limit: float
    step: float

    @classmethod
    def for_sums(cls, limit: float, count: int) -> Quantiser:
        """The finest one under which `count` numbers up to `limit` cannot overflow."""
        if not (limit > 0 and math.isfinite(limit)) or count < 1:
            raise ConfigError(f"limit={limit}, count={count}: expected a number above 0, and at least one vector")
        return cls(limit, limit * count / (2 ** (MODULUS_BITS - 1) - 1 - count))

    def encode(self, values: npt.NDArray[np.floating]) -> Words:
        """The numbers `(d,)` as words."""
        rounded = np.rint(np.clip(values.astype(np.float64), -self.limit, self.limit) / self.step)
        return np.asarray(rounded.astype(np.int64).astype(np.uint32))

    def decode(self, total: Words) -> npt.NDArray[np.float64]:
        """The sum that the words `(d,)` stand for."""
        return np.asarray(total.astype(np.int32).astype(np.float64) * self.step)


class WideQuantiser(NamedTuple):
    """Numbers up to 2^30, whatever their size, as two words each: a coarse one, and a fine one of what that leaves."""

    coarse: Quantiser
    fine: Quantiser

    def encode(self, values: npt.NDArray[np.floating]) -> Words:
        """The numbers `(d,)` as words `(2·d,)`."""
        first = self.coarse.encode(values)
        return np.concatenate([first, self.fine.encode(values - self.coarse.decode(first))])

    def decode(self, total: Words) -> npt.NDArray[np.float64]:
        """The sum that the words `(2·d,)` stand for."""
        first, second = np.split(total, 2)
        return np.asarray(self.coarse.decode(first) + self.fine.decode(second))


def quantiser_for(limit: float, count: int, wide: bool = False) -> Quantiser | WideQuantiser:
    """The finest one for sums of `count` numbers up to `limit`; `wide`: of any numbers up to 2^30."""
    if not wide:
        return Quantiser.for_sums(limit, count)
    coarse = Quantiser.for_sums(WIDE_LIMIT, count)
    return WideQuantiser(coarse, Quantiser.for_sums(coarse.step, count))
