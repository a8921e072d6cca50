"""Token aliases of one direction (draft-22 section 4.2)."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from moqt.errors import ProtocolViolation, SessionErrorCode
from moqt.protocol.tokens import Token, TokenCache
from moqt.wire.parameters import AliasType, AuthorizationToken


def register(alias: int, value: bytes = b"v", kind: int = 0) -> AuthorizationToken:
    return AuthorizationToken(AliasType.REGISTER, alias, kind, value)


def use(alias: int) -> AuthorizationToken:
    return AuthorizationToken(AliasType.USE_ALIAS, alias)


def delete(alias: int) -> AuthorizationToken:
    return AuthorizationToken(AliasType.DELETE, alias)


def code_of(cache: TokenCache, *tokens: AuthorizationToken, in_setup: bool = False) -> int:
    with pytest.raises(ProtocolViolation) as caught:
        cache.resolve(tokens, in_setup=in_setup)
    return caught.value.code


def test_a_value_is_used_once() -> None:
    cache = TokenCache(0)
    value = AuthorizationToken(AliasType.USE_VALUE, None, 3, b"x")
    assert cache.resolve((value,)) == (Token(3, b"x"),)
    assert cache.resolve(()) == ()


def test_an_alias_lives_until_it_is_deleted() -> None:
    cache = TokenCache(100)
    assert cache.resolve((register(1, b"a", 2), register(2, b"b"))) == (
        Token(2, b"a"),
        Token(0, b"b"),
    )
    assert cache.resolve((use(2), use(1))) == (Token(0, b"b"), Token(2, b"a"))
    assert cache.resolve((delete(1),)) == ()
    assert code_of(cache, use(1)) == SessionErrorCode.UNKNOWN_AUTH_TOKEN_ALIAS
    assert cache.resolve((register(1, b"c"), use(1))) == (Token(0, b"c"),) * 2


def test_faults_have_their_codes() -> None:
    cache = TokenCache(34)
    cache.resolve((register(1),))
    assert code_of(cache, register(1)) == SessionErrorCode.DUPLICATE_AUTH_TOKEN_ALIAS
    assert code_of(cache, use(9)) == SessionErrorCode.UNKNOWN_AUTH_TOKEN_ALIAS
    assert code_of(cache, delete(9)) == SessionErrorCode.UNKNOWN_AUTH_TOKEN_ALIAS
    assert code_of(cache, register(2, b"vv")) == SessionErrorCode.AUTH_TOKEN_CACHE_OVERFLOW
    cache.resolve((register(2),))
    assert code_of(cache, register(3, b"")) == SessionErrorCode.AUTH_TOKEN_CACHE_OVERFLOW


def test_an_entry_counts_sixteen_octets_and_its_value() -> None:
    cache = TokenCache(2 * 16 + 5)
    cache.resolve((register(1, b"abc"), register(2, b"de")))
    cache.resolve((delete(1),))
    cache.resolve((register(3, b"abc"),))
    assert code_of(cache, register(4, b"")) == SessionErrorCode.AUTH_TOKEN_CACHE_OVERFLOW


def test_in_setup_what_does_not_fit_is_used_once() -> None:
    cache = TokenCache(0)
    assert cache.resolve((register(1, b"a"),), in_setup=True) == (Token(0, b"a"),)
    assert code_of(cache, use(1)) == SessionErrorCode.UNKNOWN_AUTH_TOKEN_ALIAS


def test_in_setup_nothing_can_be_known_yet() -> None:
    cache = TokenCache(100)
    for token in (use(1), delete(1)):
        assert code_of(cache, token, in_setup=True) == SessionErrorCode.PROTOCOL_VIOLATION
    twice = (register(1), register(1))
    assert code_of(cache, *twice, in_setup=True) == SessionErrorCode.DUPLICATE_AUTH_TOKEN_ALIAS


def test_values_are_not_shown() -> None:
    assert "secret" not in repr(Token(0, b"secret"))


STRUCTURES = json.loads(
    (Path(__file__).parents[2] / "vectors" / "auth-kvcs-vectors.json").read_text("utf-8")
)["token_structures"]


@pytest.mark.parametrize("vector", STRUCTURES, ids=lambda vector: vector["what"])
def test_the_vectors_of_structures(vector: dict[str, object]) -> None:
    """R2: read and written alike, with the room each takes; what cannot be decoded ends the session."""
    data = bytes.fromhex(str(vector["hex"]))
    if "error" in vector:
        with pytest.raises(ProtocolViolation) as caught:
            AuthorizationToken.decode(data)
        assert caught.value.code is SessionErrorCode.KEY_VALUE_FORMATTING_ERROR
        return
    token = AuthorizationToken.decode(data)
    assert token.encode() == data
    assert token.alias_type.name in str(vector["what"])
    if "cache_size" in vector:
        size = int(str(vector["cache_size"]))
        assert TokenCache(size).resolve((token,))
        overflow = SessionErrorCode.AUTH_TOKEN_CACHE_OVERFLOW
        assert code_of(TokenCache(size - 1), token) == overflow


def test_all_structures_are_there() -> None:
    assert len(STRUCTURES) == 9
    assert sum("error" in vector for vector in STRUCTURES) == 4
