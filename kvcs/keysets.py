"""JWK and COSE_Key, alone and in sets, as producers' keys. Members are checked one by one; nothing is guessed."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from typing import TypeAlias

from cryptography.hazmat.primitives.asymmetric import ec, ed25519

from kvcs import strictcbor, strictjson
from kvcs.cose import EDDSA, ES256
from kvcs.errors import UsageError
from kvcs.keyfaults import KEY_FAULTS
from kvcs.producer_keys import PrivateKey, PublicKey, private_key, public_key
from kvcs.strictjson import shown

Members: TypeAlias = dict[object, object]
"""A key with the names of JWK, whichever form it was read from; coordinates are octets."""

_SIZE = 32
_COSE_NAMES = {1: "kty", 2: "kid", 3: "alg", 4: "key_ops", -1: "crv", -2: "x", -3: "y", -4: "d"}
_COSE_KINDS = {(1, 6): ("OKP", "Ed25519"), (2, 1): ("EC", "P-256")}
_COSE_SYMMETRIC, _COSE_K = 4, -1
_COSE_ALGORITHMS = {ES256: "ES256", EDDSA: "EdDSA", 5: "HS256"}
_COSE_OPERATIONS = {1: "sign", 2: "verify"}
_COSE_MAC_OPERATIONS = {9: "sign", 10: "verify"}
_ALGORITHMS = {("EC", "P-256"): ("ES256",), ("OKP", "Ed25519"): ("EdDSA", "Ed25519")}
"""What may be said of a key of each kind."""


def jwk_keys(data: bytes, max_octets: int) -> tuple[list[Members], bool]:
    """The keys in a JWK or JWK Set, and whether it is a single one."""
    document = strictjson.loads(
        data, what="JWK", max_octets=max_octets, error=UsageError, fractions=True
    )
    if not isinstance(document, dict):
        raise UsageError("JWK: expected an object")
    single = "keys" not in document
    listed = [document] if single else document["keys"]
    if not isinstance(listed, list) or not all(isinstance(key, dict) for key in listed):
        raise UsageError("JWK: keys must be an array of objects")
    return [_from_jwk(key) for key in listed], single


def _from_jwk(key: Mapping[str, object]) -> Members:
    members: Members = dict(key.items())
    if members.get("kty") in ("EC", "OKP", "oct"):
        for name in ("x", "y", "d", "k"):
            if name in members:
                members[name] = _base64url(name, members[name])
    if "kid" in members:
        key_id = members["kid"]
        if not isinstance(key_id, str):
            raise UsageError("JWK: kid must be text")
        members["kid"] = key_id.encode("utf-8", "surrogatepass")
    return members


def _base64url(name: str, value: object) -> bytes:
    try:
        text = value if isinstance(value, str) else "?"
        octets = base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))
        if base64.urlsafe_b64encode(octets).rstrip(b"=") != text.encode("ascii"):
            raise ValueError("it has other characters, or padding")
    except ValueError:
        raise UsageError(f"JWK: {name} must be base64url without padding") from None
    return octets


def cose_keys(data: bytes, max_octets: int) -> tuple[list[Members], bool]:
    """The keys in a COSE_Key or COSE_KeySet, and whether it is a single one."""
    try:
        document = strictcbor.loads(data, what="CBOR", max_octets=max_octets, error=UsageError)
    except UsageError:
        raise UsageError("it is neither PEM, JWK nor COSE_Key") from None
    single = not isinstance(document, list | tuple)
    listed = [document] if not isinstance(document, list | tuple) else document
    keys = [_from_cose(key) for key in listed if isinstance(key, Mapping)]
    if len(keys) != len(listed):
        raise UsageError("COSE_Key: expected a map, or an array of them")
    return keys, single


def _from_cose(key: Mapping[object, object]) -> Members:
    named = ((_COSE_NAMES.get(_integer(label)), value) for label, value in key.items())
    members: Members = {name: value for name, value in named if name is not None}
    kind = _integer(members.get("kty")), _integer(members.get("crv"))
    members["kty"], members["crv"] = _COSE_KINDS.get(kind, (None, None))
    named_operations = _COSE_OPERATIONS
    if kind[0] == _COSE_SYMMETRIC:
        members["kty"], members["k"] = "oct", key.get(_COSE_K)
        named_operations = _COSE_MAC_OPERATIONS
    if "alg" in members:
        members["alg"] = _named(members["alg"], _COSE_ALGORITHMS)
    if isinstance(operations := members.get("key_ops"), list | tuple):
        members["key_ops"] = [_named(operation, named_operations) for operation in operations]
    return members


def _integer(value: object) -> int:
    """`value`, or 0, which stands for nothing, where it is none."""
    return value if type(value) is int else 0


def _named(value: object, names: Mapping[int, str]) -> object:
    return names.get(_integer(value), value)


def is_private(key: Members) -> bool:
    """Whether a key carries what only its owner may know, whatever its kind."""
    return "d" in key or "k" in key or key.get("kty") == "oct"


def public_of(key: Members, key_id: bytes | None, *, skip: bool) -> PublicKey | None:
    """A public key; with `skip` None for one of another kind or for another use, as RFC 7517 section 5 advises."""
    fault = _unfit(key, "verify")
    if fault is not None:
        if skip:
            return None
        raise UsageError(fault)
    return public_key(_point(key), _key_id(key, key_id))


def private_of(key: Members, key_id: bytes | None) -> PrivateKey:
    """A private key; its public half, where it is told, must be its own."""
    fault = _unfit(key, "sign")
    if fault is not None:
        raise UsageError(fault)
    d = _octets(key, "d")
    private: ec.EllipticCurvePrivateKey | ed25519.Ed25519PrivateKey
    try:
        if key["kty"] == "EC":
            private = ec.derive_private_key(int.from_bytes(d, "big"), ec.SECP256R1())
        else:
            private = ed25519.Ed25519PrivateKey.from_private_bytes(d)
    except KEY_FAULTS:
        raise UsageError("d is not the number of a private key that can be used") from None
    if "x" in key and private.public_key() != _point(key):
        raise UsageError("its public half is that of another key")
    return private_key(private, _key_id(key, key_id))


def _unfit(key: Members, operation: str) -> str | None:
    """Why a key cannot be used for `operation`, or None."""
    kind = next((kind for kind in _ALGORITHMS if kind == (key.get("kty"), key.get("crv"))), None)
    if kind is None:
        return "expected a P-256 key, for ES256, or an Ed25519 key, for EdDSA"
    if "alg" in key and not any(key["alg"] == name for name in _ALGORITHMS[kind]):
        return f"a {kind[1]} key is not for algorithm {shown(key['alg'])}"
    if key.get("use", "sig") != "sig":
        return f"it is for use {shown(key['use'])}, not for signatures"
    operations = key.get("key_ops", [operation])
    if not isinstance(operations, list) or operation not in operations:
        return f"its key_ops do not allow to {operation}"
    return None


def _point(key: Members) -> ec.EllipticCurvePublicKey | ed25519.Ed25519PublicKey:
    x = _octets(key, "x")
    try:
        if key["kty"] == "OKP":
            return ed25519.Ed25519PublicKey.from_public_bytes(x)
        if isinstance(sign := key.get("y"), bool):
            compressed = bytes([2 + sign]) + x
            return ec.EllipticCurvePublicKey.from_encoded_point(ec.SECP256R1(), compressed)
        uncompressed = b"\x04" + x + _octets(key, "y")
        return ec.EllipticCurvePublicKey.from_encoded_point(ec.SECP256R1(), uncompressed)
    except KEY_FAULTS:
        raise UsageError("its public half is no point of the curve") from None


def _octets(key: Members, name: str) -> bytes:
    value = key.get(name)
    if not isinstance(value, bytes) or len(value) != _SIZE:
        raise UsageError(f"{name} must have {_SIZE} octets")
    return value


def _key_id(key: Members, given: bytes | None) -> bytes | None:
    own = key.get("kid", given)
    if own is not None and not isinstance(own, bytes):
        raise UsageError("kid must be octets")
    return own
