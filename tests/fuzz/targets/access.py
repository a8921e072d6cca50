"""Authorisation tokens, what they are checked with, and what encrypts: tokens, claims, key files, sealed Objects."""

from __future__ import annotations

import base64
import hmac
import json
from pathlib import Path

import cbor2

from kvcs.access.cwt import claims_in, open_token
from kvcs.access.identities import names_of, parse_identities
from kvcs.access.keys import KeyRing as CheckingRing
from kvcs.access.keys import load_ring, load_sealing_key
from kvcs.access.tokenfile import token_octets
from kvcs.errors import UsageError
from kvcs.key_ring import parse_keys
from kvcs.naming import PROTOCOL
from kvcs.payload import Discard
from kvcs.secure_objects import LEAST_KEY_ID, ObjectCipher, Suite, key_id_of
from moqt import FullTrackName, Location, Query
from moqt.auth import Action, Refusal
from moqt.errors import TokenFault
from tests.fuzz.target import Choices, Target
from tests.fuzz.targets.files import through_file
from tests.kvcs.access.test_policy import policy
from tests.kvcs.test_received import sealed
from tests.support.mutable import JSON_PIECES
from tests.support.tokens import SCOPE, SHARED, as_token, make

_RING = CheckingRing([SHARED])
_TOKENS = [make(), make(SHARED, ("subscribe",), b"t" * 16), sealed(-2, {1: 2})]
_CLAIMED = [open_token(token, _RING) for token in _TOKENS]
_TRACK = FullTrackName((b"kvcs-1", b"x"), b"k.raw.s0")
_SECRET = b"k" * 32
_PLAIN = b"what was sealed"


def token(data: bytes) -> None:
    """A token: nothing that its key has not sealed says anything."""
    assert open_token(data, _RING) in _CLAIMED, "claims that nobody sealed"
    found = token_octets(data)
    assert found is None or len(found) <= len(data)


def token_policy(data: bytes) -> None:
    """Sealed claims of any content, and requests: never a scope but the claims' own, never a fault."""
    choices = Choices(data)
    action = list(Action)[choices.number() % len(Action)]
    scope = SCOPE if choices.number() & 1 else b"t" * 16
    payload = choices.rest()
    claims_in(payload)
    protected = b"\xa1\x01\x05"
    structure = cbor2.dumps(["MAC0", protected, b"", payload])
    tag = hmac.digest(SHARED.octets, structure, "sha256")
    sealed = cbor2.dumps(cbor2.CBORTag(17, [protected, {4: SHARED.key_id}, payload, tag]))
    query = Query(
        action=action,
        namespace=(PROTOCOL, scope, b"c" * 32, b"a" * 32, b"p" * 16),
        track=b"t",
        tokens=(as_token(sealed),),
    )
    decision = policy().decide(query)
    if isinstance(decision, Refusal):
        raise TokenFault(decision.reason)


def identities(data: bytes) -> None:
    """A file that says what certificates allow, and a certificate."""
    names_of(data)
    parse_identities(data)


def key_ring(data: bytes) -> None:
    """A key ring; its secrets are nowhere in how it is shown."""
    for key in parse_keys(data):
        assert not key.key_id or key.key_id >= LEAST_KEY_ID
        assert key.secret.hex() not in repr(key)


def sealed_object(data: bytes) -> None:
    """What comes in the place of a sealed Object: nothing opens but what was sealed there."""
    choices = Choices(data)
    place = Location(choices.number(), choices.number(4))
    priority = choices.number()
    properties = ((0x0B, choices.piece(choices.number())),)
    found = key_id_of(properties)
    cipher = ObjectCipher(_SECRET, Suite.AES_128_GCM_SHA256_128, LEAST_KEY_ID, _TRACK)
    immutable = found[1] if found is not None else cipher.immutable
    opened = cipher.open(place, priority, immutable, choices.rest())
    assert bytes(opened) == _PLAIN
    assert (place, priority) == (Location(1, 2), 100)


def _checking(path: Path) -> None:
    load_ring([path])


def _sealing(path: Path) -> None:
    load_sealing_key(path)


def _sealed_seed() -> bytes:
    cipher = ObjectCipher(_SECRET, Suite.AES_128_GCM_SHA256_128, LEAST_KEY_ID, _TRACK)
    octets = cipher.seal(Location(1, 2), 100, _PLAIN)
    immutable = cipher.immutable
    return b"\1" + (2).to_bytes(4, "big") + b"\x64" + bytes((len(immutable),)) + immutable + octets


def _b64(octets: bytes) -> str:
    return base64.urlsafe_b64encode(octets).rstrip(b"=").decode("ascii")


_RINGS = [
    json.dumps(
        {
            "keys": [
                {
                    "kty": "oct",
                    "kid": f"{LEAST_KEY_ID + n:x}",
                    "alg": suite.name,
                    "k": _b64(_SECRET),
                    "nbf": n,
                }
                for n, suite in enumerate(Suite)
            ]
        }
    ).encode()
]
_SHARED_JWK = json.dumps({"kty": "oct", "kid": "k1", "k": _b64(b"s" * 32)}).encode()
_CLAIMS = [
    cbor2.dumps({1: "iss", 4: 1_900_000_500, 7: b"cti", 327: [[[4, 7], [b"kvcs-1", SCOPE]]]}),
    cbor2.dumps({4: 1_900_000_500, 327: [[[2, 3], [b"kvcs-1", [1, b"t"]]]], 328: 5}),
]
_CBOR = [
    *(
        b"\xa0",
        b"\x80",
        b"\x40",
        b"\xf6",
        b"\x01\x41k",
        b"\x82\x01\x41k",
        b"\xf9\x7e\0",
        b"\xd8\x3d",
    ),
    *(b"\xd1", b"\x19\x01\x47", b"\x19\x01\x48", b"\x9b" + b"\xff" * 8, b"\x81" * 60),
    *(b"\x21\x80", b"\x21\xa1\1\2", b"\x20\xa0", b"\2\x81\1", b"\x05\xf6", b"\x18\x21\x80"),
]
_JSON = [*JSON_PIECES, b'"kty":"oct"', b'"k":']

TARGETS = (
    Target(
        name="token-cwt",
        run=token,
        errors=(TokenFault,),
        seeds=_TOKENS,
        words=_CBOR,
    ),
    Target(
        name="token-claims",
        run=token_policy,
        errors=(TokenFault,),
        seeds=[b"\4\1" + claims for claims in _CLAIMS],
        words=_CBOR,
    ),
    Target(
        name="client-scopes",
        run=identities,
        errors=(UsageError,),
        seeds=[
            json.dumps(
                {"identities": [{"san": "a", "scopes": ["00" * 16], "publish": True}]}
            ).encode(),
            json.dumps(
                {"identities": [{"fingerprint": "00" * 32, "scopes": ["ab" * 16]}]}
            ).encode(),
        ],
        words=_JSON,
    ),
    Target(name="key-ring", run=key_ring, errors=(UsageError,), seeds=_RINGS, words=_JSON),
    Target(
        name="sealed-object",
        run=sealed_object,
        errors=(Discard,),
        seeds=[_sealed_seed()],
        words=[b"\0\x0a", b"\2", b"\x0b"],
        most=400,
    ),
    Target(
        name="checking-keys",
        run=through_file(_checking),
        errors=(UsageError,),
        seeds=[_SHARED_JWK, json.dumps({"keys": [json.loads(_SHARED_JWK)]}).encode()],
        words=_JSON,
    ),
    Target(
        name="sealing-keys",
        run=through_file(_sealing),
        errors=(UsageError,),
        seeds=[_SHARED_JWK],
        words=_JSON,
    ),
)
