"""Secure Objects: the vectors both ways, every kind of tampering, and the limits."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvcs import secure_objects
from kvcs.errors import KeyExhausted
from kvcs.payload import Component, Discard, DiscardReason, PayloadHeader
from kvcs.secure_objects import (
    IMMUTABLE_PROPERTIES,
    KEY_ID,
    MAX_LIST,
    MAX_OBJECT_ID,
    ObjectCipher,
    Suite,
    aad,
    derive,
    key_id_of,
    serialize_track_name,
)
from moqt import FullTrackName, Location, encode_vi64
from tests.support.caches import VECTORS

DRAFT: dict[str, Any] = json.loads((VECTORS / "secure-objects-vectors.json").read_text("utf-8"))
OWN: list[dict[str, Any]] = json.loads(
    (VECTORS / "secure-objects-kvcs-vectors.json").read_text("utf-8")
)["vectors"]
SUITES = set(Suite)
NAME = FullTrackName((b"kvcs-1", b"scope"), b"k.raw.s0")
BASE = bytes(range(32))
KEY = 1 << 40
PLACE = Location(3, 7)


def supported(vectors: list[dict[str, Any]]) -> list[dict[str, Any]]:
    found = [vector for vector in vectors if vector["cipher_suite"] in SUITES]
    assert found
    return found


def cipher(suite: Suite = Suite.AES_128_GCM_SHA256_128, **changes: Any) -> ObjectCipher:
    named: dict[str, Any] = {"base_key": BASE, "suite": suite, "key_id": KEY, "track": NAME}
    return ObjectCipher(**named | changes)


def refused(c: ObjectCipher, *args: Any) -> DiscardReason:
    with pytest.raises(Discard) as caught:
        c.open(*args)
    return caught.value.reason


def test_the_vectors_are_all_there() -> None:
    """X3: of the draft's those for AES-CTR are left out, with the suites."""
    groups = {name: len(vectors) for name, vectors in DRAFT.items() if isinstance(vectors, list)}
    assert groups == {"full_track_name": 3, "key_derivation": 4, "nonce_aad": 3, "encryption": 4}
    used = {name: len(supported(DRAFT[name])) for name in groups if name != "full_track_name"}
    assert used == {"key_derivation": 2, "nonce_aad": 3, "encryption": 2}
    assert (len(OWN), len(supported(OWN))) == (8, 7)


@pytest.mark.parametrize("vector", DRAFT["full_track_name"])
def test_the_drafts_track_names(vector: dict[str, Any]) -> None:
    """X3."""
    namespace = tuple(field.encode() for field in vector["namespace_tuples"])
    name = FullTrackName(namespace, vector["track_name"].encode())
    assert serialize_track_name(name).hex() == vector["serialized_full_track_name"]


def test_long_lengths_are_as_short_as_they_can_be() -> None:
    """X3: both sides must derive the same key."""
    assert serialize_track_name(FullTrackName((b"n" * 200,), b"t" * 300)) == (
        b"\x01" + encode_vi64(200) + b"n" * 200 + encode_vi64(300) + b"t" * 300
    )


@pytest.mark.parametrize("vector", supported(DRAFT["key_derivation"]))
def test_the_drafts_keys(vector: dict[str, Any]) -> None:
    """X3."""
    key, salt = derive(
        bytes.fromhex(vector["track_base_key"]),
        Suite(vector["cipher_suite"]),
        vector["key_id"],
        bytes.fromhex(vector["serialized_full_track_name"]),
    )
    assert (key.hex(), salt.hex()) == (vector["moq_key"], vector["moq_salt"])


def drafts_cipher(vector: dict[str, Any]) -> ObjectCipher:
    track = FullTrackName((b"example.com", b"meeting-123"), b"video")
    base = vector.get("track_base_key", "7369787465656e2062797465206b6579")
    made = ObjectCipher(bytes.fromhex(base), Suite(vector["cipher_suite"]), vector["key_id"], track)
    # The draft's vectors write properties with a type of 16 bits.
    made.immutable = bytes.fromhex("00020107" + vector.get("immutable_properties", ""))
    return made


@pytest.mark.parametrize("vector", supported(DRAFT["nonce_aad"]))
def test_the_drafts_nonces_and_aad(vector: dict[str, Any]) -> None:
    """X3: the largest Group and Object included."""
    c = drafts_cipher(vector)
    place = Location(vector["group_id"], vector["object_id"])
    assert c.nonce(place).hex() == vector["nonce"]
    assert aad(place, vector["publisher_priority"], c.immutable).hex() == vector["aad"]


@pytest.mark.parametrize("vector", supported(DRAFT["encryption"]))
def test_the_drafts_sealed_objects_open(vector: dict[str, Any]) -> None:
    """X3: properties with a type of 16 bits, and an Encrypted Properties List, which is ignored."""
    c = drafts_cipher(vector)
    place, priority = Location(42, 1), vector["publisher_priority"]
    sealed = bytes.fromhex(vector["ciphertext"])
    assert c.open(place, priority, c.immutable, sealed).hex() == vector["original_payload"]
    nonce, data = c.nonce(place), aad(place, priority, c.immutable)
    assert c._aead.encrypt(nonce, bytes.fromhex(vector["plaintext"]), data) == sealed


def own_payload(vector: dict[str, Any]) -> bytes:
    if "payload_rule" not in vector:
        return bytes.fromhex(vector["original_payload"])
    data = bytes(i % 251 for i in range(8192))
    return (
        PayloadHeader(
            component=Component.K,
            layer=vector["group_id"],
            block=vector["object_id"],
            token_start=vector["object_id"] * 4,
            token_count=4,
            codec=1,
            data_length=len(data),
            digest=hashlib.sha256(data).digest(),
        ).encode()
        + data
    )


@pytest.mark.parametrize("vector", supported(OWN), ids=lambda v: v["name"])
def test_our_own_vectors(vector: dict[str, Any]) -> None:
    """X3: sealed and opened, with properties as MOQT writes them."""
    name = FullTrackName(
        tuple(map(bytes.fromhex, vector["namespace"])), vector["track_name"].encode()
    )
    c = ObjectCipher(
        bytes.fromhex(vector["track_base_key"]),
        Suite(vector["cipher_suite"]),
        vector["key_id"],
        name,
    )
    assert serialize_track_name(name).hex() == vector["serialized_full_track_name"]
    assert c.immutable.hex() == vector["immutable_properties_value"]
    place, priority = (
        Location(vector["group_id"], vector["object_id"]),
        vector["publisher_priority"],
    )
    assert c.nonce(place).hex() == vector["nonce"]
    assert aad(place, priority, c.immutable).hex() == vector["aad"]
    payload = own_payload(vector)
    padded = "padding" in vector["name"]
    sealed = c.seal(place, priority, payload)
    if not padded:
        assert hashlib.sha256(sealed).hexdigest() == vector["ciphertext_sha256"]
        assert len(sealed) == vector["ciphertext_len"]
    if "ciphertext" in vector:
        sealed = bytes.fromhex(vector["ciphertext"])
    assert c.open(place, priority, c.immutable, sealed) == payload


def variants(octets: bytes) -> Iterator[bytes]:
    """Every octet changed, in turn; one too few and one too many at either end."""
    for at in range(len(octets)):
        yield octets[:at] + bytes([octets[at] ^ 1 << at % 8]) + octets[at + 1 :]
    yield from (octets[1:], octets[:-1], b"\0" + octets, octets + b"\0", b"")


@pytest.mark.parametrize("suite", list(Suite))
def test_every_octet_of_a_sealed_object_is_authenticated(suite: Suite) -> None:
    """X3, X5: ciphertext and tag; Group, Object, priority and properties; track, suite, Key ID and key."""
    c = cipher(suite)
    sealed = c.seal(PLACE, 12, b"payload of an Object")
    assert bytes(c.open(PLACE, 12, c.immutable, sealed)) == b"payload of an Object"
    for other in variants(sealed):
        assert refused(c, PLACE, 12, c.immutable, other) is DiscardReason.AUTHENTICATION
    for immutable in variants(c.immutable):
        assert refused(c, PLACE, 12, immutable, sealed) is DiscardReason.AUTHENTICATION
    for place in (
        *(Location(3 ^ 1 << bit, 7) for bit in range(64)),
        *(Location(3, 7 ^ 1 << bit) for bit in range(32)),
        Location(7, 3),
        Location(3, 7 + (1 << 32)),
    ):
        assert refused(c, place, 12, c.immutable, sealed) is DiscardReason.AUTHENTICATION
    for priority in {*range(256)} - {12}:
        assert refused(c, PLACE, priority, c.immutable, sealed) is DiscardReason.AUTHENTICATION
    others = [
        cipher(suite, track=FullTrackName(NAME.namespace, b"v.raw.s0")),
        cipher(suite, track=FullTrackName((b"kvcs-1", b"scopf"), NAME.name)),
        cipher(suite, track=FullTrackName((b"kvcs-1scope",), NAME.name)),
        cipher(suite, key_id=KEY + 1),
        cipher(suite, base_key=BASE[::-1]),
        cipher(next(s for s in Suite if s is not suite)),
    ]
    for stranger in others:
        assert refused(stranger, PLACE, 12, c.immutable, sealed) is DiscardReason.AUTHENTICATION


def test_sealing_is_deterministic_and_differs_by_place() -> None:
    """X3, G7: what relays keep is what is sent again."""
    c = cipher()
    assert c.seal(PLACE, 1, b"x" * 40) == cipher().seal(PLACE, 1, memoryview(b"x" * 40))
    sealed = {c.seal(Location(g, o), 1, b"x" * 40) for g in range(4) for o in range(4)}
    assert len(sealed) == 16


@given(
    st.sampled_from(Suite),
    st.binary(max_size=300),
    st.integers(0, (1 << 64) - 1),
    st.integers(0, MAX_OBJECT_ID),
    st.integers(0, 255),
    st.integers(0, (1 << 64) - 1),
)
def test_what_is_sealed_opens(
    suite: Suite, payload: bytes, group: int, object_id: int, priority: int, key_id: int
) -> None:
    """X3."""
    c, place = cipher(suite, key_id=key_id), Location(group, object_id)
    sealed = c.seal(place, priority, payload)
    assert len(sealed) == len(payload) + len(encode_vi64(len(payload))) + 16
    ((kind, immutable),) = c.properties
    assert kind == IMMUTABLE_PROPERTIES
    assert isinstance(immutable, bytes)
    assert key_id_of(c.properties) == (key_id, immutable)
    assert c.open(place, priority, immutable, sealed) == payload


def inside(plaintext: bytes) -> bytes:
    """Any plaintext, truly sealed."""
    c = cipher()
    return c._aead.encrypt(c.nonce(PLACE), plaintext, aad(PLACE, 1, c.immutable))


@pytest.mark.parametrize(
    ("rest", "accepted"),
    [
        (b"", True),
        (b"\x0a\x00", True),
        (b"\x0a\x03abc", True),
        (b"\x00\x0a\x03abc", True),
        (b"\x0a\x03ab", False),
        (b"\x0a\x02abc", False),
        (b"\x0b\x03abc", False),
        (b"\x00\x0b\x03abc", False),
        (b"\x0a", False),
        (b"\x00\x0a", False),
        (b"\x00", False),
        (b"\x0a" + encode_vi64(MAX_LIST) + bytes(MAX_LIST), False),
    ],
)
def test_what_follows_the_payload(rest: bytes, accepted: bool) -> None:
    """X3: an Encrypted Properties List that covers the rest exactly is ignored; anything else is refused."""
    c, sealed = cipher(), inside(b"\x02hi" + rest)
    if accepted:
        assert bytes(c.open(PLACE, 1, c.immutable, sealed)) == b"hi"
    else:
        assert refused(c, PLACE, 1, c.immutable, sealed) is DiscardReason.AUTHENTICATION


@pytest.mark.parametrize("plaintext", [b"", b"\x03hi", b"\xff" * 9 + b"hi", b"\x80", b"\x40hi"])
def test_a_length_that_is_not_there(plaintext: bytes) -> None:
    """X3: refused like anything that does not open."""
    c = cipher()
    assert refused(c, PLACE, 1, c.immutable, inside(plaintext)) is DiscardReason.AUTHENTICATION


def test_an_object_beyond_the_counter_is_not_protected() -> None:
    """X3: neither way."""
    c, beyond = cipher(), Location(0, MAX_OBJECT_ID + 1)
    with pytest.raises(ValueError, match="beyond 2"):
        c.seal(beyond, 1, b"")
    assert refused(c, beyond, 1, c.immutable, bytes(40)) is DiscardReason.AUTHENTICATION


def test_a_key_is_not_used_beyond_its_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    """X3: no layer is begun with too little left; one that was begun may go on a little; then nothing."""
    c = cipher()
    c.reserve(1 << 20)
    one = c.sealed_blocks
    assert one == 1 + -(-((1 << 20) + 25 + 13 + len(c.immutable)) // 16)
    monkeypatch.setattr(secure_objects, "SEALED_BLOCKS", 2 * one)
    monkeypatch.setattr(secure_objects, "MOST_SEALED_BLOCKS", 3 * one)
    c.check()
    c.reserve(1 << 20)
    assert c.sealed_blocks == 2 * one
    with pytest.raises(KeyExhausted, match=r"key 10000000000 has protected .*; add another key"):
        c.check()
    c.reserve(1 << 20)
    with pytest.raises(KeyExhausted):
        c.reserve(0)
    assert c.sealed_blocks == 3 * one


def test_the_limits_are_those_of_aes_gcm() -> None:
    """X3: q (L + 1) <= 2^64.5 sqrt(p) and v (L + 1) <= p 2^127, for p = 2^-57 and 2^-58."""
    assert secure_objects.MOST_SEALED_BLOCKS == 2 ** (64.5 - 57 / 2)
    assert secure_objects.FAILED_BLOCKS == 2 ** (127 - 58)
    assert secure_objects.SEALED_BLOCKS < secure_objects.MOST_SEALED_BLOCKS


def test_failures_are_counted_and_end_a_key(monkeypatch: pytest.MonkeyPatch) -> None:
    """X3: with the same answer as any failure."""
    c = cipher()
    sealed = c.seal(PLACE, 1, b"hi")
    monkeypatch.setattr(secure_objects, "FAILED_BLOCKS", 3)
    assert refused(c, PLACE, 2, c.immutable, sealed) is DiscardReason.AUTHENTICATION
    assert c.failed_blocks == 1 + -(-(len(sealed) + 13 + len(c.immutable)) // 16)
    assert refused(c, PLACE, 1, c.immutable, sealed) is DiscardReason.AUTHENTICATION


@pytest.mark.parametrize(
    "properties",
    [
        (),
        ((KEY_ID, KEY),),
        ((IMMUTABLE_PROPERTIES, b""),),
        ((IMMUTABLE_PROPERTIES, b"\x04\x01"),),
        ((IMMUTABLE_PROPERTIES, b"\x02"),),
        ((IMMUTABLE_PROPERTIES, b"\x02\x01\x00\x01"),),
        ((IMMUTABLE_PROPERTIES, b"\x02\x01"), (IMMUTABLE_PROPERTIES, b"\x02\x01")),
        ((IMMUTABLE_PROPERTIES, b"\x02\x01\x09\x00"),),
        ((IMMUTABLE_PROPERTIES, 7),),
    ],
)
def test_properties_without_a_key_id(properties: Any) -> None:
    """X3: none, outside, empty, cut, twice, nested."""
    assert key_id_of(properties) is None


def test_a_key_id_beside_other_properties() -> None:
    """X3: they stay in the AAD octet by octet, whatever they are."""
    octets = b"\x02\x80\x01\x02\x05"  # the Key ID in a longer form than needed
    assert key_id_of(((4, 1), (IMMUTABLE_PROPERTIES, octets))) == (1, octets)


def test_no_secret_is_shown() -> None:
    """X3."""
    c = cipher()
    assert BASE.hex() not in repr(c)
    assert repr(BASE)[2:-1] not in repr(c)
