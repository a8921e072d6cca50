"""The Token structure."""

from __future__ import annotations

import pytest
from hypothesis import given

from moqt.errors import ProtocolViolation, SessionErrorCode
from moqt.wire.tokens import AliasType, AuthorizationToken
from tests.moqt.wire import strategies as our
from tests.moqt.wire.support import survives

TOKENS = [
    (AuthorizationToken(AliasType.DELETE, 7), "00 07"),
    (AuthorizationToken(AliasType.REGISTER, 7, 2, b"tok"), "01 07 02 746f6b"),
    (AuthorizationToken(AliasType.USE_ALIAS, 300), "02 812c"),
    (AuthorizationToken(AliasType.USE_VALUE, None, 0, b"\xff"), "03 00 ff"),
    (AuthorizationToken(AliasType.USE_VALUE, token_type=0), "03 00"),
]


@pytest.mark.parametrize(("token", "octets"), TOKENS)
def test_the_four_alias_types(token: AuthorizationToken, octets: str) -> None:
    data = bytes.fromhex(octets)
    assert token.encode() == data
    assert AuthorizationToken.decode(data) == token


@given(our.tokens())
def test_tokens_round_trip(token: AuthorizationToken) -> None:
    assert AuthorizationToken.decode(token.encode()) == token


@pytest.mark.parametrize(
    "octets", ["", "00", "01", "01 07", "02", "02 81", "03", "00 07 00", "02 07 00", "04 00", "ff"]
)
def test_an_undecodable_token_is_a_formatting_error(octets: str) -> None:
    with pytest.raises(ProtocolViolation) as caught:
        AuthorizationToken.decode(bytes.fromhex(octets))
    assert caught.value.code is SessionErrorCode.KEY_VALUE_FORMATTING_ERROR


@pytest.mark.parametrize(
    ("kind", "alias", "token_type", "value"),
    [
        (AliasType.DELETE, None, None, b""),
        (AliasType.DELETE, 1, 0, b""),
        (AliasType.DELETE, 1, None, b"x"),
        (AliasType.REGISTER, 1, None, b"x"),
        (AliasType.REGISTER, None, 1, b"x"),
        (AliasType.USE_ALIAS, 1, None, b"x"),
        (AliasType.USE_VALUE, 1, 0, b"x"),
        (AliasType.USE_VALUE, None, None, b"x"),
    ],
)
def test_a_token_has_the_fields_of_its_alias_type(
    kind: AliasType, alias: int | None, token_type: int | None, value: bytes
) -> None:
    with pytest.raises(ValueError, match="has"):
        AuthorizationToken(kind, alias, token_type, value)


def test_a_token_does_not_show_its_value() -> None:
    assert "secret" not in repr(AuthorizationToken(AliasType.USE_VALUE, None, 0, b"secret"))


def test_mutations_seed_22() -> None:
    def parse(data: bytes) -> None:
        token = AuthorizationToken.decode(data)
        assert AuthorizationToken.decode(token.encode()) == token

    assert survives(parse, [token.encode() for token, _ in TOKENS], ProtocolViolation)
