"""What two clients of a sum do with their keys: agree on one, seal boxes, sign, and draw the streams of their masks."""

from __future__ import annotations

import secrets
from typing import Any

import numpy as np

from coterie.errors import extra
from coterie.privacy.keys import KEY_BYTES, stream
from coterie.privacy.sum_terms import NotOpened
from coterie.privacy.whole_numbers import Words

SIGNATURE_BYTES = 64


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


def is_signed(public: bytes, text: bytes, signature: bytes) -> bool:
    """Whether the owner of an Ed25519 public key has signed a text."""
    from cryptography.exceptions import InvalidSignature
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

    try:
        Ed25519PublicKey.from_public_bytes(public).verify(signature, text)
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
