"""Producers' keys in files: PEM, JWK and JWK Set (RFC 7517), COSE_Key and COSE_KeySet (RFC 9052 section 7).

A file of public keys may hold several: PEM blocks one after another, or a set. What is wrong with a file is a
UsageError that names it. Nothing of a private key is ever in a message.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Sequence
from pathlib import Path

from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    load_pem_private_key,
    load_pem_public_key,
)

from kvcs.errors import UsageError
from kvcs.keyfaults import KEY_FAULTS
from kvcs.keysets import cose_keys, is_private, jwk_keys, private_of, public_of
from kvcs.producer_keys import PrivateKey, PublicKey, private_key, public_key
from kvcs.reading import read_up_to, unreadable

MAX_OCTETS = 1 << 20
MAX_KEYS = 1000

_PEM = re.compile(
    rb"-----BEGIN ([A-Z0-9 ]{1,40})-----(?:[^-]++|-(?!----))*+-----END \1-----", re.DOTALL
)
"""No dashes are looked past, so that a file of nothing but beginnings takes no longer than others."""


def load_public_keys(paths: Sequence[Path], key_id: bytes | None = None) -> list[PublicKey]:
    """The public keys in files. `key_id` names a key that has no identifier of its own, as in PEM.

    Other kinds of keys in a set are passed over; a private key is refused, for it does not belong there.
    """
    return [key for path in paths for key in _public_keys(path, key_id)]


def _public_keys(path: Path, key_id: bytes | None) -> list[PublicKey]:
    data = read(path, "--require-signature")
    try:
        if blocks := pem_blocks(data):
            keys = [pem_public(label, block, key_id) for label, block in blocks]
        else:
            found, single = structured(data)
            if any(is_private(key) for key in found):
                raise UsageError("it holds a private key; name the public one, FILE.pub")
            keys = list(_usable(public_of(key, key_id, skip=not single) for key in found))
        if not keys:
            raise UsageError("it holds no public key for ES256 or EdDSA")
        if key_id is not None and len(keys) > 1:
            raise UsageError("it holds several keys, which cannot all have one identifier (kid)")
    except UsageError as fault:
        raise UsageError(f"public keys: {path}: {fault}") from None
    return keys


def load_private_key(path: Path, key_id: bytes | None = None) -> PrivateKey:
    """The private key in a file. `key_id` is its identifier where the file, such as PEM, tells none."""
    data = read(path, "--sign")
    try:
        if blocks := pem_blocks(data):
            keys = [
                pem_private(block, key_id)
                for label, block in blocks
                if label.endswith(b"PRIVATE KEY")
            ]
        else:
            found, _ = structured(data)
            keys = [private_of(key, key_id) for key in found if is_private(key)]
        if len(keys) != 1:
            raise UsageError(f"expected one private key, it holds {len(keys) or 'none'}")
    except UsageError as fault:
        raise UsageError(f"private key: {path}: {fault}") from None
    return keys[0]


def read(path: Path, given: str) -> bytes:
    """A file of keys, named with `given`; raises UsageError."""
    try:
        data = read_up_to(path, MAX_OCTETS + 1)
    except OSError as fault:
        raise unreadable("key", path, fault, given) from None
    if len(data) > MAX_OCTETS:
        raise UsageError(f"key: {path} has more than {MAX_OCTETS} octets")
    return data


def structured(data: bytes) -> tuple[list[dict[object, object]], bool]:
    """The keys of a JSON or CBOR file, and whether it is a single one rather than a set."""
    read = jwk_keys if _is_json(data) else cose_keys
    keys, single = read(data, MAX_OCTETS)
    if len(keys) > MAX_KEYS:
        raise UsageError(f"it has more than {MAX_KEYS} keys")
    return keys, single


def _is_json(data: bytes) -> bool:
    return data.lstrip()[:1] == b"{"


def _usable(keys: Iterable[PublicKey | None]) -> Iterable[PublicKey]:
    return (key for key in keys if key is not None)


def pem_blocks(data: bytes) -> list[tuple[bytes, bytes]]:
    """Label and octets of each PEM block; none where the file is JSON, which may quote some."""
    if _is_json(data):
        return []
    blocks = [(match[1], match[0]) for match in _PEM.finditer(data)]
    if len(blocks) > MAX_KEYS:
        raise UsageError(f"it has more than {MAX_KEYS} keys")
    return blocks


def pem_public(label: bytes, block: bytes, key_id: bytes | None) -> PublicKey:
    """The public key in a PEM block; raises UsageError."""
    if label.endswith(b"PRIVATE KEY"):
        raise UsageError("it holds a private key; name the public one, FILE.pub")
    try:
        key = load_pem_public_key(block + b"\n")
    except KEY_FAULTS:
        raise UsageError(
            f"{label.decode('ascii')} is not a public key that can be read; kvcs keygen makes pairs"
        ) from None
    return public_key(key, key_id)


def pem_private(block: bytes, key_id: bytes | None) -> PrivateKey:
    """The private key in a PEM block; raises UsageError."""
    try:
        key = load_pem_private_key(block + b"\n", None)
    except TypeError:
        raise UsageError("it is protected by a password; remove that first") from None
    except KEY_FAULTS:
        raise UsageError(
            "its PEM is not a private key that can be read; kvcs keygen makes pairs"
        ) from None
    return private_key(key, key_id)


def write_key_pair(path: Path, key: PrivateKey) -> Path:
    """Writes `path`, for its owner's eyes only, and `path`.pub, both PEM; returns the latter.

    Raises UsageError where one of them exists already: a key is never overwritten.
    """
    private = key.key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    public = key.public.key.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    beside = path.with_name(f"{path.name}.pub")
    if beside.exists():
        raise UsageError(f"{beside} exists; a key is never overwritten")
    write_new(path, private, 0o600)
    write_new(beside, public, 0o644)
    return beside


def write_new(path: Path, octets: bytes, mode: int) -> None:
    """Writes a file that must not exist yet. Raises UsageError."""
    try:
        with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as file:
            file.write(octets)
    except FileExistsError:
        raise UsageError(f"{path} exists; a key is never overwritten") from None
    except OSError as fault:
        raise UsageError(f"cannot write {path}: {fault.strerror}") from None
