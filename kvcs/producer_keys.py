"""The keys of producers, which sign manifests: a kind of key for each of the two algorithms (M8)."""

from __future__ import annotations

import enum
import hashlib
from dataclasses import dataclass, field

from cryptography.hazmat.primitives.asymmetric import ec, ed25519
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from kvcs.cose import EDDSA, ES256, MAX_KEY_ID
from kvcs.errors import UsageError

DEFAULT_KEY_ID_SIZE = 8


class Algorithm(enum.IntEnum):
    """Numbered as in IANA's COSE Algorithms."""

    ES256 = ES256
    """ECDSA on P-256 with SHA-256."""
    EDDSA = EDDSA
    """Ed25519."""

    @property
    def label(self) -> str:
        """As people write it."""
        return "ES256" if self is Algorithm.ES256 else "EdDSA"


_Public = ec.EllipticCurvePublicKey | ed25519.Ed25519PublicKey
_Private = ec.EllipticCurvePrivateKey | ed25519.Ed25519PrivateKey


@dataclass(frozen=True)
class PublicKey:
    """What a producer's signatures are checked with. Equal when identifier and key are."""

    key: _Public
    key_id: bytes

    @property
    def algorithm(self) -> Algorithm:
        """The only one that the key is used with."""
        is_ec = isinstance(self.key, ec.EllipticCurvePublicKey)
        return Algorithm.ES256 if is_ec else Algorithm.EDDSA


@dataclass(frozen=True)
class PrivateKey:
    """What a producer signs with."""

    key: _Private = field(repr=False)
    key_id: bytes

    @property
    def public(self) -> PublicKey:
        """Its public half, under the same identifier."""
        return PublicKey(self.key.public_key(), self.key_id)

    @property
    def algorithm(self) -> Algorithm:
        """The only one that the key is used with."""
        return self.public.algorithm


def generate(algorithm: Algorithm) -> PrivateKey:
    """A new key with the default identifier."""
    if algorithm is Algorithm.ES256:
        return private_key(ec.generate_private_key(ec.SECP256R1()))
    return private_key(ed25519.Ed25519PrivateKey.generate())


def public_key(key: object, key_id: bytes | None = None) -> PublicKey:
    """A `cryptography` key as a producer's; raises UsageError unless it is P-256 or Ed25519."""
    if not isinstance(key, _Public) or not _is_p256(key):
        raise UsageError("expected a P-256 key, for ES256, or an Ed25519 key, for EdDSA")
    return PublicKey(key, _checked(default_key_id(key) if key_id is None else key_id))


def private_key(key: object, key_id: bytes | None = None) -> PrivateKey:
    """The same for a private key."""
    if not isinstance(key, _Private) or not _is_p256(key):
        raise UsageError("expected a P-256 key, for ES256, or an Ed25519 key, for EdDSA")
    public = public_key(key.public_key(), key_id)
    return PrivateKey(key, public.key_id)


def _is_p256(key: _Public | _Private) -> bool:
    """Whether an elliptic curve key is on the one curve that there is; True for others."""
    if isinstance(key, ec.EllipticCurvePublicKey | ec.EllipticCurvePrivateKey):
        return isinstance(key.curve, ec.SECP256R1)
    return True


def default_key_id(key: _Public) -> bytes:
    """The identifier of a key that nobody named: the first 8 octets of the SHA-256 of its SPKI."""
    spki = key.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
    return hashlib.sha256(spki).digest()[:DEFAULT_KEY_ID_SIZE]


def _checked(key_id: bytes) -> bytes:
    if not 1 <= len(key_id) <= MAX_KEY_ID:
        raise UsageError(f"a key identifier (kid) has 1 to {MAX_KEY_ID} octets, not {len(key_id)}")
    return key_id


def shown_key_id(key_id: bytes) -> str:
    """A key identifier as it may stand in a message: in quotes where it is printable ASCII, else in hex."""
    if all(0x20 < octet < 0x7F and octet not in b"\"'\\" for octet in key_id):
        return f'"{key_id.decode("ascii")}"'
    return key_id.hex()
