"""Authorisation tokens that the peer registered, and what a message's tokens mean (draft-22 section 4.2)."""

from __future__ import annotations

from typing import NamedTuple

from moqt.errors import ProtocolViolation, SessionErrorCode
from moqt.wire.parameters import AliasType, AuthorizationToken

ENTRY_OVERHEAD = 16
"""Octets that a registered token counts beside its value."""


class Token(NamedTuple):
    """A token after alias resolution. Type 0 was agreed on out of band."""

    type: int
    value: bytes

    def __repr__(self) -> str:
        return f"Token(type={self.type}, value=<{len(self.value)} octets>)"


class TokenCache:
    """Aliases of one direction of a session, bounded by what MAX_AUTH_TOKEN_CACHE_SIZE offered."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._size = 0
        self._aliases: dict[int, Token] = {}

    def resolve(
        self, tokens: tuple[AuthorizationToken, ...], *, in_setup: bool = False
    ) -> tuple[Token, ...]:
        """Applies each token's alias operation; returns those to be used now.

        Raises ProtocolViolation with the code for a reused or unknown alias, for more than fits, and for
        DELETE or USE_ALIAS in SETUP, where nothing can be registered yet.
        """
        resolved = []
        for token in tokens:
            found = self._apply(token, in_setup)
            if found is not None:
                resolved.append(found)
        return tuple(resolved)

    def _apply(self, token: AuthorizationToken, in_setup: bool) -> Token | None:
        alias = token.alias
        if alias is None:
            return Token(token.token_type or 0, token.value)
        if token.alias_type is AliasType.REGISTER:
            return self._register(alias, Token(token.token_type or 0, token.value), in_setup)
        if in_setup:
            raise ProtocolViolation(f"{token.alias_type.name} of a token alias in SETUP")
        known = self._aliases.get(alias)
        if known is None:
            raise ProtocolViolation(
                f"token alias {alias} is not registered", SessionErrorCode.UNKNOWN_AUTH_TOKEN_ALIAS
            )
        if token.alias_type is AliasType.DELETE:
            del self._aliases[alias]
            self._size -= ENTRY_OVERHEAD + len(known.value)
            return None
        return known

    def _register(self, alias: int, token: Token, in_setup: bool) -> Token:
        if alias in self._aliases:
            raise ProtocolViolation(
                f"token alias {alias} is registered", SessionErrorCode.DUPLICATE_AUTH_TOKEN_ALIAS
            )
        size = ENTRY_OVERHEAD + len(token.value)
        if self._size + size <= self._limit:
            self._aliases[alias] = token
            self._size += size
        elif not in_setup:
            raise ProtocolViolation(
                f"token of {size} octets exceeds the cache of {self._limit}",
                SessionErrorCode.AUTH_TOKEN_CACHE_OVERFLOW,
            )
        return token
