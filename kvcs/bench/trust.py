"""The keys of benchmark rounds whose publications are encrypted or signed, the same in every process."""

from __future__ import annotations

from typing import TypedDict

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from kvcs.bench.plan import Plan
from kvcs.key_ring import KeyRing, RingKey
from kvcs.producer_keys import private_key
from kvcs.retrieval import Options
from kvcs.secure_objects import LEAST_KEY_ID
from kvcs.signing import Signer, TrustedKeys

ENCRYPT, SIGN = "encrypt", "sign"
"""What a plan's options say, each with True."""
_SECRET = bytes(range(32))


class Protection(TypedDict):
    """What `Publisher.publish` is told."""

    key_ring: KeyRing | None
    signer: Signer | None


def protection(plan: Plan) -> Protection:
    """How the publisher of a round protects what it publishes."""
    producer = private_key(Ed25519PrivateKey.from_private_bytes(_SECRET))
    return {"key_ring": _ring(plan), "signer": Signer(producer) if plan.options.get(SIGN) else None}


def requirements(plan: Plan) -> Options:
    """What the consumer of a round requires."""
    producer = private_key(Ed25519PrivateKey.from_private_bytes(_SECRET))
    trusted = TrustedKeys([producer.public]) if plan.options.get(SIGN) else None
    return Options(signed_by=trusted, key_ring=_ring(plan))


def _ring(plan: Plan) -> KeyRing | None:
    return KeyRing([RingKey(LEAST_KEY_ID, _SECRET)]) if plan.options.get(ENCRYPT) else None
