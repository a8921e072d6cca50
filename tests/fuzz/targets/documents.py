"""JSON and CBOR from strangers: manifests, signed manifests, and the strict readers below them."""

from __future__ import annotations

import json

import cbor2

from kvcs import strictcbor, strictjson
from kvcs.errors import KvcsError, ManifestError, SignatureError
from kvcs.manifest import Manifest, check_place, check_successor, matched_blocks
from tests.fuzz.target import Target
from tests.kvcs.test_cose import sign1
from tests.kvcs.test_manifest import FULL, KEYS, manifest, segment
from tests.kvcs.test_received import signed as with_header
from tests.support.keys import COSE, PRODUCERS, TRUSTED
from tests.support.mutable import JSON_PIECES

_SMALL = manifest(segment(0, 0, 1, groups=1))
_SIGNED = {bytes.fromhex(v["message"]) for v in COSE["vectors"]}
_PAYLOAD = COSE["payload_json"].encode("utf-8")
_JSON_WORDS = [
    *JSON_PIECES,
    *(b'"segments":', b'"blocks":', b'"tracks":', b'"object_digests":', b'"block_keys":', b'"a":'),
    *(b"[" * 200, b"{}", b"[]", b'"kv.raw.s0"', b'"version":', b'"publication":', b"1.5", b"NaN"),
]
_CBOR_WORDS = [
    *(
        b"\xa0",
        b"\x80",
        b"\x40",
        b"\x5f",
        b"\x9f",
        b"\xbf",
        b"\xff",
        b"\xf9\x7e\0",
        b"\xd2",
        b"\xc2",
    ),
    *(b"\x5a\xff\xff\xff\xff", b"\x9b" + b"\xff" * 8, b"\x81" * 100, b"\xa1\1\x26", b"\x04\x41k"),
    *(b"\x21\x80", b"\x21\xa1\1\2", b"\x20\xa0", b"\2\x81\1", b"\x05\xf6", b"\x18\x21\x80"),
]


class Refused(KvcsError):
    """What the strict readers are told to raise."""


def manifest_json(data: bytes) -> None:
    """A manifest; what is accepted reads the same when it is written again."""
    found = Manifest.parse(data)
    assert sum(entry.blocks for entry in found.segments) == found.blocks
    matched = matched_blocks(found, KEYS)
    assert 0 <= matched <= len(KEYS)
    part = Manifest.parse(data, within=3)
    assert matched_blocks(part, KEYS[:3]) == matched_blocks(found, KEYS[:3])
    check_successor(part, part)
    try:
        octets = found.encode()
    except UnicodeEncodeError:
        return  # half of a surrogate pair, which JSON can say and UTF-8 cannot
    again = Manifest.parse(octets)
    assert again == found
    check_successor(found, again)
    check_place(found, bytes(16), 0)
    for old in (_SMALL, FULL):
        check_successor(old, found)


def signed(data: bytes) -> None:
    """manifest.cose: only what was truly signed comes out."""
    payload = TRUSTED.open(data)
    assert payload == _PAYLOAD, "a payload that nobody signed"


def strict_json(data: bytes) -> None:
    """Whatever is accepted, the standard library reads alike."""
    found = strictjson.loads(
        data, what="it", max_octets=4096, error=Refused, fractions=True, max_values=1000
    )
    assert found == json.loads(data)


def strict_cbor(data: bytes) -> None:
    """Whatever is accepted, the library reads alike, to the last octet."""
    found = strictcbor.loads(data, max_octets=4096, tags=(18,), error=Refused, what="it")
    assert cbor2.dumps(cbor2.loads(data)) == cbor2.dumps(found)


TARGETS = (
    Target(
        name="manifest",
        run=manifest_json,
        errors=(ManifestError,),
        seeds=[_SMALL.encode(), FULL.encode(), _PAYLOAD],
        words=_JSON_WORDS,
        most=16384,
    ),
    Target(
        name="manifest-cose",
        run=signed,
        errors=(ManifestError, SignatureError),
        seeds=[
            *_SIGNED,
            sign1(cbor2.dumps({1: -7, 4: b"k"}), {9: [1.5]}, b"{}", bytes(64)),
            *(with_header(name, -2, {1: 2}) for name in PRODUCERS),
        ],
        words=_CBOR_WORDS,
    ),
    Target(
        name="json",
        run=strict_json,
        errors=(Refused,),
        seeds=[b'{"a":[1,-2,{"b":"\\u00e4"}],"c":null}', b"[1.5e3,true]", b'"x"', _SMALL.encode()],
        words=_JSON_WORDS,
    ),
    Target(
        name="cbor",
        run=strict_cbor,
        errors=(Refused,),
        seeds=[
            cbor2.dumps({1: -7, 4: b"kid"}),
            cbor2.dumps([1, [2, b"x"], "t"]),
            cbor2.dumps({"a": {}}),
            *sorted(_SIGNED)[:4],
            *(bytes.fromhex(key["cose_key_public"]) for key in COSE["keys"].values()),
        ],
        words=_CBOR_WORDS,
    ),
)
