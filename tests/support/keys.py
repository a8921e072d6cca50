"""Producers' keys: the fixed ones of the vectors, and the vectors themselves. Odd keys and certificates."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives.serialization import load_pem_private_key

from kvcs.producer_keys import PrivateKey, private_key
from kvcs.signing import TrustedKeys
from tests.support.caches import VECTORS

COSE: dict[str, Any] = json.loads((VECTORS / "cose-vectors.json").read_text("utf-8"))
PAYLOAD: bytes = COSE["payload_json"].encode("utf-8")


def vector_key(name: str) -> PrivateKey:
    """The private key "es256" or "ed25519" of the vectors."""
    key = COSE["keys"][name]
    pem = load_pem_private_key(key["pem_private"].encode("ascii"), None)
    return private_key(pem, bytes.fromhex(key["kid"]))


def message(vector: str) -> bytes:
    """The octets of a vector."""
    (found,) = (v["message"] for v in COSE["vectors"] if v["id"] == vector)
    return bytes.fromhex(found)


PRODUCERS = {name: vector_key(name) for name in ("es256", "ed25519")}
TRUSTED = TrustedKeys(key.public for key in PRODUCERS.values())

SHORT_ED448 = b"""-----BEGIN PRIVATE KEY-----
MC4CAQAwBQYDK2VxBCIEIEnkFFBbtp+tesr1IQR1TAeW53LRydGOPqoyKLbbl4JH
-----END PRIVATE KEY-----
"""
"""As many octets as an Ed25519 key has: OpenSSL fails at it in a way of its own."""

ODD_CERTIFICATES = {
    "version": ("a003020102", "a003020106"),  # there is no version 7
    "curve": ("2a8648ce3d030107034200", "2a8648ce3d03017f034200"),  # nobody knows it
    "point": ("2a8648ce3d03010703420004", "2a8648ce3d03010703420005"),  # it has no such form
    "name": ("5504030c124b564353207468726f77", "550403031200564353207468726f77"),  # a BIT STRING
}
"""How each differs from one that `kvcs.certs` makes, in hex; "name" from that of a CA."""


def odd_certificate(path: Path, kind: str) -> bytes:
    """DER of the certificate in a PEM file, which cannot be used any more for one reason."""
    text = path.read_text("ascii").partition("-----BEGIN CERTIFICATE-----")[2]
    good, odd = (bytes.fromhex(part) for part in ODD_CERTIFICATES[kind])
    der = base64.b64decode(text.partition("-----END")[0])
    assert good in der
    return der.replace(good, odd)


def as_pem(der: bytes) -> bytes:
    """A certificate as in a file."""
    return (
        b"-----BEGIN CERTIFICATE-----\n" + base64.encodebytes(der) + b"-----END CERTIFICATE-----\n"
    )
