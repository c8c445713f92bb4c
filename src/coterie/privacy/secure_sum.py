"""Sums of hidden vectors: each client hides its own with masks that cancel in the sum (Bonawitz et al. 2017).

Every pair of clients agrees on a key (X25519) that only the two know; its stream is added by one and taken off by the
other. Each client adds a stream of its own beside it. Secrets are shared out among all (Shamir), so that the server can
take off what does not cancel: of a client that came through, the own stream; of one that dropped out, the streams of
its pairs; never both of one client, for then its vector would lie open. Vectors are whole numbers modulo 2^32, so that
a masked one is uniformly random whatever it holds. Six exchanges: keys, shares, a check of the shares, masked vectors,
an agreement on who came through, shares of the masks. Who deals shares commits to each of them and to its seed and
signs what it sends, so that a wrong box or share shows who sent it. All signatures are over the sum's terms: its name,
tasks, weights, limits and the keys of all who take part, which each has certified by a key of its own (`client_keys`).

`docs/secure-sums.md` says who learns what. A server that makes up clients, or hands out keys in their names, is found
out by those that have a list of the clients' own keys.
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from coterie.privacy.client_keys import CERTIFICATE_BYTES, OWNER_BYTES, new_signing_key, owner_of
from coterie.privacy.keys import KEY_BYTES
from coterie.privacy.sealing import (
    SIGNATURE_BYTES,
    agreed,
    is_signed,
    own_stream,
    pair_stream,
    public_key,
    seal,
    signed,
    signing_key,
    unseal,
)
from coterie.privacy.shamir import SHARE_BYTES, split
from coterie.privacy.sum_terms import NotOpened, PublicKeys, Terms, box_text, check_weights, list_text
from coterie.privacy.whole_numbers import Words
from coterie.trainers.base import UNEVEN

SEALED_BYTES = 2 * SHARE_BYTES + 28 + SIGNATURE_BYTES
"""Two shares, sealed for one client and signed."""
OFFERED_BYTES = 3 * KEY_BYTES + OWNER_BYTES + CERTIFICATE_BYTES
"""Three fresh keys, the client's own, and its certificate of them."""


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
    _owner: bytes = field(default_factory=lambda: owner_of(new_signing_key()), repr=False)
    """The public key of the client's own by which others know it."""
    uneven: float = UNEVEN
    """How much larger than another a weight may be: see `check_weights`."""
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
        fresh = public_key(self._mask), public_key(self._channel), signing_key(self._sign)
        return PublicKeys(*fresh, self._owner)

    def shares(self, terms: Terms) -> Dealt:
        """Second exchange: for each other client a sealed share of this one's secrets, and commitments to all."""
        self._due("shares")
        terms.check()
        check_weights(terms.weights.values(), terms.minimum, self.uneven)
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
        # Once more: a server could call dropped out whose weights make up for one that is large.
        check_weights((self.terms.weights[number] for number in came), self.terms.minimum, self.uneven)

    def _check_signatures(self, signatures: Mapping[int, bytes], purpose: str, numbers: Iterable[int]) -> None:
        text = list_text(self.terms.digest(), purpose, numbers)
        right = [
            n for n, own in signatures.items() if n in self.terms.keys and is_signed(self.terms.keys[n].sign, text, own)
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
            "secrets": [own.hex() for own in (self._mask, self._channel, self._sign, self._seed, self._owner)],
            "uneven": self.uneven,
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
        mask, channel, sign, seed, owner = map(bytes.fromhex, kept["secrets"])
        return cls(kept["number"], mask, channel, sign, seed, owner, kept["uneven"], terms, held, kept["done"])

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
    return is_signed(keys.sign, text, box[-SIGNATURE_BYTES:])


def opened(key: bytes, sender: int, receiver: int, box: bytes, commitments: tuple[bytes, bytes]) -> Shares | None:
    """The shares in a box, or None where it cannot be opened or holds others than the sender committed to."""
    try:
        found = Shares.from_bytes(unseal(key, sender, receiver, box[:-SIGNATURE_BYTES]))
    except NotOpened:
        return None
    return found if found.commitments(sender, receiver) == commitments else None


class Traffic(NamedTuple):
    """Bytes of one sum, all clients together."""

    down: int
    up: int


def traffic(clients: int) -> Traffic:
    """What the protocol sends beside the tasks and the vectors: keys, sealed shares, lists and shares."""
    others, keys, lists = clients - 1, OFFERED_BYTES, 4 * clients
    box, dealt = SEALED_BYTES + 2 * KEY_BYTES, SEALED_BYTES * others + 2 * KEY_BYTES * clients + KEY_BYTES
    signatures = SIGNATURE_BYTES * clients
    down = clients * (keys * others + 2 * lists + box * others + 2 * (signatures + lists))
    checked = others + KEY_BYTES + SIGNATURE_BYTES
    up = clients * (keys + dealt + checked + SIGNATURE_BYTES + SHARE_BYTES * clients)
    return Traffic(down, up)
