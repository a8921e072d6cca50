"""What a relay of KVCS asks of tokens: a seal that holds, and the scope that a request is about (R2)."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable
from hashlib import sha256

from kvcs.access.compact import is_compact, open_compact
from kvcs.access.cwt import MAX_OCTETS, open_token
from kvcs.access.keys import KeyRing
from kvcs.envelope import MAX_WRAPPING
from kvcs.scopes import misnamed
from moqt.auth import BearerPolicy, Claims, Query, Recheck, Refusal, Terms, Token
from moqt.errors import TokenFault, UntrustedToken

CAT = 1
"""Token Type of C4M."""
_REMEMBERED = 1024
"""Tokens whose seal was found to hold; one that does not hold is looked at each time."""


class TokenReader:
    """The claims of tokens whose seal holds under one of the keys, which may be replaced while requests run."""

    def __init__(self, keys: KeyRing, *, compact: bool = False) -> None:
        """With `compact` the form of the C4M draft's examples is taken as well."""
        self._keys = keys
        self._compact = compact
        self._known: OrderedDict[bytes, Claims] = OrderedDict()

    def replace_keys(self, keys: KeyRing) -> None:
        """What counts from now on, for every token."""
        self._keys = keys
        self._known.clear()

    def __call__(self, token: Token) -> Claims:
        """Raises UntrustedToken and TokenFault."""
        if token.type != CAT:
            raise UntrustedToken(f"tokens of type {token.type} are not taken here")
        if len(token.value) > MAX_OCTETS + MAX_WRAPPING:
            raise TokenFault("token: it is too long")
        digest = sha256(token.value).digest()
        claims = self._known.get(digest)
        if claims is not None:
            self._known.move_to_end(digest)
            return claims
        claims = self._open(token.value)
        self._known[digest] = claims
        if len(self._known) > _REMEMBERED:
            self._known.popitem(last=False)
        return claims

    def _open(self, value: bytes) -> Claims:
        if not is_compact(value):
            return open_token(value, self._keys)
        if not self._compact:
            raise TokenFault("token: the compact form is not taken here")
        return open_compact(value, self._keys)


class AccessPolicy(BearerPolicy):
    """Requests are allowed within (`kvcs-1`, Scope ID) as one of their tokens grants it, cached or not.

    A prefix with fewer than two fields would list other scopes, a namespace that is offered with other than five
    would take other people's publications over: neither is allowed, whatever a token says.
    """

    def __init__(
        self,
        keys: KeyRing,
        *,
        terms: Terms | None = None,
        compact: bool = False,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._reader = TokenReader(keys, compact=compact)
        super().__init__(self._reader, clock=clock, terms=terms)

    def replace_keys(self, keys: KeyRing) -> None:
        """Tokens of keys that are gone are refused from now on. What runs goes on, unless its token asks for
        revalidation."""
        self._reader.replace_keys(keys)

    def decide(self, query: Query) -> Refusal | Recheck | None:
        """As BearerPolicy does; never says which scopes there are."""
        return misnamed(query) or super().decide(query)
