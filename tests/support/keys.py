"""Producers' keys: the fixed ones of the vectors, and the vectors themselves."""

from __future__ import annotations

import json
from typing import Any

from cryptography.hazmat.primitives.serialization import load_pem_private_key

from kvcs.producer_keys import PrivateKey, private_key
from kvcs.signing import TrustedKeys
from tests.support.caches import VECTORS

COSE: dict[str, Any] = json.loads((VECTORS / "cose-vectors.json").read_text("utf-8"))
PAYLOAD: bytes = COSE["payload_json"].encode("utf-8")


def vector_key(name: str) -> PrivateKey:
    """The private key "es256" or "ed25519" of the vectors."""
    key = COSE["keys"][name]
    pem = load_pem_private_key(key["pem_private"].encode("ascii"), None)
    return private_key(pem, bytes.fromhex(key["kid"]))


def message(vector: str) -> bytes:
    """The octets of a vector."""
    (found,) = (v["message"] for v in COSE["vectors"] if v["id"] == vector)
    return bytes.fromhex(found)


PRODUCERS = {name: vector_key(name) for name in ("es256", "ed25519")}
TRUSTED = TrustedKeys(key.public for key in PRODUCERS.values())
