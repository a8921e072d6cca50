"""kvcs.keyfiles: keys in files of every form, and what is written."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cbor2
import pytest
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
)

from kvcs import keyfiles
from kvcs.errors import UsageError
from kvcs.keyfiles import MAX_OCTETS, load_private_key, load_public_keys, write_key_pair
from kvcs.producer_keys import Algorithm, generate
from tests.kvcs.test_keysets import NAMES, jwk, private_jwk
from tests.support.keys import COSE, PRODUCERS, SHORT_ED448


def forms(name: str, kind: str) -> dict[str, bytes]:
    """A key of the vectors in each form; kind is public or private."""
    key = COSE["keys"][name]
    one = jwk(name) if kind == "public" else private_jwk(name)
    binary = bytes.fromhex(key[f"cose_key_{kind}"])
    return {
        "pem": key[f"pem_{kind}"].encode(),
        "jwk": json.dumps(one, indent=1).encode(),
        "jwk set": json.dumps({"keys": [one]}).encode(),
        "cose": binary,
        "cose set": b"\x81" + binary,
    }


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "key"


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("form", forms("es256", "public"))
def test_every_form(name: str, form: str, path: Path) -> None:
    """M8: the same key, whichever form its file has; PEM has no identifier of its own."""
    key = PRODUCERS[name]
    path.write_bytes(forms(name, "public")[form])
    (found,) = load_public_keys([path], key.key_id)
    assert found == key.public
    path.write_bytes(forms(name, "private")[form])
    assert load_private_key(path, key.key_id).public == key.public
    with pytest.raises(UsageError, match="holds a private key; name the public one"):
        load_public_keys([path])


def test_several_keys(tmp_path: Path) -> None:
    """M8: PEM blocks one after another, sets, and several files; other kinds in a set are passed over."""
    blocks = tmp_path / "blocks"
    blocks.write_bytes(b"# old, then new\n" + b"".join(forms(n, "public")["pem"] for n in NAMES))
    listed = tmp_path / "listed"
    other = {"kty": "RSA", "n": "AQAB", "e": "AQAB"}
    listed.write_text(json.dumps({"keys": [other, *map(jwk, NAMES)]}))
    binary = tmp_path / "binary"
    binary.write_bytes(
        b"\x83" + b"".join(forms(n, "public")["cose"] for n in NAMES) + cbor2.dumps({1: 3, -1: b""})
    )
    keys = [PRODUCERS[name].public for name in NAMES]
    assert [key.key for key in load_public_keys([blocks])] == [key.key for key in keys]
    assert load_public_keys([listed, binary]) == keys * 2
    with pytest.raises(UsageError, match="cannot all have one identifier"):
        load_public_keys([blocks], b"k")


def private_pem(key: Any, form: PrivateFormat, password: bytes | None = None) -> bytes:
    protection = NoEncryption() if password is None else BestAvailableEncryption(password)
    octets: bytes = key.private_bytes(Encoding.PEM, form, protection)
    return octets


EC = PRODUCERS["es256"].key
RSA = rsa.generate_private_key(65537, 2048)
P384 = ec.generate_private_key(ec.SECP384R1())
CERTIFICATE = b"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"


def test_other_pem(path: Path) -> None:
    """M8: SEC1 is read; a key beside its parameters or its public half too."""
    pem = private_pem(EC, PrivateFormat.TraditionalOpenSSL)
    assert b"EC PRIVATE KEY" in pem
    for octets in (pem, forms("es256", "public")["pem"] + pem, pem.replace(b"\n", b"\r\n")):
        path.write_bytes(octets)
        assert load_private_key(path).public.key == EC.public_key()


UNKNOWN_CURVE = b"""-----BEGIN PUBLIC KEY-----
MFkwEwYHKoZIzj0CAQYIKoZIzj0DAX8DQgAE2zFDCUfuBbaQo520WNh/RJzxhirbnSF1oqMCAH9O
WyCFoi7k+7SWyl1yFILscGYuAINfhVWOYrgwRJlJwQAOvg==
-----END PUBLIC KEY-----
"""


@pytest.mark.parametrize(
    ("octets", "fault"),
    [
        (b"", "neither PEM, JWK nor COSE_Key"),
        (b"hello", "neither PEM, JWK nor COSE_Key"),
        (b"\xa0", "one private key, it holds none"),
        (forms("es256", "public")["pem"], "one private key, it holds none"),
        (forms("es256", "public")["jwk"], "one private key, it holds none"),
        (forms("es256", "private")["pem"] * 2, "one private key, it holds 2"),
        (private_pem(EC, PrivateFormat.PKCS8, b"secret"), "protected by a password"),
        (private_pem(RSA, PrivateFormat.PKCS8), "expected a P-256 key"),
        (private_pem(P384, PrivateFormat.PKCS8), "expected a P-256 key"),
        (CERTIFICATE.replace(b"CERTIFICATE", b"PRIVATE KEY"), "not a private key that can be"),
        (SHORT_ED448, "not a private key that can be"),
        (b'{"keys":[]}', "it holds none"),
        (b'{"keys":[[]]}', "array of objects"),
    ],
)
def test_no_private_key(octets: bytes, fault: str, path: Path) -> None:
    """M8: one line that names the file, exit status 2."""
    path.write_bytes(octets)
    with pytest.raises(UsageError, match=fault) as caught:
        load_private_key(path)
    assert str(caught.value).startswith(f"private key: {path}: ")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("octets", "fault"),
    [
        (b"", "neither PEM, JWK nor COSE_Key"),
        (CERTIFICATE, "CERTIFICATE is not a public key"),
        (CERTIFICATE.replace(b"CERTIFICATE", b"PUBLIC KEY"), "PUBLIC KEY is not a public key"),
        (UNKNOWN_CURVE, "PUBLIC KEY is not a public key"),
        (
            RSA.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo),
            "expected a P-256 key",
        ),
        (private_pem(EC, PrivateFormat.PKCS8, b"secret"), "holds a private key"),
        (json.dumps({"keys": [jwk(), {"kty": "oct", "k": "AAAA"}]}).encode(), "a private key"),
        (json.dumps({"keys": [{"kty": "RSA"}]}).encode(), "no public key for ES256 or EdDSA"),
        (json.dumps({"keys": [{}] * 1001}).encode(), "more than 1000 keys"),
        (forms("ed25519", "public")["pem"] * 1001, "more than 1000 keys"),
        (json.dumps({"kty": "RSA"}).encode(), "expected a P-256 key"),
    ],
)
def test_no_public_key(octets: bytes, fault: str, path: Path) -> None:
    """M8: likewise."""
    path.write_bytes(octets)
    with pytest.raises(UsageError, match=fault) as caught:
        load_public_keys([path])
    assert str(caught.value).startswith(f"public keys: {path}: ")


def test_files_that_cannot_be_read(path: Path) -> None:
    for load in (load_private_key, lambda path: load_public_keys([path])):
        with pytest.raises(UsageError, match="cannot read"):
            load(path)
    path.write_bytes(bytes(MAX_OCTETS + 1))
    with pytest.raises(UsageError, match="more than 1048576 octets"):
        load_private_key(path)


@pytest.mark.parametrize("algorithm", list(Algorithm))
def test_what_is_written(algorithm: Algorithm, path: Path) -> None:
    """M8: a private file for its owner's eyes only, a public one for all; both give the same identifier."""
    key = generate(algorithm)
    before = os.umask(0o022)
    try:
        public = write_key_pair(path, key)
    finally:
        os.umask(before)
    assert public == path.with_name("key.pub")
    assert (path.stat().st_mode & 0o777, public.stat().st_mode & 0o777) == (0o600, 0o644)
    assert load_private_key(path).public == key.public
    assert load_public_keys([public]) == [key.public]


def test_nothing_is_overwritten(path: Path) -> None:
    """M8: a key that is lost cannot be had again."""
    key = generate(Algorithm.EDDSA)
    for there in (path, path.with_name("key.pub")):
        there.write_bytes(b"mine")
        with pytest.raises(UsageError, match="never overwritten"):
            write_key_pair(path, key)
        assert there.read_bytes() == b"mine"
        there.unlink()
        assert list(path.parent.iterdir()) == []
    with pytest.raises(UsageError, match="cannot write"):
        write_key_pair(path / "none" / "key", key)


def test_keys_are_not_in_messages(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """M8: whatever is wrong with the file of a private key."""
    whole = json.dumps(private_jwk() | {"d": "secret-that-nobody-may-see"}).encode()
    for octets in (whole, whole[:-1], whole.replace(b'"EC"', b'"RSA"')):
        path.write_bytes(octets)
        with pytest.raises(UsageError) as caught:
            load_private_key(path)
        assert "secret" not in str(caught.value)
    monkeypatch.setattr(keyfiles, "MAX_OCTETS", 10)
    with pytest.raises(UsageError, match="more than 10 octets"):
        load_private_key(path)


@pytest.mark.parametrize("read", [load_private_key, lambda path: load_public_keys([path])])
def test_nothing_but_beginnings(read: Callable[[Path], object], path: Path) -> None:
    """Refused at once: who looks for every end through the whole file needs minutes for it."""
    begin = b"-----BEGIN PUBLIC KEY-----"
    path.write_bytes(begin * (MAX_OCTETS // len(begin)))
    with pytest.raises(UsageError, match="key"):
        read(path)
