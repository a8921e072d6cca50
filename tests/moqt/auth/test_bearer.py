"""moqt.auth.bearer: time, issuer, audience, scopes and revalidation, with a clock of the test's own."""

from __future__ import annotations

import logging

import pytest

from moqt.auth import Action, BearerPolicy, Claims, Query, Recheck, Refusal, Terms, Token, scopes_of
from moqt.auth.bearer import MAX_TOKENS
from moqt.errors import RequestErrorCode, TokenFault, UntrustedToken

NOW = 1_700_000_000.0
GRANTS = scopes_of([[[4], [b"films"]]])
EXPIRED = RequestErrorCode.EXPIRED_AUTH_TOKEN
MALFORMED = RequestErrorCode.MALFORMED_AUTH_TOKEN
UNAUTHORIZED = RequestErrorCode.UNAUTHORIZED


def claims(**given: object) -> Claims:
    base: dict[str, object] = {"issuer": "i", "expires": NOW + 100, "scopes": GRANTS}
    return Claims(**(base | given))  # type: ignore[arg-type]


TOKENS: dict[bytes, Claims] = {
    b"good": claims(),
    b"elsewhere": claims(scopes=scopes_of([[[4], [b"books"]]])),
    b"old": claims(expires=NOW - 61, token_id=b"\x01\x02"),
    b"endless": claims(expires=None),
    b"early": claims(not_before=NOW + 70),
    b"watched": claims(revalidate=30.0),
    b"short": claims(revalidate=30.0, expires=NOW + 5),
    b"hasty": claims(revalidate=0.5),
    b"ours": claims(audience=("x", "relay")),
}


def read(token: Token) -> Claims:
    if token.value == b"broken":
        raise TokenFault("it is broken")
    if token.value not in TOKENS:
        raise UntrustedToken("its key is not trusted")
    return TOKENS[token.value]


def decide(*values: bytes, terms: Terms | None = None, now: float = NOW) -> object:
    query = Query(
        action=Action.SUBSCRIBE,
        namespace=(b"films",),
        track=b"t",
        tokens=tuple(Token(1, value) for value in values),
    )
    return BearerPolicy(read, clock=lambda: now, terms=terms).decide(query)


def refused(*values: bytes, terms: Terms | None = None, now: float = NOW) -> RequestErrorCode:
    decision = decide(*values, terms=terms, now=now)
    assert isinstance(decision, Refusal)
    return decision.code


def test_a_token_grants_what_it_says() -> None:
    assert decide(b"good") is None
    assert decide(b"broken", b"unknown", b"old", b"good") is None
    assert refused(b"elsewhere") is UNAUTHORIZED
    assert refused() is UNAUTHORIZED


def test_each_fault_has_its_code() -> None:
    assert refused(b"broken") is MALFORMED
    assert refused(b"unknown") is UNAUTHORIZED
    assert refused(b"old") is EXPIRED
    assert refused(b"broken", b"old", b"elsewhere") is EXPIRED
    assert refused(b"broken", b"elsewhere") is UNAUTHORIZED


def test_clocks_may_differ_by_the_leeway() -> None:
    """A token counts from `nbf` and to `exp`, give or take."""
    terms = Terms(leeway=10)
    for now, good in ((NOW + 109.9, True), (NOW + 110, False)):
        assert (decide(b"good", terms=terms, now=now) is None) is good
    for now, good in ((NOW + 60, True), (NOW + 59.9, False)):
        assert (decide(b"early", terms=terms, now=now) is None) is good
    strict = Terms(leeway=0)
    assert refused(b"good", terms=strict, now=NOW + 100) is EXPIRED


def test_who_comes_early_is_told_when() -> None:
    decision = decide(b"early", terms=Terms(leeway=0))
    assert isinstance(decision, Refusal)
    assert decision.retry == pytest.approx(70_000, abs=2)


def test_a_token_has_to_expire_unless_told_otherwise() -> None:
    assert refused(b"endless") is UNAUTHORIZED
    assert decide(b"endless", terms=Terms(needs_expiry=False)) is None


def test_issuer_and_audience() -> None:
    assert decide(b"good", terms=Terms(issuers=frozenset({"i", "j"}))) is None
    assert refused(b"good", terms=Terms(issuers=frozenset({"j"}))) is UNAUTHORIZED
    relay = Terms(audiences=frozenset({"relay"}))
    assert decide(b"ours", terms=relay) is None
    # A restriction is not passed over because nobody here knows whether it is met.
    assert refused(b"ours") is UNAUTHORIZED
    assert refused(b"good", terms=relay) is UNAUTHORIZED
    assert refused(b"ours", terms=Terms(audiences=frozenset({"other"}))) is UNAUTHORIZED


def test_revalidation_comes_after_what_the_token_asks_for_or_at_its_end() -> None:
    assert decide(b"watched") == Recheck(30)
    assert decide(b"short", terms=Terms(leeway=2)) == Recheck(7)
    assert refused(b"hasty") is UNAUTHORIZED
    assert decide(b"hasty", terms=Terms(least_revalidation=0.1)) == Recheck(0.5)


def test_only_so_many_tokens_are_looked_at() -> None:
    assert refused(*[b"broken"] * MAX_TOKENS, b"good") is MALFORMED


def test_logs_tell_the_identifier_and_not_the_token(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG):
        decide(b"old", b"unknown")
    assert "token 0102" in caplog.text
    assert "unknown" in caplog.text
    assert "old" not in caplog.text
