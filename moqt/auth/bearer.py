"""A policy of C4M tokens: who holds one may do what it says, while it says so.

How a token is sealed, and with which keys, is the caller's: `read` gives the claims of one whose seal holds.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, replace

from moqt.auth.claims import Claims
from moqt.auth.policy import Query, Recheck, Refusal, Token
from moqt.auth.scopes import permits
from moqt.errors import RequestErrorCode, TokenFault, UntrustedToken

NOT_GRANTED = "no token grants this"
MAX_TOKENS = 8
"""Of one request and its session that are looked at."""
MAX_RECHECK = 86400.0
"""Seconds after which a request whose token asks for revalidation is looked at, at the latest."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """What a token has to say beside its scopes."""

    issuers: frozenset[str] = frozenset()
    """Whose tokens count; empty for all whose keys are trusted."""
    audiences: frozenset[str] = frozenset()
    """By which of these names a token must be meant for here. Empty: only one that names none is taken."""
    leeway: float = 60.0
    """Seconds that clocks may differ."""
    needs_expiry: bool = True
    """Whether a token without `exp` is refused."""
    least_revalidation: float = 1.0
    """The shortest `moqt-reval`, in seconds; a token that asks for more is refused."""

    def fault(self, claims: Claims, now: float) -> Refusal | None:
        """Why a token is not good at `now`, in seconds since 1970."""
        if self.issuers and claims.issuer not in self.issuers:
            return Refusal("its issuer (iss) is not trusted here")
        if claims.audience and not self.audiences:
            return Refusal("it names an audience (aud), and nobody said that this is one")
        if self.audiences and not self.audiences.intersection(claims.audience):
            return Refusal("it is meant for others (aud)")
        if claims.expires is None and self.needs_expiry:
            return Refusal("it does not expire (exp), and such tokens are not taken")
        if claims.expires is not None and now >= claims.expires + self.leeway:
            return Refusal("it has expired (exp)", RequestErrorCode.EXPIRED_AUTH_TOKEN)
        if claims.not_before is not None and now < claims.not_before - self.leeway:
            wait = int((claims.not_before - self.leeway - now) * 1000) + 1
            return Refusal("it is not valid yet (nbf)", retry=wait)
        if claims.revalidate is not None and claims.revalidate < self.least_revalidation:
            return Refusal(
                f"it asks to be looked at more often (moqt-reval) than every {self.least_revalidation:g} s"
            )
        return None


class BearerPolicy:
    """Grants what one of a request's tokens grants.

    `read` raises TokenFault for a token that is malformed, UntrustedToken for one that nobody trusted has
    sealed; `clock` gives seconds since 1970.
    """

    def __init__(
        self,
        read: Callable[[Token], Claims],
        *,
        clock: Callable[[], float],
        terms: Terms | None = None,
    ) -> None:
        self._read = read
        self._clock = clock
        self.terms = terms or Terms()

    def decide(self, query: Query) -> Refusal | Recheck | None:
        """None, or Recheck where the token asks for revalidation, if a token grants it."""
        refusals: list[Refusal] = []
        for token in query.tokens[:MAX_TOKENS]:
            decision = self._decide(query, token)
            if not isinstance(decision, Refusal):
                return decision
            refusals.append(decision)
        if not refusals:
            return Refusal("a token is needed")
        return max(refusals, key=_tells)

    def claims(self, token: Token) -> Claims:
        """What a token says whose seal holds. Raises TokenFault, UntrustedToken where it does not."""
        return self._read(token)

    def fault(self, claims: Claims) -> Refusal | None:
        """Why a token that says this is not good now."""
        return self.terms.fault(claims, self._clock())

    def _decide(self, query: Query, token: Token) -> Refusal | Recheck | None:
        try:
            claims = self._read(token)
        except UntrustedToken as fault:
            return self._refused(query, Refusal(f"the token is not accepted: {fault}"), None)
        except TokenFault as fault:
            refusal = Refusal(
                f"the token is not accepted: {fault}", RequestErrorCode.MALFORMED_AUTH_TOKEN
            )
            return self._refused(query, refusal, None)
        now = self._clock()
        broken = self.terms.fault(claims, now)
        if broken is not None:
            told = f"the token is not accepted: {broken.reason}"
            return self._refused(query, replace(broken, reason=told), claims)
        if not permits(claims.scopes, query.action, query.namespace, query.track):
            return self._refused(query, Refusal(NOT_GRANTED), claims)
        if claims.revalidate is None:
            return None
        after = min(claims.revalidate, MAX_RECHECK)
        if claims.expires is not None:
            after = min(after, claims.expires + self.terms.leeway - now)
        return Recheck(max(after, 0.001))

    def _refused(self, query: Query, refusal: Refusal, claims: Claims | None) -> Refusal:
        """Tokens stay out of logs; `cti` tells which one it was."""
        known = claims.token_id.hex() if claims is not None and claims.token_id else "unknown"
        _log.info("%s refused, token %s: %s", query.action.name, known, refusal.reason)
        return refusal


_TELLING = (
    RequestErrorCode.MALFORMED_AUTH_TOKEN,
    RequestErrorCode.UNAUTHORIZED,
    RequestErrorCode.EXPIRED_AUTH_TOKEN,
)


def _tells(refusal: Refusal) -> tuple[int, bool]:
    """How much a refusal helps its reader: one of several tokens is the one that could have done."""
    return _TELLING.index(refusal.code), bool(refusal.retry)
