"""Sums that nobody can open: each client hides its vector with masks that cancel in the sum (Bonawitz et al. 2017).

Every pair of clients agrees on a key (X25519) that only the two know; its stream is added by one and taken off by the
other. Each client adds a stream of its own beside it. Secrets are shared out among all (Shamir), so that the server can
take off what does not cancel: of a client that came through, the own stream; of one that dropped out, the streams of
its pairs; never both of one client, for then its vector would lie open. Vectors are whole numbers modulo 2^32, so that
a masked one is uniformly random whatever it holds. Four exchanges: keys, shares, masked vectors, shares of the masks.

This holds against a server that follows the protocol and looks at everything, together with up to `threshold` − 1
clients. A server that hands out keys of its own in the clients' names is found out where the clients share a secret
that it does not know, by which they vouch for their keys.
"""

from __future__ import annotations

import hmac
import math
import secrets
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from coterie.errors import ConfigError, CoterieError, extra
from coterie.privacy.keys import stream

PRIME = 2**521 - 1
"""Shares are points of polynomials over this field; a secret has 256 bits."""
SHARE_BYTES = 66
SEALED_BYTES = 2 * SHARE_BYTES + 28
"""Two shares, sealed for one client."""
KEY_BYTES = 32
VOUCHER_BYTES = 32
MOST_NUMBER = 2**31
"""The largest number of a client in a sum."""
MODULUS_BITS = 32
WIDE_LIMIT = 2.0**30
Words = npt.NDArray[np.uint32]


class NotOpened(CoterieError):
    """A sum that must stay closed, or can not be opened."""


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

    def error(self, count: int) -> float:
        """The most that a number of the sum of `count` vectors is off, where none was cut."""
        return count * self.step / 2


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


class Encoding(Protocol):
    """How vectors become whole numbers and their sum becomes a vector again."""

    def encode(self, values: npt.NDArray[np.floating]) -> Words:
        """The numbers `(d,)` as words."""
        ...

    def decode(self, total: Words) -> npt.NDArray[np.float64]:
        """The sum that the words stand for."""
        ...


class PublicKeys(NamedTuple):
    """What a client shows of itself: a key for the masks, and one for what others send to it."""

    mask: bytes
    channel: bytes


def vouch(secret: bytes | None, number: int, keys: PublicKeys) -> bytes:
    """What only a holder of the clients' secret can say for the keys of client `number`; zeros without a secret."""
    if secret is None:
        return bytes(VOUCHER_BYTES)
    return hmac.digest(secret, f"secure sum {number} ".encode() + keys.mask + keys.channel, "sha256")


class Shares(NamedTuple):
    """One client's part of another's secrets: of its mask key, and of the seed of its own stream."""

    key: int
    seed: int


@dataclass
class SecureClient:
    """One client's side of one sum. `threshold` shares open a secret; fewer than `minimum` vectors are not added up."""

    number: int
    """From 1 up, different for every client of the sum."""
    threshold: int
    minimum: int
    _mask: bytes = field(default_factory=lambda: secrets.token_bytes(KEY_BYTES), repr=False)
    _channel: bytes = field(default_factory=lambda: secrets.token_bytes(KEY_BYTES), repr=False)
    _seed: bytes = field(default_factory=lambda: secrets.token_bytes(KEY_BYTES), repr=False)
    _keys: dict[int, PublicKeys] = field(default_factory=dict, repr=False)
    _held: dict[int, Shares] = field(default_factory=dict, repr=False)
    _done: int = 0
    """Exchanges after the keys that it has answered: each once and in order, or a second answer would tell a vector."""

    def keys(self) -> PublicKeys:
        """First exchange: the public keys."""
        return PublicKeys(public_key(self._mask), public_key(self._channel))

    def shares(self, keys: Mapping[int, PublicKeys]) -> dict[int, bytes]:
        """Second exchange: for each other client a sealed share of this one's secrets."""
        self._due(1)
        if len(keys) < max(self.minimum, self.threshold):
            raise NotOpened(f"{len(keys)} clients, at least {max(self.minimum, self.threshold)} are needed for a sum")
        if keys.get(self.number) != self.keys() or len({k for own in keys.values() for k in own}) != 2 * len(keys):
            raise NotOpened("the keys are not those that were sent, or not all different")
        self._keys = dict(keys)
        numbers = sorted(keys)
        mask, seed = (split(int.from_bytes(s), self.threshold, numbers) for s in (self._mask, self._seed))
        sealed = {}
        for number in numbers:
            if number == self.number:
                self._held[number] = Shares(mask[number], seed[number])
                continue
            plain = mask[number].to_bytes(SHARE_BYTES) + seed[number].to_bytes(SHARE_BYTES)
            sealed[number] = seal(self._channel_key(number), self.number, number, plain)
        self._done = 1
        return sealed

    def masked(self, vector: Words, sealed: Mapping[int, bytes]) -> Words:
        """Third exchange: the vector `(d,)` under its masks; `sealed` are the others' shares for this client."""
        self._due(2)
        for sender, box in sealed.items():
            plain = unseal(self._channel_key(sender), sender, self.number, box)
            self._held[sender] = Shares(int.from_bytes(plain[:SHARE_BYTES]), int.from_bytes(plain[SHARE_BYTES:]))
        if len(self._held) < max(self.minimum, self.threshold):
            raise NotOpened(f"{len(self._held)} clients sent shares, {max(self.minimum, self.threshold)} are needed")
        total = vector + own_stream(self._seed, len(vector))
        for other in self._held:
            if other != self.number:
                total += pair_stream(self._mask, self._keys[other].mask, self.number, other, len(vector))
        self._done = 2
        return total

    def reveal(self, through: Iterable[int]) -> dict[int, int]:
        """Fourth exchange: of each client that came through a share of its seed, of the others one of their keys.

        It answers once, and not at all where too few came through.
        """
        came = set(through)
        self._due(3)
        if self.number not in came or not came <= set(self._held):
            raise NotOpened("the list of those that came through does not fit what this client has seen")
        if len(came) < max(self.minimum, self.threshold):
            raise NotOpened(
                f"{len(came)} vectors came through, {max(self.minimum, self.threshold)} are needed for a sum"
            )
        self._done = 3
        return {number: own.seed if number in came else own.key for number, own in self._held.items()}

    def to_json(self) -> dict[str, Any]:
        """All that the client must remember between two exchanges; secret."""
        return {
            "number": self.number,
            "threshold": self.threshold,
            "minimum": self.minimum,
            "secrets": [secret.hex() for secret in (self._mask, self._channel, self._seed)],
            "keys": {number: [key.hex() for key in keys] for number, keys in self._keys.items()},
            "held": {number: [hex(share) for share in shares] for number, shares in self._held.items()},
            "done": self._done,
        }

    @classmethod
    def from_json(cls, kept: Mapping[str, Any]) -> SecureClient:
        """The client that `to_json` was asked of."""
        mask, channel, seed = (bytes.fromhex(secret) for secret in kept["secrets"])
        keys = {int(n): PublicKeys(*map(bytes.fromhex, pair)) for n, pair in kept["keys"].items()}
        held = {int(n): Shares(*(int(share, 16) for share in pair)) for n, pair in kept["held"].items()}
        return cls(kept["number"], kept["threshold"], kept["minimum"], mask, channel, seed, keys, held, kept["done"])

    def _due(self, exchange: int) -> None:
        """NotOpened if this exchange was answered before, or another is due."""
        if self._done != exchange - 1:
            raise NotOpened(f"exchange {exchange} of a sum of which {self._done} are done: each is answered once")

    def _channel_key(self, other: int) -> bytes:
        return agreed(self._channel, self._keys[other].channel, b"channel")


def open_sum(
    masked: Mapping[int, Words],
    revealed: Mapping[int, Mapping[int, int]],
    keys: Mapping[int, PublicKeys],
    threshold: int,
) -> Words:
    """The server's side: the sum `(d,)` of the vectors behind `masked`.

    `revealed[i][j]` is client i's share of client j, and `keys` are the public keys of all who sent shares.
    """
    if len(revealed) < threshold:
        raise NotOpened(f"{len(revealed)} clients showed their shares, {threshold} are needed")
    size = len(next(iter(masked.values())))
    total = np.zeros(size, dtype=np.uint32)
    for vector in masked.values():
        total += vector
    holders = sorted(revealed)[:threshold]
    subjects = set.intersection(*(set(revealed[holder]) for holder in holders))
    for number in sorted(subjects):
        secret = join({holder: revealed[holder][number] for holder in holders}).to_bytes(KEY_BYTES)
        if number in masked:
            total -= own_stream(secret, size)
            continue
        if public_key(secret) != keys[number].mask:
            raise NotOpened(f"the shares of client {number} do not give its key")
        for other in masked:
            # What client `other` added for the pair: it does not cancel, because this one never sent its half.
            total -= pair_stream(secret, keys[other].mask, number, other, size, reverse=True)
    return total


def secure_sum(
    vectors: Sequence[npt.NDArray[np.floating]],
    quantiser: Encoding,
    threshold: int,
    minimum: int,
    silent: Iterable[int] = (),
    mute: Iterable[int] = (),
) -> tuple[npt.NDArray[np.float64], list[int], Traffic]:
    """The whole protocol in one process: the sum, who is in it (positions), and the bytes that it took.

    Clients `silent` drop out after the shares, clients `mute` after their vector.
    """
    clients = {i + 1: SecureClient(i + 1, threshold, minimum) for i in range(len(vectors))}
    keys = {number: client.keys() for number, client in clients.items()}
    sealed = {number: client.shares(keys) for number, client in clients.items()}
    gone = {i + 1 for i in silent}
    masked = {
        number: client.masked(
            quantiser.encode(vectors[number - 1]), {s: boxes[number] for s, boxes in sealed.items() if s != number}
        )
        for number, client in clients.items()
        if number not in gone
    }
    gone |= {i + 1 for i in mute}
    revealed = {number: client.reveal(masked) for number, client in clients.items() if number not in gone}
    total = open_sum(masked, revealed, keys, threshold)
    return quantiser.decode(total), [number - 1 for number in masked], traffic(len(vectors), len(vectors[0]))


class Traffic(NamedTuple):
    """Bytes of one sum, all clients together."""

    down: int
    up: int


def traffic(clients: int, size: int) -> Traffic:
    """What the protocol sends beside the tasks: keys, sealed shares, lists and shares; up, the masked vectors too."""
    sealed, each, keys = SEALED_BYTES, clients - 1, 2 * KEY_BYTES + VOUCHER_BYTES
    down = clients * (keys * each + sealed * each + 4 * clients)
    up = clients * (keys + sealed * each + SHARE_BYTES * clients + MODULUS_BITS // 8 * size)
    return Traffic(down, up)


def split(secret: int, threshold: int, numbers: Sequence[int]) -> dict[int, int]:
    """Shamir's shares of a secret for each number: any `threshold` of them give it back, fewer tell nothing of it."""
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
    if total >= 2 ** (8 * KEY_BYTES):
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


def own_stream(seed: bytes, size: int) -> Words:
    """The words `(size,)` that a client adds by itself."""
    return np.frombuffer(stream(seed, "own", 4 * size), "<u4").astype(np.uint32)


def pair_stream(private: bytes, public: bytes, number: int, other: int, size: int, *, reverse: bool = False) -> Words:
    """The words that client `number` adds for its pair with `other`; with `reverse`, those that `other` adds."""
    words = np.frombuffer(stream(agreed(private, public, b"mask"), "pair", 4 * size), "<u4").astype(np.uint32)
    adds = (number < other) != reverse
    return words if adds else np.uint32(0) - words


def public_key(private: bytes) -> bytes:
    """The X25519 public key of a private one."""
    x25519 = _x25519()
    found: bytes = x25519.X25519PrivateKey.from_private_bytes(private).public_key().public_bytes_raw()
    return found


def agreed(private: bytes, public: bytes, purpose: bytes) -> bytes:
    """The 256-bit key that the holder of `private` and the owner of `public` both find, and nobody else."""
    from cryptography.hazmat.primitives.hashes import SHA256
    from cryptography.hazmat.primitives.kdf.hkdf import HKDF

    x25519 = _x25519()
    shared = x25519.X25519PrivateKey.from_private_bytes(private).exchange(
        x25519.X25519PublicKey.from_public_bytes(public)
    )
    return HKDF(SHA256(), KEY_BYTES, salt=None, info=b"coterie " + purpose).derive(shared)


def seal(key: bytes, sender: int, receiver: int, plain: bytes) -> bytes:
    """`plain` encrypted from one client to another; nobody else reads it, or changes it unseen."""
    from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305

    nonce = secrets.token_bytes(12)
    return nonce + ChaCha20Poly1305(key).encrypt(nonce, plain, f"{sender}>{receiver}".encode())


def unseal(key: bytes, sender: int, receiver: int, box: bytes) -> bytes:
    """What `seal` was given; NotOpened for anything else."""
    from cryptography.exceptions import InvalidTag
    from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305

    try:
        return ChaCha20Poly1305(key).decrypt(box[:12], box[12:], f"{sender}>{receiver}".encode())
    except (InvalidTag, ValueError) as problem:
        raise NotOpened(f"what client {sender} sent to client {receiver} has been changed on the way") from problem


def _x25519() -> Any:
    with extra("secure", "a secure sum"):
        from cryptography.hazmat.primitives.asymmetric import x25519
    return x25519
