"""kvcs.access.keys: keys for tokens, from files of every kind, and rings of them."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import cbor2
import pytest
from cryptography.hazmat.primitives.asymmetric import ec

from kvcs.access.keys import (
    HS256,
    KeyRing,
    SharedKey,
    algorithm_of,
    generate_shared,
    load_ring,
    load_sealing_key,
    write_shared,
)
from kvcs.errors import UsageError
from kvcs.keyfiles import write_key_pair
from kvcs.producer_keys import PrivateKey
from tests.support.tokens import KEYS

K = base64.urlsafe_b64encode(b"s" * 32).rstrip(b"=").decode()
JWK = {"kty": "oct", "kid": "k1", "k": K}
COSE = {1: 4, 2: b"k1", 3: 5, -1: b"s" * 32}


def written(directory: Path, content: Any) -> Path:
    path = directory / "key"
    data = content if isinstance(content, bytes) else json.dumps(content).encode()
    path.write_bytes(data)
    return path


@pytest.mark.parametrize(
    "content",
    [
        JWK,
        JWK | {"alg": "HS256", "use": "sig", "key_ops": ["sign", "verify"]},
        {"keys": [{"kty": "RSA"}, JWK]},
        cbor2.dumps(COSE),
        cbor2.dumps([COSE | {4: [9, 10]}]),
    ],
)
def test_shared_keys(tmp_path: Path, content: Any) -> None:
    path = written(tmp_path, content)
    ring = load_ring([path])
    assert ring.named(b"k1") == SharedKey(b"s" * 32, b"k1") == load_sealing_key(path)
    assert ring.only(HS256) is ring.named(b"k1")
    assert ring.named(b"k2") is None


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (JWK | {"k": K[:20]}, "32 to 128 octets"),
        (JWK | {"k": "A" * 172}, "32 to 128 octets"),
        (JWK | {"k": "!"}, "base64url"),
        ({"kty": "oct", "kid": "k1"}, "32 to 128 octets"),
        ({"kty": "oct", "k": K}, "needs an identifier"),
        (JWK | {"kid": "x" * 65}, "needs an identifier"),
        (JWK | {"alg": "HS512"}, "for HS256"),
        (JWK | {"use": "enc"}, "for HS256"),
        (JWK | {"key_ops": ["encrypt"]}, "key_ops"),
        (cbor2.dumps(COSE | {3: 4}), "for HS256"),
        (cbor2.dumps(COSE | {4: [1]}), "key_ops"),
        (cbor2.dumps(COSE | {-1: "s" * 32}), "32 to 128 octets"),
        ({"keys": []}, "no key for"),
        ({"keys": [{"kty": "RSA"}]}, "no key for"),
        (b"nothing", "neither PEM, JWK nor COSE_Key"),
        (b"", "neither PEM, JWK nor COSE_Key"),
    ],
)
def test_what_is_no_key_says_so(tmp_path: Path, content: Any, why: str) -> None:
    path = written(tmp_path, content)
    with pytest.raises(UsageError, match=why) as refused:
        load_ring([path])
    assert K not in str(refused.value)
    with pytest.raises(UsageError):
        load_sealing_key(path)


@pytest.mark.parametrize("label", ["ES256", "EdDSA"])
def test_pairs(tmp_path: Path, label: str) -> None:
    """The private half makes tokens, the public one checks them; each in its own place."""
    key = KEYS[label]
    assert isinstance(key, PrivateKey)
    private = tmp_path / "key.pem"
    public = write_key_pair(private, key)
    ring = load_ring([public])
    assert ring.named(key.key_id) == key.public
    assert ring.only(int(key.algorithm)) == key.public
    assert algorithm_of(load_sealing_key(private)) == key.algorithm
    with pytest.raises(UsageError, match="private key"):
        load_ring([private])
    with pytest.raises(UsageError, match="expected one private or shared key"):
        load_sealing_key(public)
    if isinstance(key.key, ec.EllipticCurvePrivateKey):
        d = key.key.private_numbers().private_value.to_bytes(32, "big")
        text = base64.urlsafe_b64encode(d).rstrip(b"=").decode()
        with pytest.raises(UsageError, match="give the relay the public one"):
            load_ring([written(tmp_path, {"kty": "EC", "crv": "P-256", "d": text})])


def test_several_files_make_one_ring(tmp_path: Path) -> None:
    """For rotation: what is old and what is new."""
    first, second = generate_shared(), generate_shared()
    paths = [tmp_path / "first", tmp_path / "second"]
    for path, key in zip(paths, (first, second), strict=True):
        write_shared(path, key)
        assert path.stat().st_mode & 0o777 == 0o600
        assert load_sealing_key(path) == key
    ring = load_ring(paths)
    assert len(ring) == 2
    assert ring.named(second.key_id) == second
    assert ring.only(HS256) is None
    with pytest.raises(UsageError, match="exists"):
        write_shared(paths[0], second)


def test_one_name_stands_for_one_key() -> None:
    key = SharedKey(b"a" * 32, b"k")
    assert len(KeyRing([key, key])) == 1
    with pytest.raises(UsageError, match=r'two keys have the identifier \(kid\) "k"'):
        KeyRing([key, SharedKey(b"b" * 32, b"k")])
    with pytest.raises(UsageError, match="no key to check tokens with"):
        KeyRing([])


def test_files_that_are_not_there(tmp_path: Path) -> None:
    for load in (lambda: load_ring([tmp_path / "x"]), lambda: load_sealing_key(tmp_path / "x")):
        with pytest.raises(UsageError, match="cannot read"):
            load()
