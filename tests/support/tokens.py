"""Keys and tokens for tests: those of the vectors, and others made on the spot."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from kvcs.access import cwt
from kvcs.access.keys import SealingKey, SharedKey
from kvcs.access.making import scopes_claim
from kvcs.producer_keys import Algorithm, generate
from moqt import AuthorizationToken, Token
from moqt.auth import Claims, claim_map
from moqt.wire.parameters import AliasType

VECTORS = Path(__file__).parents[1] / "vectors"
C4M: dict[str, Any] = json.loads((VECTORS / "c4m-vectors.json").read_text("utf-8"))
KVCS: dict[str, Any] = json.loads((VECTORS / "auth-kvcs-vectors.json").read_text("utf-8"))

SHARED = SharedKey(bytes.fromhex(KVCS["hmac_key"]), b"k1")
"""The key of all vectors, under the name that KVCS's give it."""
KEYS: dict[str, SealingKey] = {
    "HS256": SharedKey(b"s" * 32, b"shared"),
    "ES256": generate(Algorithm.ES256),
    "EdDSA": generate(Algorithm.EDDSA),
}
SCOPE = bytes.fromhex(KVCS["scope_id"])
NOW = 1_900_000_000.0
"""Between `nbf` and `exp` of KVCS's vectors."""


def make(
    key: SealingKey = SHARED,
    allow: tuple[str, ...] = ("publish", "subscribe", "fetch"),
    *scopes: bytes,
    **claims: Any,
) -> bytes:
    """A token for `scopes`, SCOPE without any, that expires in 1000 s."""
    fields: dict[str, Any] = {"expires": NOW + 1000, "token_id": b"cti"}
    given = Claims(**(fields | claims))
    return cwt.seal(claim_map(given, scopes_claim(scopes or (SCOPE,), allow)), key)


def as_token(value: bytes, kind: int = 1) -> Token:
    """As a relay sees it."""
    return Token(kind, value)


def shown(value: bytes, kind: int = 1) -> tuple[AuthorizationToken, ...]:
    """As it is sent."""
    return (AuthorizationToken(AliasType.USE_VALUE, None, kind, value),)
