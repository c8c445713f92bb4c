"""Shamir's secret sharing: points of a random polynomial whose value at zero is the secret."""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from functools import lru_cache

from coterie.errors import ConfigError
from coterie.privacy.sum_terms import NotOpened

PRIME = 2**521 - 1
"""Shares are points of polynomials over this field; a secret has 256 bits."""
SHARE_BYTES = 66
SECRET_BITS = 256
MOST_NUMBER = 2**31
"""The largest number of a client in a sum."""


def split(secret: int, threshold: int, numbers: Sequence[int]) -> dict[int, int]:
    """Shamir's shares of a secret for each number: any `threshold` of them give it back, fewer reveal nothing of it."""
    if not all(0 < x <= MOST_NUMBER for x in numbers) or len(set(numbers)) < len(numbers):
        raise NotOpened(f"numbers {sorted(numbers)}: a share at 0 is the secret itself, and all must differ")
    if not 1 <= threshold <= len(numbers) or not 0 <= secret < PRIME:
        raise ConfigError(f"threshold={threshold} of {len(numbers)} shares: expected from 1 to as many as there are")
    coefficients = [secret, *(secrets.randbelow(PRIME) for _ in range(threshold - 1))]
    shares = {}
    for x in numbers:
        value = 0
        for coefficient in reversed(coefficients):
            value = (value * x + coefficient) % PRIME
        shares[x] = value
    return shares


def join(shares: Mapping[int, int]) -> int:
    """The secret behind shares, by Lagrange's formula at zero; NotOpened where they are not of one 256-bit secret."""
    total = sum(shares[x] * weight for x, weight in _weights_at_zero(tuple(sorted(shares))).items()) % PRIME
    if total >= 2**SECRET_BITS:
        raise NotOpened("the shares do not belong together")
    return total


@lru_cache(maxsize=8)  # all secrets of a sum are joined from shares of the same clients
def _weights_at_zero(numbers: tuple[int, ...]) -> dict[int, int]:
    """Lagrange's weights of the values at these numbers in the value at zero."""
    weights = {}
    for x in numbers:
        above = below = 1
        for other in numbers:
            if other != x:
                above = above * other % PRIME
                below = below * (other - x) % PRIME
        weights[x] = above * pow(below, -1, PRIME) % PRIME
    return weights
