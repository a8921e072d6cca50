"""Authorisation tokens: their seals, their claims, and files that should hold one."""

from __future__ import annotations

import cbor2

from kvcs.access.compact import open_compact
from kvcs.access.cwt import claims_in, open_token
from kvcs.access.keys import KeyRing, SharedKey
from kvcs.access.tokenfile import token_octets, token_text
from moqt.auth import Action, Claims, permits
from moqt.errors import TokenFault
from tests.fuzz.target import Target
from tests.support.tokens import C4M, KEYS, KVCS, SHARED, make

_RING = KeyRing(
    [SHARED, *(key if isinstance(key, SharedKey) else key.public for key in KEYS.values())]
)
_SEALED = [bytes.fromhex(vector["cwt_mac0_tag61"]) for vector in KVCS["tokens"]]
_SEALED += [make(key) for key in KEYS.values()]
_COMPACT = [vector["compact_c4m_vector_form"].encode("ascii") for vector in KVCS["tokens"]]
_CLAIMS = [bytes.fromhex(vector["claims_cbor"]) for vector in KVCS["tokens"]]
_CLAIMS += [
    bytes.fromhex("".join(vector["payload_cbor_hex"].split()))
    for vector in C4M["MOQT Authorization Scopes"]
]
_TRUE = {claims_in(cbor2.loads(token).value.value[2]) for token in _SEALED}
_WORDS = [
    *(b"\xd8\x3d", b"\xd1", b"\xd2", b"\x84", b"\xa0", b"\xf6", b"\xf9\x7e\0", b"\x9f", b"\xff"),
    *(b"\x19\x01\x47", b"\x19\x01\x48", b"\x82\x01\x40", b"\x81" * 100, b"\x5a\xff\xff\xff\xff"),
]


def sealed(data: bytes) -> None:
    """Only what was truly sealed comes out."""
    assert open_token(data, _RING) in _TRUE, "claims that nobody sealed"


def compact(data: bytes) -> None:
    """The same for the form of C4M's examples."""
    assert open_compact(data, KeyRing([SHARED])) in _TRUE, "claims that nobody sealed"


def claims(data: bytes) -> None:
    """Claims as whoever has a key may write them: read and matched, or refused."""
    found = claims_in(data)
    assert isinstance(found, Claims)
    for action in Action:
        permits(found.scopes, action, (b"kvcs-1", b"s" * 16), b"t")


def file(data: bytes) -> None:
    """What is read from a file is written as it was."""
    octets = token_octets(data)
    if octets is not None:
        assert token_octets(token_text(octets).encode("ascii")) == octets


TARGETS = (
    Target(
        name="access-token",
        run=sealed,
        errors=(TokenFault,),
        seeds=_SEALED,
        words=_WORDS,
        most=1024,
    ),
    Target(
        name="access-compact",
        run=compact,
        errors=(TokenFault,),
        seeds=_COMPACT,
        words=[b"."],
        most=1024,
    ),
    Target(
        name="access-claims",
        run=claims,
        errors=(TokenFault,),
        seeds=_CLAIMS,
        words=_WORDS,
        most=2048,
    ),
    Target(
        name="access-file", run=file, errors=(), seeds=[*_COMPACT, *_SEALED], words=[b"\n", b"-_"]
    ),
)
