"""Signed manifests: COSE_Sign1 with a producer's key, made and checked (draft: Manifest Track; M8, M9).

pycose builds what is signed and calls the algorithm. It is lax about much, so every rule about octets and headers is
checked before (`kvcs.cose`), and of what was received it reads no header (`kvcs.received`). Its ES256 runs on
python-ecdsa, whose signing leaks time, so ES256 is done by `cryptography` here.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeAlias

from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.utils import (
    decode_dss_signature,
    encode_dss_signature,
)
from cryptography.hazmat.primitives.hashes import SHA256
from pycose import algorithms, headers
from pycose.keys.curves import P256, Ed25519
from pycose.keys.ec2 import EC2Key
from pycose.keys.okp import OKPKey
from pycose.messages.sign1message import Sign1Message

from kvcs import received
from kvcs.cose import SIGNATURE_SIZE, Sign1, algorithm_and_key_id, open_sign1
from kvcs.errors import SignatureError, UsageError
from kvcs.producer_keys import Algorithm, PrivateKey, PublicKey, shown_key_id

_CoseKey: TypeAlias = EC2Key | OKPKey
_HALF = SIGNATURE_SIZE // 2


class _Es256(algorithms.Es256):
    """ES256 with OpenSSL behind it."""

    @classmethod
    def sign(cls, key: EC2Key, data: bytes) -> bytes:
        private = ec.derive_private_key(int.from_bytes(key.d, "big"), ec.SECP256R1())
        try:
            der = private.sign(data, ec.ECDSA(SHA256(), deterministic_signing=True))
        except UnsupportedAlgorithm:  # OpenSSL before 3.2; any nonce makes a valid signature
            der = private.sign(data, ec.ECDSA(SHA256()))
        return b"".join(part.to_bytes(_HALF, "big") for part in decode_dss_signature(der))

    @classmethod
    def verify(cls, key: EC2Key, data: bytes, signature: bytes) -> bool:
        x, y = (int.from_bytes(part, "big") for part in (key.x, key.y))
        public = ec.EllipticCurvePublicNumbers(x, y, ec.SECP256R1()).public_key()
        return _holds(public, data, signature)


def es256_holds(key: PublicKey, data: bytes, signature: bytes) -> bool:
    """Whether r and s, 32 octets each, are ES256 over `data` itself; for what is signed outside of COSE."""
    if not isinstance(key.key, ec.EllipticCurvePublicKey) or len(signature) != SIGNATURE_SIZE:
        return False
    return _holds(key.key, data, signature)


def _holds(public: ec.EllipticCurvePublicKey, data: bytes, signature: bytes) -> bool:
    r, s = (int.from_bytes(half, "big") for half in (signature[:_HALF], signature[_HALF:]))
    try:
        public.verify(encode_dss_signature(r, s), data, ec.ECDSA(SHA256()))
    except InvalidSignature:
        return False
    return True


_ALGORITHMS = {Algorithm.ES256: _Es256, Algorithm.EDDSA: algorithms.EdDSA}


class Signer:
    """Signs the versions of a manifest with one key."""

    def __init__(self, key: PrivateKey) -> None:
        self.key_id = key.key_id
        self.algorithm = key.algorithm
        self._key = _private(key)

    def sign(self, payload: bytes) -> bytes:
        """The COSE_Sign1 with `payload`: what goes on the track manifest.cose."""
        return self.enclose(payload, self.signature(payload))

    def signature(self, payload: bytes) -> bytes:
        """The 64 octets over `payload` and the headers."""
        signature: bytes = self._message(payload).compute_signature()
        return signature

    def enclose(self, payload: bytes, signature: bytes) -> bytes:
        """The COSE_Sign1 with a signature made before: the same octets as then."""
        message = self._message(payload)
        message.signature = signature
        octets: bytes = message.encode(sign=False)
        return octets

    def _message(self, payload: bytes) -> Sign1Message:
        protected = {headers.Algorithm: int(self.algorithm), headers.KID: self.key_id}
        message = Sign1Message(phdr=protected, payload=payload, key=self._key)
        # Only now, for pycose turns what it is given into its own classes.
        message.phdr[headers.Algorithm] = _ALGORITHMS[self.algorithm]
        return message


class TrustedKeys:
    """The producers that are trusted, by key identifier. Several at a time, so that keys can be rotated."""

    def __init__(self, keys: Iterable[PublicKey]) -> None:
        """Raises UsageError for two keys with one identifier, and for none at all."""
        self._keys: dict[bytes, PublicKey] = {}
        for key in keys:
            if self._keys.setdefault(key.key_id, key) != key:
                raise UsageError(f"two keys have the identifier (kid) {shown_key_id(key.key_id)}")
        if not self._keys:
            raise UsageError("there is no producer's key to check signatures with")

    def __len__(self) -> int:
        return len(self._keys)

    def open(self, data: bytes) -> bytes:
        """The payload of a COSE_Sign1 that one of the keys has signed.

        Raises SignatureError where none has, ManifestError for what is no COSE_Sign1 by the rules.
        """
        message = open_sign1(data)
        algorithm, key_id = algorithm_and_key_id(message)
        shown = shown_key_id(key_id)
        key = self._keys.get(key_id)
        if key is None:
            raise _untrusted(f"it names key {shown} as its producer's, which is not trusted here")
        if key.algorithm != algorithm:
            label = Algorithm(algorithm).label
            raise _untrusted(f"key {shown} is for {key.algorithm.label}, not for {label}")
        if not verifies(key, message):
            raise _untrusted(f"the signature is not one of key {shown} over what was received")
        return message.payload


def verifies(key: PublicKey, message: Sign1) -> bool:
    """Whether a COSE_Sign1, whose headers were checked, is signed with `key`."""
    try:
        signed = received.sign1(message, _ALGORITHMS[key.algorithm])
        signed.key = _public(key)
        return signed.verify_signature() is True
    except received.FAULTS:
        return False


def _public(key: PublicKey) -> _CoseKey:
    if isinstance(key.key, ec.EllipticCurvePublicKey):
        numbers = key.key.public_numbers()
        return EC2Key(P256, numbers.x.to_bytes(_HALF, "big"), numbers.y.to_bytes(_HALF, "big"))
    return OKPKey(Ed25519, key.key.public_bytes_raw())


def _private(key: PrivateKey) -> _CoseKey:
    if isinstance(key.key, ec.EllipticCurvePrivateKey):
        return EC2Key(P256, d=key.key.private_numbers().private_value.to_bytes(_HALF, "big"))
    return OKPKey(Ed25519, d=key.key.private_bytes_raw())


def _untrusted(text: str) -> SignatureError:
    return SignatureError(f"manifest.cose: {text}; the publication is discarded")
