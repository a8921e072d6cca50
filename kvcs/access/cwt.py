"""Tokens as CWTs (RFC 8392): claims in a COSE_Mac0 or a COSE_Sign1, made, taken apart and checked.

As with manifests, octets and headers are checked before pycose sees anything, tags are compared in constant time
here, and ES256 is done by `cryptography`.
"""

from __future__ import annotations

import hmac
from dataclasses import dataclass

import cbor2
from pycose import headers
from pycose.algorithms import HMAC256
from pycose.keys.symmetric import SymmetricKey
from pycose.messages.mac0message import Mac0Message

from kvcs import envelope, received
from kvcs.access.keys import HS256, KeyRing, SealingKey, SharedKey, algorithm_of
from kvcs.cose import EDDSA, ES256, SIGNATURE_SIZE
from kvcs.envelope import Parts, Rules
from kvcs.errors import TokenError
from kvcs.producer_keys import shown_key_id
from kvcs.signing import Signer, verifies
from moqt.auth import Claims, claims_of
from moqt.errors import TokenFault, UntrustedToken

MAX_OCTETS = 8192
"""Of a token's claims; those for one scope take about a hundred."""
TAG_MAC0, TAG_SIGN1 = 17, 18
_CWT = bytes.fromhex("d83d")
"""Tag 61, which may say outermost that it is a CWT."""

NAMES = {HS256: "HMAC 256/256", ES256: "ES256", EDDSA: "EdDSA"}

_RULES = Rules(
    what="token",
    shape="a CWT in a COSE_Mac0 or COSE_Sign1",
    seal="seal",
    tags=(TAG_MAC0, TAG_SIGN1),
    algorithms={
        HS256: (NAMES[HS256], 32),
        ES256: (NAMES[ES256], SIGNATURE_SIZE),
        EDDSA: (NAMES[EDDSA], SIGNATURE_SIZE),
    },
    max_octets=MAX_OCTETS,
    error=TokenError,
)


@dataclass(frozen=True, slots=True)
class Opened:
    """A token taken apart. Nothing of it is checked but its form."""

    parts: Parts
    algorithm: int
    key_id: bytes


def take_apart(data: bytes) -> Opened:
    """A token's parts and headers; raises TokenFault where they break a rule."""
    try:
        inner = data.removeprefix(_CWT)
        parts = envelope.parts_of(inner, _RULES)
        algorithm, key_id = envelope.algorithm_and_key_id(parts, _RULES)
    except TokenError as fault:
        raise TokenFault(str(fault)) from None
    tag = {b"\xd1": TAG_MAC0, b"\xd2": TAG_SIGN1}.get(inner[:1])
    if tag is None and inner != data:
        raise TokenFault("token: tag 61 is followed by tag 17 or 18")
    if tag is not None and (tag == TAG_MAC0) is not (algorithm == HS256):
        raise TokenFault(f"token: tag {tag} does not go with {NAMES[algorithm]}")
    return Opened(parts, algorithm, key_id)


def claims_in(payload: bytes) -> Claims:
    """The claims in a payload; raises TokenFault."""
    try:
        document = _RULES.loads(payload, MAX_OCTETS)
    except TokenError as fault:
        raise TokenFault(str(fault)) from None
    return claims_of(document)


def open_token(data: bytes, keys: KeyRing) -> Claims:
    """The claims of a token that one of the keys has sealed.

    Raises UntrustedToken where none has, TokenFault for what is no token by the rules.
    """
    token = take_apart(data)
    key, shown = keys.named(token.key_id), shown_key_id(token.key_id)
    if key is None:
        raise UntrustedToken(f"it names key {shown}, which is not trusted here")
    if algorithm_of(key) != token.algorithm:
        raise UntrustedToken(
            f"key {shown} is for {NAMES[algorithm_of(key)]}, not for {NAMES[token.algorithm]}"
        )
    if isinstance(key, SharedKey):
        holds = _mac_holds(key, token.parts)
    else:
        holds = verifies(key, token.parts)
    if not holds:
        raise UntrustedToken(f"its seal is not one of key {shown}")
    return claims_in(token.parts.payload)


def seal(claims: dict[int, object], key: SealingKey) -> bytes:
    """A token with these claims: tag 61 and the COSE structure that goes with the key."""
    payload = cbor2.dumps(claims)
    if not isinstance(key, SharedKey):
        return _CWT + Signer(key).sign(payload)
    protected = {headers.Algorithm: HMAC256, headers.KID: key.key_id}
    message = Mac0Message(phdr=protected, payload=payload, key=SymmetricKey(k=key.octets))
    octets: bytes = message.encode()
    return _CWT + octets


def _mac_holds(key: SharedKey, parts: Parts) -> bool:
    try:
        message = received.mac0(parts, HMAC256)
        message.key = SymmetricKey(k=key.octets)
        return hmac.compare_digest(message.compute_tag(), parts.signature)
    except received.FAULTS:
        return False
