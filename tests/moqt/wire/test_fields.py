"""The encodings and the layouts declared with them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any

import pytest

from moqt.errors import ProtocolViolation, SessionErrorCode
from moqt.model import FullTrackName, GroupOrder, Location
from moqt.wire import fields
from moqt.wire.fields import FieldWhen, ScopedField
from moqt.wire.primitives import NeedMoreData, Reader
from tests.moqt.wire.support import MAX


@dataclass(frozen=True)
class Figure:
    """A record with every kind of field."""

    kind: fields.Vi64
    where: fields.LocationField
    extra: Annotated[int | None, FieldWhen("kind", 7, fields.U8)]
    scoped: Annotated[
        int,
        ScopedField(lambda value, scope: bytes((value ^ scope,)), lambda r, scope: r.u8() ^ scope),
    ]


LAYOUT = fields.layout(Figure)


@pytest.mark.parametrize(
    ("record", "octets"),
    [
        (Figure(7, Location(1, 2), 9, 0), b"\x07\x01\x02\x09\x0f"),
        (Figure(8, Location(1, 2), None, 1), b"\x08\x01\x02\x0e"),
    ],
)
def test_a_layout_reads_like_its_declaration(record: Figure, octets: bytes) -> None:
    assert fields.encode_fields(LAYOUT, record, 0x0F) == octets
    values: dict[str, Any] = {}
    fields.decode_fields(LAYOUT, Reader(octets), values, 0x0F)
    assert Figure(**{"extra": None, **values}) == record


@pytest.mark.parametrize(
    "record", [Figure(7, Location(1, 2), None, 0), Figure(8, Location(1, 2), 9, 0)]
)
def test_a_conditional_field_is_there_exactly_when_due(record: Figure) -> None:
    with pytest.raises(ValueError, match="kind 0x7"):
        fields.encode_fields(LAYOUT, record, 0)


def test_what_came_before_an_error_is_known() -> None:
    values: dict[str, Any] = {}
    with pytest.raises(NeedMoreData):
        fields.decode_fields(LAYOUT, Reader(b"\x05\x01"), values)
    assert values == {"kind": 5}


@pytest.mark.parametrize(
    ("field", "value", "octets"),
    [
        (fields.VI64, 300, b"\x81\x2c"),
        (fields.U8, 255, b"\xff"),
        (fields.FLAG, True, b"\x01"),
        (fields.GROUP_ORDER, GroupOrder.DESCENDING, b"\x02"),
        (fields.LOCATION, Location(1, MAX), b"\x01" + b"\xff" * 9),
        (fields.NAMESPACE, (b"a", b"bc"), b"\x02\x01a\x02bc"),
        (fields.TRACK, FullTrackName((b"a",), b""), b"\x01\x01a\x00"),
        (fields.TRACK_NAME, b"n", b"\x01n"),
        (fields.REASON, "é", b"\x02\xc3\xa9"),
        (fields.GOAWAY_URI, "x:", b"\x02x:"),
        (fields.CONNECT_URI, "", b"\x00"),
    ],
)
def test_each_encoding(field: fields.Field[Any], value: object, octets: bytes) -> None:
    assert field.encode(value) == octets
    assert field.decode(Reader(octets)) == value
    for end in range(len(octets)):
        with pytest.raises(NeedMoreData):
            field.decode(Reader(octets[:end]))


@pytest.mark.parametrize(
    ("field", "octets", "fault"),
    [
        (fields.FLAG, b"\x02", "flag 2"),
        (fields.GROUP_ORDER, b"\x00", "GROUP_ORDER 0"),
        (fields.GROUP_ORDER, b"\x03", "GROUP_ORDER 3"),
        (fields.REASON, b"\x84\x01", "reason phrase of 1025"),
        (fields.GOAWAY_URI, b"\xa0\x01", "New Session URI of 8193"),
        (fields.GOAWAY_URI, b"\x01\xff", "not UTF-8"),
        (fields.CONNECT_URI, b"\x01\x80", "not UTF-8"),
        (fields.TRACK_NAME, b"\x90\x01", "track name of 4097"),
    ],
)
def test_what_a_peer_must_not_send(field: fields.Field[Any], octets: bytes, fault: str) -> None:
    with pytest.raises(ProtocolViolation, match=fault):
        field.decode(Reader(octets))


@pytest.mark.parametrize(
    ("field", "value"),
    [
        (fields.U8, 256),
        (fields.FLAG, 2),
        (fields.GROUP_ORDER, 0),
        (fields.GOAWAY_URI, "x" * 8193),
        (fields.TRACK_NAME, bytes(4097)),
        (fields.TRACK, FullTrackName((bytes(4096),), b"x")),
        (fields.VI64, -1),
        (fields.LOCATION, Location(0, MAX + 1)),
    ],
)
def test_what_is_not_sent(field: fields.Field[Any], value: object) -> None:
    with pytest.raises(ValueError, match=r".+"):
        field.encode(value)


def test_a_reason_is_cut_between_characters_and_read_whatever_it_holds() -> None:
    encoded = fields.REASON.encode("x" + "é" * 600)
    assert fields.REASON.decode(Reader(encoded)) == "x" + "é" * 511
    assert fields.REASON.decode(Reader(fields.REASON.encode("\udc80"))) == "?"
    assert fields.REASON.decode(Reader(b"\x02a\xff")) == "a\ufffd"


def test_a_whole_value_fails_with_the_code_asked_for() -> None:
    code = SessionErrorCode.KEY_VALUE_FORMATTING_ERROR
    with pytest.raises(ProtocolViolation) as caught:
        fields.decode_whole(Reader(b""), Reader.u8, "thing", code)
    assert caught.value.code is code
