"""Who may do what through a relay: a table of scopes per token (R2)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from hashlib import sha256

from kvcs.naming import PROTOCOL, SCOPE_ID_SIZE
from moqt import Query, Refusal, TrackNamespace

PUBLICATION_FIELDS = 5


@dataclass(frozen=True, slots=True)
class Grant:
    """What a token allows within one scope."""

    scope_id: bytes
    publish: bool = False
    subscribe: bool = True


class ScopePolicy:
    """Requests are allowed within (`kvcs-1`, Scope ID) of a scope that one of their tokens grants.

    That goes for what lies in a relay's cache as well, and for prefixes.
    """

    def __init__(self, grants: Mapping[bytes, Iterable[Grant]]) -> None:
        self._grants = {sha256(token).digest(): tuple(given) for token, given in grants.items()}

    def decide(self, query: Query) -> Refusal | None:
        """None where a token grants it; never says which scopes there are."""
        fault = misnamed(query)
        if fault is not None:
            return fault
        scope_id = scope_of(query.namespace)
        for token in query.tokens:
            for grant in self._grants.get(sha256(token.value).digest(), ()):
                allowed = grant.publish if (query.of or query.action).publishes else grant.subscribe
                if allowed and grant.scope_id == scope_id:
                    return None
        return Refusal("no token grants this")


def scope_of(namespace: TrackNamespace) -> bytes | None:
    """The Scope ID that a namespace or prefix names, or None."""
    if len(namespace) < 2 or namespace[0] != PROTOCOL:
        return None
    return namespace[1] if len(namespace[1]) == SCOPE_ID_SIZE else None


def misnamed(query: Query) -> Refusal | None:
    """Why nobody may ask for that, whatever was granted.

    A prefix with fewer than two fields would list other scopes, and a namespace that is offered with other than five
    would take other people's publications over.
    """
    if scope_of(query.namespace) is None:
        return Refusal("a request names the scope it is about: (kvcs-1, Scope ID, ...)")
    if query.action.publishes and len(query.namespace) != PUBLICATION_FIELDS:
        return Refusal(f"a publication's namespace has {PUBLICATION_FIELDS} fields")
    return None
