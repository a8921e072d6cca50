"""Secure Objects and key rings: what relays may alter, and what files may hold."""

from __future__ import annotations

import json

from kvcs.errors import UsageError
from kvcs.key_ring import KeyRing, RingKey, parse_keys
from kvcs.payload import Discard
from kvcs.sealing import TrackOpener
from kvcs.secure_objects import IMMUTABLE_PROPERTIES, LEAST_KEY_ID, ObjectCipher, Suite, aad
from moqt import FullTrackName, Location, ObjectHeader, decode_properties
from moqt.errors import ProtocolViolation
from tests.fuzz.target import Choices, Target

_KEY = RingKey(LEAST_KEY_ID, bytes(range(32)))
_NAME = FullTrackName((b"kvcs-1",), b"k.raw.s0")
_PLACE, _PRIORITY = Location(1, 2), 3
_CIPHER = ObjectCipher(_KEY.secret, _KEY.suite, _KEY.key_id, _NAME)
_TRUE = _CIPHER.seal(_PLACE, _PRIORITY, b"payload")
_WIRE = bytes((IMMUTABLE_PROPERTIES, len(_CIPHER.immutable))) + _CIPHER.immutable
_RING = json.dumps({"keys": [_KEY.to_json(), RingKey(0, bytes(64), Suite(5), 1, 2).to_json()]})
_WORDS = [
    *(
        b'"keys":',
        b'"kty":"oct"',
        b'"kid":"0"',
        b'"alg":',
        b'"k":"',
        b'"nbf":',
        b'"exp":',
        b"A" * 43,
    ),
    *(b"[", b"]", b"{", b"}", b",", b"null", b"-1", b"1e9", b"9" * 30, b"\\ud800", b"\xff"),
]


def _key_ring(data: bytes) -> None:
    """What is accepted can be used, and reads the same when it is written again."""
    keys = parse_keys(data)
    assert len(KeyRing(keys).keys) == len(keys)
    assert parse_keys(json.dumps({"keys": [key.to_json() for key in keys]}).encode()) == keys


def _sealed_object(data: bytes) -> None:
    """Any place, priority, properties and payload: only what was sealed opens."""
    choices = Choices(data)
    place, priority = Location(choices.number(), choices.number()), choices.number()
    properties = decode_properties(choices.piece(choices.number()))
    sealed = choices.rest()
    header = ObjectHeader(place, len(sealed), priority=priority, properties=properties)
    payload = TrackOpener(KeyRing([_KEY]), _NAME).open(header, priority, sealed)
    assert (place, priority, sealed) == (_PLACE, _PRIORITY, _TRUE)
    assert (IMMUTABLE_PROPERTIES, _CIPHER.immutable) in properties
    assert bytes(payload) == b"payload"


def _plaintext(data: bytes) -> None:
    """Whatever a member seals: a payload comes out that lies in it, or nothing."""
    extra = aad(_PLACE, _PRIORITY, _CIPHER.immutable)
    sealed = _CIPHER._aead.encrypt(_CIPHER.nonce(_PLACE), data, extra)
    payload = bytes(_CIPHER.open(_PLACE, _PRIORITY, _CIPHER.immutable, sealed))
    assert payload in data


TARGETS = (
    Target(
        name="key-ring",
        run=_key_ring,
        errors=(UsageError,),
        seeds=[_RING.encode()],
        words=_WORDS,
    ),
    Target(
        name="sealed-object",
        run=_sealed_object,
        errors=(Discard, ProtocolViolation),
        seeds=[bytes((1, 2, 3, len(_WIRE))) + _WIRE + _TRUE],
        words=[_WIRE, b"\x0b\x02\x02\x00", b"\x02\xf9\0\0\0\0\0", _TRUE],
    ),
    Target(
        name="sealed-plaintext",
        run=_plaintext,
        errors=(Discard,),
        seeds=[b"\x02hi", b"\x02hi\x0a\x01x", b"\x02hi\x00\x0a\x01x"],
        words=[b"\x0a", b"\x00\x0a", b"\xff" * 9, b"\x80\x02"],
    ),
)
