"""COSE_Sign1 around a manifest (RFC 9052 section 4.2): its shape, and what its headers must say.

Octets are taken apart here, strictly and without cryptography; `kvcs.signing` checks the signature.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from kvcs import strictcbor
from kvcs.errors import ManifestError
from kvcs.manifest import MAX_OCTETS
from kvcs.strictjson import shown

TAG = 18
ES256, EDDSA = -7, -8
"""The algorithms of KVCS (M8), as numbered by IANA's COSE Algorithms."""
SIGNATURE_SIZE = 64
"""Of both: r and s for ES256."""
MAX_KEY_ID = 64

_ALGORITHM, _CRITICAL, _KEY_ID = 1, 2, 4
_MAX_WRAPPING = 4096
"""Headers and signature beside the payload; real ones take under 200 octets."""


@dataclass(frozen=True, slots=True)
class Sign1:
    """The four parts of a COSE_Sign1."""

    protected: bytes
    """As received: the signature covers these very octets."""
    unprotected: Mapping[object, object]
    payload: bytes
    signature: bytes


def open_sign1(data: bytes) -> Sign1:
    """The parts of a COSE_Sign1, tagged or not; raises `ManifestError` for any other shape.

    Nothing is checked of the headers or the signature.
    """
    item = _loads(data, MAX_OCTETS + _MAX_WRAPPING, tags=(TAG,))
    item = getattr(item, "value", item)
    if not isinstance(item, list | tuple) or len(item) != 4:
        raise _fault("expected an array of four")
    protected, unprotected, payload, signature = item
    if not isinstance(unprotected, Mapping):
        raise _fault("expected a map as unprotected header")
    if not all(isinstance(part, bytes) for part in (protected, payload, signature)):
        raise _fault("expected octets as protected header, payload and signature")
    return Sign1(protected, unprotected, payload, signature)


def payload_of_cose(data: bytes) -> bytes:
    """The manifest's JSON octets inside a COSE_Sign1; raises `ManifestError` for any other shape.

    The signature is NOT checked here: what comes back is no more trustworthy than a plain manifest.
    """
    return open_sign1(data).payload


def algorithm_and_key_id(message: Sign1) -> tuple[int, bytes]:
    """What the headers say (M8); raises `ManifestError` where they break a rule.

    The algorithm must be protected, the key identifier may be in either header but not in both, and no header
    may be critical: none is known here that could be.
    """
    protected = _loads(message.protected, _MAX_WRAPPING) if message.protected else {}
    unprotected = message.unprotected
    if not isinstance(protected, Mapping):
        raise _refused("expected a map as protected header")
    if not all(isinstance(label, int | str) for label in (*protected, *unprotected)):
        raise _refused("a header's label is neither a number nor text")
    if _CRITICAL in protected or _CRITICAL in unprotected:
        raise _refused("it has critical headers, of which none is known here")
    if both := set(protected) & set(unprotected):
        raise _refused(f"header {shown(min(both, key=str))} is both protected and unprotected")
    algorithm = protected.get(_ALGORITHM)
    if algorithm is None:
        raise _refused("its protected header names no algorithm")
    if type(algorithm) is not int or algorithm not in (ES256, EDDSA):
        raise _refused(f"its algorithm must be ES256 (-7) or EdDSA (-8), it is {shown(algorithm)}")
    key_id = protected.get(_KEY_ID, unprotected.get(_KEY_ID))
    if not isinstance(key_id, bytes) or not 1 <= len(key_id) <= MAX_KEY_ID:
        raise _refused(f"its key identifier (kid) must be 1 to {MAX_KEY_ID} octets")
    if len(message.signature) != SIGNATURE_SIZE:
        raise _refused(
            f"its signature must have {SIGNATURE_SIZE} octets, it has {len(message.signature)}"
        )
    return algorithm, key_id


_WHAT = "manifest.cose: not a COSE_Sign1"
_END = "; the publication is discarded"


def _loads(data: bytes, max_octets: int, tags: tuple[int, ...] = ()) -> object:
    return strictcbor.loads(
        data, what=_WHAT, max_octets=max_octets, error=ManifestError, tags=tags, end=_END
    )


def _fault(text: str) -> ManifestError:
    return ManifestError(f"{_WHAT}: {text}{_END}")


def _refused(text: str) -> ManifestError:
    return ManifestError(f"manifest.cose: {text}{_END}")
