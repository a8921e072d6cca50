"""COSE_Sign1 around a manifest (RFC 9052 section 4.2): its shape, and what its headers must say.

Octets are taken apart here, strictly and without cryptography; `kvcs.signing` checks the signature.
"""

from __future__ import annotations

from kvcs import envelope
from kvcs.envelope import MAX_KEY_ID, Parts, Rules
from kvcs.errors import ManifestError
from kvcs.manifest import MAX_OCTETS

__all__ = [
    "EDDSA",
    "ES256",
    "MAX_KEY_ID",
    "SIGNATURE_SIZE",
    "TAG",
    "Sign1",
    "algorithm_and_key_id",
    "open_sign1",
    "payload_of_cose",
]

TAG = 18
ES256, EDDSA = -7, -8
"""The algorithms of KVCS (M8), as numbered by IANA's COSE Algorithms."""
SIGNATURE_SIZE = 64
"""Of both: r and s for ES256."""

Sign1 = Parts

_RULES = Rules(
    what="manifest.cose",
    shape="a COSE_Sign1",
    seal="signature",
    tags=(TAG,),
    algorithms={ES256: ("ES256", SIGNATURE_SIZE), EDDSA: ("EdDSA", SIGNATURE_SIZE)},
    max_octets=MAX_OCTETS,
    error=ManifestError,
    end="; the publication is discarded",
)


def open_sign1(data: bytes) -> Sign1:
    """The parts of a COSE_Sign1, tagged or not; raises `ManifestError` for any other shape.

    Nothing is checked of the headers or the signature.
    """
    return envelope.parts_of(data, _RULES)


def payload_of_cose(data: bytes) -> bytes:
    """The manifest's JSON octets inside a COSE_Sign1; raises `ManifestError` for any other shape.

    The signature is NOT checked here: what comes back is no more trustworthy than a plain manifest.
    """
    return open_sign1(data).payload


def algorithm_and_key_id(message: Sign1) -> tuple[int, bytes]:
    """What the headers say (M8); raises `ManifestError` where they break a rule."""
    return envelope.algorithm_and_key_id(message, _RULES)
