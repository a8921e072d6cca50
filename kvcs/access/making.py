"""Tokens for scopes, made from what people say: what they allow, for which scopes, and until when."""

from __future__ import annotations

import secrets
from collections.abc import Sequence

from kvcs.access import cwt
from kvcs.access.keys import SealingKey
from kvcs.errors import UsageError
from kvcs.naming import PROTOCOL, SCOPE_ID_SIZE
from moqt.auth import ACTION_NUMBERS, Action, Claims, claim_map

ALLOW: dict[str, tuple[Action, ...]] = {
    "publish": (Action.PUBLISH_NAMESPACE, Action.PUBLISH),
    "subscribe": (
        Action.SUBSCRIBE_NAMESPACE,
        Action.SUBSCRIBE,
        Action.REQUEST_UPDATE,
        Action.TRACK_STATUS,
    ),
    "fetch": (Action.FETCH,),
}
"""What may be allowed, in words. A consumer needs both `subscribe` and `fetch`."""

TOKEN_ID_SIZE = 8


def scopes_claim(scopes: Sequence[bytes], allow: Sequence[str]) -> list[list[object]]:
    """The `moqt` claim: each of `allow` within (kvcs-1, Scope ID), every publication included."""
    if not scopes or not allow:
        raise UsageError("a token is for at least one scope, and allows something")
    wrong = next((scope for scope in scopes if len(scope) != SCOPE_ID_SIZE), None)
    if wrong is not None:
        raise UsageError(f"scope: a Scope ID has {SCOPE_ID_SIZE} octets, got {len(wrong)}")
    numbers = sorted({n for word in allow for one in ALLOW[word] for n in ACTION_NUMBERS[one]})
    return [[numbers, [PROTOCOL, scope]] for scope in dict.fromkeys(scopes)]


def make(
    key: SealingKey, scopes: Sequence[bytes], allow: Sequence[str], claims: Claims
) -> tuple[bytes, bytes]:
    """A token, and its identifier (cti), a random one where `claims` has none. Raises UsageError."""
    token_id = claims.token_id or secrets.token_bytes(TOKEN_ID_SIZE)
    document = claim_map(claims, list(scopes_claim(scopes, allow))) | {7: token_id}
    return cwt.seal(dict(sorted(document.items())), key), token_id
