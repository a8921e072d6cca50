"""Control messages and what is inside them, as a peer's octets are parsed."""

from __future__ import annotations

from collections.abc import Iterable

from moqt.errors import LocalError, MalformedTrack, ProtocolViolation
from moqt.model import Location
from moqt.protocol.tokens import TokenCache
from moqt.url import parse_url
from moqt.wire.filters import InvalidFilter, decode_location_filter, decode_range_filter
from moqt.wire.messages import (
    Fetch,
    Message,
    MessageReader,
    MessageType,
    Publish,
    PublishNamespace,
    Request,
    Setup,
    Subscribe,
    SubscribeNamespace,
    SubscribeTracks,
    TrackStatus,
    decode_message,
    encode_message,
)
from moqt.wire.parameters import Scope, decode_parameters, encode_parameters
from moqt.wire.primitives import NeedMoreData, Reader
from moqt.wire.properties import (
    check_track_properties,
    decode_properties,
    immutable_properties,
    mandatory_unknown,
)
from moqt.wire.tokens import AliasType, AuthorizationToken
from tests.fuzz.target import Choices, Target
from tests.fuzz.vectors import VECTORS, of_kind
from tests.support.octets import streams_of_a_client

_REQUESTS: list[type[Request] | None] = [
    None,
    Subscribe,
    Publish,
    Fetch,
    TrackStatus,
    PublishNamespace,
    SubscribeNamespace,
    SubscribeTracks,
]
_SCOPES = list(Scope)
_LIMIT = 4096


def message(data: bytes) -> None:
    """Messages of one stream, in a context; what is accepted can be written, and reads the same again."""
    choices = Choices(data)
    context = choices.number()
    request = _REQUESTS[context & 7]
    by_requester, update = not context & 8, bool(context & 16)
    reader, whole = MessageReader(), MessageReader()
    octets = choices.rest()
    whole.feed(octets)
    for at in range(0, len(octets), 7):
        reader.feed(octets[at : at + 7])
        while (framed := reader.next()) is not None:
            assert framed == whole.next(), "pieces make a difference"
            found = decode_message(*framed, request, by_requester=by_requester, update=update)
            _same_again(found, request, by_requester=by_requester, update=update)


def _same_again(
    found: Message, request: type[Request] | None, *, by_requester: bool, update: bool
) -> None:
    try:
        octets = encode_message(found, request, by_requester=by_requester, update=update)
    except ValueError:
        return  # readers accept more than writers write
    reader = MessageReader()
    reader.feed(octets)
    framed = reader.next()
    assert framed is not None
    again = decode_message(*framed, request, by_requester=by_requester, update=update)
    assert again == found, "written and read it is another message"


def parameters(data: bytes) -> None:
    """The parameters of one scope."""
    choices = Choices(data)
    scope = _SCOPES[choices.number() % len(_SCOPES)]
    reader = Reader(choices.rest())
    found = decode_parameters(reader, scope)
    assert found.filter_ranges >= 0
    repr(found)
    TokenCache(_LIMIT).resolve(found.authorization_tokens)
    if not reader.remaining:
        try:
            octets = encode_parameters(found, scope)
        except ValueError:
            return
        assert decode_parameters(Reader(octets), scope) == found


def properties(data: bytes) -> None:
    """Properties of a track or an Object."""
    found = decode_properties(data)
    assert sum(len(v) for _, v in found if isinstance(v, bytes)) <= len(data)
    mandatory_unknown(found)
    immutable_properties(found)
    check_track_properties(found)


def filters(data: bytes) -> None:
    """One filter, and what it says about some Locations."""
    choices = Choices(data)
    kind = choices.number() % 3
    reader = Reader(choices.rest())
    if kind == 0:
        found = decode_location_filter(reader)
        for largest in (None, Location(0, 0), Location(7, 3), Location((1 << 64) - 2, 5)):
            found.resolve(largest).contains(Location(7, 3))
    else:
        ranges = decode_range_filter(reader, has_property_type=kind == 2)
        for value in (0, 5, (1 << 64) - 1):
            ranges.matches(value)


def tokens(data: bytes) -> None:
    """Token structures, one after another, into one cache, whose limit holds."""
    choices = Choices(data)
    cache = TokenCache(_LIMIT)
    in_setup = bool(choices.number() & 1)
    while choices:
        token = AuthorizationToken.decode(choices.piece(choices.number()))
        repr(token)
        cache.resolve((token,), in_setup=in_setup)
        assert cache._size <= _LIMIT


def setup(data: bytes) -> None:
    """The options of a SETUP."""
    found = decode_message(MessageType.SETUP, data)
    assert isinstance(found, Setup)


def url(data: bytes) -> None:
    """A URL, as a GOAWAY or a user gives one; what is accepted is read the same again."""
    text = data.decode("utf-8", "surrogateescape")
    found = parse_url(text)
    assert parse_url(str(found)) == found


def _messages() -> Iterable[bytes]:
    for vector in of_kind("message"):
        request = vector.context.get("request")
        context = _REQUESTS.index(request)
        context |= 0 if vector.context.get("by_requester", True) else 8
        context |= 16 if vector.context.get("update") else 0
        yield bytes((context,)) + vector.octets
    for octets in streams_of_a_client().values():
        yield b"\1" + octets


def _bodies(kind: int) -> list[bytes]:
    """The bodies of the messages of a type."""
    found = []
    for octets in VECTORS:
        reader = MessageReader()
        reader.feed(octets)
        framed = reader.next()
        if framed is not None and framed[0] == kind:
            found.append(framed[1])
    return found


_PARAMETERS = [
    bytes((number,)) + octets
    for number in range(len(_SCOPES))
    for octets in (b"\0", b"\1\3\4\3\0tok", b"\2\x20\7\1\x21\2\1\2", b"\1\x25\4\1\3\5\7")
]
_TOKENS = [
    AuthorizationToken(AliasType.REGISTER, 1, 0, b"secret").encode(),
    AuthorizationToken(AliasType.USE_ALIAS, 1).encode(),
    AuthorizationToken(AliasType.USE_VALUE, None, 1, b"value").encode(),
    AuthorizationToken(AliasType.DELETE, 1).encode(),
]
_WORDS = [b"\x01\x21", b"\x03\x04", b"kvcs-1", b"\xff" * 9, b"\x80\x00", b"\0\0\0"]
_VIOLATION = (ProtocolViolation,)

TARGETS = (
    Target(
        name="message",
        run=message,
        errors=(ProtocolViolation, InvalidFilter),
        seeds=list(_messages()),
        words=_WORDS,
    ),
    Target(
        name="parameters",
        run=parameters,
        errors=(ProtocolViolation, InvalidFilter, NeedMoreData),
        seeds=_PARAMETERS,
        words=_WORDS,
    ),
    Target(
        name="properties",
        run=properties,
        errors=(ProtocolViolation, MalformedTrack),
        seeds=[b"\4\1\1\3abc", b"\x0b\4\4\1\1\0", b"\x04\x05\x0a\x01\x02\xff", b""],
        words=_WORDS,
    ),
    Target(
        name="filters",
        run=filters,
        errors=(ProtocolViolation, InvalidFilter, NeedMoreData),
        seeds=[
            *(bytes((0, kind, 3, 1, 2, 1)) for kind in range(6)),
            b"\0\3\1\2\3",
            b"\0\5\4\1\2\3\4",
            b"\1\4\0\1\2\3",
            b"\2\5\0\4\1\2\3",
        ],
        words=_WORDS,
    ),
    Target(
        name="tokens",
        run=tokens,
        errors=_VIOLATION,
        seeds=[b"\0" + b"".join(bytes((len(t),)) + t for t in _TOKENS), b"\1\2\3\0"],
        words=[bytes((len(t),)) + t for t in _TOKENS],
    ),
    Target(
        name="setup",
        run=setup,
        errors=_VIOLATION,
        seeds=[b"", *_bodies(MessageType.SETUP)],
        words=_WORDS,
    ),
    Target(
        name="url",
        run=url,
        errors=(LocalError,),
        seeds=[b"moqt://example.com:4443/a/b", b"moqt://[::1]:1", b"moqt://127.0.0.1"],
        words=[b"moqt://", b"[", b"]", b":", b"/", b"@", b"%", b"?", b"#", b"xn--", b"65536"],
        most=300,
    ),
)
