"""The server's side of a secure sum: who did not keep to the protocol, and the sum of the others' vectors."""

from __future__ import annotations

import secrets
from collections.abc import Container, Mapping

import numpy as np

from coterie.privacy.client_keys import is_certified
from coterie.privacy.keys import KEY_BYTES
from coterie.privacy.sealing import agreed, own_stream, pair_stream, public_key
from coterie.privacy.secure_sum import Dealt, commitment, opened, seed_commitment
from coterie.privacy.shamir import join
from coterie.privacy.sum_terms import NotOpened, PublicKeys, keys_text
from coterie.privacy.whole_numbers import Words


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


def unsound_keys(name: str, offered: Mapping[int, tuple[PublicKeys, bytes]]) -> dict[int, str]:
    """Clients whose keys cannot be used, and why: with one of these in it no client could send a share.

    `offered` are keys with their certificates, in the order of the numbers.
    """
    wrong: dict[int, str] = {}
    seen: set[bytes] = set()
    for number, (own, certificate) in offered.items():
        if not is_certified(own.owner, keys_text(name, number, own), certificate):
            wrong[number] = "its keys are not certified by a key of its own"
            continue
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
