"""The encodings the draft names, each as one `Field`, and the layout that annotations declare with them.

A message is a dataclass whose annotations read like the draft's figure; `layout` turns them into the list
that `encode_fields` and `decode_fields` walk.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any, Generic, TypeAlias, TypeVar, get_type_hints

from moqt.errors import ProtocolViolation, SessionErrorCode
from moqt.model import FullTrackName, GroupOrder, Location, TrackNamespace
from moqt.wire.primitives import (
    MAX_NAME_OCTETS,
    NeedMoreData,
    Reader,
    encode_namespace,
    encode_octets,
    encode_vi64,
)

MAX_MESSAGE_OCTETS = 0xFFFF
"""The Length of a control message has 16 bits."""

MAX_REASON_OCTETS = 1024
MAX_GOAWAY_URI_OCTETS = 8192

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Field(Generic[T]):
    """One encoding. `encode` raises ValueError for a value that it cannot carry."""

    encode: Callable[[T], bytes]
    decode: Callable[[Reader], T]


@dataclass(frozen=True, slots=True)
class ScopedField(Generic[T]):
    """An encoding that depends on the context, such as Message Parameters."""

    encode: Callable[[T, Any], bytes]
    decode: Callable[[Reader, Any], T]


@dataclass(frozen=True, slots=True)
class FieldWhen(Generic[T]):
    """A field that is present exactly when the earlier field `name` has the value `equals`."""

    name: str
    equals: int
    field: Field[T]


Layout: TypeAlias = tuple[tuple[str, Any], ...]
"""Field names in wire order, each with its Field, ScopedField or FieldWhen."""


def layout(declaration: type) -> Layout:
    """The layout that the `Annotated` fields of a dataclass declare."""
    hints = get_type_hints(declaration, include_extras=True)
    return tuple((f.name, hints[f.name].__metadata__[0]) for f in dataclasses.fields(declaration))


def encode_fields(fields: Layout, record: object, scope: object = None) -> bytes:
    """The fields of `record` one after the other. ValueError for what cannot be sent."""
    parts = []
    for name, field in fields:
        value = getattr(record, name)
        if isinstance(field, FieldWhen):
            present = getattr(record, field.name) == field.equals
            if present is not (value is not None):
                raise ValueError(f"{name} belongs to {field.name} 0x{field.equals:x} alone")
            if present:
                parts.append(field.field.encode(value))
        elif isinstance(field, ScopedField):
            parts.append(field.encode(value, scope))
        else:
            parts.append(field.encode(value))
    return b"".join(parts)


def decode_fields(
    fields: Layout, reader: Reader, values: dict[str, Any], scope: object = None
) -> None:
    """Reads the fields in order into `values`, so that a caller sees what came before an error."""
    for name, field in fields:
        if isinstance(field, FieldWhen):
            if values[field.name] == field.equals:
                values[name] = field.field.decode(reader)
        elif isinstance(field, ScopedField):
            values[name] = field.decode(reader, scope)
        else:
            values[name] = field.decode(reader)


def structure(declaration: type[T]) -> Field[T]:
    """A field that is itself a sequence of fields."""
    fields = layout(declaration)

    def decode(reader: Reader) -> T:
        values: dict[str, Any] = {}
        decode_fields(fields, reader, values)
        return declaration(**values)

    return Field(lambda record: encode_fields(fields, record), decode)


def decode_whole(
    reader: Reader,
    decode: Callable[[Reader], T],
    what: str,
    code: SessionErrorCode = SessionErrorCode.PROTOCOL_VIOLATION,
) -> T:
    """`decode` applied to all that is left in `reader`; ProtocolViolation when it does not fit."""
    try:
        value = decode(reader)
    except NeedMoreData:
        raise ProtocolViolation(f"{what} ends inside a field", code) from None
    if reader.remaining:
        raise ProtocolViolation(f"{reader.remaining} octets after the end of {what}", code)
    return value


def _choice(kind: Callable[[int], T], allowed: dict[int, T], what: str) -> Field[T]:
    def encode(value: T) -> bytes:
        if value not in allowed.values():
            raise ValueError(f"{what} {value!r} is none of {sorted(allowed)}")
        return bytes((int(value),))  # type: ignore[call-overload]

    def decode(reader: Reader) -> T:
        value = reader.u8()
        if value not in allowed:
            raise ProtocolViolation(f"{what} {value} is none of {sorted(allowed)}")
        return kind(value)

    return Field(encode, decode)


def _text(limit: int, what: str) -> Field[str]:
    def encode(value: str) -> bytes:
        octets = value.encode()
        if len(octets) > limit:
            raise ValueError(f"{what} of {len(octets)} octets, at most {limit} allowed")
        return encode_octets(octets)

    def decode(reader: Reader) -> str:
        try:
            return reader.octets(limit, what).decode()
        except UnicodeDecodeError:
            raise ProtocolViolation(f"{what} is not UTF-8") from None

    return Field(encode, decode)


def _encode_reason(reason: str) -> bytes:
    octets = reason.encode("utf-8", "replace")
    if len(octets) > MAX_REASON_OCTETS:
        # A reason often quotes an error of any length; half of it helps more than none.
        octets = octets[:MAX_REASON_OCTETS].decode("utf-8", "ignore").encode()
    return encode_octets(octets)


def _decode_reason(reader: Reader) -> str:
    return reader.octets(MAX_REASON_OCTETS, "reason phrase").decode("utf-8", "replace")


def _encode_track(track: FullTrackName) -> bytes:
    namespace, name = track
    if sum(map(len, namespace)) + len(name) > MAX_NAME_OCTETS:
        raise ValueError("full track name of more than 4096 octets")
    return encode_namespace(namespace) + encode_octets(name)


def _decode_track(reader: Reader) -> FullTrackName:
    namespace = reader.namespace()
    return FullTrackName(namespace, reader.track_name(namespace))


def _encode_name(name: bytes) -> bytes:
    if len(name) > MAX_NAME_OCTETS:
        raise ValueError("track name of more than 4096 octets")
    return encode_octets(name)


VI64 = Field(encode_vi64, Reader.vi64)
U8 = Field(lambda value: bytes((value,)), Reader.u8)
FLAG = _choice(bool, {0: False, 1: True}, "flag")
GROUP_ORDER = _choice(GroupOrder, {order.value: order for order in GroupOrder}, "GROUP_ORDER")
LOCATION: Field[Location] = Field(
    lambda value: encode_vi64(value.group) + encode_vi64(value.object),
    lambda reader: Location(reader.vi64(), reader.vi64()),
)
NAMESPACE = Field(encode_namespace, Reader.namespace)
TRACK = Field(_encode_track, _decode_track)
TRACK_NAME = Field(_encode_name, lambda reader: reader.octets(MAX_NAME_OCTETS, "track name"))
REASON = Field(_encode_reason, _decode_reason)
GOAWAY_URI = _text(MAX_GOAWAY_URI_OCTETS, "New Session URI")
CONNECT_URI = _text(MAX_MESSAGE_OCTETS, "Connect URI")

Vi64: TypeAlias = Annotated[int, VI64]
Flag: TypeAlias = Annotated[bool, FLAG]
LocationField: TypeAlias = Annotated[Location, LOCATION]
NamespaceField: TypeAlias = Annotated[TrackNamespace, NAMESPACE]
TrackField: TypeAlias = Annotated[FullTrackName, TRACK]
TrackNameField: TypeAlias = Annotated[bytes, TRACK_NAME]
ReasonPhrase: TypeAlias = Annotated[str, REASON]
