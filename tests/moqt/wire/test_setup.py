"""Setup Options."""

from __future__ import annotations

import pytest
from hypothesis import given

from moqt.errors import ProtocolViolation, SessionErrorCode
from moqt.model import Properties
from moqt.wire.primitives import Reader
from moqt.wire.properties import encode_properties
from moqt.wire.setup import SETUP_OPTIONS, SetupOptions, SetupOptionType
from moqt.wire.tokens import AliasType, AuthorizationToken
from tests.moqt.wire import strategies as our
from tests.moqt.wire.support import survives

TOKEN = AuthorizationToken(AliasType.REGISTER, 1, 2, b"tok")


def decode(pairs: Properties) -> SetupOptions:
    return SETUP_OPTIONS.decode(Reader(encode_properties(pairs)))


@given(our.options)
def test_options_round_trip(options: SetupOptions) -> None:
    assert SETUP_OPTIONS.decode(Reader(SETUP_OPTIONS.encode(options))) == options


def test_absent_options_and_limits_of_zero_are_one() -> None:
    assert decode(()) == SetupOptions()
    assert SETUP_OPTIONS.encode(SetupOptions()) == b""
    assert decode(((4, 0), (6, 0), (8, 0))) == SetupOptions()


def test_an_empty_path_is_not_an_absent_one() -> None:
    assert decode(((1, b""),)).path == ""
    assert SETUP_OPTIONS.encode(SetupOptions(path="")) == b"\x01\x00"


def test_unknown_options_are_kept_even_repeated() -> None:
    unknown: Properties = ((0x02, 1), (0x9D, b"a"), (0x9D, b"b"))
    options = decode(((1, b"/"), *unknown))
    assert options == SetupOptions(path="/", unknown=unknown)


def test_tokens_may_be_repeated() -> None:
    pairs: Properties = ((3, TOKEN.encode()), (3, TOKEN.encode()))
    assert decode(pairs).authorization_tokens == (TOKEN, TOKEN)


@pytest.mark.parametrize("kind", [kind for kind in SetupOptionType if kind != 3])
def test_other_known_options_may_not(kind: SetupOptionType) -> None:
    value: int | bytes = b"x" if kind % 2 else 1
    with pytest.raises(ProtocolViolation, match=f"{kind.name} twice"):
        decode(((kind, value), (kind, value)))


@pytest.mark.parametrize(
    ("kind", "code"),
    [
        (SetupOptionType.PATH, SessionErrorCode.MALFORMED_PATH),
        (SetupOptionType.AUTHORITY, SessionErrorCode.MALFORMED_AUTHORITY),
        (SetupOptionType.MOQT_IMPLEMENTATION, SessionErrorCode.KEY_VALUE_FORMATTING_ERROR),
        (SetupOptionType.AUTHORIZATION_TOKEN, SessionErrorCode.KEY_VALUE_FORMATTING_ERROR),
    ],
)
def test_a_value_that_does_not_parse_closes_with_its_code(
    kind: SetupOptionType, code: SessionErrorCode
) -> None:
    with pytest.raises(ProtocolViolation) as caught:
        decode(((kind, b"\xff"),))
    assert caught.value.code is code


def test_a_known_option_is_not_sent_as_unknown() -> None:
    with pytest.raises(ValueError, match="known option"):
        SETUP_OPTIONS.encode(SetupOptions(unknown=((1, b"/"),)))


def test_mutations_seed_22() -> None:
    def parse(data: bytes) -> None:
        options = SETUP_OPTIONS.decode(Reader(data))
        assert SETUP_OPTIONS.decode(Reader(SETUP_OPTIONS.encode(options))) == options

    full = SetupOptions("/p", (TOKEN,), 1, "host", 2, "name", 3, ((0x9D, b"x"), (0x9E, 1)))
    corpus = [SETUP_OPTIONS.encode(full), SETUP_OPTIONS.encode(SetupOptions(path="/"))]
    assert survives(parse, corpus, ProtocolViolation)
