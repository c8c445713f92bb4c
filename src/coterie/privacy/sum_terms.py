"""What a secure sum is of, as all who take part sign it, and when a client takes no part."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from coterie.errors import CoterieError
from coterie.trainers.base import UNEVEN


class NotOpened(CoterieError):
    """A sum that must stay closed, or can not be opened; `culprits` are the clients by whose fault, and what it was."""

    def __init__(self, text: str, culprits: Mapping[int, str] | None = None) -> None:
        super().__init__(text)
        self.culprits = dict(culprits or {})


def least_threshold(clients: int) -> int:
    """The fewest shares that may open a secret: more than two thirds (Bonawitz et al. 2017, for active adversaries).

    With fewer, a server that names different lists of who came through to two halves could have both secrets of one.
    """
    return 2 * clients // 3 + 1


def check_weights(weights: Iterable[float], minimum: int, uneven: float = UNEVEN) -> None:
    """NotOpened where a sum with these weights would reveal more than one of `minimum` vectors does."""
    ranked = sorted(weights, reverse=True)
    if not all(0 < weight < math.inf for weight in ranked):
        raise NotOpened("a weight in the sum is not a number above 0")
    if len(ranked) >= minimum and ranked[0] > uneven * ranked[minimum - 1]:
        raise NotOpened(
            f"of {len(ranked)} weights fewer than {minimum} are more than a {uneven:g}th of the largest: the sum would "
            "show a single vector; lower weight_cap, or weigh clients alike"
        )


class PublicKeys(NamedTuple):
    """What a client shows of itself: fresh keys of this sum for the masks, for what others send to it and for its
    signatures, and the key of its own by which it certifies them (`client_keys`)."""

    mask: bytes
    channel: bytes
    sign: bytes
    owner: bytes


class Terms(NamedTuple):
    """What a sum is of: the same for all who take part, or none of their signatures holds."""

    name: str
    """The run's and the sum's own."""
    tasks: tuple[str, ...]
    """Digests of the tasks that its vectors come from."""
    keys: dict[int, PublicKeys]
    weights: dict[int, float]
    threshold: int
    minimum: int
    limit: float = 1.0
    """How large a number of a vector may be."""
    noise: tuple[float, float] | None = None
    """As in `SumNoise`."""

    def digest(self) -> bytes:
        """What stands for all of it in signatures."""
        keys = {number: [key.hex() for key in own] for number, own in sorted(self.keys.items())}
        weights = dict(sorted(self.weights.items()))
        text = json.dumps([*self._replace(keys=keys, weights=weights)])  # type: ignore[arg-type]
        return hashlib.sha256(text.encode()).digest()

    def check(self) -> None:
        """NotOpened where a sum with these terms would reveal more than it must."""
        count = len(self.keys)
        if self.minimum < 2:
            raise NotOpened(f"a sum of {self.minimum} is no sum")
        if count < max(self.minimum, self.threshold):
            raise NotOpened(f"{count} clients, at least {max(self.minimum, self.threshold)} are needed for a sum")
        if self.threshold < least_threshold(count):
            raise NotOpened(f"{self.threshold} of {count} shares would open a secret: more than two thirds must")
        if len({key for own in self.keys.values() for key in own}) != len(PublicKeys._fields) * count:
            raise NotOpened("the keys of the clients are not all different")
        if set(self.weights) != set(self.keys):
            raise NotOpened("the weights are not one for each client of the sum")


def keys_text(name: str, number: int, keys: PublicKeys) -> bytes:
    """What a client certifies by its own key: the fresh keys of this sum, for its number in it."""
    return f"coterie secure sum {name} {number} ".encode() + b"".join(keys)


def box_text(terms: bytes, sender: int, receiver: int, box: bytes, commitments: tuple[bytes, bytes]) -> bytes:
    """What the sender of a box signs."""
    return b"box" + terms + f"{sender}>{receiver}".encode() + b"".join(commitments) + box


def list_text(terms: bytes, purpose: str, numbers: Iterable[int]) -> bytes:
    """What a client signs that holds a list of clients for right."""
    return purpose.encode() + terms + ",".join(map(str, sorted(numbers))).encode()
