"""Certificates and keys of a deployment: server and nodes prove who they are."""

from __future__ import annotations

import ipaddress
import json
import os
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from coterie.errors import ConfigError

DAYS = 365
"""How long the certificates are valid."""


@dataclass(frozen=True)
class Certificates:
    """The files of a server's certificate; `authority` is the one that nodes and users get."""

    authority: Path
    certificate: Path
    key: Path


def make_certificates(folder: Path, hosts: Sequence[str]) -> Certificates:
    """A certificate authority of one's own, and a certificate signed by it for a server reached as any of `hosts`.

    What the folder already holds is kept, so that nodes which have the authority's certificate go on trusting it.
    """
    made = Certificates(folder / "ca.crt", folder / "server.pem", folder / "server.key")
    if made.authority.exists() and made.certificate.exists() and made.key.exists():
        return made
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    new_key = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-384", "-nodes"]
    authority, request = folder / "ca.cnf", folder / "server.cnf"
    authority.write_text(
        "[req]\ndistinguished_name = name\nx509_extensions = v3\nprompt = no\n[name]\nCN = coterie deployment\n"
        "[v3]\nbasicConstraints = critical, CA:TRUE, pathlen:0\nkeyUsage = critical, keyCertSign, cRLSign\n"
        "subjectKeyIdentifier = hash\n"
    )
    request.write_text(
        f"[req]\ndistinguished_name = name\nprompt = no\n[name]\nCN = {hosts[0][:64]}\n"
        "[v3]\nbasicConstraints = critical, CA:FALSE\nkeyUsage = critical, digitalSignature\n"
        "extendedKeyUsage = serverAuth\nsubjectKeyIdentifier = hash\nauthorityKeyIdentifier = keyid\n"
        f"subjectAltName = {', '.join(map(_alternative_name, hosts))}\n"
    )
    _call("openssl", "req", "-x509", *new_key, "-days", DAYS, "-config", authority,
          "-keyout", folder / "ca.key", "-out", made.authority)  # fmt: skip
    _call("openssl", "req", *new_key, "-config", request, "-keyout", made.key, "-out", folder / "server.csr")
    _call("openssl", "x509", "-req", "-in", folder / "server.csr", "-CA", made.authority, "-CAkey", folder / "ca.key",
          "-CAcreateserial", "-days", DAYS, "-extensions", "v3", "-extfile", request,
          "-out", made.certificate)  # fmt: skip
    for private in (folder / "ca.key", made.key):
        private.chmod(0o600)
    for spent in (authority, request, folder / "server.csr"):
        spent.unlink()
    return made


def make_node_key(folder: Path, name: str) -> Path:
    """A node's private key `folder/name`, with the public one beside it as `name.pub`; an existing one is kept."""
    from cryptography.hazmat.primitives.asymmetric.ec import SECP384R1, generate_private_key
    from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat

    key = folder / name
    if not (key.exists() and public_key(key).exists()):
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        made = generate_private_key(SECP384R1())
        key.touch(mode=0o600)
        key.write_bytes(made.private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption()))
        public_key(key).write_bytes(made.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH) + b"\n")
    return key


def public_key(key: Path) -> Path:
    """The file of the public key that belongs to a private one."""
    return key.with_name(key.name + ".pub")


def read_lines(path: Path) -> dict[str, str]:
    """The lines of the clients' .pub files by their names, from an operator's JSON file."""
    try:
        table = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as problem:
        raise ConfigError(f"{path}: the list of keys cannot be read ({problem})") from problem
    if not isinstance(table, dict) or not all(isinstance(key, str) and key for key in table.values()):
        raise ConfigError(f'{path}: expected a table {{"client": "the line in its node\'s .pub file", …}}')
    return table


def key_in_hex(text: str) -> str:
    """A node's public key as Flower reports it, in hexadecimal, from that or from the line in its .pub file.

    Raises:
        ConfigError: the text is neither.
    """
    from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat, load_ssh_public_key

    try:
        if " " not in text.strip():
            return bytes.fromhex(text).hex()
        loaded = load_ssh_public_key(text.encode())
        return loaded.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo).hex()
    except Exception as problem:
        raise ConfigError(
            f"{text[:40]!r} is no public key ({problem}): give the line in the node's .pub file, or hexadecimal digits"
        ) from problem


def _alternative_name(host: str) -> str:
    try:
        return f"IP:{ipaddress.ip_address(host)}"
    except ValueError:
        return f"DNS:{host}"


def _call(*words: str | int | Path) -> None:
    try:
        # A umask of its own: a private key must not be readable by others even for the moment before a chmod.
        done = subprocess.run(
            [str(word) for word in words], capture_output=True, text=True, stdin=subprocess.DEVNULL,
            env=os.environ | {"LC_ALL": "C"}, umask=0o077,
        )  # fmt: skip
    except FileNotFoundError:
        raise ConfigError(f"{words[0]} is needed for certificates and keys and is not installed: install it") from None
    if done.returncode:
        said = " ".join(done.stderr.split())[-300:]
        raise ConfigError(f"{words[0]} could not make {words[-1]}: {said}")
