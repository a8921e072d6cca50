"""Setup Options: Key-Value-Pairs with a registry of their own (draft-22). Unknown ones are kept, and ignored."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, NamedTuple

from moqt.errors import ProtocolViolation, SessionErrorCode
from moqt.model import Properties
from moqt.wire.fields import Field
from moqt.wire.primitives import Reader
from moqt.wire.properties import decode_properties, encode_properties
from moqt.wire.tokens import AuthorizationToken


class SetupOptionType(IntEnum):
    """The registry of setup options."""

    PATH = 0x01
    AUTHORIZATION_TOKEN = 0x03
    MAX_AUTH_TOKEN_CACHE_SIZE = 0x04
    AUTHORITY = 0x05
    MAX_FILTER_RANGES = 0x06
    MOQT_IMPLEMENTATION = 0x07
    MAX_REQUEST_UPDATES = 0x08


@dataclass(frozen=True, slots=True)
class SetupOptions:
    """What an endpoint says about itself. Absent limits are 0; that means none for MAX_REQUEST_UPDATES."""

    path: str | None = None
    authorization_tokens: tuple[AuthorizationToken, ...] = ()
    max_auth_token_cache_size: int = 0
    authority: str | None = None
    max_filter_ranges: int = 0
    implementation: str | None = None
    max_request_updates: int = 0
    unknown: Properties = ()


NO_OPTIONS = SetupOptions()


def _text(what: str, code: SessionErrorCode) -> Callable[[Any], str]:
    def decode(value: bytes) -> str:
        try:
            return value.decode()
        except UnicodeDecodeError:
            raise ProtocolViolation(f"{what} is not UTF-8", code) from None

    return decode


def _integer(value: int) -> int:
    return value


class _Option(NamedTuple):
    type: SetupOptionType
    field: str
    encode: Callable[[Any], int | bytes]
    decode: Callable[[Any], Any]
    repeatable: bool = False


_T = SetupOptionType
_CODE = SessionErrorCode
# fmt: off
_TABLE = (
    _Option(_T.PATH, "path", str.encode, _text("PATH", _CODE.MALFORMED_PATH)),
    _Option(_T.AUTHORIZATION_TOKEN, "authorization_tokens", AuthorizationToken.encode,
            AuthorizationToken.decode, repeatable=True),
    _Option(_T.MAX_AUTH_TOKEN_CACHE_SIZE, "max_auth_token_cache_size", _integer, _integer),
    _Option(_T.AUTHORITY, "authority", str.encode, _text("AUTHORITY", _CODE.MALFORMED_AUTHORITY)),
    _Option(_T.MAX_FILTER_RANGES, "max_filter_ranges", _integer, _integer),
    _Option(_T.MOQT_IMPLEMENTATION, "implementation", str.encode,
            _text("MOQT_IMPLEMENTATION", _CODE.KEY_VALUE_FORMATTING_ERROR)),
    _Option(_T.MAX_REQUEST_UPDATES, "max_request_updates", _integer, _integer),
)
# fmt: on
_OPTIONS: dict[int, _Option] = {option.type: option for option in _TABLE}


def _encode(options: SetupOptions) -> bytes:
    pairs: list[tuple[int, int | bytes]] = []
    for option in _TABLE:
        value = getattr(options, option.field)
        if option.repeatable:
            pairs.extend((option.type, option.encode(one)) for one in value)
        elif value is not None and value != 0:
            pairs.append((option.type, option.encode(value)))
    if any(kind in _OPTIONS for kind, _ in options.unknown):
        raise ValueError("a known option among the unknown ones")
    return encode_properties((*pairs, *options.unknown))


def _decode(reader: Reader) -> SetupOptions:
    values: dict[str, Any] = {}
    unknown: list[tuple[int, int | bytes]] = []
    for kind, value in decode_properties(reader):
        option = _OPTIONS.get(kind)
        if option is None:
            unknown.append((kind, value))
        elif option.repeatable:
            values[option.field] = (*values.get(option.field, ()), option.decode(value))
        elif option.field in values:
            raise ProtocolViolation(f"{option.type.name} twice")
        else:
            values[option.field] = option.decode(value)
    return SetupOptions(**values, unknown=tuple(unknown))


SETUP_OPTIONS = Field(_encode, _decode)
