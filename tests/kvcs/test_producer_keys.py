"""kvcs.producer_keys: which keys there are, and what they are called."""

from __future__ import annotations

import pytest
from cryptography.hazmat.primitives.asymmetric import ec, ed448, ed25519, rsa

from kvcs.errors import UsageError
from kvcs.producer_keys import (
    Algorithm,
    default_key_id,
    generate,
    private_key,
    public_key,
    shown_key_id,
)
from tests.support.keys import PRODUCERS


@pytest.mark.parametrize("algorithm", list(Algorithm))
def test_a_new_key(algorithm: Algorithm) -> None:
    """M8: both halves know their algorithm and identifier."""
    key = generate(algorithm)
    assert key.algorithm is key.public.algorithm is algorithm
    assert key.key_id == key.public.key_id == default_key_id(key.public.key)
    assert generate(algorithm).key_id != key.key_id
    assert public_key(key.public.key) == key.public
    assert public_key(key.public.key, b"x") != key.public
    assert {a.label: int(a) for a in Algorithm} == {"ES256": -7, "EdDSA": -8}


def test_the_default_identifier() -> None:
    """M8: 8 octets of the SHA-256 of the SPKI; the same from either half."""
    found = {name: private_key(key.key).key_id.hex() for name, key in PRODUCERS.items()}
    assert found == {"es256": "c26e992b8abf6966", "ed25519": "e5bb0f7dae5b7c2d"}


@pytest.mark.parametrize(
    "key",
    [
        ec.generate_private_key(ec.SECP384R1()),
        ec.generate_private_key(ec.SECP256K1()),
        ed448.Ed448PrivateKey.generate(),
        rsa.generate_private_key(65537, 2048),
    ],
    ids=lambda key: type(key).__name__,
)
def test_other_keys(key: rsa.RSAPrivateKey) -> None:
    """M8: ES256 and EdDSA only."""
    with pytest.raises(UsageError, match="expected a P-256 key"):
        private_key(key)
    with pytest.raises(UsageError, match="expected a P-256 key"):
        public_key(key.public_key())
    with pytest.raises(UsageError):
        public_key(private_key(ed25519.Ed25519PrivateKey.generate()).key)


def test_identifiers() -> None:
    """M8: 1 to 64 octets; printable ones are shown as text, in quotes."""
    key = PRODUCERS["es256"].key
    assert private_key(key, bytes(64)).key_id == bytes(64)
    for wrong in (b"", bytes(65)):
        with pytest.raises(UsageError, match="1 to 64 octets"):
            private_key(key, wrong)
    assert shown_key_id(b"prod-1") == '"prod-1"'
    assert shown_key_id(b"\x01prod") == "0170726f64"
    assert shown_key_id('"ä\n'.encode()) == "22c3a40a"


def test_a_private_key_is_not_shown() -> None:
    assert repr(PRODUCERS["ed25519"]) == "PrivateKey(key_id=b'prod-ed25519-1')"
