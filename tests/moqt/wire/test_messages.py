"""The control messages."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given

from moqt.errors import ProtocolViolation, RequestErrorCode, SessionErrorCode
from moqt.model import FullTrackName
from moqt.wire import messages as m
from moqt.wire.filters import InvalidFilter, RangeFilter
from moqt.wire.parameters import AliasType, AuthorizationToken, Parameters
from moqt.wire.primitives import encode_vi64
from tests.moqt.wire import strategies as our
from tests.moqt.wire.support import (
    REQUESTS,
    Vector,
    describe_message,
    of_kind,
    split_message,
    survives,
    without_form,
)

MESSAGES = of_kind("message")
TRACK = FullTrackName((b"kv",), b"k.raw.s0")
# Messages that end with Key-Value-Pairs may be cut between two of those.
OPEN_ENDED = (m.Setup, m.SubscribeOk, m.Publish, m.FetchOk, m.RequestOk)


@pytest.mark.parametrize("vector", MESSAGES, ids=lambda v: v.name)
def test_vector(vector: Vector) -> None:
    kind, body = split_message(vector.octets)
    message = m.decode_message(kind, body, **vector.context)
    header = {"type": kind, "length": len(body)}
    assert header | describe_message(message) == without_form(vector.decoded)
    encoded = m.encode_message(message, **vector.context)
    assert (encoded == vector.octets) is vector.encodes
    assert m.decode_message(*split_message(encoded), **vector.context) == message


@pytest.mark.parametrize("vector", MESSAGES, ids=lambda v: v.name)
def test_every_truncation_is_a_violation(vector: Vector) -> None:
    kind, body = split_message(vector.octets)
    for end in range(len(body)):
        try:
            message = m.decode_message(kind, body[:end], **vector.context)
        except ProtocolViolation:
            continue
        assert isinstance(message, OPEN_ENDED)
        assert split_message(m.encode_message(message, **vector.context)) == (kind, body[:end])


@pytest.mark.parametrize("vector", MESSAGES, ids=lambda v: v.name)
def test_octets_behind_a_message_are_a_violation(vector: Vector) -> None:
    kind, body = split_message(vector.octets)
    with pytest.raises(ProtocolViolation):
        m.decode_message(kind, body + b"\xff", **vector.context)


def test_all_messages_have_a_vector() -> None:
    assert {split_message(vector.octets)[0] for vector in MESSAGES} == set(m.MessageType)
    assert len(m.MessageType) == 19


@given(our.messages)
def test_messages_round_trip(framed: our.Framed) -> None:
    message, context = framed
    assert (
        m.decode_message(*split_message(m.encode_message(message, **context)), **context) == message
    )


@pytest.mark.parametrize(
    "kind",
    [
        0x00,
        0x01,
        0x09,
        0x0A,
        0x0C,
        0x11,
        0x15,
        0x17,
        0x1A,
        0x1E,
        0x20,
        0x21,
        0x40,
        0x41,
        0x52,
        2**64 - 1,
    ],
)
def test_an_unknown_type_is_a_violation(kind: int) -> None:
    with pytest.raises(ProtocolViolation, match=f"message type 0x{kind:x}"):
        m.decode_message(kind, b"")


@pytest.mark.parametrize(
    ("kind", "body", "fault"),
    [
        (m.MessageType.GOAWAY, "a001" + "78" * 8193 + "00", "New Session URI of 8193"),
        (m.MessageType.GOAWAY, "01ff 00", "not UTF-8"),
        (m.MessageType.PUBLISH_DONE, "00 00 8401" + "78" * 1025, "reason phrase of 1025"),
        (m.MessageType.REQUEST_ERROR, "00 00 8401" + "78" * 1025, "reason phrase of 1025"),
        (m.MessageType.REQUEST_ERROR, "34 00 00", "ends inside"),
        (m.MessageType.REQUEST_ERROR, "10 00 00 00 00 00", "after the end"),
        (m.MessageType.REQUEST_ERROR, "34 00 00 01 ff 00 00", "not UTF-8"),
        (m.MessageType.FETCH_OK, "02 00 00 00", "flag 2"),
        (m.MessageType.NAMESPACE, "21" + "0178" * 33, "33 fields"),
        (m.MessageType.NAMESPACE, "01 00", "empty"),
        (m.MessageType.SUBSCRIBE, "00 00 9001" + "78" * 4097 + "00", "track name of 4097"),
        (m.MessageType.SUBSCRIBE, "00 00 00 01 36 00", "parameter 0x36"),
        (m.MessageType.SUBSCRIBE, "00 00 00 01 08 00", "EXPIRES|0x8"),
        (m.MessageType.SUBSCRIBE_OK, "00 00 03 c10000", "property value of 65536"),
        (m.MessageType.SETUP, "01 00 00 00", "PATH twice"),
    ],
)
def test_what_a_peer_must_not_send(kind: int, body: str, fault: str) -> None:
    with pytest.raises(ProtocolViolation, match=fault):
        m.decode_message(kind, bytes.fromhex(body))


def test_a_faulty_token_closes_with_its_code() -> None:
    with pytest.raises(ProtocolViolation) as caught:
        m.decode_message(m.MessageType.PUBLISH_NAMESPACE, bytes.fromhex("00 00 01 03 01 09"))
    assert caught.value.code is SessionErrorCode.KEY_VALUE_FORMATTING_ERROR


@pytest.mark.parametrize(
    ("kind", "head", "context"),
    [
        (m.MessageType.SUBSCRIBE, "07 00 00", {}),
        (m.MessageType.FETCH, "07 00 00", {}),
        (m.MessageType.SUBSCRIBE_TRACKS, "07 00", {}),
        (m.MessageType.REQUEST_UPDATE, "07", {"request": m.Subscribe}),
    ],
)
def test_a_filter_fault_tells_the_request(kind: int, head: str, context: dict[str, Any]) -> None:
    """A registration takes effect although its request is refused, so the tokens come along."""
    tokens = "" if kind == m.MessageType.FETCH else "03 04 01 01 00 78 "
    body = f"{head} {'02 ' + tokens + '24' if tokens else '01 27'} 03 00 8100"
    with pytest.raises(InvalidFilter) as caught:
        m.decode_message(kind, bytes.fromhex(body), **context)
    assert caught.value.request_id == 7
    assert caught.value.parameters is not None
    token = AuthorizationToken(AliasType.REGISTER, 1, 0, b"x")
    assert caught.value.parameters.authorization_tokens == ((token,) if tokens else ())
    with pytest.raises(ProtocolViolation):
        m.decode_message(kind, bytes.fromhex(body) + b"\x00", **context)


@pytest.mark.parametrize("request_type", REQUESTS.values())
def test_track_properties_only_in_a_track_status_ok(request_type: type[m.Request]) -> None:
    message = m.RequestOk(properties=((0x04, 1),))
    update = request_type in (m.Subscribe, m.Fetch)
    if request_type is m.TrackStatus:
        encoded = m.encode_message(message, request_type)
        assert m.decode_message(*split_message(encoded), request_type) == message
        return
    with pytest.raises(ValueError, match="Track Properties"):
        m.encode_message(message, request_type, update=update)
    with pytest.raises(ProtocolViolation, match="Track Properties"):
        m.decode_message(7, b"\x00\x04\x01", request_type, update=update)


@pytest.mark.parametrize(
    "request_type", [m.PublishNamespace, m.SubscribeNamespace, m.SubscribeTracks]
)
def test_a_namespace_request_is_not_redirected_to_a_track(request_type: type[m.Request]) -> None:
    redirect = m.Redirect("moqt://b", TRACK)
    message = m.RequestError(RequestErrorCode.REDIRECT, redirect=redirect)
    with pytest.raises(ValueError, match="REDIRECT"):
        m.encode_message(message, request_type)
    kind, body = split_message(m.encode_message(message, m.Subscribe))
    assert m.decode_message(kind, body, m.Subscribe) == message
    with pytest.raises(ProtocolViolation, match="REDIRECT"):
        m.decode_message(kind, body, request_type)


@pytest.mark.parametrize(
    ("message", "context"),
    [
        (m.Goaway("x" * 8193), {}),
        (m.Subscribe(-1, TRACK), {}),
        (m.Subscribe(0, FullTrackName((b"",), b"")), {}),
        (m.Subscribe(0, FullTrackName((bytes(4096),), b"x")), {}),
        (m.Subscribe(0, TRACK, Parameters(expires=1)), {}),
        (m.Subscribe(0, TRACK, Parameters(object_id_filters=(RangeFilter(0, ((2, 1),)),))), {}),
        (m.RequestUpdate(0, Parameters(forward=True)), {"request": m.Publish}),
        (m.RequestError(RequestErrorCode.REDIRECT), {}),
        (m.RequestError(0, redirect=m.Redirect("", TRACK)), {}),
        (m.SubscribeOk(0, properties=((3, bytes(65535)),)), {}),
        (m.PublishSkipped((), bytes(4097)), {}),
    ],
)
def test_what_a_peer_would_refuse_is_not_sent(message: m.Message, context: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r".+"):
        m.encode_message(message, **context)


def test_a_long_reason_is_cut() -> None:
    encoded = m.encode_message(m.PublishDone(0, m.UNKNOWN_STREAM_COUNT, "x" * 2000))
    decoded = m.decode_message(*split_message(encoded))
    assert decoded == m.PublishDone(0, m.UNKNOWN_STREAM_COUNT, "x" * 1024)


def test_padded_integers_are_read() -> None:
    padded = bytes.fromhex("8002 c00001 01 61 8000 8000")
    expected = m.Subscribe(2, FullTrackName((b"a",), b""))
    assert m.decode_message(m.MessageType.SUBSCRIBE, padded) == expected


def test_mutations_seed_22() -> None:
    contexts = {vector.octets[:3]: vector.context for vector in MESSAGES}

    def parse(data: bytes) -> None:
        reader = m.MessageReader()
        reader.feed(data)
        while (found := reader.next()) is not None:
            m.decode_message(*found, **contexts.get(data[:3], {}))

    assert survives(parse, [vector.octets for vector in MESSAGES], ProtocolViolation, InvalidFilter)


def test_mutations_of_bodies_seed_22() -> None:
    """The type stays and the length is put right, so that the edits reach the fields."""
    corpus = [
        bytes((index,)) + split_message(vector.octets)[1] for index, vector in enumerate(MESSAGES)
    ]

    def parse(data: bytes) -> None:
        if not data:
            return
        vector = MESSAGES[data[0] % len(MESSAGES)]
        kind, _ = split_message(vector.octets)
        message = m.decode_message(kind, data[1:], **vector.context)
        if "\ufffd" not in getattr(message, "reason", ""):
            again = split_message(m.encode_message(message, **vector.context))
            assert m.decode_message(*again, **vector.context) == message

    assert survives(parse, corpus, ProtocolViolation, InvalidFilter)


def test_setup_type_is_the_control_stream_type() -> None:
    assert m.encode_message(m.Setup()).startswith(encode_vi64(0x2F00))
