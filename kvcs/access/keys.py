"""The keys that seal authorisation tokens: of producers' kinds, or shared by issuer and relay."""

from __future__ import annotations

import base64
import json
import secrets
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeAlias

from kvcs.envelope import MAX_KEY_ID
from kvcs.errors import UsageError
from kvcs.keyfiles import pem_blocks, pem_private, pem_public, read, structured, write_new
from kvcs.keysets import Members, is_private, private_of, public_of
from kvcs.producer_keys import PrivateKey, PublicKey, shown_key_id

HS256 = 5
"""HMAC 256/256 in IANA's COSE Algorithms."""
SHARED_SIZE = 32
MAX_SHARED_SIZE = 128


@dataclass(frozen=True)
class SharedKey:
    """A secret for HMAC-SHA-256: who can check tokens with it can make them too."""

    octets: bytes = field(repr=False)
    key_id: bytes


CheckingKey: TypeAlias = PublicKey | SharedKey
SealingKey: TypeAlias = PrivateKey | SharedKey


def algorithm_of(key: CheckingKey | SealingKey) -> int:
    """The only algorithm, in COSE's number, that a key is used with."""
    return HS256 if isinstance(key, SharedKey) else int(key.algorithm)


class KeyRing:
    """The keys that are trusted, by key identifier. Several at a time, so that they can be rotated."""

    def __init__(self, keys: Iterable[CheckingKey]) -> None:
        """Raises UsageError for two keys with one identifier, and for none at all."""
        self._keys: dict[bytes, CheckingKey] = {}
        for key in keys:
            if self._keys.setdefault(key.key_id, key) != key:
                raise UsageError(f"two keys have the identifier (kid) {shown_key_id(key.key_id)}")
        if not self._keys:
            raise UsageError("there is no key to check tokens with")

    def __len__(self) -> int:
        return len(self._keys)

    def named(self, key_id: bytes) -> CheckingKey | None:
        """The key of that identifier."""
        return self._keys.get(key_id)

    def only(self, algorithm: int) -> CheckingKey | None:
        """The key for an algorithm, where there is just one."""
        found = [key for key in self._keys.values() if algorithm_of(key) == algorithm]
        return found[0] if len(found) == 1 else None


def generate_shared() -> SharedKey:
    """A new secret, with a random identifier."""
    return SharedKey(secrets.token_bytes(SHARED_SIZE), secrets.token_hex(8).encode("ascii"))


def write_shared(path: Path, key: SharedKey) -> None:
    """Writes a JWK for its owner's eyes only. Raises UsageError where the file exists."""
    k = base64.urlsafe_b64encode(key.octets).rstrip(b"=").decode("ascii")
    jwk = {"kty": "oct", "alg": "HS256", "kid": key.key_id.decode("ascii"), "k": k}
    write_new(path, (json.dumps(jwk) + "\n").encode("ascii"), 0o600)


def load_ring(paths: Sequence[Path]) -> KeyRing:
    """What tokens are checked with: public keys and shared ones, in PEM, JWK (Set) and COSE_Key (Set) files.

    Raises UsageError; a private key is refused, for checking needs none.
    """
    return KeyRing(key for path in paths for key in _checking_keys(path))


def _checking_keys(path: Path) -> list[CheckingKey]:
    data = read(path, "--auth-keys")
    try:
        if blocks := pem_blocks(data):
            keys: list[CheckingKey] = [pem_public(label, block, None) for label, block in blocks]
        else:
            found, single = structured(data)
            read_keys = (_checking_key(key, skip=not single) for key in found)
            keys = [key for key in read_keys if key is not None]
        if not keys:
            raise UsageError("it holds no key for HS256, ES256 or EdDSA")
    except UsageError as fault:
        raise UsageError(f"auth keys: {path}: {fault}") from None
    return keys


def _checking_key(key: Members, *, skip: bool) -> CheckingKey | None:
    if key.get("kty") == "oct":
        return _shared(key, "verify")
    if is_private(key):
        raise UsageError("it holds a private key; give the relay the public one only")
    return public_of(key, None, skip=skip)


def load_sealing_key(path: Path) -> SealingKey:
    """The key that tokens are made with; raises UsageError unless there is exactly one."""
    data = read(path, "--key")
    try:
        keys: list[SealingKey]
        if blocks := pem_blocks(data):
            keys = [pem_private(b, None) for label, b in blocks if label.endswith(b"PRIVATE KEY")]
        else:
            found, _ = structured(data)
            keys = [_sealing_key(key) for key in found if is_private(key)]
        if len(keys) != 1:
            raise UsageError(f"expected one private or shared key, it holds {len(keys) or 'none'}")
    except UsageError as fault:
        raise UsageError(f"key: {path}: {fault}") from None
    return keys[0]


def _sealing_key(key: Members) -> SealingKey:
    return _shared(key, "sign") if key.get("kty") == "oct" else private_of(key, None)


def _shared(key: Members, operation: str) -> SharedKey:
    octets, key_id = key.get("k"), key.get("kid")
    if not isinstance(octets, bytes) or not SHARED_SIZE <= len(octets) <= MAX_SHARED_SIZE:
        raise UsageError(f"a shared key has {SHARED_SIZE} to {MAX_SHARED_SIZE} octets (k)")
    if not isinstance(key_id, bytes) or not 1 <= len(key_id) <= MAX_KEY_ID:
        raise UsageError(f"a shared key needs an identifier (kid) of 1 to {MAX_KEY_ID} octets")
    if key.get("alg", "HS256") != "HS256" or key.get("use", "sig") != "sig":
        raise UsageError("a shared key is for HS256, and for nothing else")
    operations = key.get("key_ops", [operation])
    if not isinstance(operations, list) or operation not in operations:
        raise UsageError(f"its key_ops do not allow to {operation}")
    return SharedKey(octets, key_id)
