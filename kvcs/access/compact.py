"""The compact form of the C4M draft's examples: header.claims.seal, each in base64url.

No CWT, and HMAC goes by a number that COSE has given to something else. It is here to work with whoever followed
the examples, and is not taken unless asked for.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import re
from collections.abc import Mapping

from cryptography.hazmat.primitives.asymmetric import ec

from kvcs import strictcbor
from kvcs.access.cwt import MAX_OCTETS, NAMES, claims_in
from kvcs.access.keys import HS256, KeyRing, SharedKey
from kvcs.cose import ES256
from kvcs.errors import TokenError
from kvcs.signing import es256_holds
from moqt.auth import Claims
from moqt.errors import TokenFault, UntrustedToken

_FORM = re.compile(rb"[A-Za-z0-9_-]{1,512}\.[A-Za-z0-9_-]{1,16384}\.[A-Za-z0-9_-]{1,256}")
_HMAC = -4
"""As in the draft's examples; A192KW in COSE."""
_ALGORITHM, _KEY_ID, _TYPE = 1, 4, 16


def is_compact(data: bytes) -> bool:
    """Whether it has that form, rather than CBOR's."""
    return _FORM.fullmatch(data) is not None


def open_compact(data: bytes, keys: KeyRing) -> Claims:
    """The claims of a token in compact form; raises as `cwt.open_token` does.

    Without a key identifier it is checked with the only key there is for its algorithm.
    """
    algorithm, key_id, claims, seal = take_apart(data)
    key = keys.only(algorithm) if key_id is None else keys.named(key_id)
    signed = data.rpartition(b".")[0]
    if key is None:
        raise UntrustedToken("it does not say which of the keys here is its own")
    if isinstance(key, SharedKey):
        mac = hmac.new(key.octets, signed, hashlib.sha256).digest()
        holds = algorithm == HS256 and hmac.compare_digest(mac, seal)
    else:
        is_ec = isinstance(key.key, ec.EllipticCurvePublicKey)
        holds = algorithm == ES256 and is_ec and es256_holds(key, signed, seal)
    if not holds:
        raise UntrustedToken(f"its seal is not one of its key for {NAMES[algorithm]}")
    return claims_in(claims)


def take_apart(data: bytes) -> tuple[int, bytes | None, bytes, bytes]:
    """Algorithm in COSE's number, key identifier, claims and seal. Nothing is checked but the form."""
    if not is_compact(data):
        raise TokenFault("token: not header.claims.seal in base64url")
    header, claims, seal = (_octets(part) for part in data.split(b"."))
    return (*_header(header), claims, seal)


def _header(octets: bytes) -> tuple[int, bytes | None]:
    """Algorithm, in COSE's number, and key identifier."""
    try:
        header = strictcbor.loads(octets, what="token", max_octets=MAX_OCTETS, error=TokenError)
    except TokenError as fault:
        raise TokenFault(str(fault)) from None
    if not isinstance(header, Mapping) or header.get(_TYPE) != "CAT":
        raise TokenFault("token: its header is not that of a CAT")
    if header.keys() - {_ALGORITHM, _KEY_ID, _TYPE}:
        raise TokenFault("token: its header says what is not known here")
    number, key_id = header.get(_ALGORITHM), header.get(_KEY_ID)
    algorithm = {_HMAC: HS256, ES256: ES256}.get(number) if type(number) is int else None
    if algorithm is None or not isinstance(key_id, bytes | None):
        raise TokenFault("token: its algorithm must be HMAC-SHA-256 (-4) or ES256 (-7)")
    return algorithm, key_id


def _octets(part: bytes) -> bytes:
    """Strictly: one text for each octet string."""
    try:
        octets = base64.urlsafe_b64decode(part + b"=" * (-len(part) % 4))
    except ValueError:
        raise TokenFault("token: not base64url") from None
    if base64.urlsafe_b64encode(octets).rstrip(b"=") != part:
        raise TokenFault("token: not base64url")
    return octets
