"""Sums of hidden vectors: each client hides its own with masks that cancel in the sum (Bonawitz et al. 2017).

Every pair of clients agrees on a key (X25519) that only the two know; its stream is added by one and taken off by the
other. Each client adds a stream of its own beside it. Secrets are shared out among all (Shamir), so that the server can
take off what does not cancel: of a client that came through, the own stream; of one that dropped out, the streams of
its pairs; never both of one client, for then its vector would lie open. Vectors are whole numbers modulo 2^32, so that
a masked one is uniformly random whatever it holds. Six exchanges: keys, shares, a check of the shares, masked vectors,
an agreement on who came through, shares of the masks. Who deals shares commits to each of them and to its seed and
signs what it sends, so that a wrong box or share shows who sent it. All signatures are over the sum's terms: its name,
tasks, weights, limits and the keys of all who take part.

`docs/secure-sums.md` says who learns what. A server that hands out keys of its own in the clients' names is found out
where the clients share a secret that it does not know, by which they vouch for their keys.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import math
import secrets
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from coterie.errors import ConfigError, CoterieError, extra
from coterie.privacy.keys import stream

PRIME = 2**521 - 1
"""Shares are points of polynomials over this field; a secret has 256 bits."""
SHARE_BYTES = 66
KEY_BYTES = 32
SIGNATURE_BYTES = 64
SEALED_BYTES = 2 * SHARE_BYTES + 28 + SIGNATURE_BYTES
"""Two shares, sealed for one client and signed."""
VOUCHER_BYTES = 32
MOST_NUMBER = 2**31
"""The largest number of a client in a sum."""
MODULUS_BITS = 32
WIDE_LIMIT = 2.0**30
Words = npt.NDArray[np.uint32]


UNEVEN = 10.0
"""The most that a weight may be of the one that is the `minimum`-th largest: beyond, a sum is all but one vector."""


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


def check_weights(weights: Iterable[float], minimum: int) -> None:
    """NotOpened where a sum with these weights would reveal more than one of `minimum` vectors does."""
    ranked = sorted(weights, reverse=True)
    if not all(0 < weight < math.inf for weight in ranked):
        raise NotOpened("a weight in the sum is not a number above 0")
    if len(ranked) >= minimum and ranked[0] > UNEVEN * ranked[minimum - 1]:
        raise NotOpened(
            f"of {len(ranked)} weights fewer than {minimum} are more than a {UNEVEN:g}th of the largest: the sum would "
            "show a single vector; lower weight_cap, or weigh clients alike"
        )


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


class PublicKeys(NamedTuple):
    """What a client shows of itself: a key for the masks, one for what others send to it, one for its signatures."""

    mask: bytes
    channel: bytes
    sign: bytes


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
        if count < max(self.minimum, self.threshold):
            raise NotOpened(f"{count} clients, at least {max(self.minimum, self.threshold)} are needed for a sum")
        if self.threshold < least_threshold(count):
            raise NotOpened(f"{self.threshold} of {count} shares would open a secret: more than two thirds must")
        if len({key for own in self.keys.values() for key in own}) != len(PublicKeys._fields) * count:
            raise NotOpened("the keys of the clients are not all different")
        if set(self.weights) != set(self.keys):
            raise NotOpened("the weights are not one for each client of the sum")
        check_weights(self.weights.values(), self.minimum)


def box_text(terms: bytes, sender: int, receiver: int, box: bytes, commitments: tuple[bytes, bytes]) -> bytes:
    """What the sender of a box signs."""
    return b"box" + terms + f"{sender}>{receiver}".encode() + b"".join(commitments) + box


def list_text(terms: bytes, purpose: str, numbers: Iterable[int]) -> bytes:
    """What a client signs that holds a list of clients for right."""
    return purpose.encode() + terms + ",".join(map(str, sorted(numbers))).encode()


def vouch(secret: bytes | None, number: int, keys: PublicKeys) -> bytes:
    """What only a holder of the clients' secret can say for the keys of client `number`; zeros without a secret."""
    if secret is None:
        return bytes(VOUCHER_BYTES)
    return hmac.digest(secret, f"secure sum {number} ".encode() + b"".join(keys), "sha256")


class Shares(NamedTuple):
    """One client's part of another's secrets: of its mask key, and of the seed of its own stream."""

    key: int
    seed: int

    def to_bytes(self) -> bytes:
        """Both as bytes."""
        return self.key.to_bytes(SHARE_BYTES) + self.seed.to_bytes(SHARE_BYTES)

    @classmethod
    def from_bytes(cls, plain: bytes) -> Shares:
        """What `to_bytes` was asked of."""
        return cls(int.from_bytes(plain[:SHARE_BYTES]), int.from_bytes(plain[SHARE_BYTES:]))

    def commitments(self, dealer: int, holder: int) -> tuple[bytes, bytes]:
        """What binds the dealer to both, and reveals nothing of them: they have 521 random bits."""
        return commitment(dealer, holder, "key", self.key), commitment(dealer, holder, "seed", self.seed)


def commitment(dealer: int, holder: int, kind: str, share: int) -> bytes:
    """The hash of one share, for whom and from whom it is."""
    text = f"{dealer}>{holder} {kind} {share:x}"
    return hashlib.blake2b(text.encode(), digest_size=KEY_BYTES, person=b"coterie share").digest()


class Dealt(NamedTuple):
    """What a client sends in the second exchange: sealed shares by receiver, and what it commits itself to."""

    boxes: dict[int, bytes]
    """Each with the sender's signature behind it."""
    commitments: dict[int, tuple[bytes, bytes]]
    """By holder, of the shares of its key and of its seed."""
    seed: bytes
    """The hash of its seed; its key is the one behind its public key."""


def seed_commitment(seed: bytes) -> bytes:
    """What binds a client to its seed."""
    return hashlib.blake2b(seed, digest_size=KEY_BYTES, person=b"coterie seed").digest()


OVER = "over"
EXCHANGES = ("keys", "shares", "check", "masked", "agree", "reveal")


@dataclass
class SecureClient:
    """One client's side of one sum."""

    number: int
    """From 1 up, different for every client of the sum."""
    _mask: bytes = field(default_factory=lambda: secrets.token_bytes(KEY_BYTES), repr=False)
    _channel: bytes = field(default_factory=lambda: secrets.token_bytes(KEY_BYTES), repr=False)
    _sign: bytes = field(default_factory=lambda: secrets.token_bytes(KEY_BYTES), repr=False)
    _seed: bytes = field(default_factory=lambda: secrets.token_bytes(KEY_BYTES), repr=False)
    _terms: Terms | None = field(default=None, repr=False)
    _held: dict[int, Shares] = field(default_factory=dict, repr=False)
    _done: str = "keys"
    """The last exchange that it has answered: each once and in order, or a second answer would reveal a vector."""

    @property
    def terms(self) -> Terms:
        """What the sum is of; known from the second exchange on."""
        if self._terms is None:
            raise NotOpened("this client does not know yet what the sum is of")
        return self._terms

    @property
    def needed(self) -> int:
        """How many must come through."""
        return max(self.terms.minimum, self.terms.threshold)

    def keys(self) -> PublicKeys:
        """First exchange: the public keys."""
        return PublicKeys(public_key(self._mask), public_key(self._channel), signing_key(self._sign))

    def shares(self, terms: Terms) -> Dealt:
        """Second exchange: for each other client a sealed share of this one's secrets, and commitments to all."""
        self._due("shares")
        terms.check()
        if terms.keys.get(self.number) != self.keys():
            raise NotOpened("the keys of this client are not those that it sent")
        self._terms, digest, numbers = terms, terms.digest(), sorted(terms.keys)
        mask, seed = (split(int.from_bytes(s), terms.threshold, numbers) for s in (self._mask, self._seed))
        dealt = {number: Shares(mask[number], seed[number]) for number in numbers}
        commitments = {number: own.commitments(self.number, number) for number, own in dealt.items()}
        self._held[self.number] = dealt.pop(self.number)
        boxes = {}
        for number, own in dealt.items():
            box = seal(self._channel_key(number), self.number, number, own.to_bytes())
            boxes[number] = box + signed(self._sign, box_text(digest, self.number, number, box, commitments[number]))
        return Dealt(boxes, commitments, seed_commitment(self._seed))

    def check(self, boxes: Mapping[int, bytes], commitments: Mapping[int, tuple[bytes, bytes]]) -> set[int]:
        """Third exchange: open the others' boxes; the senders of those that do not hold what was committed to."""
        self._due("check")
        wrong, digest = set(), self.terms.digest()
        for sender, box in boxes.items():
            if not box_signed(digest, self.terms.keys[sender], sender, self.number, box, commitments[sender]):
                raise NotOpened(f"what client {sender} sent to client {self.number} has been changed on the way")
            found = opened(self._channel_key(sender), sender, self.number, box, commitments[sender])
            if found is None:
                wrong.add(sender)
            else:
                self._held[sender] = found
        if wrong:
            self._done = OVER
        return wrong

    def evidence(self) -> bytes:
        """The key of the boxes, for the server to see what was in them; only of a sum that is over for this client.

        It never confirms its shares then, so the vectors of those who go on have fewer than `threshold` shown shares.
        """
        if self._done != OVER:
            raise NotOpened("the key of a sum that goes on is not shown")
        return self._channel

    def confirmation(self) -> bytes:
        """The signature that the shares of all others were right."""
        if self._done != "check":
            raise NotOpened("this client has not found all shares right")
        return signed(self._sign, list_text(self.terms.digest(), "shares", ()))

    def share_of_largest(self) -> float:
        """This client's weight over the largest."""
        return self.terms.weights[self.number] / max(self.terms.weights.values())

    def masked(self, vector: Words, confirmed: Mapping[int, bytes]) -> Words:
        """Fourth exchange: the vector `(d,)` under masks with each of those who have confirmed, by their signatures."""
        self._due("masked")
        if self.number not in confirmed or not set(confirmed) <= set(self._held):
            raise NotOpened("the list of those who take part does not fit the shares that this client has")
        self._check_signatures(confirmed, "shares", ())
        self._held = {number: shares for number, shares in self._held.items() if number in confirmed}
        total = vector + own_stream(self._seed, len(vector))
        for other in self._held:
            if other != self.number:
                total += pair_stream(self._mask, self.terms.keys[other].mask, self.number, other, len(vector))
        return total

    def agree(self, through: Iterable[int]) -> bytes:
        """Fifth exchange: a signature on who came through, one list only."""
        self._due("agree")
        self._check_list(set(through))
        return signed(self._sign, list_text(self.terms.digest(), "through", through))

    def reveal(self, through: Iterable[int], signatures: Mapping[int, bytes]) -> dict[int, int]:
        """Sixth exchange: of each client that came through a share of its seed, of the others one of their keys.

        It answers once, where as many as are needed have signed the same list.
        """
        came = set(through)
        self._due("reveal")
        self._check_list(came)
        self._check_signatures(signatures, "through", came)
        return {number: own.seed if number in came else own.key for number, own in self._held.items()}

    def _check_list(self, came: set[int]) -> None:
        if self.number not in came or not came <= set(self._held):
            raise NotOpened("the list of those that came through does not fit what this client has seen")
        if len(came) < self.needed:
            raise NotOpened(f"{len(came)} vectors came through, {self.needed} are needed for a sum")

    def _check_signatures(self, signatures: Mapping[int, bytes], purpose: str, numbers: Iterable[int]) -> None:
        text = list_text(self.terms.digest(), purpose, numbers)
        right = [
            n for n, own in signatures.items() if n in self.terms.keys and is_signed(self.terms.keys[n], text, own)
        ]
        if len(right) < len(signatures):
            raise NotOpened(f"a signature of the list of {purpose} is false")
        if len(right) < self.needed:
            raise NotOpened(f"{len(right)} clients have signed the list of {purpose}, {self.needed} are needed")

    def to_json(self) -> dict[str, Any]:
        """All that the client must remember between two exchanges; secret."""
        kept = None if self._terms is None else self._terms._asdict()
        if kept is not None:
            kept["keys"] = {number: [key.hex() for key in keys] for number, keys in self.terms.keys.items()}
        return {
            "number": self.number,
            "secrets": [secret.hex() for secret in (self._mask, self._channel, self._sign, self._seed)],
            "terms": kept,
            "held": {number: [hex(share) for share in shares] for number, shares in self._held.items()},
            "done": self._done,
        }

    @classmethod
    def from_json(cls, kept: Mapping[str, Any]) -> SecureClient:
        """The client that `to_json` was asked of."""
        held = {int(n): Shares(*(int(share, 16) for share in pair)) for n, pair in kept["held"].items()}
        terms = kept["terms"]
        if terms is not None:
            keys = {int(n): PublicKeys(*map(bytes.fromhex, own)) for n, own in terms["keys"].items()}
            weights = {int(n): weight for n, weight in terms["weights"].items()}
            noise = terms["noise"] and tuple(terms["noise"])
            changed = {"keys": keys, "weights": weights, "tasks": tuple(terms["tasks"]), "noise": noise}
            terms = Terms(**terms | changed)
        mask, channel, sign, seed = map(bytes.fromhex, kept["secrets"])
        return cls(kept["number"], mask, channel, sign, seed, terms, held, kept["done"])

    def _due(self, exchange: str) -> None:
        """Go on to an exchange; NotOpened if it was answered before, or another is due."""
        if self._done == OVER or EXCHANGES.index(exchange) != EXCHANGES.index(self._done) + 1:
            raise NotOpened(f"exchange {exchange!r} of a sum after {self._done!r}: each is answered once, in order")
        self._done = exchange

    def _channel_key(self, other: int) -> bytes:
        return agreed(self._channel, self.terms.keys[other].channel, b"channel")


def box_signed(
    terms: bytes, keys: PublicKeys, sender: int, receiver: int, box: bytes, commitments: tuple[bytes, bytes]
) -> bool:
    """Whether a box is as its sender, the owner of the keys, sent it."""
    text = box_text(terms, sender, receiver, box[:-SIGNATURE_BYTES], commitments)
    return is_signed(keys, text, box[-SIGNATURE_BYTES:])


def opened(key: bytes, sender: int, receiver: int, box: bytes, commitments: tuple[bytes, bytes]) -> Shares | None:
    """The shares in a box, or None where it cannot be opened or holds others than the sender committed to."""
    try:
        found = Shares.from_bytes(unseal(key, sender, receiver, box[:-SIGNATURE_BYTES]))
    except NotOpened:
        return None
    return found if found.commitments(sender, receiver) == commitments else None


def liar(
    accuser: int,
    sender: int,
    evidence: bytes,
    keys: Mapping[int, PublicKeys],
    box: bytes,
    commitments: tuple[bytes, bytes],
) -> int:
    """Who is wrong where `accuser` says that a box of `sender` is, and shows the key of its boxes: one of the two."""
    if public_key(evidence) != keys[accuser].channel:
        return accuser
    key = agreed(evidence, keys[sender].channel, b"channel")
    return sender if opened(key, sender, accuser, box, commitments) is None else accuser


def unsound_keys(keys: Mapping[int, PublicKeys]) -> dict[int, str]:
    """Clients whose keys cannot be used, and why: with one of these in it no client could send a share."""
    wrong: dict[int, str] = {}
    seen: set[bytes] = set()
    for number, own in keys.items():
        try:
            for key in (own.mask, own.channel):
                agreed(secrets.token_bytes(KEY_BYTES), key, b"test")
        except ValueError:
            wrong[number] = "its keys are none"
        if seen & set(own) or len(set(own)) < len(own):
            wrong[number] = "its keys are another client's"
        seen |= set(own)
    return wrong


def open_sum(
    masked: Mapping[int, Words],
    revealed: Mapping[int, Mapping[int, int]],
    keys: Mapping[int, PublicKeys],
    dealt: Mapping[int, Dealt],
    threshold: int,
) -> tuple[Words, dict[int, str]]:
    """The server's side: the sum `(d,)` of the vectors behind `masked`, and the clients whose shares were wrong.

    `revealed[i][j]` is client i's share of client j; `keys` and `dealt` are what all sent before.
    """
    culprits = _false_holders(masked, revealed, dealt)
    holders = sorted(set(revealed) - set(culprits))[:threshold]
    if len(holders) < threshold:
        raise NotOpened(f"{len(holders)} clients showed their shares, {threshold} are needed", culprits)
    size = len(next(iter(masked.values())))
    total = np.zeros(size, dtype=np.uint32)
    for vector in masked.values():
        total += vector
    for number in sorted(revealed[holders[0]]):
        secret = _joined(number, {holder: revealed[holder][number] for holder in holders}, culprits)
        right = (
            seed_commitment(secret) == dealt[number].seed
            if number in masked
            else public_key(secret) == keys[number].mask
        )
        if not right:
            raise NotOpened(f"the shares of client {number} do not give its secret", culprits | {number: DEALT_WRONG})
        total -= _left_over(number, secret, masked, keys, size)
    return total, culprits


def _false_holders(
    masked: Container[int], revealed: Mapping[int, Mapping[int, int]], dealt: Mapping[int, Dealt]
) -> dict[int, str]:
    """The clients that showed a share other than the one they were dealt."""
    culprits: dict[int, str] = {}
    for holder, shares in revealed.items():
        for number, share in shares.items():
            kind = "seed" if number in masked else "key"
            if commitment(number, holder, kind, share) != dealt[number].commitments[holder][kind == "seed"]:
                culprits[holder] = f"it showed a share of client {number} that is not the one it was given"
    return culprits


def _left_over(
    number: int, secret: bytes, masked: Mapping[int, Words], keys: Mapping[int, PublicKeys], size: int
) -> Words:
    """What does not cancel in the sum: the own stream of a client that came through, else the streams of its pairs."""
    if number in masked:
        return own_stream(secret, size)
    left = np.zeros(size, dtype=np.uint32)
    for other in masked:  # what these added for the pair, whose other half was never sent
        left += pair_stream(secret, keys[other].mask, number, other, size, reverse=True)
    return left


DEALT_WRONG = "it dealt shares that do not give the secret it committed to"


def _joined(number: int, shares: Mapping[int, int], culprits: Mapping[int, str]) -> bytes:
    try:
        return join(shares).to_bytes(KEY_BYTES)
    except NotOpened as problem:
        raise NotOpened(f"the shares of client {number}: {problem}", {**culprits, number: DEALT_WRONG}) from None


class Traffic(NamedTuple):
    """Bytes of one sum, all clients together."""

    down: int
    up: int


def traffic(clients: int) -> Traffic:
    """What the protocol sends beside the tasks and the vectors: keys, sealed shares, lists and shares."""
    others, keys, lists = clients - 1, 3 * KEY_BYTES + VOUCHER_BYTES, 4 * clients
    box, dealt = SEALED_BYTES + 2 * KEY_BYTES, SEALED_BYTES * others + 2 * KEY_BYTES * clients + KEY_BYTES
    signatures = SIGNATURE_BYTES * clients
    down = clients * (keys * others + 2 * lists + box * others + 2 * (signatures + lists))
    checked = others + KEY_BYTES + SIGNATURE_BYTES
    up = clients * (keys + dealt + checked + SIGNATURE_BYTES + SHARE_BYTES * clients)
    return Traffic(down, up)


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


def signing_key(private: bytes) -> bytes:
    """The Ed25519 public key of a private one."""
    with extra("secure", "a secure sum"):
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    found: bytes = Ed25519PrivateKey.from_private_bytes(private).public_key().public_bytes_raw()
    return found


def signed(private: bytes, text: bytes) -> bytes:
    """The Ed25519 signature of a text."""
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    found: bytes = Ed25519PrivateKey.from_private_bytes(private).sign(text)
    return found


def is_signed(keys: PublicKeys, text: bytes, signature: bytes) -> bool:
    """Whether the owner of the keys has signed a text."""
    from cryptography.exceptions import InvalidSignature
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

    try:
        Ed25519PublicKey.from_public_bytes(keys.sign).verify(signature, text)
    except (InvalidSignature, ValueError):
        return False
    return True


def agreed(private: bytes, public: bytes, purpose: bytes) -> bytes:
    """The 256-bit key that the holder of `private` and the owner of `public` both find, and no other."""
    from cryptography.hazmat.primitives.hashes import SHA256
    from cryptography.hazmat.primitives.kdf.hkdf import HKDF

    x25519 = _x25519()
    shared = x25519.X25519PrivateKey.from_private_bytes(private).exchange(
        x25519.X25519PublicKey.from_public_bytes(public)
    )
    return HKDF(SHA256(), KEY_BYTES, salt=None, info=b"coterie " + purpose).derive(shared)


def seal(key: bytes, sender: int, receiver: int, plain: bytes) -> bytes:
    """`plain` encrypted from one client to another; no other reads it, or changes it unnoticed."""
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
