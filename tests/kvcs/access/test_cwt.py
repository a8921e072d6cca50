"""kvcs.access.cwt: the vectors, what is made, what is refused and why; nothing that is cut short gets through."""

from __future__ import annotations

import hmac
from typing import Any

import cbor2
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvcs.access.cwt import open_token, seal, take_apart
from kvcs.access.keys import KeyRing, SealingKey, SharedKey
from moqt.auth import claims_of
from moqt.errors import TokenFault, UntrustedToken
from tests.support.tokens import KEYS, KVCS, SCOPE, SHARED, make

"""For a machine that has other things to do."""

VECTORS = {vector["name"]: vector for vector in KVCS["tokens"]}
RING = KeyRing([SHARED])


def checking(key: SealingKey) -> KeyRing:
    return KeyRing([key if isinstance(key, SharedKey) else key.public])


@pytest.mark.parametrize("name", VECTORS)
def test_the_vectors_of_kvcs(name: str) -> None:
    """R2: COSE_Mac0 in tag 61, with the key identifier unprotected."""
    data = bytes.fromhex(VECTORS[name]["cwt_mac0_tag61"])
    claims = open_token(data, RING)
    assert claims == claims_of(cbor2.loads(bytes.fromhex(VECTORS[name]["claims_cbor"])))
    assert claims.token_id == b"tok-1"
    assert claims.audience == ("relay.kvcs.test",)
    for octets in (data[2:], data[3:]):  # tag 61 and tag 17 need not be there
        assert open_token(octets, RING) == claims


@pytest.mark.parametrize("name", VECTORS)
def test_every_truncation_and_every_flipped_bit_is_refused(name: str) -> None:
    data = bytes.fromhex(VECTORS[name]["cwt_mac0_tag61"])
    for length in range(len(data)):
        with pytest.raises(TokenFault):
            open_token(data[:length], RING)
    for at in range(len(data)):
        for bit in range(8):
            changed = bytearray(data)
            changed[at] ^= 1 << bit
            with pytest.raises(TokenFault):
                open_token(bytes(changed), RING)
    with pytest.raises(TokenFault):
        open_token(data + b"\0", RING)


@pytest.mark.parametrize("label", KEYS)
def test_what_is_made_is_opened_and_by_no_other_key(label: str) -> None:
    key = KEYS[label]
    data = make(key, issuer="i", audience=("a", "b"), revalidate=30.0)
    claims = open_token(data, checking(key))
    assert (claims.issuer, claims.audience, claims.revalidate) == ("i", ("a", "b"), 30)
    assert claims.scopes[0].grants(7, (b"kvcs-1", SCOPE), b"t")
    opened = take_apart(data)
    assert opened.key_id == key.key_id
    for other in KEYS:
        if other != label:
            with pytest.raises(UntrustedToken, match="not trusted here"):
                open_token(data, checking(KEYS[other]))
    for length in range(len(data)):
        with pytest.raises(TokenFault):
            open_token(data[:length], checking(key))


def test_a_key_is_used_with_its_own_algorithm_only() -> None:
    """Not even where another key has taken its name."""
    kid = KEYS["EdDSA"].key_id
    with pytest.raises(UntrustedToken, match=r"is for HMAC 256/256, not for EdDSA"):
        open_token(make(KEYS["EdDSA"]), KeyRing([SharedKey(b"x" * 32, kid)]))
    with pytest.raises(UntrustedToken, match="its seal is not one of key"):
        open_token(make(SharedKey(b"x" * 32, b"k1")), RING)


PROTECTED = {1: 5, 4: b"k1"}


def mac0(
    protected: Any = None, unprotected: Any = None, payload: Any = b"\xa0", **more: Any
) -> bytes:
    header = cbor2.dumps(PROTECTED if protected is None else protected)
    parts = [header, unprotected or {}, payload, more.get("mac", bytes(32))]
    return cbor2.dumps(cbor2.CBORTag(more.get("tag", 17), parts))


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"", "not a CWT"),
        (b"\xd8\x3d", "not a CWT"),
        (b"\x84", "cut short"),
        (b"\xd8\x3d" + mac0()[1:], "tag 61 is followed by"),
        (b"\xd8\x3d\xd8\x3d" + mac0(), "a tag that does not belong there"),
        (mac0(tag=18), "tag 18 does not go with HMAC"),
        (mac0({1: -8, 4: b"k1"}, mac=bytes(64)), "tag 17 does not go with EdDSA"),
        (mac0({1: -4, 4: b"k1"}), "its algorithm must be"),
        (mac0({1: 4, 4: b"k1"}, mac=bytes(8)), "its algorithm must be"),
        (mac0({4: b"k1"}, {1: 5}), "names no algorithm"),
        (mac0({1: 5}), "kid"),
        (mac0({1: 5, 4: b""}), "kid"),
        (mac0({1: 5, 4: "k1"}), "kid"),
        (mac0(PROTECTED, {4: b"k1"}), "both protected and unprotected"),
        (mac0(PROTECTED | {2: [1]}), "critical"),
        (mac0(mac=bytes(8)), "its seal must have 32 octets"),
        (mac0(mac=bytes(33)), "its seal must have 32 octets"),
        (mac0(payload=None), "expected octets"),
        (mac0(payload="x"), "expected octets"),
        (b"\xd1\x83\x40\xa0\x40", "array of four"),
        (b"\xd1\x9f\x40\xa0\x40\x40\xff", "indefinite"),
        (mac0(payload=bytes(20000)), "at most"),
        (b"ogEj.oQF4.W17G", "not a CWT"),
    ],
)
def test_what_breaks_a_rule_says_so(data: bytes, why: str) -> None:
    with pytest.raises(TokenFault, match=why):
        open_token(data, RING)


@pytest.mark.parametrize(
    "payload",
    [b"", b"\x80", b"\xa1\x01", b"\xa2\x01\x61a\x01\x61b", b"\xa0\0", b"\xa1\x04\xc1\x01"],
)
def test_claims_are_read_strictly(payload: bytes) -> None:
    """One map, no label twice, no tags: whatever the seal says."""
    sealed = seal({}, SHARED)
    parts = list(cbor2.loads(sealed).value.value)
    parts[2] = payload
    structure = cbor2.dumps(["MAC0", parts[0], b"", payload])
    parts[3] = hmac.digest(SHARED.octets, structure, "sha256")
    with pytest.raises(TokenFault):
        open_token(cbor2.dumps(cbor2.CBORTag(17, parts)), RING)


@given(st.binary(max_size=200))
def test_any_octets_are_refused(data: bytes) -> None:
    with pytest.raises(TokenFault):
        open_token(data, RING)


def test_faults_quote_nothing_of_the_token() -> None:
    data = make(SharedKey(b"x" * 32, b"other"))
    with pytest.raises(TokenFault) as refused:
        open_token(data, RING)
    assert data.hex() not in str(refused.value)
    assert "78787878" not in repr(KEYS) + repr(SharedKey(b"x" * 32, b"k"))
    assert "xxxx" not in repr(SharedKey(b"x" * 32, b"k"))
