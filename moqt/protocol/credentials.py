"""What this end is authorised by, and how little of it is sent (draft-22 section 4.2).

- The token of SETUP holds for the session, so no request repeats it.
- One that takes its place later goes with each request: registered with the first one, if the peer has room, and
  used by its alias once that was answered. Until then, and where there is no room, its value is sent.
- An alias that was replaced is deleted with a request that follows once all that used it were answered.
- Of a request that was cancelled nobody knows whether the peer has read it: what it registered is not used, and what
  it used is not deleted.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from itertools import count
from typing import TypeAlias

from moqt.protocol.tokens import ENTRY_OVERHEAD, Token
from moqt.wire.tokens import AliasType, AuthorizationToken

Credential: TypeAlias = Callable[[], Token | None]
"""Gives the token to show now; asked before every request."""


@dataclass(eq=False, slots=True)
class _Entry:
    """A token in the peer's cache, as far as is known here."""

    alias: int
    token: Token
    registered_by: Hashable
    ready: bool = False
    lost: bool = False
    """Whether the peer has it nobody knows."""
    users: set[Hashable] = field(default_factory=set)
    deleted_by: Hashable = None

    @property
    def size(self) -> int:
        return ENTRY_OVERHEAD + len(self.token.value)


class Credentials:
    """The tokens that one session's end shows. A request is told apart by a key of the caller's."""

    def __init__(self, credential: Credential) -> None:
        self._credential = credential
        self._setup: Token | None = None
        self._entries: list[_Entry] = []
        self._aliases = count(1)

    def for_setup(self) -> tuple[AuthorizationToken, ...]:
        """What SETUP carries."""
        self._setup = token = self._credential()
        return () if token is None else (AuthorizationToken.plain(token.value, token.type),)

    def for_request(self, key: Hashable, room: int) -> tuple[AuthorizationToken, ...]:
        """What a request carries; `room` is the peer's MAX_AUTH_TOKEN_CACHE_SIZE, 0 before its SETUP."""
        token = self._credential()
        shown = self._clear(token, key)
        if token is not None and token != self._setup:
            shown.append(self._show(token, key, room))
        return tuple(shown)

    def answered(self, key: Hashable) -> None:
        """The request was, with whatever answer."""
        self._entries = [entry for entry in self._entries if entry.deleted_by != key]
        for entry in self._entries:
            entry.users.discard(key)
            if entry.registered_by == key:
                entry.ready, entry.registered_by = True, None

    def unanswered(self, key: Hashable) -> None:
        """The request was cancelled before its answer."""
        for entry in self._entries:
            if key in entry.users or key in (entry.registered_by, entry.deleted_by):
                entry.lost = True

    def _clear(self, token: Token | None, key: Hashable) -> list[AuthorizationToken]:
        """Deletes what was replaced and nobody uses. Its room is free once that was answered."""
        deleted = []
        for entry in self._entries:
            is_idle = entry.ready and not entry.users and not entry.lost
            if is_idle and entry.token != token and entry.deleted_by is None:
                entry.deleted_by = key
                deleted.append(AuthorizationToken(AliasType.DELETE, entry.alias))
        return deleted

    def _show(self, token: Token, key: Hashable, room: int) -> AuthorizationToken:
        usable = (e for e in self._entries if not e.lost and e.deleted_by is None)
        entry = next((e for e in usable if e.token == token), None)
        if entry is not None and entry.ready:
            entry.users.add(key)
            return AuthorizationToken(AliasType.USE_ALIAS, entry.alias)
        if entry is None:
            entry = _Entry(next(self._aliases), token, key)
            kept = (one for one in self._entries if one.deleted_by is not key)
            if sum(one.size for one in (*kept, entry)) <= room:
                self._entries.append(entry)
                return AuthorizationToken(AliasType.REGISTER, entry.alias, token.type, token.value)
        return AuthorizationToken.plain(token.value, token.type)
