"""A throw-away certificate authority: for tests, demonstrations and servers on loopback, never for a network."""

from __future__ import annotations

import os
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

AUTHORITY = "KVCS throw-away CA"
LOOPBACK = ("localhost", "127.0.0.1", "::1")
VALID = timedelta(days=14)
SKEW = timedelta(hours=1)
"""Validity starts this long ago, for machines whose clocks are behind."""


def make(directory: Path, hosts: Iterable[str] = LOOPBACK, *, now: datetime | None = None) -> None:
    """Writes ca, server and client, each as NAME.pem and NAME-key.pem, valid for 14 days.

    `hosts` are the names and addresses of the server. Keys are readable by their owner only.
    """
    directory.mkdir(parents=True, exist_ok=True)
    start = (now or datetime.now(UTC)) - SKEW
    ca_key = ec.generate_private_key(ec.SECP256R1())
    ca = _authority(ca_key, start)
    _write(directory, "ca", ca, ca_key)
    for name, usage, names in (
        ("server", ExtendedKeyUsageOID.SERVER_AUTH, hosts),
        ("client", ExtendedKeyUsageOID.CLIENT_AUTH, ("client",)),
    ):
        key = ec.generate_private_key(ec.SECP256R1())
        leaf = _leaf(ca.subject, f"KVCS {name}", key, start, usage=usage, names=names)
        identifier = x509.AuthorityKeyIdentifier.from_issuer_public_key(ca_key.public_key())
        leaf = leaf.add_extension(identifier, critical=False)
        _write(directory, name, leaf.sign(ca_key, hashes.SHA256()), key)


def _authority(key: ec.EllipticCurvePrivateKey, start: datetime) -> x509.Certificate:
    subject = _subject(AUTHORITY)
    usage = x509.KeyUsage(
        digital_signature=False,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=True,
        crl_sign=True,
        encipher_only=False,
        decipher_only=False,
    )
    return (
        _builder(subject, subject, key, start)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(usage, critical=True)
        .sign(key, hashes.SHA256())
    )


def _leaf(
    issuer: x509.Name,
    name: str,
    key: ec.EllipticCurvePrivateKey,
    start: datetime,
    *,
    usage: x509.ObjectIdentifier,
    names: Iterable[str],
) -> x509.CertificateBuilder:
    alternatives = x509.SubjectAlternativeName([_general_name(name) for name in names])
    return (
        _builder(_subject(name), issuer, key, start)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(x509.ExtendedKeyUsage([usage]), critical=False)
        .add_extension(alternatives, critical=False)
    )


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePrivateKey, start: datetime
) -> x509.CertificateBuilder:
    public = key.public_key()
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(public)
        .serial_number(x509.random_serial_number())
        .not_valid_before(start)
        .not_valid_after(start + VALID)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(public), critical=False)
    )


def _subject(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])


def _general_name(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _write(
    directory: Path, name: str, certificate: x509.Certificate, key: ec.EllipticCurvePrivateKey
) -> None:
    pem = serialization.Encoding.PEM
    (directory / f"{name}.pem").write_bytes(certificate.public_bytes(pem))
    path = directory / f"{name}-key.pem"
    path.unlink(missing_ok=True)
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(
            key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
        )
