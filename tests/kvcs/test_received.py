"""kvcs.received: headers that pycose makes something of, and what it raises, end nothing but the message."""

from __future__ import annotations

import hmac
from typing import Any

import cbor2
import pytest
from pycose import exceptions
from pycose.headers import Algorithm
from pycose.messages.mac0message import Mac0Message
from pycose.messages.sign1message import Sign1Message

from kvcs.access.cwt import claims_in, open_token
from kvcs.access.keys import KeyRing
from kvcs.errors import SignatureError
from kvcs.signing import Signer
from moqt.errors import UntrustedToken
from tests.support.keys import PAYLOAD, PRODUCERS, TRUSTED
from tests.support.tokens import SHARED

LABELS = [0, 3, 5, 6, 7, 9, 10, *range(32, 36), -1, -2, -3, *range(-26, -19), "STATIC_KEY", "KID"]
"""All that pycose knows beside the three that are read here; two of them by their names."""
VALUES: list[object] = [None, 1, b"x", "x", [], {}, {1: 2}, {1: 1, -1: 6}, {1: 4, -1: b"k"}]
HEADERS = [(label, value) for label in LABELS for value in VALUES]
CLAIMS = cbor2.dumps({4: 1_900_000_500, 327: [[[3]]]})
RAISED = [kind for kind in vars(exceptions).values() if isinstance(kind, type)]


def signed(name: str, label: object, value: object, *, unprotected: bool = False) -> bytes:
    """A COSE_Sign1 with one header more, whose signature covers it where it is protected."""
    key = PRODUCERS[name]
    headers: dict[Any, Any] = {1: int(key.algorithm), 4: key.key_id}
    more = {label: value}
    protected = cbor2.dumps(headers if unprotected else headers | more)
    structure = cbor2.dumps(["Signature1", protected, b"", PAYLOAD])
    message = Signer(key)._message(PAYLOAD)
    algorithm = message.phdr[Algorithm]
    parts = [
        protected,
        more if unprotected else {},
        PAYLOAD,
        algorithm.sign(message.key, structure),
    ]
    return cbor2.dumps(cbor2.CBORTag(18, parts))


def sealed(label: object, value: object) -> bytes:
    """Likewise a token."""
    protected = cbor2.dumps({1: 5, 4: SHARED.key_id, label: value})
    structure = cbor2.dumps(["MAC0", protected, b"", CLAIMS])
    tag = hmac.digest(SHARED.octets, structure, "sha256")
    return cbor2.dumps(cbor2.CBORTag(17, [protected, {}, CLAIMS, tag]))


def changed(message: bytes) -> bytes:
    """Its seal ends otherwise."""
    return message[:-1] + bytes((message[-1] ^ 1,))


@pytest.mark.parametrize("name", PRODUCERS)
@pytest.mark.parametrize("unprotected", [False, True])
def test_a_manifests_header_that_nobody_asked_for(name: str, unprotected: bool) -> None:
    """M8: it is no obstacle where the signature holds, and where it does not that is all that is said."""
    for label, value in HEADERS:
        message = signed(name, label, value, unprotected=unprotected)
        assert TRUSTED.open(message) == PAYLOAD, (label, value)
        with pytest.raises(SignatureError, match="the signature is not one of key"):
            TRUSTED.open(changed(message))


def test_a_tokens_header_that_nobody_asked_for() -> None:
    """R2: likewise."""
    ring = KeyRing([SHARED])
    for label, value in HEADERS:
        message = sealed(label, value)
        assert open_token(message, ring) == claims_in(CLAIMS), (label, value)
        with pytest.raises(UntrustedToken, match='its seal is not one of key "k1"'):
            open_token(changed(message), ring)


@pytest.mark.parametrize("kind", RAISED)
def test_whatever_pycose_raises_the_seal_does_not_hold(
    kind: type[Exception], monkeypatch: pytest.MonkeyPatch
) -> None:
    """M8, R2: its exceptions have no base in common."""

    def fail(*_: object) -> None:
        raise kind("no")

    monkeypatch.setattr(Sign1Message, "verify_signature", fail)
    monkeypatch.setattr(Mac0Message, "compute_tag", fail)
    with pytest.raises(SignatureError, match="the signature is not one of key"):
        TRUSTED.open(Signer(PRODUCERS["es256"]).sign(PAYLOAD))
    with pytest.raises(UntrustedToken, match="its seal is not one of key"):
        open_token(sealed(-2, {}), KeyRing([SHARED]))
