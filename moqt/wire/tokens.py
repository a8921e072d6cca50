"""AUTHORIZATION_TOKEN: the structure that the message parameter and the setup option share (draft-22)."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any

from moqt.errors import ProtocolViolation, SessionErrorCode
from moqt.wire.fields import VI64, Field, decode_whole
from moqt.wire.primitives import Reader


class AliasType(IntEnum):
    """What a token does with the receiver's token cache."""

    DELETE = 0x0
    REGISTER = 0x1
    USE_ALIAS = 0x2
    USE_VALUE = 0x3


_REST: Field[bytes] = Field(bytes, lambda reader: reader.take(reader.remaining))

_FIELDS: dict[int, tuple[tuple[str, Field[Any]], ...]] = {
    AliasType.DELETE: (("alias", VI64),),
    AliasType.REGISTER: (("alias", VI64), ("token_type", VI64), ("value", _REST)),
    AliasType.USE_ALIAS: (("alias", VI64),),
    AliasType.USE_VALUE: (("token_type", VI64), ("value", _REST)),
}
"""What follows the alias type; the value fills the rest of the length."""


@dataclass(frozen=True, slots=True)
class AuthorizationToken:
    """A token, or a word about a cached one. Token Type 0 means agreed out of band.

    ValueError when a field is missing that the alias type needs, or set that it does not have.
    """

    alias_type: AliasType
    alias: int | None = None
    token_type: int | None = None
    value: bytes = field(default=b"", repr=False)

    def __post_init__(self) -> None:
        names = {name for name, _ in _FIELDS[self.alias_type]}
        for name in ("alias", "token_type"):
            if (getattr(self, name) is not None) is not (name in names):
                raise ValueError(f"{self.alias_type.name} has exactly {sorted(names)}")
        if self.value and "value" not in names:
            raise ValueError(f"{self.alias_type.name} has no value")

    @classmethod
    def plain(cls, value: bytes, token_type: int = 0) -> AuthorizationToken:
        """A token that is used as it stands, and need not be stored: USE_VALUE."""
        return cls(AliasType.USE_VALUE, None, token_type, value)

    def encode(self) -> bytes:
        """The structure without the length in front of it."""
        fields = _FIELDS[self.alias_type]
        body = b"".join(codec.encode(getattr(self, name)) for name, codec in fields)
        return VI64.encode(self.alias_type) + body

    @classmethod
    def decode(cls, data: bytes) -> AuthorizationToken:
        """Reads a structure that fills `data`; otherwise closes with KEY_VALUE_FORMATTING_ERROR."""
        return decode_token(Reader(data))


def decode_token(reader: Reader) -> AuthorizationToken:
    """Reads a structure that fills what is left of `reader`, as AuthorizationToken.decode does."""
    return decode_whole(
        reader, _decode, "AUTHORIZATION_TOKEN", SessionErrorCode.KEY_VALUE_FORMATTING_ERROR
    )


def _decode(reader: Reader) -> AuthorizationToken:
    alias_type = reader.vi64()
    fields = _FIELDS.get(alias_type)
    if fields is None:
        raise ProtocolViolation(
            f"token alias type {alias_type}", SessionErrorCode.KEY_VALUE_FORMATTING_ERROR
        )
    values = {name: codec.decode(reader) for name, codec in fields}
    return AuthorizationToken(AliasType(alias_type), **values)
