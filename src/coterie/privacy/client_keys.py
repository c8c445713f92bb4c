"""A signing key of a client's own, by which the others of a secure sum know it: registered once, used in every sum.

Keys are Ed25519 or ECDSA over P-256 and P-384; the latter is what Flower's SuperNodes prove themselves by, so a node's
own key file serves. A client without a file makes an Ed25519 key once and keeps it. With its key a client certifies the
fresh keys of every sum, for this sum and this number in it only.
"""

from __future__ import annotations

import secrets
from functools import lru_cache
from typing import Any

from coterie.errors import ConfigError, extra
from coterie.privacy.keys import KEY_BYTES

OWNER_BYTES = 120
"""A public key as SubjectPublicKeyInfo in DER, at most that of P-384, with zeros behind it."""
CERTIFICATE_BYTES = 104
"""A signature, at most that of P-384 in DER, with zeros behind it."""
ED25519_BYTES = 64
CURVES = ("secp256r1", "secp384r1")


def new_signing_key() -> bytes:
    """A fresh Ed25519 private key."""
    return secrets.token_bytes(KEY_BYTES)


@lru_cache(maxsize=256)  # a client signs with one key throughout
def owner_of(private: bytes) -> bytes:
    """The public key `(OWNER_BYTES)` of a private one: 32 bytes of Ed25519, or the text of an OpenSSH or PEM file."""
    return _as_owner(_opened(private).public_key())


def owner_from_line(line: str) -> bytes:
    """The public key in the line of a .pub file.

    Raises:
        ConfigError: it is none.
    """
    with extra("secure", "a secure sum"):
        from cryptography.hazmat.primitives.serialization import load_ssh_public_key
    try:
        return _as_owner(load_ssh_public_key(line.strip().encode()))
    except Exception as problem:  # the library raises errors of its own, of ValueError and of its parser
        raise ConfigError(
            f"{line[:40]!r} is no public key of a client ({problem}): give the line of its .pub file, from ssh-keygen "
            "-t ed25519 or -t ecdsa"
        ) from problem


def certify(private: bytes, text: bytes) -> bytes:
    """The signature `(CERTIFICATE_BYTES)` of a text by a client's own key."""
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    key = _opened(private)
    found: bytes = key.sign(text) if isinstance(key, Ed25519PrivateKey) else key.sign(text, _ecdsa())
    return found.ljust(CERTIFICATE_BYTES, b"\0")


def is_certified(owner: bytes, text: bytes, certificate: bytes) -> bool:
    """Whether the owner of a public key has signed a text."""
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
    from cryptography.hazmat.primitives.serialization import load_der_public_key

    try:
        key: Any = load_der_public_key(_without_zeros(owner))
        if _as_owner(key) != owner:  # one key under two spellings would be two clients
            return False
        if isinstance(key, Ed25519PublicKey):
            key.verify(certificate[:ED25519_BYTES], text)
        else:
            key.verify(_without_zeros(certificate), text, _ecdsa())
    except Exception:  # whatever a stranger's bytes make the library raise
        return False
    return True


def _opened(private: bytes) -> Any:
    """The key that certifies: of the library's own type."""
    with extra("secure", "a secure sum"):
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
        from cryptography.hazmat.primitives.serialization import load_pem_private_key, load_ssh_private_key
    if len(private) == KEY_BYTES:
        return Ed25519PrivateKey.from_private_bytes(private)
    load = load_ssh_private_key if b"OPENSSH" in private else load_pem_private_key
    try:
        return load(private, password=None)
    except Exception as problem:
        raise ConfigError(f"a client's signing key cannot be read ({problem}): give an OpenSSH or PEM file without "
                          "a password") from problem  # fmt: skip


def _as_owner(public: Any) -> bytes:
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePublicKey
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
    from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

    curve = public.curve.name if isinstance(public, EllipticCurvePublicKey) else None
    if not (isinstance(public, Ed25519PublicKey) or curve in CURVES):
        raise ConfigError(f"a client's key is {curve or type(public).__name__}, expected Ed25519, P-256 or P-384")
    found: bytes = public.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
    return found.ljust(OWNER_BYTES, b"\0")


def _without_zeros(padded: bytes) -> bytes:
    """One DER value of fewer than 128 bytes from the beginning of the bytes: its second byte says how long it is."""
    return padded[: 2 + padded[1]]


def _ecdsa() -> Any:
    from cryptography.hazmat.primitives.asymmetric.ec import ECDSA
    from cryptography.hazmat.primitives.hashes import SHA256

    return ECDSA(SHA256())
