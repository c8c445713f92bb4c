"""Keyed randomness for what the server must not guess: 256-bit keys, streams of bytes, permutations, signs, numbers.

A stream is SHAKE-256 over the key and a name, so that no two uses share a byte. Generators of random numbers that are
made for simulation will not do: torch's takes 32 bits of a seed, whatever the seed's length, and 2^32 is hours of
search.
"""

from __future__ import annotations

import functools
import hashlib
import secrets
import warnings

import numpy as np
import numpy.typing as npt

KEY_BYTES = 32
LEAST_LETTERS = 32
"""Characters of a secret text below which it may be guessed: 32 hexadecimal digits are 128 bits."""

Secret = int | str | bytes


def new_key() -> bytes:
    """A fresh key from the system's own source of randomness."""
    return secrets.token_bytes(KEY_BYTES)


def make_key(secret: Secret) -> bytes:
    """The 256-bit key that a secret stands for: bytes are a key, text is stretched, a number is for simulations.

    A key is only as hard to guess as the secret it comes from. A short text is accepted with a warning; stretching
    makes each guess cost about 50 ms and 16 MB.
    """
    if isinstance(secret, bytes):
        if len(secret) != KEY_BYTES:
            raise ValueError(f"a key of {len(secret)} bytes, expected {KEY_BYTES}")
        return secret
    if isinstance(secret, int):
        return hashlib.blake2b(str(secret).encode(), digest_size=KEY_BYTES, person=b"coterie number").digest()
    if len(secret) < LEAST_LETTERS:
        warnings.warn(
            f"the clients' secret has {len(secret)} characters and may be guessed: use 64 random hexadecimal digits",
            stacklevel=2,
        )
    return _stretched(secret)


@functools.cache  # a node derives its key for every message
def _stretched(secret: str) -> bytes:
    return hashlib.scrypt(secret.encode(), salt=b"coterie clients", n=2**14, r=8, p=1, dklen=KEY_BYTES)


def stream(key: bytes, name: str, count: int) -> bytes:
    """`count` bytes indistinguishable from random ones without the key; a longer stream begins with these."""
    if len(key) != KEY_BYTES:
        raise ValueError(f"a key of {len(key)} bytes, expected {KEY_BYTES}")
    return hashlib.shake_256(key + name.encode()).digest(count)


def numbers(key: bytes, name: str, count: int) -> npt.NDArray[np.uint64]:
    """`count` uniform 64-bit numbers."""
    return np.frombuffer(stream(key, name, 8 * count), "<u8")


def permutation(key: bytes, name: str, count: int) -> npt.NDArray[np.int64]:
    """A uniform permutation of 0 … count − 1: the order of that many random numbers, all different."""
    for attempt in range(100):
        drawn = numbers(key, f"{name}/{attempt}", count)
        order = np.argsort(drawn, kind="stable")
        ranked = drawn[order]
        if not (ranked[1:] == ranked[:-1]).any():  # equal ones would leave part of the order to the sorting
            return order
    raise AssertionError("a hundred draws of 64-bit numbers with equal ones among them")


def signs(key: bytes, name: str, count: int) -> npt.NDArray[np.int8]:
    """`count` uniform signs, −1 or 1."""
    bits = np.unpackbits(np.frombuffer(stream(key, name, -(-count // 8)), np.uint8))[:count]
    return np.asarray(1 - 2 * bits.astype(np.int8))


def uniforms(key: bytes, name: str, count: int) -> npt.NDArray[np.float64]:
    """`count` uniform numbers in [0, 1) with 53 random bits each."""
    return np.asarray((numbers(key, name, count) >> np.uint64(11)) * 2.0**-53)


def secret_uniforms(count: int) -> npt.NDArray[np.float64]:
    """`count` uniform numbers in [0, 1) from a fresh key of the system, for noise and coins that must stay secret.

    NumPy's generators will not do there: from some of their numbers the others can be computed.
    """
    return uniforms(new_key(), "noise", count)


def secret_normals(count: int) -> npt.NDArray[np.float64]:
    """`count` numbers of the standard normal distribution, from a fresh key of the system."""
    from scipy.special import ndtri

    return np.asarray(ndtri(secret_uniforms(count) + 2.0**-54))
